"""Deadlines by key, cheap to push back: what a group's heartbeats need.

A heartbeat moves a deadline to later thousands of times for each time that it fires. The heap therefore keeps the
entry made first; when that entry comes up, it is put back at the deadline that holds by then. Entries do not hold their
keys, which may be long: those that do not hold any more may stay there for as long as their deadline was.
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

    __slots__ = ("_deadlines", "_heap", "_keys", "_order", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        # the entry in the heap for each key, and the key of each; entries without one are leftovers and are skipped
        self._queued: dict[K, tuple[float, int]] = {}
        self._keys: dict[int, K] = {}
        self._heap: list[tuple[float, int]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def schedule(self, key: K, deadline: float) -> None:
        """Let `key` fire at `deadline`, instead of at the time set before."""
        self._deadlines[key] = deadline
        queued = self._queued.get(key)
        if queued is None:
            self._push(key, deadline)
        elif deadline < queued[0]:
            del self._keys[queued[1]]
            self._push(key, deadline)
            self._forget_cancelled()

    def cancel(self, key: K) -> None:
        """Let `key` not fire; does nothing when it is not scheduled."""
        if self._deadlines.pop(key, None) is not None:
            del self._keys[self._queued.pop(key)[1]]
            self._forget_cancelled()

    def clear(self) -> None:
        """Cancel every key."""
        self._deadlines.clear()
        self._queued.clear()
        self._keys.clear()
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
        key = self._keys.pop(heapq.heappop(self._heap)[1])
        del self._deadlines[key]
        del self._queued[key]
        return key

    def _forget_cancelled(self) -> None:
        """Of the entries that do not hold any more there are no more than of the others."""
        if len(self._heap) > 2 * len(self._deadlines) + _CANCELLED:
            self._heap = list(self._queued.values())
            heapq.heapify(self._heap)

    def _push(self, key: K, deadline: float) -> None:
        order = next(self._order)
        entry = self._queued[key] = deadline, order
        self._keys[order] = key
        heapq.heappush(self._heap, entry)

    def _settle(self) -> None:
        """Make the top of the heap an entry that holds."""
        while self._heap:
            queued, order = self._heap[0]
            if order in self._keys:
                key = self._keys[order]
                deadline = self._deadlines[key]
                if deadline == queued:
                    return
                del self._keys[order]
                heapq.heappop(self._heap)
                self._push(key, deadline)
            else:
                heapq.heappop(self._heap)
