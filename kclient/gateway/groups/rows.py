"""How groups and committed offsets lie in the manager's key-value part.

One row per group (`group/GROUP`) and one per committed offset (`group-offset/GROUP/TOPIC/PARTITION`); the names
are percent-encoded. A group that only commits offsets has no row of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from typing import Any
from urllib.parse import quote, unquote

from kclient.gateway.groups.events import GroupSnapshot, MemberSnapshot
from kclient.gateway.groups.offsets import CommittedOffset
from kclient.htp.rows import optional_string, parse_list, parse_number, parse_object, string, whole
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN
from kclient.types import TopicPartition

GROUPS = "group/"
OFFSETS = "group-offset/"

_FORMAT = 1


def group_key(group_id: str) -> str:
    """The key of a group's row."""
    return GROUPS + quote(group_id, safe="")


def parse_group_key(key: str) -> str:
    """The group that a key of `group_key` names."""
    return unquote(key.removeprefix(GROUPS))


def offset_key(group_id: str, partition: TopicPartition) -> str:
    """The key of a committed offset's row."""
    return f"{OFFSETS}{quote(group_id, safe='')}/{quote(partition.topic, safe='')}/{partition.partition}"


def parse_offset_key(key: str) -> tuple[str, TopicPartition]:
    """The group and the partition that a key of `offset_key` names. Raises `ValueError` if it is none such."""
    group_id, topic, partition = key.removeprefix(OFFSETS).split("/")
    return unquote(group_id), TopicPartition(unquote(topic), parse_number(partition.encode(), 0, INT32_MAX))


def encode_group_steps(snapshot: GroupSnapshot, since_ms: int) -> Generator[None, None, bytes]:
    """A group's row, made in steps, a member each: some groups have thousands.

    Args:
        snapshot: The group.
        since_ms: When it came into this state (wall clock).
    """
    head = _dump(
        {
            "format": _FORMAT,
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
        members.append(_dump(_member(member)))
        yield
    return b'%b,"members":[%b]}' % (head[:-1], b",".join(members))


def decode_group(value: bytes, group_id: str) -> tuple[GroupSnapshot, int]:
    """A group's row, and when the group came into this state.

    Raises:
        ValueError: If it is none, one of another group, or one of a newer version.
    """
    try:
        row = parse_object(value)
        if whole(row["format"]) > _FORMAT:
            raise ValueError(f"it has format {row['format']}, this version reads {_FORMAT}")
        if string(row["group"]) != group_id:
            raise ValueError(f"it is the row of group {row['group']!r}")
        snapshot = GroupSnapshot(
            group_id,
            whole(row["generation"], 0, INT32_MAX),
            optional_string(row["protocol_type"]),
            optional_string(row["protocol"]),
            optional_string(row["leader"]),
            tuple(_parse_member(member) for member in row["members"]),
        )
        return snapshot, whole(row["since"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def encode_offset(committed: CommittedOffset, topic_id: bytes) -> bytes:
    """A committed offset's row: offset, leader epoch, metadata, time of commit and of expiry, the topic's id."""
    return _dump(
        [
            committed.offset,
            committed.leader_epoch,
            committed.metadata,
            committed.commit_ms,
            committed.expire_ms,
            topic_id.hex(),
        ]
    )


def decode_offset(value: bytes) -> tuple[CommittedOffset, bytes]:
    """A committed offset's row, and the id of the topic that it was committed for.

    Raises:
        ValueError: If it is none.
    """
    offset, epoch, metadata, commit_ms, expire_ms, topic_id = parse_list(value, 6)
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


def _dump(row: Any) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()
