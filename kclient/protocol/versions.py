"""Version ranges in the notation of Kafka's schemas: "0-13", "9+", "4", "none"."""

from __future__ import annotations

from typing import NamedTuple, Self

UNBOUNDED = 32767
"""The upper end of an open range such as "9+": versions are int16 on the wire."""


class Versions(NamedTuple):
    """A closed range of versions; empty when `high < low`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the notation of Kafka's schemas.

        Raises:
            ValueError: If the text is none of "none", "3", "3+", "3-5".
        """
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), UNBOUNDED)
        low, dash, high = text.partition("-")
        return cls(int(low), int(high) if dash else int(low))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.low, other.low), min(self.high, other.high))

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.high == UNBOUNDED:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
