"""How fast a task may go: so many records and so many bytes a second. It knows no clock."""

from __future__ import annotations

from dataclasses import dataclass

_SLICE_S = 0.25
"""A piece that is sent at once takes no longer than this at the rate: the flow is even, and a stop is near."""
_SAVED_S = 1.0
"""What was not used is made up for, but no more than that of a second."""


@dataclass(frozen=True)
class Rate:
    """The most of a second; None is no limit.

    Attributes:
        records: records a second.
        bytes: bytes a second, of keys, values and headers.
    """

    records: float | None = None
    bytes: float | None = None

    def share(self, part: float) -> Rate:
        """A part of it, from 0 to 1."""
        return Rate(
            None if self.records is None else self.records * part, None if self.bytes is None else self.bytes * part
        )

    def rows_at_once(self, rows: int, size: int) -> int:
        """How many of so many rows, which have so many bytes, to send at once."""
        found = float(rows)
        if self.records is not None:
            found = min(found, self.records * _SLICE_S)
        if self.bytes is not None and size:
            found = min(found, self.bytes * _SLICE_S * rows / size)
        return max(1, int(found))


class RateLimiter:
    """Says how long to wait before what comes next."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._due = now

    def wait(self, now: float, records: int, size: int) -> float:
        """So many records and bytes are to be sent: in how many seconds they may be."""
        took = 0.0
        if self._rate.records is not None:
            took = records / self._rate.records
        if self._rate.bytes is not None:
            took = max(took, size / self._rate.bytes)
        begin = max(self._due, now - _SAVED_S)
        self._due = begin + took
        return max(0.0, begin - now)
