"""Buffers for large reads and answers, used again as soon as nobody holds them.

Fresh memory is what a large read or copy costs most: the system has to find and clear a page for every 4 KiB, which
takes several times as long as copying the bytes into it. A buffer goes back by itself: it is free when the pool holds
the only reference to it, and whoever reads it (a view, a reply that is being sent) holds one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kclient.memory_ledger import CacheAccount, Loop, MemoryLedger

SMALLEST: Final = 128 << 10
"""Smaller reads get fresh memory: the allocator has it at hand. From here on it asks the system for more each time."""
LARGEST: Final = 16 << 20
_MOST: Final = 64 << 20
_SHARE: Final = 8
"""They take one part in so many of what the process may keep, at most."""
_LOOKED_AT: Final = 16
"""Buffers that are looked at, at most, for one that is free: were all of them read, fresh memory would cost less."""
_COUNTS: Final = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _references(buffers: list[bytearray], index: int) -> int:
    """To a buffer in a list. All is counted here: interpreters differ in whether what a call is passed counts."""
    return sys.getrefcount(buffers[index])


_UNREAD: Final = _references([bytearray()], 0)
"""To one that nobody reads."""


class _OfOneSize:
    """The buffers of one size."""

    __slots__ = ("buffers", "next")

    def __init__(self) -> None:
        self.buffers: list[bytearray] = []
        self.next: int = 0
        """Where looking for a free one begins: those behind it were taken longest ago, and are free first."""

    def find_free(self) -> int:
        """The place of one that nobody reads; -1 if none was found."""
        buffers, index = self.buffers, self.next
        for _ in range(min(len(buffers), _LOOKED_AT)):
            if index >= len(buffers):
                index = 0
            if _references(buffers, index) == _UNREAD:  # a name for it would be a reference
                self.next = index + 1
                return index
            index += 1
        self.next = index
        return -1


class LargeBuffers:
    """At most 64 MiB of buffers, for one thread.

    Args:
        name: What the memory counts as.
    """

    __slots__ = ("_by_size", "_closed", "_memory", "_name", "_size")

    def __init__(self, name: str = "read buffers") -> None:
        self._name = name
        self._by_size: dict[int, _OfOneSize] = {}
        self._memory: CacheAccount | None = None
        self._size = 0
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes that are kept, in use or not."""
        return self._size

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
        if not _COUNTS or not SMALLEST <= length <= LARGEST:
            return bytearray(length)
        size = 1 << (length - 1).bit_length()
        kept = self._by_size.get(size)
        if kept is not None and (index := kept.find_free()) >= 0:
            return memoryview(kept.buffers[index])[:length]
        if not (self._fits(size) or self._make_room(size)):
            return bytearray(length)  # whoever holds it counts what it asked for
        made = bytearray(size)
        self._by_size.setdefault(size, _OfOneSize()).buffers.append(made)
        self._count(size)
        return memoryview(made)[:length]

    def _make_room(self, size: int) -> bool:
        """Forget buffers of other sizes that are free, the largest first."""
        for other in sorted(self._by_size, reverse=True):
            kept = self._by_size[other]
            while other != size and not self._fits(size) and (index := kept.find_free()) >= 0:
                del kept.buffers[index]
                self._count(-other)  # others may go on then, who want all given up
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
        for kept in self._by_size.values():
            kept.buffers = []
        self._count(-self._size)

    def close(self) -> None:
        """Nobody reads any more: give them up, and keep none that are asked for all the same."""
        self._closed = True
        self._give_up()
        if self._memory is not None:
            self._memory.close()
