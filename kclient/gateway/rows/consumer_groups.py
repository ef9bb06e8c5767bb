"""The rows of consumer groups (KIP-848) and share groups (KIP-932): one of the group, and one of each member."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from kclient.htp.rows import (
    dump,
    object_of_format,
    optional_string,
    seal,
    sealed_in_steps,
    string,
    unsealed,
    whole,
)
from kclient.records.bounds import INT32_MAX

T = TypeVar("T")

_FORMAT: Final = 1
CONSUMER: Final = "consumer"
"""What the row of such a group calls its type."""
SHARE: Final = "share"
"""The same of a share group."""
_TYPES: Final = frozenset({CONSUMER, SHARE})
_TOPIC_ID: Final = 16
_AWAY: Final = -2
_SOME: Final = 500
"""So many topics of a member are made at a time."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupSnapshot:
    """A consumer group, or a share group, as it is stored, without its members."""

    group_id: str
    group_epoch: int
    assignment_epoch: int
    digest: str = ""
    """Of the topics that its members read, for which it has its epoch."""
    type: str = CONSUMER
    """What it is, as ListGroups calls it."""


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
                "type": snapshot.type,
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
        type_name = string(row["type"])
        if type_name not in _TYPES:
            raise ValueError(f"it is the row of a group of type {type_name!r}")
        epoch = whole(row["epoch"], 0, INT32_MAX - 1)  # the next one has to fit too
        assignment_epoch = whole(row["assignment_epoch"], 0, epoch)
        snapshot = ConsumerGroupSnapshot(group_id, epoch, assignment_epoch, string(row["topics"]), type_name)
        return snapshot, whole(row["since"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def encode_consumer_member(member: ConsumerMemberSnapshot) -> bytes:
    """A member's row."""
    steps = encode_consumer_member_steps(member)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            row: bytes = end.value
            return row


def encode_consumer_member_steps(member: ConsumerMemberSnapshot) -> Generator[None, None, bytes]:
    """The same in steps: it may have 100,000 topics."""
    pieces = [
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
                "session_timeout": member.session_timeout_ms,
                "protocols": [[name, base64.b64encode(each).decode("ascii")] for name, each in member.protocols],
            }
        ).removesuffix(b"}")
    ]
    for name, held in (("assigned", member.assigned), ("revoking", member.revoking)):
        yield from _put_topics(pieces, name, held, _pairs)
    yield from _put_topics(pieces, "target", member.target, sorted)
    pieces.append(b"}")
    return b"".join(sealed_in_steps(pieces))


def _put_topics(
    pieces: list[bytes], name: str, topics: Mapping[bytes, T], shown: Callable[[T], object]
) -> Generator[None, None, None]:
    """Put another key behind what there is of an object: what there is of each topic, some at a time."""
    pieces.append(b',"%b":{' % name.encode())
    left, first = iter(topics.items()), True
    while some := {topic.hex(): shown(each) for topic, each in islice(left, _SOME)}:
        pieces.append((b"" if first else b",") + dump(some)[1:-1])
        first = False
        yield
    pieces.append(b"}")


def _pairs(numbers: Mapping[int, int]) -> list[tuple[int, int]]:
    return sorted(numbers.items())


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


def _parse_held(row: dict[str, Any]) -> dict[bytes, dict[int, int]]:
    return {
        _topic(topic): {whole(number, 0, INT32_MAX): whole(epoch, 0, INT32_MAX) for number, epoch in numbers}
        for topic, numbers in row.items()
    }


def _topic(text: str) -> bytes:
    topic_id = bytes.fromhex(text)
    if len(topic_id) != _TOPIC_ID:
        raise ValueError(f"{text[:100]!r} is not a topic id")
    return topic_id
