"""The store that a gateway serves: opened by it, or given to it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Final, cast

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.gateway.common_store import CommonStore
from kclient.gateway.local import local_address
from kclient.htp import open_store
from kclient.htp.port import Store

MIN_FREE_BYTES: Final = "log.dir.min.free.bytes"
"""The setting of the gateway."""
_ALONE: Final = "alone=True is for embedded: directories, which other processes could serve"


def own_store(
    htp: str, durability: str, brokers: int | None, min_free_bytes: int, *, alone: bool = False, listens: bool = True
) -> Store:
    """The store that an address names, to be opened by the gateway.

    Args:
        htp: The address.
        durability: `synced` or `written`.
        brokers: How many the store is to have; None for as many as before.
        min_free_bytes: What the gateway's setting says; 0 for nothing.
        alone: Whether other processes are kept off a directory.
        listens: Whether clients of gateways in other processes can reach this one; else these are kept off, too.

    Raises:
        ConfigError: The address or an option is wrong, or the store does not take it.
        NotYetSupportedError: The store is not there yet.
    """
    options: dict[str, Any] = {} if brokers is None else {"brokers": brokers}
    if min_free_bytes:
        if not htp.startswith("embedded:"):
            raise ConfigError(f"{MIN_FREE_BYTES} is for embedded: stores; {shown(htp)} takes no such option")
        options["min_free_bytes"] = min_free_bytes
    local = local_address(htp)
    if local is None or local.scheme != "embedded":
        if alone:
            raise ConfigError(f"{_ALONE}; {shown(htp)} is none")
        return open_store(htp, durability=durability, **options)
    options["together"] = listens and not alone
    open_store(htp, durability=durability, **options)  # is refused here, if at all
    told = {
        "durability": durability,
        "options": htp.partition("?")[2],
        "brokers": brokers,
        MIN_FREE_BYTES: min_free_bytes,
        "alone": alone,
    }
    return CommonStore(str(local), partial(open_store, htp, durability=durability, **options), told)


def opened_elsewhere(
    htp: object, durability: str, brokers: int | None, min_free_bytes: int, *, alone: bool = False
) -> Store:
    """The store that was given, which whoever made it opens and closes.

    Raises:
        TypeError: It is none.
        ConfigError: Something was set that belongs to the store.
    """
    # looked up statically: a store that is not open yet refuses to give its parts
    if any(inspect.getattr_static(htp, part, None) is None for part in ("manager", "broker")):
        raise TypeError(f"htp is an address such as 'embedded:./data', or a Store, not {type(htp).__name__}")
    for name, given in (("durability", durability != "synced"), ("brokers", brokers is not None), ("alone", alone)):
        if given:
            raise ConfigError(f"{name} belongs to the store: give it to open_store, where this one was opened")
    if min_free_bytes:
        raise ConfigError(
            f"{MIN_FREE_BYTES} belongs to the store: give min_free_bytes to open_store, where this one was opened"
        )
    return cast("Store", htp)
