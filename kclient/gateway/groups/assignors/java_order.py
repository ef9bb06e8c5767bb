"""The order in which Java's collections hand out what is equal: Kafka's assignor of tasks decides ties by it.

Whoever moves from Kafka to a gateway, or compares the two, finds the same tasks at the same members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_DEFAULT_CAPACITY: Final = 16
_LOAD_FACTOR: Final = 0.75
_INT = 0xFFFFFFFF


def hash_order(keys: Iterable[str], capacity: int | None = None) -> list[str]:
    """Keys in the order in which a `HashMap` of them is gone through.

    Args:
        keys: Different ones, in the order in which they are put into it.
        capacity: What the map is made with; None for Java's default.
    """
    found = list(keys)
    size = _DEFAULT_CAPACITY if capacity is None else 1 << max(0, capacity - 1).bit_length()
    while len(found) > int(size * _LOAD_FACTOR):
        size *= 2
    buckets: dict[int, list[str]] = {}
    for key in found:
        spread = _hash(key)
        buckets.setdefault((spread ^ spread >> 16) & size - 1, []).append(key)
    return [key for bucket in sorted(buckets) for key in buckets[bucket]]


def _hash(text: str) -> int:
    """`String.hashCode` of a text, as a number without sign."""
    found = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        found = 31 * found + (units[index] << 8 | units[index + 1]) & _INT
    return found


class PriorityQueue(Generic[T]):
    """Java's `PriorityQueue`: who comes first of those that are equal follows from how it keeps its heap.

    Args:
        priority: Of an item; the least comes first. Asked again whenever the item is moved.
        items: What is in it, added one after the other.
    """

    def __init__(self, priority: Callable[[T], float], items: Iterable[T] = ()) -> None:
        self._priority = priority
        self._heap: list[T] = []
        for item in items:
            self.add(item)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, item: T) -> None:
        """Put an item into it."""
        heap, priority = self._heap, self._priority
        heap.append(item)
        place, own = len(heap) - 1, priority(item)
        while place:
            parent = (place - 1) >> 1
            if own >= priority(heap[parent]):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = item

    def poll(self) -> T:
        """Take out the first. Raises `IndexError` if there is none."""
        heap = self._heap
        first, last = heap[0], heap.pop()
        if heap:
            self._sink(last)
        return first

    def _sink(self, item: T) -> None:
        heap, priority = self._heap, self._priority
        own, place, half = priority(item), 0, len(heap) >> 1
        while place < half:
            child = 2 * place + 1
            right = child + 1
            if right < len(heap) and priority(heap[child]) > priority(heap[right]):
                child = right
            if own <= priority(heap[child]):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = item
