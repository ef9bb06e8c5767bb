"""Settings of topics and brokers: describe and alter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kclient.admin.arguments import Change, as_changes, as_resources, broker_of
from kclient.admin.base import AdminBase, Outcome, failure
from kclient.admin.types import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    raise_failures,
)
from kclient.arguments import shown
from kclient.cluster import Trial
from kclient.errors import KafkaError
from kclient.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
)


class ConfigOperations(AdminBase):
    """The admin client's calls about settings."""

    async def describe_configs(
        self, resources: Collection[ConfigResource], *, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Every setting of topics and brokers, with its value and where that comes from.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            BrokerIdNotRegisteredError: there is no such broker.
            PartialFailureError: several resources could not be described.
            TypeError: these are not `ConfigResource`s.
        """
        described: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        failures: dict[str, KafkaError] = {}
        groups = _by_node(as_resources(resources))

        async def describe(node_id: int | None) -> None:
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=int(resource.type), resource_name=resource.name, configuration_keys=None
                    )
                    for resource in groups[node_id]
                ]
            )
            response = await self._ask_node(node_id, request, DescribeConfigsResponse, timeout, "Describing configs")
            for result in response.results:
                resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                error = failure(result.error_code, _subject(resource), result.error_message)
                if error is None:
                    described[resource] = _entries(result)
                else:
                    failures[_subject(resource)] = error

        self._check()
        await self._all(groups, describe)
        raise_failures("Describing configs", failures)
        return described

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, Change | str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Changes the named settings and leaves the others as they are (KIP-339).

        Args:
            changes: by resource and name: a new value, None to return to the default, or a pair of
                `ConfigOperation` and value (to append to a list, say).
            validate_only: check everything and change nothing.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            InvalidConfigurationError: a name or value was refused.
            BrokerIdNotRegisteredError: there is no such broker.
            PartialFailureError: the changes of several resources were refused; the others were made.
            TypeError: these are not changes by `ConfigResource`.
        """
        alterables = as_changes(changes)
        groups = _by_node(alterables)
        failures: dict[str, KafkaError] = {}

        async def alter(node_id: int | None) -> None:
            wanted = {resource: alterables[resource] for resource in groups[node_id]}
            failures.update(await self._alter(node_id, wanted, validate_only, timeout))

        self._check()
        await self._all(groups, alter)
        raise_failures("Altering configs", failures)

    async def _alter(
        self,
        node_id: int | None,
        changes: Mapping[ConfigResource, list[IncrementalAlterConfigsRequestConfig]],
        validate_only: bool,
        timeout: float | None,
    ) -> dict[str, KafkaError]:
        """Changes a broker's own settings there, and all others (None) by the controller."""

        async def ask(
            trial: Trial, left: Mapping[ConfigResource, list[IncrementalAlterConfigsRequestConfig]]
        ) -> Mapping[ConfigResource, Outcome]:
            request = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsRequestResource(
                        resource_type=int(resource.type), resource_name=resource.name, configs=configs
                    )
                    for resource, configs in left.items()
                ],
                validate_only=validate_only,
            )
            response: IncrementalAlterConfigsResponse
            if node_id is None:
                response = await self._ask_controller(
                    trial, lambda _: request, IncrementalAlterConfigsResponse, timeout
                )
            else:
                connection = await self._at_broker(node_id, trial)
                response = await self._exchange(trial, connection, request, IncrementalAlterConfigsResponse)
            outcomes: dict[ConfigResource, Outcome] = {}
            for result in response.responses:
                resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                outcomes[resource] = failure(result.error_code, _subject(resource), result.error_message)
            return outcomes

        return await self._each(changes, ask, timeout=timeout, what="Altering configs", name=_subject)


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """A broker's settings are asked of that broker; everything else of the controller (None)."""
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        groups.setdefault(broker_of(resource), []).append(resource)
    return groups


def _entries(result: DescribeConfigsResult) -> dict[str, ConfigEntry]:
    return {
        config.name: ConfigEntry(
            name=config.name,
            value=config.value,
            source=ConfigSource(config.config_source),
            is_read_only=config.read_only,
            is_sensitive=config.is_sensitive,
        )
        for config in result.configs
    }


def _subject(resource: ConfigResource) -> str:
    return f"{resource.type.name.capitalize()} {shown(resource.name)}"
