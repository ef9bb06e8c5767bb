"""Whether a producer takes calls, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.cluster import CLIENT_TABLE, ClientEvent, ClientState
from kclient.errors import ClosedError, IllegalStateError, KafkaError
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class ProducerStatus:
    """What every call looks at first. Any thread may ask; it is changed in the loop, and where nothing runs yet.

    Args:
        fatal: The error after which brokers take nothing from this producer, if there is one.
        lazy: Whether the first call starts it, so that calls are taken before.
    """

    def __init__(self, fatal: Callable[[], KafkaError | None], *, lazy: bool) -> None:
        self.state: ClientState = ClientState.NEW
        self._fatal = fatal
        self._lazy = lazy
        self._failure: KafkaError | None = None
        self._trace: TracebackType | None = None
        """Where it was raised first."""

    def go(self, event: ClientEvent) -> None:
        """Something happens to the producer.

        Raises:
            IllegalStateError: It must not happen in this state.
        """
        self.state = next_state(CLIENT_TABLE, self.state, event, "producer")

    def fail(self, error: BaseException) -> KafkaError:
        """Something went wrong in the background: every call raises it from now on, as the error that is returned."""
        if not isinstance(error, KafkaError):
            wrapped = KafkaError(f"The producer's background task failed: {error!r}", fatal=True)
            wrapped.__cause__ = error
            error = wrapped
        self._trace = error.__traceback__
        self._failure = error
        return error

    def check(self) -> None:
        """Raise what went wrong in the background, or that the producer is not open.

        Raises:
            KafkaError: The stored failure.
            ClosedError: The producer was closed.
            IllegalStateError: The producer was not started.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(
                self._trace
            )  # else it keeps the frames of all calls that it was raised by
        if (fatal := self._fatal()) is not None:
            raise fatal.with_traceback(None)
        if self.state is ClientState.NEW and not self._lazy:
            raise IllegalStateError("The producer was not started: use `async with` or call `start`")
        if self.state not in {ClientState.NEW, ClientState.RUNNING}:
            raise ClosedError("The producer was closed")

    def check_new(self) -> None:
        """Raise if the producer was started before.

        Raises:
            ClosedError: It was closed.
            IllegalStateError: It was started.
        """
        if self.state in {ClientState.CLOSING, ClientState.CLOSED}:
            raise ClosedError("The producer was closed; make a new one")
        if self.state is not ClientState.NEW:
            raise IllegalStateError("The producer was started before; make a new one")
