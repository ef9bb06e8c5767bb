"""Why a share consumer cannot go on: the errors, each with the cause and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import (
    ErrorCode,
    InvalidRecordStateError,
    KafkaError,
    MaxPollExceededError,
    ShareSessionNotFoundError,
    UnsupportedVersionError,
    error_for,
)

if TYPE_CHECKING:
    from kclient.types import TopicPartition


def not_served(group_id: str, cause: KafkaError) -> UnsupportedVersionError:
    """The broker knows no share groups."""
    error = UnsupportedVersionError(
        f"The broker does not serve share groups (KIP-932), one of which {group_id!r} was to be: use Kafka 4.2 or "
        "newer, or a kclient gateway, with the feature share.version=1, or read with kclient.Consumer, whose groups "
        "older brokers serve"
    )
    error.__cause__ = cause
    return error


def needs_newer_broker(what: str) -> UnsupportedVersionError:
    """The broker serves share groups, but not all that was asked for."""
    return UnsupportedVersionError(f"The broker cannot do {what}: that needs Kafka 4.2 or newer")


def share_refused(group_id: str, code: int, told: str | None) -> KafkaError:
    """The group refuses the member; what the broker told says why."""
    error = error_for(code)
    error.message = f"Share group {group_id!r}: {error.message}"
    if told:
        error.message += f" The broker says: {told}"
    if remedy := _REMEDIES.get(code):
        error.message += f" {remedy}"
    return error


def fetch_refused(group_id: str, code: int, told: str | None, tp: TopicPartition | None) -> KafkaError:
    """The broker gives no records, of one partition or at all."""
    error = share_refused(group_id, code, told)
    if tp is not None:
        error.message = f"{tp}: {error.message}"
    return error


def max_poll_exceeded(group_id: str, seconds: float, limit: float) -> MaxPollExceededError:
    """The member left, because the user did not poll for so many seconds."""
    return MaxPollExceededError(
        f"The share consumer left group {group_id!r}, because {seconds:.1f} s passed since the last poll and "
        f"max.poll.interval.ms is {round(limit * 1000)}: process less per poll (max.poll.records) or raise "
        "max.poll.interval.ms. The next poll joins again"
    )


def session_lost(node_id: int, cause: KafkaError | None) -> ShareSessionNotFoundError:
    """The broker holds the records no more, so acknowledging them comes too late."""
    why = "" if cause is None else f" ({cause})"
    error = ShareSessionNotFoundError(
        f"Node {node_id} does not hold these records for this consumer any more{why}: they are delivered again, to "
        "this consumer or another",
        retriable=False,
    )
    error.__cause__ = cause
    return error


def not_answered(node_id: int, tp: TopicPartition) -> InvalidRecordStateError:
    """The broker has answered, and left out a partition of which it was told something."""
    return InvalidRecordStateError(
        f"{tp}: the answer of node {node_id} does not say what became of the acknowledgement, so it counts as refused: "
        "the records may be delivered again, to this consumer or another"
    )


_REMEDIES: dict[int, str] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "If there is a group of another type with this name, take another group.id.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "The brokers' group.share.max.size says how many members a share group may have.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "A group of another type has this name: take another group.id.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The consumer needs the right to describe and to read what it subscribes to.",
}
