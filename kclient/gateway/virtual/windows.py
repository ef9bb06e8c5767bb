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
_NEAR: Final = 512
"""Messages that are read though nobody has asked for them yet."""
_MESSAGE: Final = 24
"""Bytes of memory that are taken for each message in a window beside its own."""


class Kept:
    """What may be given up, in the order of its last use.

    Args:
        memory: What the gateway holds.
    """

    def __init__(self, memory: MemoryPart) -> None:
        self._account: CacheAccount = memory.cache("shared topics", _SHARE, self.give_up, _MOST)
        self._things: OrderedDict[object, tuple[int, Callable[[], object]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._things)

    def keep(self, thing: object, size: int, drop: Callable[[], object]) -> bool:
        """Keep something of this size until `drop` is called; False if there is no room."""
        account, things, freed = self._account, self._things, 0
        try:
            while not account.has_room(size - freed):
                if not things:
                    return False
                given_up, let_go = things.popitem(last=False)[1]
                let_go()
                freed += given_up
            things[thing] = size, drop
            freed -= size
            return True
        finally:
            account.add(-freed)  # at once: others are told of what changes

    def used(self, thing: object) -> None:
        """Something was used just now."""
        if thing in self._things:
            self._things.move_to_end(thing)

    def discard(self, thing: object) -> None:
        """Give something up, if it is kept."""
        found = self._things.pop(thing, None)
        if found is not None:
            size, drop = found
            drop()
            self._account.add(-size)

    def give_up(self) -> None:
        """Give up everything."""
        while self._things:
            self.discard(next(iter(self._things)))


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
