"""The rows of streams groups (KIP-1071): one of the group, with its topology, and one of each member."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kclient.gateway.rows.streams_topology import Topology
from kclient.htp.rows import dump, object_of_format, optional_string, seal, string, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1
STREAMS: Final = "streams"
"""What the row of such a group calls its type, and that of a member its kind."""
_MOST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class StreamsGroupSnapshot:
    """A streams group as it is stored, without its members."""

    group_id: str
    group_epoch: int
    assignment_epoch: int
    digest: str
    """Of the topics that its topology needs, for which it has its epoch."""
    validated_epoch: int
    """Of the topology whose topics were all there; -1 if they were not."""
    standbys: int
    """How many standby tasks each task was to have when it got its epoch; -1 before that."""
    topology: Topology | None


@dataclass(frozen=True, slots=True)
class StreamsMemberSnapshot:
    """A member as it is stored. Tasks are by subtopology."""

    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None
    tags: tuple[tuple[str, str], ...]
    epoch: int
    previous_epoch: int
    state: str
    assigned: tuple[Mapping[str, Mapping[int, int]], Mapping[str, frozenset[int]], Mapping[str, frozenset[int]]]
    """Active tasks, each with the epoch in which it got it; standby tasks; warm-up tasks."""
    revoking: tuple[Mapping[str, Mapping[int, int]], Mapping[str, frozenset[int]], Mapping[str, frozenset[int]]]
    target: tuple[Mapping[str, frozenset[int]], Mapping[str, frozenset[int]], Mapping[str, frozenset[int]]]


def encode_streams_group(snapshot: StreamsGroupSnapshot, since_ms: int) -> bytes:
    """A group's row, and when the group came into its state (wall clock)."""
    body = dump(
        {
            "format": _FORMAT,
            "type": STREAMS,
            "group": snapshot.group_id,
            "epoch": snapshot.group_epoch,
            "assignment_epoch": snapshot.assignment_epoch,
            "topics": snapshot.digest,
            "validated": snapshot.validated_epoch,
            "standbys": snapshot.standbys,
            "since": since_ms,
        }
    ).removesuffix(b"}")
    topology = b"null" if snapshot.topology is None else snapshot.topology.text
    return seal(b'%b,"topology":%b}' % (body, topology))


def encode_streams_group_steps(snapshot: StreamsGroupSnapshot, since_ms: int) -> Generator[None, None, bytes]:
    """The same, as for groups of other types: in steps, of which there is none."""
    yield from ()
    return encode_streams_group(snapshot, since_ms)


def decode_streams_group(value: bytes, group_id: str) -> tuple[StreamsGroupSnapshot, int]:
    """A group's row, and when the group came into its state.

    Raises:
        ValueError: If it is none, one of another group, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if string(row["group"]) != group_id or string(row["type"]) != STREAMS:
            raise ValueError(f"it is the row of the {row['type']!r} group {row['group']!r}")
        epoch = whole(row["epoch"], 0, INT32_MAX - 1)  # the next one has to fit too
        topology = row["topology"]
        snapshot = StreamsGroupSnapshot(
            group_id,
            epoch,
            whole(row["assignment_epoch"], 0, epoch),
            string(row["topics"]),
            whole(row["validated"], -1, INT32_MAX),
            whole(row["standbys"], -1, INT32_MAX),
            None if topology is None else Topology.of(topology),
        )
        return snapshot, whole(row["since"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def encode_streams_member(member: StreamsMemberSnapshot) -> bytes:
    """A member's row."""
    return seal(
        dump(
            {
                "format": _FORMAT,
                "kind": STREAMS,
                "id": member.member_id,
                "rack": member.rack_id,
                "client": member.client_id,
                "host": member.client_host,
                "rebalance_timeout": member.rebalance_timeout_ms,
                "topology": member.topology_epoch,
                "process": member.process_id,
                "endpoint": member.endpoint,
                "tags": member.tags,
                "epoch": member.epoch,
                "previous": member.previous_epoch,
                "state": member.state,
                "assigned": _held(member.assigned),
                "revoking": _held(member.revoking),
                "target": [_sorted(tasks) for tasks in member.target],
            }
        )
    )


def _held(tasks: tuple[Mapping[str, Mapping[int, int]], *tuple[Mapping[str, frozenset[int]], ...]]) -> list[object]:
    active, *others = tasks
    return [{name: sorted(held.items()) for name, held in active.items()}, *map(_sorted, others)]


def _sorted(tasks: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    return {name: sorted(numbers) for name, numbers in tasks.items()}


def decode_streams_member(value: bytes, member_id: str) -> StreamsMemberSnapshot:
    """A member's row.

    Raises:
        ValueError: If it is none, one of another member, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if row.get("kind") != STREAMS or string(row["id"]) != member_id:
            raise ValueError(f"it is the row of member {row['id']!r}, or one of a group of another type")
        endpoint, (active, standby, warmup) = row["endpoint"], row["target"]
        return StreamsMemberSnapshot(
            member_id,
            optional_string(row["rack"]),
            string(row["client"]),
            string(row["host"]),
            whole(row["rebalance_timeout"], ~INT32_MAX, INT32_MAX),
            whole(row["topology"], -1, INT32_MAX),
            string(row["process"]),
            None if endpoint is None else (string(endpoint[0]), whole(endpoint[1], 0, _MOST_PORT)),
            tuple((string(key), string(tag)) for key, tag in row["tags"]),
            whole(row["epoch"], 0, INT32_MAX - 1),
            whole(row["previous"], 0, INT32_MAX - 1),
            string(row["state"]),
            _parse_held(row["assigned"]),
            _parse_held(row["revoking"]),
            (_parse(active), _parse(standby), _parse(warmup)),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error


def is_streams_member(value: bytes) -> bool:
    """Whether a row is that of a member of a streams group. Raises `ValueError` if it is none of a member."""
    return object_of_format(unsealed(value), _FORMAT).get("kind") == STREAMS


def _parse_held(
    row: Any,
) -> tuple[Mapping[str, Mapping[int, int]], Mapping[str, frozenset[int]], Mapping[str, frozenset[int]]]:
    active, standby, warmup = row
    held = {
        string(name): {whole(number, 0, INT32_MAX): whole(epoch, 0, INT32_MAX) for number, epoch in numbers}
        for name, numbers in active.items()
    }
    return held, _parse(standby), _parse(warmup)


def _parse(row: dict[str, Any]) -> dict[str, frozenset[int]]:
    return {string(name): frozenset(whole(number, 0, INT32_MAX) for number in numbers) for name, numbers in row.items()}
