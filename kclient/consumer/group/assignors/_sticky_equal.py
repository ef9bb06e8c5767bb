"""Sticky assignment for the usual case: all members subscribe to the same topics.

Every member ends with the floor or the ceiling of the mean. Members keep what they own up to that quota; what is
left over is dealt out, first to those below the floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


def assign_equal(
    partitions: Mapping[str, int],
    owned: Mapping[str, list[TopicPartition]],
    contested: set[TopicPartition],
) -> dict[str, list[TopicPartition]]:
    """Balance `partitions` over the members of `owned`; see the module's text."""
    if not owned:
        return {}
    floor, above_floor = divmod(sum(partitions.values()), len(owned))
    result, at_floor, above_floor = _keep_owned(owned, contested, floor, above_floor)
    kept = {partition for assigned in result.values() for partition in assigned}
    free = [
        partition
        for topic in sorted(partitions)
        for number in range(partitions[topic])
        if (partition := TopicPartition(topic, number)) not in kept
    ]
    _deal_out(free, result, floor, at_floor if above_floor else [])
    return result


def _keep_owned(
    owned: Mapping[str, list[TopicPartition]], contested: set[TopicPartition], floor: int, above_floor: int
) -> tuple[dict[str, list[TopicPartition]], list[str], int]:
    """Let members keep what they own up to their quota.

    Returns:
        What each member keeps, who is exactly at the floor, and how many more members may go above the floor.
    """
    result: dict[str, list[TopicPartition]] = {}
    at_floor: list[str] = []
    for member in sorted(owned):
        mine = sorted(
            (partition for partition in owned[member] if partition not in contested),
            key=lambda partition: (partition.partition, partition.topic),
        )
        if len(mine) > floor and above_floor > 0:
            result[member] = mine[: floor + 1]
            above_floor -= 1
        else:
            result[member] = mine[:floor]
            if len(mine) >= floor:
                at_floor.append(member)
    return result, at_floor, above_floor


def _deal_out(
    free: list[TopicPartition], result: dict[str, list[TopicPartition]], floor: int, at_floor: list[str]
) -> None:
    """Give the free partitions in turn to members below the floor, then one each to members at the floor."""
    below = [member for member in sorted(result) if len(result[member]) < floor]
    taken = iter(free)
    while below:
        for member in list(below):
            partition = next(taken)  # there are enough: the floor times the members is not above the total
            result[member].append(partition)
            if len(result[member]) == floor:
                below.remove(member)
                at_floor.append(member)
    for partition in taken:
        result[at_floor.pop(0)].append(partition)
