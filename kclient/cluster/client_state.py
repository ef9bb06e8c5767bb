"""The life of a client: what producers and consumers have in common."""

from __future__ import annotations

from kclient.concurrency import Completion
from kclient.state_tables import PlainEnum, StateTable


class ClientState(PlainEnum):
    """The life of a producer or consumer."""

    NEW = "new"
    """Not started."""
    RUNNING = "running"
    """In use."""
    CLOSING = "closing"
    """Takes nothing more; brings what it has to an end: sends, commits, leaves its group."""
    CLOSED = "closed"
    """Done."""


class ClientEvent(PlainEnum):
    """What happens to a producer or consumer; the values are the labels of the diagram in the docs."""

    STARTED = "started"
    CLOSE = "close begins"
    CLOSED = "closed"


CLIENT_TABLE: StateTable[ClientState, ClientEvent] = {
    ClientState.NEW: {
        ClientEvent.STARTED: ClientState.RUNNING,
        ClientEvent.CLOSED: ClientState.CLOSED,
    },
    ClientState.RUNNING: {ClientEvent.CLOSE: ClientState.CLOSING},
    ClientState.CLOSING: {ClientEvent.CLOSED: ClientState.CLOSED},
    ClientState.CLOSED: {},
}


def leaves_in_order(error: BaseException | None) -> bool:
    """Whether the block of a client is left so that what it has is brought to an end first.

    By Ctrl-C and by a cancellation it is not; by `sys.exit`, which the program says itself, it is.
    """
    return error is None or isinstance(error, Exception | SystemExit)


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

    def leave(self) -> None:
        """Who closes it was interrupted, and is not amid that any more."""
        self._by = None

    def end(self) -> None:
        """It is closed; in the loop."""
        self._through.set_result(None)

    async def ended(self) -> None:
        """Wait until it is closed."""
        await self._through.wait()
