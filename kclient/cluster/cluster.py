"""The cluster as producer, consumer and admin client see it: metadata kept fresh, connections, requests.

One `Cluster` belongs to one client object, which owns the supervisor that the metadata task lives under.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from kclient.arguments import in_seconds
from kclient.cluster.backoff import Backoff
from kclient.cluster.bootstrap import cluster_addresses
from kclient.cluster.connections import BrokerLink
from kclient.cluster.metadata import ClusterSnapshot, MetadataCache
from kclient.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClosedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NoBrokersAvailableError,
    UnsupportedVersionError,
    error_for,
)
from kclient.net.address import Address
from kclient.net.connection import Connection
from kclient.net.sasl.login import login_for
from kclient.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kclient.protocol.registry import negotiate
from kclient.types import Node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kclient.cluster.config import ClusterConfig
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.protocol.message import ApiMessage

logger: logging.Logger = logging.getLogger("kclient.cluster")

T = TypeVar("T")

GROUP: Final = 0
"""Coordinator type of consumer groups."""
TRANSACTION: Final = 1
"""Coordinator type of transactional ids."""


class Cluster:
    """Metadata, connections and requests of one client.

    Args:
        config: The client's settings.
        supervisor: Owner of the metadata task.
        allow_auto_topic_creation: Whether asking for an unknown topic may create it.
        metadata_max_idle: Seconds after which a topic that nobody used is forgotten; None keeps all.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        config: ClusterConfig,
        supervisor: Supervisor,
        *,
        allow_auto_topic_creation: bool = True,
        metadata_max_idle: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock = clock
        self.retry_backoff: Backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.metadata: MetadataCache = MetadataCache(
            max_age=config.metadata_max_age_ms / 1000,
            max_idle=metadata_max_idle,
            backoff=self.retry_backoff,
        )
        self.listeners: list[Callable[[], None]] = []
        """Called in the loop's thread after each answer with metadata."""
        self._supervisor = supervisor
        self._allow_creation = allow_auto_topic_creation
        self._reconnect_backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._login = login_for(config.sasl_credentials, supervisor)
        self._links: dict[tuple[int, str], BrokerLink] = {}
        self._bootstrap = [self._new_link(address) for address in cluster_addresses(config)]
        self._wake = anyio.Event()
        self._news = anyio.Event()
        self._error: KafkaError | None = None
        self._failing_since: float | None = None
        self._started = False
        self._closed = False
        self._task: TaskHandle | None = None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start keeping metadata fresh. Returns at once: the first call that needs a broker connects."""
        if self._started:
            return
        self._started = True
        self._task = self._supervisor.spawn(self._keep_fresh, name="metadata")

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._announce()
        links = [*self._links.values(), *self._bootstrap]
        self._links.clear()
        for link in links:
            await link.aclose()

    # ------------------------------------------------------------------ metadata

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What is known of the cluster now; immutable, may be read from any thread."""
        return self.metadata.snapshot

    @property
    def error(self) -> KafkaError | None:
        """Why the last request for metadata failed; None if it was answered."""
        return self._error

    def request_update(self, *, urgent: bool = False) -> None:
        """Have the metadata fetched anew in the background."""
        self.metadata.request_update(urgent=urgent)
        self._wake.set()

    def track(self, topics: Iterable[str]) -> None:
        """Add topics of interest; new ones are fetched in the background."""
        if self.metadata.track(topics, self.clock()):
            self._wake.set()

    async def refresh(
        self,
        topics: Iterable[str] | None = None,
        *,
        all_topics: bool = False,
        timeout: float | None = None,
    ) -> ClusterSnapshot:
        """Fetch the metadata now and return them.

        Args:
            topics: Topics to add to those of interest.
            all_topics: From now on, every topic of the cluster is of interest.
            timeout: Seconds; the default is `default.api.timeout.ms`.

        Raises:
            KafkaTimeoutError: No broker answered in time; the text names what was tried.
        """
        if topics is not None:
            self.metadata.track(topics, self.clock())
        self.metadata.all_topics = self.metadata.all_topics or all_topics
        before = self.metadata.version
        self.request_update(urgent=True)
        return await self.wait_until(lambda snapshot: self.metadata.version > before, timeout=timeout)

    async def wait_until(
        self, met: Callable[[ClusterSnapshot], bool], *, timeout: float | None = None, what: str = "Metadata"
    ) -> ClusterSnapshot:
        """Wait until the metadata meet a condition.

        Args:
            met: The condition; it may raise to end the wait.
            timeout: Seconds; the default is `default.api.timeout.ms`.
            what: What is waited for, as the start of the error's sentence.

        Raises:
            KafkaTimeoutError: The condition was not met in time.
        """
        self._check_open()
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        with anyio.move_on_after(seconds):
            while not met(self.metadata.snapshot):
                self._check_open()
                if self._error is not None and not self._error.retriable:
                    raise self._error
                await self._news.wait()
        if met(self.metadata.snapshot):
            return self.metadata.snapshot
        reason = f": {self._error}" if self._error is not None else ""
        raise KafkaTimeoutError(f"{what} did not arrive within {in_seconds(seconds)}{reason}") from self._error

    async def _keep_fresh(self) -> None:
        while not self._closed:
            now = self.clock()
            self.metadata.expire_topics(now)
            due = self.metadata.next_update(now)
            if due > now:
                with anyio.move_on_after(due - now):
                    await self._wake.wait()
                if self._wake.is_set():
                    self._wake = anyio.Event()
                    # what was asked for may have been answered meanwhile
                continue
            await self._update()

    async def _update(self) -> None:
        """Ask one broker for metadata; a failure is remembered for those who wait."""
        self._wake = anyio.Event()
        cache = self.metadata
        cache.begin_update(self.clock())
        asked = None if cache.all_topics else cache.topics
        try:
            response = await self._ask_metadata(asked)
        except KafkaError as error:
            self._error = error
            cache.fail_update(self.clock())
            self._rebootstrap_if_due()
            if error.retriable or not isinstance(error, AuthenticationError):  # the link has told of refusals
                logger.log(logging.DEBUG if cache.failures > 1 else logging.WARNING, "metadata: %s", error)
        else:
            self._error = None
            self._failing_since = None
            cache.update(response, self.clock(), asked=asked)
            self._drop_moved_links()
        self._announce()

    def _rebootstrap_if_due(self) -> None:
        """Forget brokers that answer, but not with metadata, for too long (KIP-1102)."""
        now = self.clock()
        if self._failing_since is None:
            self._failing_since = now
        trigger = self.config.metadata_recovery_rebootstrap_trigger_ms / 1000
        if self.config.metadata_recovery_strategy == "rebootstrap" and now - self._failing_since >= trigger:
            self._failing_since = None
            self.metadata.rebootstrap()

    async def _ask_metadata(self, topics: list[str] | None) -> MetadataResponse:
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=self._allow_creation,
        )
        connection = await self._any_connection()
        response = await self.request_on(connection, request, response=MetadataResponse)
        if (
            response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
            and self.config.metadata_recovery_strategy == "rebootstrap"
        ):
            self.metadata.rebootstrap()
        if response.error_code:
            raise error_for(response.error_code)
        if not response.brokers:
            raise BrokerConnectionError(f"{connection.address} knows of no broker yet")
        return response

    def _announce(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
        for listener in self.listeners:
            listener()

    def _drop_moved_links(self) -> None:
        """Forget connections to brokers that left or moved to another address."""
        nodes = self.metadata.snapshot.nodes
        for key, link in list(self._links.items()):
            node = nodes.get(key[0])
            if node is None or Address.of_broker(node.host, node.port) != link.address:
                del self._links[key]
                self._supervisor.spawn(link.aclose, name=f"close {link.address}")

    # ------------------------------------------------------------------ connections

    def link(self, node_id: int, channel: str = "") -> BrokerLink | None:
        """The link to a broker, made on first use; None if the broker is unknown."""
        found = self._links.get((node_id, channel))
        if found is not None:
            return found
        node = self.metadata.snapshot.nodes.get(node_id)
        if node is None:
            return None
        address = Address.of_broker(node.host, node.port)
        made = (self._take_bootstrap(address) if not channel else None) or self._new_link(address)
        self._links[node_id, channel] = made
        return made

    def _new_link(self, address: Address) -> BrokerLink:
        return BrokerLink(address, self._open, self._reconnect_backoff, self.clock)

    def _take_bootstrap(self, address: Address) -> BrokerLink | None:
        """A bootstrap link that is connected to this address serves as the broker's: one connection less."""
        for index, link in enumerate(self._bootstrap):
            if link.address == address and link.usable is not None:
                self._bootstrap[index] = self._new_link(address)
                return link
        return None

    async def connection(self, node_id: int | None = None, channel: str = "") -> Connection:
        """An open connection.

        Args:
            node_id: The broker; None takes any, preferring one that is connected.
            channel: Traffic on different channels does not wait for each other.

        Raises:
            BrokerConnectionError: The broker is unknown or cannot be reached.
        """
        self._check_open()
        if node_id is None:
            return await self._any_connection(channel)
        link = self.link(node_id, channel)
        if link is None:
            self.request_update()
            raise BrokerConnectionError(f"No broker with id {node_id} is known")
        try:
            return await link.get()
        except KafkaError:
            self.request_update()
            raise

    async def _any_connection(self, channel: str = "") -> Connection:
        """A connection to whichever broker answers: connected ones first, the bootstrap servers last."""
        nodes = list(self.metadata.snapshot.nodes)
        random.shuffle(nodes)
        links = [link for node in nodes if (link := self.link(node, channel)) is not None]
        links.sort(key=lambda link: link.usable is None)
        if not links or self.config.metadata_recovery_strategy == "rebootstrap":
            known = {link.address for link in links}
            links += [link for link in self._bootstrap if link.address not in known]
        attempts: list[tuple[str, BaseException]] = []
        for link in links:
            try:
                return await link.get(wait=False)
            except KafkaError as error:
                if not error.retriable:  # trying the next address, or again, would not help
                    raise
                attempts += _attempts(link, error)
        raise NoBrokersAvailableError("No broker could be reached", attempts=attempts)

    async def _open(self, address: Address) -> Connection:
        return await Connection.open(address, self.config, supervisor=self._supervisor, login=self._login)

    # ------------------------------------------------------------------ requests

    async def request(
        self,
        node_id: int | None,
        message: ApiMessage,
        *,
        timeout: float | None = None,
        max_version: int | None = None,
        channel: str = "",
    ) -> Any:
        """Send a request and wait for its answer, an object of the message's response class.

        Args:
            node_id: The broker to ask; None takes any.
            message: The request.
            timeout: Seconds to wait for the answer; the default is `request.timeout.ms`.
            max_version: Highest version to use.
            channel: Which connection to the broker to use.

        Raises:
            BrokerConnectionError: The broker could not be reached, or the connection broke.
            KafkaTimeoutError: No answer in time.
            UnsupportedVersionError: The broker does not speak a version that we do.
        """
        connection = await self.connection(node_id, channel)
        try:
            return await self.request_on(connection, message, response=object, timeout=timeout, max_version=max_version)
        except BrokerConnectionError:
            self.request_update()
            raise

    async def request_on(
        self,
        connection: Connection,
        message: ApiMessage,
        *,
        response: type[T],
        timeout: float | None = None,
        max_version: int | None = None,
    ) -> T:
        """As `request`, on a connection that is at hand. `response` names the class, for type checkers."""
        version = version_for(connection, type(message), max_version)
        seconds = self.config.request_timeout_ms / 1000 if timeout is None else timeout
        answer: T = await connection.request(message, version, timeout=seconds)
        return answer

    async def find_coordinator(self, key: str, key_type: int = GROUP, *, timeout: float | None = None) -> Node:
        """The broker that coordinates a group or a transactional id; retried until there is one.

        Raises:
            KafkaTimeoutError: No coordinator could be found in time.
            GroupAuthorizationError: The group must not be used.
        """

        async def ask() -> Node:
            connection = await self.connection()
            version = version_for(connection, FindCoordinatorRequest)
            request = FindCoordinatorRequest(key_type=key_type)
            if version >= 4:
                request.coordinator_keys = [key]
            else:
                request.key = key
            answer = await self.request_on(connection, request, response=FindCoordinatorResponse)
            return _coordinator(answer, version)

        return await self.retrying(ask, timeout=timeout, what=f"Finding the coordinator of {key!r}")

    async def retrying(
        self, operation: Callable[[], Awaitable[T]], *, timeout: float | None = None, what: str = "The request"
    ) -> T:
        """Call an operation until it succeeds or fails for good.

        Args:
            operation: What to do; retriable errors lead to another attempt after a back-off.
            timeout: Seconds for all attempts; the default is `default.api.timeout.ms`.
            what: Name of the operation, as the start of the error's sentence.

        Raises:
            KafkaTimeoutError: No attempt succeeded in time; its cause is the last error.
        """
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        last: KafkaError | None = None
        attempts = 0
        with anyio.move_on_after(seconds):
            while True:
                try:
                    return await operation()
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    if error.refresh_metadata:
                        self.request_update()
                    last = error
                attempts += 1
                await anyio.sleep(self.retry_backoff.seconds(attempts))
        last = last or self._error  # an attempt that was still waiting for metadata raised nothing
        reason = f": {last}" if last is not None else ""
        raise KafkaTimeoutError(f"{what} did not succeed within {in_seconds(seconds)}{reason}") from last

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The client was closed")
        if not self._started:
            raise IllegalStateError("The client was not started; use `async with`")


def version_for(connection: Connection, request: type[ApiMessage], max_version: int | None = None) -> int:
    """The version of a request to use on a connection.

    Raises:
        UnsupportedVersionError: There is none that both sides speak.
    """
    assert request.API_KEY is not None
    low, high = request.VERSIONS
    ours = (low, high if max_version is None else min(high, max_version))
    try:
        return negotiate(request.API_KEY, connection.api_versions, ours)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{connection.address}: {error.message}") from error


def _coordinator(answer: FindCoordinatorResponse, version: int) -> Node:
    found: Any = answer.coordinators[0] if version >= 4 else answer
    if found.error_code:
        raise error_for(found.error_code, found.error_message or None)
    return Node(found.node_id, found.host, found.port)


def _attempts(link: BrokerLink, error: KafkaError) -> list[tuple[str, BaseException]]:
    """The addresses that were tried, with the cause underneath if the error only names the address again."""
    return getattr(error, "attempts", None) or [(str(link.address), error)]
