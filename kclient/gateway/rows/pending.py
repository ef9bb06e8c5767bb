"""The row of what a transaction is to commit for a group."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from kclient.gateway.rows.groups import CommittedOffset
from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN
from kclient.types import TopicPartition

_FORMAT: Final = 1
_TOPIC_ID: Final = 16
_IN_ONE_GO: Final = 128
"""Offsets that are made in one step."""


class PendingOffset(NamedTuple):
    """An offset that a transaction is to commit."""

    committed: CommittedOffset
    topic_id: bytes
    """Of the topic that it is for: one of that name that is made later is another one."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingOffsets:
    """What a transaction is to commit for a group."""

    group_id: str
    transactional_id: str
    offsets: Mapping[TopicPartition, PendingOffset]


def encode_pending_steps(pending: PendingOffsets) -> Generator[None, None, bytes]:
    """The row, made in steps."""
    head = dump({"format": _FORMAT, "group": pending.group_id, "id": pending.transactional_id})
    topics: dict[tuple[str, bytes], list[tuple[int, CommittedOffset]]] = {}
    for partition, (committed, topic_id) in pending.offsets.items():
        topics.setdefault((partition.topic, topic_id), []).append((partition.partition, committed))
    rows = []
    for (name, topic_id), offsets in topics.items():
        left, parts = iter(offsets), []
        while some := list(islice(left, _IN_ONE_GO)):
            parts.append(
                dump([[n, each.offset, each.leader_epoch, each.metadata, each.commit_ms] for n, each in some])[1:-1]
            )
            yield
        rows.append(b"%b,[%b]]" % (dump([name, topic_id.hex()])[:-1], b",".join(parts)))
    return seal(b'%b,"topics":[%b]}' % (head[:-1], b",".join(rows)))


def decode_pending(value: bytes, group_id: str, transactional_id: str) -> PendingOffsets:
    """What a row says.

    Raises:
        ValueError: If it is none, one of another group or transactional id, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if (string(row["group"]), string(row["id"])) != (group_id, transactional_id):
            raise ValueError(f"it is the row of group {row['group']!r} and transactional.id {row['id']!r}")
        return PendingOffsets(group_id, transactional_id, dict(_offsets(row["topics"])))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def _offsets(topics: Iterable[tuple[str, str, list[list[Any]]]]) -> Iterator[tuple[TopicPartition, PendingOffset]]:
    for name, topic_id, offsets in topics:
        key = bytes.fromhex(topic_id)
        if len(key) != _TOPIC_ID:
            raise ValueError(f"{topic_id!r} is not a topic id")
        for number, offset, epoch, metadata, commit_ms in offsets:
            committed = CommittedOffset(
                whole(offset, INT64_MIN, INT64_MAX),
                whole(epoch, ~INT32_MAX, INT32_MAX),
                string(metadata),
                whole(commit_ms),
            )
            partition = TopicPartition(string(name), whole(number, 0, INT32_MAX))
            yield partition, PendingOffset(committed, key)
