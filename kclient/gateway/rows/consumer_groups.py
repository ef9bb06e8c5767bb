"""The rows of consumer groups (KIP-848): one of the group, and one of each member."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kclient.htp.rows import dump, object_of_format, optional_string, seal, string, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1
CONSUMER: Final = "consumer"
"""What the row of such a group calls its type."""
_TOPIC_ID: Final = 16
_AWAY: Final = -2


@dataclass(frozen=True, slots=True)
class ConsumerGroupSnapshot:
    """A consumer group as it is stored, without its members."""

    group_id: str
    group_epoch: int
    assignment_epoch: int
    digest: str = ""
    """Of the topics that its members read, for which it has its epoch."""


@dataclass(frozen=True, slots=True)
class ConsumerMemberSnapshot:
    """A member as it is stored."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    pattern: str
    assignor: str | None
    epoch: int
    previous_epoch: int
    state: str
    assigned: Mapping[bytes, Mapping[int, int]]
    """By topic id and number of the partition, the epoch in which it got it."""
    revoking: Mapping[bytes, Mapping[int, int]]
    target: Mapping[bytes, frozenset[int]]
    session_timeout_ms: int | None = None
    """Of a member that speaks the classic protocol; None for the others."""
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Of such a member: name and opaque metadata."""


def encode_consumer_group(snapshot: ConsumerGroupSnapshot, since_ms: int) -> bytes:
    """A group's row, and when the group came into its state (wall clock)."""
    return seal(
        dump(
            {
                "format": _FORMAT,
                "type": CONSUMER,
                "group": snapshot.group_id,
                "epoch": snapshot.group_epoch,
                "assignment_epoch": snapshot.assignment_epoch,
                "topics": snapshot.digest,
                "since": since_ms,
            }
        )
    )


def encode_consumer_group_steps(snapshot: ConsumerGroupSnapshot, since_ms: int) -> Generator[None, None, bytes]:
    """The same, as for groups of other types: in steps, of which there is none."""
    yield from ()
    return encode_consumer_group(snapshot, since_ms)


def decode_consumer_group(value: bytes, group_id: str) -> tuple[ConsumerGroupSnapshot, int]:
    """A group's row, and when the group came into its state.

    Raises:
        ValueError: If it is none, one of another group, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if string(row["group"]) != group_id:
            raise ValueError(f"it is the row of group {row['group']!r}")
        epoch = whole(row["epoch"], 0, INT32_MAX - 1)  # the next one has to fit too
        assignment_epoch = whole(row["assignment_epoch"], 0, epoch)
        snapshot = ConsumerGroupSnapshot(group_id, epoch, assignment_epoch, string(row["topics"]))
        return snapshot, whole(row["since"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def encode_consumer_member(member: ConsumerMemberSnapshot) -> bytes:
    """A member's row."""
    return seal(
        dump(
            {
                "format": _FORMAT,
                "id": member.member_id,
                "instance": member.instance_id,
                "rack": member.rack_id,
                "client": member.client_id,
                "host": member.client_host,
                "rebalance_timeout": member.rebalance_timeout_ms,
                "topics": member.topics,
                "pattern": member.pattern,
                "assignor": member.assignor,
                "epoch": member.epoch,
                "previous": member.previous_epoch,
                "state": member.state,
                "assigned": _held(member.assigned),
                "revoking": _held(member.revoking),
                "target": {topic.hex(): sorted(numbers) for topic, numbers in member.target.items()},
                "session_timeout": member.session_timeout_ms,
                "protocols": [[name, base64.b64encode(each).decode("ascii")] for name, each in member.protocols],
            }
        )
    )


def decode_consumer_member(value: bytes, member_id: str) -> ConsumerMemberSnapshot:
    """A member's row.

    Raises:
        ValueError: If it is none, one of another member, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if string(row["id"]) != member_id:
            raise ValueError(f"it is the row of member {row['id']!r}")
        return ConsumerMemberSnapshot(
            member_id,
            optional_string(row["instance"]),
            optional_string(row["rack"]),
            string(row["client"]),
            string(row["host"]),
            whole(row["rebalance_timeout"], ~INT32_MAX, INT32_MAX),
            tuple(string(name) for name in row["topics"]),
            string(row["pattern"]),
            optional_string(row["assignor"]),
            whole(row["epoch"], _AWAY, INT32_MAX - 1),
            whole(row["previous"], _AWAY, INT32_MAX - 1),
            string(row["state"]),
            _parse_held(row["assigned"]),
            _parse_held(row["revoking"]),
            {
                _topic(topic): frozenset(whole(number, 0, INT32_MAX) for number in numbers)
                for topic, numbers in row["target"].items()
            },
            None if row["session_timeout"] is None else whole(row["session_timeout"], 0, INT32_MAX),
            tuple((string(name), base64.b64decode(each, validate=True)) for name, each in row["protocols"]),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def _held(held: Mapping[bytes, Mapping[int, int]]) -> dict[str, Any]:
    return {topic.hex(): [list(each) for each in sorted(numbers.items())] for topic, numbers in held.items()}


def _parse_held(row: dict[str, Any]) -> dict[bytes, dict[int, int]]:
    return {
        _topic(topic): {whole(number, 0, INT32_MAX): whole(epoch, 0, INT32_MAX) for number, epoch in numbers}
        for topic, numbers in row.items()
    }


def _topic(text: str) -> bytes:
    topic_id = bytes.fromhex(text)
    if len(topic_id) != _TOPIC_ID:
        raise ValueError(f"{text[:100]!r} is no id of a topic")
    return topic_id
