"""A framing by its name: so it crosses a process, and a store may say what its messages are.

Those of the package are registered by `kclient` itself. Others register under the entry-point group
`kclient.htp.framings`, or call `register_framing`; either is imported when the name is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

from kclient.arguments import shown
from kclient.htp.errors import FramingMismatchError, UnknownFramingError
from kclient.registry import framings as _framings

if TYPE_CHECKING:
    from kclient.htp.port import Framing, Place

ENTRY_POINTS: Final = "kclient.htp.framings"
"""The entry-point group: name = the framing's name, value = a class or function that makes it, called with nothing."""


def register_framing(name: str, make: Callable[[], Framing] | str) -> None:
    """Let a framing be found by its name; one of that name is replaced.

    Args:
        name: `Framing.name`.
        make: Makes the framing, or the place of what does as `module:function`, imported on first use.
    """
    _framings[name] = make


def find_framing(name: str) -> Framing:
    """The framing of a name.

    Raises:
        UnknownFramingError: If there is none, or what is registered cannot be imported or has another name.
    """
    place = _framings.get(name)
    try:
        framing = cast("Framing", (_imported(place) if isinstance(place, str) else place or _entry(name))())
    except (ImportError, AttributeError) as error:
        raise UnknownFramingError(f"the framing {shown(name)} is registered, and cannot be used: {error}") from error
    if framing.name != name:
        raise UnknownFramingError(f"what is registered as {shown(name)} is the framing {shown(framing.name)}")
    return framing


def check_framing(place: Place, written: str, given: str) -> None:
    """Refuse to open a topic with another framing than its messages were written with.

    Raises:
        FramingMismatchError: The names differ.
    """
    if written != given:
        raise FramingMismatchError(
            f"{place} was written with the framing {shown(written)}, and cannot be opened with {shown(given)}: open it "
            "with the first, which is kept as long as the topic is there",
            written=written,
            given=given,
        )


def _imported(place: str) -> Callable[[], Any]:
    module, _, function = place.partition(":")
    return cast("Callable[[], Any]", getattr(importlib.import_module(module), function))


def _entry(name: str) -> Callable[[], Any]:
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return cast("Callable[[], Any]", entry.load())
    known = sorted({*_framings, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})
    raise UnknownFramingError(
        f"no framing has the name {shown(name)}; there are {', '.join(known)}. The package whose messages it frames "
        f"registers it (entry-point group {ENTRY_POINTS}): install that, or call kclient.htp.register_framing"
    )
