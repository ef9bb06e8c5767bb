"""What members tell each other through the broker: subscriptions and assignments, in the layout of Java's clients."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kclient.consumer.group.assignors import Subscription
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kclient.types import Buffer

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups of consumers."""


def encode_subscription(
    topics: Iterable[str],
    user_data: bytes | None,
    owned: Iterable[TopicPartition],
    generation_id: int,
    rack_id: str | None,
) -> bytes:
    """A member's subscription as its JoinGroup request carries it."""
    message = ConsumerProtocolSubscription(
        topics=list(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in _by_topic(owned)
        ],
        generation_id=generation_id,
        rack_id=rack_id,
    )
    return encode_embedded(message)


def decode_subscription(data: Buffer, group_instance_id: str | None = None) -> Subscription:
    """What a member said about itself; fields of newer versions are left out.

    Raises:
        ProtocolError: It makes no sense.
    """
    told = decode_embedded(ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(told.topics),
        user_data=told.user_data,
        owned_partitions=tuple(_partitions((owned.topic, owned.partitions) for owned in told.owned_partitions)),
        generation_id=told.generation_id,
        group_instance_id=group_instance_id,
        rack_id=told.rack_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None) -> bytes:
    """A member's assignment as the leader's SyncGroup request carries it."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in _by_topic(partitions)
        ],
        user_data=user_data,
    )
    return encode_embedded(message)


def decode_assignment(data: Buffer) -> tuple[list[TopicPartition], bytes | None]:
    """A member's partitions and the assignor's bytes; nothing if the leader sent no bytes at all.

    Raises:
        ProtocolError: It makes no sense.
    """
    if not len(data):
        return [], None
    told = decode_embedded(ConsumerProtocolAssignment, data)
    partitions = _partitions((item.topic, item.partitions) for item in told.assigned_partitions)
    return partitions, told.user_data


def _by_topic(partitions: Iterable[TopicPartition]) -> Sequence[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return list(topics.items())


def _partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, numbers in topics for number in numbers]
