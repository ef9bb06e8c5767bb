"""The rows of the index of a shared topic: read when it is opened, written now and then."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio.lowlevel

from kclient.gateway.rows.keys import BLOCKS, ENTRIES, blocks_key, entries_key, indexed_key, parse_blocks_key
from kclient.gateway.rows.virtual import (
    BlockRow,
    IndexedRow,
    decode_blocks,
    decode_entries,
    encode_blocks,
    encode_entries,
)
from kclient.gateway.unit import ONE_UNIT, Unit
from kclient.gateway.virtual.index import Block, IndexEntries, PartitionIndex
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.extents import CommitRows
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_IN_A_ROW: Final = 256
"""Blocks whose row is the same, by their numbers."""
_AT_ONCE: Final = 100
"""Rows of entries that are read at once."""


class Written(NamedTuple):
    """What rows say of the index of a topic."""

    end: int
    """The ordinal up to which they tell everything."""
    next: int
    """No ordinal below this is given again."""
    indexes: dict[int, PartitionIndex]


class IndexRows:
    """Keeps the index of one topic.

    Args:
        manager: Keeps the rows.
        writer: Writes them.
        topic_id: Of the topic.
        name: Of the topic, for messages.
    """

    def __init__(self, manager: Manager, writer: FencedWriter, topic_id: bytes, name: str) -> None:
        self._manager = manager
        self._writer = writer
        self._topic_id = topic_id
        self._unit = Unit(topic_id, ONE_UNIT)
        self._name = name
        self._stale: dict[str, None] = {}
        """Rows that mean nothing any more."""

    async def read(self) -> Written:
        """What was written; nothing, up to the first message, where rows are missing or damaged.

        Raises:
            HtpError: The store failed.
        """
        key = indexed_key(self._topic_id)
        row = (await self._manager.get([key])).get(key)
        try:
            indexed = IndexedRow(0, 0) if row is None else IndexedRow.decode(row.value)
            indexes = {} if row is None else await self._indexes()
        except ValueError as error:
            logger.error(
                "%s: a row of its index cannot be read. What it said is looked for in all messages instead; nothing "
                "has to be done (%s)", self._name, error,
            )  # fmt: skip
            row, indexed, indexes = None, IndexedRow(0, 0), {}
        if row is None:
            await self.forget_all()
        return Written(*indexed, indexes)

    async def _indexes(self) -> dict[int, PartitionIndex]:
        rows: dict[int, list[tuple[int, list[BlockRow]]]] = {}
        async for page in scan_pages(self._manager, self._prefix(BLOCKS)):
            for key, row in page.items():
                partition, number = parse_blocks_key(key)
                rows.setdefault(partition, []).append((number, decode_blocks(row.value)))
        indexes = {}
        for partition, found in rows.items():
            index = indexes[partition] = PartitionIndex(partition)
            index.load([_block(row) for _, some in sorted(found) for row in some])
        await self._continue([(index, index.blocks[-1]) for index in indexes.values()])
        return indexes

    async def _continue(self, blocks: list[tuple[PartitionIndex, Block]]) -> None:
        """Read the entries of blocks that there is room in; those that cannot be read are not continued."""
        blocks = [each for each in blocks if not each[0].is_whole(each[1])]
        for begin in range(0, len(blocks), _AT_ONCE):
            some = blocks[begin : begin + _AT_ONCE]
            keys = [entries_key(self._topic_id, index.number, block.number) for index, block in some]
            rows = await self._manager.get(keys)
            for key, (_, block) in zip(keys, some, strict=True):
                if key in rows:
                    try:
                        block.entries = _entries(rows[key].value, block)
                        block.saved = False
                    except ValueError:
                        continue  # whoever reads there is told, and looks for them
            await anyio.lowlevel.checkpoint()

    def _prefix(self, kind: str) -> str:
        return f"{kind}{self._topic_id.hex()}/"

    async def forget_all(self) -> None:
        """Whatever rows there are mean nothing: those that are not written anew go when the index is written next."""
        for kind in (BLOCKS, ENTRIES):
            async for page in scan_pages(self._manager, self._prefix(kind)):
                self._stale.update(dict.fromkeys(page))

    async def entries(self, index: PartitionIndex, block: Block) -> IndexEntries | None:
        """The entries of a block that were written; None if they cannot be read.

        Raises:
            HtpError: The store failed.
        """
        key = entries_key(self._topic_id, index.number, block.number)
        row = (await self._manager.get([key])).get(key)
        try:
            if row is None:
                raise ValueError("it is not there")
            return _entries(row.value, block)
        except ValueError as error:
            logger.error(
                "%s cannot be read. What it said is looked for among the messages of %s instead; nothing has to be "
                "done (%s)", key, self._name, error,
            )  # fmt: skip
            return None

    async def write(
        self,
        indexes: Mapping[int, PartitionIndex],
        end: int,
        following: int,
        others: Callable[[], Mapping[str, bytes]],
        commit: CommitRows | None = None,
    ) -> list[tuple[PartitionIndex, Block]]:
        """Write what has changed, as far as it lies before an ordinal.

        Args:
            indexes: Of the partitions that have changed.
            end: The ordinal: what lies before it is durable.
            following: No ordinal below this is given again.
            others: Rows that are written together with it.
            commit: Writes them; if None, the writer does.

        Returns:
            The blocks whose entries are all written now, and were not before.

        Raises:
            FencedError: Another gateway leads the topic.
            HtpError: The store failed; then it is written the next time.
        """
        rows: dict[str, bytes | None] = dict.fromkeys(self._stale)
        whole: list[tuple[PartitionIndex, Block]] = []
        written: list[tuple[PartitionIndex, int, list[int]]] = []
        for index in list(indexes.values()):
            if not index.is_written:
                everything = not index.blocks or index.blocks[-1].last < end
                written.append((index, index.changes if everything else -1, list(index.gone)))
                self._collect(index, end, rows, whole)
                await anyio.lowlevel.checkpoint()
        rows[indexed_key(self._topic_id)] = IndexedRow(end, following).encode()
        rows |= others()
        if commit is not None:
            await commit(rows)
        else:
            await self._writer.commit(rows, (self._unit,))
        self._stale.clear()
        for index, changes, gone in written:
            index.saved = changes
            del index.gone[: len(gone)]
        for _, block in whole:
            block.saved = True
        return whole

    def _collect(
        self,
        index: PartitionIndex,
        end: int,
        rows: dict[str, bytes | None],
        whole: list[tuple[PartitionIndex, Block]],
    ) -> None:
        """The rows of one partition that have to be written."""
        number = index.number
        changed = {gone // _IN_A_ROW for gone in index.gone}
        for gone in index.gone:
            rows[entries_key(self._topic_id, number, gone)] = None
        told: dict[int, list[BlockRow]] = {}
        for block in index.blocks:
            if block.ordinal >= end:
                break
            row = block.number // _IN_A_ROW
            if not block.saved:
                changed.add(row)
                kept = _before(block, end)
                assert kept.entries is not None
                rows[entries_key(self._topic_id, number, block.number)] = encode_entries(
                    kept.entries.offsets, kept.entries.ordinals, kept.entries.timestamps
                )
                if kept is block and index.is_whole(block):
                    whole.append((index, block))
                block = kept
            told.setdefault(row, []).append(_row(block))
        for row in changed:
            rows[blocks_key(self._topic_id, number, row)] = encode_blocks(told[row]) if row in told else None


def _entries(row: bytes, block: Block) -> IndexEntries:
    """The entries of a row, which are those of a block. Raises `ValueError` if they are not."""
    found = IndexEntries(*decode_entries(row))
    if (len(found), found.offsets[0], found.ordinals[0], found.ordinals[-1]) != (
        block.count,
        block.first,
        block.ordinal,
        block.last,
    ):
        raise ValueError(
            f"it has {len(found)} entries from offset {found.offsets[0]} on, not the block's {block.count}"
        )
    return found


def _before(block: Block, end: int) -> Block:
    """A block as far as it lies before an ordinal; there is something."""
    if block.last < end:
        return block
    assert block.entries is not None, "what is not durable is in memory"
    count = bisect_left(block.entries.ordinals, end)
    kept = Block(block.number, block.first, block.ordinal, begins=block.begins)
    kept.entries = block.entries.first(count)
    kept.count, kept.last, kept.next = count, kept.entries.ordinals[-1], block.entries.offsets[count]
    kept.size = block.size * count // block.count
    kept.max_timestamp, kept.modified_ms = max(kept.entries.timestamps), block.modified_ms
    return kept


def _row(block: Block) -> BlockRow:
    return BlockRow(
        block.number, block.first, block.next, block.ordinal, block.last, block.count, block.size, block.max_timestamp,
        block.modified_ms, int(block.begins),
    )  # fmt: skip


def _block(row: BlockRow) -> Block:
    block = Block(row.number, row.first, row.ordinal, begins=bool(row.begins))
    block.next, block.last, block.count, block.size = row.next, row.last, row.count, row.size
    block.max_timestamp, block.modified_ms = row.max_timestamp, row.modified_ms
    block.saved = True
    return block
