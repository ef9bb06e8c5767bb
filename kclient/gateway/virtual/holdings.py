"""What partitions need of the topic that they share, told without a look at all of them whenever one is trimmed."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from kclient.gateway.virtual.envelopes import SIZE

if TYPE_CHECKING:
    from kclient.gateway.virtual.index import PartitionIndex


class Holdings:
    """Adds up what partitions hold, and knows which of them needs the oldest message.

    Batches are added to indexes after `adds`, and indexes trimmed by `trim`; after any other change `forget` is called,
    and everything is looked at once more.

    Args:
        indexes: Of the partitions; others change them.
    """

    def __init__(self, indexes: Mapping[int, PartitionIndex]) -> None:
        self._indexes = indexes
        self._known = False
        self._size = 0
        self._oldest: list[tuple[int, int]] = []
        """A heap: for each partition with messages an ordinal before which it needs none, and its number.

        Partitions need ever younger messages: an ordinal that is out of date is too small, and looked up anew once it
        is the smallest.
        """
        self._listed: set[int] = set()
        """The partitions that are in it."""

    def forget(self) -> None:
        """Indexes have changed in some other way."""
        self._known = False

    def adds(self, index: PartitionIndex, ordinal: int, size: int) -> None:
        """A batch of so many bytes is about to be added to an index."""
        if self._known:
            self._size += SIZE + size
            if not index.blocks and index.number not in self._listed:
                self._listed.add(index.number)
                heappush(self._oldest, (ordinal, index.number))

    def trim(self, index: PartitionIndex, before: int) -> None:
        """Offsets below this one are not needed in an index."""
        if not self._known:
            index.trim(before)
            return
        held = _size(index)
        index.trim(before)
        self._size += _size(index) - held

    @property
    def size(self) -> int:
        """Bytes of the messages that belong to partitions."""
        self._find_out()
        return self._size

    @property
    def slowest(self) -> tuple[int, int] | None:
        """The partition that needs the oldest message, and the ordinal of that; None if none is needed."""
        self._find_out()
        oldest = self._oldest
        while oldest:
            ordinal, number = oldest[0]
            needed = self._indexes[number].needed
            if needed == ordinal:
                return number, ordinal
            if needed is None:
                heappop(oldest)
                self._listed.discard(number)
            else:
                heapreplace(oldest, (needed, number))
        return None

    def _find_out(self) -> None:
        if self._known:
            return
        self._size = sum(map(_size, self._indexes.values()))
        needed = ((index.needed, index.number) for index in self._indexes.values())
        self._oldest = [(ordinal, number) for ordinal, number in needed if ordinal is not None]
        self._listed = {number for _, number in self._oldest}
        heapify(self._oldest)
        self._known = True


def _size(index: PartitionIndex) -> int:
    return sum(block.size + SIZE * block.count for block in index.blocks)
