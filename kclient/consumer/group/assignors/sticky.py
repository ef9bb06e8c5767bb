"""The sticky assignor of the eager protocol."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from kclient.consumer.group.assignors._base import Assignor, Subscription
from kclient.consumer.group.assignors.cooperative_sticky import assign_sticky
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class StickyAssignor(Assignor):
    """Balances like `CooperativeStickyAssignor`, but all members give up everything during a rebalance.

    What a member owned travels in its user data, because eager members own nothing when they join.
    As Java's `StickyAssignor` without racks.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._partitions: tuple[TopicPartition, ...] = ()
        self._generation = -1

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign`."""
        remembering = {member: _remembering(subscription) for member, subscription in members.items()}
        return assign_sticky(partitions, remembering)[0]

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """The last assignment and its generation."""
        return encode_user_data(self._partitions, self._generation) if self._partitions else None

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation_id: int) -> None:
        """Remember what was assigned."""
        self._partitions = tuple(partitions)
        self._generation = generation_id


def encode_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Java's layout: an array of (topic, array of partitions), then the generation; all lengths as fixed integers."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    parts = [struct.pack(">i", len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def decode_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """The inverse of `encode_user_data`; the generation is -1 where an old member did not write one.

    Raises:
        struct.error: If the bytes end too soon.
        UnicodeDecodeError: If a topic's name is not text.
    """
    partitions: list[TopicPartition] = []
    (topics,) = struct.unpack_from(">i", data)
    position = 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (count,) = struct.unpack_from(">i", data, position)
        numbers = struct.unpack_from(f">{count}i", data, position + 4) if count >= 0 else ()
        position += 4 + 4 * max(count, 0)
        partitions += [TopicPartition(topic, number) for number in numbers]
    generation = struct.unpack_from(">i", data, position)[0] if len(data) >= position + 4 else -1
    return tuple(partitions), generation


def _remembering(subscription: Subscription) -> Subscription:
    """The subscription with what its member owned before it gave everything up."""
    if subscription.user_data is None:
        return replace(subscription, owned_partitions=())
    try:
        partitions, generation = decode_user_data(subscription.user_data)
    except (struct.error, UnicodeDecodeError, MemoryError):
        return replace(subscription, owned_partitions=())
    return replace(subscription, owned_partitions=partitions, generation_id=generation)
