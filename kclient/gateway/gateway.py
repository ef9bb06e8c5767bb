"""The gateway: a server that speaks Kafka's protocol and keeps the messages in HTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, ParamSpec, Self
from weakref import WeakMethod

import anyio

from kclient.arguments import check_timeout, shown
from kclient.concurrency import Completion, LoopHandle, Supervisor, TaskHandle, to_the_end
from kclient.errors import ClosedError, ConfigError, IllegalStateError
from kclient.gateway.assembly import Assembly
from kclient.gateway.config import BrokerConfig
from kclient.gateway.contexts import Advertised
from kclient.gateway.draining import LEAST_S, Draining
from kclient.gateway.gateway_pages import GatewayPages, page_address
from kclient.gateway.listening import advertised, listen, listen_as
from kclient.gateway.local import Presence, local_address
from kclient.gateway.mapping import mapping_for
from kclient.gateway.metrics import GatewayMetric
from kclient.gateway.metrics_server import check_prometheus
from kclient.gateway.participation import Participation
from kclient.gateway.reloading import Reloaded
from kclient.gateway.rows.gateways import Endpoint
from kclient.gateway.security.authorizers import authorizer_of
from kclient.gateway.security.delegation_tokens import token_settings
from kclient.gateway.security.listeners import listeners_of
from kclient.gateway.security.login import login_handler
from kclient.gateway.starting import StartSettings, make_server, run_background, take_part
from kclient.gateway.stores import MIN_FREE_BYTES, opened_elsewhere, own_store
from kclient.htp.port import LentStore, Store
from kclient.memory_ledger import MemoryPart, process_memory
from kclient.net.address import Address, parse_address
from kclient.net.server import Server
from kclient.net.streams import ByteStream
from kclient.unclosed import finalizer, warn_unclosed

logger: logging.Logger = logging.getLogger("kclient.gateway")

P = ParamSpec("P")

LISTEN: Final = "127.0.0.1:9092"
"""Where a gateway listens, unless it is told."""
DRAIN_S: Final = 10.0
"""How long closing may take, in seconds."""


class Gateway:
    """A Kafka-compatible server over HTP, for asyncio and trio: `async with Gateway() as gateway: ...`.

    Args:
        htp: The store: `embedded:DIRECTORY` (with options: see `open_store`), `memory:NAME`, or a `Store`, which then
            is opened and closed by whoever made it.
        listen: Address to accept TCP connections on, `host:port` (port 0 for any free one), or None for none. The
            setting `listeners` takes its place, and that of `advertise`; it names listeners where clients log in.
        advertise: The address that clients are told, if it is another: `host:port`.
        durability: `"synced"` (an append is on disk before it is visible and acknowledged with `acks=all`) or
            `"written"` (the operating system has it: Kafka's own default). A `Store` has its own already.
        mapping: How new topics lie in HTP: `"domain"` (a topic is a domain, a partition a topic in it), `"multilevel"`
            (a partition is a topic `NAME/PARTITION` in one domain for all), `"virtual"` (a topic is a topic in one
            domain for all, and its partitions share that) or `"broker"` (a topic is a topic in one domain for all, a
            partition is one of the brokers that it is bound to). Topics that are there stay as they were created.
        brokers: How many brokers HTP has, 1 to 256; the same as `?brokers=N` at the end of `htp`. If None, as many as
            the store has had, at first one. They may become more, and not fewer than hold topics. A topic of mapping
            `"broker"` has a partition at each of them at most; those of other mappings are at the first.
        alone: Whether other processes are kept from serving the same `embedded:` directory. Where `listen` is None they
            always are: their clients could not reach this gateway.
        config: Kafka's broker settings by their names, for instance `{"num.partitions": 4}`.

    Raises:
        ConfigError: A setting or an address is wrong.
        NotYetSupportedError: The store is not there yet.

    The loggers are `kclient.gateway` (start and end) and below it `server` (connections), `log` (partitions),
    `topics`, `groups`, `config`, `retention`, `metadata`, `produce` and `fetch`; `kclient.net.server` tells of
    connections that sent garbage.
    """

    def __init__(
        self,
        htp: str | Store = "embedded:./data",
        listen: str | None = LISTEN,
        advertise: str | None = None,
        *,
        durability: str = "synced",
        mapping: str = "domain",
        brokers: int | None = None,
        alone: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = BrokerConfig(config)
        self._mapping = mapping_for(mapping)
        self._listeners = listeners_of(self._config)
        self._authorizer = authorizer_of(self._config)
        self._token_settings = token_settings(self._config)
        self._config.tell_without_effect()
        if self._listeners and (listen not in (None, LISTEN) or advertise is not None):
            raise ConfigError(
                "the setting listeners takes the place of listen and advertise (--listen, --advertise): give the "
                "addresses there, and in advertised.listeners"
            )
        self._listen = parse_address(listen) if listen is not None and not self._listeners else None
        self._advertise = parse_address(advertise) if advertise is not None else None
        least, listens = self._config.get_int(MIN_FREE_BYTES), bool(self._listeners) or listen is not None
        self._owned: Store | None = None
        if isinstance(htp, str):
            self._owned = own_store(htp, durability, brokers, least, alone=alone, listens=listens)
        self._store: Store = self._owned or opened_elsewhere(htp, durability, brokers, least, alone=alone)
        self._htp = htp if isinstance(htp, str) else repr(htp)
        local = local_address(htp) if isinstance(htp, str) else None
        self._presence = Presence(local) if local is not None else None
        self._supervisor = Supervisor("gateway", on_failure=_weakly(self._failed))
        self._parts: Assembly | None = None
        self._server: Server | None = None
        self._expects_metrics = False
        """Whether metrics will be served, which `serve_metrics` has not heard of yet."""
        self._pages: GatewayPages | None = None
        """Metrics and health, once somebody has asked for them."""
        self._memory: MemoryPart | None = None
        """What it holds, of what all of the process may."""
        self._bound: Advertised | None = None
        self._bound_to: Address | None = None
        self._advertised: list[Advertised] = []
        """What clients of each listener are told."""
        self._unwatch: Callable[[], None] | None = None
        self._background: list[TaskHandle] = []
        """Tasks that use partitions of their own accord: they end before the partitions do."""
        self._participation: Participation | None = None
        """In serving the store."""
        self._ended: anyio.Event | None = None
        self._pid = 0
        """Of the process that started it and has not been warned yet; 0 if there is none."""
        self._started: Completion[None] | None = None
        """While it starts: when that is over, with whatever had to be closed again."""
        self._starting: anyio.CancelScope | None = None
        """Around the part of the start that is under way; `close` ends it."""
        self._close_asked = False
        """Nothing begins any more."""
        self._draining: anyio.CancelScope | None = None
        """Around what closing waits for; another `close`, whose time is over, ends it."""
        self._drained = False
        self._through: Completion[None] | None = None
        """While somebody closes it: when that is over."""
        self._closed = False

    def __repr__(self) -> str:
        htp = getattr(self, "_htp", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<Gateway {htp} on {self._bound_to or 'no port'}>" if htp is not None else "<Gateway, not made>"

    @finalizer
    def __del__(self) -> None:
        self._forgotten(self, "`async with`, or `await gateway.close()`")

    def _forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn, once, if it was started and not closed. In any thread, by the collector."""
        if getattr(self, "_pid", 0) == os.getpid() and not self._closed:
            self._pid = 0
            held = self._owned is not None and self._htp.startswith("embedded:")
            warn_unclosed(face, remedy, "its directory stays locked until the program ends" if held else "")

    # What users see

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`: the address that the TCP listener advertises."""
        if self._bound is None:
            raise IllegalStateError("the gateway listens on no TCP port (or has not been started)")
        host = f"[{self._bound.host}]" if ":" in self._bound.host else self._bound.host
        return f"{host}:{self._bound.port}"

    @property
    def address(self) -> str:
        """`host:port` that the TCP listener is bound to; clients are told `bootstrap`."""
        if self._bound_to is None:
            raise IllegalStateError("the gateway listens on no TCP port (or has not been started)")
        return str(self._bound_to)

    @property
    def advertised(self) -> dict[str, str]:
        """`host:port` that the clients of each listener are told, by the listener's name: `{"SASL": "127.0.0.1:9093"}`.

        Empty before the start, and where it listens on no TCP port.
        """
        return {each.listener: str(Address(each.host, each.port)) for each in self._advertised}

    @property
    def parts(self) -> Assembly:
        """What the running gateway is made of; for tests and tools."""
        if self._parts is None:
            raise IllegalStateError("the gateway has not been started")
        return self._parts

    @property
    def failure(self) -> BaseException | None:
        """What made the gateway stop serving, if something did."""
        return self._supervisor.failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(DRAIN_S if error is None else 0.0)

    async def start(self) -> None:
        """Open the store, recover, and listen; where that fails or is cancelled, everything is closed again.

        Raises:
            LockedError: Another process owns the data directory, and does not share it, or this gateway does not.
            TooFewBrokersError: More brokers of the store hold topics than it is to have.
            LeaseHeldError: A gateway of the same `node.id` serves the store, or another one that does not share it.
            OSError: The address cannot be bound.
            IllegalStateError: It was started before, or its store in memory belongs to the process that this one was
                forked from.
            ClosedError: It was closed before, or meanwhile.
        """
        if self._ended is not None:
            raise IllegalStateError("the gateway was started before")
        if self._close_asked:
            raise ClosedError("the gateway was closed; make a new one")
        self._ended = anyio.Event()
        self._pid = os.getpid()
        started = self._started = Completion()
        try:
            if self._owned is not None:
                await self._unless_closed(self._owned.__aenter__)
            await self._supervisor.start()
            self._unwatch = self._store.on_failure(self._supervisor.fail)
            store: object = self._store
            if isinstance(store, LentStore):
                self._supervisor.spawn(store.lend, name="give up what other processes open")
            await self._unless_closed(self._start)
        except BaseException:  # cancelled too: nothing of it stays open
            await self._close(0.0)
            raise
        finally:
            self._started = None
            started.set_result(None)

    async def _unless_closed(self, part: Callable[[], Awaitable[object]]) -> None:
        """Await a part of the start; a `close` meanwhile ends it."""
        with anyio.CancelScope() as self._starting:
            if not self._close_asked:
                await part()
        if self._close_asked:
            raise ClosedError("the gateway was closed while it started; make a new one")

    async def listen(self, address: str, *, advertise: Address | str | None = None) -> Address:
        """Accept connections on one more address; returns where it listens.

        Args:
            address: `host:port`, or `unix:PATH`.
            advertise: The address that its clients are told: another one where they cannot reach this one.

        Raises:
            OSError: The address cannot be bound; the text says why.
        """
        found = parse_address(address)
        told = advertise if advertise is None or isinstance(advertise, Address) else parse_address(advertise)
        return await listen(self._running(), found, told)

    def connect_stream(self, stream: ByteStream, *, advertise: Address) -> None:
        """Serve one stream that a client inside the process made; `advertise` is the address it is told."""
        self._running().attach(stream, label=advertised(advertise))

    def metrics(self) -> list[GatewayMetric]:
        """What the gateway tells of itself, as it is now: topics, connections, memory, the disk, shared topics.

        To be called in its event loop; it takes some microseconds for each topic of the mapping `"virtual"`.

        Raises:
            ClosedError: The gateway is not running.
        """
        return self._shown().registry().collect()

    async def serve_metrics(self, address: str) -> Address:
        """Serve the metrics over HTTP, in Prometheus' text format: `GET /metrics`; and health. Returns where.

        Beside those of `metrics` these are metrics of topics, partitions and groups under the names of kafka_exporter
        and of Kafka's brokers. With them, `/healthz` and `/readyz` are answered as `serve_health` says.

        From then on clients may push theirs (KIP-714), which are served with them; see `expect_metrics`.

        Whoever reaches the address may read them; nothing is encrypted, and nobody authenticated.

        Args:
            address: `host:port`, with port 0 for any free one.

        Raises:
            ConfigError: It is no such address.
            MissingExtraError: prometheus_client is not installed.
            OSError: The address cannot be bound; the text says why.
            ClosedError: The gateway is not running.
        """
        found = page_address("metrics", address)
        at = await self._shown().serve_metrics(found)
        self.parts.telemetry.offered = True
        return at

    def expect_metrics(self) -> None:
        """Tell clients from the start that they may push their metrics (KIP-714), since `serve_metrics` will follow.

        To be called before the gateway starts. Otherwise those are not told that connect before metrics are served,
        and what they do not know they do not ask for until they connect again.

        Raises:
            IllegalStateError: The gateway was started.
            MissingExtraError: prometheus_client is not installed.
        """
        if self._ended is not None:
            raise IllegalStateError("the gateway was started: serve_metrics tells clients by itself")
        check_prometheus()
        self._expects_metrics = True

    async def serve_health(self, address: str) -> Address:
        """Answer over HTTP whether the gateway is well: `GET /healthz` and `/readyz`. Returns where.

        Both answer 200, or 503 with the reasons as JSON. `/healthz` says whether the gateway has failed, so that only a
        restart helps. `/readyz` says whether clients are served at this moment: the store answers, the lease is held,
        there is space for producers, the gateway listens, and is not being closed.

        Whoever reaches the address may read it; nothing is encrypted, and nobody authenticated.

        Args:
            address: `host:port`, with port 0 for any free one.

        Raises:
            ConfigError: It is no such address.
            OSError: The address cannot be bound; the text says why.
            ClosedError: The gateway is not running.
        """
        found = page_address("health", address)
        return await self._shown().serve_health(found)

    def _shown(self) -> GatewayPages:
        server = self._running()
        if self._pages is None:
            assert self._memory is not None
            self._pages = GatewayPages(
                self.parts, server, self._store, self._memory, self._supervisor, lambda: self._close_asked
            )
        return self._pages

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return 0 if self._server is None else len(self._server.connections)

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited; the gateway stays the parent's."""
        if self._server is not None:
            self._server.abandon()
        if self._pages is not None:
            self._pages.abandon()

    async def reload(self, config: Mapping[str, Any] | None = None) -> Reloaded:
        """Take over settings and certificates that have changed, without a restart.

        Certificates are read from their files again, changed or not. A setting that AlterConfigs has set stays as that
        says, and one that only a restart changes stays as it is; the report names both. Connections go on.

        Args:
            config: Kafka's broker settings by their names, all of them, as at the start: what was given then and is not
                any more has its default again. None leaves them as they are.

        Returns:
            What has changed, and what has not, and why.

        Raises:
            ConfigError: It is no mapping.
            ClosedError: The gateway is not running.
            HtpError: The store failed, while topics took settings over.
        """
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"broker settings are a mapping from their names, not {shown(config)}")
        self._running()
        certificates = {each.name: await each.tls.renew() for each in self._listeners if each.tls is not None}
        if config is None:
            return Reloaded(certificates=certificates)
        try:
            return (await self.parts.dynamic.reload(config))._replace(certificates=certificates)
        except ConfigError as error:
            return Reloaded(certificates=certificates, refused=str(error))

    async def apply_retention(self) -> int:
        """Apply retention by time and size now; returns how many partitions lost records."""
        self._running()
        return await self.parts.retention.apply()

    async def wait(self) -> None:
        """Until the gateway is closed. Raises what made it fail, if it fails.

        Raises:
            IllegalStateError: It has not been started.
        """
        if self._ended is None:
            raise IllegalStateError("the gateway has not been started")
        await self._ended.wait()
        self._supervisor.check()

    async def aclose(self) -> None:
        """The same as `close()`."""
        await self.close()

    async def close(self, timeout: float = DRAIN_S) -> None:
        """Stop accepting, answer what has begun, checkpoint and close; may be called again.

        While another call closes it, this one waits for that, and the shorter time holds for both. A start that is
        under way is broken off.

        Args:
            timeout: Seconds that all of it may take, and at most two more at the end: one for checkpoints, one to give
                the lease back. What the store has not done by then is given up: nobody is told that it was. With 0 a
                cancellation does not disturb closing. A store that the gateway has opened itself is closed in any case,
                which waits for the disk.

        Raises:
            IllegalStateError: It was started in another event loop, or one of its own tasks calls. Nothing has been
                done then.
        """
        check_timeout(timeout, none=None)
        self._supervisor.check_loop()
        while not self._closed:  # not even after somebody else's attempt, which may have raised
            attempt = self._started or self._through
            if attempt is not None:
                await self._closed_by_another(attempt, timeout)
                continue
            self._supervisor.check_not_own_task()
            await self._close(timeout)

    async def _closed_by_another(self, attempt: Completion[None], timeout: float) -> None:
        """Another task closes it, or will do so, because its start ends here: wait for that."""
        self._supervisor.check_not_own_task()
        self._close_asked = True
        if self._starting is not None:
            self._starting.cancel()
        with anyio.CancelScope(shield=timeout <= 0):
            with anyio.move_on_after(timeout + LEAST_S):
                await attempt.wait()
                return
            if self._draining is not None:
                self._draining.cancel()
            await attempt.wait()

    async def _close(self, timeout: float) -> None:
        self._close_asked = True
        through = self._through = Completion()
        try:
            await self._shut_down(timeout)
        finally:
            self._through = None
            through.set_result(None)

    async def _shut_down(self, timeout: float) -> None:
        if self._presence is not None:
            self._presence.withdraw()
        drain = self._drain()
        try:
            if drain is not None and not self._drained:
                self._drained = True
                with anyio.CancelScope(shield=timeout <= 0) as self._draining:
                    await drain.run(timeout)
                if self._draining.cancelled_caught:
                    logger.warning("closing was asked for again, in less time: what is left of it is cut off")
                    await drain.cut_off()
        except BaseException:  # cancelled too: what is left is given up, and the store closed all the same
            if drain is not None:
                await drain.cut_off()
            raise
        finally:
            if self._unwatch is not None:
                self._unwatch()
            if self._parts is not None:
                self._parts.shields.give_up()
            try:
                await self._supervisor.aclose()
            finally:
                try:
                    await to_the_end(self._let_go)
                finally:
                    self._closed = True
                    if self._memory is not None:
                        self._memory.close()
                    if self._presence is not None:
                        self._presence.release()
                    if self._ended is not None:
                        self._ended.set()
                    logger.info("gateway closed")

    async def _let_go(self) -> None:
        try:
            if self._participation is not None:
                await self._participation.give_back(failed=self.failure is not None)
        finally:
            if self._owned is not None:
                await self._owned.aclose()

    # Starting

    async def _start(self) -> None:
        parts = self._parts = await self._assemble()
        parts.telemetry.offered = self._expects_metrics
        await parts.load()
        assert self._memory is not None
        self._server = await make_server(parts, self._memory, self._supervisor)
        if self._listeners:
            await self._listen_as_configured(self._server, parts)
        elif self._listen is not None:
            await self._listen_first(self._listen)
        assert self._participation is not None
        await self._register(parts, self._participation)
        if self._presence is not None:
            await self._presence.announce(self)
        self._background += run_background(parts, self._supervisor)
        logger.info(
            "gateway %d of cluster %s serves %d topics of %s on %s",
            parts.identity.node_id,
            parts.identity.cluster_id,
            len(parts.topics),
            self._htp,
            self.bootstrap if self._bound else "no port",
            extra=parts.identity.log_fields(),
        )

    async def _assemble(self) -> Assembly:
        wanted = StartSettings(
            self._config, self._mapping, self._htp, self._authorizer, self._token_settings,
            {each.name: each.most_in_a_second for each in self._listeners if each.most_in_a_second is not None},
        )  # fmt: skip
        part = self._participation = Participation(self._store.manager, self._store.broker, wanted.rack)
        return await take_part(
            wanted, self._store, part, self._presence, self._take_memory, self._supervisor, self._spawn_renewal
        )

    def _take_memory(self) -> MemoryPart:
        self._memory = process_memory().part(self._config.get_int("connections.max.memory.bytes"), LoopHandle())
        return self._memory

    async def _register(self, parts: Assembly, part: Participation) -> None:
        """Have the other gateways tell their clients of this one, and lead with them."""
        at = {each.listener: Endpoint(each.host, each.port, each.security_protocol) for each in self._advertised}
        if self._presence is not None and part.shared:
            at |= self._presence.endpoint()
        finish = parts.catalogue.finish_for_others
        self._background += await part.join(at, parts.hand_over, finish, self._supervisor.spawn)

    async def _listen_first(self, address: Address) -> None:
        bound = self._bound_to = await self.listen(str(address), advertise=self._advertise)
        told = self._advertise
        self._bound = advertised(bound, told and Address(told.host, told.port or bound.port))
        self._advertised = [self._bound]

    async def _listen_as_configured(self, server: Server, parts: Assembly) -> None:
        for each in self._listeners:
            spawn = self._supervisor.spawn
            handler = await login_handler(
                each, parts.requests, parts.scram_users, parts.delegation_tokens, self._config, spawn
            )
            bound, told = await listen_as(server, each, handler)
            self._advertised.append(told)
            if self._bound is None:
                self._bound_to, self._bound = bound, told

    def _running(self) -> Server:
        self._supervisor.check()
        if self._server is None or self._close_asked:
            raise ClosedError("the gateway is not running")
        return self._server

    # Running

    def _spawn_renewal(self, renew: Callable[[], Awaitable[None]], *, name: str) -> TaskHandle:
        return self._supervisor.spawn(self._renew, renew, name=name)

    async def _renew(self, renew: Callable[[], Awaitable[None]]) -> None:
        # a task that holds the gateway: while it runs it is there, though nobody else holds it, and tells how it ends
        await renew()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, ClosedError):  # a loop that ends takes the tasks with it
            logger.error("the gateway serves no more: %s", error)
        else:
            logger.critical("the gateway has failed and serves no more: %s", error, exc_info=error)
        if self._presence is not None:
            self._presence.withdraw()
            self._presence.release()
        if self._server is not None:
            for connection in list(self._server.connections):
                connection.close()
        if self._ended is not None:
            self._ended.set()

    # Closing

    def _drain(self) -> Draining | None:
        """What is to be done before its tasks and its store end; None if it did not come to serve."""
        if self._parts is None or self._participation is None:
            return None
        return Draining(self._parts, self._server, self._participation, self._supervisor, self._background)


def _weakly(method: Callable[P, object]) -> Callable[P, None]:
    """Calls a method of an object that this keeps not alive.

    The threads of a store that was not closed keep what they call: with it, nobody would hear of the gateway.
    """
    weak = WeakMethod(method)

    def call(*args: P.args, **options: P.kwargs) -> None:
        found = weak()
        if found is not None:
            found(*args, **options)

    return call
