"""In which order Java's `HashSet` and `HashMap` have texts.

The number of a subscription is a checksum of the names of metrics in this order, so a client that comes from a Kafka
broker, or from another gateway, keeps its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

_CAPACITY: Final = 16
_MASK: Final = 0xFFFF_FFFF
_AT_ONCE: Final = 4_096
"""Characters of texts that are looked at before others may have their turn: about a third of a millisecond."""
_TEXT: Final = 16
"""A text takes as long as so many characters."""


def java_hash(text: str) -> int:
    """`String.hashCode`, as a number without sign."""
    found = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        found = found * 31 + (data[at] << 8 | data[at + 1]) & _MASK
    return found


def java_order(texts: Iterable[str], size: int = 0) -> list[str]:
    """Texts in the order of a `HashSet` to which they are added one after the other.

    Args:
        texts: What is added; what comes again changes nothing.
        size: Of the collection that it is made of at once; 0 for one that begins empty.
    """
    steps = java_order_in_steps(texts, size)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)


def java_order_in_steps(texts: Iterable[str], size: int = 0) -> Generator[None, None, list[str]]:
    """The same of many texts, in steps: others may have their turn wherever it yields."""
    there: dict[str, int] = {}
    work = 0
    for text in texts:
        if text not in there:
            there[text] = java_hash(text)
            work += len(text)
        work += _TEXT
        if work >= _AT_ONCE:
            work = 0
            yield
    capacity = _CAPACITY
    while capacity < int(size / 0.75) + 1 or len(there) > capacity * 3 // 4:
        capacity *= 2
    places: dict[int, list[str]] = {}
    for count, (text, number) in enumerate(there.items(), 1):
        places.setdefault((number ^ number >> 16) & capacity - 1, []).append(text)
        if count % (_AT_ONCE // _TEXT) == 0:
            yield
    found: list[str] = []
    for place in range(capacity):
        found += places.get(place, ())
        if (place + 1) % _AT_ONCE == 0:
            yield
    return found
