"""Arrays of a message whose elements are made while it is encoded, so that they need not all exist at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class LazyArray(Generic[T]):
    """As many elements as were promised, made when they are asked for; once.

    Args:
        length: How many there are.
        elements: Makes them.
    """

    __slots__ = ("_elements", "_length", "last", "made")

    def __init__(self, length: int, elements: Iterable[T]) -> None:
        self._length = length
        self._elements = elements
        self.made: int = 0
        """How many were made."""
        self.last: T | None = None
        """The last one: if the message cannot be encoded, that with which it ended."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for element in self._elements:
            self.made += 1
            self.last = element
            yield element


def lazily(length: int, elements: Iterable[T]) -> list[T]:
    """A `LazyArray`, for the field of a message, which can only be encoded then, and once."""
    return cast("list[T]", LazyArray(length, elements))
