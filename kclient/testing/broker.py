"""A broker in memory for the length of a block."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kclient.arguments import check_text, shown
from kclient.errors import ConfigError
from kclient.net.address import parse_address


@contextmanager
def memory_broker(name: str | None = None) -> Iterator[str]:
    """The address of a broker in this process, for any client on any loop or thread; empty at first.

    Args:
        name: the store's name; the default is one that nobody else uses.

    Raises:
        TypeError, ValueError, ConfigError: There can be no such name.

    On leaving, the broker stops and its records are forgotten.
    """
    from kclient.inprocess import reset

    name = uuid.uuid4().hex if name is None else name
    check_text(name, "a broker's name")
    if not name or "," in name or parse_address(f"memory:{name}").host != name:
        raise ConfigError(f"an address cannot name a broker {shown(name)}")
    try:
        yield f"memory:{name}"
    finally:
        reset(name)
