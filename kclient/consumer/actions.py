"""What scripts ask for: `poll`, `unsubscribe` and `close` are written once, and the faces carry out what they say.

The async face awaits the actions, the blocking one carries them out in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `PollReadiness.signal` is called."""

    until: float
    """At most until this time (monotonic, in seconds)."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the user's, and await what it returns if that can be awaited."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Await:
    """Await a coroutine function in the consumer's event loop."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    arguments: tuple[Any, ...] = ()


Action: TypeAlias = Wait | Call | Await
Script: TypeAlias = Generator[Action, Any, Any]
ScriptPart: TypeAlias = Generator[Action, Any, bool]
"""Part of a script; says whether it is done, or was out of time."""
Told: TypeAlias = Generator[Action, Any, Exception | None]
"""Part of a script that calls the user's code; gives what that raised."""
