"""Unpickling of records, by whichever implementation is loaded there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_made_record: Callable[..., Any] | None = None


def restore_with(made_record: Callable[..., Any]) -> None:
    """Restore records with this function of the loaded implementation from now on."""
    global _made_record
    _made_record = made_record


def restore_record(*fields: Any) -> Any:
    """Make a record of the loaded implementation from the fields of one that was pickled."""
    assert _made_record is not None  # importing this module imports the package, which says which
    return _made_record(*fields)
