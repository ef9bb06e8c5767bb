"""Pushes a client's metrics to the cluster, where that wants them (KIP-714).

Nothing is done before a broker that takes metrics was connected to: with others there is no task, and no request.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

import anyio
import anyio.to_thread

from kclient.arguments import check_timeout, in_seconds
from kclient.concurrency import Completion, Wakeup
from kclient.errors import (
    ClosedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    error_for,
)
from kclient.metrics.otlp import encode_metrics
from kclient.metrics.telemetry import Telemetry, TelemetryPoints, TelemetryState, TelemetrySubscription
from kclient.protocol.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import CompressionType
from kclient.records.compression import compress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kclient.cluster.cluster import Cluster
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.metrics.metric import Metric, MetricName
    from kclient.metrics.registry import MetricsRegistry
    from kclient.net.connection import Connection

logger: logging.Logger = logging.getLogger("kclient.metrics")

_ZERO_ID: Final = bytes(16)
_LAST_PUSH_S: Final = 0.5
"""Seconds that the last push may take while a client closes."""
_TAKES_NONE: Final = (
    "takes no metrics of clients (KIP-714): a broker names clients only where one of its metric.reporters receives them"
)


class TelemetryDriver:
    """The task that asks what is wanted, and pushes it.

    Args:
        cluster: Connections.
        supervisor: Runs the task.
        registry: The client's metrics.
        resource: Attributes of the client, such as `group_id`, as they are now.
        enabled: `enable.metrics.push`.
    """

    def __init__(
        self,
        cluster: Cluster,
        supervisor: Supervisor,
        registry: MetricsRegistry,
        *,
        resource: Callable[[], Mapping[str, str]],
        enabled: bool,
    ) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._registry = registry
        self._resource = resource
        self._enabled = enabled
        self._machine = Telemetry()
        self._points = TelemetryPoints(time.time_ns())
        self._known: Completion[bytes] = Completion()
        self._wakeup = Wakeup()
        self._task: TaskHandle | None = None
        self._connection: Connection | None = None
        self._told = False
        self._refusal = ""
        """Why the cluster told no id when it was asked last."""
        if enabled:
            cluster.on_connected.append(self._connected)

    # ------------------------------------------------------------------ calls

    async def client_instance_id(self, timeout: float | None) -> UUID:
        """The id that the cluster knows this client by; see the clients' `client_instance_id`."""
        check_timeout(timeout)
        if timeout is None:
            timeout = self._cluster.config.default_api_timeout_ms / 1000
        if not self._enabled:
            raise IllegalStateError("No metrics are pushed: set enable.metrics.push to true for a client instance id")
        if self._known.done:
            return UUID(bytes=self._known.result())
        found: UUID | None = None
        with anyio.move_on_after(timeout):
            if not self._known.done:
                connection = await self._cluster.connection()
                if not self._known.done and self._task is None:
                    raise UnsupportedVersionError(f"{connection.address} {_TAKES_NONE}")
            found = UUID(bytes=await self._known.wait())
        if found is None:
            text = f"The cluster told no client instance id within {in_seconds(timeout)}"
            why = self._refusal or self._cluster.trouble
            raise KafkaTimeoutError(f"{text}: {why}" if why else text)
        return found

    # ------------------------------------------------------------------ the task

    def _connected(self, connection: Connection) -> None:
        """There is a connection: if its broker takes metrics, they are pushed from now on."""
        if ApiKey.GET_TELEMETRY_SUBSCRIPTIONS not in connection.api_versions or self._machine.over:
            return
        if self._connection is None or self._connection.closed:
            self._connection = connection
        if self._task is None:
            self._task = self._supervisor.spawn(self._run, name="telemetry")

    async def _run(self) -> None:
        machine, clock = self._machine, self._cluster.clock
        while not machine.over and not machine.terminating:
            left = machine.due - clock()
            if left > 0:
                await self._wakeup.wait(left)
                continue
            connection = await self._to_ask()
            if connection is None:
                machine.failed(clock())
            elif machine.pushes:
                await self._push(connection)
            else:
                await self._subscribe(connection)

    async def _to_ask(self) -> Connection | None:
        """A connection to a broker that takes metrics; None if there is none."""
        found = self._connection
        if found is not None and not found.closed:
            return found
        try:
            found = await self._cluster.connection()
        except KafkaError as error:
            logger.debug("no broker to push metrics to: %s", error)
            return None
        return found if ApiKey.GET_TELEMETRY_SUBSCRIPTIONS in found.api_versions else None

    async def _subscribe(self, connection: Connection) -> None:
        machine, known = self._machine, self._machine.subscription
        machine.sent()
        request = GetTelemetrySubscriptionsRequest(
            client_instance_id=_ZERO_ID if known is None else known.client_instance_id
        )
        try:
            answer = await self._cluster.request_on(connection, request, response=GetTelemetrySubscriptionsResponse)
        except KafkaError as error:
            logger.debug("the cluster did not say which metrics it wants: %s", error)
            self._refusal = str(error)
            if machine.state is TelemetryState.SUBSCRIPTION_IN_PROGRESS:
                machine.failed(self._cluster.clock())
            return
        if machine.state is not TelemetryState.SUBSCRIPTION_IN_PROGRESS:
            return  # the client closes
        if answer.error_code:
            logger.debug("the cluster does not say which metrics it wants: error code %d", answer.error_code)
            machine.refused(answer.error_code, self._cluster.clock())
            reason = error_for(answer.error_code).message
            self._refusal = f"{connection.address} does not name this client (KIP-714): {reason}"
            if machine.over:
                self._known.set_error(error_for(answer.error_code, self._refusal))
            return
        subscription = TelemetrySubscription(
            bytes(answer.client_instance_id),
            answer.subscription_id,
            answer.accepted_compression_types,
            answer.push_interval_ms / 1000,
            answer.telemetry_max_bytes,
            answer.delta_temporality,
            answer.requested_metrics,
        )
        machine.subscribed(subscription, self._cluster.clock())
        self._known.set_result(subscription.client_instance_id)

    async def _push(self, connection: Connection) -> None:
        machine, terminating = self._machine, self._machine.terminating
        subscription = machine.subscription
        assert subscription is not None
        machine.sent()
        request = await self._request(subscription, terminating=terminating)
        code: int | None = 0
        try:
            if request is not None:
                answer = await self._cluster.request_on(connection, request, response=PushTelemetryResponse)
                code = answer.error_code
        except KafkaError as error:
            logger.debug("metrics were not pushed: %s", error)
            code = None
        if machine.state is not TelemetryState.PUSH_IN_PROGRESS:
            return  # the client closes
        if code is None:
            machine.failed(self._cluster.clock())
        elif code:
            logger.debug("the cluster did not take metrics: error code %d", code)
            machine.refused(code, self._cluster.clock())
        else:
            machine.pushed(self._cluster.clock())

    async def _request(self, subscription: TelemetrySubscription, *, terminating: bool) -> PushTelemetryRequest | None:
        """What is pushed; None if the cluster does not take as much."""
        kind = next((kind for kind in subscription.compressions if kind in _KINDS), CompressionType.NONE)
        resource = self._resource()

        def make() -> bytes:
            metrics: dict[MetricName, Metric] = {**self._registry.metrics(), **self._registry.subscribed}
            points = self._points.of(metrics, subscription, time.time_ns())
            data = encode_metrics(points, resource)
            return data if kind == CompressionType.NONE else compress(CompressionType(kind), data)

        try:  # a consumer may have metrics of thousands of partitions, and those of the application may block
            data = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        except Exception:  # it may be the application's code: the client goes on without
            logger.exception("metrics could not be collected: none are pushed this time")
            return None
        if subscription.max_bytes and len(data) > subscription.max_bytes:
            if not self._told:
                self._told = True
                logger.warning(
                    "the metrics that the cluster asks for take %d bytes, and it takes %d at most: none are pushed; "
                    "ask for fewer (the setting metrics of its client metrics), or raise its telemetry.max.bytes",
                    len(data),
                    subscription.max_bytes,
                )
            return None
        return PushTelemetryRequest(
            client_instance_id=subscription.client_instance_id,
            subscription_id=subscription.subscription_id,
            terminating=terminating,
            compression_type=int(kind),
            metrics=data,
        )

    async def finish(self, timeout: float | None = None) -> None:
        """The client closes: push once more, if the cluster wants metrics and is at hand. May be called again.

        Args:
            timeout: Seconds that the client has left for that; None for enough.
        """
        seconds = _LAST_PUSH_S if timeout is None else min(timeout, _LAST_PUSH_S)
        machine, connection = self._machine, self._connection
        machine.close()
        if self._task is not None:
            self._task.cancel()
        self._known.set_error(ClosedError("The client was closed before the cluster told its client instance id"))
        if machine.terminating:
            if machine.pushes and seconds > 0 and connection is not None and not connection.closed:
                with anyio.move_on_after(seconds):
                    await self._push(connection)
            machine.close()


_KINDS: Final = frozenset(int(kind) for kind in CompressionType)
