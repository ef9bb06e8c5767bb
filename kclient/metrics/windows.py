"""MetricWindows of time, and numbers that are kept since the start and for each of the last windows.

What counts adds to plain attributes and pays for nothing else: a rate is the difference to the number at the beginning
of the oldest window that is kept, and that is noted once per window, not per event. As in the Java client the present
window and those before it count, `metrics.num.samples` in all, each `metrics.sample.window.ms` long.
"""

from __future__ import annotations

from collections import Counter, deque
from math import exp2, floor, inf, log2, nan
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MetricSpread",
    "MetricTally",
    "MetricWindows",
    "Percentiles",
    "highest_of",
    "mean_of",
    "percentile_of",
    "rate_of",
]

V = TypeVar("V")

_PER_DOUBLING: Final = 16
"""Buckets in which values up to twice as large lie: a percentile is right to 4.5 %."""
_ZERO: Final = -1100
"""The bucket of 0 and of what is below."""


class MetricWindows:
    """The windows of one client, the same for all its numbers. Any thread may look at them.

    Args:
        clock: Monotonic time in seconds.
        samples: How many windows count, the present one included.
        seconds: How long one is.
    """

    __slots__ = ("_lock", "_starts", "_tallies", "clock", "due", "samples", "seconds")

    def __init__(self, clock: Callable[[], float], *, samples: int = 2, seconds: float = 30.0) -> None:
        self.clock: Callable[[], float] = clock
        self.samples: int = samples
        self.seconds: float = max(seconds, 0.001)
        now = clock()
        self._starts: deque[float] = deque([now], maxlen=samples)
        self.due: float = now + self.seconds
        """When the present window ends."""
        self._tallies: WeakSet[MetricTally] = WeakSet()
        self._lock = Lock()

    def tally(self) -> MetricTally:
        """A new number; it is kept for as long as somebody has it."""
        return self._kept(MetricTally())

    def spread(self) -> MetricSpread:
        """A new number whose smallest value is known, too."""
        made = MetricSpread()
        self._kept(made)
        return made

    def percentiles(self) -> Percentiles:
        """A new number that has percentiles, too."""
        made = Percentiles()
        self._kept(made)
        return made

    def _kept(self, tally: MetricTally) -> MetricTally:
        tally.begin(self.samples)
        self._tallies.add(tally)
        return tally

    def look(self) -> None:
        """Begin the windows that have come since the last look; called before something is counted, and read."""
        now = self.clock()
        if now >= self.due:
            self._roll(now)

    def _roll(self, now: float) -> None:
        # not waited for: who has it does the same, and a signal handler may have come amid it
        if not self._lock.acquire(blocking=False):
            return
        try:
            passed = floor((now - self.due) / self.seconds) + 1
            if passed <= 0:
                return
            first = self.due
            self.due += passed * self.seconds
            tallies = self._all()
            for number in range(max(passed - self.samples, 0), passed):
                self._starts.append(first + number * self.seconds)
                for tally in tallies:
                    tally.roll()
        finally:
            self._lock.release()

    def _all(self) -> list[MetricTally]:
        while True:
            try:
                return list(self._tallies)
            except RuntimeError:  # another thread has added one amid it
                continue

    def span(self, windows: int, now: float) -> float:
        """The seconds that a number is divided by to have its rate.

        At least all windows but the present one count as if they had passed: else what has just begun would have
        enormous rates.

        Args:
            windows: For how many windows it has been kept, the present one included.
            now: Monotonic time in seconds.
        """
        elapsed = max(now - self._starts[-min(windows, len(self._starts))], 0.0)
        missing = self.samples - 1 - floor(elapsed / self.seconds)
        return elapsed + max(missing, 0) * self.seconds


class MetricTally:
    """How many values there were, their sum and the greatest: since the start, and in the windows that count."""

    __slots__ = ("__weakref__", "_highs", "_marks", "_samples", "count", "high", "total")

    def __init__(self) -> None:
        self.count: int = 0
        """Values since the start."""
        self.total: float = 0.0
        """Their sum since the start."""
        self.high: float = -inf
        """The greatest value of the present window."""
        self._samples = 1
        self._marks: tuple[tuple[int, float], ...] = ()  # a deque of two takes ten times as much memory
        self._highs: tuple[float, ...] = ()

    def begin(self, samples: int) -> None:
        """Keep so many windows."""
        self._samples = samples
        self._marks = ((0, 0.0),)

    def add(self, value: float = 1.0) -> None:
        """One more value."""
        self.count += 1
        self.total += value
        if value > self.high:
            self.high = value

    def roll(self) -> None:
        """The next window begins."""
        self._marks = (*self._marks, (self.count, self.total))[-self._samples :]
        self._highs = self._kept(self._highs, self.high)
        self.high = -inf

    def _kept(self, before: tuple[V, ...], last: V) -> tuple[V, ...]:
        """What is kept of the windows that have passed, when another one has."""
        return (*before, last)[-self._samples + 1 :] if self._samples > 1 else ()

    @property
    def windows(self) -> int:
        """How many windows it knows of, the present one included."""
        return len(self._marks)

    @property
    def recent(self) -> tuple[int, float]:
        """How many values there were in the windows that count, and their sum."""
        count, total = self._marks[0]
        return self.count - count, self.total - total

    @property
    def highest(self) -> float:
        """The greatest value in the windows that count; minus infinity for none."""
        return max((self.high, *self._highs))


class MetricSpread(MetricTally):
    """A tally that also knows its smallest values."""

    __slots__ = ("_lows", "low")

    def __init__(self) -> None:
        super().__init__()
        self.low: float = inf
        """The smallest value of the present window."""
        self._lows: tuple[float, ...] = ()

    def add(self, value: float = 1.0) -> None:
        super().add(value)
        if value < self.low:
            self.low = value

    def roll(self) -> None:
        super().roll()
        self._lows = self._kept(self._lows, self.low)
        self.low = inf

    @property
    def lowest(self) -> float:
        """The smallest value in the windows that count; infinity for none."""
        return min((self.low, *self._lows))


class Percentiles(MetricTally):
    """A tally that also knows how its values are distributed, in buckets each 4.5 % wide."""

    __slots__ = ("_before", "_buckets")

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[int, int] = {}
        self._before: tuple[dict[int, int], ...] = ()

    def add(self, value: float = 1.0) -> None:
        super().add(value)
        bucket = int(log2(value) * _PER_DOUBLING) if value > 0 else _ZERO
        if bucket in self._buckets:
            self._buckets[bucket] += 1
        else:
            self._buckets[bucket] = 1

    def roll(self) -> None:
        super().roll()
        self._before = self._kept(self._before, self._buckets)
        self._buckets = {}

    def distribution(self) -> list[tuple[float, int]]:
        """The upper ends of the buckets of the windows that count, in order, and how many values are in each."""
        found: Counter[int] = Counter()
        for buckets in (self._buckets, *self._before):
            found.update(buckets.copy())  # another thread may add
        return [
            (0.0 if bucket == _ZERO else exp2((bucket + 1) / _PER_DOUBLING), count)
            for bucket, count in sorted(found.items())
        ]


def rate_of(windows: MetricWindows, *tallies: MetricTally, by_count: bool = False, seconds: float = 1.0) -> float:
    """How much was added, or how often, in so many seconds."""
    now = windows.clock()
    found = 0.0
    for tally in tallies:
        span = windows.span(tally.windows, now)
        count, total = tally.recent
        found += (count if by_count else total) / span if span else 0.0
    return found * seconds


def mean_of(*tallies: MetricTally) -> float:
    """The average in the windows that count; nan for nothing."""
    parts = [tally.recent for tally in tallies]
    count = sum(part[0] for part in parts)
    return sum(part[1] for part in parts) / count if count else nan


def highest_of(*tallies: MetricTally) -> float:
    """The greatest in the windows that count; nan for nothing."""
    found = max((tally.highest for tally in tallies), default=-inf)
    return nan if found == -inf else found


def percentile_of(share: float, *tallies: Percentiles) -> float:
    """The value that a share (0 to 1) of those in the windows that count does not exceed, to 4.5 %; nan for nothing."""
    found: Counter[float] = Counter()
    for tally in tallies:
        for value, count in tally.distribution():
            found[value] += count
    left = share * found.total()
    for value, count in sorted(found.items()):
        left -= count
        if left <= 0:
            return min(value, highest_of(*tallies))
    return nan
