"""Reading the batches of one partition out of what was read of the topic that it shares."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from kclient.gateway.virtual.envelopes import last_offset_of
from kclient.gateway.virtual.index import Block, IndexEntries, PartitionIndex
from kclient.gateway.virtual.windows import WINDOW_BYTES, Window
from kclient.htp.errors import DamagedError
from kclient.htp.port import Pulled
from kclient.records import HEADER_SIZE
from kclient.types import Buffer

Read = Callable[[int, int | None], Window | None]
"""`read(ordinal, few)`: messages from an ordinal on, about a mebibyte, or so `few`; None if they must be waited for."""

_SPARSE: Final = 256
"""One message in so many at most is the partition's: they are read one by one."""
_AHEAD: Final = 4
"""Entries that are looked at to find that out."""
_SHARED: Final = 4
"""A part of a window smaller than one in so many is copied, so that it does not keep the whole in memory."""


class Missing(Exception):
    """What has to be waited for before something can be read.

    Args:
        what: The ordinal of a message, or a block without its entries.
        few: How many messages from the ordinal on; None for a window.
    """

    def __init__(self, what: int | Block, few: int | None = None) -> None:
        super().__init__()
        self.what: int | Block = what
        self.few: int | None = few


def pull(
    index: PartitionIndex,
    name: str,
    end: int,
    read: Read,
    offset: int,
    max_bytes: int,
    max_messages: int | None,
    *,
    patient: bool = False,
) -> Pulled:
    """The batches of a partition from an offset on, as `OpenTopic.pull` gives them.

    Args:
        index: Of the partition, which has the offset, or one that comes after it.
        name: Of the partition, for messages.
        end: The ordinal up to which messages are visible.
        read: Reads the topic.
        offset: Where to begin.
        max_bytes: At most so many bytes, but one batch at least.
        max_messages: At most so many batches.
        patient: Whether what has to be waited for is not left out.

    Raises:
        Missing: Something has to be waited for; unless `patient`, only before there is any batch.
        DamagedError: What is there is not what the index says.
    """
    found: list[memoryview] = []
    size, left, first = 0, max_messages or 1 << 62, True
    source: Window | None = None
    number = index.find(offset)
    place = -1
    while number < len(index.blocks) and left and (size < max_bytes or not found):
        block = index.blocks[number]
        entries = block.entries
        if entries is None:
            if found and not patient:
                break
            raise Missing(block)
        if place < 0:
            place = max(bisect_right(entries.offsets, offset) - 1, 0)
        ordinal = entries.ordinals[place]
        if ordinal >= end:
            break
        few = _few(entries, place, left)
        room = max_bytes - size
        most = min(left, max(room, 0) // HEADER_SIZE + 1) + first
        try:
            window = read(ordinal, few)
            taken = [] if window is None else _take(window, index.number, entries, place, most, name)
        except DamagedError:
            if found:
                break
            raise
        if not taken:
            if found and not patient:
                break
            raise Missing(ordinal, few)
        place, source = place + len(taken), window
        if first and last_offset_of(taken[0]) < offset:  # it lies in a gap behind that
            del taken[0]
        first = False
        ends = list(accumulate(map(len, taken)))
        count = min(bisect_right(ends, room), left)
        if not found and taken:
            count = max(count, 1)
        if count:
            found += taken[:count]
            size += ends[count - 1]
            left -= count
        if count < len(taken):
            break
        if place == len(entries):
            number, place = number + 1, 0
    if not found:
        return Pulled(b"", offset, offset - 1)
    return Pulled(_joined(found, size, source), int.from_bytes(found[0][:8]), last_offset_of(found[-1]))


def _few(entries: IndexEntries, place: int, left: int) -> int | None:
    """How many messages to read, one after the other, where few of the topic are the partition's; None for many."""
    if left == 1:
        return 1
    ordinals, ahead = entries.ordinals, place + _AHEAD
    if ahead >= len(ordinals) or ordinals[ahead] - ordinals[place] <= _SPARSE * _AHEAD:
        return None
    return _in_a_row(entries, place, left)


def _in_a_row(entries: IndexEntries, place: int, most: int) -> int:
    """How many messages one after the other are the partition's."""
    ordinals, count = entries.ordinals, 1
    last = min(len(ordinals) - place, most)
    while count < last and ordinals[place + count] - ordinals[place] == count:
        count += 1
    return count


def _take(window: Window, partition: int, entries: IndexEntries, place: int, most: int, name: str) -> list[memoryview]:
    """The batches of a window that are those of the index, from an entry on; one at least, and at most so many."""
    run = window.runs.get(partition)
    begin = entries.offsets[place]
    if run is not None:
        offsets, batches = run
        at = bisect_left(offsets, begin)
        count = min(len(offsets) - at, len(entries) - place, most)
        if count > 0 and offsets[at] == begin:
            if array("q", offsets[at : at + count]) == entries.offsets[place : place + count]:
                return batches[at : at + count]
            count = next(number for number in range(count) if offsets[at + number] != entries.offsets[place + number])
            return batches[at : at + count]
    raise DamagedError(
        f"{name}: the batch at offset {begin} is not in message {entries.ordinals[place]} of the topic, where it was"
    )


def _joined(found: list[memoryview], size: int, window: Window | None) -> Buffer:
    if len(found) > 1:
        return b"".join(found)
    assert window is not None
    return found[0] if size * _SHARED >= min(window.size, WINDOW_BYTES) else bytes(found[0])
