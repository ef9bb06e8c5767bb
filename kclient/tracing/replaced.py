"""Which headers of a record give way to those of a trace context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_BELONGS_TO: Final = {"tracestate": "traceparent"}
"""Headers that say nothing without another one, and go with it."""


def replaced_by(names: Iterable[str]) -> set[str]:
    """The names, in small letters, of the headers that go when these are put into a record."""
    replaced = {name.lower() for name in names}
    return replaced | {name for name, of in _BELONGS_TO.items() if of in replaced}
