"""Keeps time for all groups: one task that sleeps until the next deadline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kclient.concurrency import Wakeup
from kclient.gateway.groups.timers import Timers

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock

K = TypeVar("K", bound=Hashable)


class Clockwork(Generic[K]):
    """Deadlines by key.

    Args:
        clock: What time it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: Timers[K] = Timers()
        self._wake = Wakeup()
        self._sleeping_until = float("-inf")

    def schedule(self, key: K, deadline: float) -> None:
        """Let `key` fire at a time, instead of at the one set before."""
        self._timers.schedule(key, deadline)
        if deadline < self._sleeping_until:
            self._wake.set()

    def cancel(self, key: K) -> None:
        """Let `key` not fire."""
        self._timers.cancel(key)

    async def run(self, fire: Callable[[K, float], object]) -> None:
        """Call `fire(key, now)` for each deadline that has passed, for ever; a task of the gateway."""
        while True:
            now = self._clock.now()
            while (deadline := self._timers.next_deadline()) is not None and deadline <= now:
                fire(cast("K", self._timers.pop_due(now)), now)
            deadline = self._timers.next_deadline()
            self._sleeping_until = float("inf") if deadline is None else deadline
            await self._wake.wait(None if deadline is None else max(0.0, deadline - self._clock.now()))
            self._sleeping_until = float("-inf")
