"""Where the batches of one partition lie among the messages of a topic that it shares: an entry for each batch.

Entries are kept in blocks. What a block holds is known without them; so those of older ones leave memory once they have
been written (`index_rows.py`), and are read again for whoever looks there. Some blocks one after the other make what
retention knows as a segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Final

from kclient.htp.port import SegmentInfo, TopicSettings

_NEXT: Final = attrgetter("next")
_FEW: Final = 1024
"""Entries of a block, while there are not more blocks than this; then four times as many, and so on."""
_MOST: Final = 16_384
_BLOCK: Final = 330
"""About how many bytes of memory a block takes without its entries."""
ENTRY: Final = 24
"""Bytes of memory that an entry takes."""


class IndexEntries:
    """Of a block, in order; the arrays run in parallel."""

    __slots__ = ("offsets", "ordinals", "timestamps")

    def __init__(self, offsets: array[int], ordinals: array[int], timestamps: array[int]) -> None:
        self.offsets: array[int] = offsets
        """Base offsets of the batches."""
        self.ordinals: array[int] = ordinals
        """Of the messages that hold them."""
        self.timestamps: array[int] = timestamps
        """The greatest of each batch, milliseconds since the epoch; -1 if it has none."""

    @classmethod
    def none(cls) -> IndexEntries:
        """No entries yet."""
        return cls(array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self.offsets)

    def first(self, count: int) -> IndexEntries:
        """Some of them, from the first on."""
        return IndexEntries(self.offsets[:count], self.ordinals[:count], self.timestamps[:count])


class Block:
    """Some entries one after the other, and what they say together."""

    __slots__ = (
        "begins", "count", "entries", "first", "last", "max_timestamp", "modified_ms", "next", "number", "ordinal",
        "saved", "size",
    )  # fmt: skip

    def __init__(self, number: int, first: int, ordinal: int, *, begins: bool) -> None:
        self.number: int = number
        """Of the partition's blocks; no other one has had it."""
        self.first: int = first
        """The first batch's base offset."""
        self.next: int = first
        """The offset behind the last batch."""
        self.ordinal: int = ordinal
        """Of the first batch."""
        self.last: int = ordinal
        """Of the last batch."""
        self.count: int = 0
        self.size: int = 0
        """Bytes of the batches."""
        self.max_timestamp: int = -1
        self.modified_ms: int = 0
        """When a batch was added last, milliseconds since the epoch."""
        self.begins: bool = begins
        """Whether a segment begins with it."""
        self.entries: IndexEntries | None = None
        """None while they are written, and not in memory."""
        self.saved: bool = False
        """Whether all of them are written."""


class PartitionIndex:
    """The blocks of a partition, in order.

    Args:
        number: The partition's.
    """

    __slots__ = (
        "_numbers", "_rolled", "_segment_ms", "_segment_since", "_segment_size", "_settings", "blocks", "changes",
        "floor", "gone", "least", "number", "saved", "unwritten",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.blocks: list[Block] = []
        self.least: int = 0
        """No offset below this is given, whatever is there."""
        self.floor: int = 0
        """Offsets below this are not needed, though some may be there."""
        self.changes: int = 0
        """How often it has changed."""
        self.saved: int = 0
        """Up to which of its changes it was written."""
        self.unwritten: dict[int, PartitionIndex] = {}
        """Where it is put, by its number, when it changes; those of a topic share one, see `join`."""
        self.gone: list[int] = []
        """The numbers of blocks that were dropped, and whose rows may still be there."""
        self._numbers = 0
        self._rolled = False
        self._segment_size = 0
        self._segment_since = 0
        self._settings = TopicSettings()

    def load(self, blocks: list[Block]) -> None:
        """What was written."""
        self.blocks = blocks
        if blocks:
            self._numbers = blocks[-1].number + 1
            self._begin_again()

    def join(self, unwritten: dict[int, PartitionIndex]) -> None:
        """Tell of changes here from now on, and of those that are not written yet."""
        self.unwritten = unwritten
        if not self.is_written:
            unwritten[self.number] = self

    @property
    def is_written(self) -> bool:
        """Whether there is nothing that was not written."""
        return self.changes == self.saved and not self.gone

    def _changed(self) -> None:
        self.changes += 1
        self.unwritten[self.number] = self

    def _begin_again(self) -> None:
        """What is in the last segment."""
        self._segment_size, self._segment_since = 0, self.blocks[-1].modified_ms if self.blocks else 0
        for block in reversed(self.blocks):
            self._segment_size += block.size
            if block.begins:
                break

    def configure(self, settings: TopicSettings) -> None:
        """How large and how old a segment becomes."""
        self._settings = settings

    @property
    def start(self) -> int:
        """The first offset that can be read."""
        return self.blocks[0].first if self.blocks else self.next

    @property
    def after(self) -> int:
        """The offset behind the last batch; if there is none, the next one to be given."""
        return self.blocks[-1].next if self.blocks else self.least

    @property
    def next(self) -> int:
        """The next offset to be given."""
        return max(self.blocks[-1].next, self.least) if self.blocks else self.least

    @property
    def needed(self) -> int | None:
        """The ordinal from which on messages are needed, as far as is known; None if there are none."""
        if not self.blocks:
            return None
        block = self.blocks[0]
        if block.entries is None or block.first >= self.floor:
            return block.ordinal
        return block.entries.ordinals[max(bisect_right(block.entries.offsets, self.floor) - 1, 0)]

    @property
    def size(self) -> int:
        """Bytes of its batches."""
        return sum(block.size for block in self.blocks)

    @property
    def memory(self) -> int:
        """About how many bytes of memory it takes, but for entries that can be read again."""
        return sum(
            _BLOCK + (0 if block.entries is None or block.saved else ENTRY * block.count) for block in self.blocks
        )

    def add(self, offset: int, last_offset: int, ordinal: int, size: int, max_timestamp: int, now_ms: int) -> None:
        """A batch follows on those that are there."""
        block = self._room_for(offset, ordinal, size, now_ms)
        entries = block.entries
        assert entries is not None
        entries.offsets.append(offset)
        entries.ordinals.append(ordinal)
        entries.timestamps.append(max_timestamp)
        block.next, block.last = last_offset + 1, ordinal
        block.count += 1
        block.size += size
        block.modified_ms = now_ms
        if max_timestamp > block.max_timestamp:
            block.max_timestamp = max_timestamp
        self._segment_size += size
        self._changed()

    def _room_for(self, offset: int, ordinal: int, size: int, now_ms: int) -> Block:
        settings, blocks = self._settings, self.blocks
        begins = not blocks or self._rolled or (
            self._segment_size + size > settings.segment_bytes
            or now_ms - self._segment_since > settings.segment_ms
        )  # fmt: skip
        if not begins:
            last = blocks[-1]
            if last.entries is not None and not last.saved and last.count < self._most:
                return last
        else:
            self._rolled, self._segment_size, self._segment_since = False, 0, now_ms
        made = Block(self._numbers, offset, ordinal, begins=begins)
        made.entries = IndexEntries.none()
        self._numbers += 1
        blocks.append(made)
        return made

    @property
    def _most(self) -> int:
        """Entries of a block: the more blocks there are, the more."""
        return min(_FEW << 2 * (len(self.blocks) // _FEW), _MOST)

    def is_whole(self, block: Block) -> bool:
        """Whether nothing will be added to a block."""
        return block is not self.blocks[-1] or block.count >= self._most or self._rolled

    def undo(self, sizes: list[int], after: int) -> None:
        """The last batches, of these sizes, are not there after all; `after` is the offset behind what stays."""
        for size in reversed(sizes):
            block = self.blocks[-1]
            entries = block.entries
            assert entries is not None, "what is not durable is not written"
            for column in (entries.offsets, entries.ordinals, entries.timestamps):
                column.pop()
            block.count -= 1
            block.size -= size
            self._segment_size -= size
            if block.count:
                block.last = entries.ordinals[-1]
            else:
                self.blocks.pop()
                self.gone.append(block.number)
                self._rolled = self._rolled or block.begins
        if self.blocks and (entries := self.blocks[-1].entries) is not None:
            self.blocks[-1].next = after
            self.blocks[-1].max_timestamp = max(entries.timestamps)
        self._changed()

    def cut(self, ordinal: int) -> bool:
        """What lies from an ordinal on is not there; whether there was anything. Its blocks have their entries."""
        before = self.changes
        while self.blocks and self.blocks[-1].last >= ordinal:
            block = self.blocks[-1]
            self._changed()
            keep = 0 if block.ordinal >= ordinal or block.entries is None else bisect_left(
                block.entries.ordinals, ordinal
            )  # fmt: skip
            if keep and block.entries is not None:
                entries = block.entries
                block.next = entries.offsets[keep]  # not before the end of what stays
                block.entries = entries.first(keep)
                block.size = block.size * keep // block.count
                block.count, block.last = keep, block.entries.ordinals[-1]
                block.max_timestamp, block.saved = max(block.entries.timestamps), False
                break
            self.gone.append(self.blocks.pop().number)
        if self.changes != before:
            self._begin_again()
        return self.changes != before

    def start_at(self, ordinal: int) -> None:
        """The topic begins at an ordinal: what lies before it is not there."""
        self._drop(bisect_left(self.blocks, ordinal, key=attrgetter("last")))

    def trim(self, before: int) -> None:
        """Offsets below this one are not needed: blocks wholly below it are forgotten."""
        self.floor = max(self.floor, before)
        self._drop(bisect_right(self.blocks, before, key=_NEXT))

    def _drop(self, count: int) -> None:
        if count:
            self.least = self.next
            self.gone += [block.number for block in self.blocks[:count]]
            begun = any(block.begins for block in self.blocks[:count])
            del self.blocks[:count]
            if self.blocks:
                self.blocks[0].begins = self.blocks[0].begins or begun
            since = self._segment_since
            self._begin_again()
            self._segment_since = since  # the last segment is as old as before
            self._changed()

    def find(self, offset: int) -> int:
        """The number in the list of the block that holds an offset, or comes next; that of the blocks if none does."""
        return bisect_right(self.blocks, offset, key=_NEXT)

    def roll(self) -> None:
        """What comes next begins a segment, unless the last one is empty."""
        self._rolled = self._rolled or bool(self.blocks)

    def segments(self) -> list[SegmentInfo]:
        """What retention decides upon."""
        groups: list[list[Block]] = []
        for block in self.blocks:
            if block.begins or not groups:
                groups.append([])
            groups[-1].append(block)
        nexts = [*(group[0].first for group in groups[1:]), self.next]
        found = [
            SegmentInfo(
                group[0].first,
                following,
                sum(block.size for block in group),
                max(block.max_timestamp for block in group),
                group[-1].modified_ms,
                active=False,
            )
            for group, following in zip(groups, nexts, strict=bool(groups))
        ]
        if found and not self._rolled:
            found[-1] = found[-1]._replace(active=True)
        else:
            found.append(SegmentInfo(self.next, self.next, 0, -1, 0, active=True))
        return found
