"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics, groups, metrics of clients and the gateway
itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from enum import IntEnum
from functools import partial
from typing import ClassVar, Final, NamedTuple, TypeVar, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    InvalidConfigurationError,
    InvalidRequestError,
    KafkaError,
)
from kclient.gateway.access import Access
from kclient.gateway.config import (
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    Origin,
    SettingOrigins,
)
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.dynamic_config import READ_ONLY, DynamicConfig, check_dynamic
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.groups.configs import GroupConfigs
from kclient.gateway.handlers._work import Work, counted, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.mapping import DEFAULT_MAPPING
from kclient.gateway.setting import BrokerSetting, SettingType, as_list, did_you_mean
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_groups import GROUP_SETTINGS
from kclient.gateway.settings_of_telemetry import CLIENT_METRICS_SETTINGS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.gateway.settings_told import HTP_MAPPING, HTP_MIRROR, ONLY_TOLD
from kclient.gateway.standing import ClusterStanding
from kclient.gateway.telemetry import ClientMetricsConfigs
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.names import check_name
from kclient.gateway.topics.settings import checked_overrides
from kclient.net.fair_queue import Pace
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResponse,
    AlterConfigsResponseResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from kclient.protocol.registry import ApiKey

_WITH_SOURCES: Final = 1  # the version of DescribeConfigs since which it tells where a value comes from
_MOST_SETTINGS: Final = 1000
_PER_RESOURCE: Final = 400
"""About how many bytes of memory a resource's row takes, with the text that says what is wrong."""


_THROTTLES: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's settings of brokers for moving replicas, of which a gateway has none."""


class Resource(IntEnum):
    """What a configuration belongs to, numbered as in the protocol (`ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What is done to a setting, numbered as in the protocol (`AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    """One change of one setting."""

    name: str
    operation: int
    value: str | None


class DescribeConfigsHandler(Handler):
    """Answers DescribeConfigs."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS
    VERSIONS: ClassVar[VersionRange] = (0, 4)
    ONLY_READS: ClassVar[bool] = True

    def __init__(
        self,
        node_id: int,
        origins: SettingOrigins,
        access: Access,
        standing: ClusterStanding,
        groups: GroupConfigs,
        client_metrics: ClientMetricsConfigs,
    ) -> None:
        self._node_id = node_id
        self._origins = origins
        self._access = access
        self._standing = standing
        self._groups = groups
        self._client_metrics = client_metrics

    def begin(self, request: DescribeConfigsRequest, context: RequestContext) -> Begun:
        """Every setting of the resources, with where its value comes from."""
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: DescribeConfigsRequest, context: RequestContext) -> Work:
        if len(request.resources) > 1:
            yield None
        rows = (self._result(resource, request, context) for resource in request.resources)
        return DescribeConfigsResponse(results=lazily(len(request.resources), rows))

    def _result(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResult:
        row = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            row.configs = list(self._describe(resource, request, context))
        except KafkaError as error:
            put_error(row, error)
        return row

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
    ) -> Iterator[DescribeConfigsResourceResult]:
        _check_number(resource.configuration_keys or ())
        asked = set(resource.configuration_keys) if resource.configuration_keys else None
        operation, name = AclOperation.DESCRIBE_CONFIGS, resource.resource_name
        internal = (
            resource.resource_type == Resource.TOPIC
            and self._access.internal(context.connection, operation, name) is not None
        )
        for setting, origins in self._settings(resource, context.connection, asked):
            if asked is None or setting.name in asked:
                told = resource.resource_type != Resource.CLIENT_METRICS or origins[0].source != SOURCE_DEFAULT
                row = _row(setting, origins, synonyms=request.include_synonyms and told)
                read_only = resource.resource_type == Resource.BROKER and setting.name in READ_ONLY
                row.read_only = setting in ONLY_TOLD or read_only or internal
                if request.include_documentation:
                    row.documentation = setting.doc
                if context.api_version < _WITH_SOURCES:
                    row.is_default = row.config_source == SOURCE_DEFAULT
                yield row

    def _settings(
        self, resource: DescribeConfigsResource, client: ConnectionContext, asked: Container[str] | None
    ) -> Iterator[tuple[BrokerSetting, list[Origin]]]:
        origins, access = self._origins, self._access
        if resource.resource_type == Resource.TOPIC:
            check_name(resource.resource_name)
            record = access.described(client, AclOperation.DESCRIBE_CONFIGS, resource.resource_name)
            for name, setting in TOPIC_SETTINGS.items():
                yield setting, list(origins.topic_origins(name, record.overrides))
            if access.internal(client, AclOperation.DESCRIBE_CONFIGS, record.name) is record:
                return  # it lies nowhere
            mapping = record.mapping.name
            chosen = SOURCE_DEFAULT if mapping == DEFAULT_MAPPING else SOURCE_STATIC_BROKER
            yield HTP_MAPPING, [Origin(HTP_MAPPING.name, mapping, chosen)]
            if record.mirror is not None:
                yield HTP_MIRROR, [Origin(HTP_MIRROR.name, record.mirror.describe(), SOURCE_STATIC_BROKER)]
        elif resource.resource_type == Resource.BROKER:
            access.check_cluster(client, AclOperation.DESCRIBE_CONFIGS)
            _check_broker(self._node_id, resource.resource_name)
            for name, setting in BROKER_SETTINGS.items():
                found = list(origins.origins(name))
                yield setting, found if resource.resource_name else list(map(_of_all, found))
            for setting, tell in self._standing.told if resource.resource_name else ():  # of this one, not of all
                if asked is None or setting.name in asked:
                    yield setting, [Origin(setting.name, tell(), SOURCE_STATIC_BROKER)]
        elif resource.resource_type == Resource.GROUP:
            access.check(client, AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, resource.resource_name)
            _check_group(resource.resource_name)
            for name, setting in GROUP_SETTINGS.items():
                yield setting, list(self._groups.origins(resource.resource_name, name))
        elif resource.resource_type == Resource.CLIENT_METRICS:
            access.check_cluster(client, AclOperation.DESCRIBE_CONFIGS)
            _check_subscription(resource.resource_name)
            for name, setting in CLIENT_METRICS_SETTINGS.items():
                yield setting, list(self._client_metrics.origins(resource.resource_name, name))
        else:
            raise InvalidRequestError(f"a gateway has no resources of type {resource.resource_type}")


def _of_all(origin: Origin) -> Origin:
    """As it is told of the settings of all brokers: what was changed at one gateway holds at all of a store."""
    if origin.source != SOURCE_DYNAMIC_BROKER:
        return origin
    return origin._replace(source=SOURCE_DYNAMIC_DEFAULT_BROKER)


def _check_number(settings: Sized) -> None:
    if len(settings) > _MOST_SETTINGS:
        raise InvalidRequestError(f"{len(settings)} settings of one resource are more than there are")


def _row(setting: BrokerSetting, origins: list[Origin], *, synonyms: bool) -> DescribeConfigsResourceResult:
    found = origins[0] if origins else Origin(setting.name, None, SOURCE_DEFAULT)
    sensitive = setting.type is SettingType.PASSWORD
    row = DescribeConfigsResourceResult(
        name=setting.name,
        value=None if sensitive else found.text,
        config_source=found.source,
        is_sensitive=sensitive,
        config_type=setting.type,
    )
    if synonyms:
        row.synonyms = [
            DescribeConfigsSynonym(name=item.name, value=None if sensitive else item.text, source=item.source)
            for item in origins
        ]
    return row


def _check_broker(node_id: int, name: str) -> None:
    if name not in ("", str(node_id)):
        raise InvalidRequestError(f"Unexpected broker id, expected {node_id} or empty string, but received {name!r}")


def _check_group(name: str) -> None:
    if not name:
        raise InvalidRequestError("Default group resources are not allowed.")


def _check_subscription(name: str) -> None:
    if not name:
        raise InvalidRequestError("Client metrics subscription name must not be empty")


Row = TypeVar("Row", AlterConfigsResponseResource, IncrementalAlterConfigsResponseResource)


class _Altering(Handler):
    """What both ways of altering have in common."""

    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(
        self,
        node_id: int,
        origins: SettingOrigins,
        access: Access,
        catalogue: TopicCatalogue,
        dynamic: DynamicConfig,
        groups: GroupConfigs,
        client_metrics: ClientMetricsConfigs,
    ) -> None:
        self._node_id = node_id
        self._origins = origins
        self._access = access
        self._client_metrics = client_metrics
        self._catalogue = catalogue
        self._dynamic = dynamic
        self._groups = groups

    async def answer(
        self,
        row: Row,
        name: str,
        changes: Sequence[SettingChange],
        client: ConnectionContext,
        *,
        fresh: bool,
        dry: bool,
        repeated: set[tuple[int, str]],
    ) -> Row:
        """Change the settings of a row's resource, and say in the row how that went; see `_alter`.

        Nothing of a resource is changed that the request names more than once (`repeated`).
        """
        row.resource_name = name
        try:
            if (row.resource_type, name) in repeated:
                raise InvalidRequestError("Each resource must appear at most once.")
            if row.resource_type == Resource.TOPIC:
                self._access.check(client, AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, name)
            elif row.resource_type in (Resource.BROKER, Resource.CLIENT_METRICS):
                self._access.check_cluster(client, AclOperation.ALTER_CONFIGS)
            elif row.resource_type == Resource.GROUP:
                self._access.check(client, AclOperation.ALTER_CONFIGS, ResourceType.GROUP, name)
            _check_number(changes)
            await self._alter(row.resource_type, name, changes, fresh=fresh, dry=dry)
        except KafkaError as error:
            put_error(row, error, self.ROLE)
        return row

    async def _alter(
        self, resource_type: int, name: str, changes: Sequence[SettingChange], *, fresh: bool, dry: bool
    ) -> None:
        """Change a resource's settings; `fresh` starts from none, `dry` only checks."""
        if resource_type == Resource.TOPIC:
            check_name(name)

            def change_topic(present: Mapping[str, str]) -> Mapping[str, str]:
                changed = _changed_settings({} if fresh else present, changes, TOPIC_SETTINGS, self._topic_value)
                return checked_overrides(dict(changed))

            await self._catalogue.alter(name, change_topic, validate_only=dry)
        elif resource_type == Resource.BROKER:
            _check_broker(self._node_id, name)

            def change_broker(present: Mapping[str, str]) -> Mapping[str, str]:
                changed = _changed_settings({} if fresh else present, changes, BROKER_SETTINGS, self._broker_value)
                check_dynamic(changed)
                return changed

            names = BROKER_SETTINGS.keys() if fresh else {change.name for change in changes}
            await self._dynamic.alter(change_broker, names, validate_only=dry)
        elif resource_type == Resource.GROUP:
            _check_group(name)

            def change_group(present: Mapping[str, str]) -> Mapping[str, str]:
                return _changed_settings({} if fresh else present, changes, GROUP_SETTINGS, lambda _: None)

            await self._groups.alter(name, change_group, validate_only=dry)
        elif resource_type == Resource.CLIENT_METRICS:
            _check_subscription(name)

            def change_metrics(present: Mapping[str, str]) -> Mapping[str, str]:
                return _changed_settings({} if fresh else present, changes, CLIENT_METRICS_SETTINGS, lambda _: None)

            await self._client_metrics.alter(name, change_metrics, validate_only=dry)
        else:
            raise InvalidRequestError(f"a gateway has no resources of type {resource_type}")

    def _topic_value(self, name: str) -> str | None:
        return next(self._origins.topic_origins(name, {})).text

    def _broker_value(self, name: str) -> str | None:
        return next((origin.text for origin in self._origins.origins(name)), None)


async def _repeated(
    resources: Iterable[AlterConfigsRequestResource | IncrementalAlterConfigsRequestResource], pace: Pace
) -> set[tuple[int, str]]:
    """Type and name of the resources that come more than once."""
    seen: set[tuple[int, str]] = set()
    repeated: set[tuple[int, str]] = set()
    for resource in resources:
        if pace.over:
            await pace.pause()
        key = resource.resource_type, resource.resource_name
        (repeated if key in seen else seen).add(key)
    return repeated


def _changed_settings(
    current: Mapping[str, str],
    changes: Iterable[SettingChange],
    table: Mapping[str, BrokerSetting],
    default: Callable[[str], str | None],
) -> dict[str, str]:
    """The settings after some changes; `default(name)` is the value of one that is not set.

    Raises `InvalidConfigurationError` for unknown settings, `InvalidRequestError` for changes that make no sense.
    """
    changed = dict(current)
    seen: set[str] = set()
    for change in changes:
        setting = table.get(change.name)
        if setting is None and table is BROKER_SETTINGS and change.name in _THROTTLES:
            if change.operation == Operation.DELETE:  # by kafka-reassign-partitions.sh, whether they were set or not
                continue
            raise InvalidConfigurationError(
                f"{change.name} is no setting of a gateway: to move a partition copies nothing that could be throttled"
            )
        if setting is None and table is CLIENT_METRICS_SETTINGS:
            if change.operation == Operation.DELETE:  # as Kafka, which looks at what is left
                continue
            raise InvalidRequestError(f"Unknown client metrics configuration: {change.name}")
        if setting is None:
            raise InvalidConfigurationError(f"Unknown config name: {change.name}{did_you_mean(change.name, table)}")
        if change.name in seen:
            raise InvalidRequestError(f"Error due to duplicate config keys: {change.name}")
        seen.add(change.name)
        if change.operation == Operation.DELETE:
            changed.pop(change.name, None)
            continue
        if change.value is None:
            raise InvalidRequestError(f"Null value not supported for {change.name}")
        if change.operation == Operation.SET:
            changed[change.name] = change.value
        elif change.operation in (Operation.APPEND, Operation.SUBTRACT):
            # Kafka has its subscriptions' lists replaced as a whole, too
            if setting.type is not SettingType.LIST or table is CLIENT_METRICS_SETTINGS:
                raise InvalidConfigurationError(
                    f"{change.name} is not a list: nothing can be appended to it or subtracted from it"
                )
            now = changed.get(change.name, default(change.name) or "")
            changed[change.name] = _edit_list(now, change.value, append=change.operation == Operation.APPEND)
        else:
            raise InvalidRequestError(f"Unknown operation {change.operation}")
    return changed


def _edit_list(now: str, value: str, *, append: bool) -> str:
    items, given = as_list(now), as_list(value)
    if append:
        return ",".join(dict.fromkeys((*items, *given)))
    return ",".join(item for item in items if item not in given)


class AlterConfigsHandler(_Altering):
    """Answers AlterConfigs: the settings given replace all that were set."""

    API: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def begin(self, request: AlterConfigsRequest, context: RequestContext) -> Begun:
        """Changing waits for the manager."""
        sizes = (_PER_RESOURCE + len(resource.resource_name) for resource in request.resources)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(self, request: AlterConfigsRequest, client: ConnectionContext) -> AlterConfigsResponse:
        pace = Pace(client.flow)
        rows = []
        repeated = await _repeated(request.resources, pace)
        for resource in request.resources:
            await pace.pause()
            row = AlterConfigsResponseResource(resource_type=resource.resource_type, error_message=None)
            changes = [
                SettingChange(item.name, Operation.SET, item.value) for item in resource.configs[: _MOST_SETTINGS + 1]
            ]
            rows.append(
                await self.answer(
                    row,
                    resource.resource_name,
                    changes,
                    client,
                    fresh=True,
                    dry=request.validate_only,
                    repeated=repeated,
                )
            )
        return AlterConfigsResponse(responses=rows)


class IncrementalAlterConfigsHandler(_Altering):
    """Answers IncrementalAlterConfigs."""

    API: ClassVar[ApiKey] = ApiKey.INCREMENTAL_ALTER_CONFIGS
    VERSIONS: ClassVar[VersionRange] = (0, 1)

    def begin(self, request: IncrementalAlterConfigsRequest, context: RequestContext) -> Begun:
        """Changing waits for the manager."""
        sizes = (_PER_RESOURCE + len(resource.resource_name) for resource in request.resources)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(
        self, request: IncrementalAlterConfigsRequest, client: ConnectionContext
    ) -> IncrementalAlterConfigsResponse:
        pace = Pace(client.flow)
        rows = []
        repeated = await _repeated(request.resources, pace)
        for resource in request.resources:
            await pace.pause()
            row = IncrementalAlterConfigsResponseResource(resource_type=resource.resource_type, error_message=None)
            changes = [
                SettingChange(item.name, item.config_operation, item.value)
                for item in resource.configs[: _MOST_SETTINGS + 1]
            ]
            rows.append(
                await self.answer(
                    row,
                    resource.resource_name,
                    changes,
                    client,
                    fresh=False,
                    dry=request.validate_only,
                    repeated=repeated,
                )
            )
        return IncrementalAlterConfigsResponse(responses=rows)
