"""The quotas of clients, and what each has used of them.

What is known of a client's use is a *meter*, one for each quota and whoever shares it. Where nothing was recorded for
the time of the window a meter says no more than a new one does, so it is dropped: a flood of client ids takes memory
for that long. Where that takes too much all the same, those that were used least recently go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from kclient.gateway.quotas.entities import QuotaKind, QuotaLevel, Tags, levels
from kclient.gateway.quotas.rates import RateWindow, TokenBucket, WindowedRate

if TYPE_CHECKING:
    from kclient.gateway.quotas.entities import Entity, Quotas
    from kclient.memory_ledger import LimitedAccount

__all__ = ["ClientQuotas", "Limits", "Meter"]

logger: logging.Logger = logging.getLogger("kclient.gateway.quotas")

_METER: Final = 2_500
"""About how many bytes of memory a meter takes, beside names."""
_MOST: Final = 10_000
"""Meters, in any case: all of them are looked at at once."""
_KEPT: Final = 2
"""Where there are too many meters, one in so many is kept: those that were used last."""
_TOLD_AGAIN_MS: Final = 60_000
"""Milliseconds between two lines of the log that tell of that."""

M = TypeVar("M", WindowedRate, TokenBucket)
_Key = tuple[QuotaKind, Tags]


class Meter(Generic[M]):
    """What those that share a quota have used of it.

    Args:
        measure: Of that.
        limit: What they may use in a second.
    """

    __slots__ = ("limit", "measure")

    def __init__(self, measure: M, limit: float) -> None:
        self.measure: M = measure
        self.limit: float = limit


class Limits(NamedTuple):
    """The quotas that hold for a client; None where it may use as much as it likes."""

    epoch: object
    """Until there is another one."""
    principal: object
    client_id: str | None
    produce: Meter[WindowedRate] | None = None
    fetch: Meter[WindowedRate] | None = None
    request: Meter[WindowedRate] | None = None
    mutation: Meter[TokenBucket] | None = None
    any: bool = False
    """Whether there is one of them."""


class ClientQuotas:
    """Finds the quotas that hold for clients. It knows no clock.

    Args:
        window: Over which rates are measured.
        mutation_window: The same, of changes of topics.
        memory: Where meters count.
    """

    def __init__(self, window: RateWindow, mutation_window: RateWindow, memory: LimitedAccount) -> None:
        self.window: RateWindow = window
        self.active: bool = False
        """Whether any client may have a quota."""
        self.epoch: object = object()
        """Another one whenever limits that were found before may not hold any more."""
        self._mutation_window = mutation_window
        self._memory = memory
        self._quotas: dict[Entity, Quotas] = {}
        self._rates: dict[_Key, Meter[WindowedRate]] = {}
        self._buckets: dict[_Key, Meter[TokenBucket]] = {}
        self._swept = 0
        self._told = -_TOLD_AGAIN_MS

    def __len__(self) -> int:
        return len(self._rates) + len(self._buckets)

    def put(self, entity: Entity, quotas: Quotas | None) -> None:
        """These are an entity's quotas from now on; None if it has none."""
        if quotas:
            self._quotas[entity] = quotas
        else:
            self._quotas.pop(entity, None)
        self.active = bool(self._quotas)
        self.epoch = object()

    def limits(self, principal: object, user: str, client_id: str | None, now: int) -> Limits:
        """What holds for a client.

        Args:
            principal: Who it is, as it is told in what is returned.
            user: The name of that.
            client_id: As the client says.
            now: Milliseconds.
        """
        if now - self._swept >= self.window.length_ms:
            self.sweep(now)
        epoch = self.epoch  # before: where meters are dropped meanwhile, these may be among them
        found = [(level, quotas) for level in levels(user, client_id) if (quotas := self._quotas.get(level.entity))]
        if not found:
            return Limits(epoch, principal, client_id)
        produce = self._rate(QuotaKind.PRODUCE, found, now)
        fetch = self._rate(QuotaKind.FETCH, found, now)
        request = self._rate(QuotaKind.REQUEST, found, now)
        mutation = self._bucket(found, now)
        some = any((produce, fetch, request, mutation))
        return Limits(epoch, principal, client_id, produce, fetch, request, mutation, some)

    def _rate(self, kind: QuotaKind, found: list[tuple[QuotaLevel, Quotas]], now: int) -> Meter[WindowedRate] | None:
        for level, quotas in found:
            limit = quotas.get(kind.value)
            if limit is not None:
                key = kind, level.tags
                meter = self._rates.get(key)
                if meter is None:
                    self._make_room(level.tags, now)
                    meter = self._rates[key] = Meter(WindowedRate(self.window), limit)
                    meter.measure.last = now
                meter.limit = limit
                return meter
        return None

    def _bucket(self, found: list[tuple[QuotaLevel, Quotas]], now: int) -> Meter[TokenBucket] | None:
        for level, quotas in found:
            limit = quotas.get(QuotaKind.CONTROLLER_MUTATION.value)
            if limit is not None:
                key = QuotaKind.CONTROLLER_MUTATION, level.tags
                meter = self._buckets.get(key)
                if meter is None:
                    self._make_room(level.tags, now)
                    meter = self._buckets[key] = Meter(TokenBucket(self._mutation_window), limit)
                    meter.measure.last = now
                meter.limit = limit
                return meter
        return None

    # How many meters there are

    def _make_room(self, tags: Tags, now: int) -> None:
        size = _size(tags)
        if not self._has_room(size):
            self.sweep(now)
            if not self._has_room(size):
                self._drop_some(now)
        self._memory.add(size)

    def _has_room(self, size: int) -> bool:
        return len(self) < _MOST and self._memory.has_room(size)

    def sweep(self, now: int) -> None:
        """Drop the meters that say nothing."""
        self._swept = now
        oldest = now - self.window.length_ms
        idle = [key for key, meter in self._rates.items() if meter.measure.last <= oldest]
        full = [
            key
            for key, meter in self._buckets.items()
            if meter.measure.last <= oldest and meter.measure.is_full(meter.limit, now)
        ]
        self._drop(self._rates, idle)
        self._drop(self._buckets, full)

    def _drop_some(self, now: int) -> None:
        """There is no memory for more."""
        if now - self._told >= _TOLD_AGAIN_MS:
            self._told = now
            text = "quotas hold for too many clients, %d: what the less busy ones have used is forgotten"
            logger.warning(text, len(self))
        self._drop_less_used(self._rates)
        self._drop_less_used(self._buckets)

    def _drop_less_used(self, meters: dict[_Key, Meter[M]]) -> None:
        by_use = sorted(meters, key=lambda key: meters[key].measure.last)
        self._drop(meters, by_use[: len(by_use) - len(by_use) // _KEPT])

    def _drop(self, meters: dict[_Key, Meter[M]], keys: list[_Key]) -> None:
        for key in keys:
            del meters[key]
            self._memory.add(-_size(key[1]))
        if keys:
            self.epoch = object()  # who has one of them gets the one that others get


def _size(tags: Tags) -> int:
    return _METER + 4 * (len(tags[0] or "") + len(tags[1] or ""))
