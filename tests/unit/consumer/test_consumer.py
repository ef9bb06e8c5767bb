"""The consumer against a broker in the process, on asyncio and trio: everything that users can see."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.consumer import ConsumerInterceptor, ConsumerRecords, RebalanceListener
from kclient.errors import (
    ClosedError,
    ConfigError,
    IllegalStateError,
    InvalidGroupIdError,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
    RecordTooLargeError,
    WakeupError,
)
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio

PARTITIONS = 3
T = [TopicPartition("t", number) for number in range(PARTITIONS)]


@pytest.fixture
def address() -> Any:
    with memory_broker() as found:
        yield found


async def fill(address: str, count: int = 30, topic: str = "t", **settings: Any) -> None:
    """`count` records with the values 0, 1, 2 … dealt out to the partitions in turn."""
    async with kclient.Admin(bootstrap_servers=address) as admin:
        if topic not in {found.name for found in await admin.list_topics()}:
            await admin.create_topic(topic, partitions=PARTITIONS)
    async with kclient.Producer(bootstrap_servers=address, **settings) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS, timestamp=1000 + number)


@asynccontextmanager
async def reading(address: str, *topics: str, **settings: Any) -> AsyncIterator[kclient.Consumer]:
    defaults = {"auto_offset_reset": "earliest", "bootstrap_servers": address, "heartbeat_interval_ms": 100}
    async with kclient.Consumer(*topics, **{**defaults, **settings}) as consumer:
        yield consumer


async def drain(consumer: kclient.Consumer, count: int) -> list[int]:
    """Poll until `count` records are there; their values."""
    values: list[int] = []
    with anyio.fail_after(20):
        while len(values) < count:
            values += [int(record.value) for record in await consumer.poll(1.0)]
    return values


# ------------------------------------------------------------------ reading


@pytest.mark.slow
async def test_a_group_member_reads_everything_in_order(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g") as consumer:
        values = await drain(consumer, 30)
        assert sorted(values) == list(range(30))
        for number in range(PARTITIONS):
            mine = [value for value in values if value % PARTITIONS == number]
            assert mine == sorted(mine)
        assert consumer.assignment() == set(T)
        assert consumer.subscription() == {"t"}
        assert not await consumer.poll(0.05)


async def test_records_carry_what_was_sent(address: str) -> None:
    await fill(address, 0)
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await producer.send("t", b"v", key=b"k", partition=1, timestamp=1234, headers=[("h", b"1"), ("n", None)])
    async with reading(address) as consumer:
        consumer.assign([("t", 1)])
        (record,) = await consumer.poll(5.0)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("t", 1, 0, 1234)
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers == (("h", b"1"), ("n", None))


async def test_max_poll_records_bounds_a_poll_and_loses_nothing(address: str) -> None:
    await fill(address, 100)
    async with reading(address, "t", group_id="g", max_poll_records=7) as consumer:
        values: list[int] = []
        while len(values) < 100:
            records = await consumer.poll(5.0)
            assert 0 < len(records) <= 7
            values += [int(record.value) for record in records]
        assert sorted(values) == list(range(100))


async def test_consumer_records_by_partition(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign(T[:2])
        records = ConsumerRecords()
        while len(records.partitions()) < 2:
            consumer.seek_to_beginning()
            records = await consumer.poll(5.0)
        assert records.partitions() == set(T[:2])
        assert [record.offset for record in records.records(T[0])] == list(range(10))
        assert len(records.records("t")) == len(records) == 20
        assert records.records(("t", 9)) == []  # type: ignore[arg-type]
        assert records.next_offsets[T[0]].offset == 10
        assert len(list(records)) == 20
        assert not records.is_empty
    assert ConsumerRecords().is_empty


async def test_iterating(address: str) -> None:
    await fill(address)
    values = []
    async with reading(address, "t", group_id="g") as consumer:
        async for record in consumer:
            values.append(int(record.value))
            if len(values) == 12:
                break
        assert sum([await consumer.position(tp) for tp in consumer.assignment()]) == 12
        values += await drain(consumer, 18)  # poll goes on where the iteration stopped
    assert sorted(values) == list(range(30))


async def test_iteration_commits_only_what_the_loop_has_done(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g", enable_auto_commit=False) as consumer:
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == 5:
                await consumer.commit()
                break
        committed = await consumer.committed(T)
        assert sum(found.offset for found in committed.values() if found is not None) == 5


@pytest.mark.slow
async def test_columns(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g") as consumer:
        rows = 0
        values: list[int] = []
        while rows < 30:
            batch = await consumer.poll_arrow(5.0)
            rows += batch.num_rows
            values += [int(value) for value in batch.column("value").to_pylist()]
            assert set(batch.column("topic").to_pylist()) == {"t"}
        assert sorted(values) == list(range(30))
        empty = await consumer.poll_arrow(0.05, include_headers=True)
        assert empty.num_rows == 0
        assert empty.schema.names[-1] == "headers"


async def test_some_columns(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign([T[0]])
        with pytest.raises(ValueError, match="no column 'values'"):
            await consumer.poll_arrow(5.0, columns=["values"])
        batch = await consumer.poll_arrow(5.0, columns=["offset", "value"])
        assert batch.schema.names == ["offset", "value"]
        assert batch.num_rows == 10
        empty = await consumer.poll_arrow(0, columns=(name for name in ["offset"]))
        assert (empty.schema.names, empty.num_rows) == (["offset"], 0)
        consumer.seek_to_beginning([T[0]])
        batch = await consumer.poll_arrow(5.0, columns=["offset"])
        assert batch.column("offset").to_pylist() == list(range(10))
        assert await consumer.position(T[0]) == 10


async def test_columns_go_on_where_records_stopped(address: str) -> None:
    await fill(address)
    async with reading(address, max_poll_records=4) as consumer:
        consumer.assign([T[0]])
        records = await consumer.poll(5.0)
        batch = await consumer.poll_arrow(5.0)
        assert batch.column("offset").to_pylist() == list(range(len(records), 10))
        assert await consumer.position(T[0]) == 10


async def test_new_records_arrive_while_it_waits(address: str) -> None:
    await fill(address, 0)
    async with reading(address) as consumer, anyio.create_task_group() as group:
        consumer.assign(T)
        assert not await consumer.poll(0.1)

        async def later() -> None:
            await fill(address, 3)

        group.start_soon(later)
        assert len(await drain(consumer, 3)) == 3


async def test_compressed_records(address: str) -> None:
    await fill(address, 30, compression_type="zstd")
    async with reading(address, "t", group_id="g") as consumer:
        assert sorted(await drain(consumer, 30)) == list(range(30))


async def test_a_decompression_bomb_stops_at_the_setting(address: str) -> None:
    await fill(address, 0)
    async with kclient.Producer(bootstrap_servers=address, compression_type="gzip") as producer:
        await (await producer.send("t", bytes(200_000), partition=0))
    async with reading(address, fetch_max_decompressed_bytes=100_000) as consumer:
        consumer.assign([T[0]])
        for poll in (consumer.poll, consumer.poll_arrow, consumer.poll):
            with pytest.raises(RecordTooLargeError, match=r"100000 bytes .* fetch\.max\.decompressed\.bytes"):
                await poll(5.0)
    async with reading(address) as consumer:
        consumer.assign([T[0]])
        assert [len(record.value) for record in await consumer.poll(5.0)] == [200_000]


async def test_deserializers_and_a_record_that_cannot_be_read(address: str) -> None:
    await fill(address, 0)
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await producer.send_batch("t", [b"1", b"2", b"three", b"4"], partition=0)
    async with reading(address, value_deserializer=lambda data: int(data), key_deserializer="str") as consumer:
        consumer.assign([T[0]])
        assert [record.value for record in await consumer.poll(5.0)] == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as caught:
                await consumer.poll(5.0)
        assert caught.value.offset == 2
        consumer.seek(T[0], 3)
        assert [record.value for record in await consumer.poll(5.0)] == [4]


# ------------------------------------------------------------------ positions


async def test_seeking(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign([T[0]])
        consumer.seek(T[0], 7)
        assert await consumer.position(T[0]) == 7
        assert [record.offset for record in await consumer.poll(5.0)] == [7, 8, 9]
        consumer.seek(T[0], OffsetAndMetadata(2))
        assert (await consumer.poll(5.0)).records(T[0])[0].offset == 2
        consumer.seek_to_beginning([T[0]])
        assert await consumer.position(T[0]) == 0
        consumer.seek_to_end()
        assert await consumer.position(T[0]) == 10
        assert not await consumer.poll(0.05)
        with pytest.raises(IllegalStateError, match="t-1"):
            consumer.seek(T[1], 0)
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(T[0], -1)


async def test_pausing(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign(T)
        consumer.pause(T[:2])
        assert consumer.paused() == set(T[:2])
        assert sorted(await drain(consumer, 10)) == list(range(2, 30, 3))
        assert not await consumer.poll(0.05)
        consumer.resume(T[:2])
        assert len(await drain(consumer, 20)) == 20
        with pytest.raises(IllegalStateError):
            consumer.pause([("other", 0)])


async def test_offsets_by_time_and_at_the_ends(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        assert await consumer.beginning_offsets(T) == dict.fromkeys(T, 0)
        assert await consumer.end_offsets([("t", 0), T[1]]) == {T[0]: 10, T[1]: 10}
        found = await consumer.offsets_for_times({T[0]: 1010, T[1]: 10**9})
        assert found[T[1]] is None
        at = found[T[0]]
        assert at is not None
        assert (at.offset, at.timestamp) == (4, 1012)
        with pytest.raises(ValueError, match="from 0 to 9223372036854775807; not -2"):
            await consumer.offsets_for_times({T[0]: -2})
        assert await consumer.end_offsets([]) == {}


async def test_where_to_begin_without_a_committed_offset(address: str) -> None:
    await fill(address)
    async with reading(address, auto_offset_reset="latest") as consumer:
        consumer.assign([T[0]])
        assert await consumer.position(T[0]) == 10
    async with reading(address, auto_offset_reset="none") as consumer:
        consumer.assign([T[0]])
        with pytest.raises(NoOffsetForPartitionError, match=r"auto\.offset\.reset is none") as caught:
            await consumer.poll(5.0)
        assert caught.value.partitions == [T[0]]
        consumer.seek(T[0], 3)
        assert len(await consumer.poll(5.0)) == 7


async def test_an_offset_that_does_not_exist(address: str) -> None:
    await fill(address)
    async with reading(address, auto_offset_reset="none") as consumer:
        consumer.assign([T[0]])
        consumer.seek(T[0], 500)
        with pytest.raises(OffsetOutOfRangeError, match="500"):
            await consumer.poll(5.0)
    async with reading(address) as consumer:
        consumer.assign([T[0]])
        consumer.seek(T[0], 500)
        assert len(await consumer.poll(5.0)) == 10  # from the start, as the policy says


async def test_committed_offsets_are_where_the_next_one_begins(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g", enable_auto_commit=False, max_poll_records=4) as consumer:
        first = await drain(consumer, 4)
        await consumer.commit()
        await drain(consumer, 4)
        assert sum(o.offset for o in (await consumer.committed(T)).values() if o is not None) == 4
    async with reading(address, "t", group_id="g") as consumer:
        assert sorted(first + await drain(consumer, 26)) == list(range(30))


async def test_commits_of_chosen_offsets(address: str) -> None:
    await fill(address)
    async with reading(address, group_id="g") as consumer:
        consumer.assign([T[0]])
        await consumer.commit({T[0]: OffsetAndMetadata(4, "note"), ("t", 1): 2})
        committed = await consumer.committed([*T])
        assert committed[T[0]] is not None
        assert (committed[T[0]].offset, committed[T[0]].metadata) == (4, "note")
        assert committed[T[1]] == OffsetAndMetadata(2)
        assert committed[T[2]] is None
        assert await consumer.committed([]) == {}
        with pytest.raises(ValueError, match="negative"):
            await consumer.commit({T[0]: -1})


async def test_asynchronous_commits_keep_their_order_and_tell_the_outcome(address: str) -> None:
    await fill(address)
    told: list[Any] = []
    async with reading(address, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T[0]])
        for offset in range(1, 6):
            consumer.commit_async({T[0]: offset}, lambda offsets, error: told.append((offsets[T[0]].offset, error)))
        await consumer.commit({T[0]: 6})
        assert told == [(offset, None) for offset in range(1, 6)]
        assert (await consumer.committed([T[0]]))[T[0]] == OffsetAndMetadata(6)
        assert consumer.metrics().value("commit-total") == 6
        consumer.commit_async({T[0]: 7}, lambda *_: told.append("at close"))
    assert told[-1] == "at close"


async def test_auto_commit_at_close_and_by_interval(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g", max_poll_records=10) as consumer:
        await drain(consumer, 10)
    async with reading(address, "t", group_id="g", auto_commit_interval_ms=1, max_poll_records=5) as consumer:
        await drain(consumer, 5)
        with anyio.fail_after(10):
            while sum(o.offset for o in (await consumer.committed(T)).values() if o is not None) < 15:
                await consumer.poll(0.01)
        await consumer.close(timeout=0)
    async with reading(address, group_id="g") as consumer:
        assert sum(o.offset for o in (await consumer.committed(T)).values() if o is not None) >= 15


# ------------------------------------------------------------------ groups


class Listening(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await anyio.lowlevel.checkpoint()
        self.events.append(("revoked", [tp.partition for tp in partitions]))

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", [tp.partition for tp in partitions]))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_two_members_share_and_one_takes_over(address: str, strategy: str) -> None:
    await fill(address, 300)
    settings = {"group_id": "g", "partition_assignment_strategy": strategy, "max_poll_records": 10}
    values: list[int] = []
    async with reading(address, **settings) as one:
        listener = Listening()
        one.subscribe(["t"], listener)
        values += await drain(one, 20)
        async with reading(address, "t", **settings) as two:
            with anyio.fail_after(20):
                while sorted((len(one.assignment()), len(two.assignment()))) != [1, 2]:
                    for consumer in (one, two):
                        values += [int(record.value) for record in await consumer.poll(0.05)]
            assert one.assignment() | two.assignment() == set(T)
        with anyio.fail_after(20):
            while len(set(values)) < 300 or len(one.assignment()) < 3:
                values += [int(record.value) for record in await one.poll(0.1)]
    assert sorted(values) == list(range(300))  # commits before each handover: nothing twice
    assert listener.events[0] == ("assigned", [0, 1, 2])
    assert listener.events[1][0] == "revoked"
    assert len(listener.events[1][1]) == (3 if strategy == "range" else 1)
    assert listener.events[-1][0] == "revoked"  # at close


async def test_a_listener_may_commit_and_seek(address: str) -> None:
    await fill(address)

    class Handover(RebalanceListener):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            await consumer.commit(dict.fromkeys(partitions, 5))

        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            for tp in partitions:
                consumer.seek(tp, 8)

    async with reading(address, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"], Handover())
        assert sorted(await drain(consumer, 6)) == [24, 25, 26, 27, 28, 29]
        await consumer.unsubscribe()
        assert consumer.assignment() == consumer.subscription() == set()
        assert await consumer.committed(T) == dict.fromkeys(T, OffsetAndMetadata(5))


async def test_an_exception_of_a_listener_comes_out_of_poll_and_the_membership_stands(address: str) -> None:
    await fill(address)

    class Failing(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError("my own")

    async with reading(address, group_id="g") as consumer:
        consumer.subscribe(["t"], Failing())
        with pytest.raises(ZeroDivisionError, match="my own"):
            await consumer.poll(10.0)
        assert sorted(await drain(consumer, 30)) == list(range(30))


async def test_patterns_match_new_topics_too(address: str) -> None:
    await fill(address, 3, topic="logs-a")
    await fill(address, 3, topic="other")
    async with reading(address, group_id="g", metadata_max_age_ms=100) as consumer:
        consumer.subscribe(re.compile("logs-.*"))
        assert len(await drain(consumer, 3)) == 3
        assert consumer.subscription() == {"logs-a"}
        await fill(address, 3, topic="logs-b")
        assert len(await drain(consumer, 3)) == 3
        assert consumer.subscription() == {"logs-a", "logs-b"}


async def test_group_metadata_and_enforced_rebalances(address: str) -> None:
    await fill(address)
    async with reading(address, "t", group_id="g") as consumer:
        assert consumer.group_metadata().generation_id == -1
        await drain(consumer, 30)
        first = consumer.group_metadata()
        assert (first.group_id, first.generation_id) == ("g", 1)
        assert first.member_id
        consumer.enforce_rebalance("because")
        with anyio.fail_after(10):
            while consumer.group_metadata().generation_id < 2:
                await consumer.poll(0.1)
        assert consumer.metrics().value("rebalance-total") == 2


async def test_reading_alone_and_in_a_group_exclude_each_other(address: str) -> None:
    async with reading(address, "t", group_id="g") as consumer:
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.assign(T)
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.subscribe(re.compile("t"))
        await consumer.unsubscribe()
        consumer.assign(T)
        consumer.assign([])
        assert consumer.assignment() == set()


# ------------------------------------------------------------------ looking


async def test_topics_and_partitions(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        assert [info.partition for info in await consumer.partitions_for("t")] == [0, 1, 2]
        assert set(await consumer.list_topics()) == {"__consumer_offsets", "__transaction_state", "t"}
        consumer.assign([T[0]])
        await drain(consumer, 10)
        figures = consumer.metrics()
        assert figures.value("records-consumed-total") == 10
        assert figures.value("records-consumed-total", topic="t") == 10
        assert figures.value("records-lag", topic="t", partition=0) == 0
        assert figures.value("poll-total") >= 1


async def test_interceptors_see_records_and_commits(address: str) -> None:
    await fill(address)
    commits: list[Any] = []

    class Only(ConsumerInterceptor):
        closed = False

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            kept = {tp: [record for record in records.records(tp) if record.offset < 2] for tp in records.partitions()}
            return ConsumerRecords(kept)

        def on_commit(self, offsets: Any) -> None:
            commits.append(dict(offsets))

        def close(self) -> None:
            Only.closed = True

    async with reading(address, group_id="g", interceptor_classes=[Only]) as consumer:
        consumer.assign([T[0]])
        assert [record.offset for record in await consumer.poll(5.0)] == [0, 1]
        await consumer.commit()
        assert commits == [{T[0]: OffsetAndMetadata(10, "", commits[0][T[0]].leader_epoch)}]
    assert Only.closed


async def test_an_interceptor_that_is_interrupted_loses_nothing(address: str) -> None:
    await fill(address)

    class Interrupted(ConsumerInterceptor):
        seen = 0

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            Interrupted.seen += 1
            if Interrupted.seen == 1:
                raise KeyboardInterrupt
            return records

    async with reading(address, interceptor_classes=[Interrupted], max_poll_records=4) as consumer:
        consumer.assign([T[0]])
        with pytest.raises(KeyboardInterrupt):
            await consumer.poll(5.0)
        assert await consumer.position(T[0]) == 0
        polled = [await consumer.poll(5.0) for _ in range(3)]
        assert [record.offset for records in polled for record in records] == list(range(10))
        assert [records.next_offsets[T[0]].offset for records in polled] == [4, 8, 10]
        assert await consumer.position(T[0]) == 10


async def test_an_interceptor_may_seek(address: str) -> None:
    await fill(address)

    class Back(ConsumerInterceptor):
        consumer: Any = None

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            chosen, Back.consumer = Back.consumer, None
            if chosen is not None:
                chosen.seek(T[0], 2)
            return records

    async with reading(address, interceptor_classes=[Back]) as consumer:
        Back.consumer = consumer
        consumer.assign([T[0]])
        assert (await consumer.poll(5.0))[0].offset == 0
        assert (await consumer.poll(5.0))[0].offset == 2


# ------------------------------------------------------------------ life and errors


async def test_wakeup_ends_a_wait(address: str) -> None:
    await fill(address, 0)
    async with reading(address) as consumer, anyio.create_task_group() as group:
        consumer.assign(T)

        async def wake() -> None:
            await anyio.to_thread.run_sync(consumer.wakeup)

        group.start_soon(wake)
        with anyio.fail_after(10), pytest.raises(WakeupError):
            await consumer.poll(30.0)
        assert not await consumer.poll(0.01)


async def test_one_task_polls_at_a_time(address: str) -> None:
    await fill(address, 0)
    async with reading(address) as consumer, anyio.create_task_group() as group:
        consumer.assign(T)
        group.start_soon(consumer.poll, 0.3)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(IllegalStateError, match="one task polls"):
            await consumer.poll()


async def test_what_needs_a_group_says_so(address: str) -> None:
    async with reading(address) as consumer:
        for call in (lambda: consumer.subscribe(["t"]), consumer.group_metadata, consumer.commit_async):
            with pytest.raises(InvalidGroupIdError, match=r"group\.id"):
                call()
        with pytest.raises(InvalidGroupIdError):
            await consumer.committed(T)
        with pytest.raises(IllegalStateError, match="subscribe"):
            await consumer.poll()


async def test_who_reads_without_a_group_unsubscribes_too(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign(T)
        await drain(consumer, 30)
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        with pytest.raises(IllegalStateError, match="Nothing to poll"):
            await consumer.poll(0)


async def test_who_polls_all_the_time_leaves_turns_to_others(address: str) -> None:
    await fill(address)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with reading(address, max_poll_records=1) as consumer, anyio.create_task_group() as group:
        consumer.assign([T[0]])
        await drain(consumer, 1)
        group.start_soon(other)
        for _ in range(9):
            assert len(await consumer.poll(0)) == 1
        assert turns > 3
        group.cancel_scope.cancel()


async def test_use_before_start_and_after_close(address: str) -> None:
    consumer = kclient.Consumer(bootstrap_servers=address)
    with pytest.raises(IllegalStateError, match="not started"):
        await consumer.poll()
    async with reading(address) as closed:
        closed.assign(T)
        await closed.close()
        await closed.close()
        with pytest.raises(ClosedError):
            await closed.poll()
        with pytest.raises(ClosedError):
            await closed.end_offsets(T)


async def test_closing_ends_a_poll_of_another_task(address: str) -> None:
    await fill(address, 0)
    ended = anyio.Event()
    async with reading(address) as consumer, anyio.create_task_group() as group:
        consumer.assign(T)

        async def poll() -> None:
            with pytest.raises(ClosedError):
                await consumer.poll(30.0)
            ended.set()

        group.start_soon(poll)
        await anyio.wait_all_tasks_blocked()
        await consumer.close()
        with anyio.fail_after(5):
            await ended.wait()


async def test_a_dead_background_task_surfaces_at_the_next_call(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign(T)
        await drain(consumer, 30)

        def broken(*_: object) -> Any:
            raise ZeroDivisionError("a bug")

        consumer._core.fetcher.received = broken  # type: ignore[method-assign]
        with anyio.fail_after(10), pytest.raises(KafkaError, match="background task") as caught:
            while True:
                await consumer.poll(1.0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(KafkaError, match="background task"):
            await consumer.end_offsets(T)


async def test_a_partition_that_does_not_exist_is_named(address: str) -> None:
    await fill(address)
    async with reading(address) as consumer:
        consumer.assign([("t", 99)])
        with pytest.raises(KafkaTimeoutError, match="No leader is known for t-99"):
            await consumer.position(("t", 99), timeout=1)
        with pytest.raises(KafkaTimeoutError, match="t-99"):
            await consumer.end_offsets([("t", 99)], timeout=1)


async def test_who_seeks_is_not_told_that_there_was_no_position(address: str) -> None:
    await fill(address, 3)
    async with reading(address, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        with anyio.fail_after(20):
            while not consumer._core.errors:  # found out in the background
                await anyio.sleep(0.01)
        consumer.seek(("t", 0), 0)
        assert len(await consumer.poll(10.0)) > 0
        consumer.assign([("t", 1)])
        with pytest.raises(NoOffsetForPartitionError, match="t-1"):
            await consumer.poll(10.0)


async def test_who_waits_is_told_at_once_that_there_is_no_position(address: str) -> None:
    await fill(address, 1)

    async with reading(address, auto_offset_reset="none") as consumer:

        async def takes_another() -> None:
            await anyio.wait_all_tasks_blocked()
            consumer.assign([("t", 1)])

        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 1)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(takes_another)
                with pytest.raises(NoOffsetForPartitionError, match="t-1"):
                    await consumer.poll(60.0)
            consumer.assign([("t", 2)])
            with pytest.raises(NoOffsetForPartitionError, match="t-2"):
                await consumer.position(("t", 2), timeout=60.0)


async def test_beginning_at_a_duration_before_now(address: str) -> None:
    await fill(address, 3)  # stamped in 1970
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await producer.send("t", b"now", partition=0)
    async with reading(address, auto_offset_reset="by_duration:PT1H") as consumer:
        consumer.assign(T)
        assert [await consumer.position(tp) for tp in T] == [1, 1, 1]
        assert [record.value for record in await consumer.poll(5.0)] == [b"now"]


async def test_a_topic_that_is_not_there_is_what_is_told(address: str) -> None:
    async with reading(address, allow_auto_create_topics=False) as consumer:
        with pytest.raises(KafkaTimeoutError, match=r"within 1 s\. Topic 'nope': .* does not have this topic"):
            await consumer.partitions_for("nope", timeout=1)


async def test_no_broker_is_named_with_what_was_tried() -> None:
    async with kclient.Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
            await consumer.partitions_for("t", timeout=0.3)
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
            await consumer.committed([("t", 0)], timeout=0.3)
        consumer.assign([("t", 0)])
        assert not await consumer.poll(0.05)
        with pytest.raises(KafkaTimeoutError):
            await consumer.position(("t", 0), timeout=0.1)


def test_arguments() -> None:
    settings = {"bootstrap.servers": "b:1", "group.id": "g"}
    assert kclient.Consumer(settings).subscription() == set()
    assert kclient.Consumer("bootstrap.servers=b:1\ngroup.id=g").subscription() == set()
    assert kclient.Consumer("one", "two", config=settings).subscription() == {"one", "two"}
    with pytest.raises(TypeError, match="twice"):
        kclient.Consumer(settings, config=settings)
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
        kclient.Consumer(settings, partition_assignment_strategy=["range", "range"])
    with pytest.raises(ConfigError, match=r"interceptor\.classes"):
        kclient.Consumer(settings, interceptor_classes=[object])
