"""Where a partition lies, as the manager's key-value part keeps it: the list of its extents, and their chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole

_FORMAT: Final = 1


class ExtentRow(NamedTuple):
    """One extent."""

    domain: str
    name: str
    broker: str
    incarnation: int
    first: int
    next: int | None
    start: int
    end: int | None


class ChunkRow(NamedTuple):
    """One chunk."""

    first: int
    position: int
    size: int
    max_timestamp: int
    modified_ms: int


class ChunksRow(NamedTuple):
    """The chunks of one extent, which is known by its first offset and its incarnation."""

    first: int
    incarnation: int
    unit: int
    chunks: Sequence[ChunkRow]


def encode_extents(extents: Iterable[ExtentRow]) -> bytes:
    """The row of a list of extents."""
    return seal(dump({"format": _FORMAT, "extents": list(extents)}))


def decode_extents(row: bytes) -> list[ExtentRow]:
    """The extents of a row. Raises `ValueError` if it has none."""
    try:
        return [_extent(*fields) for fields in object_of_format(unsealed(row), _FORMAT)["extents"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _extent(
    domain: Any, name: Any, broker: Any, incarnation: Any, first: Any, until: Any, start: Any, end: Any
) -> ExtentRow:
    return ExtentRow(
        string(domain), string(name), string(broker), whole(incarnation),
        whole(first), None if until is None else whole(until), whole(start), None if end is None else whole(end),
    )  # fmt: skip


def encode_chunks(lists: Iterable[ChunksRow], starts: Iterable[tuple[int, int]] = ()) -> bytes:
    """The row of the chunks of some extents, and of where epochs start in the last: epochs and positions."""
    fields: dict[str, Any] = {"format": _FORMAT, "chunks": list(lists)}
    if epochs := list(starts):
        fields["epochs"] = epochs
    return seal(dump(fields))


def decode_chunks(row: bytes) -> list[ChunksRow]:
    """The chunks of a row, of each extent in order, and one at least. Raises `ValueError` if it has none."""
    try:
        return [_chunks(*fields) for fields in object_of_format(unsealed(row), _FORMAT)["chunks"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def decode_starts(row: bytes) -> list[tuple[int, int]]:
    """The epochs that start in the last extent, each with its position. Raises `ValueError` if they cannot be read."""
    try:
        found = object_of_format(unsealed(row), _FORMAT).get("epochs", [])
        return [(whole(epoch), whole(position)) for epoch, position in found]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _chunks(first: Any, incarnation: Any, unit: Any, chunks: Any) -> ChunksRow:
    found: list[ChunkRow] = []
    for fields in chunks:
        chunk = _chunk(*fields)
        if found and (chunk.first < found[-1].first or chunk.position < found[-1].position):
            raise ValueError(f"a chunk from {chunk.first} at {chunk.position} comes after {found[-1]}")
        found.append(chunk)
    if not found:
        raise ValueError(f"an extent from {first} has no chunk")
    return ChunksRow(whole(first), whole(incarnation), whole(unit, 1), found)


def _chunk(first: Any, position: Any, size: Any, max_timestamp: Any, modified_ms: Any) -> ChunkRow:
    return ChunkRow(whole(first), whole(position), whole(size), whole(max_timestamp, -1), whole(modified_ms))
