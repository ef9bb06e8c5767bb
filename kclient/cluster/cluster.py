"""The cluster as producer, consumer and admin client see it: metadata kept fresh, connections, requests.

One `Cluster` belongs to one client object, which owns the supervisor that the metadata task lives under.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from kclient.arguments import in_seconds
from kclient.cluster import news
from kclient.cluster.advertised import check_advertised
from kclient.cluster.asking import first_answer
from kclient.cluster.backoff import Backoff
from kclient.cluster.bootstrap import cluster_addresses
from kclient.cluster.connections import SILENCE, BrokerLink
from kclient.cluster.coordinators import GROUP, coordinator_in, coordinator_request
from kclient.cluster.links import Links, nobody_answered
from kclient.cluster.metadata import ClusterSnapshot, MetadataCache
from kclient.cluster.metadata_updater import MetadataUpdater
from kclient.cluster.trial import Trial
from kclient.cluster.versions import version_for
from kclient.concurrency import Completion
from kclient.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClosedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from kclient.metrics.traffic import Traffic
from kclient.metrics.windows import MetricWindows
from kclient.net.address import Address
from kclient.net.connection import Connection
from kclient.net.sasl.login import login_for
from kclient.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from kclient.cluster.config import ClusterConfig
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.protocol.message import ApiMessage
    from kclient.types import Node

T = TypeVar("T")

PATIENCE: Final = 1.0
"""Seconds after which another broker is asked as well, where any broker can answer."""


class Cluster:
    """Metadata, connections and requests of one client.

    Args:
        config: The client's settings.
        supervisor: Owner of the metadata task.
        allow_auto_topic_creation: Whether asking for an unknown topic may create it, where somebody wants it to be
            there (see `TopicInterest`).
        metadata_max_idle: Seconds after which a topic that nobody used is forgotten; None keeps all.
        in_use: The topics that a call waits for, or that records wait to be sent to: they are not forgotten.
        controllers: Whether it is controllers that are talked to, instead of brokers (KIP-919).
        patience: How many seconds brokers may keep a request by right, by channel; none at all on the others.
        clock: Monotonic time in seconds.
        traffic: Counts requests and connections, for metrics.
    """

    def __init__(
        self,
        config: ClusterConfig,
        supervisor: Supervisor,
        *,
        allow_auto_topic_creation: bool = True,
        controllers: bool = False,
        metadata_max_idle: float | None = None,
        in_use: Callable[[], Collection[str]] = tuple,
        patience: Mapping[str, float] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        traffic: Traffic | None = None,
    ) -> None:
        self.config = config
        self.traffic: Traffic = Traffic(MetricWindows(clock)) if traffic is None else traffic
        self.controllers: bool = controllers
        self.clock = clock
        self.retry_backoff: Backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.metadata: MetadataCache = MetadataCache(
            max_age=config.metadata_max_age_ms / 1000,
            max_idle=metadata_max_idle,
            backoff=self.retry_backoff,
            in_use=in_use,
        )
        self.listeners: list[Callable[[], None]] = []
        """Called in the loop's thread after each answer with metadata, and when topics were forgotten."""
        self.on_connected: list[Callable[[Connection], None]] = []
        """Called with each connection that was made, in the loop."""
        self._supervisor = supervisor
        self._patience = patience
        self._reconnect_backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._login = login_for(config.sasl_credentials, supervisor)
        bootstrap = cluster_addresses(config)
        self._given = frozenset(bootstrap)
        self._schemes = frozenset(address.scheme for address in bootstrap)
        self._links = Links(bootstrap, self._new_link)
        self._rebootstraps = config.metadata_recovery_strategy == "rebootstrap"
        self._updater = MetadataUpdater(
            self.metadata,
            self,
            self._links,
            supervisor=supervisor,
            clock=clock,
            allow_creation=allow_auto_topic_creation,
            controllers=controllers,
            rebootstrap_after=config.metadata_recovery_rebootstrap_trigger_ms / 1000 if self._rebootstraps else None,
            on_update=self._announce,
        )
        # bound to a loop by those who wait: blocking clients are made in threads that may run another one
        self._news: Completion[None] = Completion()
        self._started = False
        self._closed = False
        self._tasks: list[TaskHandle] = []

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start keeping metadata fresh. Returns at once: the first call that needs a broker connects."""
        if self._started:
            return
        self._started = True
        self._tasks.append(self._supervisor.spawn(self._keep_fresh, name="metadata"))
        if news.anybody_listens():
            self._tasks.append(self._supervisor.spawn(self._watch, name="silent brokers"))

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._announce()
        # all of them before it waits for any: the wait may be cut off
        connections = [link.close(ClosedError("The client was closed")) for link in self._links.take_all()]
        for connection in connections:
            if connection is not None:
                await connection.aclose()

    # ------------------------------------------------------------------ metadata

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What is known of the cluster now; immutable, may be read from any thread."""
        return self.metadata.snapshot

    @property
    def error(self) -> KafkaError | None:
        """Why the last request for metadata failed; None if it was answered."""
        return self._updater.error

    @property
    def trouble(self) -> str:
        """What keeps metadata from coming: why the last request failed, or who does not answer; empty for nothing."""
        if self.error is not None:
            return str(self.error)
        return f"tried {self._updater.trial}" if self._updater.trial else ""

    def silence(self, call: float) -> str:
        """Who has owed something for most of a call, or for long; empty for nobody.

        Channels where brokers keep requests by right do not count.

        Args:
            call: How long the call took, in seconds.
        """
        long = min(call / 2, SILENCE)
        silent = {
            str(link.address): link.reason
            for channel, link in self._links.awaited()
            if link.waiting > long and not self._patience.get(channel)
        }
        return "; ".join(f"{address}: {reason}" for address, reason in silent.items())

    def unanswered(self, node_ids: Iterable[int], channel: str = "") -> str:
        """Brokers that were asked and have not answered, each with the reason, as far as that is known.

        Args:
            node_ids: The brokers.
            channel: Where they were asked.
        """
        told = []
        for node_id in sorted(node_ids):
            link = self.link(node_id, channel)
            told.append(f"node {node_id}{f' at {link.address}: {link.reason}' if link is not None else ': no answer'}")
        return "; ".join(told)

    def request_update(self, *, urgent: bool = False) -> None:
        """Have the metadata fetched anew in the background."""
        self.metadata.request_update(urgent=urgent)
        self._updater.wake()

    def track(self, topics: Iterable[str], *, create: bool = True) -> None:
        """Add topics of interest; new ones are fetched in the background.

        Args:
            topics: Their names.
            create: Whether those that are missing are created (if client and broker allow that) until they were found.
        """
        if self.metadata.track(topics, self.clock(), create=create):
            self._updater.wake()

    def ask_anew(self, topics: Iterable[str]) -> None:
        """Forget that topics of interest were refused, and have those asked for again in the background.

        Else a call would raise what an earlier one was told, though access has been granted since.
        """
        if self.metadata.ask_anew(topics, self.clock()):
            self._updater.wake()

    def track_only(self, topics: Iterable[str], *, create: bool = True) -> None:
        """As `track`; all other topics are of interest no more, and leave the snapshot."""
        with self._updater.leaving():
            if self.metadata.track_only(topics, self.clock(), create=create):
                self._updater.wake()

    @contextmanager
    def looking_at(self, topics: Iterable[str]) -> Iterator[None]:
        """Topics that are of interest for the length of the block; they are not created.

        Use it with `refresh`, or with `request_update` and `wait_until`.
        """
        looked_at = list(topics)
        self.metadata.look_at(looked_at)
        try:
            yield
        finally:
            with self._updater.leaving():
                self.metadata.look_away(looked_at)

    async def refresh(
        self,
        topics: Iterable[str] = (),
        *,
        all_topics: bool = False,
        timeout: float | None = None,
    ) -> ClusterSnapshot:
        """Fetch the metadata now and return them.

        Args:
            topics: Topics to describe beside those of interest.
            all_topics: From now on, every topic of the cluster is of interest.
            timeout: Seconds; the default is `default.api.timeout.ms`.

        Raises:
            KafkaTimeoutError: No broker answered in time; the text names what was tried.
        """
        cache = self.metadata
        cache.all_topics = cache.all_topics or all_topics
        with self.looking_at(topics):
            wanted = cache.begun + 1  # an answer to what was asked before may be older than this call
            self.request_update(urgent=True)
            return await self.wait_until(lambda _: cache.answered >= wanted, timeout=timeout)

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
            ClosedError: The client was closed meanwhile.
            Exception: The failure of the client's tasks.
        """
        self._check_open()
        seconds = self.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        with anyio.move_on_after(seconds):
            while not met(self.metadata.snapshot):
                self._check_open()
                self._supervisor.check()
                if self.error is not None and not self.error.retriable:
                    raise self.error
                await self._news.wait()
        if met(self.metadata.snapshot):
            return self.metadata.snapshot
        reason = f": {self.trouble}" if self.trouble else ""
        raise KafkaTimeoutError(f"{what} did not arrive within {in_seconds(seconds)}{reason}") from self.error

    async def _keep_fresh(self) -> None:
        try:
            await self._updater.run()
        finally:
            # also where the client failed or the loop ends: nothing is sent any more, and nobody waits in vain
            for link in self._links:
                link.hang_up()
            self._news.set_result(None)

    def _announce(self) -> None:
        told, self._news = self._news, Completion()
        told.set_result(None)
        for listener in self.listeners:
            listener()

    # ------------------------------------------------------------------ connections

    async def _watch(self) -> None:
        """Tell of brokers that do not answer."""
        silence = news.Silence()
        while True:
            links = [(link, self._patience.get(channel, 0.0)) for channel, link in self._links.awaited()]
            for link, event in silence.look(links):
                news.tell(link.address, event, bootstrap=link.bootstrap)
            await anyio.sleep(news.LOOK_S)

    def addresses(self) -> dict[int, Address]:
        """Where the brokers listen that are known, by id."""
        return {node.id: Address.of_broker(node.host, node.port) for node in self.snapshot.nodes.values()}

    def link(self, node_id: int, channel: str = "") -> BrokerLink | None:
        """The link to a broker, made on first use; None if the broker is unknown."""
        node = self.metadata.snapshot.nodes.get(node_id)
        return None if node is None else self._links.to(node, channel)

    def _new_link(self, address: Address) -> BrokerLink:
        return BrokerLink(address, self._open, self._reconnect_backoff, self.clock, self._supervisor)

    async def connection(
        self, node_id: int | None = None, channel: str = "", *, trial: Trial | None = None
    ) -> Connection:
        """An open connection.

        Args:
            node_id: The broker; None takes any, preferring those that are connected and answer.
            channel: Traffic on different channels does not wait for each other.
            trial: Is told what is tried.

        Raises:
            BrokerConnectionError: The broker cannot be reached, or is not known even after new metadata came.
        """
        if node_id is None:
            return await self.ask_any(_itself, channel=channel, trial=trial)
        self._check_open()
        link = self.link(node_id, channel)
        if link is None:  # who named the broker may know more than the metadata: a group's coordinator, say
            self.request_update()
            await self._news.wait()
            self._check_open()
            link = self.link(node_id, channel)
        if link is None:
            raise BrokerConnectionError(f"No broker with id {node_id} is known")
        try:
            with (Trial() if trial is None else trial).asking(link.address):
                return await link.get()
        except KafkaError:
            self.request_update()
            raise

    async def ask_any(
        self, ask: Callable[[Connection], Awaitable[T]], *, channel: str = "", trial: Trial | None = None
    ) -> T:
        """Ask something that any broker can answer: the least loaded first, the bootstrap servers last.

        Another broker is asked when one fails, and also when it does not answer for a while; the first answer counts.
        So it must not matter whether several carry it out.

        Args:
            ask: Asks on a connection.
            channel: Which connections to use.
            trial: Is told what is tried.

        Raises:
            BrokerConnectionError: No broker answered; it names each that was tried, and why it failed.
            KafkaError: What `ask` raised that is not retriable.
        """
        self._check_open()
        nodes = self.metadata.snapshot.nodes
        bootstrap = not nodes or self._rebootstraps
        told = Trial() if trial is None else trial

        async def through(link: BrokerLink) -> T:
            with told.asking(link.address):
                return await ask(await link.get(wait=False))

        links = self._links.to_ask(nodes.values(), channel, bootstrap=bootstrap)
        return await first_answer(
            links, through, patience=PATIENCE, nobody=nobody_answered, supervisor=self._supervisor
        )

    async def _open(self, address: Address) -> Connection:
        if address not in self._given:
            check_advertised(address, self._schemes)
        traffic = self.traffic
        try:
            opened = await Connection.open(
                address,
                self.config,
                supervisor=self._supervisor,
                login=self._login,
                traffic=traffic.broker(address),
            )
        except AuthenticationError:
            traffic.refused.add()
            raise
        traffic.connected(lasting=opened.session_lasts)
        opened.on_close(self._disconnected)
        for connected in self.on_connected:
            connected(opened)
        return opened

    def _disconnected(self, connection: Connection) -> None:
        """A connection ended: if the broker is gone or hung, others lead what it led."""
        self.traffic.closed.add()
        if connection.lost:
            self.request_update()

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
            node_id: The broker to ask; None asks any, several if need be, see `ask_any`.
            message: The request.
            timeout: Seconds to wait for the answer; the default is `request.timeout.ms`.
            max_version: Highest version to use.
            channel: Which connection to the broker to use.

        Raises:
            BrokerConnectionError: The broker could not be reached, or the connection broke.
            KafkaTimeoutError: No answer in time.
            UnsupportedVersionError: The broker does not speak a version that we do.
        """

        async def ask(connection: Connection) -> Any:
            return await self.request_on(connection, message, response=object, timeout=timeout, max_version=max_version)

        if node_id is None:
            return await self.ask_any(ask, channel=channel)
        return await ask(await self.connection(node_id, channel))

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

    async def find_coordinator(self, key: str, key_type: int = GROUP, *, trial: Trial | None = None) -> Node:
        """The broker that coordinates a group or a transactional id.

        Raises:
            KafkaError: There is none (retriable while there may be one soon), or the group must not be used.
        """

        async def ask(connection: Connection) -> Node:
            version = version_for(connection, FindCoordinatorRequest)
            request = coordinator_request(key, key_type, version)
            return coordinator_in(await self.request_on(connection, request, response=FindCoordinatorResponse))

        return await self.ask_any(ask, trial=trial)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The client was closed")
        if not self._started:
            raise IllegalStateError("The client was not started; use `async with`")


async def _itself(connection: Connection) -> Connection:
    return connection
