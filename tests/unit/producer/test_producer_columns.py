"""`send_arrow`: columns come out as a `send` for each row would have made them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.config import ProducerConfig
from kclient.errors import (
    BufferExhaustedError,
    ClosedError,
    InvalidTopicError,
    KafkaTimeoutError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from kclient.metrics.windows import MetricWindows
from kclient.producer import Partitioner, ProducerInterceptor, ProducerRecord
from kclient.producer.accumulator import Accumulator
from kclient.producer.arrow import PIECE_BYTES, pieces_of
from kclient.producer.batch import ProducerBatch
from kclient.producer.batch_buffer import BatchBuffer
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.delivery_reports import DeliveryReports
from kclient.producer.drain import BatchDrain
from kclient.producer.interceptors import Interceptors
from kclient.producer.metrics import ProducerMetrics
from kclient.producer.record_appender import RecordAppender
from kclient.producer.sending import LetOthersRun, Sending, WaitForRoom
from kclient.producer.settings import ProducerSettings
from kclient.producer.topics import KnownTopics
from kclient.protocol.messages import ProduceRequest
from kclient.records import decode_records, partition_for_key
from kclient.types import TopicPartition
from tests.example_budget import examples
from tests.fake_kafka import FakeKafka, Fault
from tests.unit.producer.parts import cluster_of, producing

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
PARTITIONS = 3


# --------------------------------------------------------------------------- beside record by record, without a network

rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=3),
        st.none() | st.integers(0, PARTITIONS - 1),
        st.none() | st.integers(0, 2**50),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=60,
)
columns = st.sets(st.sampled_from(["key", "partition", "timestamp", "headers"]))
Row = tuple[bytes | None, int | None, int | None, list[tuple[str, bytes | None]], int]


class Bench:
    """What appends in a producer, without a network and with a clock that is a number; it knows its topic."""

    def __init__(self, **settings: Any) -> None:
        config = ProducerConfig.parse(bootstrap_servers="nowhere:1", **settings)
        made = ProducerSettings.of(config)
        self.settings = made.accumulator
        self.now = 1000.0
        self.tick = 0.0
        """Seconds that pass whenever somebody looks."""
        self.wakes = 0
        reports = DeliveryReports()
        snapshot = cluster_of(PARTITIONS)
        self.buffer = BatchBuffer(self.settings, self._wake, Random(1))
        self.buffer.update(snapshot)
        self.accumulator = Accumulator(self.buffer, self.settings, reports)
        self.drain = BatchDrain(self.buffer, self.settings, None)
        topics = KnownTopics()
        topics.update(snapshot)
        self.records = RecordAppender(
            self.buffer.appender, self.accumulator, topics, lambda: None, lambda: snapshot,
            key_serializer=None, value_serializer=None, partitioner=None, clock=self._clock, wall_clock=time.time,
        )  # fmt: skip
        self.sending = Sending(
            self.records, Interceptors([]), reports, lambda: None,
            clock=self._clock, max_block_ms=config.max_block_ms, buffer_memory=config.buffer_memory,
            metrics=ProducerMetrics(MetricWindows(self._clock)),
        )  # fmt: skip

    def _wake(self) -> None:
        self.wakes += 1

    def _clock(self) -> float:
        self.now += self.tick
        return self.now

    def send(self, data: Any) -> Deliveries:
        """Send columns, which do not have to wait."""
        script = self.sending.send_arrow("t", data)
        try:
            wait = next(script)
        except StopIteration as end:
            made: Deliveries = end.value
            return made
        raise AssertionError(f"it has to wait: {wait}")

    def drained(self) -> list[ProducerBatch]:
        """Everything, encoded."""
        self.buffer.close()
        batches = []
        while self.buffer.queued:
            for taken in self.drain.drain(cluster_of(PARTITIONS), [1], self.now + 1000).batches.values():
                for batch in taken:
                    batch.encode()
                    batches.append(batch)
        return batches


def contents(batches: list[ProducerBatch]) -> dict[int, list[Any]]:
    """The records by partition, in order."""
    found: dict[int, list[Any]] = {number: [] for number in range(PARTITIONS)}
    for batch in batches:
        assert batch.data is not None
        found[batch.tp.partition] += decode_records(batch.data, *batch.tp)
    return found


def table_of(records: list[Row], used: set[str]) -> pa.Table:
    headers = [[{"key": k, "value": v} for k, v in row[3]] or None for row in records]
    every = {
        "value": pa.array([value_of(number, row) for number, row in enumerate(records)], pa.binary()),
        "key": pa.array([row[0] for row in records], pa.binary()),
        "partition": pa.array([row[1] for row in records], pa.int32()),
        "timestamp": pa.array([row[2] for row in records], pa.int64()),
        "headers": pa.array(headers, HEADERS),
    }
    return pa.table({name: column for name, column in every.items() if name in used or name == "value"})


def value_of(number: int, row: Row) -> bytes:
    return b"%d:" % number + b"x" * row[4]


@examples(150)
@given(rows, columns, st.sampled_from([200, 1000, 16384]), st.integers(1, 60), st.booleans())
def test_the_same_as_record_by_record(
    records: list[Row], used: set[str], batch_size: int, chunk: int, ignore_keys: bool
) -> None:
    settings = {"batch_size": batch_size, "partitioner_ignore_keys": ignore_keys}
    bench, expected = Bench(**settings), Bench(**settings)
    table = table_of(records, used)
    deliveries = bench.send(table.to_batches(max_chunksize=chunk))
    for number, row in enumerate(records):
        key = row[0] if "key" in used else None
        partition = row[1] if "partition" in used else None
        timestamp = row[2] if "timestamp" in used else None
        headers = row[3] if "headers" in used else []
        sent = expected.records.append("t", value_of(number, row), key, partition, timestamp, headers, None)
        assert isinstance(sent, Delivery)
    batches = bench.drained()
    found, wanted = contents(batches), contents(expected.drained())

    def fields(records: list[Any], *, everywhere: bool) -> list[Any]:
        chosen = [r for r in records if everywhere or (r.key is not None and not ignore_keys)]
        stamps = "timestamp" in used
        return [(r.key, r.value, r.headers, r.timestamp if stamps and r.timestamp < 2**40 else 0) for r in chosen]

    def number_of(record: Any) -> int:
        return int(record.value.split(b":")[0])

    for partition in range(PARTITIONS):
        numbers = [number_of(record) for record in found[partition]]
        assert numbers == sorted(numbers), "the order of a partition"
        if "partition" not in used:
            assert fields(found[partition], everywhere=False) == fields(wanted[partition], everywhere=False)
    everything = [
        sorted(
            fields([r for part in each.values() for r in part], everywhere=True), key=lambda r: int(r[1].split(b":")[0])
        )
        for each in (found, wanted)
    ]
    assert everything[0] == everything[1]
    if "partition" in used:
        places = {number_of(r): partition for partition, records_ in found.items() for r in records_}
        assert all(places[n] == row[1] for n, row in enumerate(records) if row[1] is not None)
    # each delivery names the place of its row
    assert len(deliveries) == len(records)
    inside = {id(batch): list(decode_records(batch.data or b"", *batch.tp)) for batch in batches}
    for number, delivery in enumerate(deliveries):
        assert number_of(inside[id(delivery.batch)][delivery.index]) == number
        other = deliveries[number]
        assert (other.batch, other.index) == (delivery.batch, delivery.index)
    # nothing of the memory is lost
    for batch in batches:
        bench.buffer.finished(batch)
    assert bench.buffer.pool.free == bench.settings.buffer_memory


@pytest.mark.parametrize("keyed", [True, False])
def test_batches_are_as_large_as_is_allowed(keyed: bool) -> None:
    """Columns may fill batches up to what they may grow to, and no further."""
    bench = Bench()
    values = [b"%0100d" % number for number in range(40_000)]
    table = pa.table({"value": values, **({"key": [b"%d" % (n % 500) for n in range(40_000)]} if keyed else {})})
    bench.send(table)
    sizes = [batch.size for batch in bench.drained()]
    assert max(sizes) <= bench.settings.growth == 262_144
    assert max(sizes) > 200_000
    bench = Bench(max_request_size=10_000)
    bench.send(table)
    assert max(batch.size for batch in bench.drained()) <= 10_000


def test_room_for_what_follows() -> None:
    """As much as will follow, as a batch may have, or as a part of the memory; where it is short, as ever."""

    def reserved(partition: int | None, following: int, **settings: Any) -> list[int]:
        bench = Bench(**settings)
        sent = bench.records.append("t", b"x", None, partition, None, (), None, following=following)
        assert isinstance(sent, Delivery)
        return [batch.reserved for batch in bench.buffer.incomplete]

    assert reserved(None, 100) == [16384]
    assert reserved(None, 100_000) == [100_000]
    assert reserved(0, 99_000) == [99_000 // PARTITIONS]
    assert reserved(None, 1 << 40) == [262_144]
    assert reserved(None, 1 << 40, buffer_memory=600_000) == [75_000]
    assert reserved(None, 1 << 40, max_request_size=20_000) == [20_000]
    bench = Bench(buffer_memory=365_000)
    for partition in range(PARTITIONS):
        bench.records.append("t", b"x" * 110_000, None, partition, None, (), None)
    before = bench.buffer.pool.free
    bench.records.append("t", b"x" * 1000, None, 0, None, (), None, following=1 << 40)
    assert before - bench.buffer.pool.free == 16384


def test_a_batch_with_its_size_leaves_though_it_has_more_room() -> None:
    """Room that was taken for what follows is nothing to wait for."""
    bench = Bench(linger_ms=3_600_000)
    table = pa.table({"value": [b"%0100d" % number for number in range(400)]})
    bench.send(table)
    (batch,) = bench.buffer.incomplete
    assert batch.records == 400
    assert bench.drain.ready(cluster_of(PARTITIONS), bench.now).nodes == {1}
    assert bench.wakes
    queues = bench.buffer.queues_of("t")
    assert queues is not None
    assert queues.sticky.current != batch.tp.partition, "another one's turn, as after any batch"


def test_room_that_was_not_needed_is_given_back() -> None:
    """What follows by other calls finds batches as if there had been no columns."""
    bench = Bench(linger_ms=3_600_000)
    kinds = ["a" * 20_000, *["b"] * 100]
    table = pa.table({"value": kinds, "key": ["k"] * 101})
    bench.send(table.slice(1))
    (batch,) = bench.buffer.incomplete
    assert batch.builder is not None
    assert (batch.reserved, batch.builder.limit) == (16384, 16384)
    bench = Bench(linger_ms=3_600_000)
    bench.tick = 1.0
    steps = bench.sending.send_arrow("t", pa.table({"value": [b"x" * 100] * 3000}))
    assert next(steps) == next(steps) == LetOthersRun()
    steps.close()
    assert not bench.accumulator._roomy
    # a call that ends early leaves none behind either
    bench = Bench(linger_ms=3_600_000, max_request_size=100_000)
    values = [b"x" * 100] * 50 + [b"x" * 200_000] + [b"x" * 100] * 900
    with pytest.raises(RecordTooLargeError):
        bench.send(pa.table({"value": values}))
    (batch,) = bench.buffer.incomplete
    assert batch.builder is not None
    assert (batch.records, batch.reserved, batch.builder.limit) == (50, 16384, 16384)
    assert bench.buffer.pool.free == bench.settings.buffer_memory - 16384


def test_room_of_batches_that_have_left_amid_a_call_is_not_given_back_twice() -> None:
    bench = Bench(linger_ms=3_600_000)
    bench.tick = 1.0
    partitions = pa.array([0] * 10 + [1] * 2000, pa.int32())
    steps = bench.sending.send_arrow("t", pa.table({"value": [b"x" * 100] * 2010, "partition": partitions}))
    assert next(steps) == next(steps) == LetOthersRun()
    (batch,) = bench.drain.drain(cluster_of(PARTITIONS), [1], bench.now + 3600).batches[1]
    assert batch.records == 10
    batch.succeed(0, -1)
    bench.buffer.finished(batch)
    assert bench.buffer.pool.free == bench.settings.buffer_memory
    assert set(steps) <= {LetOthersRun()}
    (batch,) = bench.buffer.incomplete
    assert batch.records == 2000
    assert bench.buffer.pool.free == bench.settings.buffer_memory - batch.reserved


def test_a_call_may_end_when_its_batches_have_left() -> None:
    bench = Bench(linger_ms=3_600_000)
    bench.tick = 1.0
    partitions = pa.array([0] * 10 + [1] * 2000, pa.int32())
    steps = bench.sending.send_arrow("t", pa.table({"value": [b"x" * 100] * 2010, "partition": partitions}))
    assert next(steps) == next(steps) == LetOthersRun()
    assert bench.accumulator._roomy
    (batch,) = bench.drain.drain(cluster_of(PARTITIONS), [1], bench.now + 3600).batches[1]
    batch.succeed(0, -1)
    bench.buffer.finished(batch)
    steps.close()
    assert not bench.accumulator._roomy
    assert bench.buffer.pool.free == bench.settings.buffer_memory


def test_partitions_of_rows_amid_a_table() -> None:
    """Columns without nulls are taken as they lie in memory, from the row on where a piece begins."""
    rows = 20_000
    partitions = [number % PARTITIONS if number > rows / 2 else 0 for number in range(rows)]
    table = pa.table({"value": [b"%d" % n for n in range(rows)], "partition": pa.array(partitions, pa.int32())})
    bench = Bench()
    bench.send(table.to_batches()[0])
    for partition, records in contents(bench.drained()).items():
        assert {partitions[int(record.value)] for record in records} == {partition}


def test_a_small_one_lingers() -> None:
    bench = Bench(linger_ms=3_600_000)
    bench.send(pa.table({"value": [b"x"] * 100}))
    assert bench.drain.ready(cluster_of(PARTITIONS), bench.now).nodes == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary_view", "dictionary", "fixed"])
def test_little_is_converted_at_a_time(kind: str) -> None:
    """A few rows of a kind that has to be copied may stand for gigabytes."""
    large = b"x" * (1 << 20)
    if kind == "binary_view":
        column = pa.array([large] * 64, pa.binary_view())
    elif kind == "fixed":
        column = pa.array([large] * 64, pa.binary(1 << 20))
    else:
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([large]))
    pieces = pieces_of("t", pa.table({"value": column}))
    sizes = [next(pieces).rows for _ in range(4)]
    assert 0 < max(sizes) <= PIECE_BYTES >> 20
    assert sum(piece.rows for piece in pieces) + sum(sizes) == len(column)


def test_large_binary_beyond_two_gigabytes_is_no_matter() -> None:
    """Positions of 64 bits are read as they are; the slice is far behind what 32 bits can say."""
    far = 3 << 30
    ends = pa.array([far, far + 2, far + 3], pa.int64()).buffers()[1]
    import mmap

    with mmap.mmap(-1, far + 16) as memory:  # untouched pages take no room
        memory[far : far + 3] = b"abc"
        column = pa.Array.from_buffers(pa.large_binary(), 2, [None, ends, pa.py_buffer(memory)])
        bench = Bench()
        bench.send(pa.record_batch({"value": column}))
        del column
        (records,) = (found for found in contents(bench.drained()).values() if found)
        assert [record.value for record in records] == [b"ab", b"c"]
        del bench
        import gc

        gc.collect()


# --------------------------------------------------------------------------- the async producer

pytestmark: list[Any] = []
anyio_test = pytest.mark.anyio


@anyio_test
async def test_all_columns_at_once() -> None:
    table = pa.table(
        {
            "topic": pa.array(["t", "u", "t", "u"]).dictionary_encode(),
            "key": pa.array(["a", None, "b", "c"], pa.large_string()),
            "value": pa.array([b"1", None, b"3", b""], pa.binary_view()),
            "partition": pa.array([2, None, 0, 0], pa.int8()),
            "timestamp": pa.array([5_999, None, 7_000, 8_000], pa.timestamp("us")),
            "headers": pa.array(
                [[("h", b"1"), ("h", None)], None, [], [("i", b"")]], pa.map_(pa.string(), pa.binary())
            ),
        }
    )
    async with FakeKafka({"t": 3, "u": 1}) as kafka, producing(kafka) as producer:
        metadata = await (await producer.send_arrow(None, table))
        assert [(m.topic, m.partition) for m in metadata] == [("t", 2), ("u", 0), ("t", 0), ("u", 0)]
        assert [metadata[n].timestamp for n in (0, 2, 3)] == [5, 7, 8]
        assert metadata[1].timestamp > 1_700_000_000_000
        assert [m.offset for m in metadata] == [0, 0, 0, 1]
        batches = [d for tp in (("t", 2), ("t", 0), ("u", 0)) for d in kafka.partitions[TopicPartition(*tp)].batches]
        found = [(r.key, r.value, r.headers) for data in batches for r in decode_records(data, "t", 0)]
        assert found == [
            (b"a", b"1", (("h", b"1"), ("h", None))),
            (b"b", b"3", ()),
            (None, None, ()),
            (b"c", b"", (("i", b""),)),
        ]


@anyio_test
@pytest.mark.parametrize(
    "data",
    [
        pa.table({"value": ["a", "b", "c"]}),
        pa.record_batch({"value": ["x", "a", "b", "c"]}).slice(1),
        [pa.record_batch({"value": ["a"]}), pa.record_batch({"value": ["b", "c"]})],
        pa.table({"value": pa.chunked_array([["a", "b"], [], ["c"]])}),
        pa.table({"value": pa.chunked_array([["a", "b"], ["c"]], pa.string()).dictionary_encode()}),
        pa.table({"value": pa.array([b"a", b"b", b"c"], pa.binary(1))}),
    ],
    ids=["table", "slice", "iterable", "chunks", "dictionary", "fixed"],
)
async def test_forms_of_data(data: Any) -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        assert [m.offset for m in await (await producer.send_arrow("t", data))] == [0, 1, 2]
        assert kafka.values() == [b"a", b"b", b"c"]


@anyio_test
async def test_streams_of_other_libraries() -> None:
    class Frame:
        """As the data frames of other libraries."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.table({"value": ["a", "b"]}).__arrow_c_stream__(requested_schema)

    async with FakeKafka() as kafka, producing(kafka) as producer:
        reader = pa.RecordBatchReader.from_batches(
            pa.schema([("value", pa.string())]), [pa.record_batch({"value": ["c"]})]
        )
        assert len(await (await producer.send_arrow("t", Frame()))) == 2
        assert len(await (await producer.send_arrow("t", reader))) == 1
        assert kafka.values() == [b"a", b"b", b"c"]


@anyio_test
async def test_no_rows() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        for data in (pa.table({"value": pa.array([], pa.binary())}), [], pa.table({"value": [b"x"]}).slice(1)):
            deliveries = await producer.send_arrow("t", data)
            assert (len(deliveries), await deliveries, deliveries.done()) == (0, [], True)
        with pytest.raises(SerializationError, match="'value' is missing"):
            await producer.send_arrow("t", pa.table({"key": pa.array([], pa.binary())}))
        assert kafka.values() == []


@anyio_test
async def test_keys_go_where_java_would_send_them() -> None:
    keys = [b"key-%d" % number for number in range(300)]
    async with FakeKafka({"t": 7}) as kafka, producing(kafka) as producer:
        metadata = await (await producer.send_arrow("t", pa.table({"key": keys, "value": keys})))
        assert [m.partition for m in metadata] == [partition_for_key(key, 7) for key in keys]
        for number in range(7):
            assert kafka.values("t", number) == [key for key in keys if partition_for_key(key, 7) == number]


@anyio_test
async def test_order_beside_other_calls() -> None:
    """Before, in between and behind: a partition has everything in the order of the calls."""
    async with FakeKafka() as kafka, producing(kafka, linger_ms=50) as producer:
        await producer.send("t", b"0")
        await producer.send_arrow("t", pa.table({"value": [b"1", b"2"]}))
        await producer.send_batch("t", [b"3", b"4"])
        await producer.send_arrow("t", pa.table({"value": [b"5"], "key": [b"k"]}))
        await producer.send("t", b"6")
        await producer.flush()
        assert kafka.values() == [b"%d" % number for number in range(7)]


class ByLength(Partitioner):
    """The length of the value; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any) -> int:
        self.asked.append((topic, key, key_bytes, value, value_bytes, cluster.partition_count(topic)))
        return len(value)


@anyio_test
async def test_a_partitioner_of_the_users() -> None:
    partitioner = ByLength()
    table = pa.table(
        {"key": ["k", None, "l"], "value": ["", "x", "xx"], "partition": pa.array([None, None, 0], pa.int64())}
    )
    async with FakeKafka({"t": 3}) as kafka, producing(kafka, partitioner_class=partitioner) as producer:
        metadata = await (await producer.send_arrow("t", table))
        assert [m.partition for m in metadata] == [0, 1, 0]
        assert partitioner.asked == [("t", b"k", b"k", b"", b"", 3), ("t", None, None, b"x", b"x", 3)]


class Watching(ProducerInterceptor):
    def __init__(self) -> None:
        self.seen: list[ProducerRecord] = []
        self.told: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.seen.append(record)
        return ProducerRecord(record.topic, b"<%s>" % record.value, record.key, record.partition)

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.told.append((metadata, error))


@anyio_test
async def test_interceptors_see_each_row() -> None:
    watching = Watching()
    table = pa.table({"value": ["a", "b"], "key": [None, "k"], "headers": [[{"key": "h", "value": "1"}], None]})
    async with FakeKafka() as kafka, producing(kafka, interceptor_classes=[watching]) as producer:
        await (await producer.send_arrow("t", table))
        assert kafka.values() == [b"<a>", b"<b>"]
        assert watching.seen == [
            ProducerRecord("t", b"a", None, None, None, [("h", b"1")]),
            ProducerRecord("t", b"b", b"k", None, None, []),
        ]
        assert [metadata.offset for metadata, _ in watching.told] == [0, 1]


@anyio_test
async def test_serializers_are_not_applied() -> None:
    async with FakeKafka() as kafka, producing(kafka, value_serializer="json", key_serializer="string") as producer:
        await (await producer.send_arrow("t", pa.table({"value": [b"raw"], "key": [b"\xff"]})))
        assert kafka.values() == [b"raw"]


@anyio_test
async def test_metadata_that_come_late() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:

        async def create() -> None:
            await anyio.sleep(0.05)
            kafka.create("late", 2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            table = pa.table({"topic": ["t", "late", "t"], "value": ["1", "2", "3"]})
            assert len(await (await producer.send_arrow(None, table))) == 3
        assert (kafka.values(), sorted(kafka.values("late", 0) + kafka.values("late", 1))) == ([b"1", b"3"], [b"2"])
    async with FakeKafka() as kafka, producing(kafka, max_block_ms=500) as producer:
        with pytest.raises(KafkaTimeoutError) as caught:
            await producer.send_arrow(None, pa.table({"topic": ["t", "nowhere"], "value": ["1", "2"]}))
        assert caught.value.__notes__ == ["kclient: send_arrow appended the 1 rows before it, and none behind it"]
        await producer.flush()
        assert kafka.values() == [b"1"]


@anyio_test
async def test_errors_of_the_users_own_say_how_many_rows_went() -> None:
    def batches() -> Iterator[Any]:
        yield pa.record_batch({"value": ["1", "2"]})
        raise OSError("the source broke")

    async with FakeKafka() as kafka, producing(kafka) as producer:
        with pytest.raises(OSError, match="the source broke") as caught:
            await producer.send_arrow("t", batches())
        assert caught.value.__notes__ == ["kclient: send_arrow appended the 2 rows before it, and none behind it"]


@anyio_test
async def test_topics_that_grow() -> None:
    table = pa.table({"value": ["1", "2", "3"], "partition": [0, 1, 0]})
    async with FakeKafka() as kafka, producing(kafka) as producer:

        async def grow() -> None:
            await anyio.sleep(0.05)
            kafka.grow("t", 2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow)
            assert [m.partition for m in await (await producer.send_arrow("t", table))] == [0, 1, 0]
    async with FakeKafka() as kafka, producing(kafka, max_block_ms=500) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="partition 1 of topic 't'"):
            await producer.send_arrow("t", table)


@anyio_test
@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"partition": [0, -1, 0]}, ValueError, "a partition's number is from 0"),
        ({"timestamp": [5, -1, 5]}, ValueError, "a record's timestamp is a whole number"),
        ({"timestamp": pa.array([5, -1, 5], pa.timestamp("ms"))}, ValueError, "a record's timestamp is a whole number"),
        ({"topic": ["t", None, "t"]}, SerializationError, "row 1 has no topic"),
        ({"topic": ["t", "", "t"]}, InvalidTopicError, "must not be empty"),
        ({"value": [b"1", b"x" * 2000, b"3"]}, RecordTooLargeError, "more than max.request.size"),
    ],
)
async def test_rows_that_cannot_be_sent(columns: dict[str, Any], error: type[Exception], text: str) -> None:
    """As a loop of `send` would: those before are sent, none behind, and the error says how many."""
    table = pa.table({"value": [b"1", b"2", b"3"], **columns})
    async with FakeKafka() as kafka, producing(kafka, max_request_size=1000) as producer:
        with pytest.raises(error, match=text) as caught:
            await producer.send_arrow(None if "topic" in columns else "t", table)
        assert caught.value.__notes__ == ["kclient: send_arrow appended the 1 rows before it, and none behind it"]
        await producer.flush()
        assert kafka.values() == [b"1"]
        await (await producer.send_arrow("t", pa.table({"value": [b"4"]})))
        assert kafka.values() == [b"1", b"4"]


@anyio_test
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": [1.5]}, "column 'value' of type double cannot be taken as binary"),
        ({"value": [b""], "key": [1]}, "column 'key' of type int64 cannot be taken as binary"),
        ({"value": [b""], "partition": ["a"]}, "column 'partition' of type string: "),
        ({"value": [b""], "partition": [2**31]}, "column 'partition' of type int64: "),
        ({"value": [b""], "timestamp": [1.5]}, "column 'timestamp' of type double is neither"),
        ({"value": [b""], "topic": [5.5]}, "row 0 has no topic|column 'topic'|5.5"),
        ({"value": [b""], "headers": [b""]}, "column 'headers' of type binary is not a list"),
        ({"value": [b""], "colour": [b""]}, "unknown columns colour; there are key, value"),
    ],
)
async def test_columns_of_a_wrong_type(columns: dict[str, Any], text: str) -> None:
    async with FakeKafka() as kafka, producing(kafka, max_block_ms=20) as producer:
        with pytest.raises((SerializationError, KafkaTimeoutError), match=text):
            await producer.send_arrow(None if "topic" in columns else "t", pa.table(columns))
        assert kafka.values() == []
    table = pa.Table.from_arrays([pa.array([b""]), pa.array([b""])], ["value", "value"])
    async with FakeKafka() as kafka, producing(kafka) as producer:
        with pytest.raises(SerializationError, match="more than one column 'value'"):
            await producer.send_arrow("t", table)
        with pytest.raises(TypeError, match="a topic is named by a str"):
            await producer.send_arrow(5, pa.table({"value": [b""]}))  # type: ignore[arg-type]


@anyio_test
async def test_a_full_buffer() -> None:
    """Columns much larger than the buffer go through it; where nothing leaves, `max.block.ms` ends it."""
    values = [b"%0100d" % number for number in range(3000)]
    table = pa.table({"value": values})
    tight: dict[str, Any] = {"buffer_memory": 5000, "batch_size": 1000}
    async with FakeKafka() as kafka, producing(kafka, **tight) as producer:
        assert len(await (await producer.send_arrow("t", table))) == 3000
        assert kafka.values() == values
        assert producer.metrics().value("buffer-available-bytes") == 5000
    async with FakeKafka() as kafka, producing(kafka, **tight, max_block_ms=500) as producer:
        await (await producer.send("t", b"first"))
        held = anyio.Event()
        kafka.faults.extend([Fault(hold=held)] * 5)
        with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms") as caught:
            await producer.send_arrow("t", table)
        (note,) = caught.value.__notes__
        held.set()
        await producer.flush()
        count = int(note.split()[4])
        assert 10 < count < 50
        assert kafka.values() == [b"first", *values[:count]]


def test_the_wait_for_room_is_bounded_for_each_row_not_for_all() -> None:
    """A call that moves on may last longer than `max.block.ms`."""
    bench = Bench(buffer_memory=1000, batch_size=500, max_block_ms=5000)
    waits = []
    for wait in bench.sending.send_arrow("t", pa.table({"value": [b"%0100d" % n for n in range(60)]})):
        if wait == LetOthersRun():
            continue
        assert isinstance(wait, WaitForRoom)
        waits.append(wait.timeout)
        bench.now += 3
        for batch in bench.drain.drain(cluster_of(PARTITIONS), [1], bench.now + 1000).batches[1]:
            bench.buffer.finished(batch)
    assert len(waits) > 5
    assert all(0 < timeout <= 5 for timeout in waits)


@pytest.mark.slow
@anyio_test
async def test_columns_larger_than_memory() -> None:
    """What one call takes is bounded by `buffer.memory`, however much it is given."""
    batch = pa.record_batch({"value": pa.array([b"x" * 1000] * 1000, pa.binary())})
    total = 0

    def batches() -> Iterator[Any]:
        nonlocal total
        for _ in range(100):
            total += batch.nbytes
            yield batch

    async with FakeKafka() as kafka, producing(kafka, buffer_memory=2 << 20) as producer:
        await (await producer.send("t", b""))
        stored = kafka.partitions[TopicPartition("t", 0)].batches

        def forget(_: Any) -> None:
            stored.clear()
            kafka.requests.clear()

        kafka.before_produce = forget
        tracemalloc.start()
        try:
            deliveries = await producer.send_arrow("t", batches())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (len(deliveries), total > 90 << 20) == (100_000, True)
        assert peak < 24 << 20


@anyio_test
async def test_a_closed_producer() -> None:
    async with FakeKafka() as kafka:
        async with producing(kafka) as producer:
            await producer.send_arrow("t", pa.table({"value": [b"1"]}))
        with pytest.raises(ClosedError):
            await producer.send_arrow("t", pa.table({"value": [b"2"]}))
        assert kafka.values() == [b"1"]


@pytest.mark.slow
@anyio_test
async def test_others_run_while_columns_are_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with many rows leaves the loop to others again and again, here behind each piece, however fast that is."""
    monkeypatch.setattr("kclient.producer.sending.LONGEST_PIECE", 0.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0)

    table = pa.table({"value": pa.array([b"x" * 100] * 200_000, pa.binary())})
    async with FakeKafka() as kafka, producing(kafka, buffer_memory=64 << 20) as producer:
        await (await producer.send("t", b""))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await anyio.sleep(0)
            before = turns
            await producer.send_arrow("t", table)
            assert turns - before >= 3
            tasks.cancel_scope.cancel()
        await producer.flush()
        assert kafka.count(ProduceRequest) < 500, "without linger too, rows travel together"


@anyio_test
async def test_compressed_batches_and_acks() -> None:
    values = [b"%0100d" % number for number in range(2000)]
    for settings in ({"compression_type": "zstd"}, {"acks": "1", "enable_idempotence": False}):
        async with FakeKafka({"t": 2}) as kafka, producing(kafka, **settings) as producer:
            await (await producer.send_arrow("t", pa.table({"value": values, "partition": [0, 1] * 1000})))
            assert kafka.values("t", 0) == values[::2]
            assert kafka.values("t", 1) == values[1::2]


def test_deliveries_of_several_batches_in_a_row() -> None:
    bench = Bench()
    deliveries = Deliveries()
    for number in range(100):
        sent = bench.records.append("t", b"%d" % number, None, number % 2, None, (), None)
        assert isinstance(sent, Delivery)
        deliveries._add(sent.batch, sent.index, 1)
    table = pa.table({"value": [b"%d" % n for n in range(100)], "partition": [n % 3 for n in range(100)]})
    assert not list(bench.sending._append_columns(pieces_of("t", table), deliveries)), "nothing to wait for"
    places = [(delivery.batch.tp.partition, delivery.index) for delivery in deliveries]
    assert [partition for partition, _ in places] == [n % 2 for n in range(100)] + [n % 3 for n in range(100)]
    for number in range(3):
        indexes = [index for partition, index in places if partition == number]
        assert all(after == before + 1 for before, after in pairwise(indexes))
    assert [(d.batch, d.index) for d in (deliveries[-1], deliveries[150], deliveries[0])] == [
        (d.batch, d.index) for d in (list(deliveries)[-1], list(deliveries)[150], next(iter(deliveries)))
    ]
