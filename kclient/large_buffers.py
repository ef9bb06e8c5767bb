"""Buffers for large reads and answers, used again as soon as nobody holds them.

Fresh memory is what a large read or copy costs most: the system has to find and clear a page for every 4 KiB, which
takes several times as long as copying the bytes into it. A buffer goes back by itself: it is free when the pool holds
the only reference to it, and whoever reads it (a view, a reply that is being sent) holds one.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kclient.memory_ledger import CacheAccount, Loop, MemoryLedger

SMALLEST: Final = 1 << 20
"""Smaller reads get fresh memory: the allocator has it at hand."""
LARGEST: Final = 16 << 20
_MOST: Final = 64 << 20
_SHARE: Final = 8
"""They take one part in so many of what the process may keep, at most."""
_COUNTS: Final = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _references(buffers: list[bytearray], index: int) -> int:
    """To a buffer in a list. All is counted here: interpreters differ in whether what a call is passed counts."""
    return sys.getrefcount(buffers[index])


_UNREAD: Final = _references([bytearray()], 0)
"""To one that nobody reads."""


class LargeBuffers:
    """At most 64 MiB of buffers, for one thread.

    Args:
        name: What the memory counts as.
        smallest: Bytes; what is smaller gets fresh memory.
    """

    __slots__ = ("_begin", "_buffers", "_closed", "_memory", "_name", "_size", "_smallest")

    def __init__(self, name: str = "read buffers", smallest: int = SMALLEST) -> None:
        self._name = name
        self._smallest = smallest
        self._buffers: list[bytearray] = []
        self._memory: CacheAccount | None = None
        self._size = 0
        self._begin = 0
        """Where looking for a free one begins."""
        self._closed = False

    def count_in(self, memory: MemoryLedger, loop: Loop | None) -> None:
        """Count with what the process keeps, and give them up when it is short of memory.

        Args:
            memory: What the process keeps.
            loop: Of the thread that they are for; None if they may be given up in any.
        """
        self._closed = False
        self._memory = memory.cache(self._name, _SHARE, self._give_up, loop=loop)
        self._memory.add(self._size)

    def take(self, length: int) -> bytearray | memoryview:
        """A buffer of this length, with anything in it."""
        if not _COUNTS or not self._smallest <= length <= LARGEST:
            return bytearray(length)
        size = 1 << (length - 1).bit_length()
        buffers = self._buffers
        count, begin = len(buffers), self._begin  # those behind it were taken longest ago, and are free first
        for index in chain(range(begin, count), range(min(begin, count))):  # a name for each would be a reference
            if len(buffers[index]) == size and _references(buffers, index) == _UNREAD:
                self._begin = index + 1
                return memoryview(buffers[index])[:length]
        if not (self._fits(size) or self._make_room(size)):
            return bytearray(length)  # whoever holds it counts what it asked for
        made = bytearray(size)
        self._buffers.append(made)
        self._count(size)
        return memoryview(made)[:length]

    def _make_room(self, size: int) -> bool:
        """Forget buffers of other sizes that are free."""
        index = len(self._buffers) - 1
        while index >= 0 and not self._fits(size):
            if _references(self._buffers, index) == _UNREAD:
                self._count(-len(self._buffers.pop(index)))  # others may go on then, who want all given up
            index = min(index, len(self._buffers)) - 1
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        if self._closed or self._size + size > _MOST:
            return False
        return self._memory is None or self._memory.has_room(size)

    def _count(self, size: int) -> None:
        self._size += size
        if self._memory is not None:
            self._memory.add(size)

    def _give_up(self) -> None:
        """Those in use go when they are not any more."""
        self._buffers = []
        self._count(-self._size)

    def close(self) -> None:
        """Nobody reads any more: give them up, and keep none that are asked for all the same."""
        self._closed = True
        self._give_up()
        if self._memory is not None:
            self._memory.close()
