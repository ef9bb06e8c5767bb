"""The arithmetic of quotas, as Kafka does it: rates over the samples of a window, and buckets of tokens.

Times are whole milliseconds on the caller's clock, which never goes back.
"""

from __future__ import annotations

from math import floor
from typing import Final, NamedTuple

__all__ = ["LONGEST_MS", "RateWindow", "TokenBucket", "WindowedRate"]

LONGEST_MS: Final = 2**31 - 1
"""A throttle time is told in 32 bits."""


class RateWindow(NamedTuple):
    """The time over which a rate is measured."""

    samples: int = 11
    """`quota.window.num`: the last one is under way, the others are whole."""
    sample_ms: int = 1000
    """`quota.window.size.seconds`, in milliseconds."""

    @property
    def length_ms(self) -> int:
        """After so long without anything nothing is left of what was recorded."""
        return self.samples * self.sample_ms

    @property
    def whole_s(self) -> float:
        """The seconds of the samples that are whole: of what comes at once, so many times the rate is allowed."""
        return (self.samples - 1) * self.sample_ms / 1000


class WindowedRate:
    """How much comes in a second, over the last samples (Kafka's `Rate` of a `WindowedSum`).

    A sample begins with what is recorded after the one before has lasted its time, so one more than there are in the
    window may overlap with it. Nothing is assumed to have been before the first.

    Args:
        window: The samples.
    """

    __slots__ = ("_current", "_lasts", "_oldest", "_purge_at", "_starts", "_sums", "_total", "last", "window")

    def __init__(self, window: RateWindow) -> None:
        self.window: RateWindow = window
        self._sums: list[float] = []
        self._starts: list[int] = []
        self._lasts: list[int] = []
        self._current = -1
        self._total = 0.0
        self._oldest = 0  # when the first of the samples began
        self._purge_at = 0  # when one of them is out of the window, unless there is more in it
        self.last: int = 0
        """When something was recorded last."""

    def record(self, value: float, now: int) -> None:
        """Count so much more; less if it is below 0."""
        current = self._current
        if current < 0 or now - self._starts[current] >= self.window.sample_ms:
            current = self._advance(now)
        self._sums[current] += value
        self._lasts[current] = self.last = now
        self._total += value

    def throttle_ms(self, bound: float, now: int) -> int:
        """How long nothing may come until the rate is `bound` a second again; 0 if it is no more than that."""
        length = self._length(now)
        rate = self._total / (length / 1000)  # after that: of what is in the window
        if rate <= bound:
            return 0
        if bound <= 0:
            return LONGEST_MS
        return _rounded((rate - bound) / bound * length)

    def _advance(self, now: int) -> int:
        """Begin a sample."""
        current = self._current = (self._current + 1) % (self.window.samples + 1)
        if current == len(self._sums):
            self._sums.append(0.0)
            self._starts.append(now)
            self._lasts.append(now)
        else:
            self._reset(current, now)
        self._reckon()
        return current

    def _reset(self, number: int, now: int) -> None:
        self._sums[number] = 0.0
        self._starts[number] = self._lasts[number] = now

    def _reckon(self) -> None:
        self._total = sum(self._sums)  # anew, so that errors of rounding do not gather
        self._oldest = min(self._starts)
        self._purge_at = min(self._lasts) + self.window.length_ms

    def _length(self, now: int) -> int:
        """Milliseconds that the rate is over: since the oldest sample began, and as if whole ones had been before."""
        if not self._sums:
            self._advance(now)
        if now >= self._purge_at:
            oldest = now - self.window.length_ms
            for number, last in enumerate(self._lasts):
                if last <= oldest:
                    self._reset(number, now)
            self._reckon()
        samples, sample_ms = self.window
        elapsed = now - self._oldest
        missing = samples - 1 - elapsed // sample_ms
        return max(elapsed + missing * sample_ms if missing > 0 else elapsed, 1)


class TokenBucket:
    """Tokens that come back at a rate, up to so many as come in a window (KIP-599); there are fewer than none, too.

    It is empty at the beginning of time, and therefore full when it is used first.

    Args:
        window: Its samples tell how many tokens it holds.
    """

    __slots__ = ("_at", "_tokens", "_window", "last")

    def __init__(self, window: RateWindow) -> None:
        self._window = window
        self._tokens: float | None = None
        self._at = 0
        self.last: int = 0
        """When some were taken last."""

    def most(self, rate: float) -> float:
        """How many tokens it holds, of which `rate` come in a second."""
        return self._window.length_ms / 1000 * rate

    def tokens(self, rate: float, now: int) -> float:
        """How many there are."""
        most = self.most(rate)
        if self._tokens is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + rate * (now - self._at) / 1000)
        self._at = now
        return self._tokens

    def is_full(self, rate: float, now: int) -> bool:
        """Whether it says no more than one that has not been used."""
        return self.tokens(rate, now) >= self.most(rate)

    def take(self, count: float, rate: float, now: int) -> None:
        """Take so many, whether they are there or not."""
        self._tokens = min(self.most(rate), self.tokens(rate, now) - count)
        self.last = now

    def throttle_ms(self, rate: float, now: int) -> int:
        """How long it takes until none is owed; 0 if none is."""
        tokens = self.tokens(rate, now)
        return _rounded(-tokens / rate * 1000) if tokens < 0 else 0


def _rounded(milliseconds: float) -> int:
    """A throttle time as it is told; of the least quotas it is infinite."""
    return floor(min(milliseconds + 0.5, LONGEST_MS))
