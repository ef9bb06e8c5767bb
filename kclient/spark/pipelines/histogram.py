"""Counts of numbers that are kept to a sixteenth of them: of latencies in milliseconds, of sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

_PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)
_FINE = 4
"""Numbers are kept to so many binary digits behind the first."""


@dataclass(frozen=True)
class Histogram:
    """How many of which size.

    Attributes:
        counts: how many, by a number that is rounded down to a sixteenth.
    """

    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: Any) -> Self:
        """Of an Arrow column of whole numbers."""
        from pyarrow import compute

        counts: dict[int, int] = {}
        for pair in compute.value_counts(numbers).to_pylist():
            bucket = _rounded(pair["values"])
            counts[bucket] = counts.get(bucket, 0) + pair["counts"]
        return cls(counts)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            {each: self.counts.get(each, 0) + other.counts.get(each, 0) for each in {*self.counts, *other.counts}}
        )

    @property
    def records(self) -> int:
        """How many were measured."""
        return sum(self.counts.values())

    def percentiles(self) -> dict[str, int]:
        """What so many percent of the records come to at most."""
        found, total, reached = {}, self.records, 0
        wanted = list(_PERCENTILES)
        for bucket in sorted(self.counts):
            reached += self.counts[bucket]
            while wanted and reached * 100 >= wanted[0] * total:
                found[f"p{wanted.pop(0):g}"] = bucket
        return found


def _rounded(number: int) -> int:
    size = abs(number)
    shift = max(0, size.bit_length() - _FINE - 1)
    rounded = size >> shift << shift
    return rounded if number >= 0 else -rounded
