"""Partitions over brokers that sync late, that fail, and that cannot append without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.assembly import Assembly
from kclient.gateway.opening import Openings
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.rows.keys import CHECKPOINTS
from kclient.gateway.rows.partitions import decode_checkpoint
from kclient.htp import open_store
from kclient.htp.errors import StorageError
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.topic import MemoryTopic
from kclient.htp.port import CAP_NOWAIT, SyncedCallback, TopicStatus
from kclient.protocol import messages as m
from kclient.types import Buffer
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request, running
from tests.slow_store import Gates

pytestmark = pytest.mark.anyio


class LateSent:
    """What was sent, and is synced when the test says so."""

    def __init__(self, sent: Any, log: list[LateSent]) -> None:
        self._sent = sent
        self.first, self.last = sent.first, sent.last
        self._callbacks: list[SyncedCallback] = []
        log.append(self)

    def on_synced(self, callback: SyncedCallback) -> None:
        self._callbacks.append(callback)

    def decide(self, error: BaseException | None = None) -> None:
        for callback in self._callbacks:
            callback(error)


@asynccontextmanager
async def late(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Assembly, Wire, list[LateSent]]]:
    """A gateway whose appends are stored at once and synced by the test; the store keeps none that failed."""
    pending: list[LateSent] = []
    async with Gateway(f"memory:{next(names)}", listen=None) as gateway:

        class Stub:
            first = last = 0

        def send(topic: object, messages: Sequence[Buffer]) -> LateSent:
            return LateSent(Stub(), pending)

        wire = connect(gateway)
        await wire.create("t")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryTopic, "send_nowait", send)
            try:
                yield gateway.parts, wire, pending
            finally:
                for sent in pending:
                    sent.decide()
                await wire.aclose()


async def stored(pending: list[LateSent], count: int) -> None:
    with anyio.fail_after(5):
        while len(pending) < count:
            await anyio.lowlevel.checkpoint()


async def answer(wire: Wire) -> tuple[int, int]:
    with anyio.fail_after(5):
        row = (await wire.read(produce_request("t", b""), 9)).responses[0].partition_responses[0]
    return row.error_code, row.base_offset


def idempotent(sequence: int) -> bytes:
    return bytes(batch_of(b"x", producer_id=4, producer_epoch=0, sequence=sequence))


async def test_acks_1_is_answered_when_written_and_all_when_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with late(monkeypatch) as (parts, wire, pending):
        assert (await wire.produce("t", batch_of(b"a"), acks=1)).base_offset == 0
        await wire.send(produce_request("t", batch_of(b"b")), 9)
        await stored(pending, 2)
        # Nothing is visible before it is durable, whatever the acks.
        partition = parts.partitions.get("t", 0)
        assert partition is not None
        assert partition.log.high_watermark == 0
        pending[0].decide()
        assert partition.log.high_watermark == 1
        pending[1].decide()
        assert await answer(wire) == (0, 1)


async def test_a_repeat_waits_for_the_sync_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with late(monkeypatch) as (_, wire, pending):
        await wire.send(produce_request("t", idempotent(0)), 9)
        await wire.send(produce_request("t", idempotent(0)), 9)
        await wire.send(produce_request("t", idempotent(1)), 9)
        await stored(pending, 2)
        pending[1].decide()  # a sync covers what came before it
        assert [await answer(wire) for _ in range(3)] == [(0, 0), (0, 0), (0, 1)]
        assert len(pending) == 2


async def test_a_failed_sync_undoes_what_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with late(monkeypatch) as (parts, wire, pending):
        for sequence in (0, 1, 0):
            await wire.send(produce_request("t", idempotent(sequence)), 9)
        await stored(pending, 2)
        await anyio.wait_all_tasks_blocked()  # the repeat has come too
        pending[0].decide(StorageError("the disk is gone"))
        pending[1].decide(StorageError("the disk is gone"))
        failed = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert [await answer(wire) for _ in range(3)] == [failed] * 3
        partition = parts.partitions.get("t", 0)
        assert partition is not None
        assert (partition.log.next_offset, partition.log.high_watermark) == (0, 0)
        # The retries are new: no duplicate is seen in what was lost.
        for sequence in (0, 1):
            await wire.send(produce_request("t", idempotent(sequence)), 9)
        await stored(pending, 4)
        pending[3].decide()
        assert [await answer(wire) for _ in range(2)] == [(0, 0), (0, 1)]


async def test_a_request_that_takes_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.gateway.handlers.produce._TIMEOUT_STEP_S", 0.01)
    async with late(monkeypatch) as (_, wire, pending):
        request = produce_request("t", batch_of(b"a"))
        request.timeout_ms = 10
        await wire.send(request, 9)
        await stored(pending, 1)
        assert await answer(wire) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_closing_waits_for_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with late(monkeypatch) as (parts, wire, pending):
        await wire.produce("t", batch_of(b"a"), acks=1)
        partition = parts.partitions.get("t", 0)
        assert partition is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partition.settled)
            await anyio.lowlevel.checkpoint()
            pending[0].decide()


class WaitingTopic:
    """A topic that can only be appended to with waiting, as a remote one."""

    def __init__(self, topic: Any, broker: WaitingBroker) -> None:
        self._topic = topic
        self._broker = broker

    async def send(self, messages: Sequence[Buffer]) -> Any:
        await anyio.lowlevel.checkpoint()
        if self._broker.fail is not None:
            raise self._broker.fail
        sent = await self._topic.send(messages)
        return Unsynced(sent, self._broker.unsynced) if self._broker.unsynced is not None else sent

    async def status(self) -> TopicStatus:
        status = await self._topic.status()
        self._broker.asked.set()
        await self._broker.answers.wait()
        return status._replace(next=status.next + self._broker.burnt)

    def __getattr__(self, name: str) -> Any:
        assert not name.endswith("_nowait")
        return getattr(self._topic, name)


class Unsynced:
    """What was taken, and cannot be synced."""

    def __init__(self, sent: Any, error: StorageError) -> None:
        self.first, self.last = sent.first, sent.last
        self._error = error

    def on_synced(self, callback: SyncedCallback) -> None:
        callback(self._error)


class WaitingBroker:
    """A broker of such topics."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.capabilities = broker.capabilities - {CAP_NOWAIT}
        self.fail: StorageError | None = None
        self.unsynced: StorageError | None = None
        self.burnt = 0
        """Of so many positions more the store says that it has given them."""
        self.asked = anyio.Event()
        self.answers = anyio.Event()
        self.answers.set()

    async def open(self, *args: Any, **options: Any) -> Any:
        return WaitingTopic(await self._broker.open(*args, **options), self)

    async def delete(self, *args: Any, **options: Any) -> None:
        await self._broker.delete(*args, **options)


class WaitingStore:
    """A store with such a broker."""

    def __init__(self, store: Any) -> None:
        self.manager = store.manager
        self.broker = WaitingBroker(store.broker)
        self.on_failure = store.on_failure


async def test_a_broker_that_waits_keeps_the_order_too() -> None:
    async with open_store(f"memory:{next(names)}") as inner:
        store: Any = WaitingStore(inner)
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            for sequence in range(20):
                await wire.send(produce_request("t", idempotent(sequence)), 9)
            assert [await answer(wire) for _ in range(20)] == [(0, sequence) for sequence in range(20)]
            assert len(await wire.values("t")) == 20
            store.broker.fail = StorageError("gone")
            for sequence in range(20, 23):
                await wire.send(produce_request("t", idempotent(sequence)), 9)
            assert [await answer(wire) for _ in range(3)] == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
            store.broker.fail = None
            assert (await wire.produce("t", idempotent(20))).base_offset == 20
            request = fetch_request("t", 21, max_wait_ms=60_000)
            await wire.send(request, 11)
            other = connect(gateway)
            await other.produce("t", idempotent(21))
            with anyio.fail_after(5):
                assert (await wire.read(request, 11)).responses[0].partitions[0].high_watermark == 22
            await wire.aclose()
            await other.aclose()


async def test_a_partition_that_cannot_be_opened_says_so_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"memory:{next(names)}"
    async with Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        await wire.aclose()
    async with Gateway(store, listen=None) as gateway:
        broker = gateway.parts.broker

        async def refuse(*args: object, **options: object) -> None:
            raise StorageError("unreadable")

        wire = connect(gateway)
        with monkeypatch.context() as patch:
            patch.setattr(broker, "open", refuse)
            for _ in range(2):
                row = await wire.produce("t", batch_of(b"a"))
                assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "unreadable" in str(row.error_message)
                assert (await wire.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        later = gateway.parts.clock.now() + 1.1
        monkeypatch.setattr(gateway.parts.clock, "now", lambda: later)
        assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
        await wire.aclose()


async def test_a_partition_that_cannot_be_opened_remembers_as_many_producers_as_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*args: object, **options: object) -> None:
        raise StorageError("unreadable")

    async with running(config={"producer.id.cache.size": 100}) as (gateway, wire):
        await wire.create("t")
        monkeypatch.setattr(gateway.parts.broker, "open", refuse)
        for producer_id in range(40):
            row = await wire.produce("t", batch_of(b"a", producer_id=producer_id, producer_epoch=0, sequence=0))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        assert 10 <= len(partition.log._refused) <= 20
        monkeypatch.setattr(gateway.parts.clock, "wall_ms", lambda: 1 << 50)
        await gateway.apply_retention()
        assert not len(partition.log._refused), "and for as long as those"


@pytest.mark.own_places
async def test_what_comes_while_a_store_is_asked_where_it_ends() -> None:
    """No offset is given below what the store has given, whoever took it."""
    async with open_store(f"memory:{next(names)}") as inner:
        store: Any = WaitingStore(inner)
        broker = store.broker
        async with Gateway(store, listen=None) as gateway:
            wire, other = connect(gateway), connect(gateway)
            await wire.create("t")
            assert (await wire.produce("t", idempotent(0))).base_offset == 0
            broker.fail, broker.burnt = StorageError("no answer came"), 5
            broker.asked, broker.answers = anyio.Event(), anyio.Event()
            await wire.send(produce_request("t", idempotent(1)), 9)
            with anyio.fail_after(5):
                await broker.asked.wait()
            broker.fail = None
            await other.send(produce_request("t", batch_of(b"meanwhile")), 9)
            await anyio.wait_all_tasks_blocked()
            broker.answers.set()
            assert await answer(wire) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert await answer(other) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert (await other.produce("t", batch_of(b"later"))).base_offset == 6
            assert (await wire.produce("t", idempotent(1))).base_offset == 7
            assert (await wire.offset("t", -1)).offset == 8
            assert len(await wire.values("t")) == 3
            await wire.aclose()
            await other.aclose()


async def test_after_so_many_batches_a_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start reads on from there, also after a crash."""
    monkeypatch.setattr("kclient.gateway.partition_checkpoints._CHECKPOINT_BATCHES", 3)
    async with open_store(f"memory:{next(names)}") as store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        for _ in range(5):
            await wire.produce("t", batch_of(b"x"))
        with anyio.fail_after(10):
            while not (rows := await scan_all(store.manager, CHECKPOINTS)):
                await anyio.sleep(0.005)
        (row,) = rows.values()
        assert decode_checkpoint(row.value).next_offset >= 4
        await wire.aclose()


async def test_what_was_taken_and_not_synced_keeps_its_offset_to_itself() -> None:
    async with open_store(f"memory:{next(names)}") as inner:
        store: Any = WaitingStore(inner)
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            assert (await wire.produce("t", idempotent(0))).base_offset == 0
            store.broker.unsynced = StorageError("the disk is on fire")
            assert (await wire.produce("t", idempotent(1))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            store.broker.unsynced = None
            await anyio.wait_all_tasks_blocked()  # the store is asked where it ends
            assert (await wire.produce("t", idempotent(1))).base_offset == 2
            assert (await wire.offset("t", -1)).offset == 3
            await wire.aclose()


async def test_what_was_refused_as_a_partition_could_not_be_opened_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one producer are on the way one behind the other; librdkafka takes "out of order" for stored."""
    monkeypatch.setattr("kclient.gateway.partition_life._REFUSAL_S", 0.0)

    async def fail(*_: object, **__: object) -> None:
        raise StorageError("no space")

    async with Gateway(f"memory:{next(names)}", listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBroker, "open", fail)
            assert (await wire.produce("t", idempotent(0))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await wire.produce("t", idempotent(1))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await wire.produce("t", idempotent(0))).base_offset == 0
        assert (await wire.produce("t", idempotent(1))).base_offset == 1
        await wire.aclose()


@asynccontextmanager
async def hung(monkeypatch: pytest.MonkeyPatch, **config: Any) -> AsyncIterator[tuple[Gates, Gateway, Wire]]:
    """A gateway whose store hangs while it opens the partition of `hung`, where a batch waits; one is in `fine`."""
    monkeypatch.setattr("kclient.gateway.partition_life._SOON_S", 0.02)
    gates = Gates(open_store(f"memory:{next(names)}"))
    store: Any = gates.store
    async with store, Gateway(store, listen=None, config=config) as gateway:
        wire, other = connect(gateway), connect(gateway)
        for topic in ("hung", "fine"):
            await wire.create(topic)
        await wire.produce("fine", batch_of(b"a"))
        opening = gates.hold("open")
        await other.send(produce_request("hung", batch_of(b"late")), 9)
        with anyio.fail_after(5):
            await opening.reached.wait()
            yield gates, gateway, wire
        gates.open()
        assert await answer(other) == (0, 0)
        await wire.aclose()
        await other.aclose()


async def test_fetches_of_a_partition_whose_store_hangs_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: list[Wire] = []
    wanted = fetch_request("hung", 0, max_wait_ms=60_000)
    async with hung(monkeypatch, **{"connections.max.memory.bytes": 16 << 20}) as (gates, gateway, wire):
        for _ in range(12):
            consumers.append(connect(gateway))
            await consumers[-1].send(wanted, 11)
        await anyio.wait_all_tasks_blocked()
        assert (await wire.fetch("fine", 0)).records
        assert (await wire.produce("fine", batch_of(bytes(500_000)))).base_offset == 1
        gates.open()
        with anyio.fail_after(5):
            for each in consumers:
                row = (await each.read(wanted, 11)).responses[0].partitions[0]
                found = row.error_code, row.high_watermark, bool(row.records)
                assert found == (0, 1, True), "it waits until it is open"
                await each.aclose()


async def test_a_fetch_is_answered_without_a_partition_whose_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hung(monkeypatch) as (_, _, wire):
        for topics in (["hung", "fine"], ["fine", "hung"]):
            request = fetch_request("hung", 0, max_wait_ms=60_000)
            request.topics = [fetch_request(each, 0).topics[0] for each in topics]
            found = {each.topic: each.partitions[0] for each in (await wire(request, 11)).responses}
            assert (found["fine"].error_code, bool(found["fine"].records)) == (0, True)
            assert (found["hung"].error_code, found["hung"].high_watermark) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        row = await wire.fetch("hung", 0, max_wait_ms=1)
        assert (row.error_code, row.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")


async def test_who_asks_for_offsets_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hung(monkeypatch) as (_, _, wire):
        listed = m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsTopic(name=name, partitions=[m.ListOffsetsPartition(partition_index=0, timestamp=-1)])
                for name in ("hung", "fine")
            ],
        )
        rows = [topic.partitions[0] for topic in (await wire(listed, 8)).topics]
        assert [(row.error_code, row.offset) for row in rows] == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 1)]
        asked = m.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                m.OffsetForLeaderTopic(
                    topic=name, partitions=[m.OffsetForLeaderPartition(partition=0, leader_epoch=1 << 20)]
                )
                for name in ("hung", "fine")
            ],
        )
        codes = [topic.partitions[0].error_code for topic in (await wire(asked, 4)).topics]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        deleted = m.DeleteRecordsRequest(
            timeout_ms=30_000,
            topics=[
                m.DeleteRecordsTopic(name=name, partitions=[m.DeleteRecordsPartition(partition_index=0, offset=1)])
                for name in ("hung", "fine")
            ],
        )
        rows = [topic.partitions[0] for topic in (await wire(deleted, 2)).topics]
        assert [(row.error_code, row.low_watermark) for row in rows] == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 1)]


@pytest.mark.own_places
async def test_all_that_a_request_names_is_opened_at_once() -> None:
    """So several whose store hangs are waited for once."""
    listed = m.ListOffsetsRequest(replica_id=-1, topics=[m.ListOffsetsTopic(name="t")])
    listed.topics[0].partitions = [m.ListOffsetsPartition(partition_index=each, timestamp=-1) for each in (0, 1)]
    fetched = fetch_request("t", 0, max_wait_ms=1)
    fetched.topics[0].partitions += fetch_request("t", 0, 1).topics[0].partitions
    for request, version in ((listed, 8), (fetched, 11)):
        gates = Gates(open_store(f"memory:{next(names)}"))
        store: Any = gates.store
        async with store, Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", 2)
            opening = [gates.hold("open", count) for count in (1, 2)]
            await wire.send(request, version)
            with anyio.fail_after(5):
                for each in opening:
                    await each.reached.wait()
                gates.open()
                await wire.read(request, version)
            await wire.aclose()


@pytest.mark.own_places
async def test_partitions_of_a_request_wait_side_by_side() -> None:
    """So several whose store hangs are waited for once."""
    listed = m.ListOffsetsRequest(replica_id=-1, topics=[m.ListOffsetsTopic(name="t")])
    listed.topics[0].partitions = [m.ListOffsetsPartition(partition_index=each, timestamp=0) for each in (0, 1)]
    deleted = m.DeleteRecordsRequest(topics=[m.DeleteRecordsTopic(name="t")])
    deleted.topics[0].partitions = [m.DeleteRecordsPartition(partition_index=each, offset=1) for each in (0, 1)]
    for request, version, held in ((listed, 8, "find_by_timestamp"), (deleted, 2, "trim")):
        gates = Gates(open_store(f"memory:{next(names)}"))
        store: Any = gates.store
        async with store, Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", 2)
            for partition in (0, 1):
                await wire.produce("t", batch_of(b"a", b"b", timestamp=5), partition)
            waiting = [gates.hold(held, count) for count in (1, 2)]
            await wire.send(request, version)
            with anyio.fail_after(5):
                for each in waiting:
                    await each.reached.wait()
                gates.open()
                rows = (await wire.read(request, version)).topics[0].partitions
            assert [row.error_code for row in rows] == [0, 0]
            found = [row.offset if request is listed else row.low_watermark for row in rows]
            assert found == ([0, 0] if request is listed else [1, 1])
            await wire.aclose()


@pytest.mark.own_places
async def test_partitions_are_opened_ahead_beside_one_whose_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.gateway.opening_ahead._LONG_S", 0.02)
    gates = Gates(open_store(f"memory:{next(names)}"))
    store: Any = gates.store
    async with store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", 20)
            await wire.aclose()
        opening = gates.hold("open", 3)
        async with Gateway(store, listen=None) as gateway:
            record = gateway.parts.topics.get("t")
            assert record is not None
            with anyio.fail_after(5):
                while sum(each.state is PartitionPhase.OPEN for each in list(record.logs.values())) < 19:
                    await anyio.lowlevel.checkpoint()
            assert opening.reached.is_set()
            gates.open()


class Opening:
    """Stands for a partition; opening it lasts until it is told to end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun, self.ends = anyio.Event(), anyio.Event()

    async def open(self) -> None:
        self.begun.set()
        await self.ends.wait()


async def test_partitions_whose_store_hangs_do_not_keep_the_others_from_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kclient.gateway.opening._LONG_S", 0.01)
    hung, healthy = [Opening("slow") for _ in range(50)], [Opening("healthy") for _ in range(2)]
    for each in healthy:
        each.ends.set()
    async with anyio.create_task_group() as tasks:
        openings = Openings(lambda work, name: tasks.start_soon(work, name=name))
        for each in hung:
            openings.add(each)
        await anyio.wait_all_tasks_blocked()
        assert sum(each.begun.is_set() for each in hung) < 50, "no more than some at a time"
        openings.add(healthy[0])
        with anyio.fail_after(20):
            await healthy[0].begun.wait()
            for each in hung:
                await each.begun.wait()
            openings.add(healthy[1])
            await healthy[1].begun.wait()
        for each in hung:
            each.ends.set()
        await anyio.wait_all_tasks_blocked()
        assert not openings._working
        assert not openings._begun
