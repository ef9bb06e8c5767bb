"""The life of a client: what producers and consumers have in common."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from kclient.concurrency import Completion
from kclient.errors import IllegalStateError

S = TypeVar("S")


class ClientState(Enum):
    """The life of a producer or consumer."""

    NEW = "new"
    """Not started."""
    RUNNING = "running"
    """In use."""
    CLOSING = "closing"
    """Takes nothing more; brings what it has to an end: sends, commits, leaves its group."""
    CLOSED = "closed"
    """Done."""

    def to(self, state: ClientState, client: str) -> ClientState:
        """The next state, if it may follow.

        Args:
            state: Where to.
            client: Who moves, for the error.

        Raises:
            IllegalStateError: It may not follow.
        """
        if state not in _TRANSITIONS[self]:
            raise IllegalStateError(f"{client}: {self.name} -> {state.name}")
        return state


_TRANSITIONS = {
    ClientState.NEW: {ClientState.RUNNING, ClientState.CLOSED},
    ClientState.RUNNING: {ClientState.CLOSING},
    ClientState.CLOSING: {ClientState.CLOSED},
    ClientState.CLOSED: set[ClientState](),
}


class Closing:
    """Who closes a client: the first that calls `close` does it, the others wait for that."""

    __slots__ = ("_by", "_through")

    def __init__(self) -> None:
        self._by: int | None = None
        self._through: Completion[None] = Completion()

    def begin(self, caller: int) -> None:
        """A task or thread closes the client, told by its number."""
        self._by = caller

    def is_by(self, caller: int) -> bool:
        """Whether the caller is in the midst of closing it: one of its callbacks calls `close`."""
        return self._by == caller and not self._through.done

    def end(self) -> None:
        """It is closed; in the loop."""
        self._through.set_result(None)

    async def ended(self) -> None:
        """Wait until it is closed."""
        await self._through.wait()


def warn_unclosed(client: object, remedy: str, lost: str = "") -> None:
    """Warn that a client was dropped without `close`; to be called by its `__del__`.

    Args:
        client: Who was dropped.
        remedy: What to do instead, as the end of the sentence.
        lost: What is lost with it, as a sentence's middle part.
    """
    text = f"{client!r} was not closed{f': {lost}' if lost else ''}; use {remedy}"
    warnings.warn(text, ResourceWarning, stacklevel=2, source=client)


def finalizer(method: Callable[[S], None]) -> Callable[[S], None]:
    """A client's `__del__` that is silent when the interpreter ends: then modules are emptied while objects still are.

    What it needs by then it holds itself.
    """
    ending = sys.is_finalizing

    def finalize(client: S) -> None:
        try:
            method(client)
        except Exception:
            if not ending():
                raise

    return finalize
