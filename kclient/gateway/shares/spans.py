"""What was read of a log for a share group: which offsets hold records that are to be delivered, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kclient.gateway.shares.share_partition import Delivered, ReadSpan
from kclient.records import read_end_marker, read_header
from kclient.types import Buffer


class SpanPlace(NamedTuple):
    """A batch that was read, and where it lies in what was read."""

    span: ReadSpan
    begin: int
    end: int
    """Of its bytes."""


def spans_of(data: Buffer, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[SpanPlace]:
    """The batches of what was read, one by one.

    Control batches, empty ones, and those of transactions that were aborted hold nothing to be delivered.

    Args:
        data: Whole batches.
        aborted: Of aborted transactions with records in them: producer id and first offset; none for who reads what
            is not committed, too.
    """
    view = memoryview(data)
    left = sorted(aborted, key=lambda each: each[1], reverse=True)
    hidden: set[int] = set()
    place = 0
    while place < len(view):
        header = read_header(view, place)
        end = place + header.length
        while left and left[-1][1] <= header.last_offset:
            hidden.add(left.pop()[0])
        wanted = bool(header.count) and not header.is_control
        if header.is_control:
            if header.producer_id in hidden:
                marker = read_end_marker(view[place:end])
                if marker is not None and not marker.committed:
                    hidden.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in hidden:
            wanted = False
        yield SpanPlace(ReadSpan(header.base_offset, header.last_offset, wanted), place, end)
        place = end


def records_of(data: Buffer, places: Iterable[SpanPlace], delivered: Sequence[Delivered]) -> Buffer:
    """The batches from the first to the last of which records are delivered; members see what is theirs.

    Args:
        data: What was read.
        places: Its batches.
        delivered: What is delivered of them, one at least.
    """
    first, last = delivered[0].first, delivered[-1].last
    among = [each for each in places if each.span.last >= first and each.span.first <= last]
    return memoryview(data)[among[0].begin : among[-1].end]
