"""Whether `poll` has something to do, and the signal that ends its wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.concurrency import MomentLock


class PollReadiness:
    """What the caller of `poll` waits for.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        has_work: Whether poll has something to do beside handing out records; called under the lock.
        has_records: Whether records are at hand; called under the lock.
    """

    # CPython 3.11 finds attributes of an object with 30 or more of them a good deal more slowly, and iterating looks at
    # some of these for each record
    __slots__ = ("_has_records", "_has_work", "_lock", "clock", "poll_due", "poll_needed", "signal")

    def __init__(
        self,
        clock: Callable[[], float],
        lock: MomentLock,
        has_work: Callable[[], bool],
        has_records: Callable[[], bool],
    ) -> None:
        self.clock: Callable[[], float] = clock
        self.poll_needed: bool = False
        """Whether poll has something to do beside handing out records."""
        self.poll_due: float = 0.0
        """When iterating has to go through poll again although there are records at hand."""
        self.signal: Callable[[], None] = lambda: None
        """Wakes the user who waits in poll; set by the face."""
        self._lock = lock
        self._has_work = has_work
        self._has_records = has_records

    def update(self) -> None:
        """Find out whether poll has something to do, and wake it."""
        with self._lock:
            self.poll_needed = self._has_work()
            ready = self.poll_needed or self._has_records()
        if ready:
            self.signal()

    def need_poll(self) -> None:
        """Poll has something to do: wake it."""
        self.poll_needed = True
        self.signal()
