"""Reading the batches of one partition out of what was read of the topic that it shares."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from kclient.gateway.virtual.envelopes import last_offset_at
from kclient.gateway.virtual.index import Block, IndexEntries, PartitionIndex
from kclient.gateway.virtual.windows import Window
from kclient.htp.errors import DamagedError
from kclient.htp.port import Pulled
from kclient.records import gather_batches

Read = Callable[[int, int | None], Window | None]
"""`read(ordinal, few)`: messages from an ordinal on, about a mebibyte, or so `few`; None if they must be waited for."""

Take = Callable[[int], "bytearray | memoryview"]
"""`take(size)`: a buffer of so many bytes, with anything in it."""

_SPARSE: Final = 256
"""One message in so many at most is the partition's: they are read one by one."""
_AHEAD: Final = 4
"""Entries that are looked at to find that out."""
_SHARED: Final = 4
"""A part of a window smaller than one in so many is copied, so that it does not keep the whole in memory."""
_ANY: Final = 1 << 62


class _Piece(NamedTuple):
    """Batches that are taken from a window."""

    window: Window
    entries: IndexEntries
    place: int
    """Of the first one among the entries."""
    number: int
    """How many they are."""


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
    take: Take,
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
        take: Gives a buffer of a size.
        offset: Where to begin.
        max_bytes: At most so many bytes, but one batch at least.
        max_messages: At most so many batches.
        patient: Whether what has to be waited for is not left out.

    Raises:
        Missing: Something has to be waited for; unless `patient`, only before there is any batch.
        DamagedError: What is there is not what the index says.
    """
    pieces: list[_Piece] = []
    size, left, first = 0, max_messages or _ANY, True
    number = index.find(offset)
    place = -1
    while number < len(index.blocks) and left and (size < max_bytes or not pieces):
        block = index.blocks[number]
        entries = block.entries
        if entries is None:
            if pieces and not patient:
                break
            raise Missing(block)
        if place < 0:
            place = max(bisect_right(entries.offsets, offset) - 1, 0)
        ordinal = entries.ordinals[place]
        if ordinal >= end:
            break
        few = _few(entries, place, left)
        try:
            window = read(ordinal, few)
            if window is None:
                if pieces and not patient:
                    break
                raise Missing(ordinal, few)
            count, taken = window.batches.select(
                index.number, entries.ordinals, entries.offsets, place, left, max_bytes - size
            )
            if not count:
                raise _damaged(name, entries, place)
        except DamagedError:
            if pieces:
                break
            raise
        if first:
            first = False
            begin, following = window.batches.place(ordinal)
            if last_offset_at(window.data, begin) < offset:  # it lies in a gap behind that
                count, taken, place = count - 1, taken - (following - begin), place + 1
        if count:
            if pieces and size + taken > max_bytes:
                break
            pieces.append(_Piece(window, entries, place, count))
            place, size, left = place + count, size + taken, left - count
        if place == len(entries):
            number, place = number + 1, 0
        elif pieces and entries.ordinals[place] < window.next:
            break  # what comes next is here, and has no room
    return _joined(pieces, size, take) if pieces else Pulled(b"", offset, offset - 1)


def _damaged(name: str, entries: IndexEntries, place: int) -> DamagedError:
    return DamagedError(
        f"{name}: the batch at offset {entries.offsets[place]} is not in message {entries.ordinals[place]} of the "
        "topic, where it was"
    )


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


def _joined(pieces: list[_Piece], size: int, take: Take) -> Pulled:
    """The batches of some windows: a part of one where it is one batch, else a copy."""
    window, entries, place, count = pieces[0]
    first = entries.offsets[place]
    last_window, entries, place, count = pieces[-1]
    begin, end = last_window.batches.place(entries.ordinals[place + count - 1])
    last = last_offset_at(last_window.data, begin)
    if len(pieces) == count == 1 and size * _SHARED >= len(window.data):
        return Pulled(memoryview(window.data)[begin:end], first, last)
    parts = [(each.window.batches, each.entries.ordinals, each.place, each.number) for each in pieces]
    data = take(size)
    gather_batches(parts, data)
    return Pulled(data, first, last)
