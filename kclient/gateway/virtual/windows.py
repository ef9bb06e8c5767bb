"""What was read of shared topics, kept for a while: readers of several partitions share one read.

Also the entries of blocks that had left memory. All of a gateway's count together, and go when the memory is needed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.records import IMPLEMENTATION

if TYPE_CHECKING:
    from kclient.memory_ledger import CacheAccount, MemoryPart
    from kclient.records import EnvelopedBatches
    from kclient.types import Buffer

WINDOW_BYTES: Final = 1 << 20
"""So much is read at once."""
AT_ONCE: Final = 16_384 if IMPLEMENTATION == "compiled" else 1_000
"""Messages that are looked at in one turn of the loop, about: that takes less than a millisecond."""
_SHARE: Final = 16
"""One part in so many of the memory may be taken."""
_MOST: Final = 32 << 20
_LARGE: Final = 512 << 10
"""Bytes of what counts as large: full windows do, and the entries of no block."""
_NEAR: Final = 512
"""Messages that are read though nobody has asked for them yet."""
_MESSAGE: Final = 24
"""Bytes of memory that are taken for each message in a window beside its own."""


class Kept:
    """What may be given up, in the order of its last use.

    Large things and small ones count apart, and those go that hold more: windows, which are read through once, do not
    push out the entries that tell where to read next.

    Args:
        memory: What the gateway holds.
    """

    def __init__(self, memory: MemoryPart) -> None:
        self._account: CacheAccount = memory.cache("shared topics", _SHARE, self.give_up, _MOST)
        self._large, self._small = _Things(), _Things()

    def __len__(self) -> int:
        return len(self._large) + len(self._small)

    def keep(self, thing: object, size: int, drop: Callable[[], object]) -> bool:
        """Keep something of this size until `drop` is called; False if there is no room."""
        account, freed = self._account, 0
        try:
            while not account.has_room(size - freed):
                things = max(self._large, self._small, key=_held)
                if not things:
                    return False
                freed += things.give_up_oldest()
            self._of(size).put(thing, size, drop)
            freed -= size
            return True
        finally:
            account.add(-freed)  # at once: others are told of what changes

    def _of(self, size: int) -> _Things:
        return self._large if size >= _LARGE else self._small

    def used(self, thing: object) -> None:
        """Something was used just now."""
        for things in (self._large, self._small):
            if thing in things:
                things.move_to_end(thing)

    def discard(self, thing: object) -> None:
        """Give something up, if it is kept."""
        for things in (self._large, self._small):
            if thing in things:
                self._account.add(-things.give_up(thing))

    def give_up(self) -> None:
        """Give up everything."""
        for things in (self._large, self._small):
            while things:
                self._account.add(-things.give_up_oldest())


class _Things(OrderedDict[object, tuple[int, "Callable[[], object]"]]):
    """Things that are kept: their sizes, and what is called when they are given up; those first that were not used."""

    held = 0
    """Bytes of all of them."""

    def put(self, thing: object, size: int, drop: Callable[[], object]) -> None:
        self[thing] = size, drop
        self.held += size

    def give_up(self, thing: object) -> int:
        """What it held."""
        return self._let_go(self.pop(thing))

    def give_up_oldest(self) -> int:
        """What it held."""
        return self._let_go(self.popitem(last=False)[1])

    def _let_go(self, kept: tuple[int, Callable[[], object]]) -> int:
        size, drop = kept
        self.held -= size
        drop()
        return size


def _held(things: _Things) -> int:
    return things.held


class Window(NamedTuple):
    """Some messages one after the other."""

    first: int
    """The ordinal of the first."""
    next: int
    """The ordinal behind the last."""
    data: Buffer
    """The messages, one behind the other, and maybe more."""
    batches: EnvelopedBatches
    """Where the batches are in these."""


class Windows:
    """What was read of one topic.

    Args:
        kept: Of the gateway.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._firsts: list[int] = []
        """Sorted."""
        self._windows: dict[int, Window] = {}

    def find(self, ordinal: int) -> Window | None:
        """What holds a message, if it is kept."""
        at = bisect_right(self._firsts, ordinal) - 1
        if at < 0:
            return None
        window = self._windows[self._firsts[at]]
        if window.next <= ordinal:
            return None
        self._kept.used((self, window.first))
        return window

    def begin_for(self, ordinal: int) -> int:
        """Where to begin reading for a message that is not kept: where what is kept ends, if that is not far before.

        So windows follow on one another, and readers of several partitions read the same ones.
        """
        at = bisect_right(self._firsts, ordinal) - 1
        if at >= 0:
            ends = self._windows[self._firsts[at]].next
            if ordinal - _NEAR <= ends <= ordinal:
                return ends
        return ordinal

    def add(self, window: Window) -> None:
        """Keep a window, if there is room."""
        first = window.first
        self._kept.discard((self, first))
        size = len(window.data) + _MESSAGE * (window.next - first)
        if self._kept.keep((self, first), size, lambda: self._drop(first)):
            self._windows[first] = window
            insort(self._firsts, first)

    def _drop(self, first: int) -> None:
        del self._windows[first]
        del self._firsts[bisect_right(self._firsts, first) - 1]

    def drop_below(self, ordinal: int) -> None:
        """Give up what lies wholly before a message: it is not there any more."""
        while self._firsts and self._windows[self._firsts[0]].next <= ordinal:
            self._kept.discard((self, self._firsts[0]))

    def clear(self) -> None:
        """Give up all of them."""
        for first in list(self._firsts):
            self._kept.discard((self, first))
