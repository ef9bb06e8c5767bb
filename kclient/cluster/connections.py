"""One connection per broker and channel, opened on use, with a back-off after failures.

A channel separates traffic that must not wait behind other traffic: the consumer's coordinator has one of its
own, so that a heartbeat never queues behind a fetch that waits for data.

Connecting is an attempt with an identity, and a task of its own. All who want the connection meanwhile wait for that
one attempt, and none of them ends it by being cancelled. When the link is closed because the broker left the cluster,
the attempt ends with it: its waiters are told at once, and an outcome that comes all the same is thrown away.
"""

from __future__ import annotations

import copy
import logging
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Final

import anyio

from kclient.cluster.news import BrokerEvent, tell
from kclient.concurrency import Completion
from kclient.errors import AuthenticationError, BrokerConnectionError, ClosedError, KafkaError
from kclient.state_tables import PlainEnum, StateTable, next_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.cluster.backoff import Backoff
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.net.address import Address
    from kclient.net.connection import Connection

logger: logging.Logger = logging.getLogger("kclient.cluster")

SILENCE: Final = 1.0
"""Seconds without an answer after which a broker is asked only if no other is at hand."""
_OVERDUE: Final = 2.0
"""Seconds without an answer after which the cluster is asked whether the broker is still there."""


class LinkState(PlainEnum):
    """Where a link to a broker stands."""

    IDLE = auto()
    """Not connected; may connect at once."""
    CONNECTING = auto()
    """An attempt is under way."""
    READY = auto()
    """Connected, versions negotiated."""
    BACKOFF = auto()
    """The last attempt failed or the connection broke soon; wait before the next."""
    CLOSED = auto()
    """Nobody connects any more: the broker left, or the client was closed."""


class LinkEvent(PlainEnum):
    """What happens to the connection to a broker; the values are the labels of the diagram in the docs."""

    WANTED = "somebody wants it, and no pause holds"
    CONNECTED = "connected, versions negotiated, authenticated"
    FAILED = "the attempt failed, or the connection broke"
    ABANDONED = "the attempt ended, and not because of the broker"
    CLOSED = "the broker left or moved, or the client was closed"


LINK_TABLE: StateTable[LinkState, LinkEvent] = {
    LinkState.IDLE: {
        LinkEvent.WANTED: LinkState.CONNECTING,
        LinkEvent.CLOSED: LinkState.CLOSED,
    },
    LinkState.CONNECTING: {
        LinkEvent.CONNECTED: LinkState.READY,
        LinkEvent.FAILED: LinkState.BACKOFF,
        LinkEvent.ABANDONED: LinkState.IDLE,
        LinkEvent.CLOSED: LinkState.CLOSED,
    },
    LinkState.READY: {
        LinkEvent.FAILED: LinkState.BACKOFF,
        LinkEvent.CLOSED: LinkState.CLOSED,
    },
    LinkState.BACKOFF: {
        LinkEvent.WANTED: LinkState.CONNECTING,
        LinkEvent.CLOSED: LinkState.CLOSED,
    },
    LinkState.CLOSED: {},
}


class Readiness(IntEnum):
    """How likely a broker answers soon, the likeliest first."""

    ANSWERING = auto()
    """Connected, and no request waits long for its answer."""
    IDLE = auto()
    """Not connected, and nothing is known against it."""
    SILENT = auto()
    """Connected, but a request has waited long."""
    CONNECTING = auto()
    """An attempt to connect is under way."""
    FAILED = auto()
    """The last attempt or connection failed."""


class Link:
    """The state of the connection to one address: decisions only, no I/O."""

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address = address
        self.state: LinkState = LinkState.IDLE
        self.retry_at: float = 0.0
        self.failures: int = 0
        self.error: BaseException | None = None
        """Why the last attempt failed."""
        self._backoff = backoff

    def _go(self, event: LinkEvent) -> None:
        self.state = next_state(LINK_TABLE, self.state, event, f"link to {self.address}")

    def delay(self, now: float) -> float:
        """Seconds until an attempt to connect is allowed."""
        return max(self.retry_at - now, 0.0) if self.state is LinkState.BACKOFF else 0.0

    def connecting(self) -> None:
        """An attempt begins."""
        self._go(LinkEvent.WANTED)

    def connected(self) -> None:
        """The attempt succeeded."""
        self._go(LinkEvent.CONNECTED)
        self.failures = 0
        self.error = None

    def failed(self, error: BaseException, now: float) -> None:
        """The attempt failed, or the connection broke."""
        self._go(LinkEvent.FAILED)
        self.failures += 1
        self.error = error
        self.retry_at = now + self._backoff.seconds(self.failures)

    def abandoned(self) -> None:
        """The attempt was given up for a reason that says nothing about the broker."""
        self._go(LinkEvent.ABANDONED)

    def close(self) -> None:
        """Nobody connects any more."""
        self._go(LinkEvent.CLOSED)


class _Attempt:
    """One attempt to connect, for all who wait for it."""

    __slots__ = ("begun", "connection", "done", "error", "task")

    def __init__(self, now: float) -> None:
        self.begun = now
        self.done = anyio.Event()
        self.connection: Connection | None = None
        self.error: BaseException | None = None
        self.task: TaskHandle | None = None

    def end(self, connection: Connection | None = None, error: BaseException | None = None) -> None:
        """Tell the outcome; what comes after the first is ignored."""
        if not self.done.is_set():
            self.connection, self.error = connection, error
            self.done.set()


class BrokerLink:
    """A link with its connection: opens it on use, lets concurrent users share one attempt.

    Args:
        address: Where the broker listens.
        opener: Opens a connection and negotiates versions.
        backoff: Delay between failing attempts.
        clock: Monotonic time in seconds.
        supervisor: Runs the attempts.
    """

    def __init__(
        self,
        address: Address,
        opener: Callable[[Address], Awaitable[Connection]],
        backoff: Backoff,
        clock: Callable[[], float],
        supervisor: Supervisor,
    ) -> None:
        self.link: Link = Link(address, backoff)
        self.current: Connection | None = None
        self.bootstrap = False
        """Whether it leads to a bootstrap server, of which it is not known which broker it is."""
        self._opener = opener
        self._clock = clock
        self._supervisor = supervisor
        self._attempt: _Attempt | None = None
        """The attempt under way: what another one brings is out of date."""
        self._overdue_at = _OVERDUE
        self._closed: Completion[None] = Completion()
        self._closed_by: KafkaError | None = None

    @property
    def address(self) -> Address:
        """Where the broker listens."""
        return self.link.address

    @property
    def usable(self) -> Connection | None:
        """The connection if it is open, else None."""
        self._notice_break()
        return self.current

    @property
    def readiness(self) -> Readiness:
        """How likely the broker answers soon."""
        connection = self.usable
        if connection is not None:
            return Readiness.SILENT if connection.waiting > SILENCE else Readiness.ANSWERING
        if self.link.state is LinkState.CONNECTING:
            return Readiness.CONNECTING
        return Readiness.IDLE if self.link.state is LinkState.IDLE else Readiness.FAILED

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self.usable is not None

    @property
    def waiting(self) -> float:
        """Seconds for which the broker has owed an answer, or a connection."""
        connection = self.usable
        if connection is not None:
            return connection.waiting
        return self._clock() - self._attempt.begun if self._attempt is not None else 0.0

    @property
    def reason(self) -> str:
        """Why who is asked here has not answered yet."""
        error = self.link.error
        return "no answer" if error is None else str(error) or type(error).__name__

    @property
    def overdue(self) -> bool:
        """Whether the broker has owed an answer for long; once, and again when it is half as long again."""
        waiting = self.waiting
        if waiting < _OVERDUE:
            self._overdue_at = _OVERDUE
        elif waiting >= self._overdue_at:
            self._overdue_at = waiting * 1.5
            return True
        return False

    @property
    def in_flight(self) -> int:
        """Requests that the broker has not answered yet."""
        return 0 if self.current is None else self.current.in_flight

    async def get(self, *, wait: bool = True) -> Connection:
        """The open connection; opens one if need be.

        Args:
            wait: Wait out the back-off after a failure; else raise the last failure again.

        Raises:
            BrokerConnectionError: The broker cannot be reached, or the link was closed meanwhile.
        """
        while True:
            if self._closed_by is not None:
                raise _again(self._closed_by)
            found = self.usable
            if found is not None:
                return found
            delay = self.link.delay(self._clock())
            if delay <= 0:
                return await self._connected()
            if not wait:
                raise self._failed_before(self.link.error)
            with anyio.move_on_after(delay):
                await self._closed.wait()

    async def _connected(self) -> Connection:
        """What the attempt under way brings; begins one if there is none."""
        attempt = self._attempt or self._begin()
        await attempt.done.wait()
        if attempt.connection is not None:
            return attempt.connection
        error = attempt.error
        assert error is not None
        if isinstance(error, KafkaError):
            raise _again(error)
        if isinstance(error, OSError):
            raise self._unreachable(error) from error
        raise error

    def _begin(self) -> _Attempt:
        attempt = _Attempt(self._clock())
        self.link.connecting()
        try:
            attempt.task = self._supervisor.spawn(self._connect, attempt, name=f"connect to {self.address}")
        except BaseException:  # the owner has ended: there will be no attempt
            self.link.abandoned()
            raise
        # where the loop ends before the task's first step, it tells nobody
        attempt.task.on_done(lambda _: attempt.end(error=_given_up(self.address)))
        self._attempt = attempt
        return attempt

    async def _connect(self, attempt: _Attempt) -> None:
        """Make an attempt. What becomes of it is told to those who wait; no outcome fails the task or its owner."""
        connection: Connection | None = None
        error: BaseException = _given_up(self.address)
        try:
            connection = await self._opener(self.address)
        except Exception as failure:  # noqa: BLE001  (those who wait raise it)
            error = failure
        finally:
            if self._attempt is attempt:
                self._attempt = None
                self._settle(connection, error)
            elif connection is not None:  # the link was closed, and the attempt came through all the same
                connection.close()
            attempt.end(connection, error)

    def _settle(self, connection: Connection | None, error: BaseException) -> None:
        """The attempt under way has ended."""
        if connection is not None:
            if self.link.failures:
                logger.info("connected to %s again", self.address)
            event = BrokerEvent.BACK if self.link.failures else BrokerEvent.REACHED
            tell(self.address, event, bootstrap=self.bootstrap)
            self.link.connected()
            self.current = connection
            return
        if isinstance(error, ClosedError) or not isinstance(error, KafkaError | OSError):
            self.link.abandoned()  # it says nothing about the broker, and must not leave the link opening
            return
        self.link.failed(error, self._clock())
        # a refusal is told here and nowhere else; the attempts that follow at intervals are for the curious
        refused = isinstance(error, AuthenticationError) and not error.retriable
        level = logging.WARNING if refused else logging.INFO
        first = self.link.failures == 1
        logger.log(level if first else logging.DEBUG, "connecting to %s failed: %s", self.address, error)
        if first and not self.bootstrap:  # of bootstrap servers it is told where none answers
            tell(self.address, BrokerEvent.UNREACHABLE, error)

    def _notice_break(self) -> None:
        """Drop a connection that broke since it was last looked at."""
        if self.current is not None and self.current.closed:
            error = self.current.failure("it broke")
            self.current = None
            logger.info("the connection to %s was lost: %s", self.address, error)
            tell(self.address, BrokerEvent.LOST, error, bootstrap=self.bootstrap)
            # a broker that accepts and hangs up must not be asked in a tight loop
            self.link.failed(error, self._clock())

    def _failed_before(self, error: BaseException | None) -> KafkaError:
        """The last failure, for those who come during the back-off."""
        if isinstance(error, KafkaError) and not error.retriable:
            return _again(error)
        return self._unreachable(error)

    def _unreachable(self, error: BaseException | None) -> BrokerConnectionError:
        attempts = [] if error is None else [(str(self.address), error)]
        return BrokerConnectionError(f"Broker {self.address} cannot be reached", attempts=attempts)

    def hang_up(self) -> None:
        """Close the connection at once; a new one may be opened."""
        if self.current is not None:
            self.current.close()

    async def aclose(self, error: KafkaError | None = None) -> None:
        """As `close`, and wait until the connection has ended."""
        connection = self.close(error)
        if connection is not None:
            await connection.aclose()

    def close(self, error: KafkaError | None = None) -> Connection | None:
        """Close the connection and end the attempt to make one; no new one is opened.

        Args:
            error: What those are told who wait for the connection, or ask for it later; that it was closed if None.

        Returns:
            The connection, if there was one, for who wants to wait until it has ended.
        """
        if self._closed_by is None:
            self._closed_by = error or BrokerConnectionError(
                f"The connection to {self.address} was closed", retriable=False
            )
            self.link.close()
            self._closed.set_result(None)
            attempt, self._attempt = self._attempt, None
            if attempt is not None:
                attempt.end(error=self._closed_by)
                if attempt.task is not None:
                    attempt.task.cancel()
        connection, self.current = self.current, None
        if connection is not None:
            connection.close()
        return connection


def _given_up(address: Address) -> ClosedError:
    return ClosedError(f"Connecting to {address} was given up: the client was closed")


def _again(error: KafkaError) -> KafkaError:
    """An error for one of those who share it: raising one object in several tasks mixes up their tracebacks."""
    again = copy.copy(error)
    again.__cause__ = error
    return again
