"""Partitions as commands name them: `TOPIC`, for all of a topic, or `TOPIC:PARTITION`."""

from __future__ import annotations

from collections.abc import Iterable

from kclient.cli.errors import UsageError
from kclient.errors import UnknownTopicOrPartitionError
from kclient.sync import Admin
from kclient.types import PartitionInfo, TopicPartition


def partitions_at(admin: Admin, places: Iterable[str], subject: str = "a partition") -> list[TopicPartition]:
    """What some places name, in order and each once; see `described_at`."""
    return [info.topic_partition for info in described_at(admin, places, subject)]


def described_at(admin: Admin, places: Iterable[str], subject: str = "a partition") -> list[PartitionInfo]:
    """What some places name, in order and each once.

    Args:
        admin: asks which there are.
        places: what the user gave.
        subject: how the sentence about a wrong one begins.

    Raises:
        UsageError: One has another form.
        UnknownTopicOrPartitionError: There is none of that name.
    """
    found = {info.topic_partition: info for place in places for info in _at(admin, place, subject)}
    return [found[tp] for tp in sorted(found)]


def _at(admin: Admin, place: str, subject: str) -> list[PartitionInfo]:
    topic, colon, number = place.partition(":")
    if colon and not (number.isascii() and number.isdecimal()):
        raise UsageError(f"{subject} is TOPIC or TOPIC:PARTITION, not {place!r}")
    every = admin.describe_topics([topic])[topic].partitions
    found = [info for info in every if not colon or info.partition == int(number)]
    if not found:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {number}")
    return found
