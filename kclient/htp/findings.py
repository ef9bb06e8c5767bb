"""What a check of a store has found."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    """How bad something is."""

    ERROR = "error"
    """Something is lost, or will not be found."""
    NOTE = "note"
    """A start makes it good, or nobody will miss it."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    severity: Severity
    where: str
    """A file, a topic or the key of a row."""
    what: str


def error(where: str, what: str) -> Finding:
    """Something is lost, or will not be found."""
    return Finding(Severity.ERROR, where, what)


def note(where: str, what: str) -> Finding:
    """Something that a start makes good, or that nobody will miss."""
    return Finding(Severity.NOTE, where, what)
