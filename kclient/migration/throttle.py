"""How fast bytes may be moved."""

from __future__ import annotations


class Throttle:
    """Says how long to wait so that no more than so many bytes a second are moved; it neither sleeps nor reads a clock.

    What was not used is kept for one second.

    Args:
        bytes_per_second: How many, on average; None for as many as there are.
        now: The time, in seconds of any clock.

    Raises:
        ValueError: That is not a positive number.
    """

    def __init__(self, bytes_per_second: float | None, now: float) -> None:
        if bytes_per_second is not None and not 0 < bytes_per_second < float("inf"):
            raise ValueError(f"bytes_per_second is a positive number, not {bytes_per_second!r}")
        self.bytes_per_second: float | None = bytes_per_second
        self._free = float(bytes_per_second or 0)
        """Bytes that may be moved at once; below 0 where more came than was asked for."""
        self._at = now

    def delay(self, now: float) -> float:
        """Seconds to wait before the next bytes are asked for."""
        if self.bytes_per_second is None:
            return 0.0
        self._refill(now)
        return max(0.0, -self._free / self.bytes_per_second)

    def moved(self, size: int, now: float) -> None:
        """So many bytes came."""
        if self.bytes_per_second is not None:
            self._refill(now)
            self._free -= size

    def most(self, wanted: int) -> int:
        """How many bytes to ask for at once: no more than a second's worth."""
        if self.bytes_per_second is None:
            return wanted
        return max(1, min(wanted, int(self.bytes_per_second)))

    def _refill(self, now: float) -> None:
        assert self.bytes_per_second is not None
        self._free = min(self.bytes_per_second, self._free + (now - self._at) * self.bytes_per_second)
        self._at = now
