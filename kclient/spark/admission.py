"""How much of what is there a micro-batch takes, as in Spark's built-in source: limits, least amounts, delays."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

P = TypeVar("P", bound=Hashable)


def limited(starts: Mapping[P, int], ends: Mapping[P, int], most: int) -> dict[P, int]:
    """Ends so that there are about `most` offsets in all, shared out in proportion to what each partition has.

    A partition that has anything gets at least one, so that small ones are not starved.
    """
    sizes = {tp: max(ends[tp] - starts[tp], 0) for tp in ends}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    found = {}
    for tp, size in sizes.items():
        share = most * size / total
        count = math.ceil(share) if share < 1 else math.floor(share)
        found[tp] = min(starts[tp] + count, ends[tp]) if size else ends[tp]
    return found


class TriggerDelay:
    """Holds batches back that are smaller than wanted, but not for ever.

    Args:
        least: `minOffsetsPerTrigger`.
        longest: `maxTriggerDelay`, in seconds.
    """

    def __init__(self, least: int, longest: float) -> None:
        self._least = least
        self._longest = longest
        self._last: float | None = None

    def holds_back(self, available: int, now: float) -> bool:
        """Whether so many offsets are to wait, at that time in seconds. The first batch never does."""
        if self._last is not None and now - self._last < self._longest and available < self._least:
            return True
        self._last = now
        return False
