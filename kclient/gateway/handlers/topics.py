"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable
from functools import partial
from operator import attrgetter
from typing import ClassVar, Final, TypeVar, cast

import anyio

from kclient.acls import AclOperation, ResourceType
from kclient.concurrency import side_by_side
from kclient.errors import (
    ErrorCode,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaError,
    TopicDeletionDisabledError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.access import CLUSTER_NAME, Access
from kclient.gateway.config import Live, SettingOrigins
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers._mutations import Mutations
from kclient.gateway.handlers._work import counted, rows_for
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.settings import MOST_PARTITIONS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.record import TopicRecord
from kclient.net.fair_queue import Pace
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kclient.protocol.registry import ApiKey
from kclient.protocol.types import ZERO_UUID

_MOST_SETTINGS: Final = 1000
_PER_TOPIC: Final = 500
_PER_SETTING: Final = 150
"""About how many bytes of memory a topic's row takes with all that is made for it, and one of its settings."""
_SHARE_OF_TIMEOUT: Final = 0.8
_LONGEST_WAIT: Final = 60.0
"""Seconds that a request waits, whatever its client says."""
_AT_ONCE: Final = 32
"""Topics of a request that are made, deleted or grown at a time: the manager makes the rows of all durable together."""
_SWEPT: Final = 16
"""Topics of a request whose messages are removed before it is answered that they are deleted; those of more: beside."""


class CreateTopicsHandler(Handler):
    """Answers CreateTopics. Any replication factor is accepted: durability is HTP's matter."""

    API: ClassVar[ApiKey] = ApiKey.CREATE_TOPICS
    VERSIONS: ClassVar[VersionRange] = (0, 7)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(
        self,
        node_id: int,
        access: Access,
        catalogue: TopicCatalogue,
        *,
        origins: SettingOrigins,
        replication_factor: Live[int],
    ) -> None:
        self._node_id = node_id
        self._access = access
        self._catalogue = catalogue
        self._origins = origins
        self._replication_factor = replication_factor

    def begin(self, request: CreateTopicsRequest, context: RequestContext) -> Begun:
        """Creating waits for the manager."""
        sizes = (_PER_TOPIC + len(topic.name) + _PER_SETTING * len(topic.configs) for topic in request.topics)
        return cast("Begun", counted(sizes, partial(self._finish, request, context)))

    def fail(self, request: CreateTopicsRequest, context: RequestContext, error: KafkaError) -> CreateTopicsResponse:
        """The same error for every topic."""

        def answered(topic: CreatableTopic) -> CreatableTopicResult:
            row = CreatableTopicResult(name=topic.name)
            put_error(row, error, self.ROLE)
            return row

        return CreateTopicsResponse(topics=rows_for(request.topics, answered))

    async def _finish(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        response, client = CreateTopicsResponse(), context.connection
        pace, access = Pace(client.flow), self._access
        any_topic = access.allows(client, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        until = _until(request.timeout_ms)
        mutations = Mutations(context, strict_since=6)
        create = partial(self._create_one, mutations, until=until, validate_only=request.validate_only)
        async with side_by_side(_AT_ONCE) as begin:
            for topic, repeated in await _by_name(request.topics, pace):
                await pace.pause()
                row = CreatableTopicResult(name=topic.name)
                response.topics.append(row)
                try:
                    if repeated:
                        raise InvalidRequestError("Duplicate topic name.")
                    if not any_topic:
                        access.check(client, AclOperation.CREATE, ResourceType.TOPIC, topic.name)
                except KafkaError as error:
                    put_error(row, error, self.ROLE)
                    continue
                if request.validate_only:  # which waits for nothing, so it keeps to the client's turns
                    await create(topic, row, client)
                else:
                    await begin(create, topic, row, client)
        return response

    async def _create_one(
        self,
        mutations: Mutations,
        topic: CreatableTopic,
        row: CreatableTopicResult,
        client: ConnectionContext,
        *,
        until: float,
        validate_only: bool,
    ) -> None:
        try:
            await self._create(topic, row, until, mutations, validate_only=validate_only)
        except KafkaError as error:
            put_error(row, error, self.ROLE)
            return
        if not self._access.allows(client, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
            row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row.num_partitions = row.replication_factor = -1
            row.configs = []

    async def _create(
        self,
        topic: CreatableTopic,
        row: CreatableTopicResult,
        until: float,
        mutations: Mutations,
        *,
        validate_only: bool,
    ) -> None:
        partitions, factor = _shape(topic, self._node_id)
        if len(topic.configs) > _MOST_SETTINGS:
            raise InvalidConfigurationError(f"{len(topic.configs)} settings are more than a topic has")
        overrides = {config.name: config.value for config in topic.configs}
        partitions, checked = self._catalogue.check_creation(topic.name, partitions, overrides)
        mutations.add(partitions)
        if validate_only:
            await self._catalogue.check_places(topic.name, partitions)
        else:
            patience = until - anyio.current_time()
            record = await self._catalogue.create(topic.name, partitions, factor, overrides, patience=patience)
            row.topic_id = record.topic_id
        row.num_partitions = partitions
        row.replication_factor = factor if factor > 0 else self._replication_factor()
        row.configs = _configs(self._origins, checked)


def _until(timeout_ms: int) -> float:
    """Until when a request waits for what holds its topics up; the rest of the client's time is for its way back."""
    return anyio.current_time() + min(max(timeout_ms, 0) / 1000 * _SHARE_OF_TIMEOUT, _LONGEST_WAIT)


Named = TypeVar("Named", CreatableTopic, CreatePartitionsTopic, DeleteTopicState)


async def _by_name(topics: Iterable[Named], pace: Pace) -> list[tuple[Named, bool]]:
    """Each topic that is named, once, and whether it is named again."""
    return list((await _by_key(topics, attrgetter("name"), pace)).values())


async def _by_key(
    topics: Iterable[Named], key_of: Callable[[Named], Hashable], pace: Pace
) -> dict[Hashable, tuple[Named, bool]]:
    found: dict[Hashable, tuple[Named, bool]] = {}
    for topic in topics:
        key = key_of(topic)
        found[key] = topic, key in found
        if pace.over:
            await pace.pause()
    return found


def _shape(topic: CreatableTopic, node_id: int) -> tuple[int, int]:
    """Number of partitions and replication factor, also where they follow from a manual assignment."""
    if not topic.assignments:
        if topic.replication_factor == 0 or topic.replication_factor < -1:
            raise InvalidReplicationFactorError("Replication factor must be larger than 0, or -1 to use the default")
        if topic.num_partitions == 0 or topic.num_partitions < -1:
            raise InvalidPartitionsError("Number of partitions must be larger than 0, or -1 to use the default")
        return topic.num_partitions, topic.replication_factor
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise InvalidRequestError("Number of partitions and replication factor follow from a manual assignment")
    if len(topic.assignments) > MOST_PARTITIONS:
        raise InvalidPartitionsError(f"A topic has {MOST_PARTITIONS} partitions at most, not {len(topic.assignments)}")
    for item in topic.assignments:
        _check_replicas(item.broker_ids, node_id)
    if {item.partition_index for item in topic.assignments} != set(range(len(topic.assignments))):
        raise InvalidReplicaAssignmentError("Partitions must be numbered from 0 on, each once")
    return len(topic.assignments), 1


def _check_replicas(brokers: list[int], node_id: int) -> None:
    """The brokers that a manual assignment gives a partition to: there is one."""
    if not brokers:
        raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
    unknown = next((each for each in brokers if each != node_id), None)
    if unknown is not None:
        raise InvalidReplicaAssignmentError(
            f"The manual partition assignment includes broker {unknown}, but no such broker is registered: "
            f"the gateway is broker {node_id}"
        )
    if len(brokers) > 1:
        raise InvalidReplicaAssignmentError("The manual partition assignment names a replica twice")


def _configs(origins: SettingOrigins, overrides: dict[str, str]) -> list[CreatableTopicConfigs]:
    """All settings of a topic; made while they are encoded, as a request may create thousands of topics."""
    rows = (
        CreatableTopicConfigs(name=name, value=origin.text, config_source=origin.source)
        for name in TOPIC_SETTINGS
        for origin in (next(origins.topic_origins(name, overrides)),)
    )
    return lazily(len(TOPIC_SETTINGS), rows)


class DeleteTopicsHandler(Handler):
    """Answers DeleteTopics."""

    API: ClassVar[ApiKey] = ApiKey.DELETE_TOPICS
    VERSIONS: ClassVar[VersionRange] = (0, 6)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, catalogue: TopicCatalogue, *, enabled: Live[bool]) -> None:
        self._access = access
        self._catalogue = catalogue
        self._enabled = enabled

    def begin(self, request: DeleteTopicsRequest, context: RequestContext) -> Begun:
        """Deleting waits for the manager."""
        wanted: Iterable[DeleteTopicState] = request.topics
        sizes = (_PER_TOPIC + len(topic.name or "") for topic in request.topics)
        if context.api_version < 6:
            wanted = (DeleteTopicState(name=name) for name in request.topic_names)
            sizes = (_PER_TOPIC + len(name) for name in request.topic_names)
        finish = partial(self._finish, wanted, request.timeout_ms, context)
        return cast("Begun", counted(sizes, finish))

    async def _finish(
        self, wanted: Iterable[DeleteTopicState], timeout_ms: int, context: RequestContext
    ) -> DeleteTopicsResponse:
        response, until, client = DeleteTopicsResponse(), _until(timeout_ms), context.connection
        pace, mutations = Pace(client.flow), Mutations(context, strict_since=5)
        found = await _by_key(wanted, _key, pace)
        many = len(found) > _SWEPT
        async with side_by_side(_AT_ONCE) as begin:
            for state, repeated in found.values():
                await pace.pause()
                row = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
                response.responses.append(row)
                try:
                    record = self._record(state, client)
                    if repeated or self._is_named_otherwise(state, record, found):
                        raise InvalidRequestError("The request names this topic more than once.")
                except KafkaError as error:
                    put_error(row, error, self.ROLE)
                    continue
                if record is not None:
                    await begin(self._delete_one, state, row, client, until, mutations, not many)
                else:  # which takes no time
                    await self._delete_one(state, row, client, until, mutations, not many)
        if many:
            self._catalogue.sweep_beside()
        return response

    def _record(self, state: DeleteTopicState, client: ConnectionContext) -> TopicRecord | None:
        access, topic_id = self._access, state.topic_id if state.name is None else None
        return access.find(client, AclOperation.DELETE, state.name or "", topic_id, or_cluster=AclOperation.DELETE)

    @staticmethod
    def _is_named_otherwise(state: DeleteTopicState, record: TopicRecord | None, found: Container[Hashable]) -> bool:
        """Whether the topic is named by its name and by its id."""
        if record is None:
            return False
        other = {"name": record.name} if state.name is None else {"topic_id": record.topic_id}
        return _key(DeleteTopicState(**other)) in found

    async def _delete_one(
        self,
        state: DeleteTopicState,
        row: DeletableTopicResult,
        client: ConnectionContext,
        until: float,
        mutations: Mutations,
        sweep: bool,
    ) -> None:
        try:
            await self._delete(state, row, client, until, mutations, sweep)
        except KafkaError as error:
            put_error(row, error, self.ROLE)

    async def _delete(
        self,
        state: DeleteTopicState,
        row: DeletableTopicResult,
        client: ConnectionContext,
        until: float,
        mutations: Mutations,
        sweep: bool,
    ) -> None:
        patience = until - anyio.current_time()
        if not self._enabled():
            raise TopicDeletionDisabledError("Topic deletion is disabled (delete.topic.enable=false).")
        if state.name is not None:
            if state.topic_id != ZERO_UUID:
                raise InvalidRequestError("A topic is named either by name or by id")
            self._access.check_deletable(client, state.name)
            record = self._record(state, client)
            if record is not None:
                row.topic_id = record.topic_id
                mutations.add(record.partitions)
            await self._catalogue.delete(state.name, patience=patience, sweep=sweep)
            return
        if state.topic_id == ZERO_UUID:
            raise InvalidRequestError("A topic is named neither by name nor by id")
        seen = self._access.find(client, AclOperation.DESCRIBE, "", state.topic_id)
        if seen is not None:  # else its name is not told
            row.name = seen.name
        record = self._access.deletable(client, state.topic_id)
        mutations.add(record.partitions)
        try:
            await self._catalogue.delete(record.name, record.topic_id, patience, sweep=sweep)
        except UnknownTopicOrPartitionError as error:  # somebody else was faster
            raise UnknownTopicIdError(str(error)) from error


def _key(state: DeleteTopicState) -> Hashable:
    return state.name, state.topic_id


class CreatePartitionsHandler(Handler):
    """Answers CreatePartitions."""

    API: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS
    VERSIONS: ClassVar[VersionRange] = (0, 3)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, node_id: int, access: Access, catalogue: TopicCatalogue) -> None:
        self._node_id = node_id
        self._access = access
        self._catalogue = catalogue

    def begin(self, request: CreatePartitionsRequest, context: RequestContext) -> Begun:
        """Growing waits for the manager."""
        sizes = (_PER_TOPIC + len(topic.name) for topic in request.topics)
        return cast("Begun", counted(sizes, partial(self._finish, request, context)))

    async def _finish(self, request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
        response, client = CreatePartitionsResponse(), context.connection
        pace = Pace(client.flow)
        grow = partial(self._grow_one, Mutations(context, strict_since=3), validate_only=request.validate_only)
        async with side_by_side(_AT_ONCE) as begin:
            for topic, repeated in await _by_name(request.topics, pace):
                await pace.pause()
                row = CreatePartitionsTopicResult(name=topic.name)
                response.results.append(row)
                if repeated:
                    put_error(row, InvalidRequestError("Duplicate topic in request."), self.ROLE)
                else:
                    await begin(grow, topic, row, client)
        return response

    async def _grow_one(
        self,
        mutations: Mutations,
        topic: CreatePartitionsTopic,
        row: CreatePartitionsTopicResult,
        client: ConnectionContext,
        *,
        validate_only: bool,
    ) -> None:
        try:
            await self._grow(topic, client, mutations, validate_only=validate_only)
        except KafkaError as error:
            put_error(row, error, self.ROLE)

    async def _grow(
        self, topic: CreatePartitionsTopic, client: ConnectionContext, mutations: Mutations, *, validate_only: bool
    ) -> None:
        self._access.check(client, AclOperation.ALTER, ResourceType.TOPIC, topic.name)
        record = self._access.find(client, AclOperation.ALTER, topic.name, None)
        if record is not None and topic.assignments is not None:
            added = topic.count - record.partitions
            if added > 0 and len(topic.assignments) != added:
                raise InvalidReplicaAssignmentError(
                    f"{added} partitions are added and {len(topic.assignments)} assignments given"
                )
            if added > 0:
                for each in topic.assignments:
                    _check_replicas(each.broker_ids, self._node_id)
        if record is not None and record.partitions < topic.count <= MOST_PARTITIONS:
            mutations.add(topic.count - record.partitions)
        await self._catalogue.grow(topic.name, topic.count, validate_only=validate_only)
