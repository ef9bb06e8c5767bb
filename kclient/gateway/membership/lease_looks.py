"""Looks at the leases of gateways: what one has read who follows them, another need not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.gateway.rows.keys import GATEWAYS

if TYPE_CHECKING:
    from kclient.htp.port import LeaseInfo, Manager

LOOK_S: Final = 1.0
"""Seconds between two looks of whoever follows the leases: a gateway that is gone is found out so late."""
_RECENT: Final = 1.5
"""What is older than so many of these pauses is not recent: whoever reads once in each serves all."""


class LeaseLook(NamedTuple):
    """The leases of gateways, as they were at a time."""

    leases: Sequence[LeaseInfo]
    at: float
    """Seconds on the monotonic clock, after they were read."""


class LeaseLooks:
    """Reads the leases of gateways, for several who follow them.

    Args:
        manager: The store's.
        clock: The monotonic clock, in seconds; the system's if None.
    """

    def __init__(self, manager: Manager, clock: Callable[[], float] | None = None) -> None:
        self._manager = manager
        self._clock = clock or time.monotonic
        self._begun = 0.0
        """When the last look was begun."""
        self._last: LeaseLook | None = None
        self._reading = anyio.Lock()

    def now(self) -> float:
        """Seconds on the clock by which looks are dated."""
        return self._clock()

    async def look(self) -> LeaseLook:
        """The leases as they are now. Raises `HtpError` if the store fails."""
        async with self._reading:
            return await self._read()

    async def recent(self, since: float) -> LeaseLook:
        """The leases as somebody has read them a moment ago, or else as they are now.

        Args:
            since: What was begun to be read then or before, on the clock of `now`, is read again.

        Raises:
            HtpError: The store failed.
        """
        async with self._reading:
            last = self._last
            if last is not None and self._begun > since and self._clock() - last.at < _RECENT * LOOK_S:
                return last
            return await self._read()

    async def _read(self) -> LeaseLook:
        begun = self._clock()
        leases = await self._manager.leases(GATEWAYS)
        self._begun, self._last = begun, LeaseLook(leases, self._clock())
        return self._last
