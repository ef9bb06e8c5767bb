"""How much may be fetched from whom: the bytes of one consumer, divided among its brokers. Pure bookkeeping.

`fetch.max.bytes` bounds what is buffered and what may still come. Every broker that has something to do has an equal
share of it, and each of the requests to it an equal part of the share; so a broker whose partitions are quiet, full or
hung keeps its own share and nobody else's. A broker of which nothing is buffered or on its way may always be asked:
it returns one batch at least, however large (KIP-74), and that much the bound may be passed by.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Frame:
    """What one response brought: its memory is free again when the last part of it is."""

    __slots__ = ("node_id", "parts", "size")

    def __init__(self, node_id: int, size: int) -> None:
        self.node_id: int = node_id
        self.size: int = size
        self.parts: int = 0


class FetchBudget:
    """The bytes that are buffered and on their way.

    Args:
        max_bytes: `fetch.max.bytes`, for all of them.
        partition_bytes: `max.partition.fetch.bytes`: the most that comes of one partition.
        lanes: Requests to one broker at a time.
    """

    def __init__(self, max_bytes: int, partition_bytes: int, lanes: int) -> None:
        self.buffered: int = 0
        """Bytes that were fetched and are still held."""
        self.short_of: dict[int, tuple[int, int]] = {}
        """Brokers that were not asked, or only for a batch, for want of room: what they needed at least, and their
        share. Whoever asks empties it first."""
        self._max = max_bytes
        self._partition_bytes = partition_bytes
        self._lanes = lanes
        self._held: Counter[int] = Counter()
        self._reserved: Counter[int] = Counter()
        self._all_reserved = 0

    @property
    def busy(self) -> set[int]:
        """The brokers of which something is held or on its way."""
        return {*self._held, *self._reserved}

    def allowance(self, node_id: int, partitions: int, brokers: int) -> int:
        """How many bytes a broker may be asked for now; 0 if it has to wait.

        Args:
            node_id: The broker.
            partitions: How many partitions it is to be asked for.
            brokers: How many brokers have something to do, this one included.
        """
        share = self._max // brokers
        most = max(min(partitions * self._partition_bytes, share // self._lanes), 1)
        least = min(most, self._partition_bytes)
        taken = self._held[node_id] + self._reserved[node_id]
        room = min(share - taken, self._max - self.buffered - self._all_reserved)
        if room < least:
            self.short_of[node_id] = least, share
            if taken:
                return 0
        return max(min(most, room), 1)

    def to_free(self, frames: Iterable[Frame]) -> list[Frame]:
        """As many of some frames, in their order, as those who are short of room need."""
        room = self._max - self.buffered - self._all_reserved
        lacks = {
            node: [least - share + self._held[node] + self._reserved[node], least - room]
            for node, (least, share) in self.short_of.items()
        }
        chosen = []
        for frame in frames:
            if any(_helps(frame, node, *lack) for node, lack in lacks.items()):
                chosen.append(frame)
                for node, lack in lacks.items():
                    lack[0] -= frame.size if node == frame.node_id else 0
                    lack[1] -= frame.size
        return chosen

    def reserve(self, node_id: int, size: int) -> None:
        """A broker is asked for so much."""
        self._reserved[node_id] += size
        self._all_reserved += size

    def answered(self, node_id: int, size: int) -> None:
        """It answered, or will not."""
        _take(self._reserved, node_id, size)
        self._all_reserved -= size

    def hold(self, frame: Frame) -> None:
        """One more part of a response is kept."""
        if not frame.parts:
            self._held[frame.node_id] += frame.size
            self.buffered += frame.size
        frame.parts += 1

    def release(self, frame: Frame) -> None:
        """A part of a response is used up or thrown away."""
        frame.parts -= 1
        if not frame.parts:
            _take(self._held, frame.node_id, frame.size)
            self.buffered -= frame.size

    def recount(self, frames: Iterable[Frame]) -> None:
        """These are held, one for each part that is kept, whatever was counted before."""
        self.buffered = 0
        self._held.clear()
        kept = list(frames)
        for frame in kept:
            frame.parts = 0
        for frame in kept:
            self.hold(frame)


def _helps(frame: Frame, node_id: int, of_share: int, of_all: int) -> bool:
    """Whether a broker that lacks so many bytes of its share, and of all there are, has more room without a frame."""
    return of_share > 0 or of_all > 0 if frame.node_id == node_id else of_share <= 0 < of_all


def _take(counter: Counter[int], node_id: int, size: int) -> None:
    counter[node_id] -= size
    if not counter[node_id]:
        del counter[node_id]
