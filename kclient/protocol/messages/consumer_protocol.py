"""What consumers tell each other inside JoinGroup and SyncGroup; the broker passes it on unread."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BYTES, INT32, STRING

__all__ = [
    "ConsumerProtocolAssignment",
    "ConsumerProtocolAssignmentTopicPartition",
    "ConsumerProtocolSubscription",
    "ConsumerProtocolSubscriptionTopicPartition",
]


class ConsumerProtocolSubscriptionTopicPartition(Message):
    """One of the `owned_partitions` of a `ConsumerProtocolSubscription`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class ConsumerProtocolSubscription(ApiMessage, versions="0-3"):
    """A member's subscription, in its JoinGroup request.

    v1 adds the partitions it owns (for cooperative rebalancing, KIP-429), v2 the generation in which it
    got them, v3 its rack. A version above the known ones is read as the newest known one.
    """

    topics: list[str] = field(ArrayOf(STRING))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field(
        ArrayOf(ConsumerProtocolSubscriptionTopicPartition), "1+", ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignmentTopicPartition(Message):
    """One of the `assigned_partitions` of a `ConsumerProtocolAssignment`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class ConsumerProtocolAssignment(ApiMessage, versions="0-3"):
    """A member's assignment, in its SyncGroup response. All versions have the same fields."""

    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field(
        ArrayOf(ConsumerProtocolAssignmentTopicPartition)
    )
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
