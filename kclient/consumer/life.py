"""The life of one consumer: started, running, closing, closed; and the failure of a background task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kclient.cluster import CLIENT_TABLE, ClientEvent, ClientState, Closing
from kclient.errors import ClosedError, IllegalStateError, KafkaError
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.concurrency import MomentLock


class ConsumerLife:
    """Where a consumer is in its life, and what calls may be made. Any thread may ask.

    Args:
        lock: Guards the change from one state to the next where threads may meet.
    """

    def __init__(self, lock: MomentLock) -> None:
        self.state: ClientState = ClientState.NEW
        self.closure: Closing = Closing()
        self._lock = lock
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        """Whether it was started, and nobody has begun to close it."""
        return self.state is ClientState.RUNNING

    @property
    def failed(self) -> bool:
        """Whether calls raise a stored failure."""
        return self._failure is not None

    @property
    def is_ours(self) -> bool:
        """Whether it was made in this process, and not before a fork."""
        return self._pid == os.getpid()

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """Raise what went wrong in the background, or that the consumer is not open.

        Raises:
            KafkaError: The stored failure.
            ClosedError: The consumer was closed.
            IllegalStateError: The consumer was not started.
        """
        if self._failure is not None:
            raise _told(self._failure)
        if self.state is ClientState.NEW:
            raise IllegalStateError("The consumer was not started: use `async with` (or `with`), or call `start`")
        self.check_open()

    def check_polling(self) -> None:
        """As `check`, for a call that a consumer which is being closed does not answer any more."""
        self.check()
        if self.state is ClientState.CLOSING:
            raise ClosedError("The consumer was closed")

    def check_open(self) -> None:
        """Raise if the consumer was closed; it need not have been started.

        Raises:
            ClosedError: The consumer was closed.
        """
        if self.state is ClientState.CLOSED:
            raise ClosedError("The consumer was closed")

    def check_new(self) -> None:
        """Raise if the consumer cannot be started.

        Raises:
            ClosedError: The consumer was closed.
            IllegalStateError: It was started before.
        """
        if self.state in {ClientState.CLOSING, ClientState.CLOSED}:
            raise ClosedError("The consumer was closed; make a new one")
        if self.state is not ClientState.NEW:
            raise IllegalStateError("The consumer was started before; make a new one")

    # ------------------------------------------------------------------ changes

    def fail(self, failure: BaseException) -> KafkaError:
        """A background task died, or there are none in this process: every call raises the returned error from now."""
        self._failure = failure
        return _told(failure)

    def started(self) -> None:
        """The tasks run.

        Raises:
            ClosedError: Another thread has closed it meanwhile.
        """
        with self._lock:
            if self.state is not ClientState.NEW:
                raise ClosedError("The consumer was closed while it was started; make a new one")
            self._go(ClientEvent.STARTED)

    def begin_closing(self, caller: int) -> bool:
        """The user closes; False if another call does it already, or there is nothing to bring to an end.

        Args:
            caller: The number of the task or thread that calls.
        """
        with self._lock:
            if self.state is ClientState.NEW:
                self._go(ClientEvent.CLOSED)
                self.closure.end()
            if self.state is not ClientState.RUNNING:
                return False
            self.closure.begin(caller)  # first: the caller ends it, even if it is interrupted here
            self._go(ClientEvent.CLOSE)
            return True

    def end(self) -> None:
        """It is closed, whatever it was before."""
        if self.state is ClientState.RUNNING:
            self._go(ClientEvent.CLOSE)
        if self.state is not ClientState.CLOSED:
            self._go(ClientEvent.CLOSED)

    def _go(self, event: ClientEvent) -> None:
        self.state = next_state(CLIENT_TABLE, self.state, event, "consumer")


def _told(failure: BaseException) -> KafkaError:
    """A failure as the user is told of it."""
    if isinstance(failure, KafkaError):
        return failure
    error = KafkaError(
        f"A background task of the consumer failed: {failure!r}; close it and make a new one", fatal=True
    )
    error.__cause__ = failure
    return error
