"""The round-robin assignor: all partitions dealt out one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.group.assignors._base import Assignor, Subscription, in_stable_order, subscribed_topics
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RoundRobinAssignor(Assignor):
    """Deals the partitions of all topics out to the members in turn, passing over who is not subscribed.

    With equal subscriptions no two members differ by more than one partition. As Java's `RoundRobinAssignor`.
    """

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign`."""
        result: dict[str, list[TopicPartition]] = {member: [] for member in members}
        circle = in_stable_order(members)
        turn = 0
        for topic in sorted(subscribed_topics(members) & partitions.keys()):
            for number in range(partitions[topic]):
                while topic not in members[circle[turn]].topics:
                    turn = (turn + 1) % len(circle)
                result[circle[turn]].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(circle)
        return result
