"""Exponential back-off with jitter, as in the Java client (KIP-580): pure arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the n-th new attempt.

    Args:
        initial_ms: Delay before the first new attempt, in milliseconds.
        max_ms: Ceiling of the delay, in milliseconds, before jitter.
        multiplier: Growth per attempt.
        jitter: Share of the delay by which it varies at random, both ways.
    """

    initial_ms: int
    max_ms: int
    multiplier: float = 2.0
    jitter: float = 0.2
    random: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def seconds(self, attempts: int) -> float:
        """Seconds to wait after `attempts` failed attempts (1 or more)."""
        if self.max_ms <= 0 or self.initial_ms <= 0 or attempts <= 0:
            return 0.0
        ceiling = max(self.max_ms, self.initial_ms)
        # beyond 2**60 the ceiling has long been reached; a larger exponent would overflow the float
        delay = min(self.initial_ms * self.multiplier ** min(attempts - 1, 60), ceiling)
        if self.initial_ms == self.max_ms:
            return delay / 1000  # a constant delay was asked for
        return delay * self.random.uniform(1 - self.jitter, 1 + self.jitter) / 1000
