"""Locks that a thread holds for moments, and that a signal handler or a finalizer in it may come amid.

Whatever that waits for then may need the lock, in another thread, and wait in turn for the call that was interrupted.
"""

from __future__ import annotations

import os
import weakref
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from kclient.reentry import reentered

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["HeldLock", "MomentLock", "check_none_held", "watch_lock"]


class HeldLock(Protocol):
    """A lock that knows its thread."""

    @property
    def held(self) -> bool:
        """Whether this thread holds it."""


# No `WeakSet`, which cannot be read while other threads add to it.
_locks: set[weakref.ref[HeldLock]] = set()


if hasattr(os, "register_at_fork"):
    # what other threads of the parent held would pass for held by threads of the child that have the same numbers
    os.register_at_fork(after_in_child=_locks.clear)


def watch_lock(lock: HeldLock) -> None:
    """From now on, while a thread holds the lock, `check_none_held` raises there."""
    _locks.add(weakref.ref(lock, _locks.discard))


def check_none_held() -> None:
    """To be called before a thread waits for another one.

    Raises:
        IllegalStateError: This thread holds such a lock.
    """
    for reference in _locks.copy():
        lock = reference()
        if lock is not None and lock.held:
            raise reentered()


if TYPE_CHECKING:

    class MomentLock:
        """A `threading.RLock` that `check_none_held` knows of."""

        @property
        def held(self) -> bool: ...
        def __enter__(self) -> bool: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

else:

    class MomentLock(type(RLock())):
        """A `threading.RLock` that `check_none_held` knows of; entered and left by C code, which no signal breaks."""

        def __init__(self) -> None:
            super().__init__()
            watch_lock(self)

        held = property(type(RLock())._is_owned, doc="Whether this thread holds it.")
