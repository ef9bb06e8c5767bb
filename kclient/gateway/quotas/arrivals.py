"""How fast connections may come: to the gateway, by each listener, and from each address (KIP-612).

A listener that takes too many pauses before the next. An address that sends too many is not served: the connection is
kept for the time that brings it back within its quota, a second by default at most, and then closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kclient.gateway.quotas.entities import QuotaKind
from kclient.gateway.quotas.rates import RateWindow, WindowedRate
from kclient.gateway.setting import INT_MAX

if TYPE_CHECKING:
    from kclient.gateway.quotas.charges import Throttles
    from kclient.memory_ledger import LimitedAccount

__all__ = ["Arrivals"]

_MOST: Final = 10_000
"""Addresses whose rates are known at a time."""
_RATE: Final = 1_500
"""About how many bytes of memory one of these takes."""


class Arrivals:
    """Counts connections as they come.

    Args:
        window: Over which rates are measured.
        most: What the gateway takes in a second (`max.connection.creation.rate`).
        most_of: The same of listeners, by their names, where they have a rate of their own.
        now: Seconds on the gateway's monotonic clock.
        throttles: Counts.
        memory: Where the rates of addresses count.
    """

    def __init__(
        self,
        window: RateWindow,
        most: Callable[[], int],
        most_of: Mapping[str, int],
        now: Callable[[], float],
        throttles: Throttles,
        memory: LimitedAccount,
    ) -> None:
        self._window = window
        self._most = most
        self._most_of = most_of
        self._now = now
        self._throttles = throttles
        self._memory = memory
        self._all = WindowedRate(window)
        self._by_listener = {name: WindowedRate(window) for name in most_of}
        self._by_address: dict[str, WindowedRate] = {}
        self._swept = 0
        self.limits: dict[str, float] = {}
        """What single addresses may send in a second."""
        self.default: float | None = None
        """And all others, each."""

    def pause(self, label: object) -> float:
        """A connection has come by a listener, whose label is what its clients are told: seconds without any more."""
        listener = getattr(label, "listener", "")
        now = int(self._now() * 1000)
        longest = 0
        most = self._most()
        if most < INT_MAX:
            longest = self._throttle_ms(self._all, most, now)
        of_listener = self._by_listener.get(listener)
        if of_listener is not None:
            longest = max(longest, self._throttle_ms(of_listener, self._most_of[listener], now))
        if longest:
            self._throttles.add(QuotaKind.CONNECTION, longest)
        return longest / 1000

    def refused_for(self, address: str) -> float:
        """A connection has come from an address: seconds after which it is closed; 0.0 if it is served."""
        limit = self.limits.get(address, self.default)
        if limit is None:
            return 0.0
        now = int(self._now() * 1000)
        rate = self._by_address.get(address)
        if rate is None:
            self._make_room(now)
            rate = self._by_address[address] = WindowedRate(self._window)
        throttled = self._throttle_ms(rate, limit, now)
        if throttled:
            rate.record(-1, now)  # it does not count: it is not served
            self._throttles.add(QuotaKind.CONNECTION, throttled)
        return throttled / 1000

    def _throttle_ms(self, rate: WindowedRate, limit: float, now: int) -> int:
        rate.record(1, now)
        return min(rate.throttle_ms(limit, now), self._window.sample_ms)

    def _make_room(self, now: int) -> None:
        """Forget addresses that have sent nothing for so long that nothing is known of them."""
        window = self._window.length_ms
        if now - self._swept >= window or not self._has_room():
            self._swept = now
            self._drop([each for each, rate in self._by_address.items() if now - rate.last >= window])
        if not self._has_room():  # the least busy ones go
            by_use = sorted(self._by_address, key=lambda each: self._by_address[each].last)
            self._drop(by_use[: len(by_use) - len(by_use) // 2])
        self._memory.add(_RATE)

    def _has_room(self) -> bool:
        return len(self._by_address) < _MOST and self._memory.has_room(_RATE)

    def _drop(self, addresses: list[str]) -> None:
        for address in addresses:
            del self._by_address[address]
        self._memory.add(-_RATE * len(addresses))
