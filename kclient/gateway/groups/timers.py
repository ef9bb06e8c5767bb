"""Deadlines by key, cheap to push back: what a group's heartbeats need.

A heartbeat moves a deadline to later thousands of times for each time that it fires. The heap therefore keeps the
entry made first; when that entry comes up, it is put back at the deadline that holds by then.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Final, Generic, TypeVar

_CANCELLED: Final = 64
"""So many entries may be there that do not hold any more, beside as many as do."""

K = TypeVar("K")


class Timers(Generic[K]):
    """A set of deadlines, one per key, in seconds on the caller's monotonic clock."""

    __slots__ = ("_deadlines", "_heap", "_order", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        # the earliest entry in the heap for each key; later ones are leftovers and are skipped
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def schedule(self, key: K, deadline: float) -> None:
        """Let `key` fire at `deadline`, instead of at the time set before."""
        self._deadlines[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._push(key, deadline)
            self._forget_cancelled()

    def cancel(self, key: K) -> None:
        """Let `key` not fire; does nothing when it is not scheduled."""
        if self._deadlines.pop(key, None) is not None:
            self._forget_cancelled()

    def clear(self) -> None:
        """Cancel every key."""
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()

    def next_deadline(self) -> float | None:
        """When the next key fires; None when nothing is scheduled."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> K | None:
        """Remove and return the key whose deadline has passed first; None when none has."""
        self._settle()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        del self._queued[key]
        return key

    def _forget_cancelled(self) -> None:
        """Of the entries that do not hold any more there are no more than of the others: their keys may be long."""
        if len(self._heap) > 2 * len(self._deadlines) + _CANCELLED:
            self._queued = dict(self._deadlines)
            self._heap = list(zip(self._deadlines.values(), self._order, self._deadlines, strict=False))
            heapq.heapify(self._heap)

    def _push(self, key: K, deadline: float) -> None:
        self._queued[key] = deadline
        heapq.heappush(self._heap, (deadline, next(self._order), key))

    def _settle(self) -> None:
        """Make the top of the heap an entry that holds."""
        while self._heap:
            queued, _, key = self._heap[0]
            deadline = self._deadlines.get(key)
            if self._queued.get(key) != queued:
                heapq.heappop(self._heap)
            elif deadline is None:
                heapq.heappop(self._heap)
                del self._queued[key]
            elif deadline != queued:
                heapq.heappop(self._heap)
                self._push(key, deadline)
            else:
                return
