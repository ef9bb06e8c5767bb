"""How gateways name topics, and themselves, in requests that have no place for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from kclient.gateway.membership import LiveGateways

_BY_ID: Final = "id:"
"""What a topic's id begins with, where Kafka has its name: no name may have a colon."""
_ID_CHARACTERS: Final = 32
_GROUP: Final = "group:"
"""What a group that joins a transaction is called there."""
_CLIENT: Final = re.compile(r"kclient-gateway-(\d{1,10})/(.{1,100})", re.DOTALL)


FromGateway: TypeAlias = Callable[[str | None], bool]
"""Whether a client id is that of another gateway."""


def wire_name(topic_id: bytes) -> str:
    """What a topic is called among gateways: by its id, so that no namesake of a later time is meant."""
    return _BY_ID + topic_id.hex()


def named_id(name: str) -> bytes | None:
    """The id of a topic that is named by it; None if it is named by its name, or not at all."""
    if not name.startswith(_BY_ID) or len(name) != len(_BY_ID) + _ID_CHARACTERS:
        return None
    try:
        return bytes.fromhex(name[len(_BY_ID) :])
    except ValueError:
        return None


def wire_group(group_id: str) -> str:
    """What a group is called among gateways, where Kafka names the partition of `__consumer_offsets` that it is in."""
    return _GROUP + group_id


def named_group(name: str) -> str | None:
    """The group that is named; None if it is a topic."""
    return name[len(_GROUP) :] if name.startswith(_GROUP) else None


def client_id_of(node_id: int, run: str) -> str:
    """The client id under which a gateway asks others. Its run is known to those only who can read the store."""
    return f"kclient-gateway-{node_id}/{run}"


def is_gateway(client_id: str | None, gateways: LiveGateways) -> bool:
    """Whether a client is one of the other gateways that are live, as far as its client id shows that.

    The id goes over the wire in the clear: whoever listens in can say the same.
    """
    found = _CLIENT.fullmatch(client_id or "")
    if found is None:
        return False
    node_id, run = int(found[1]), found[2].encode()
    return any(row.node_id == node_id and compare_digest(row.run.encode(), run) for row in gateways.others)
