"""How often the process's threads change places; often, while a loop is busy or a thread works in Python.

A thread that waits for the interpreter's lock asks for it after the switch interval only, and begins to wait anew
whenever it was free for a moment. Each look of a busy loop at its sockets is such a moment, too short to wake up in; so
with the usual five milliseconds the thread that syncs files was seen to wait for a third of a second. And a loop lets
go of the lock with each call of the system: beside a thread that computes in Python it waits as long for each of a
request's six or so.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SwitchInterval", "call_giving_way", "switch_interval"]

T = TypeVar("T")

_OFTEN: Final = 0.0005
"""Seconds after which threads change places while that is wanted."""


class SwitchInterval:
    """The process's switch interval, which is short while anybody wants it so. Threads may call it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """A collection of garbage may end what somebody wanted, while this thread has it."""
        self._wanted = 0
        self._usual = 0.0

    def shorten(self) -> None:
        """Somebody wants it short."""
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _OFTEN))

    def restore(self) -> None:
        """Somebody wants it short no longer; what others have set meanwhile stays."""
        with self._lock:
            self._wanted -= 1
            if not self._wanted and sys.getswitchinterval() == min(self._usual, _OFTEN):
                sys.setswitchinterval(self._usual)


switch_interval: Final = SwitchInterval()


def call_giving_way(function: Callable[[], T]) -> T:
    """Call a function in a thread beside a loop's; it may work in Python for long.

    Args:
        function: What to call.
    """
    switch_interval.shorten()
    try:
        return function()
    finally:
        switch_interval.restore()
