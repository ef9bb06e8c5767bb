"""Giving up messages of very many objects in steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from kclient.net.discarding import emptied
from kclient.protocol.message import ApiMessage
from kclient.protocol.schema import ArrayType, Declaration, StructType

__all__ = ["arrays_of", "emptied_message"]

_AT_ONCE: Final = 256


def emptied_message(message: ApiMessage) -> Iterator[None]:
    """Take the elements out of a message's arrays, and out of theirs, and the tagged fields that nobody knows."""
    yield from emptied(message.unknown_tagged_fields or [])
    for name, nested in arrays_of(type(message)):
        rows = getattr(message, name)
        if not isinstance(rows, list):
            continue
        while rows:
            row = rows.pop()
            for inner in nested:
                items = getattr(row, inner)
                if isinstance(items, list) and len(items) > _AT_ONCE:
                    yield from emptied(items)
            if nested and row.unknown_tagged_fields:
                yield from emptied(row.unknown_tagged_fields)
            if len(rows) % _AT_ONCE == 0:
                yield


@cache
def arrays_of(message: type[Declaration]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The names of a message's arrays, each with those of its elements."""
    found = []
    for item in message.FIELDS:
        if isinstance(item.type, ArrayType):
            element = item.type.element
            # the class is hashed, not an instance
            inner = arrays_of(element.message) if isinstance(element, StructType) else ()  # type: ignore[arg-type]
            found.append((item.name, tuple(name for name, _ in inner)))
    return tuple(found)
