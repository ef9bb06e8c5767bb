"""Giving up very many objects in steps: to free half a million at once takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from functools import cache
from typing import Any, Final

from kclient.net.fair_queue import Job
from kclient.protocol.message import ApiMessage
from kclient.protocol.schema import ArrayType, Declaration, StructType

__all__ = ["arrays_of", "emptied", "emptied_message", "in_slices"]

_AT_ONCE: Final = 256


def in_slices(steps: Iterator[None], clock: Callable[[], float]) -> Job:
    """Steps as a job of a flow, whose clock it is."""

    def some(until: float) -> bool:
        return any(clock() >= until for _ in steps)

    return some


def emptied(items: MutableSequence[Any] | dict[Any, Any]) -> Iterator[None]:
    """Take everything out of a list or dict."""
    while items:
        if isinstance(items, dict):
            for _ in range(min(_AT_ONCE, len(items))):
                items.popitem()
        else:
            del items[-_AT_ONCE:]
        yield


def emptied_message(message: ApiMessage) -> Iterator[None]:
    """Take the elements out of a message's arrays, and out of theirs."""
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
