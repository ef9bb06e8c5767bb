"""Groups of Kafka Streams instances (KIP-1071)."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16

__all__ = [
    "CopartitionGroup",
    "EndpointToPartitions",
    "StreamsGroupDescribeRequest",
    "StreamsGroupDescribeResponse",
    "StreamsGroupDescribeResponseAssignment",
    "StreamsGroupDescribeResponseDescribedGroup",
    "StreamsGroupDescribeResponseEndpoint",
    "StreamsGroupDescribeResponseKeyValue",
    "StreamsGroupDescribeResponseMember",
    "StreamsGroupDescribeResponseSubtopology",
    "StreamsGroupDescribeResponseTaskIds",
    "StreamsGroupDescribeResponseTaskOffset",
    "StreamsGroupDescribeResponseTopicInfo",
    "StreamsGroupDescribeResponseTopology",
    "StreamsGroupHeartbeatRequest",
    "StreamsGroupHeartbeatRequestEndpoint",
    "StreamsGroupHeartbeatRequestKeyValue",
    "StreamsGroupHeartbeatRequestSubtopology",
    "StreamsGroupHeartbeatRequestTaskIds",
    "StreamsGroupHeartbeatRequestTaskOffset",
    "StreamsGroupHeartbeatRequestTopicInfo",
    "StreamsGroupHeartbeatRequestTopology",
    "StreamsGroupHeartbeatResponse",
    "StreamsGroupHeartbeatResponseEndpoint",
    "StreamsGroupHeartbeatResponseStatus",
    "StreamsGroupHeartbeatResponseTaskIds",
    "StreamsGroupHeartbeatResponseTopicPartition",
]


class StreamsGroupHeartbeatRequestKeyValue(Message):
    """One of the `topic_configs` of a `StreamsGroupHeartbeatRequestTopicInfo`."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsGroupHeartbeatRequestTopicInfo(Message):
    """One of the `state_changelog_topics` of a `StreamsGroupHeartbeatRequestSubtopology`."""

    name: str = field(STRING)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[StreamsGroupHeartbeatRequestKeyValue] = field(ArrayOf(StreamsGroupHeartbeatRequestKeyValue))


class CopartitionGroup(Message):
    """One of the `copartition_groups` of a `StreamsGroupHeartbeatRequestSubtopology`."""

    source_topics: list[int] = field(ArrayOf(INT16))
    source_topic_regex: list[int] = field(ArrayOf(INT16))
    repartition_source_topics: list[int] = field(ArrayOf(INT16))


class StreamsGroupHeartbeatRequestSubtopology(Message):
    """One of the `subtopologies` of a `StreamsGroupHeartbeatRequestTopology`."""

    subtopology_id: str = field(STRING)
    source_topics: list[str] = field(ArrayOf(STRING))
    source_topic_regex: list[str] = field(ArrayOf(STRING))
    state_changelog_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = field(
        ArrayOf(StreamsGroupHeartbeatRequestTopicInfo)
    )
    repartition_sink_topics: list[str] = field(ArrayOf(STRING))
    repartition_source_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = field(
        ArrayOf(StreamsGroupHeartbeatRequestTopicInfo)
    )
    copartition_groups: list[CopartitionGroup] = field(ArrayOf(CopartitionGroup))


class StreamsGroupHeartbeatRequestTopology(Message):
    """The `topology` of a `StreamsGroupHeartbeatRequest`."""

    epoch: int = field(INT32)
    subtopologies: list[StreamsGroupHeartbeatRequestSubtopology] = field(
        ArrayOf(StreamsGroupHeartbeatRequestSubtopology)
    )


class StreamsGroupHeartbeatRequestTaskIds(Message):
    """One of the `active_tasks` of a `StreamsGroupHeartbeatRequest`."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class StreamsGroupHeartbeatRequestEndpoint(Message):
    """The `user_endpoint` of a `StreamsGroupHeartbeatRequest`."""

    host: str = field(STRING)
    port: int = field(UINT16)


class StreamsGroupHeartbeatRequestTaskOffset(Message):
    """One of the `task_offsets` of a `StreamsGroupHeartbeatRequest`."""

    subtopology_id: str = field(STRING)
    partition: int = field(INT32)
    offset: int = field(INT64)


class StreamsGroupHeartbeatRequest(ApiMessage, api_key=88, versions="0", flexible="0+"):
    """Joins, stays in or leaves a Streams group; the first heartbeat also brings the topology."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    endpoint_information_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology: StreamsGroupHeartbeatRequestTopology | None = field(
        StreamsGroupHeartbeatRequestTopology, nullable="0+", default=None
    )
    active_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestTaskIds), nullable="0+", default=None
    )
    standby_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestTaskIds), nullable="0+", default=None
    )
    warmup_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestTaskIds), nullable="0+", default=None
    )
    process_id: str | None = field(STRING, nullable="0+", default=None)
    user_endpoint: StreamsGroupHeartbeatRequestEndpoint | None = field(
        StreamsGroupHeartbeatRequestEndpoint, nullable="0+", default=None
    )
    client_tags: list[StreamsGroupHeartbeatRequestKeyValue] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestKeyValue), nullable="0+", default=None
    )
    task_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestTaskOffset), nullable="0+", default=None
    )
    task_end_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = field(
        ArrayOf(StreamsGroupHeartbeatRequestTaskOffset), nullable="0+", default=None
    )
    shutdown_application: bool = field(BOOL)


class StreamsGroupHeartbeatResponseStatus(Message):
    """One of the `status` of a `StreamsGroupHeartbeatResponse`."""

    status_code: int = field(INT8)
    status_detail: str = field(STRING)


class StreamsGroupHeartbeatResponseTaskIds(Message):
    """One of the `active_tasks` of a `StreamsGroupHeartbeatResponse`."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class StreamsGroupHeartbeatResponseEndpoint(Message):
    """The `user_endpoint` of a `EndpointToPartitions`."""

    host: str = field(STRING)
    port: int = field(UINT16)


class StreamsGroupHeartbeatResponseTopicPartition(Message):
    """One of the `active_partitions` of a `EndpointToPartitions`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class EndpointToPartitions(Message):
    """One of the `partitions_by_user_endpoint` of a `StreamsGroupHeartbeatResponse`."""

    user_endpoint: StreamsGroupHeartbeatResponseEndpoint = field(StreamsGroupHeartbeatResponseEndpoint)
    active_partitions: list[StreamsGroupHeartbeatResponseTopicPartition] = field(
        ArrayOf(StreamsGroupHeartbeatResponseTopicPartition)
    )
    standby_partitions: list[StreamsGroupHeartbeatResponseTopicPartition] = field(
        ArrayOf(StreamsGroupHeartbeatResponseTopicPartition)
    )


class StreamsGroupHeartbeatResponse(ApiMessage, api_key=88, versions="0", flexible="0+"):
    """The member's epoch, its tasks if they changed, and what is wrong with the topology, if anything."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    acceptable_recovery_lag: int = field(INT32)
    task_offset_interval_ms: int = field(INT32)
    status: list[StreamsGroupHeartbeatResponseStatus] | None = field(
        ArrayOf(StreamsGroupHeartbeatResponseStatus), nullable="0+"
    )
    active_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatResponseTaskIds), nullable="0+", default=None
    )
    standby_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatResponseTaskIds), nullable="0+", default=None
    )
    warmup_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field(
        ArrayOf(StreamsGroupHeartbeatResponseTaskIds), nullable="0+", default=None
    )
    endpoint_information_epoch: int = field(INT32)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(
        ArrayOf(EndpointToPartitions), nullable="0+", default=None
    )


class StreamsGroupDescribeRequest(ApiMessage, api_key=89, versions="0", flexible="0+"):
    """Asks for state, topology and members of Streams groups."""

    group_ids: list[str] = field(ArrayOf(STRING))
    include_authorized_operations: bool = field(BOOL)


class StreamsGroupDescribeResponseKeyValue(Message):
    """One of the `topic_configs` of a `StreamsGroupDescribeResponseTopicInfo`."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsGroupDescribeResponseTopicInfo(Message):
    """One of the `state_changelog_topics` of a `StreamsGroupDescribeResponseSubtopology`."""

    name: str = field(STRING)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[StreamsGroupDescribeResponseKeyValue] = field(ArrayOf(StreamsGroupDescribeResponseKeyValue))


class StreamsGroupDescribeResponseSubtopology(Message):
    """One of the `subtopologies` of a `StreamsGroupDescribeResponseTopology`."""

    subtopology_id: str = field(STRING)
    source_topics: list[str] = field(ArrayOf(STRING))
    repartition_sink_topics: list[str] = field(ArrayOf(STRING))
    state_changelog_topics: list[StreamsGroupDescribeResponseTopicInfo] = field(
        ArrayOf(StreamsGroupDescribeResponseTopicInfo)
    )
    repartition_source_topics: list[StreamsGroupDescribeResponseTopicInfo] = field(
        ArrayOf(StreamsGroupDescribeResponseTopicInfo)
    )


class StreamsGroupDescribeResponseTopology(Message):
    """The `topology` of a `StreamsGroupDescribeResponseDescribedGroup`."""

    epoch: int = field(INT32)
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = field(
        ArrayOf(StreamsGroupDescribeResponseSubtopology), nullable="0+", default=None
    )


class StreamsGroupDescribeResponseEndpoint(Message):
    """The `user_endpoint` of a `StreamsGroupDescribeResponseMember`."""

    host: str = field(STRING)
    port: int = field(UINT16)


class StreamsGroupDescribeResponseTaskOffset(Message):
    """One of the `task_offsets` of a `StreamsGroupDescribeResponseMember`."""

    subtopology_id: str = field(STRING)
    partition: int = field(INT32)
    offset: int = field(INT64)


class StreamsGroupDescribeResponseTaskIds(Message):
    """One of the `active_tasks` of a `StreamsGroupDescribeResponseAssignment`."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class StreamsGroupDescribeResponseAssignment(Message):
    """The `assignment` of a `StreamsGroupDescribeResponseMember`."""

    active_tasks: list[StreamsGroupDescribeResponseTaskIds] = field(ArrayOf(StreamsGroupDescribeResponseTaskIds))
    standby_tasks: list[StreamsGroupDescribeResponseTaskIds] = field(ArrayOf(StreamsGroupDescribeResponseTaskIds))
    warmup_tasks: list[StreamsGroupDescribeResponseTaskIds] = field(ArrayOf(StreamsGroupDescribeResponseTaskIds))


class StreamsGroupDescribeResponseMember(Message):
    """One of the `members` of a `StreamsGroupDescribeResponseDescribedGroup`."""

    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: StreamsGroupDescribeResponseEndpoint | None = field(
        StreamsGroupDescribeResponseEndpoint, nullable="0+", default=None
    )
    client_tags: list[StreamsGroupDescribeResponseKeyValue] = field(ArrayOf(StreamsGroupDescribeResponseKeyValue))
    task_offsets: list[StreamsGroupDescribeResponseTaskOffset] = field(ArrayOf(StreamsGroupDescribeResponseTaskOffset))
    task_end_offsets: list[StreamsGroupDescribeResponseTaskOffset] = field(
        ArrayOf(StreamsGroupDescribeResponseTaskOffset)
    )
    assignment: StreamsGroupDescribeResponseAssignment = field(StreamsGroupDescribeResponseAssignment)
    target_assignment: StreamsGroupDescribeResponseAssignment = field(StreamsGroupDescribeResponseAssignment)
    is_classic: bool = field(BOOL)


class StreamsGroupDescribeResponseDescribedGroup(Message):
    """One of the `groups` of a `StreamsGroupDescribeResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    topology: StreamsGroupDescribeResponseTopology | None = field(
        StreamsGroupDescribeResponseTopology, nullable="0+", default=None
    )
    members: list[StreamsGroupDescribeResponseMember] = field(ArrayOf(StreamsGroupDescribeResponseMember))
    authorized_operations: int = field(INT32, default=-2147483648)


class StreamsGroupDescribeResponse(ApiMessage, api_key=89, versions="0", flexible="0+"):
    """Streams groups with their topology and the tasks of their members."""

    throttle_time_ms: int = field(INT32)
    groups: list[StreamsGroupDescribeResponseDescribedGroup] = field(
        ArrayOf(StreamsGroupDescribeResponseDescribedGroup)
    )
