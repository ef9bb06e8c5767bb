"""The range assignor: of each topic, neighbouring partitions to each member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.group.assignors._base import Assignor, Subscription, in_stable_order, subscribed_topics
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RangeAssignor(Assignor):
    """Cuts each topic into as many ranges of neighbouring partitions as it has subscribers.

    Topics with equal numbers of partitions are cut alike, so a member gets the same partitions of each
    (co-partitioning). The first members get one partition more where the division leaves a rest. As Java's
    `RangeAssignor` without racks.
    """

    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign`."""
        result: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic in sorted(subscribed_topics(members) & partitions.keys()):
            subscribers = in_stable_order(members, topic)
            share, rest = divmod(partitions[topic], len(subscribers))
            start = 0
            for index, member in enumerate(subscribers):
                end = start + share + (index < rest)
                result[member] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return result
