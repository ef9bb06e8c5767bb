"""In which order Java's `HashSet` and `HashMap` have texts.

The number of a subscription is a checksum of the names of metrics in this order, so a client that comes from a Kafka
broker, or from another gateway, keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_CAPACITY: Final = 16
_MASK: Final = 0xFFFF_FFFF


@lru_cache(4096)
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
    there = list(dict.fromkeys(texts))
    capacity = _CAPACITY
    while capacity < int(size / 0.75) + 1 or len(there) > capacity * 3 // 4:
        capacity *= 2

    def place(text: str) -> int:
        found = java_hash(text)
        return (found ^ found >> 16) & capacity - 1

    return sorted(there, key=place)
