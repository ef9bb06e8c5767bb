"""The life of a client: what producers and consumers have in common."""

from __future__ import annotations

from enum import Enum

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
