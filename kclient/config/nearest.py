"""What somebody who mistyped the name of a setting may have meant."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Final

__all__ = ["nearest"]

_LONGEST: Final = 100
"""A name longer than that is no mistyped one, and comparing it takes long."""


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that is most like another one; None for nothing like it."""
    return _nearest(name, known) if len(name) <= _LONGEST else None


@lru_cache(maxsize=256)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if close:
        return close[0]
    # the words in another order, or the unit forgotten
    words = set(name.split("."))
    best = max(known, key=lambda other: len(words & set(other.split("."))) / len(words | set(other.split("."))))
    shared = words & set(best.split("."))
    return best if len(shared) >= 2 else None
