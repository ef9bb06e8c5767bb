"""A broker in memory for the length of a block."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_broker(name: str | None = None) -> Iterator[str]:
    """The address of a broker in this process, for any client on any loop or thread; empty at first.

    Args:
        name: the store's name; the default is one that nobody else uses.

    On leaving, the broker stops and its records are forgotten.
    """
    from kclient.inprocess import reset

    name = name or uuid.uuid4().hex
    try:
        yield f"memory:{name}"
    finally:
        reset(name)
