"""What the segments of a store take of the memory of the process: their indexes above all.

An index with fewer entries serves, too, and readers take longer: when memory is short, indexes are thinned, those that
have been thick for longest first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kclient.htp.embedded.index import ENTRY_BYTES

if TYPE_CHECKING:
    from kclient.htp.embedded.segment import Segment
    from kclient.memory_ledger import CacheAccount, Loop, MemoryLedger

_SHARE: Final = 8
"""They take one part in so many of what the process may keep, unless they are thin and take more all the same."""
_SEGMENT: Final = 1_200
"""About how many bytes of memory a segment takes beside the entries of its index."""
_THIN: Final = 256
"""Entries that are left of an index that is given up."""
_TURN_S: Final = 0.001
"""Seconds for which indexes are thinned at a time."""


class IndexMemory:
    """The segments of all logs of a store. Only for the event loop's thread.

    Args:
        memory: What the process keeps.
        loop: The event loop.
    """

    def __init__(self, memory: MemoryLedger, loop: Loop) -> None:
        self._memory: CacheAccount = memory.cache("indexes", _SHARE, self._thin, loop=loop)
        self._thick: dict[Segment, None] = {}
        """Those whose indexes can be thinned."""

    def count(self, segment: Segment) -> None:
        """A segment is there, or its index has grown."""
        self._count(segment)
        if self._memory.held > self._memory.limit:
            self._thin()

    def forget(self, segment: Segment) -> None:
        """A segment is not used any more."""
        self._thick.pop(segment, None)
        self._memory.add(-segment.counted)
        segment.counted = 0

    def _count(self, segment: Segment) -> None:
        entries = len(segment.index)
        if entries > _THIN:
            self._thick[segment] = None
        counted = _SEGMENT + ENTRY_BYTES * entries
        self._memory.add(counted - segment.counted)
        segment.counted = counted

    def _thin(self) -> None:
        until = time.perf_counter() + _TURN_S
        while self._thick and time.perf_counter() < until:
            segment = next(iter(self._thick))
            del self._thick[segment]
            segment.index.thin(_THIN)
            self._count(segment)
