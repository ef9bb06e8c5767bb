"""Share groups (KIP-932): many consumers per partition, each record acknowledged for itself."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, INT32_MAX, INT64, RECORDS, STRING, UUID
from kclient.types import Buffer

__all__ = [
    "AcknowledgePartition",
    "AcknowledgeTopic",
    "AcquiredRecords",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsRequestPartition",
    "AlterShareGroupOffsetsRequestTopic",
    "AlterShareGroupOffsetsResponse",
    "AlterShareGroupOffsetsResponsePartition",
    "AlterShareGroupOffsetsResponseTopic",
    "DeleteShareGroupOffsetsRequest",
    "DeleteShareGroupOffsetsRequestTopic",
    "DeleteShareGroupOffsetsResponse",
    "DeleteShareGroupOffsetsResponseTopic",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsRequestGroup",
    "DescribeShareGroupOffsetsRequestTopic",
    "DescribeShareGroupOffsetsResponse",
    "DescribeShareGroupOffsetsResponseGroup",
    "DescribeShareGroupOffsetsResponsePartition",
    "DescribeShareGroupOffsetsResponseTopic",
    "ShareAcknowledgeRequest",
    "ShareAcknowledgeRequestBatch",
    "ShareAcknowledgeResponse",
    "ShareAcknowledgeResponseLeaderIdAndEpoch",
    "ShareAcknowledgeResponseNodeEndpoint",
    "ShareAcknowledgeResponsePartitionData",
    "ShareAcknowledgeTopicResponse",
    "ShareFetchRequest",
    "ShareFetchRequestAcknowledgementBatch",
    "ShareFetchRequestForgottenTopic",
    "ShareFetchRequestPartition",
    "ShareFetchRequestTopic",
    "ShareFetchResponse",
    "ShareFetchResponseLeaderIdAndEpoch",
    "ShareFetchResponseNodeEndpoint",
    "ShareFetchResponsePartitionData",
    "ShareFetchableTopicResponse",
    "ShareGroupDescribeRequest",
    "ShareGroupDescribeResponse",
    "ShareGroupDescribeResponseAssignment",
    "ShareGroupDescribeResponseDescribedGroup",
    "ShareGroupDescribeResponseMember",
    "ShareGroupDescribeResponseTopicPartitions",
    "ShareGroupHeartbeatRequest",
    "ShareGroupHeartbeatResponse",
    "ShareGroupHeartbeatResponseAssignment",
    "ShareGroupHeartbeatResponseTopicPartitions",
]


class ShareGroupHeartbeatRequest(ApiMessage, api_key=76, versions="1", flexible="0+"):
    """Joins, stays in or leaves a share group; fields that did not change are null."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field(ArrayOf(STRING), nullable="0+", default=None)


class ShareGroupHeartbeatResponseTopicPartitions(Message):
    """One of the `topic_partitions` of a `ShareGroupHeartbeatResponseAssignment`."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field(ArrayOf(INT32))


class ShareGroupHeartbeatResponseAssignment(Message):
    """The `assignment` of a `ShareGroupHeartbeatResponse`."""

    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions] = field(
        ArrayOf(ShareGroupHeartbeatResponseTopicPartitions)
    )


class ShareGroupHeartbeatResponse(ApiMessage, api_key=76, versions="1", flexible="0+"):
    """The member's epoch, the time to the next heartbeat, and its assignment if that changed."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: ShareGroupHeartbeatResponseAssignment | None = field(
        ShareGroupHeartbeatResponseAssignment, nullable="0+", default=None
    )


class ShareGroupDescribeRequest(ApiMessage, api_key=77, versions="1", flexible="0+"):
    """Asks for state and members of share groups."""

    group_ids: list[str] = field(ArrayOf(STRING))
    include_authorized_operations: bool = field(BOOL)


class ShareGroupDescribeResponseTopicPartitions(Message):
    """One of the `topic_partitions` of a `ShareGroupDescribeResponseAssignment`."""

    topic_id: bytes = field(UUID)
    topic_name: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class ShareGroupDescribeResponseAssignment(Message):
    """The `assignment` of a `ShareGroupDescribeResponseMember`."""

    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions] = field(
        ArrayOf(ShareGroupDescribeResponseTopicPartitions)
    )


class ShareGroupDescribeResponseMember(Message):
    """One of the `members` of a `ShareGroupDescribeResponseDescribedGroup`."""

    member_id: str = field(STRING)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field(ArrayOf(STRING))
    assignment: ShareGroupDescribeResponseAssignment = field(ShareGroupDescribeResponseAssignment)


class ShareGroupDescribeResponseDescribedGroup(Message):
    """One of the `groups` of a `ShareGroupDescribeResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: list[ShareGroupDescribeResponseMember] = field(ArrayOf(ShareGroupDescribeResponseMember))
    authorized_operations: int = field(INT32, default=-2147483648)


class ShareGroupDescribeResponse(ApiMessage, api_key=77, versions="1", flexible="0+"):
    """Share groups with their members and assignments."""

    throttle_time_ms: int = field(INT32)
    groups: list[ShareGroupDescribeResponseDescribedGroup] = field(ArrayOf(ShareGroupDescribeResponseDescribedGroup))


class ShareFetchRequestAcknowledgementBatch(Message):
    """One of the `acknowledgement_batches` of a `ShareFetchRequestPartition`."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    acknowledge_types: list[int] = field(ArrayOf(INT8))


class ShareFetchRequestPartition(Message):
    """One of the `partitions` of a `ShareFetchRequestTopic`."""

    partition_index: int = field(INT32)
    acknowledgement_batches: list[ShareFetchRequestAcknowledgementBatch] = field(
        ArrayOf(ShareFetchRequestAcknowledgementBatch)
    )


class ShareFetchRequestTopic(Message):
    """One of the `topics` of a `ShareFetchRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[ShareFetchRequestPartition] = field(ArrayOf(ShareFetchRequestPartition))


class ShareFetchRequestForgottenTopic(Message):
    """One of the `forgotten_topics_data` of a `ShareFetchRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field(ArrayOf(INT32))


class ShareFetchRequest(ApiMessage, api_key=78, versions="1-2", flexible="0+"):
    """Acquires records of share partitions, and may acknowledge earlier ones.

    v2 adds modes of acquisition (KIP-1206) and renewal (KIP-1222).
    """

    group_id: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+")
    share_session_epoch: int = field(INT32)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=INT32_MAX)
    max_records: int = field(INT32)
    batch_size: int = field(INT32)
    share_acquire_mode: int = field(INT8, "2+", ignorable=True)
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[ShareFetchRequestTopic] = field(ArrayOf(ShareFetchRequestTopic))
    forgotten_topics_data: list[ShareFetchRequestForgottenTopic] = field(ArrayOf(ShareFetchRequestForgottenTopic))


class ShareFetchResponseLeaderIdAndEpoch(Message):
    """The `current_leader` of a `ShareFetchResponsePartitionData`."""

    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class AcquiredRecords(Message):
    """One of the `acquired_records` of a `ShareFetchResponsePartitionData`."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_count: int = field(INT16)


class ShareFetchResponsePartitionData(Message):
    """One of the `partitions` of a `ShareFetchableTopicResponse`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acknowledge_error_code: int = field(INT16)
    acknowledge_error_message: str | None = field(STRING, nullable="0+", default=None)
    current_leader: ShareFetchResponseLeaderIdAndEpoch = field(ShareFetchResponseLeaderIdAndEpoch)
    records: Buffer = field(RECORDS)
    acquired_records: list[AcquiredRecords] = field(ArrayOf(AcquiredRecords))


class ShareFetchableTopicResponse(Message):
    """One of the `responses` of a `ShareFetchResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[ShareFetchResponsePartitionData] = field(ArrayOf(ShareFetchResponsePartitionData))


class ShareFetchResponseNodeEndpoint(Message):
    """One of the `node_endpoints` of a `ShareFetchResponse`."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)


class ShareFetchResponse(ApiMessage, api_key=78, versions="1-2", flexible="0+"):
    """Record batches, and which of their offsets were acquired for this member."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32)
    responses: list[ShareFetchableTopicResponse] = field(ArrayOf(ShareFetchableTopicResponse))
    node_endpoints: list[ShareFetchResponseNodeEndpoint] = field(ArrayOf(ShareFetchResponseNodeEndpoint))


class ShareAcknowledgeRequestBatch(Message):
    """One of the `acknowledgement_batches` of a `AcknowledgePartition`."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    acknowledge_types: list[int] = field(ArrayOf(INT8))


class AcknowledgePartition(Message):
    """One of the `partitions` of a `AcknowledgeTopic`."""

    partition_index: int = field(INT32)
    acknowledgement_batches: list[ShareAcknowledgeRequestBatch] = field(ArrayOf(ShareAcknowledgeRequestBatch))


class AcknowledgeTopic(Message):
    """One of the `topics` of a `ShareAcknowledgeRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[AcknowledgePartition] = field(ArrayOf(AcknowledgePartition))


class ShareAcknowledgeRequest(ApiMessage, api_key=79, versions="1-2", flexible="0+"):
    """Acknowledges acquired records: accepted, released, rejected, or from v2 on renewed (KIP-1222)."""

    group_id: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+")
    share_session_epoch: int = field(INT32)
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[AcknowledgeTopic] = field(ArrayOf(AcknowledgeTopic))


class ShareAcknowledgeResponseLeaderIdAndEpoch(Message):
    """The `current_leader` of a `ShareAcknowledgeResponsePartitionData`."""

    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class ShareAcknowledgeResponsePartitionData(Message):
    """One of the `partitions` of a `ShareAcknowledgeTopicResponse`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    current_leader: ShareAcknowledgeResponseLeaderIdAndEpoch = field(ShareAcknowledgeResponseLeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Message):
    """One of the `responses` of a `ShareAcknowledgeResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[ShareAcknowledgeResponsePartitionData] = field(ArrayOf(ShareAcknowledgeResponsePartitionData))


class ShareAcknowledgeResponseNodeEndpoint(Message):
    """One of the `node_endpoints` of a `ShareAcknowledgeResponse`."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)


class ShareAcknowledgeResponse(ApiMessage, api_key=79, versions="1-2", flexible="0+"):
    """Whether it worked, for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32, "2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = field(ArrayOf(ShareAcknowledgeTopicResponse))
    node_endpoints: list[ShareAcknowledgeResponseNodeEndpoint] = field(ArrayOf(ShareAcknowledgeResponseNodeEndpoint))


class DescribeShareGroupOffsetsRequestTopic(Message):
    """One of the `topics` of a `DescribeShareGroupOffsetsRequestGroup`."""

    topic_name: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class DescribeShareGroupOffsetsRequestGroup(Message):
    """One of the `groups` of a `DescribeShareGroupOffsetsRequest`."""

    group_id: str = field(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(
        ArrayOf(DescribeShareGroupOffsetsRequestTopic), nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(ApiMessage, api_key=90, versions="0-1", flexible="0+"):
    """Asks for the start offsets of a share group."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(ArrayOf(DescribeShareGroupOffsetsRequestGroup))


class DescribeShareGroupOffsetsResponsePartition(Message):
    """One of the `partitions` of a `DescribeShareGroupOffsetsResponseTopic`."""

    partition_index: int = field(INT32)
    start_offset: int = field(INT64)
    leader_epoch: int = field(INT32)
    lag: int = field(INT64, "1+", default=-1, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Message):
    """One of the `topics` of a `DescribeShareGroupOffsetsResponseGroup`."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(
        ArrayOf(DescribeShareGroupOffsetsResponsePartition)
    )


class DescribeShareGroupOffsetsResponseGroup(Message):
    """One of the `groups` of a `DescribeShareGroupOffsetsResponse`."""

    group_id: str = field(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(ArrayOf(DescribeShareGroupOffsetsResponseTopic))
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(ApiMessage, api_key=90, versions="0-1", flexible="0+"):
    """The start offsets; v1 adds the lag (KIP-1226)."""

    throttle_time_ms: int = field(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(ArrayOf(DescribeShareGroupOffsetsResponseGroup))


class AlterShareGroupOffsetsRequestPartition(Message):
    """One of the `partitions` of a `AlterShareGroupOffsetsRequestTopic`."""

    partition_index: int = field(INT32)
    start_offset: int = field(INT64)


class AlterShareGroupOffsetsRequestTopic(Message):
    """One of the `topics` of a `AlterShareGroupOffsetsRequest`."""

    topic_name: str = field(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(ArrayOf(AlterShareGroupOffsetsRequestPartition))


class AlterShareGroupOffsetsRequest(ApiMessage, api_key=91, versions="0", flexible="0+"):
    """Sets the start offsets of a share group that has no members."""

    group_id: str = field(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(ArrayOf(AlterShareGroupOffsetsRequestTopic))


class AlterShareGroupOffsetsResponsePartition(Message):
    """One of the `partitions` of a `AlterShareGroupOffsetsResponseTopic`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Message):
    """One of the `responses` of a `AlterShareGroupOffsetsResponse`."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(ArrayOf(AlterShareGroupOffsetsResponsePartition))


class AlterShareGroupOffsetsResponse(ApiMessage, api_key=91, versions="0", flexible="0+"):
    """Whether it worked, for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(ArrayOf(AlterShareGroupOffsetsResponseTopic))


class DeleteShareGroupOffsetsRequestTopic(Message):
    """One of the `topics` of a `DeleteShareGroupOffsetsRequest`."""

    topic_name: str = field(STRING)


class DeleteShareGroupOffsetsRequest(ApiMessage, api_key=92, versions="0", flexible="0+"):
    """Deletes the offsets of a share group for topics."""

    group_id: str = field(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(ArrayOf(DeleteShareGroupOffsetsRequestTopic))


class DeleteShareGroupOffsetsResponseTopic(Message):
    """One of the `responses` of a `DeleteShareGroupOffsetsResponse`."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(ApiMessage, api_key=92, versions="0", flexible="0+"):
    """Whether it worked, for each topic."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(ArrayOf(DeleteShareGroupOffsetsResponseTopic))
