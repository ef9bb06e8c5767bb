"""The life of a client: what producers and consumers have in common."""

from __future__ import annotations

from enum import Enum

from kclient.concurrency import Completion
from kclient.errors import IllegalStateError


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
