"""The metrics of clients at one gateway: what its handlers, and whoever serves the metrics, have in common."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from kclient.errors import KafkaError
from kclient.gateway.telemetry.instances import ClientInstance, ClientInstances, PushingClient
from kclient.net.address import parse_address

if TYPE_CHECKING:
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.telemetry.pushed import PushedMetrics
    from kclient.gateway.telemetry.subscriptions import ClientMetricsConfigs


class ClientTelemetry:
    """What is known of clients that push metrics, and of those that may.

    Args:
        configs: Which metrics are wanted from whom.
        instances: The clients.
        pushed: What they have pushed.
    """

    def __init__(self, configs: ClientMetricsConfigs, instances: ClientInstances, pushed: PushedMetrics) -> None:
        self.configs: ClientMetricsConfigs = configs
        self.instances: ClientInstances = instances
        self.pushed: PushedMetrics = pushed
        self.offered: bool = False
        """Whether somebody reads what is pushed: then ApiVersions tells of it, and it is kept."""
        self._ids: dict[ConnectionContext, bytes] = {}
        """The client that was heard of last by a connection, which is forgotten with it."""

    def heard(self, instance_id: bytes, context: RequestContext, now: float) -> Generator[None, None, ClientInstance]:
        """A client is heard of, in steps: it, as it is known from now on.

        Args:
            instance_id: Its id.
            context: Of its request.
            now: Seconds on the monotonic clock.
        """
        client = self.instances.who(instance_id, _client_of(context))
        wanted = self.instances.wanted_of(instance_id, self.configs.version)
        if wanted is None:
            wanted = yield from self.configs.wanted(client.values(instance_id))
        connection = context.connection
        if not connection.gone:
            if connection not in self._ids:
                connection.when_gone(partial(self._gone, connection))
            self._ids[connection] = instance_id
        return self.instances.heard(instance_id, client, wanted, now)

    def _gone(self, connection: ConnectionContext) -> None:
        self.instances.forget(self._ids.pop(connection))


def _client_of(context: RequestContext) -> PushingClient:
    connection = context.connection
    try:
        address = parse_address(connection.peer, default_port=None)
    except KafkaError:
        port = None
    else:
        port = str(address.port) if address.scheme == "tcp" else None
    return PushingClient(
        context.client_id,
        connection.software_name,
        connection.software_version,
        connection.client_host.removeprefix("/"),
        port,
    )
