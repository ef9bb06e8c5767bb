"""The async producer against a cluster in memory that misbehaves, on asyncio and trio."""

from __future__ import annotations

import logging
import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.cluster import ClusterSnapshot
from kclient.errors import (
    BufferExhaustedError,
    ClosedError,
    ClusterAuthorizationError,
    ConfigError,
    DeliveryError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from kclient.producer import Partitioner, Producer, ProducerInterceptor, ProducerRecord
from kclient.protocol.messages import InitProducerIdRequest, ProduceRequest
from kclient.protocol.registry import ApiKey
from kclient.records import partition_for_key, read_header
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from kclient.types import RecordMetadata, TopicPartition
from tests.fake_kafka import FakeKafka, Fault
from tests.unit.producer.parts import FAST, producing

pytestmark = pytest.mark.anyio


# --------------------------------------------------------------------------- the way of a record


async def test_a_record_arrives_and_its_delivery_says_where() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        first = await (await producer.send("t", b"a", timestamp=77))
        second = await (await producer.send("t", b"b", b"key", headers=[("h", None)]))
        assert (first, second.offset) == (RecordMetadata("t", 0, 0, 77), 1)
        assert kafka.values() == [b"a", b"b"]


async def test_nothing_is_connected_before_it_is_needed() -> None:
    async with FakeKafka() as kafka:
        async with producing(kafka):
            pass
        assert kafka.count(ProduceRequest) == 0


async def test_partitions_are_where_the_partitioner_says() -> None:
    async with FakeKafka({"t": 4}, brokers=2) as kafka, producing(kafka) as producer:
        for number in range(4):
            await producer.send("t", b"%d" % number, partition=number)
        await producer.flush()
        assert [kafka.values("t", n) for n in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


async def test_send_batch_keeps_order_and_tells_each_place() -> None:
    values = [b"%04d" % n for n in range(3000)]
    async with FakeKafka() as kafka, producing(kafka, batch_size=2000) as producer:
        deliveries = await producer.send_batch("t", values, partition=0)
        assert len(deliveries) == 3000
        metadata = await deliveries
        assert [m.offset for m in metadata] == list(range(3000))
        assert (await deliveries[-1]).offset == 2999
        assert deliveries.done()
        assert kafka.values() == values
        with pytest.raises(IndexError):
            deliveries[3000]


async def test_send_batch_serializes_keys_also_where_values_are_bytes_already() -> None:
    async with FakeKafka() as kafka, producing(kafka, key_serializer="string") as producer:
        await producer.send_batch("t", [b"a", b"b"], keys=["x", "ü"])
        await producer.flush()
        assert [record.key for record in kafka.records()] == [b"x", "ü".encode()]


@pytest.mark.slow
@pytest.mark.parametrize("interceptors", [[], [ProducerInterceptor()]], ids=["plain", "interceptor"])
async def test_a_long_send_batch_lets_other_tasks_run(interceptors: list[ProducerInterceptor]) -> None:
    turns = 0

    def slowly(value: bytes) -> bytes:
        time.sleep(0.00002)  # of the processor, as far as the loop can tell
        return value

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with (
        FakeKafka() as kafka,
        producing(kafka, value_serializer=slowly, interceptor_classes=interceptors) as producer,
        anyio.create_task_group() as tasks,
    ):
        await producer.send("t", b"first")
        tasks.start_soon(others)
        before = turns
        await producer.send_batch("t", [b"x"] * 2000)
        tasks.cancel_scope.cancel()
    assert turns - before >= 3


async def test_send_batch_with_keys() -> None:
    async with FakeKafka({"t": 3}) as kafka, producing(kafka) as producer:
        keys = [b"k%d" % (n % 5) for n in range(50)]
        metadata = await (await producer.send_batch("t", [b"%d" % n for n in range(50)], keys))
        chosen = [partition_for_key(key, 3) for key in keys]
        assert [m.partition for m in metadata] == chosen
        assert len(set(chosen)) > 1
        with pytest.raises(ValueError, match="2 values but 1 keys"):
            await producer.send_batch("t", [b"a", b"b"], [b"k"])


async def test_send_arrow() -> None:
    import pyarrow as pa

    table = pa.table({"key": ["k", None], "value": [b"a", b"b"]})
    rich = pa.table(
        {
            "topic": ["t", "u"],
            "value": ["x", "y"],
            "partition": pa.array([0, None], pa.int32()),
            "timestamp": pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC")),
            "headers": [[{"key": "h", "value": b"1"}], None],
        }
    )
    async with FakeKafka({"t": 1, "u": 1}) as kafka, producing(kafka) as producer:
        assert len(await (await producer.send_arrow("t", table))) == 2
        metadata = await (await producer.send_arrow(None, rich))
        assert [(m.topic, m.timestamp) for m in metadata] == [("t", 1000), ("u", 2000)]
        assert (kafka.values("t"), kafka.values("u")) == ([b"a", b"b", b"x"], [b"y"])
        with pytest.raises(SerializationError, match="unknown columns nonsense"):
            await producer.send_arrow("t", pa.table({"nonsense": [1]}))
        with pytest.raises(SerializationError, match="'value' is missing"):
            await producer.send_arrow("t", pa.table({"key": [b"1"]}))
        with pytest.raises(SerializationError, match="neither a topic"):
            await producer.send_arrow(None, table)


async def test_old_brokers_are_spoken_to_by_topic_name() -> None:
    versions = {ApiKey.PRODUCE: (0, 5), ApiKey.METADATA: (0, 4), ApiKey.INIT_PRODUCER_ID: (0, 0)}
    async with FakeKafka(versions=versions) as kafka, producing(kafka) as producer:
        assert (await (await producer.send("t", b"a"))).offset == 0
        assert {version for version, request in kafka.requests if isinstance(request, ProduceRequest)} == {5}


async def test_a_topic_whose_id_is_not_known_is_spoken_of_by_its_name() -> None:
    """Metadata of an older broker have no ids, whatever Produce the leader takes."""
    async with FakeKafka(versions={ApiKey.METADATA: (0, 9)}) as kafka, producing(kafka) as producer:
        assert (await (await producer.send("t", b"a"))).offset == 0
        assert {version for version, request in kafka.requests if isinstance(request, ProduceRequest)} == {12}


async def test_records_gather_while_the_broker_asks_for_a_pause() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        times = []
        kafka.before_produce = lambda request: times.append(anyio.current_time())
        kafka.faults.append(Fault(throttle_ms=1000))
        await (await producer.send("t", b"a"))
        assert producer.metrics().value("produce-throttle-time-max") == 1000
        assert producer.metrics().value("produce-throttle-time-avg") == 1000
        for value in (b"b", b"c", b"d"):
            last = await producer.send("t", value)
            await anyio.wait_all_tasks_blocked()
        assert kafka.values() == [b"a"]
        await last
        assert kafka.values() == [b"a", b"b", b"c", b"d"]
        assert len(times) == 2, "what came during the pause is one request"
        assert times[1] - times[0] >= 1
        assert producer.metrics().value("produce-throttle-time-max") == 1000
        assert producer.metrics().value("produce-throttle-time-avg") == 500


async def test_old_brokers_have_paused_before_they_answer() -> None:
    versions = {ApiKey.PRODUCE: (0, 5), ApiKey.METADATA: (0, 4), ApiKey.INIT_PRODUCER_ID: (0, 0)}
    async with FakeKafka(versions=versions) as kafka, producing(kafka) as producer:
        kafka.faults.append(Fault(throttle_ms=3_600_000))
        await (await producer.send("t", b"a"))
        with anyio.fail_after(20):
            await (await producer.send("t", b"b"))
        assert kafka.values() == [b"a", b"b"]


async def test_brokers_older_than_record_batches_are_refused_clearly() -> None:
    async with FakeKafka(versions={ApiKey.PRODUCE: (0, 2)}) as kafka, producing(kafka) as producer:
        delivery = await producer.send("t", b"a")
        with pytest.raises(KafkaError, match=r"0\.11 or newer"):
            await delivery


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compression(compression: str) -> None:
    async with FakeKafka() as kafka, producing(kafka, compression_type=compression) as producer:
        values = [b"again and again " * 20] * 50
        await (await producer.send_batch("t", values))
        assert kafka.values() == values
        header = read_header(next(iter(kafka.partitions.values())).batches[0])
        assert header.compression.name.lower() == compression


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
async def test_compression_levels(compression: str) -> None:
    levels = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (1, 19)}[compression]
    values = [b"%d" % (number * number) for number in range(5000)]
    sizes = []
    for level in levels:
        settings = {"compression_type": compression, f"compression_{compression}_level": level}
        async with FakeKafka() as kafka, producing(kafka, **settings, batch_size=100_000, linger_ms=50) as producer:
            await (await producer.send_batch("t", values))
            assert kafka.values() == values
            sizes.append(sum(map(len, kafka.partitions[TopicPartition("t", 0)].batches)))
    assert sizes[1] < sizes[0]


async def test_acks_0_knows_no_offset() -> None:
    async with FakeKafka() as kafka, producing(kafka, acks=0) as producer:
        assert (await (await producer.send("t", b"a"))).offset == -1
        assert kafka.count(InitProducerIdRequest) == 0


async def test_serializers_and_their_failures() -> None:
    async with FakeKafka() as kafka, producing(kafka, key_serializer="string", value_serializer="json") as producer:
        await (await producer.send("t", {"a": 1}, "k"))
        await producer.send_batch("t", [[1], None])
        with pytest.raises(SerializationError):
            await producer.send("t", object())
        await producer.flush()
        assert next(bytes(v) if v is not None else None for v in kafka.values()) in (b'{"a":1}', b'{"a": 1}')
        assert len(kafka.values()) == 3


async def test_text_without_serializer_is_a_clear_error() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await producer.partitions_for("t")
        with pytest.raises(SerializationError, match="value_serializer"):
            await producer.send("t", "text")
        with pytest.raises(SerializationError, match="value_serializer"):
            await producer.send_batch("t", ["text"])
        await producer.send("t", b"an open batch")
        with pytest.raises(SerializationError, match="value_serializer"):
            await producer.send("t", "text")
        await producer.flush()
        assert producer.metrics().value("buffer-available-bytes") == producer.metrics().value("buffer-total-bytes")


async def test_metrics_are_there_before_the_first_record() -> None:
    async with FakeKafka() as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap, **FAST)
        before = producer.metrics()
        assert before.value("record-send-total") == before.value("record-error-total") == 0
        async with producer:
            await producer.send("t", b"x")
            await producer.flush()
        assert before.keys() <= producer.metrics().keys()
        assert producer.metrics().value("record-send-total") == 1


async def test_custom_partitioner() -> None:
    class Last(Partitioner):
        closed = False

        def partition(
            self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: ClusterSnapshot
        ) -> int:
            return cluster.partition_count(topic) - 1

        def close(self) -> None:
            self.closed = True

    chooser = Last()
    async with FakeKafka({"t": 3}) as kafka:
        async with producing(kafka, partitioner_class=chooser) as producer:
            assert (await (await producer.send("t", b"a", b"key"))).partition == 2
        assert chooser.closed
    with pytest.raises(ConfigError, match="Partitioner"):
        Producer(bootstrap_servers="x:1", partitioner_class=object())


async def test_round_robin_leaves_out_partitions_without_a_leader() -> None:
    async with FakeKafka({"t": 3}) as kafka, producing(kafka, partitioner_class="roundrobin") as producer:
        kafka.partitions[TopicPartition("t", 1)].leader = -1
        metadata = [await (await producer.send("t", b"a")) for _ in range(4)]
        assert [m.partition for m in metadata] == [0, 2, 0, 2]


async def test_round_robin_by_name() -> None:
    async with FakeKafka({"t": 3}) as kafka, producing(kafka, partitioner_class="roundrobin") as producer:
        metadata = [await (await producer.send("t", b"a", b"same key")) for _ in range(6)]
        assert [m.partition for m in metadata] == [0, 1, 2, 0, 1, 2]


class Counting(ProducerInterceptor):
    """Notes what it is shown and told."""

    def __init__(self) -> None:
        self.sent = 0
        self.told: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent += 1
        record.headers = [*record.headers, ("seen", b"1")]
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        assert (metadata is None) != (error is None)
        self.told.append(error or metadata.offset)


async def test_an_interceptor_that_only_listens_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeKafka() as kafka, producing(kafka, interceptor_classes=[ProducerInterceptor]) as producer:
        await (await producer.send("t", b"a", b"k", headers=[("h", b"1")]))
        (record,) = kafka.records()
        assert (record.value, record.key, list(record.headers)) == (b"a", b"k", [("h", b"1")])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Broken(ProducerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("my fault")


class Forgetful(ProducerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return None  # type: ignore[return-value]


async def test_interceptors_see_records_and_outcomes(caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    async with FakeKafka() as kafka:
        async with producing(kafka, interceptor_classes=[Broken, Forgetful, counting]) as producer:
            await producer.send("t", b"a")
            await producer.send_batch("t", [b"b"])
        assert counting.told == [0, 1]
        assert kafka.values() == [b"a", b"b"]
    assert "my fault" in caplog.text
    assert "ProducerRecord; not None" in caplog.text


@pytest.mark.slow
async def test_interceptors_are_told_once_of_each_record_whatever_becomes_of_it() -> None:
    """As in the Java client: also where `send` raises, so that who counts comes to the right sum."""
    counting = Counting()
    async with FakeKafka({"t": 2}) as kafka:
        async with producing(
            kafka, interceptor_classes=[counting], max_block_ms=1000, max_request_size=1000
        ) as producer:
            await producer.send("t", b"good", partition=0)
            with pytest.raises(KafkaTimeoutError):
                await producer.send("nowhere", b"a")
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("t", b"a", partition=2)
            with pytest.raises(RecordTooLargeError):
                await producer.send_batch("t", [b"good", b"x" * 1000, b"never seen"], partition=0)
            with pytest.raises(SerializationError):
                await producer.send("t", "text")
            with pytest.raises(ValueError, match="from 0 to 2147483647"):
                await producer.send("t", b"a", partition=-1)
            with anyio.move_on_after(0.1):  # while it waits for the topic: before that it may not have been shown
                await producer.send("nowhere", b"a")
        kinds = [type(outcome) for outcome in counting.told]
        assert counting.sent == len(counting.told) == 8
        assert kinds.count(int) == 2
        wrapped = [outcome for outcome in counting.told if type(outcome) is KafkaError]
        assert ["from 0 to" in str(wrapped[0]), "cancelled" in str(wrapped[1])] == [True, True]
        assert kafka.values("t", 0) == [b"good", b"good"]


# --------------------------------------------------------------------------- callbacks and failures


async def test_callbacks_run_in_the_callers_task() -> None:
    told: list[Any] = []
    async with FakeKafka() as kafka, producing(kafka) as producer:
        me = anyio.get_current_task().id

        def on_delivery(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
            assert anyio.get_current_task().id == me
            told.append(metadata.offset if metadata else error)

        await producer.send("t", b"a", on_delivery=on_delivery)
        await producer.flush()
        assert told == [0]
        await (await producer.send("t", b"b", on_delivery=on_delivery))
        assert told == [0, 1]
        kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
        await producer.send("t", b"c", on_delivery=on_delivery)
        await producer.flush()
        assert isinstance(told[2], KafkaError), "and flush does not report what the callback was told"


async def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def on_delivery(metadata: Any, error: Any) -> None:
        raise RuntimeError("my callback")

    async with FakeKafka() as kafka, producing(kafka) as producer:
        await producer.send("t", b"a", on_delivery=on_delivery)
        await producer.flush()
    assert "my callback" in caplog.text


async def test_a_callback_that_would_have_to_be_awaited_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody awaits it, and a failure that it alone is told of would be told to nobody."""

    async def on_delivery(metadata: Any, error: Any) -> None: ...

    async with FakeKafka() as kafka, producing(kafka) as producer:
        with pytest.raises(TypeError, match="on_delivery is a plain function"):
            await producer.send("t", b"a", on_delivery=on_delivery)  # type: ignore[arg-type]
        kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
        await producer.send("t", b"a", on_delivery=lambda *outcome: on_delivery(*outcome))  # type: ignore[arg-type]
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            await producer.flush()
        assert kafka.values() == []
    assert "on_delivery of a record for t-0 gave a coroutine, which nobody awaits" in caplog.text


async def test_flush_reports_failures_that_nobody_saw() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        kafka.faults.extend([Fault(ErrorCode.INVALID_RECORD), None])
        await producer.send("t", b"a")
        with pytest.raises(DeliveryError, match="1 records were not delivered") as caught:
            await producer.flush()
        assert (caught.value.count, caught.value.failures[0].topic) == (1, "t")
        assert caught.value.__cause__ is caught.value.failures[0].error
        await producer.flush()  # reported once


async def test_flush_does_not_report_what_was_awaited() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
        delivery = await producer.send("t", b"a")
        with pytest.raises(KafkaError):
            await delivery
        assert delivery.exception() is not None
        await producer.flush()


async def test_leaving_reports_failures_that_nobody_saw() -> None:
    async with FakeKafka() as kafka:
        with pytest.raises(DeliveryError):
            async with producing(kafka) as producer:
                kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
                await producer.send("t", b"a")


async def test_an_exception_of_the_user_is_not_replaced() -> None:
    async with FakeKafka() as kafka:
        with pytest.raises(ZeroDivisionError) as caught:
            async with producing(kafka) as producer:
                kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
                await producer.send("t", b"lost")
                raise ZeroDivisionError
        assert "not delivered" in caught.value.__notes__[0]


async def test_an_exception_of_the_user_still_flushes() -> None:
    async with FakeKafka() as kafka:
        with pytest.raises(ZeroDivisionError):
            async with producing(kafka, linger_ms=10_000, delivery_timeout_ms=60_000) as producer:
                await producer.send("t", b"a")
                raise ZeroDivisionError
        assert kafka.values() == [b"a"]


# --------------------------------------------------------------------------- trouble


async def test_lost_answers_do_not_duplicate() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        for number in range(20):
            if number % 3 == 0:
                kafka.faults.append(Fault(drop=True, append=number % 2 == 0))
            await producer.send("t", b"%d" % number)
            await anyio.lowlevel.checkpoint()
        await producer.flush()
        assert kafka.values() == [b"%d" % number for number in range(20)]


async def test_pipelined_requests_keep_their_order_through_trouble() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"first"))
        hold = anyio.Event()
        kafka.faults.extend([Fault(hold=hold, append=False, drop=False), None, None])
        kafka.faults[0] = Fault(ErrorCode.NOT_ENOUGH_REPLICAS, hold=hold)
        deliveries = []
        for value in (b"a", b"b", b"c"):
            deliveries.append(await producer.send("t", value))
            await anyio.wait_all_tasks_blocked()
        hold.set()
        for delivery in deliveries:
            await delivery
        assert kafka.values() == [b"first", b"a", b"b", b"c"]


@pytest.mark.parametrize("announced", [False, True])
async def test_a_leader_that_moved_is_followed(announced: bool) -> None:
    async with FakeKafka({"t": 1}, brokers=2) as kafka, producing(kafka) as producer:
        kafka.announce_leaders = announced
        await (await producer.send("t", b"a"))
        kafka.move("t", 0, 2)
        await (await producer.send("t", b"b"))
        assert kafka.values() == [b"a", b"b"]


async def test_a_broker_that_dies_is_left() -> None:
    async with FakeKafka({"t": 1}, brokers=2) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.brokers[1].down = True
        kafka.move("t", 0, 2)
        kafka.brokers[1].hang_up()
        await (await producer.send("t", b"b"))
        assert kafka.values() == [b"a", b"b"]


async def test_a_broker_that_comes_back_is_found_again() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.brokers[1].down = True
        kafka.brokers[1].hang_up()
        delivery = await producer.send("t", b"b")
        with anyio.move_on_after(0.05):
            await delivery
        assert not delivery.done()
        kafka.brokers[1].down = False
        assert (await delivery).offset == 1


async def test_epochs_go_on_after_a_gap() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.faults.append(Fault(ErrorCode.INVALID_RECORD))
        bad = await producer.send("t", b"bad")
        with pytest.raises(KafkaError):
            await bad
        await (await producer.send("t", b"b"))
        headers = [read_header(data) for data in next(iter(kafka.partitions.values())).batches]
        assert [(h.producer_epoch, h.base_sequence) for h in headers] == [(0, 0), (1, 0)]


async def test_a_forgotten_producer_id_is_survived() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.faults.append(Fault(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=1))
        assert (await (await producer.send("t", b"b"))).offset == 1
        assert kafka.values() == [b"a", b"b"]


async def test_a_batch_too_large_for_the_broker_is_split() -> None:
    async with FakeKafka() as kafka, producing(kafka, batch_size=500, linger_ms=50) as producer:
        await producer.partitions_for("t")
        kafka.faults.append(Fault(ErrorCode.MESSAGE_TOO_LARGE))
        deliveries = await producer.send_batch("t", [b"%03d" % n * 20 for n in range(100)])
        metadata = await deliveries
        assert [m.offset for m in metadata] == list(range(100))
        assert kafka.values() == [b"%03d" % n * 20 for n in range(100)]
        assert producer.metrics().value("batch-split-total") == 1


async def test_no_producer_id_at_first() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        kafka.id_errors.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert (await (await producer.send("t", b"a"))).offset == 0


async def test_no_producer_id_ever() -> None:
    async with FakeKafka() as kafka:
        kafka.id_errors.append(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        async with producing(kafka) as producer:
            delivery = await producer.send("t", b"a")
            with pytest.raises(ClusterAuthorizationError):
                await delivery
            with pytest.raises(ClusterAuthorizationError):
                await producer.send("t", b"b")
            with pytest.raises(ClusterAuthorizationError):
                await producer.flush()


async def test_delivery_timeout_names_the_reason() -> None:
    async with FakeKafka() as kafka:
        settings = {"delivery_timeout_ms": 600, "request_timeout_ms": 500, "linger_ms": 0}
        async with producing(kafka, **settings) as producer:
            await (await producer.send("t", b"a"))
            kafka.brokers[1].down = True
            kafka.brokers[1].hang_up()
            delivery = await producer.send("t", b"b")
            with pytest.raises(KafkaTimeoutError, match="nobody listens") as caught:
                await delivery
            assert "delivery.timeout.ms" in str(caught.value)
            kafka.brokers[1].down = False


async def test_a_request_without_answer_is_sent_again() -> None:
    async with FakeKafka() as kafka, producing(kafka, request_timeout_ms=50) as producer:
        await producer.partitions_for("t")
        kafka.faults.append(Fault(hold=anyio.Event()))
        assert (await (await producer.send("t", b"a"))).offset == 0
        assert kafka.values() == [b"a"]
        assert kafka.brokers[1].connects >= 2


# --------------------------------------------------------------------------- memory


async def test_send_waits_for_room() -> None:
    async with FakeKafka() as kafka, producing(kafka, buffer_memory=3000, batch_size=1000) as producer:
        values = [b"%03d" % n + b"x" * 97 for n in range(200)]
        for value in values:
            await producer.send("t", value)
        await producer.send_batch("t", values)
        await producer.flush()
        assert kafka.values() == values + values
        assert producer.metrics().value("buffer-available-bytes") == 3000


@pytest.mark.slow
async def test_no_room_in_time_is_an_error_that_names_the_settings() -> None:
    settings = {"buffer_memory": 1000, "batch_size": 500, "max_block_ms": 1500}
    async with FakeKafka() as kafka, producing(kafka, **settings) as producer:
        await (await producer.send("t", b"a"))
        hold = anyio.Event()
        kafka.faults.extend([Fault(hold=hold)] * 5)
        with pytest.raises(BufferExhaustedError, match=r"buffer\.memory .*max\.block\.ms"):
            for _ in range(100):
                await producer.send("t", b"x" * 100)
        assert producer.metrics().value("waiting-threads") == 0
        hold.set()


async def test_too_large_a_record_is_refused() -> None:
    async with FakeKafka() as kafka, producing(kafka, max_request_size=5000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
            await producer.send("t", b"x" * 6000)


async def test_a_loop_that_only_sends_does_not_starve_the_sender() -> None:
    async with FakeKafka() as kafka, producing(kafka, batch_size=1000) as producer:
        for _ in range(100_000):
            await producer.send("t", b"x" * 100)
            if kafka.values():
                break
        else:
            raise AssertionError("nothing was sent while the loop never waited")


# --------------------------------------------------------------------------- life


async def test_not_started_and_closed_are_clear() -> None:
    async with FakeKafka() as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap)
        with pytest.raises(IllegalStateError, match="async with"):
            await producer.send("t", b"a")
        async with producer:
            await producer.send("t", b"a")
            with pytest.raises(IllegalStateError, match="before"):
                await producer.__aenter__()
        for call in (producer.send("t", b"a"), producer.flush(), producer.partitions_for("t")):
            with pytest.raises(ClosedError):
                await call
        await producer.close()
        assert kafka.values() == [b"a"]


async def test_closing_inside_the_block() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await producer.send("t", b"a")
        with anyio.fail_after(5):
            await producer.close()
        assert kafka.values() == [b"a"]


async def test_close_without_time_gives_up_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeKafka() as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap, **FAST)
        async with producer:
            await (await producer.send("t", b"a"))
            kafka.faults.append(Fault(hold=anyio.Event()))
            delivery = await producer.send("t", b"b")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(DeliveryError, match="1 records"):
                await producer.close(timeout=0)
            with pytest.raises(ClosedError):
                await delivery
    assert "1 records were not sent" in caplog.text


async def test_close_with_a_time_waits_for_what_is_on_its_way() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        hold = anyio.Event()
        kafka.faults.append(Fault(hold=hold))
        delivery = await producer.send("t", b"b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.close, 60)
            await anyio.wait_all_tasks_blocked()
            hold.set()
        assert (await delivery).offset == 1


async def test_close_waits_only_so_long() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.faults.append(Fault(hold=anyio.Event()))
        await producer.send("t", b"b")
        with pytest.raises(DeliveryError):
            await producer.close(timeout=0.03)


async def test_leaving_by_cancellation_is_quick_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeKafka() as kafka:
        kafka.faults.extend([None, Fault(hold=anyio.Event())])
        with anyio.CancelScope() as scope:
            async with producing(kafka) as producer:
                await (await producer.send("t", b"a"))
                await producer.send("t", b"b")
                scope.cancel()
                await anyio.sleep_forever()
        assert "1 records were not sent" in caplog.text
        with pytest.raises(ClosedError):
            await producer.send("t", b"c")


async def test_flush_can_time_out_and_go_on() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        hold = anyio.Event()
        kafka.faults.append(Fault(hold=hold))
        delivery = await producer.send("t", b"b")
        with pytest.raises(KafkaTimeoutError):
            await producer.flush(timeout=0.02)
        hold.set()
        assert (await delivery).offset == 1


async def test_a_background_failure_surfaces_at_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        producer._life.supervisor.spawn(_explode)
        await anyio.wait_all_tasks_blocked()
        for call in (producer.send("t", b"b"), producer.flush(), producer.partitions_for("t")):
            with pytest.raises(KafkaError, match=r"background task failed.*boom"):
                await call
    assert "the producer failed: RuntimeError('boom')" in caplog.text


async def _explode() -> None:
    raise RuntimeError("boom")


# --------------------------------------------------------------------------- cancellation at every checkpoint


async def test_what_a_deleted_topic_refused_is_not_acknowledged_by_its_successor() -> None:
    # brokers without topic ids in Produce: the second of two requests finds the new topic of the same name
    async with FakeKafka({"t": 1}, versions={ApiKey.PRODUCE: (0, 12)}) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"before", partition=0))
        hold = anyio.Event()
        kafka.faults.append(Fault(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, hold=hold))
        seen = len(kafka.requests)
        first = await producer.send("t", b"first", partition=0)
        while len(kafka.requests) == seen:
            await anyio.sleep(0)
        kafka.delete("t")
        kafka.create("t", 1)
        second = await producer.send("t", b"second", partition=0)
        while not kafka.values("t", 0):
            await anyio.sleep(0)
        hold.set()
        await second
        with pytest.raises(OutOfOrderSequenceError, match="created again"):
            await first
        await (await producer.send("t", b"third", partition=0))
        assert kafka.values("t", 0) == [b"second", b"third"]


async def test_a_cancelled_send_appended_nothing_or_everything() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka, buffer_memory=500, batch_size=200) as producer:
            outcome = await cancelled(producer.send("t", b"x" * 90))
            if outcome is Outcome.FINISHED:
                await cancelled.result
            outcomes = [outcome]
            for _ in range(5):
                outcomes.append(await cancelled(producer.send("t", b"x" * 90)))
            await producer.flush()
            assert len(kafka.values()) == outcomes.count(Outcome.FINISHED)
            assert producer.metrics().value("buffer-available-bytes") == 500

    assert await at_every_checkpoint(scenario) >= 3


async def test_a_cancelled_wait_cancels_only_the_wait() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka) as producer:
            delivery = await producer.send("t", b"a")
            await cancelled(delivery)
            assert (await delivery).offset == 0
            assert kafka.values() == [b"a"]

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_cancelled_flush_leaves_the_producer_whole() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka, linger_ms=10_000, delivery_timeout_ms=60_000) as producer:
            await producer.send("t", b"a")
            await cancelled(producer.flush())
            assert producer._life.buffer._flushes == 0
            await producer.send("t", b"b")
            await producer.flush()
            assert kafka.values() == [b"a", b"b"]

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_cancelled_close_still_ends_everything() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka:
            producer = Producer(bootstrap_servers=kafka.bootstrap, **FAST)
            async with producer:
                delivery = await producer.send("t", b"a")
                outcome = await cancelled(producer.close())
                if outcome is Outcome.FINISHED:
                    assert (await delivery).offset == 0
                assert delivery.done()
                with pytest.raises(ClosedError):
                    await producer.send("t", b"b")
                assert outcome is Outcome.FINISHED or isinstance(delivery.exception(), ClosedError)
                await producer.close()

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_cancelled_start_leaves_nothing_behind() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka:
            producer = Producer(bootstrap_servers=kafka.bootstrap, **FAST)

            async def use() -> None:
                async with producer:
                    await producer.send("t", b"a")

            outcome = await cancelled(use())
            if outcome is Outcome.FINISHED:
                assert kafka.values() == [b"a"]
            assert not kafka.brokers[1].connections or outcome is Outcome.CANCELLED

    assert await at_every_checkpoint(scenario) >= 2
