"""What a class can be asked to do."""

from __future__ import annotations

import inspect


def public(owner: type) -> dict[str, inspect.Signature]:
    """The signatures of its public methods and of its constructor, by name."""
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }
