"""What is told of an object that was dropped without `close`, by its `__del__`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

__all__ = ["finalizer", "warn_unclosed"]

S = TypeVar("S")


def warn_unclosed(dropped: object, remedy: str, lost: str = "") -> None:
    """Warn that an object was dropped without `close`; to be called by its `__del__`.

    Args:
        dropped: What was dropped.
        remedy: What to do instead, as the end of the sentence.
        lost: What is lost with it, as a sentence's middle part.
    """
    text = f"{dropped!r} was not closed{f': {lost}' if lost else ''}; use {remedy}"
    warnings.warn(text, ResourceWarning, stacklevel=2, source=dropped)


def finalizer(method: Callable[[S], None]) -> Callable[[S], None]:
    """A `__del__` that is silent when the interpreter ends: then modules are emptied while objects still are.

    What it needs by then it holds itself.
    """
    ending = sys.is_finalizing

    def finalize(dropped: S) -> None:
        try:
            method(dropped)
        except Exception:
            if not ending():
                raise

    return finalize
