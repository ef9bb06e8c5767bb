"""What the members of a group own, with claims that contradict each other settled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kclient.consumer.group.assignors._base import Subscription
    from kclient.types import TopicPartition

_log = logging.getLogger("kclient.consumer")


def owned_partitions(
    topics: Collection[str], members: Mapping[str, Subscription], generations: Mapping[str, int]
) -> tuple[dict[str, list[TopicPartition]], set[TopicPartition]]:
    """What each member owns of the topics that exist.

    A partition that two members claim belongs to the one of the newer generation; within one generation neither is
    believed, and the partition counts as contested.

    Returns:
        The owned partitions of each member, and the contested ones.
    """
    owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    owners: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for member in sorted(members):
        for partition in members[member].owned_partitions:
            if partition.topic not in topics:
                continue
            other = owners.get(partition)
            if other is None:
                owned[member].append(partition)
                owners[partition] = member
            elif generations[member] == generations[other]:
                _log.error(
                    "members %s and %s both claim %s in generation %d; neither keeps it",
                    *(member, other, partition, generations[member]),
                )
                contested.add(partition)
                if partition in owned[other]:
                    owned[other].remove(partition)
                owners[partition] = member
            elif generations[member] > generations[other]:
                if partition in owned[other]:
                    owned[other].remove(partition)
                owned[member].append(partition)
                owners[partition] = member
    return owned, contested
