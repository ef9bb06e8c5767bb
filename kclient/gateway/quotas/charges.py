"""What a request is charged for, and how long its client is throttled for that (KIP-124, KIP-219, KIP-599).

The answer tells the time and leaves at once; the connection is not read meanwhile. There is a charge only for clients
that a quota holds for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kclient.errors import ThrottlingQuotaExceededError
from kclient.gateway.quotas.entities import QuotaKind

if TYPE_CHECKING:
    from kclient.gateway.quotas.clients import Limits, Meter
    from kclient.gateway.quotas.rates import TokenBucket
    from kclient.net.reply_order import ReplySlot
    from kclient.protocol.message import ApiMessage

__all__ = ["Charge", "Throttles"]

T = TypeVar("T")

_UNBOUNDED: Final = 1 << 62
_PERCENT_S: Final = 100.0
"""Hundredths of a second."""


class Throttles:
    """How often clients were throttled, and how long, since the start."""

    def __init__(self) -> None:
        self.count: dict[QuotaKind, int] = dict.fromkeys(QuotaKind, 0)
        """Requests, or connections, by the quota that they exceeded."""
        self.seconds: dict[QuotaKind, float] = dict.fromkeys(QuotaKind, 0.0)

    def add(self, kind: QuotaKind, milliseconds: int) -> None:
        """One more."""
        self.count[kind] += 1
        self.seconds[kind] += milliseconds / 1000


class Charge:
    """What one request is charged for. The loop works on it when it is made, until `pause`.

    Args:
        limits: The quotas that hold for its client.
        place: Its place in the order of replies: whose connection is muted, and what was done in steps.
        now: Seconds on the gateway's monotonic clock.
        timer: Seconds on the clock of the loop's turns.
        longest_ms: How long a client is throttled at most for `request_percentage`.
        throttles: Counts.
    """

    __slots__ = (
        "_began", "_limits", "_longest_ms", "_now", "_place", "_settled", "_throttled", "_throttles", "_timer", "_used",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        place: ReplySlot,
        now: Callable[[], float],
        timer: Callable[[], float],
        longest_ms: int,
        throttles: Throttles,
    ) -> None:
        self._limits = limits
        self._place = place
        self._now = now
        self._timer = timer
        self._longest_ms = longest_ms
        self._throttles = throttles
        self._used = 0.0
        self._began: float | None = timer() if limits.request is not None else None
        self._throttled: tuple[int, float] | None = None
        """Milliseconds, and when they were reckoned."""
        self._settled = False

    # Bytes

    def produced(self, size: int) -> None:
        """A Produce request of so many bytes has come. With `acks=0` this is all that tells its client to wait."""
        meter = self._limits.produce
        if meter is None:
            return
        now = self._now_ms()
        meter.measure.record(size, now)
        self._throttle(QuotaKind.PRODUCE, meter.measure.throttle_ms(meter.limit, now))

    @property
    def most_to_fetch(self) -> int:
        """Bytes of which more would be throttled in any case: a client would never get them."""
        meter = self._limits.fetch
        return _UNBOUNDED if meter is None else int(min(meter.limit * meter.measure.window.whole_s, _UNBOUNDED))

    def fetched(self, size: int) -> int:
        """An answer with so many bytes is about to leave.

        Returns:
            Milliseconds for which its client has to wait: then it is told nothing but this, and the bytes do not count.
        """
        self._charge_time()
        meter = self._limits.fetch
        if meter is not None:
            now = self._now_ms()
            meter.measure.record(size, now)
            throttled = meter.measure.throttle_ms(meter.limit, now)
            if throttled or self.throttle_ms:
                meter.measure.record(-size, now)
            self._throttle(QuotaKind.FETCH, throttled)
        return self.throttle_ms

    def has_too_much(self) -> bool:
        """Whether its client has got too much before: then it has to wait. The time of the request goes on."""
        meter = self._limits.fetch
        if meter is not None:
            self._throttle(QuotaKind.FETCH, meter.measure.throttle_ms(meter.limit, self._now_ms()))
        return self.throttle_ms > 0

    def delivered(self, size: int) -> None:
        """An answer leaves with so many bytes that its client has to get: it may have to wait afterwards."""
        meter = self._limits.fetch
        if meter is not None:
            now = self._now_ms()
            meter.measure.record(size, now)
            self._throttle(QuotaKind.FETCH, meter.measure.throttle_ms(meter.limit, now))

    # Topics

    def mutate(self, partitions: int, *, strict: bool, waits: bool = True) -> None:
        """So many partitions are to be made or deleted.

        Args:
            partitions: How many.
            strict: Whether the client knows that it may be refused (KIP-599); else it has to wait afterwards.
            waits: Whether it has to wait where it is refused.

        Raises:
            ThrottlingQuotaExceededError: There have been too many.
        """
        meter: Meter[TokenBucket] | None = self._limits.mutation
        if meter is None:
            return
        now, bucket, rate = self._now_ms(), meter.measure, meter.limit
        if strict:
            throttled = bucket.throttle_ms(rate, now)
            if throttled:
                if waits:
                    self._throttle(QuotaKind.CONTROLLER_MUTATION, throttled)
                raise ThrottlingQuotaExceededError("The throttling quota has been exceeded.")
            bucket.take(partitions, rate, now)
        else:
            bucket.take(partitions, rate, now)
            self._throttle(QuotaKind.CONTROLLER_MUTATION, bucket.throttle_ms(rate, now))

    # Time

    def pause(self) -> None:
        """The loop does something else from now on."""
        if self._began is not None:
            self._used += self._timer() - self._began
            self._began = None

    def resume(self) -> None:
        """The loop goes on with the request."""
        if self._limits.request is not None:
            self._began = self._timer()

    def timed(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """The same, which counts the time that its steps take."""
        return awaitable if self._limits.request is None else _Timed(awaitable, self)

    def _charge_time(self) -> None:
        """Charge for the time that was used. A request is charged once."""
        meter = self._limits.request
        if meter is None or self._settled:
            return
        self._settled = True
        used = self._used + self._place.worked
        for since in (self._began, self._place.since):
            if since is not None:
                used += self._timer() - since
        now = self._now_ms()
        meter.measure.record(used * _PERCENT_S, now)
        self._throttle(QuotaKind.REQUEST, min(meter.measure.throttle_ms(meter.limit, now), self._longest_ms))

    # Throttling

    @property
    def throttle_ms(self) -> int:
        """For how long its client has to wait as yet."""
        if self._throttled is None:
            return 0
        milliseconds, at = self._throttled
        return max(milliseconds - round((self._now() - at) * 1000), 0)

    def told(self, answer: ApiMessage) -> ApiMessage:
        """The answer, which tells how long its client has to wait."""
        self._charge_time()
        throttled = self.throttle_ms
        if not throttled or not hasattr(answer, "throttle_time_ms"):
            return answer
        answer = copy(answer)  # it may be others' too
        answer.throttle_time_ms = throttled
        return answer

    def _throttle(self, kind: QuotaKind, milliseconds: int) -> None:
        if milliseconds <= 0:
            return
        self._throttles.add(kind, milliseconds)
        if milliseconds > self.throttle_ms:
            self._throttled = milliseconds, self._now()
        self._place.mute(milliseconds / 1000)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


class _Timed(Awaitable[T]):
    """An awaitable whose steps are charged for."""

    __slots__ = ("_awaitable", "_charge")

    def __init__(self, awaitable: Awaitable[T], charge: Charge) -> None:
        self._awaitable = awaitable
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._awaitable.__await__()
        charge = self._charge
        given: Any = None
        error: BaseException | None = None
        while True:
            charge.resume()
            try:
                step = steps.send(given) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                charge.pause()
            given = error = None
            try:
                given = yield step
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as raised:  # noqa: BLE001  (it is the awaitable's)
                error = raised
