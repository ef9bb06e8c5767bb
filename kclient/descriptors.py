"""How many files and sockets the process may have open, shared out among those who open many.

The system gives one number for all of them. Who opens files or takes connections has a share here: it counts what
it opens, is sure of some, and may use what the others leave. Where none is left, files that nobody needs at the
moment are closed first; they are opened again when they are used.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says when no more can be opened."""
_ASIDE: Final = 64
"""Left to all who do not count: SQLite, directories while they are synced, threads that recover partitions."""
_LEAST: Final = 16
_MOST: Final = 1 << 20
_SURE: Final = 8
"""Each kind of share is sure of one in so many."""


class Descriptors:
    """What may be open at a time, in one process or in a test.

    Args:
        limit: So many, together; the shares are told what they may use of it.
    """

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self._shares: weakref.WeakSet[DescriptorShare] = weakref.WeakSet()
        self._lock = threading.Lock()

    def share(self, close_idle: Callable[[], bool] | None = None, *, alike: int = 1) -> DescriptorShare:
        """A new share.

        Args:
            close_idle: Closes one that is not needed at the moment, and gives it back; False if there is none. It is
                called in the thread that makes the share, and only there.
            alike: How many shares there are of its kind, with this one: together they are sure of what one is.
        """
        made = DescriptorShare(self, close_idle, self.limit // _SURE // alike)
        with self._lock:
            self._shares.add(made)
        return made

    def _count(self, share: DescriptorShare, *, anyway: bool = False) -> bool:
        with self._lock:
            others = sum(max(each.used, each.sure) for each in self._shares if each is not share)
            if others + share.used >= self.limit and share.used >= share.sure and not anyway:
                return False
            share.used += 1
            return True

    def _uncount(self, share: DescriptorShare) -> None:
        with self._lock:
            share.used -= 1

    def _forget(self, share: DescriptorShare) -> None:
        with self._lock:
            self._shares.discard(share)

    def _close_idle(self, first: DescriptorShare) -> bool:
        thread = threading.get_ident()
        with self._lock:
            others = [share for share in self._shares if share is not first and share.thread == thread]
        return any(share.close_idle is not None and share.close_idle() for share in (first, *others))


class DescriptorShare:
    """What one of several has open."""

    __slots__ = ("__weakref__", "_owner", "close_idle", "sure", "thread", "used")

    def __init__(self, owner: Descriptors, close_idle: Callable[[], bool] | None, sure: int) -> None:
        self.used: int = 0
        """So many are open."""
        self.sure: int = sure
        """So many can always be had."""
        self.close_idle: Callable[[], bool] | None = close_idle
        self.thread: int = threading.get_ident()
        self._owner = owner

    def take(self) -> bool:
        """Count one more that will be opened; False if there is none left, though all idle ones have been closed."""
        while not self._owner._count(self):
            if not self.make_room():
                return False
        return True

    def take_anyway(self) -> None:
        """Count one more for a short time, though there is none left: some are kept aside."""
        self._owner._count(self, anyway=True)

    def make_room(self) -> bool:
        """Close one that is not needed at the moment, one's own or another's; False if there is none."""
        return self._owner._close_idle(self)

    def give_back(self) -> None:
        """One has been closed."""
        self._owner._uncount(self)

    def close(self) -> None:
        """The share is not used any more."""
        self._owner._forget(self)


_made: Final[dict[str, Descriptors]] = {}


def process_descriptors() -> Descriptors:
    """Those of this process: what the system allows it, without what was open at the first call."""
    found = _made.get("process")
    if found is None:  # of two threads that ask first at the same time both take the one that is there first
        found = _made.setdefault("process", Descriptors(max(_LEAST, _allowed() - _open() - _ASIDE)))
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)  # the parent's shares are not the child's


def _allowed() -> int:
    if sys.platform == "win32":
        return 512
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def _open() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return sum(1 for _ in Path(folder).iterdir())
        except OSError:
            continue
    return 3
