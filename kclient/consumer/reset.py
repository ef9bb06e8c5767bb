"""Where to begin when a partition has no position: `auto.offset.reset`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self

from kclient.config.durations import duration_ms
from kclient.errors import ConfigError

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1


class ResetKind(Enum):
    """What to do about a missing or impossible position."""

    EARLIEST = "earliest"
    """Begin at the oldest record."""
    LATEST = "latest"
    """Begin behind the newest record."""
    NONE = "none"
    """Raise an error."""
    BY_DURATION = "by_duration"
    """Begin at the first record that is not older than a duration (KIP-1106)."""


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """A value of `auto.offset.reset`."""

    kind: ResetKind
    duration_ms: int = 0
    """For `BY_DURATION`: how far back to go, in milliseconds."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `earliest`, `latest`, `none` or `by_duration:<ISO-8601 duration>`, such as `by_duration:PT1H`.

        Raises:
            ConfigError: It is none of these.
        """
        name, _, duration = text.strip().lower().partition(":")
        try:
            kind = ResetKind(name)
        except ValueError:
            raise _bad(text) from None
        if kind is not ResetKind.BY_DURATION:
            if duration:
                raise _bad(text)
            return cls(kind)
        back = duration_ms(duration)
        if back is None:
            raise _bad(text)
        return cls(kind, back)

    def timestamp(self, now_ms: int) -> int:
        """What to ask ListOffsets for: -2 for the earliest offset, -1 for the latest, or a time.

        Args:
            now_ms: Milliseconds since the epoch.
        """
        if self.kind is ResetKind.EARLIEST:
            return EARLIEST_TIMESTAMP
        return LATEST_TIMESTAMP if self.kind is ResetKind.LATEST else max(now_ms - self.duration_ms, 0)


EARLIEST = ResetPolicy(ResetKind.EARLIEST)
LATEST = ResetPolicy(ResetKind.LATEST)


def _bad(text: str) -> ConfigError:
    return ConfigError(
        f"auto.offset.reset is {text!r}; it has to be earliest, latest, none or by_duration:<ISO-8601 duration>, "
        "such as by_duration:PT1H"
    )
