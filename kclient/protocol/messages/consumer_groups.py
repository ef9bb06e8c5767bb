"""Consumer groups whose assignment the coordinator computes (KIP-848)."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, STRING, UUID

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeResponseAssignment",
    "ConsumerGroupDescribeResponseDescribedGroup",
    "ConsumerGroupDescribeResponseMember",
    "ConsumerGroupDescribeResponseTopicPartitions",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatRequestTopicPartitions",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupHeartbeatResponseAssignment",
    "ConsumerGroupHeartbeatResponseTopicPartitions",
]


class ConsumerGroupHeartbeatRequestTopicPartitions(Message):
    """One of the `topic_partitions` of a `ConsumerGroupHeartbeatRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field(ArrayOf(INT32))


class ConsumerGroupHeartbeatRequest(ApiMessage, api_key=68, versions="0-1", flexible="0+"):
    """Joins, stays in or leaves a consumer group: fields that did not change since the last heartbeat are
    null (KIP-848).

    The epoch says what it is: 0 joins, -1 leaves, -2 leaves for a while (static members). v1 adds
    subscription by regular expression, and members choose their own id (KIP-1082).
    """

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: list[str] | None = field(ArrayOf(STRING), nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = field(
        ArrayOf(ConsumerGroupHeartbeatRequestTopicPartitions), nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Message):
    """One of the `topic_partitions` of a `ConsumerGroupHeartbeatResponseAssignment`."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field(ArrayOf(INT32))


class ConsumerGroupHeartbeatResponseAssignment(Message):
    """The `assignment` of a `ConsumerGroupHeartbeatResponse`."""

    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = field(
        ArrayOf(ConsumerGroupHeartbeatResponseTopicPartitions)
    )


class ConsumerGroupHeartbeatResponse(ApiMessage, api_key=68, versions="0-1", flexible="0+"):
    """The member's epoch, the time to the next heartbeat, and its assignment if that changed."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = field(
        ConsumerGroupHeartbeatResponseAssignment, nullable="0+", default=None
    )


class ConsumerGroupDescribeRequest(ApiMessage, api_key=69, versions="0-1", flexible="0+"):
    """Asks for state and members of consumer groups (KIP-848)."""

    group_ids: list[str] = field(ArrayOf(STRING))
    include_authorized_operations: bool = field(BOOL)


class ConsumerGroupDescribeResponseTopicPartitions(Message):
    """One of the `topic_partitions` of a `ConsumerGroupDescribeResponseAssignment`."""

    topic_id: bytes = field(UUID)
    topic_name: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class ConsumerGroupDescribeResponseAssignment(Message):
    """The `assignment` of a `ConsumerGroupDescribeResponseMember`."""

    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = field(
        ArrayOf(ConsumerGroupDescribeResponseTopicPartitions)
    )


class ConsumerGroupDescribeResponseMember(Message):
    """One of the `members` of a `ConsumerGroupDescribeResponseDescribedGroup`."""

    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field(ArrayOf(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    assignment: ConsumerGroupDescribeResponseAssignment = field(ConsumerGroupDescribeResponseAssignment)
    target_assignment: ConsumerGroupDescribeResponseAssignment = field(ConsumerGroupDescribeResponseAssignment)
    member_type: int = field(INT8, "1+", default=-1, ignorable=True)


class ConsumerGroupDescribeResponseDescribedGroup(Message):
    """One of the `groups` of a `ConsumerGroupDescribeResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: list[ConsumerGroupDescribeResponseMember] = field(ArrayOf(ConsumerGroupDescribeResponseMember))
    authorized_operations: int = field(INT32, default=-2147483648)


class ConsumerGroupDescribeResponse(ApiMessage, api_key=69, versions="0-1", flexible="0+"):
    """Consumer groups with their members' present and target assignments.

    v1 tells which protocol each member speaks (KIP-1099).
    """

    throttle_time_ms: int = field(INT32)
    groups: list[ConsumerGroupDescribeResponseDescribedGroup] = field(
        ArrayOf(ConsumerGroupDescribeResponseDescribedGroup)
    )
