"""One connection per broker and channel, opened on use, with a back-off after failures.

A channel separates traffic that must not wait behind other traffic: the consumer's coordinator has one of its
own, so that a heartbeat never queues behind a fetch that waits for data.
"""

from __future__ import annotations

import copy
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

import anyio

from kclient.errors import AuthenticationError, BrokerConnectionError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.cluster.backoff import Backoff
    from kclient.net.address import Address
    from kclient.net.connection import Connection

logger: logging.Logger = logging.getLogger("kclient.cluster")


class LinkState(Enum):
    """Where a link to a broker stands."""

    IDLE = auto()
    """Not connected; may connect at once."""
    CONNECTING = auto()
    """An attempt is under way."""
    READY = auto()
    """Connected, versions negotiated."""
    BACKOFF = auto()
    """The last attempt failed or the connection broke soon; wait before the next."""


_TRANSITIONS = {
    LinkState.IDLE: {LinkState.CONNECTING},
    LinkState.CONNECTING: {LinkState.READY, LinkState.BACKOFF, LinkState.IDLE},
    LinkState.READY: {LinkState.IDLE, LinkState.BACKOFF},
    LinkState.BACKOFF: {LinkState.CONNECTING},
}


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

    def _move(self, state: LinkState) -> None:
        if state not in _TRANSITIONS[self.state]:
            raise RuntimeError(f"link to {self.address}: {self.state.name} -> {state.name}")
        self.state = state

    def delay(self, now: float) -> float:
        """Seconds until an attempt to connect is allowed."""
        return max(self.retry_at - now, 0.0) if self.state is LinkState.BACKOFF else 0.0

    def connecting(self) -> None:
        """An attempt begins."""
        self._move(LinkState.CONNECTING)

    def connected(self) -> None:
        """The attempt succeeded."""
        self._move(LinkState.READY)
        self.failures = 0
        self.error = None

    def failed(self, error: BaseException, now: float) -> None:
        """The attempt failed, or the connection broke."""
        self._move(LinkState.BACKOFF)
        self.failures += 1
        self.error = error
        self.retry_at = now + self._backoff.seconds(self.failures)

    def abandoned(self) -> None:
        """The attempt was cancelled, or the connection was closed on purpose."""
        if self.state in {LinkState.CONNECTING, LinkState.READY}:
            self._move(LinkState.IDLE)


class BrokerLink:
    """A link with its connection: opens it on use, lets concurrent users share one attempt.

    Args:
        address: Where the broker listens.
        opener: Opens a connection and negotiates versions.
        backoff: Delay between failing attempts.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        address: Address,
        opener: Callable[[Address], Awaitable[Connection]],
        backoff: Backoff,
        clock: Callable[[], float],
    ) -> None:
        self.link: Link = Link(address, backoff)
        self.current: Connection | None = None
        self._opener = opener
        self._clock = clock
        self._lock = anyio.Lock()
        self._closed = False

    @property
    def address(self) -> Address:
        """Where the broker listens."""
        return self.link.address

    @property
    def usable(self) -> Connection | None:
        """The connection if it is open, else None."""
        self._notice_break()
        return self.current

    def available(self, now: float) -> bool:
        """Whether the broker is connected or an attempt to connect is allowed now."""
        return self.usable is not None or self.link.delay(now) <= 0

    async def get(self, *, wait: bool = True) -> Connection:
        """The open connection; opens one if need be.

        Args:
            wait: Wait out the back-off after a failure; else raise the last failure again.

        Raises:
            BrokerConnectionError: The broker cannot be reached.
        """
        found = self.usable
        if found is not None:
            return found
        async with self._lock:
            found = self.usable
            if found is not None:
                return found
            delay = self.link.delay(self._clock())
            if delay > 0:
                if not wait:
                    raise self._failed_before(self.link.error)
                await anyio.sleep(delay)
            return await self._open()

    async def _open(self) -> Connection:
        self.link.connecting()
        try:
            connection = await self._opener(self.address)
        except (KafkaError, OSError) as error:
            self.link.failed(error, self._clock())
            # a refusal is told here and nowhere else; the attempts that follow at intervals are for the curious
            refused = isinstance(error, AuthenticationError) and not error.retriable
            level = logging.WARNING if refused and self.link.failures == 1 else logging.DEBUG
            logger.log(level, "connecting to %s failed: %s", self.address, error)
            if isinstance(error, KafkaError):
                raise
            raise self._unreachable(error) from error
        except BaseException:  # cancelled, for one: says nothing about the broker, and must not leave the link opening
            self.link.abandoned()
            raise
        if self._closed:
            self.link.abandoned()
            await connection.aclose()
            raise BrokerConnectionError(f"The connection to {self.address} was closed", retriable=False)
        self.link.connected()
        self.current = connection
        return connection

    def _notice_break(self) -> None:
        """Drop a connection that broke since it was last looked at."""
        if self.current is not None and self.current.closed:
            error = self.current.failure("it broke")
            self.current = None
            # a broker that accepts and hangs up must not be asked in a tight loop
            self.link.failed(error, self._clock())

    def _failed_before(self, error: BaseException | None) -> KafkaError:
        """The last failure, for those who come during the back-off."""
        if isinstance(error, KafkaError) and not error.retriable:
            again = copy.copy(error)  # raising one object in several tasks mixes up their tracebacks
            again.__cause__ = error
            return again
        return self._unreachable(error)

    def _unreachable(self, error: BaseException | None) -> BrokerConnectionError:
        attempts = [] if error is None else [(str(self.address), error)]
        return BrokerConnectionError(f"Broker {self.address} cannot be reached", attempts=attempts)

    async def aclose(self) -> None:
        """Close the connection; no new one is opened."""
        self._closed = True
        connection, self.current = self.current, None
        self.link.abandoned()
        if connection is not None:
            await connection.aclose()
