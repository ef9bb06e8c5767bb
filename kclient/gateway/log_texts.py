"""Texts in the log that clients have chosen."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300


def on_one_line(text: str, longest: int = _LONGEST) -> str:
    """A text on one line, whatever it has, and shortened: nobody can make the log say what is not so.

    Args:
        text: What a client has chosen, or has such texts in it.
        longest: Characters of it.
    """
    text = text if len(text) <= longest else f"{text[:longest]}…"
    return text if text.isprintable() else ascii(text)
