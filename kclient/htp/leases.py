"""Taking a lease from somebody who may have died, by one's own clock alone.

Whoever holds a lease reckons its end on its own clock, from before it asked. Whoever wants it sees what was asked for
only later: so once it has seen the lease unchanged for as long, by its own clock, the holder takes it for over. No
clock is compared with another's; they only have to run about equally fast. Where one does not, or stands still while
its machine sleeps, the epochs keep an old holder from writing: a lease only says when to try.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import anyio

from kclient.htp.errors import HtpError, LeaseHeldError
from kclient.htp.port import Lease, LeaseInfo, Manager
from kclient.htp.rows import GREATEST_EPOCH

DRIFT: Final = 0.05
"""By so much of a lease's length one machine's clock may fall behind another's meanwhile. Clocks that are disciplined
differ by less than a thousandth."""
_LOOKS: Final = 30
"""How often a lease is looked at in its length: a holder renews it a few times in it."""
_LEAST_S: Final = 0.01
_SELDOM: Final = 1 / 2
"""Between two looks at a lease that are further apart, in its length, its holder may have been unable to renew it just
as the watcher was unable to look: both were stopped, or the store answered nobody."""
_SELDOM_S: Final = 1.0
"""So many seconds between two looks are none too many in any case."""


def check_ttl(ttl: float) -> float:
    """The length of a lease, in seconds. Raises `ValueError` if no lease can last as long."""
    if not 0 <= ttl < math.inf:
        raise ValueError(f"a lease lasts for some seconds, not {ttl}")
    return ttl


def next_epoch(name: str, epoch: int, above: int) -> int:
    """The epoch that follows on that of a lease and on another one. Raises `HtpError` if none is left."""
    following = max(epoch, above) + 1
    if following > GREATEST_EPOCH:
        raise HtpError(f"no epoch of {name!r} is left above {following - 1}")
    return following


class LeaseWatch:
    """Tells when a lease may be taken from its holder; reads no clock.

    Only time counts in which it is looked at often: who was stopped for a while, or did not reach the store, knows
    nothing of that while.
    """

    def __init__(self) -> None:
        self._seen: LeaseInfo | None = None
        self._since = 0.0
        self._looked = 0.0
        """When it was looked at last."""
        self.alive: bool = False
        """Whether the lease was acquired or renewed while it was watched."""

    def see(self, found: LeaseInfo, now: float) -> float:
        """Seconds for which the lease has to stay like this before it may be taken; 0 if it may be now.

        Args:
            found: The lease, as it was read.
            now: Seconds on a monotonic clock, always the same one, read after that.
        """
        if found != self._seen:
            self.alive = self.alive or (self._seen is not None and found.held)
            self._seen, self._since = found, now
        elif (gap := now - self._looked) > max(found.ttl * _SELDOM, _SELDOM_S):
            self._since += gap
        self._looked = now
        return max(0.0, self._since + found.ttl * (1 + DRIFT) - now) if found.held else 0.0


async def acquire_when_over(
    manager: Manager,
    name: str,
    holder: str,
    ttl: float,
    *,
    above: int = 0,
    waiting: Callable[[LeaseInfo, float], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> Lease:
    """Acquire a lease; where somebody else holds it, watch whether that one renews it, and else take it.

    Args:
        manager: Keeps the lease.
        name: Of the lease.
        holder: Who asks.
        ttl: Seconds that it is to last.
        above: Its epoch is greater than this, too.
        waiting: Called once, with the lease and the seconds that it may take, before anything is waited for.
        clock: The monotonic clock, in seconds; the system's if None.

    Raises:
        LeaseHeldError: The holder has renewed it, or given it to another one: it is alive.
    """
    clock = clock or time.monotonic
    watch = LeaseWatch()
    over: LeaseInfo | None = None
    while True:
        try:
            return await manager.acquire(name, holder, ttl, above=above, over=over)
        except LeaseHeldError as error:
            found = next((each for each in await manager.leases(name) if each.name == name), None)
            if found is None:
                continue  # damaged since: it counts as free
            left = watch.see(found, clock())
            if watch.alive:
                raise LeaseHeldError(
                    f"{found.holder!r} holds {name!r}, and has renewed it meanwhile", holder=found.holder
                ) from error
        over = found if not left else None
        if left:
            if waiting is not None:
                waiting(found, left)
                waiting = None
            await anyio.sleep(min(left, max(found.ttl / _LOOKS, _LEAST_S)))
