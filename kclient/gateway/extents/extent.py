"""The list of a partition's extents: what lies where, and what becomes of the list when some are replaced."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final

from kclient.errors import IllegalStateError
from kclient.gateway.extents.chunks import Chunk, Chunks
from kclient.htp.port import Place

_FIRST: Final = attrgetter("first")


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of offsets, and the range of positions that holds it."""

    place: Place
    """The HTP topic, which has its broker."""
    first: int
    """The first offset."""
    next: int | None
    """The offset after the last; None while it is appended to, which the last extent alone is."""
    end: int | None
    """The position after the last message; None as above. The first position is that of the first chunk."""
    chunks: Chunks

    @property
    def start(self) -> int:
        """Where the first message is, or comes next."""
        return self.chunks.all[0].position


def check(extents: Sequence[Extent]) -> None:
    """Raise `IllegalStateError` for what is no list of a partition: nothing overlaps, the last one is open."""
    for one, following in pairwise(extents):
        if one.next is None or one.end is None or not one.first < one.next <= following.first:
            raise IllegalStateError(f"an extent from {one.first} to {one.next} cannot come before {following.first}")
    if not extents or extents[-1].next is not None or extents[-1].end is not None:
        raise IllegalStateError("the last extent of a partition is appended to, and has no end")


def find(extents: Sequence[Extent], offset: int) -> int:
    """The number of the extent that holds an offset, or comes next, or of the last."""
    at = max(bisect_right(extents, offset, key=_FIRST) - 1, 0)
    ends = extents[at].next
    return at + 1 if ends is not None and ends <= offset else at


def trimmed(extents: Sequence[Extent], before: int) -> list[Extent]:
    """Without the extents that lie wholly below an offset; the last one stays."""
    return list(extents[find(extents, before) :])


def replaced(extents: Sequence[Extent], first: int, until: int, by: Sequence[Extent]) -> list[Extent]:
    """The list with others in place of all extents from one offset to another, which are bounds of some.

    Raises:
        IllegalStateError: They are no bounds, or the new ones do not lie between them.
    """
    before = [extent for extent in extents if extent.next is not None and extent.next <= first]
    after = [extent for extent in extents if extent.first >= until]
    inside = len(extents) - len(before) - len(after)
    if not inside or any(extent.first < first or extent.next is None or extent.next > until
                         for extent in extents[len(before) : len(before) + inside]):  # fmt: skip
        raise IllegalStateError(f"no extents reach from offset {first} to {until}")
    if any(extent.first < first or extent.next is None or extent.next > until for extent in by):
        raise IllegalStateError(f"what is put in does not lie from offset {first} to {until}")
    found = [*before, *by, *after]
    check(found)
    return found


def split(extent: Extent, offset: int, position: int, divided: Chunk) -> tuple[Extent, Extent]:
    """An extent as two: what lies below an offset, and the rest, which begins at this position.

    Args:
        extent: The extent.
        offset: Where a batch begins.
        position: Of that batch.
        divided: What lies below the offset of the chunk that it lies in.
    """
    below, rest = extent.chunks.split(offset, position, divided)
    return replace(extent, next=offset, end=position, chunks=below), replace(extent, first=offset, chunks=rest)
