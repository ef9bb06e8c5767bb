"""ListConfigResources: what there are settings of (KIP-1142)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.acls import AclOperation
from kclient.errors import UnsupportedVersionError
from kclient.gateway.handlers.configs import Resource
from kclient.gateway.handlers.handler import Handler, VersionRange
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.configs import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.groups.configs import GroupConfigs
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.telemetry import ClientMetricsConfigs
    from kclient.gateway.topics.table import TopicTable

_WITH_TYPES: Final = 1  # the version since which it lists more than client metrics
_BROKER_LOGGER: Final = 8
_KNOWN: Final = frozenset({*Resource, _BROKER_LOGGER})
"""The types that Kafka lists; of loggers a gateway has none."""


class ListConfigResourcesHandler(Handler):
    """Answers ListConfigResources: all topics and gateways, and what else has settings."""

    ONLY_READS: ClassVar[bool] = True
    API: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES
    VERSIONS: ClassVar[VersionRange] = (0, 1)

    def __init__(
        self,
        access: Access,
        topics: TopicTable,
        leadership: Leadership,
        groups: GroupConfigs,
        client_metrics: ClientMetricsConfigs,
    ) -> None:
        self._access = access
        self._topics = topics
        self._leadership = leadership
        self._groups = groups
        self._client_metrics = client_metrics

    def begin(self, request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
        """Those of the types that are asked for, or of all."""
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE_CONFIGS)
        asked = set(request.resource_types) if context.api_version >= _WITH_TYPES else {int(Resource.CLIENT_METRICS)}
        if not asked <= _KNOWN:
            raise UnsupportedVersionError(
                f"there are no resources of the types {sorted(asked - _KNOWN)} that could be listed"
            )
        names: dict[Resource, list[str]] = {
            Resource.TOPIC: self._topics.told(),
            Resource.BROKER: [str(node.node_id) for node in self._leadership.nodes(context.connection.advertised)],
            Resource.GROUP: self._groups.names(),
            Resource.CLIENT_METRICS: self._client_metrics.names(),
        }
        wanted = {kind: found for kind, found in names.items() if not asked or kind in asked}
        rows = chain.from_iterable(_rows(kind, found) for kind, found in wanted.items())
        return ListConfigResourcesResponse(config_resources=lazily(sum(map(len, wanted.values())), rows))


def _rows(kind: Resource, names: list[str]) -> Iterator[ConfigResource]:
    return (ConfigResource(resource_name=name, resource_type=kind) for name in names)
