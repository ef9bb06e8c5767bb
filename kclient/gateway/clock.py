"""The two clocks by which the gateway goes: one for deadlines, one for what is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """What time it is.

    Args:
        now: Seconds on the monotonic clock, which state machines are given; by default the system's.
        wall_ms: Milliseconds since the epoch, which records and commits are stamped with; by default the system's.
    """

    __slots__ = ("now", "wall_ms")

    def __init__(self, now: Callable[[], float] | None = None, wall_ms: Callable[[], int] | None = None) -> None:
        self.now: Callable[[], float] = now or time.monotonic
        self.wall_ms: Callable[[], int] = wall_ms or _wall_ms


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
