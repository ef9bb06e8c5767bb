"""Keeps metadata fresh: asks a broker for them when they are due, or wanted, and puts the answer in."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio

from kclient.cluster import news
from kclient.cluster.controllers import check_broker, check_controller, metadata_of_controllers
from kclient.cluster.trial import Trial
from kclient.concurrency import Completion
from kclient.errors import AuthenticationError, BrokerConnectionError, ErrorCode, KafkaError, error_for
from kclient.protocol.messages import (
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kclient.cluster.links import Links
    from kclient.cluster.metadata import MetadataCache
    from kclient.concurrency import Supervisor
    from kclient.net.connection import Connection
    from kclient.protocol.message import ApiMessage

logger: logging.Logger = logging.getLogger("kclient.cluster")

T = TypeVar("T")

_WATCH: Final = 1.0
"""Seconds between looks at what brokers owe."""


class Requests(Protocol):
    """Asks brokers."""

    async def ask_any(self, ask: Callable[[Connection], Awaitable[T]], *, trial: Trial | None = None) -> T:
        """Ask something that any broker can answer; `trial` is told who is tried."""
        ...

    async def request_on(self, connection: Connection, message: ApiMessage, *, response: type[T]) -> T:
        """Send a request on a connection and wait for its answer."""
        ...


class MetadataUpdater:
    """Keeps the metadata of one client fresh.

    Args:
        cache: Holds them, and says when they are due.
        requests: Asks for them.
        links: The connections: those to brokers that left or moved are closed.
        supervisor: Closes them.
        clock: Monotonic time in seconds.
        allow_creation: Whether asking for an unknown topic may create it.
        controllers: Whether it is controllers that are asked, for each other.
        rebootstrap_after: Seconds after which brokers are forgotten that answer, but not with metadata (KIP-1102);
            None keeps them.
        on_update: Called after each answer or failure, and when topics have left the snapshot.
    """

    def __init__(
        self,
        cache: MetadataCache,
        requests: Requests,
        links: Links,
        *,
        supervisor: Supervisor,
        clock: Callable[[], float],
        allow_creation: bool,
        controllers: bool,
        rebootstrap_after: float | None,
        on_update: Callable[[], None],
    ) -> None:
        self.error: KafkaError | None = None
        """Why the last request failed; None if it was answered."""
        self.trial: Trial = Trial()
        """Whom the last request was sent to; nobody once it was answered."""
        self._cache = cache
        self._requests = requests
        self._links = links
        self._supervisor = supervisor
        self._clock = clock
        self._allow_creation = allow_creation
        self._controllers = controllers
        self._rebootstrap_after = rebootstrap_after
        self._on_update = on_update
        # bound to a loop by the task: blocking clients are made in threads that may run another one
        self._wake: Completion[None] = Completion()
        self._failing_since: float | None = None

    def wake(self) -> None:
        """Something is due."""
        self._wake.set_result(None)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Topics may leave the snapshot in the block; if any did, that is told."""
        before = self._cache.snapshot
        yield
        if self._cache.snapshot is not before:
            self._on_update()

    async def run(self) -> None:
        """Ask whenever that is due, for ever."""
        while True:
            now = self._clock()
            with self.leaving():
                self._cache.expire_topics(now)
            due = self._cache.next_update(now)
            if due > now:
                with anyio.move_on_after(min(due - now, _WATCH)):
                    await self._wake.wait()
                if self._wake.done:
                    self._wake = Completion()
                    # what was asked for may have been answered meanwhile
                if self._links.overdue():
                    self._cache.request_update()
                continue
            await self._update()

    async def _update(self) -> None:
        """Ask one broker for metadata; a failure is remembered for those who wait."""
        self._wake = Completion()
        cache = self._cache
        asked = cache.begin_update(self._clock())
        self.trial = Trial()
        try:
            response = await self._ask(asked)
        except KafkaError as error:
            self.error = error
            cache.fail_update(self._clock())
            self._rebootstrap_if_due()
            if error.retriable or not isinstance(error, AuthenticationError):  # the link has told of refusals
                logger.log(logging.DEBUG if cache.failures > 1 else logging.WARNING, "metadata: %s", error)
        else:
            self.error = None
            self.trial = Trial()  # who was slower than the one that answered is in nobody's way
            self._failing_since = None
            cache.update(response, self._clock(), asked=asked)
            for link, reason in self._links.drop_moved(cache.snapshot.nodes):
                news.tell(link.address, news.BrokerEvent.LEFT)
                self._supervisor.spawn(link.aclose, reason, name=f"close {link.address}")
        self._on_update()

    def _rebootstrap_if_due(self) -> None:
        """Forget brokers that answer, but not with metadata, for too long."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        if self._rebootstrap_after is not None and now - self._failing_since >= self._rebootstrap_after:
            self._failing_since = None
            self._cache.rebootstrap()

    async def _ask(self, topics: list[str] | None) -> MetadataResponse:
        """Ask for topics, all if None, and for those apart that asking is to create."""
        if self._controllers:
            return await self._requests.ask_any(partial(self._ask_controller, topics), trial=self.trial)
        create = self._cache.to_create() if self._allow_creation else set[str]()
        if topics is not None:
            create.intersection_update(topics)
        requests: list[MetadataRequest] = []
        if topics is None or len(create) < len(topics) or not topics:
            requests.append(_metadata_request(None if topics is None else [t for t in topics if t not in create]))
        if create:
            requests.append(_metadata_request(sorted(create), create=True))

        async def ask(connection: Connection) -> MetadataResponse:
            check_broker(connection)
            send = self._requests.request_on
            answers = [await send(connection, request, response=MetadataResponse) for request in requests]
            found = answers[-1]
            for answer in answers:
                self._check(answer, connection)
            found.topics = [topic for answer in answers for topic in answer.topics]
            return found

        return await self._requests.ask_any(ask, trial=self.trial)

    async def _ask_controller(self, topics: list[str] | None, connection: Connection) -> MetadataResponse:
        check_controller(connection)
        send = partial(self._requests.request_on, connection, response=DescribeClusterResponse)
        found = await metadata_of_controllers(topics, send)
        self._check(found, connection)
        return found

    def _check(self, response: MetadataResponse, connection: Connection) -> None:
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self._rebootstrap_after is not None:
            self._cache.rebootstrap()
        if response.error_code:
            raise error_for(response.error_code)
        if not response.brokers:
            raise BrokerConnectionError(f"{connection.address} knows of no broker yet")


def _metadata_request(topics: list[str] | None, *, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=create,
    )
