"""The pages of a running gateway, its metrics and its health, and where they are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from kclient.errors import ConfigError
from kclient.gateway.gateway_metrics import gateway_metrics
from kclient.gateway.health import GatewayHealth
from kclient.gateway.kafka_metrics import KafkaMetrics
from kclient.gateway.metrics_server import METRICS_PATH, MetricsPage, Pages, PageServer, health_pages
from kclient.htp.port import StoreOnDisk
from kclient.net.address import Address, parse_address
from kclient.net.thread_switches import call_giving_way

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor
    from kclient.gateway.assembly import Assembly
    from kclient.gateway.metrics import MetricRegistry
    from kclient.htp.port import Store
    from kclient.memory_ledger import MemoryPart
    from kclient.net.fair_queue import Flow
    from kclient.net.server import Server


class GatewayPages:
    """What a gateway tells of itself over HTTP.

    Args:
        parts: What it is made of.
        server: Its connections.
        store: Where its messages are.
        memory: What it holds.
        supervisor: Runs its tasks.
        closing: Whether nothing begins any more.
    """

    def __init__(
        self,
        parts: Assembly,
        server: Server,
        store: Store,
        memory: MemoryPart,
        supervisor: Supervisor,
        closing: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._server = server
        self._space = store.space if isinstance(store, StoreOnDisk) else None
        self._memory = memory
        self._supervisor = supervisor
        self._closing = closing
        self._metrics: PageServer | None = None
        self._health: PageServer | None = None

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited."""
        for pages in (self._metrics, self._health):
            if pages is not None:
                pages.abandon()

    async def serve_metrics(self, address: Address) -> Address:
        """Serve metrics and health; see `Gateway.serve_metrics`."""
        if self._metrics is None:
            self._metrics = PageServer(self._metrics_pages(), self._supervisor.spawn)
        return await self._metrics.listen(address)

    async def serve_health(self, address: Address) -> Address:
        """Serve health alone; see `Gateway.serve_health`."""
        if self._health is None:
            self._health = PageServer(self._health_pages(), self._supervisor.spawn)
        return await self._health.listen(address)

    def registry(self) -> MetricRegistry:
        """The gateway's own metrics."""
        parts, server = self._parts, self._server
        return gateway_metrics(
            topics=parts.topics,
            groups=parts.groups.table.groups,
            shared=parts.shared,
            memory=self._memory,
            connections=lambda: len(server.connections),
            requests=lambda: sum(parts.requests.counts.values()),
            space=self._space,
            cleaner=parts.cleaner,
            telemetry=parts.telemetry,
            throttles=parts.charged.throttles,
            meters=parts.charged.clients,
            muted=lambda: sum(each.muted for each in server.connections),
        )

    def _metrics_pages(self) -> Pages:
        parts = self._parts
        kafka = KafkaMetrics(
            node_id=parts.identity.node_id,
            topics=parts.topics,
            leadership=parts.leadership,
            groups=parts.groups.table.groups,
            ends=parts.peers,
            gateways=lambda: len(parts.cluster.others) + 1,
            requests=parts.requests.by_name,
            enabled=parts.config.live_bool("metrics.partitions.enable"),
        )

        async def others(flow: Flow) -> list[bytearray | bytes]:
            pushed = parts.telemetry.pushed.exposition(parts.clock.now())
            return [*await kafka.text(flow), await anyio.to_thread.run_sync(call_giving_way, pushed)]

        page = MetricsPage(self.registry().steps, others, parts.queue)
        return {METRICS_PATH: page.page, **self._health_pages()}

    def _health_pages(self) -> Pages:
        parts, supervisor, server = self._parts, self._supervisor, self._server
        return health_pages(
            GatewayHealth(
                failure=lambda: supervisor.failure,
                closing=self._closing,
                listening=lambda: bool(server.listeners),
                lease=parts.lease,
                manager=parts.manager,
                space=self._space,
                clock=parts.clock,
            )
        )


def page_address(what: str, address: str) -> Address:
    """Where pages are to be served. Raises `ConfigError` if it is no `host:port`."""
    found = parse_address(address, default_port=None)
    if found.scheme != "tcp":
        raise ConfigError(f"{what} can be served at host:port, not at {address}")
    return found
