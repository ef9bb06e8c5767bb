"""Why a member cannot commit or stay: the errors, each with the cause and the setting to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import (
    CommitFailedError,
    ErrorCode,
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    KafkaError,
    MaxPollExceededError,
    UnsupportedVersionError,
    error_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.consumer.group.model import MemberSettings


def max_poll_exceeded(settings: MemberSettings, seconds: float) -> MaxPollExceededError:
    """The member left, because the user did not poll for so many seconds."""
    return MaxPollExceededError(
        f"The consumer left group {settings.group_id!r}, because {seconds:.1f} s passed since the last poll and "
        f"max.poll.interval.ms is {round(settings.max_poll_interval * 1000)}: process less per poll (max.poll.records) "
        "or raise max.poll.interval.ms"
    )


def membership_lost(settings: MemberSettings, code: int, explanation: str) -> KafkaError:
    """The broker does not count on the member any more, and said so by a code; the explanation says why that may be."""
    error = error_for(code)
    error.message = f"The consumer lost its membership in group {settings.group_id!r}: {explanation}"
    return error


def not_a_member(settings: MemberSettings, cause: KafkaError | None) -> CommitFailedError:
    """There is no membership to commit in, for a cause, or because there was none yet."""
    why = "it has not joined yet: poll first" if cause is None else str(cause)
    return CommitFailedError(
        f"The offsets cannot be committed, because the consumer is not a member of group {settings.group_id!r}: {why}"
    )


def too_late(settings: MemberSettings, cause: KafkaError) -> CommitFailedError:
    """A commit came when the partitions were others' already."""
    error = CommitFailedError(
        "The offsets cannot be committed: the group rebalanced and gave the partitions to another member. Too "
        "much time between two polls is the usual reason: lower max.poll.records or raise max.poll.interval.ms "
        f"({round(settings.max_poll_interval * 1000)})"
    )
    error.__cause__ = cause
    return error


def instance_taken_over(settings: MemberSettings) -> FencedInstanceIdError:
    """Another consumer has the same `group.instance.id`."""
    return FencedInstanceIdError(
        f"Another consumer joined group {settings.group_id!r} with group.instance.id "
        f"{settings.group_instance_id!r}; each consumer needs one of its own"
    )


def no_common_assignor(
    settings: MemberSettings, assignors: Iterable[str], chosen: str | None = None
) -> InconsistentGroupProtocolError:
    """The group has chosen an assignor that this member does not have, or could not agree on one."""
    why = f"chose the assignor {chosen!r}" if chosen else "has no assignor in common with this consumer"
    return InconsistentGroupProtocolError(
        f"Group {settings.group_id!r} {why}; this consumer's partition.assignment.strategy has "
        f"{', '.join(assignors)}. All members need one in common"
    )


def protocol_not_served(settings: MemberSettings, cause: KafkaError) -> UnsupportedVersionError:
    """The broker does not assign partitions itself (KIP-848)."""
    error = UnsupportedVersionError(
        f"The broker does not serve group.protocol=consumer (KIP-848), by which group {settings.group_id!r} was to be "
        "joined: set group.protocol=classic, or use Kafka 4.0 or newer with the feature group.version=1"
    )
    error.__cause__ = cause
    return error


def remote_membership_lost(settings: MemberSettings, code: int, explanation: str) -> KafkaError:
    """The broker that assigns the partitions does not count on the member any more; the explanation may say why."""
    error = error_for(code)
    error.message = (
        f"The consumer lost its membership in group {settings.group_id!r}: {explanation}. It gives its partitions up "
        "and joins again"
    )
    return error


def remotely_refused(settings: MemberSettings, code: int, told: str | None) -> KafkaError:
    """The broker that assigns the partitions refuses the member; what it told says why."""
    error = error_for(code)
    error.message = f"Group {settings.group_id!r}: {error.message}"
    if told:
        error.message += f" The broker says: {told}"
    if remedy := _REMEDIES.get(code):
        error.message += f" {remedy}"
    return error


_REMEDIES: dict[int, str] = {
    ErrorCode.UNRELEASED_INSTANCE_ID: "Each consumer needs a group.instance.id of its own; close the other one.",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "Brokers have those of group.consumer.assignors, by default uniform and range.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "The brokers' group.consumer.max.size says how many members a group may have.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The consumer needs the right to describe and to read what it subscribes to.",
    ErrorCode.GROUP_ID_NOT_FOUND: "Where it is a classic one, see the brokers' group.consumer.migration.policy.",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "A SubscriptionPattern is in RE2's syntax, which has no look-around.",
}
