"""Which addresses of brokers, as the metadata name them, are connected to.

Whoever answers for the cluster chooses them, so they are not believed as `bootstrap.servers` is, which the user wrote.
One that cannot be an address is a broker that cannot be reached: it may be corrected, and others are none the worse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kclient.arguments import shown
from kclient.errors import BrokerConnectionError

if TYPE_CHECKING:
    from collections.abc import Container

    from kclient.net.address import Address

_NO_HOST = re.compile(r"[\x00-\x20\x7f/\\@,]")


def check_advertised(address: Address, schemes: Container[str]) -> None:
    """Raise if an address that a broker named is not to be connected to.

    Args:
        address: What the broker named.
        schemes: The schemes in `bootstrap.servers`. `tcp` is always allowed. Another one would have a server far away
            decide that a Unix socket of this machine is spoken to, or that a store is opened here and the records go
            into it.

    Raises:
        BrokerConnectionError: It is none, or its scheme is another one; a correction may come with the next metadata.
    """
    if address.scheme != "tcp":
        if address.scheme in schemes:
            return
        wrong = f"only clients that have {address.scheme}: in bootstrap.servers connect to such"
    elif not address.host or _NO_HOST.search(address.host):
        wrong = "that is not a host name"
    elif not 0 < address.port < 65536:
        wrong = "a port is from 1 to 65535"
    else:
        try:
            address.host.encode("idna")
        except UnicodeError as error:
            wrong = f"that is not a host name ({error})"
        else:
            return
    raise BrokerConnectionError(
        f"a broker is advertised at {shown(str(address))}, which is not connected to: {wrong}; "
        "see advertised.listeners of the broker"
    )
