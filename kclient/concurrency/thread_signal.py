"""An event between threads that exceptions of signal handlers cannot break."""

from __future__ import annotations

import threading

__all__ = ["ThreadSignal"]


class ThreadSignal:
    """As `threading.Event`, for one thread that waits; any thread sets it.

    An `Event` or a `Condition` is Python code around a lock: an exception of a signal handler, Ctrl-C's for one, that
    comes amid it leaves the lock held, and whoever sets the event waits for ever. This is a flag, which says all, and
    a lock that is only waited for.
    """

    __slots__ = ("_flag", "_lock")

    def __init__(self) -> None:
        self._flag = False
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def is_set(self) -> bool:
        """Whether it was set, and not cleared since."""
        return self._flag

    def set(self) -> None:
        """Let the thread that waits go on; it may be set again."""
        self._flag = True
        try:
            self._lock.release()
        except RuntimeError:  # it is released, and nobody has waited since
            return

    def clear(self) -> None:
        """Forget that it was set."""
        self._flag = False
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait for so many seconds, or until it is set; whether it is. It may return early."""
        if not self._flag:
            self._lock.acquire(timeout=max(timeout, 0.0))
        return self._flag
