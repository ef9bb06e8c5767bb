"""The index of a partition that shares a topic: the same as a list of its batches, written or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.gateway.ownership import HeldLease
from kclient.gateway.rows.keys import blocks_key, entries_key, indexed_key, of_topic, parse_blocks_key
from kclient.gateway.rows.virtual import (
    BlockRow,
    IndexedRow,
    decode_blocks,
    decode_entries,
    encode_blocks,
    encode_entries,
)
from kclient.gateway.virtual import index as index_module
from kclient.gateway.virtual.index import PartitionIndex
from kclient.gateway.virtual.index_rows import IndexRows
from kclient.htp import TopicSettings, open_store
from kclient.htp.port import Manager
from kclient.htp.rows import seal
from tests.all_rows import scan_all
from tests.example_budget import examples
from tests.sole_writer import sole_writer

ID = bytes(range(16))
names = (f"index-{number}" for number in count())


class Batch(NamedTuple):
    offset: int
    last: int
    ordinal: int
    size: int
    timestamp: int


@asynccontextmanager
async def rows_of() -> AsyncIterator[tuple[Manager, IndexRows]]:
    async with open_store(f"memory:{next(names)}") as store:
        lease = HeldLease(await store.manager.acquire("lease", "me", 100))
        yield store.manager, IndexRows(store.manager, sole_writer(store.manager, lease), ID, "t")


def holds(index: PartitionIndex, batches: list[Batch]) -> None:
    """The blocks say what the batches say."""
    assert sum(block.count for block in index.blocks) == len(batches)
    at = 0
    for block in index.blocks:
        some = batches[at : at + block.count]
        at += block.count
        assert (block.first, block.next) == (some[0].offset, some[-1].last + 1)
        assert (block.ordinal, block.last) == (some[0].ordinal, some[-1].ordinal)
        assert block.size == sum(each.size for each in some)
        assert block.max_timestamp == max(each.timestamp for each in some)
        if block.entries is not None:
            assert list(block.entries.offsets) == [each.offset for each in some]
            assert list(block.entries.ordinals) == [each.ordinal for each in some]
            assert list(block.entries.timestamps) == [each.timestamp for each in some]
    segments = index.segments()
    assert sum(segment.size for segment in segments) == sum(each.size for each in batches)
    assert [segment.active for segment in segments] == [False] * (len(segments) - 1) + [True]
    assert segments[-1].next == index.next
    assert [segment.next for segment in segments[:-1]] == [segment.first for segment in segments[1:]]
    if batches:
        assert (index.start, index.after) == (batches[0].offset, batches[-1].last + 1)
        for each in batches:
            block = index.blocks[index.find(each.offset)]
            assert block.first <= each.offset < block.next
    else:
        assert index.start == index.next == index.after


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 3), st.integers(0, 300), st.integers(-1, 50)),
        st.tuples(st.just("undo"), st.integers(1, 4)),
        st.tuples(st.just("trim"), st.integers(0, 10)),
        st.tuples(st.just("roll")),
        st.tuples(st.just("save"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(steps)
@examples(100)
def test_it_is_a_list_of_batches(steps: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "_FEW", 3)
        anyio.run(_follow, steps)


async def _follow(steps: list[tuple[object, ...]]) -> None:
    async with rows_of() as (_, rows):
        index, batches, ordinal, offset = PartitionIndex(2), list[Batch](), 0, 0
        index.configure(TopicSettings(segment_bytes=500))
        durable, saved = 0, list[Batch]()
        for step, *given in steps:
            values = [int(str(value)) for value in given]
            match step:
                case "add":
                    width, skipped, size, timestamp = values
                    batch = Batch(offset, offset + width - 1, ordinal + skipped, size, timestamp)
                    index.add(*batch, 7)
                    batches.append(batch)
                    ordinal, offset = batch.ordinal + 1, offset + width
                case "undo":
                    lost = [each for each in batches if each.ordinal >= durable][-values[0] :]
                    if lost:
                        batches = batches[: -len(lost)]
                        index.undo([each.size for each in lost], lost[0].offset)
                        offset, ordinal = lost[0].offset, lost[0].ordinal
                case "trim":
                    index.trim(values[0])
                    gone = len(batches) - sum(block.count for block in index.blocks)
                    assert all(each.last < values[0] for each in batches[:gone])
                    batches = batches[gone:]
                case "roll":
                    index.roll()
                case "save":
                    durable = max(durable, ordinal - values[0])
                    for _, block in await rows.write({2: index}, durable, ordinal, dict):
                        block.entries = None
                    saved = [each for each in batches if each.ordinal < durable]
            holds(index, batches)
            assert index.next >= offset
        await _is_written(rows, saved, durable)


async def _is_written(rows: IndexRows, batches: list[Batch], end: int) -> None:
    written = await rows.read()
    assert written.end in (0, end)
    index = written.indexes.get(2, PartitionIndex(2))
    found = []
    for block in index.blocks:
        entries = await rows.entries(index, block)
        assert entries is not None
        found += list(zip(entries.offsets, entries.ordinals, entries.timestamps, strict=True))
    assert found == [(each.offset, each.ordinal, each.timestamp) for each in batches]
    if batches:
        assert (index.start, index.blocks[-1].last) == (batches[0].offset, batches[-1].ordinal)
        assert index.after >= batches[-1].last + 1


@pytest.mark.anyio
async def test_rows_of_dropped_blocks_go() -> None:
    async with rows_of() as (manager, rows):
        index = PartitionIndex(0)
        index.configure(TopicSettings(segment_bytes=100))
        for number in range(10):
            index.add(number, number, number, 100, 5, 7)
        await rows.write({0: index}, 10, 10, dict)
        assert set(await scan_all(manager, "kafka/")) == {
            indexed_key(ID),
            blocks_key(ID, 0, 0),
            *(entries_key(ID, 0, number) for number in range(10)),
        }
        index.trim(8)
        await rows.write({0: index}, 10, 10, dict)
        left = set(await scan_all(manager, "kafka/"))
        assert left == {indexed_key(ID), blocks_key(ID, 0, 0), entries_key(ID, 0, 8), entries_key(ID, 0, 9)}
        assert all(any(key.startswith(prefix) for prefix in of_topic(ID)) for key in left)
        index.trim(10)
        await rows.write({0: index}, 10, 10, dict)
        assert set(await scan_all(manager, "kafka/")) == {indexed_key(ID)}


@pytest.mark.anyio
async def test_damaged_rows_are_told_and_count_as_missing(caplog: pytest.LogCaptureFixture) -> None:
    for damaged in (indexed_key(ID), blocks_key(ID, 0, 0)):
        caplog.clear()
        async with rows_of() as (manager, rows):
            index = PartitionIndex(0)
            index.add(0, 0, 0, 100, 5, 7)
            await rows.write({0: index}, 1, 1, dict)
            await manager.commit({damaged: b"garbage"})
            assert await rows.read() == (0, 0, {})
            assert "nothing has to be done" in caplog.text
            await rows.write({}, 0, 0, dict)
            assert list(await scan_all(manager, "kafka/")) == [indexed_key(ID)], "what means nothing goes"


@pytest.mark.anyio
async def test_entries_of_another_block_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    async with rows_of() as (manager, rows):
        index = PartitionIndex(0)
        for number in range(4):
            index.add(number, number, 2 * number, 100, 5, 7)
        await rows.write({0: index}, 8, 8, dict)
        (block,) = index.blocks
        assert block.entries is not None
        other = block.entries.first(3)
        await manager.commit({entries_key(ID, 0, 0): encode_entries(other.offsets, other.ordinals, other.timestamps)})
        assert await rows.entries(index, block) is None
        assert "it has 3 entries" in caplog.text


def test_rows_and_keys() -> None:
    assert IndexedRow.decode(IndexedRow(4, 9).encode()) == IndexedRow(4, 9)
    block = BlockRow(3, 0, 9, 4, 8, 2, 700, -1, 5, 1)
    assert decode_blocks(encode_blocks([block])) == [block]
    assert parse_blocks_key(blocks_key(ID, 7, 3)) == (7, 3)
    for row in (
        encode_blocks([]),
        encode_blocks([block._replace(count=0)]),
        encode_blocks([block._replace(count=9)]),
        encode_blocks([block._replace(next=0)]),
        encode_blocks([block, block]),
        seal(b'{"format":1}'),
        seal(b'{"format":2,"blocks":[]}'),
        seal(b'{"format":1,"blocks":[[1,2]]}'),
    ):
        with pytest.raises(ValueError):
            decode_blocks(row)
    for row in (
        seal(b'{"format":1}'),
        seal(b'{"format":1,"entries":""}'),
        seal(b'{"format":1,"entries":"AAAA"}'),
        seal(b'{"format":1,"entries":"????"}'),
        seal(b'{"format":1,"entries":7}'),
    ):
        with pytest.raises(ValueError):
            decode_entries(row)
    for wrong in ("kafka/blocks/00/1", "kafka/blocks/00/x/1", "kafka/blocks/00/1/-1"):
        with pytest.raises(ValueError):
            parse_blocks_key(wrong)


def test_a_segment_does_not_become_younger_by_trimming() -> None:
    index = PartitionIndex(0)
    index.configure(TopicSettings(segment_bytes=100, segment_ms=1_000))
    index.add(0, 0, 0, 60, -1, 0)
    index.add(1, 1, 1, 60, -1, 0)
    index.add(2, 2, 2, 1, -1, 900)
    index.trim(1)
    assert [block.first for block in index.blocks] == [1]
    index.add(3, 3, 3, 1, -1, 1_001)
    assert [segment[0] for segment in index.segments()] == [1, 3]
