"""The rows of groups and of committed offsets."""

from __future__ import annotations

import base64
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from kclient.htp.rows import (
    check_format,
    dump,
    object_of_format,
    optional_string,
    parse_list,
    parse_object,
    seal,
    string,
    unsealed,
    whole,
)
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN

_FORMAT: Final = 1
_CLASSIC: Final = "classic"


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as it is stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """In the member's order of preference: name and opaque metadata."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it is stored: after each generation's assignment, and when it has become empty."""

    group_id: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    """When it was committed, milliseconds since the epoch."""
    expire_ms: int | None = None
    """When it may be forgotten, if the client said so (OffsetCommit versions 2 to 4)."""

    def outlived(self, now_ms: int, retention_ms: int, base_ms: int | None = None) -> bool:
        """Whether it may be forgotten; the time runs from `base_ms`, or from the commit."""
        if self.expire_ms is not None:
            return now_ms >= self.expire_ms
        return now_ms - (self.commit_ms if base_ms is None else base_ms) >= retention_ms


def encode_group_steps(snapshot: GroupSnapshot, since_ms: int) -> Generator[None, None, bytes]:
    """A group's row, made in steps, a member each: some groups have thousands.

    Args:
        snapshot: The group.
        since_ms: When it came into this state (wall clock).
    """
    head = dump(
        {
            "format": _FORMAT,
            "type": _CLASSIC,
            "group": snapshot.group_id,
            "generation": snapshot.generation,
            "protocol_type": snapshot.protocol_type,
            "protocol": snapshot.protocol_name,
            "leader": snapshot.leader,
            "since": since_ms,
        }
    )
    members = []
    for member in snapshot.members:
        members.append(dump(_member(member)))
        yield
    return seal(b'%b,"members":[%b]}' % (head[:-1], b",".join(members)))


def type_of_group(value: bytes) -> str:
    """The type of the group that a row is of; the first versions knew one alone.

    Raises:
        ValueError: If it is no row of a group.
    """
    return string(parse_object(unsealed(value)).get("type", _CLASSIC))


def decode_group(value: bytes, group_id: str) -> tuple[GroupSnapshot, int]:
    """A group's row, and when the group came into this state.

    Raises:
        ValueError: If it is none, one of another group, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if string(row["group"]) != group_id:
            raise ValueError(f"it is the row of group {row['group']!r}")
        snapshot = GroupSnapshot(
            group_id,
            whole(row["generation"], 0, INT32_MAX - 1),  # the next one has to fit too
            optional_string(row["protocol_type"]),
            optional_string(row["protocol"]),
            optional_string(row["leader"]),
            tuple(_parse_member(member) for member in row["members"]),
        )
        ids = {member.member_id for member in snapshot.members}
        if len(ids) < len(snapshot.members):
            raise ValueError("it lists a member twice")
        if snapshot.members and snapshot.leader not in ids:
            raise ValueError(f"its leader {snapshot.leader!r} is not a member")
        return snapshot, whole(row["since"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def encode_offset(committed: CommittedOffset, topic_id: bytes) -> bytes:
    """The row of an offset: format, offset, leader epoch, metadata, times of commit and expiry, the topic's id."""
    return seal(
        dump(
            [
                _FORMAT,
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
                committed.commit_ms,
                committed.expire_ms,
                topic_id.hex(),
            ]
        )
    )


def decode_offset(value: bytes) -> tuple[CommittedOffset, bytes]:
    """A committed offset's row, and the id of the topic that it was committed for.

    Raises:
        ValueError: If it is none.
    """
    fields = parse_list(unsealed(value), 6, 7)
    if len(fields) > 6:  # the first versions wrote no format
        check_format(fields.pop(0), _FORMAT)
    offset, epoch, metadata, commit_ms, expire_ms, topic_id = fields
    committed = CommittedOffset(
        whole(offset, INT64_MIN, INT64_MAX),  # as members say: nobody looks at them
        whole(epoch, ~INT32_MAX, INT32_MAX),
        string(metadata),
        whole(commit_ms),
        None if expire_ms is None else whole(expire_ms, 0, 2 * INT64_MAX),
    )
    return committed, bytes.fromhex(string(topic_id))


def _member(member: MemberSnapshot) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "session_timeout": member.session_timeout_ms,
        "rebalance_timeout": member.rebalance_timeout_ms,
        "protocols": [[name, _text(metadata)] for name, metadata in member.protocols],
        "assignment": _text(member.assignment),
    }


def _parse_member(row: dict[str, Any]) -> MemberSnapshot:
    return MemberSnapshot(
        string(row["id"]),
        optional_string(row["instance"]),
        string(row["client"]),
        string(row["host"]),
        whole(row["session_timeout"], ~INT32_MAX, INT32_MAX),
        whole(row["rebalance_timeout"], ~INT32_MAX, INT32_MAX),
        tuple((string(name), base64.b64decode(metadata, validate=True)) for name, metadata in row["protocols"]),
        base64.b64decode(row["assignment"], validate=True),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
