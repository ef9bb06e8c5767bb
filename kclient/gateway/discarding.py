"""Giving up messages of very many objects in steps."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from functools import cache
from typing import Any, Final

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayType, Declaration, StructType
from kclient.protocol.types import Type

__all__ = ["arrays_of", "emptied_message"]

_AT_ONCE: Final = 256


def emptied_message(message: ApiMessage) -> Iterator[None]:
    """Take the elements out of a message's arrays, however deep they lie, and the tagged fields that nobody knows."""
    freed = 0
    for count in _emptied(message):
        freed += count
        if freed >= _AT_ONCE:
            freed = 0
            yield


def _emptied(message: Message) -> Iterator[int]:
    """The same; tells how many objects went with each step."""
    unknown = message.unknown_tagged_fields
    if unknown:
        yield from _given_up(unknown)
    for name in _structs_of(type(message)):
        part = getattr(message, name)
        if part is not None:
            yield from _emptied(part)
    for name, nested, is_deep in _arrays_in(type(message)):
        rows = getattr(message, name)
        if not isinstance(rows, list):
            continue
        if not nested:
            yield from _given_up(rows)
        count = 0
        while rows:
            row = rows.pop()
            count += 1
            if is_deep:
                yield from _emptied(row)
            else:  # as nearly all are
                for inner in nested:
                    items = getattr(row, inner)
                    if not isinstance(items, list):
                        continue
                    if len(items) > _AT_ONCE:
                        yield from _given_up(items)
                    count += len(items)
                if row.unknown_tagged_fields:
                    yield from _given_up(row.unknown_tagged_fields)
            if count >= _AT_ONCE:
                yield count
                count = 0
        yield count


def _given_up(items: MutableSequence[Any]) -> Iterator[int]:
    while items:
        count = min(len(items), _AT_ONCE)
        del items[-_AT_ONCE:]
        yield count


@cache
def _structs_of(message: type[Declaration]) -> tuple[str, ...]:
    """The names of a message's structs that are no elements of an array."""
    return tuple(item.name for item in message.FIELDS if isinstance(item.type, StructType))


@cache
def _arrays_in(message: type[Declaration]) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    """As `arrays_of`, and whether there are arrays in the elements of those, too, or structs in theirs."""
    found = []
    for item in message.FIELDS:
        if isinstance(item.type, ArrayType):
            row = item.type.element
            fields = row.message.FIELDS if isinstance(row, StructType) else ()
            nested = tuple(each.name for each in fields if isinstance(each.type, ArrayType))
            found.append((item.name, nested, any(_holds_arrays(each.type) for each in fields)))
    return tuple(found)


def _holds_arrays(kind: Type[Any]) -> bool:
    """Whether values of a type are structs with arrays, or arrays of such."""
    if isinstance(kind, ArrayType):
        kind = kind.element
    return isinstance(kind, StructType) and any(
        isinstance(each.type, ArrayType) or _holds_arrays(each.type) for each in kind.message.FIELDS
    )


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
