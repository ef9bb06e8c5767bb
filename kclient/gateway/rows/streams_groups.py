"""The rows of streams groups (KIP-1071): one of the group, with its topology, and one of each member."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from kclient.gateway.rows.streams_topology import Topology
from kclient.htp.rows import dump, object_of_format, optional_string, seal, sealed_in_steps, string, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1
STREAMS: Final = "streams"
"""What the row of such a group calls its type, and that of a member its kind."""
_MOST_PORT: Final = 65_535
_SOME: Final = 64
"""Subtopologies whose tasks are put into a row before others may have their turn."""

T = TypeVar("T")


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
    steps = encode_streams_member_steps(member)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            row: bytes = end.value
            return row


def encode_streams_member_steps(member: StreamsMemberSnapshot) -> Generator[None, None, bytes]:
    """The same in steps: it may have 20,000 tasks."""
    pieces = [
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
            }
        ).removesuffix(b"}")
    ]
    for key, (active, *others) in (("assigned", member.assigned), ("revoking", member.revoking)):
        yield from _put(pieces, b',"%b":[' % key.encode(), active, _dated)
        for tasks in others:
            yield from _put(pieces, b",", tasks, sorted)
        pieces.append(b"]")
    for place, tasks in enumerate(member.target):
        yield from _put(pieces, b"," if place else b',"target":[', tasks, sorted)
    pieces.append(b"]}")
    return b"".join(sealed_in_steps(pieces))


def _put(
    pieces: list[bytes], before: bytes, tasks: Mapping[str, T], shown: Callable[[T], object]
) -> Generator[None, None, None]:
    """Put tasks behind what there is of a row, those of some subtopologies at a time."""
    pieces.append(before + b"{")
    left, first = iter(tasks.items()), True
    while some := {name: shown(numbers) for name, numbers in islice(left, _SOME)}:
        pieces.append((b"" if first else b",") + dump(some)[1:-1])
        first = False
        yield
    pieces.append(b"}")


def _dated(numbers: Mapping[int, int]) -> list[tuple[int, int]]:
    return sorted(numbers.items())


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
