"""What a gateway writes last of partitions that move, or whose topic another gateway has deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kclient.errors import UnknownTopicOrPartitionError
from kclient.gateway.fenced_writer import FencedWriter
from kclient.gateway.living_topics import LivingTopics, TopicGoneError
from kclient.gateway.rows.keys import ASSIGNMENT, BLOCKS, CHECKPOINTS, indexed_key, topic_key
from kclient.gateway.rows.topics import TopicRow
from kclient.gateway.rows.virtual import IndexedRow
from kclient.gateway.unit import Unit
from kclient.htp import ConflictError, open_store
from kclient.htp.port import Manager
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

TOPIC_ID = bytes(range(16))


@pytest.mark.slow
async def test_the_index_of_a_shared_topic_moves_with_it(url: str) -> None:
    """Whoever leads it next reads no message again."""
    names = [f"t{number}" for number in range(20)]  # so that one in a million times one gateway has them all
    async with open_store(url) as store, joined(store, 1, mapping="virtual") as (first, wire):
        for name in names:
            await wire.create(name, 2)
            for index in (0, 1, 0):
                assert (await wire.produce(name, batch_of(b"a"), index)).error_code == 0
        async with joined(store, 2, mapping="virtual") as (second, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            await first.parts.hand_over.done()
            moved = [
                record for record in first.parts.topics if second.parts.leadership.leads(record, 0)
            ]  # fmt: skip
            assert 0 < len(moved) < len(names)
            for record in moved:
                key = indexed_key(record.topic_id)
                row = (await store.manager.get([key]))[key]
                assert IndexedRow.decode(row.value) == (3, 3)
                blocks = await scan_all(store.manager, f"{BLOCKS}{record.topic_id.hex()}/")
                assert len(blocks) == 2, "of each partition"
                assert await other.values(record.name, 0, 0) == [b"a", b"a"]
                assert (await other.produce(record.name, batch_of(b"b"), 1)).base_offset == 1


async def test_a_topic_that_another_gateway_has_deleted_keeps_no_rows(url: str) -> None:
    """Though its leader, which does not know yet, writes a checkpoint, and hands it over."""
    async with open_store(url) as store, joined(store, 1) as (first, wire), joined(store, 2) as (second, other):
        await until(lambda: len(first.parts.generations.current.newest.members) == 2)
        await wire.create("t", 32)  # so that each leads some
        await until(lambda: second.parts.topics.get("t") is not None)
        record = second.parts.topics.get("t")
        assert record is not None
        await until(lambda: any(second.parts.leadership.leads(record, index) for index in range(32)))
        led = [index for index in range(32) if second.parts.leadership.leads(record, index)]
        for index in led:
            assert (await other.produce("t", batch_of(b"a"), index)).error_code == 0
        partition = record.logs[led[0]]
        # as its leader sees it: with the row that it had, which is gone
        writer = second.parts.partitions._checkpoints
        rows: dict[str, bytes] = partition.checkpoints.rows()
        unit, topics = partition.unit, second.parts.topics
        await wire.delete("t")
        topics._by_id[record.topic_id] = record
        with pytest.raises(UnknownTopicOrPartitionError):
            await writer.write(rows, [unit])
        await writer.write_all({unit: rows})
        assert not await scan_all(store.manager, CHECKPOINTS)
        topics._by_id.pop(record.topic_id)


class Row:
    """The row of a topic, and a writer of rows of it."""

    def __init__(self, manager: Manager, kept: int = 2) -> None:
        self.manager = manager
        self.known: Any = SimpleNamespace(name="t", topic_id=TOPIC_ID, version=0)
        self._generations: Any = SimpleNamespace(
            current=SimpleNamespace(kept=range(kept)), leads=lambda _: True, version=0
        )
        lease: Any = SimpleNamespace(current=None)
        topics = LivingTopics(manager, lambda topic_id: self.known, self._generations)
        self.writer = FencedWriter(manager, lease, self._generations, topics)

    async def write(self, topic_id: bytes | None, partitions: int = 1) -> int:
        """Write it, or remove it, as another gateway does."""
        row = None if topic_id is None else TopicRow(topic_id, partitions, 1, "domain", [1] * partitions, {}).encode()
        return await self.manager.commit({topic_key("t"): row})

    async def commit(self, **expect: int) -> None:
        """Write a row of the topic."""
        await self.writer.commit({"checkpoint": b"row"}, [Unit(TOPIC_ID, 0)], expect)

    async def is_written(self) -> bool:
        return bool(await self.manager.get(["checkpoint"]))


async def test_rows_are_written_while_their_topic_is_there(url: str) -> None:
    async with open_store(url) as store:
        row = Row(store.manager)
        row.known.version = await row.write(TOPIC_ID)
        await row.commit()
        await row.write(TOPIC_ID, 2)
        await row.commit()  # it has changed, and is the same
        assert await row.is_written()


@pytest.mark.parametrize("following", [None, bytes(16)])
async def test_no_rows_are_written_of_a_topic_that_has_gone(url: str, following: bytes | None) -> None:
    async with open_store(url) as store:
        row = Row(store.manager)
        row.known.version = await row.write(TOPIC_ID)
        await row.write(following)
        with pytest.raises(TopicGoneError):
            await row.commit()
        row.known = None
        with pytest.raises(TopicGoneError):
            await row.commit()
        assert not await row.is_written()


async def test_other_conflicts_are_told(url: str) -> None:
    async with open_store(url) as store:
        row = Row(store.manager)
        row.known.version = await row.write(TOPIC_ID)
        with pytest.raises(ConflictError) as conflict:
            await row.commit(other=3)
        assert conflict.value.key == "other" != ASSIGNMENT


async def test_one_that_was_always_alone_expects_nothing(url: str) -> None:
    """Nobody else has deleted the topic; and what itself deletes waits for what it writes."""
    async with open_store(url) as store:
        row = Row(store.manager, kept=1)
        row.known = None
        await row.commit()
        assert await row.is_written()


async def test_checkpoints_that_were_read_ahead_are_forgotten_when_another_joins(url: str) -> None:
    """It may write others."""
    async with open_store(url) as store:
        async with joined(store, 1) as (_, wire):
            await wire.create("t", 8)
            for index in range(8):
                assert (await wire.produce("t", batch_of(b"a"), index)).error_code == 0
        async with joined(store, 1) as (first, wire):
            checkpoints = first.parts.partitions._checkpoints
            async with joined(store, 2) as (second, _):
                await until(lambda: len(first.parts.generations.current.newest.members) == 2)
                assert not checkpoints._read_ahead
                assert not second.parts.partitions._checkpoints._read_ahead
