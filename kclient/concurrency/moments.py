"""Locks that a thread holds for moments, and that a signal handler or a finalizer in it may come amid.

Whatever that waits for then may need the lock, in another thread, and wait in turn for the call that was interrupted.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from kclient.errors import IllegalStateError

__all__ = ["MomentLock", "check_none_held", "watch_lock"]


class MomentLock(Protocol):
    """Such a lock."""

    @property
    def held(self) -> bool:
        """Whether this thread holds it."""


# No `WeakSet`, which cannot be read while other threads add to it.
_locks: set[weakref.ref[MomentLock]] = set()


def watch_lock(lock: MomentLock) -> None:
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
            raise IllegalStateError(
                "This is a signal handler or a finalizer that came amid a call of a producer in this thread, and can "
                "wait for nothing before that goes on: let it set a flag or raise an exception instead"
            )
