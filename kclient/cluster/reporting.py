"""Tells of a client's metrics: its reporters when it starts, once a second what has come and gone, and its end; and the
cluster, where that wants to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from kclient.cluster.telemetry import TelemetryDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from kclient.cluster.cluster import Cluster
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.metrics.registry import MetricsRegistry

_INTERVAL_S: Final = 1.0


def _nothing() -> Mapping[str, str]:
    return {}


class MetricsReporting:
    """The tasks that do it; there are none without `metric.reporters`, and brokers that take metrics.

    Args:
        registry: The client's metrics.
        supervisor: Runs the tasks.
        cluster: Connections.
        push: Whether the cluster may be told (`enable.metrics.push`).
        resource: What the cluster is told of the client beside its metrics, such as `group_id`.
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        supervisor: Supervisor,
        cluster: Cluster,
        *,
        push: bool,
        resource: Callable[[], Mapping[str, str]] = _nothing,
    ) -> None:
        self.registry: MetricsRegistry = registry
        self._supervisor = supervisor
        self._task: TaskHandle | None = None
        self._telemetry = TelemetryDriver(cluster, supervisor, registry, resource=resource, enabled=push)

    def start(self) -> None:
        """The client starts."""
        if self.registry.reporters:
            self.registry.report()
            self._task = self._supervisor.spawn(self._run, name="metrics")

    async def _run(self) -> None:
        while True:
            await anyio.sleep(_INTERVAL_S)
            self.registry.report()

    async def client_instance_id(self, timeout: float | None) -> UUID:
        """See the clients' `client_instance_id`."""
        return await self._telemetry.client_instance_id(timeout)

    async def finish(self, timeout: float | None = None) -> None:
        """The client ends: tell that, before its connections are closed. May be called again.

        Args:
            timeout: Seconds that the client has left for that; None for enough.
        """
        if self._task is not None:
            self._task.cancel()
        self.registry.close()
        await self._telemetry.finish(timeout)
