"""Groups of Kafka Streams instances (KIP-1071): StreamsGroupHeartbeat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    StreamsInvalidTopologyError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kclient.gateway.access import CLUSTER_NAME
from kclient.gateway.error_codes import Role, put_error, text_of
from kclient.gateway.features import STREAMS_VERSION
from kclient.gateway.groups.assignors.tasks import NO_TASKS, Tasks, TaskSets
from kclient.gateway.groups.replies import when_done
from kclient.gateway.groups.streaming.member import JOINING
from kclient.gateway.groups.streaming.membership import InformedBeat
from kclient.gateway.groups.streams_beats import BeatStatus, QueryEndpoint, StatusCode, StreamsBeat, StreamsBeatResult
from kclient.gateway.handlers._work import FEW, Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.rows.streams_topology import Copartition, StreamsTopic, Subtopology, Topology
from kclient.gateway.topics.names import INTERNAL, check_name
from kclient.protocol.messages.streams import (
    EndpointToPartitions,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatResponseEndpoint,
    StreamsGroupHeartbeatResponseStatus,
    StreamsGroupHeartbeatResponseTaskIds,
    StreamsGroupHeartbeatResponseTopicPartition,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.features import Features
    from kclient.gateway.groups.streaming.creating import StreamsTopics
    from kclient.gateway.groups.streaming.membership import StreamsMembership

_NOT_STATIC: Final = "there are no static members of streams groups, as on Kafka: unset group.instance.id"
_MOST_BYTES: Final = 1 << 19
"""The longest row of a topology."""
_MOST_TOPICS, _MOST_SUBTOPOLOGIES = 2_000, 1_000
"""Topics that a topology may name, and its subtopologies: what follows from them is worked out in one go."""
_MOST_ENTRIES: Final = 10_000
"""The same of everything in its lists, however often they name a topic."""
_MOST_OF_ID: Final = 249
"""Characters of a subtopology's id: the rows of all members have it. Topics' names have no more either."""
_NO_NUMBERS: Final[frozenset[int]] = frozenset()
_PER_SUBTOPOLOGY, _PER_TOPIC = 300, 500
"""About how many bytes of memory these take that a member tells."""
_MOST_TOLD: Final = 20_000
"""Tasks, and subtopologies, of which a member may say in one list that it has them: a group has no more."""
_SHOWN: Final = 3
"""Topics that are told of many which could not be made."""
_REMEMBERED: Final = 2
"""For so many intervals of heartbeats it is told that a topic could not be made."""


def check_streams_are_on(features: Features) -> None:
    """Whether there are streams groups. Raises `UnsupportedVersionError` where the feature is off, as Kafka does."""
    if not features.levels.get(STREAMS_VERSION):
        raise UnsupportedVersionError(
            f"the feature {STREAMS_VERSION} is off: raise it to 1, or set group.protocol=classic"
        )


class StreamsGroupHeartbeatHandler(Handler):
    """Takes members into groups, keeps them there, tells them their tasks, and has topics made that these need."""

    API: ClassVar[ApiKey] = ApiKey.STREAMS_GROUP_HEARTBEAT
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: StreamsMembership, topics: StreamsTopics, features: Features) -> None:
        self._access = access
        self._groups = groups
        self._topics = topics
        self._features = features

    def begin(self, request: StreamsGroupHeartbeatRequest, context: RequestContext) -> Begun:
        """Note that the member lives; the answer waits until what is new in it is stored."""
        check_streams_are_on(self._features)
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: StreamsGroupHeartbeatRequest, context: RequestContext) -> Work:
        client, topology = context.connection, None
        if request.topology is not None:
            topology = yield from _topology(request.topology)
            yield from self._check_topics(topology, client)
        yield from _check(request)
        owned = None
        if request.active_tasks is not None:
            active = yield from _owned(request.active_tasks)
            standby = yield from _owned(request.standby_tasks or ())
            warmup = yield from _owned(request.warmup_tasks or ())
            owned = TaskSets(active, standby, warmup)
        beat = _beat_of(request, context, topology, owned)
        looked = yield from self._groups.look(request.group_id, topology)
        parked = self._groups.heartbeat(request.group_id, InformedBeat(beat, looked))
        interval_ms = self._groups.heartbeat_interval_ms(request.group_id)

        def respond(result: StreamsBeatResult) -> StreamsGroupHeartbeatResponse:
            status = [*result.status]
            if not result.error and result.missing:
                try:
                    status = self._make(request.group_id, result.missing, status, interval_ms, client)
                except KafkaError as error:  # nobody can say what the client may do
                    refused = StreamsGroupHeartbeatResponse()
                    put_error(refused, error, self.ROLE)
                    return refused
            return _response(result, status, interval_ms)

        return when_done(parked, respond)

    def _check_topics(self, topology: Topology, client: ConnectionContext) -> Work:
        """Whether an application may use its topics, in steps.

        Raises:
            StreamsInvalidTopologyError: One of them has a name that no application's has.
            TopicAuthorizationError: Its client may not DESCRIBE one of them.
        """
        own = sorted(topology.named & INTERNAL)
        if own:
            raise StreamsInvalidTopologyError(f"the topology uses topics that are Kafka's own: {', '.join(own)}")
        for count, name in enumerate(sorted(topology.named), 1):
            try:
                check_name(name)
            except InvalidTopicError as error:
                raise StreamsInvalidTopologyError(str(error)) from error
            if not self._access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name, asked=True):
                raise TopicAuthorizationError(f"{client.principal} may not DESCRIBE the topic {name[:300]}")
            if count % FEW == 0:
                yield _PER_TOPIC * FEW

    def _make(
        self,
        group_id: str,
        missing: Sequence[StreamsTopic],
        status: list[BeatStatus],
        interval_ms: int,
        client: ConnectionContext,
    ) -> list[BeatStatus]:
        """Have missing topics made, if the client may: all of them or none; and tell what has come of it so far."""
        access = self._access
        refused: list[str] = []
        if not access.allows(client, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            refused = [
                topic.name
                for topic in missing
                if not access.allows(client, AclOperation.CREATE, ResourceType.TOPIC, topic.name, asked=True)
            ]
        if refused:
            return _with_detail(status, f"{client.principal} may not CREATE {_told(refused)}")
        self._topics.make(group_id, missing, _REMEMBERED * interval_ms / 1000)
        failed = self._topics.failures([topic.name for topic in missing])
        if not failed:
            return status
        return _with_detail(status, f"not made: {_told([f'{name} ({why})' for name, why in failed.items()])}")


def _told(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _with_detail(status: Iterable[BeatStatus], detail: str) -> list[BeatStatus]:
    """What is missing, with why it is."""
    return [
        each._replace(detail=f"{each.detail}; {detail}") if each.code is StatusCode.MISSING_INTERNAL_TOPICS else each
        for each in status
    ]


def _check(request: StreamsGroupHeartbeatRequest) -> Work:
    """Whether a request says what it has to, and nothing that Kafka 4.3 does not take either, in steps."""
    epoch, joins = request.member_epoch, request.member_epoch == JOINING
    if request.instance_id is not None:
        raise InvalidRequestError(_NOT_STATIC)
    if request.task_offsets is not None or request.task_end_offsets is not None:
        raise InvalidRequestError("offsets of tasks are not taken, as on Kafka 4.3: task_offsets has to be null")
    if request.warmup_tasks:
        raise InvalidRequestError("there are no warm-up tasks, as on Kafka 4.3: warmup_tasks has to be empty")
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        raise InvalidRequestError("sources by patterns are not taken, as on Kafka 4.3: name the topics")
    for name in ("member_id", "group_id", "rack_id"):
        if getattr(request, name) == "":
            raise InvalidRequestError(f"{name} is empty")
    tasks = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if joins:
        if request.rebalance_timeout_ms == -1:
            raise InvalidRequestError("who joins has to say its rebalance_timeout_ms")
        if any(each is None or each for each in tasks):
            raise InvalidRequestError("who joins has no tasks yet: active_tasks and the others have to be empty")
        if request.topology is None:
            raise InvalidRequestError("who joins has to bring a topology along")
        yield from _check_numbers(request.topology)
    elif epoch < -1:
        raise InvalidRequestError(_NOT_STATIC if epoch == -2 else f"there is no member epoch {epoch}")
    if any(each is not None for each in tasks) and any(each is None for each in tasks):
        raise InvalidRequestError("active_tasks, standby_tasks and warmup_tasks are null, or none of them")
    if not joins and request.topology is not None:
        raise InvalidRequestError("only who joins brings a topology along")


def _check_numbers(topology: StreamsGroupHeartbeatRequestTopology) -> Work:
    for count, each in enumerate(topology.subtopologies, 1):
        if count % FEW == 0:
            yield None
        for topic in each.state_changelog_topics:
            if topic.partitions:
                raise StreamsInvalidTopologyError(
                    f"the changelog {topic.name[:300]} has {topic.partitions} partitions: how many follows from what "
                    "is read, so it has to be 0"
                )
        for topic in chain(each.repartition_source_topics, each.state_changelog_topics):
            if min(topic.partitions, topic.replication_factor + 1) < 0:
                raise StreamsInvalidTopologyError(
                    f"{topic.name[:300]} cannot have {topic.partitions} partitions and "
                    f"{topic.replication_factor} replicas"
                )


def _topology(told: StreamsGroupHeartbeatRequestTopology) -> Work:
    """The topology that a member brings along."""
    if told.epoch < 0:
        raise InvalidRequestError(f"a topology has no epoch {told.epoch}")
    yield from _check_extent(told)
    parts: list[Subtopology] = []
    for each in told.subtopologies:
        parts.append(
            Subtopology(
                each.subtopology_id,
                tuple(each.source_topics),
                tuple(each.repartition_sink_topics),
                tuple(map(_internal, each.repartition_source_topics)),
                tuple(map(_internal, each.state_changelog_topics)),
                tuple(
                    Copartition(tuple(group.source_topics), tuple(group.repartition_source_topics))
                    for group in each.copartition_groups
                ),
            )
        )
        if len(parts) % FEW == 0:
            yield _PER_TOPIC * FEW
    topology = Topology(told.epoch, tuple(parts))
    if len(topology.subtopologies) < len(parts):
        raise InvalidRequestError("two subtopologies have the same id")
    yield from topology.sum_up()
    if len(topology.named) > _MOST_TOPICS:
        raise StreamsInvalidTopologyError(f"a topology names {_MOST_TOPICS} topics at most, not {len(topology.named)}")
    if len(topology.text) > _MOST_BYTES:
        raise StreamsInvalidTopologyError(f"a topology takes {_MOST_BYTES} bytes at most, not {len(topology.text)}")
    return topology


def _check_extent(told: StreamsGroupHeartbeatRequestTopology) -> Work:
    """Whether a topology is short enough that each part of it may be looked at, in steps.

    Raises:
        StreamsInvalidTopologyError: It is not.
    """
    if len(told.subtopologies) > _MOST_SUBTOPOLOGIES:
        raise StreamsInvalidTopologyError(f"a topology has {_MOST_SUBTOPOLOGIES} subtopologies at most")
    entries = size = 0
    for count, each in enumerate(told.subtopologies, 1):
        if count % FEW == 0:
            yield None
        topics = each.repartition_source_topics, each.state_changelog_topics
        names = each.source_topics, each.repartition_sink_topics
        if len(each.subtopology_id) > _MOST_OF_ID:
            raise StreamsInvalidTopologyError(
                f"the id of a subtopology has {_MOST_OF_ID} characters at most, not {len(each.subtopology_id)}"
            )
        entries = _counted(entries, 1, *map(len, topics), *map(len, names), len(each.copartition_groups))
        for group in each.copartition_groups:
            entries = _counted(entries, len(group.source_topics), len(group.repartition_source_topics))
        for some in names:
            size += sum(map(len, some))
        for topic in chain(*topics):
            entries = _counted(entries, len(topic.topic_configs))
            size += len(topic.name) + sum(len(config.key) + len(config.value) for config in topic.topic_configs)
        if size > _MOST_BYTES:
            raise StreamsInvalidTopologyError(f"a topology takes {_MOST_BYTES} bytes at most, and its names take more")


def _counted(entries: int, *more: int) -> int:
    entries += sum(more)
    if entries > _MOST_ENTRIES:
        raise StreamsInvalidTopologyError(f"the lists of a topology have {_MOST_ENTRIES} entries at most in all")
    return entries


def _internal(told: StreamsGroupHeartbeatRequestTopicInfo) -> StreamsTopic:
    configs = tuple(sorted((each.key, each.value) for each in told.topic_configs))
    return StreamsTopic(told.name, told.partitions, told.replication_factor, configs)


def _owned(told: Iterable[StreamsGroupHeartbeatRequestTaskIds]) -> Work:
    """The tasks that a member says it has; it may name a subtopology in several places.

    Raises:
        InvalidRequestError: They are more than a group has.
    """
    owned: dict[str, frozenset[int]] = {}
    total = 0
    for count, each in enumerate(told, 1):
        total += max(len(each.partitions), 1)
        if total > _MOST_TOLD:
            raise InvalidRequestError(f"a member has {_MOST_TOLD} tasks at most, and says that it has more")
        owned[each.subtopology_id] = owned.get(each.subtopology_id, _NO_NUMBERS).union(each.partitions)
        if count % FEW == 0:
            yield _PER_SUBTOPOLOGY * FEW
    return owned or NO_TASKS


def _beat_of(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, topology: Topology | None, owned: TaskSets | None
) -> StreamsBeat:
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsBeat(
        request.member_id,
        request.member_epoch,
        context.client_id or "",
        context.connection.client_host,
        request.rack_id,
        request.rebalance_timeout_ms,
        topology,
        owned,
        request.process_id,
        None if endpoint is None else QueryEndpoint(endpoint.host, endpoint.port),
        None if tags is None else tuple(sorted({each.key: each.value for each in tags}.items())),
        request.endpoint_information_epoch,
        request.shutdown_application,
    )


def _response(
    result: StreamsBeatResult, status: Sequence[BeatStatus], interval_ms: int
) -> StreamsGroupHeartbeatResponse:
    response = StreamsGroupHeartbeatResponse(
        error_code=result.error, error_message=None if result.message is None else text_of(result.message)
    )
    if result.error:
        return response
    response.member_id, response.member_epoch = result.member_id, result.epoch
    response.status = [
        StreamsGroupHeartbeatResponseStatus(status_code=each.code, status_detail=text_of(each.detail))
        for each in status
    ]
    if result.epoch < JOINING:
        return response  # who leaves
    response.heartbeat_interval_ms = interval_ms
    response.endpoint_information_epoch = result.endpoints_epoch
    if result.tasks is not None:
        response.active_tasks = _tasks(result.tasks.active)
        response.standby_tasks = _tasks(result.tasks.standby)
        response.warmup_tasks = _tasks(result.tasks.warmup)
    if result.placed is not None:
        response.partitions_by_user_endpoint = rows_for(
            result.placed,
            lambda each: EndpointToPartitions(
                user_endpoint=StreamsGroupHeartbeatResponseEndpoint(host=each.endpoint.host, port=each.endpoint.port),
                active_partitions=_partitions(each.active),
                standby_partitions=_partitions(each.standby),
            ),
        )
    return response


def _tasks(tasks: Tasks) -> list[StreamsGroupHeartbeatResponseTaskIds]:
    return rows_for(
        sorted(tasks),
        lambda name: StreamsGroupHeartbeatResponseTaskIds(subtopology_id=name, partitions=sorted(tasks[name])),
    )


def _partitions(topics: Mapping[str, Collection[int]]) -> list[StreamsGroupHeartbeatResponseTopicPartition]:
    return rows_for(
        topics.items(),
        lambda row: StreamsGroupHeartbeatResponseTopicPartition(topic=row[0], partitions=list(row[1])),
    )
