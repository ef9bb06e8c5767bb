"""Lengths of time as ISO 8601 writes them, such as `PT1H`: as Java's `Duration.parse` reads them, without signs."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["duration_ms"]

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration, such as 3600000 for `PT1H`; None if the text is none.

    Args:
        text: Days, hours, minutes and seconds, of which each may be missing: `P1DT2H3M4.5S`.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    parts = {name: float(value or 0) for name, value in match.groupdict().items()}
    seconds = ((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts["seconds"]
    return round(seconds * 1000)
