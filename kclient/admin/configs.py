"""Settings of topics, brokers, groups and so on: describe, alter, and what has any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from kclient.admin.answers import check_code, failure
from kclient.admin.arguments import Change, as_changes, as_resource_types, as_resources, broker_of
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.types import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    raise_failures,
)
from kclient.arguments import as_names, check_flag, shown
from kclient.cluster import Trial, version_for
from kclient.cluster.asking import every_answer
from kclient.errors import (
    ErrorCode,
    InvalidRequestError,
    KafkaError,
    UnknownServerError,
    UnsupportedVersionError,
)
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_FIRST_WITH_TYPES = 1
"""The first version of ListConfigResources that lists more than client metrics (KIP-1142)."""
_SINCE = {
    ConfigResourceType.BROKER_LOGGER: ("2.4", "loggers"),
    ConfigResourceType.CLIENT_METRICS: ("3.7", "client metrics"),
    ConfigResourceType.GROUP: ("4.0", "groups"),
}
"""Which brokers know these; older ones only say that they do not understand."""


class ConfigOperations(AdminBase):
    """The admin client's calls about settings."""

    async def describe_configs(
        self,
        resources: Collection[ConfigResource],
        *,
        names: Collection[str] | None = None,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics, brokers, groups and so on, with their values and where these come from.

        Those of a broker, and its loggers, are asked of that broker. Groups and client metrics that nobody gave any
        have the defaults.

        Args:
            resources: whose settings.
            names: only these settings; None for all. One that a resource does not have is left out.
            include_synonyms: tell also where else each value could come from (KIP-226).
            include_documentation: tell also what each setting is for (KIP-569; Kafka 2.6).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The settings by resource and name.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            BrokerIdNotRegisteredError: there is no such broker.
            InvalidRequestError: the broker has no settings of this kind: of loggers before Kafka 2.4, of client metrics
                before 3.7, of groups before 4.0 (and a gateway has those of topics and of itself).
            UnsupportedVersionError: the broker is too old for `include_documentation`.
            PartialFailureError: several resources could not be described.
            TypeError: these are not `ConfigResource`s, or the names are not a list of strings.
            ValueError: one cannot be asked for.
        """
        check_flag(include_synonyms, "include_synonyms")
        check_flag(include_documentation, "include_documentation")
        described: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        failures: dict[str, KafkaError] = {}
        groups = _by_node(as_resources(resources))
        wanted = None if names is None else as_names(names, "settings")

        async def describe(node_id: int | None) -> None:
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=int(resource.type), resource_name=resource.name, configuration_keys=wanted
                    )
                    for resource in groups[node_id]
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
            response = await self._ask_node(node_id, request, DescribeConfigsResponse, timeout, "Describing configs")
            left = set(groups[node_id])
            for result in response.results:
                resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                if resource not in left:
                    continue  # nobody asked for that
                left.discard(resource)
                error = failure(result.error_code, _subject(resource), result.error_message)
                if error is not None and error.code == ErrorCode.INVALID_REQUEST and resource.type in _SINCE:
                    since, of_what = _SINCE[resource.type]
                    error = InvalidRequestError(
                        f"{error.message} (Brokers have settings of {of_what} since Kafka {since}.)"
                    )
                if error is None:
                    described[resource] = _entries(result, wanted)
                else:
                    failures[_subject(resource)] = error
            for resource in left:
                text = f"{_subject(resource)}: the broker's answer does not tell of it"
                failures[_subject(resource)] = UnknownServerError(text)

        await self._at_each(groups, describe, failures)
        raise_failures("Describing configs", failures, described)
        return described

    async def list_config_resources(
        self, types: Collection[ConfigResourceType] | None = None, *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """What the cluster has settings of: all its topics and brokers, and the groups and client metrics that were
        given some (KIP-1142; Kafka 4.1).

        Args:
            types: only of these kinds; None for all. Brokers before Kafka 4.1 know CLIENT_METRICS alone (Kafka 3.7).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The resources, sorted by type and name.

        Raises:
            ClusterAuthorizationError: this user may not describe the cluster's settings.
            UnsupportedVersionError: the broker cannot list these kinds.
            TypeError: these are not `ConfigResourceType`s.
            ValueError: one of them is UNKNOWN.
        """
        wanted = None if types is None else as_resource_types(types)
        what = "Listing resources with settings"
        if wanted is not None and not wanted:
            self._check()
            return []

        async def ask_one(trial: Trial, connection: Connection) -> ListConfigResourcesResponse:
            request = ListConfigResourcesRequest()
            if version_for(connection, ListConfigResourcesRequest) >= _FIRST_WITH_TYPES:
                request.resource_types = [int(each) for each in wanted or ()]
            elif wanted != [ConfigResourceType.CLIENT_METRICS]:
                raise UnsupportedVersionError(
                    f"{connection.address} lists client metrics only (Kafka 4.1 lists other resources too): ask with"
                    " types=[ConfigResourceType.CLIENT_METRICS]"
                )
            return await self._exchange(
                trial,
                connection,
                request,
                ListConfigResourcesResponse,
                check=lambda answer: check_code(answer.error_code, what),
            )

        async def ask(trial: Trial) -> ListConfigResourcesResponse:
            return await self._cluster.ask_any(lambda connection: ask_one(trial, connection), trial=trial)

        response = await self._retrying(ask, timeout, what)
        found = {
            ConfigResource(ConfigResourceType(row.resource_type), row.resource_name)
            for row in response.config_resources
        }
        return sorted(found, key=lambda each: (each.type, each.name))

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
                `ConfigOperation` and value (to append to a list, say). The value of a logger is its level, as "DEBUG";
                without one it has that of the logger above it.
            validate_only: check everything and change nothing.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            InvalidConfigurationError, InvalidRequestError: a name or value was refused.
            BrokerIdNotRegisteredError: there is no such broker.
            PartialFailureError: the changes of several resources were refused; the others were made.
            TypeError: these are not changes by `ConfigResource`.
            ValueError: one cannot be asked for.
        """
        alterables = as_changes(changes)
        groups = _by_node(alterables)
        failures: dict[str, KafkaError] = {}

        async def alter(node_id: int | None) -> None:
            wanted = {resource: alterables[resource] for resource in groups[node_id]}
            failures.update(await self._alter(node_id, wanted, validate_only, timeout))

        await self._at_each(groups, alter, failures)
        raise_failures("Altering configs", failures)

    async def _at_each(
        self,
        groups: Mapping[int | None, Collection[ConfigResource]],
        ask: Callable[[int | None], Awaitable[None]],
        failures: dict[str, KafkaError],
    ) -> None:
        """Asks each broker about its own, and the controller (None) about all else; who fails stops none of the others.

        Args:
            groups: the resources by whom to ask.
            ask: asks one of them.
            failures: takes why resources were not answered for.

        Raises:
            KafkaError: the only one to ask has failed.
        """
        self._check()
        outcomes = await every_answer(groups, ask, supervisor=self._supervisor)
        for node_id, error in outcomes.items():
            if error is not None:
                if len(groups) == 1:
                    raise error
                failures.update(dict.fromkeys(map(_subject, groups[node_id]), error))

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
    """A broker's settings and loggers are asked of that broker; everything else of the controller (None)."""
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        groups.setdefault(broker_of(resource), []).append(resource)
    return groups


def _entries(result: DescribeConfigsResult, wanted: Collection[str] | None) -> dict[str, ConfigEntry]:
    """The settings of a resource; brokers take an empty list of names for all."""
    return {
        config.name: ConfigEntry(
            name=config.name,
            value=config.value,
            source=ConfigSource(config.config_source),
            is_read_only=config.read_only,
            is_sensitive=config.is_sensitive,
            type=ConfigType(config.config_type),
            synonyms=tuple(ConfigSynonym(each.name, each.value, ConfigSource(each.source)) for each in config.synonyms),
            documentation=config.documentation or None,
        )
        for config in result.configs
        if wanted is None or config.name in wanted
    }


def _subject(resource: ConfigResource) -> str:
    return f"{resource.type.name.replace('_', ' ').capitalize()} {shown(resource.name)}"
