"""`Admin`: the public admin client."""

from __future__ import annotations

import os
import time
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import anyio

from kclient.admin.acls import AclOperations
from kclient.admin.answers import check_code
from kclient.admin.configs import ConfigOperations
from kclient.admin.features import FeatureOperations
from kclient.admin.group_members import GroupMemberOperations
from kclient.admin.log_dirs import LogDirOperations
from kclient.admin.quorum import QuorumOperations
from kclient.admin.quotas import QuotaOperations
from kclient.admin.reassignments import ReassignmentOperations
from kclient.admin.share_offsets import ShareOffsetOperations
from kclient.admin.tokens import TokenOperations
from kclient.admin.transactions import TransactionOperations
from kclient.admin.types import ClusterDescription, operations_in
from kclient.admin.users import UserOperations
from kclient.arguments import AS_LONG_AS_IT_TAKES, check_flag, check_timeout
from kclient.cluster import Closing, Cluster, Trial, version_for
from kclient.cluster.controllers import CONTROLLERS, NAMES_BROKERS, NAMES_CONTROLLERS
from kclient.cluster.own_metrics import OwnMetrics
from kclient.cluster.reporting import MetricsReporting
from kclient.concurrency import Supervisor, to_the_end
from kclient.config import AdminConfig, ConfigInput
from kclient.errors import ClosedError, ErrorCode, IllegalStateError, UnsupportedVersionError
from kclient.metrics.metric import Metrics
from kclient.metrics.registry import MetricsRegistry, registry_for
from kclient.metrics.traffic import Traffic
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from kclient.types import Node
from kclient.unclosed import finalizer, warn_unclosed

_FIRST_WITH_FENCED = 2
"""The first version of DescribeCluster that tells of fenced brokers (KIP-1073)."""


class Admin(
    GroupMemberOperations,
    ShareOffsetOperations,
    ConfigOperations,
    ReassignmentOperations,
    TransactionOperations,
    FeatureOperations,
    AclOperations,
    UserOperations,
    QuotaOperations,
    TokenOperations,
    LogDirOperations,
    QuorumOperations,
    OwnMetrics,
):
    """Creates, describes, alters and deletes topics, groups, settings, ACLs, users and so on. For asyncio and trio.

    ```python
    async with kclient.Admin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topic("flights", partitions=4)
    ```

    Args:
        config: settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: settings as arguments in snake_case; they win.

    Every call takes `timeout` in seconds, by default `default.api.timeout.ms`, and retries what another attempt may
    cure until then. A call about several things that fails for some of them does the others. Partitions may be given as
    plain pairs of topic and number; an argument of a wrong type is a TypeError, one that cannot be a ValueError.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        self._config = AdminConfig.parse(config, **settings)
        self._supervisor = Supervisor("admin client")
        self._registry = registry_for(self._config, time.monotonic)
        traffic = Traffic(self._registry.windows)
        self._cluster = Cluster(
            self._config,
            self._supervisor,
            allow_auto_topic_creation=False,
            controllers=bool(self._config.bootstrap_controllers),
            traffic=traffic,
        )
        traffic.define(self._registry, "admin-client", self._cluster.addresses)
        self._reporting = MetricsReporting(
            self._registry, self._supervisor, self._cluster, push=self._config.enable_metrics_push
        )
        self._started = False
        self._closed = False
        self._closing = Closing()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        config = getattr(self, "_config", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<Admin {','.join(config.bootstrap_servers)}>" if config is not None else "<Admin, not made>"

    @finalizer
    def __del__(self) -> None:
        self._forgotten(self, "`async with`, or `await admin.close()`")

    def _forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn if it was not closed, and let the tasks end. In any thread, by the collector."""
        if getattr(self, "_started", False) and not self._closed and self._pid == os.getpid():
            self._closed = True
            self._supervisor.retire(partial(_disconnect, self._reporting, self._cluster, None))
            warn_unclosed(face, remedy)

    async def start(self) -> None:
        """Makes the client ready; `async with` does it. The first call that needs a broker connects.

        Raises:
            IllegalStateError: it was started before.
            ClosedError: it was closed.
        """
        if self._closed:
            raise ClosedError("The admin client was closed; make a new one")
        if self._started:
            raise IllegalStateError("The admin client was started before; make a new one")
        self._started = True
        try:
            await self._supervisor.start()
            await self._cluster.start()
            self._reporting.start()
        except BaseException:  # it has no tasks: none is closed, and where it was cancelled it may be started again
            self._started = False
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Closes the connections; calls that wait fail. May be called again, and then waits until it is closed.

        Args:
            timeout: seconds to wait for the connections to close; None waits as long as it takes.

        Raises:
            IllegalStateError: it was started in another event loop.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        self._supervisor.check_loop()
        first, self._closed = not self._closed, True
        if not first:
            with anyio.move_on_after(timeout):
                await self._closing.ended()
            return
        try:
            await to_the_end(_disconnect, self._reporting, self._cluster, timeout)
        finally:
            try:
                await self._supervisor.aclose()
            finally:
                self._closing.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by, to find its metrics there (KIP-714); the same for its life.

        Args:
            timeout: seconds to wait for it; the default is `default.api.timeout.ms`.

        Raises:
            IllegalStateError: `enable.metrics.push` is false, which it is by default.
            UnsupportedVersionError: the broker takes no metrics of clients, as a gateway that serves none.
            KafkaTimeoutError: the cluster has not told it in time.
            TypeError, ValueError: the timeout is not a number of seconds.
        """
        self._check()
        return await self._reporting.client_instance_id(timeout)

    def _metrics_registry(self) -> MetricsRegistry:
        return self._registry

    def metrics(self) -> Metrics:
        """The metrics under the names, groups and tags of the Java client's; may be called in any thread.

        `admin.metrics().value("request-latency-avg", node_id="node-1")` is one of them. Rates, averages and extremes
        are those of the last `metrics.num.samples` windows, each `metrics.sample.window.ms` long, totals those since
        the client was made. Times are in milliseconds, sizes in bytes.
        """
        return self._registry.metrics()

    async def describe_cluster(
        self,
        *,
        include_fenced_brokers: bool = False,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> ClusterDescription:
        """The cluster's id, brokers and controller; with `bootstrap.controllers` its controllers instead of brokers.

        Args:
            include_fenced_brokers: tell also of brokers that are registered, but shut out for now; `Node.is_fenced`
                says which these are (KIP-1073; Kafka 4.0).
            include_authorized_operations: tell also what this user may do with the cluster (KIP-430; Kafka 2.3).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            UnsupportedVersionError: the brokers are too old to tell what shall be included (those of a gateway are
                never fenced).
            TypeError: an argument is of another type.
        """
        check_flag(include_fenced_brokers, "include_fenced_brokers")
        check_flag(include_authorized_operations, "include_authorized_operations")
        ends = self._cluster.clock() + self._seconds(timeout)
        what = "Describing the cluster"
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=include_authorized_operations,
            include_fenced_brokers=include_fenced_brokers,
        )
        if self._cluster.controllers:
            request.endpoint_type = CONTROLLERS

        def check(answer: DescribeClusterResponse) -> None:
            message = answer.error_message
            if answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
                message = f"{message} ({NAMES_CONTROLLERS if self._cluster.controllers else NAMES_BROKERS})"
            check_code(answer.error_code, "The cluster", message)

        async def ask_one(trial: Trial, connection: Connection) -> DescribeClusterResponse:
            if include_fenced_brokers and version_for(connection, DescribeClusterRequest) < _FIRST_WITH_FENCED:
                raise UnsupportedVersionError(f"{connection.address} does not tell of fenced brokers (Kafka 4.0 does)")
            return await self._exchange(
                trial,
                connection,
                request,
                DescribeClusterResponse,
                check=check,
            )

        async def ask(trial: Trial) -> DescribeClusterResponse:
            return await self._cluster.ask_any(lambda connection: ask_one(trial, connection), trial=trial)

        try:
            response = await self._retrying(ask, timeout, what)
        except UnsupportedVersionError:
            if include_fenced_brokers or self._cluster.controllers:
                raise
            left = max(ends - self._cluster.clock(), 0.0)
            return await self._describe_cluster_by_metadata(include_authorized_operations, left)
        nodes = {
            broker.broker_id: Node(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)
            for broker in response.brokers
        }
        return ClusterDescription(
            response.cluster_id,
            nodes.get(response.controller_id),
            tuple(nodes.values()),
            operations_in(response.cluster_authorized_operations),
        )

    async def _describe_cluster_by_metadata(
        self, include_authorized_operations: bool, timeout: float
    ) -> ClusterDescription:
        """Brokers before Kafka 2.8 tell by Metadata."""
        request = MetadataRequest(
            topics=[],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=include_authorized_operations,
        )
        response = await self._ask_any(request, MetadataResponse, timeout=timeout, what="Describing the cluster")
        nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        return ClusterDescription(
            response.cluster_id,
            nodes.get(response.controller_id),
            tuple(nodes.values()),
            operations_in(response.cluster_authorized_operations),
        )

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("The admin client was closed")
        if not self._started:
            raise IllegalStateError("The admin client was not started: use `async with` or call `start`")
        self._supervisor.check()
        self._supervisor.check_loop()


async def _disconnect(reporting: MetricsReporting, cluster: Cluster, timeout: float | None) -> None:
    with anyio.move_on_after(timeout):
        try:
            await reporting.finish()
        finally:
            await cluster.aclose()
