"""The blocking producer against a cluster in memory that lives in the portal's loop."""

from __future__ import annotations

import _thread
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from kclient.errors import (
    BufferExhaustedError,
    ClosedError,
    DeliveryError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    SerializationError,
)
from kclient.producer import ProducerInterceptor, ProducerRecord
from kclient.sync.portal import get_portal
from kclient.sync.producer import Producer
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka, Fault

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    made = FakeKafka({"t": 1, "four": 4})
    portal = get_portal()
    portal.call(made.start)
    yield made
    portal.call(made.aclose)


def producing(kafka: FakeKafka, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=kafka.bootstrap, **{**FAST, **settings})


async def _event() -> anyio.Event:
    return anyio.Event()


def held() -> tuple[Fault, anyio.Event]:
    event = get_portal().call(_event)
    return Fault(hold=event), event


def test_a_record_arrives(kafka: FakeKafka) -> None:
    with producing(kafka) as producer:
        assert producer.send("t", b"a").result().offset == 0
        delivery = producer.send("t", b"b", b"key", headers=[("h", b"1")], timestamp=5)
        assert (delivery.result(timeout=5).offset, delivery.result().timestamp) == (1, 5)
        assert delivery.done()
        assert delivery.exception() is None
    assert kafka.values() == [b"a", b"b"]


def test_without_with_it_starts_by_itself(kafka: FakeKafka) -> None:
    producer = producing(kafka)
    producer.send("t", b"a")
    producer.close()
    producer.close()
    assert kafka.values() == [b"a"]
    with pytest.raises(ClosedError):
        producer.send("t", b"b")
    with pytest.raises(ClosedError):
        producer.flush()


def test_batches_and_arrow(kafka: FakeKafka) -> None:
    import pyarrow as pa

    values = [b"%04d" % n for n in range(2000)]
    with producing(kafka, batch_size=2000) as producer:
        metadata = producer.send_batch("t", values).result(timeout=10)
        assert [m.offset for m in metadata] == list(range(2000))
        assert len(producer.send_batch("four", [b"x"] * 5, [b"%d" % n for n in range(5)]).result()) == 5
        producer.send_arrow("t", pa.table({"value": [b"y"]})).result()
        assert producer.send_batch("t", iter([b"z"])).result()[0].offset == 2001
    assert kafka.values()[:2000] == values


def test_columns_by_several_threads(kafka: FakeKafka) -> None:
    """Through a buffer that is much smaller: each thread's rows are there once, a key's in their order."""
    import pyarrow as pa

    count = 3000
    errors: list[BaseException] = []
    with producing(kafka, buffer_memory=40_000, batch_size=2000) as producer:

        def send(name: int) -> None:
            try:
                values = [b"%d-%05d" % (name, number) for number in range(count)]
                keys = [b"k%d" % (number % 7) for number in range(count)]
                metadata = producer.send_arrow("four", pa.table({"value": values, "key": keys})).result(timeout=60)
                assert len(metadata) == count
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    found = [kafka.values("four", number) for number in range(4)]
    assert sorted(value for values in found for value in values) == [
        b"%d-%05d" % (name, number) for name in range(3) for number in range(count)
    ]
    for values in found:
        for name in range(3):
            mine = [value for value in values if value.startswith(b"%d-" % name)]
            assert mine == sorted(mine)


def test_columns_that_cannot_be_sent(kafka: FakeKafka) -> None:
    import pyarrow as pa

    with producing(kafka, max_request_size=1000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size") as caught:
            producer.send_arrow("t", pa.table({"value": [b"1", b"2", b"x" * 2000, b"4"]}))
        assert caught.value.__notes__ == ["kclient: send_arrow appended the 2 rows before it, and none behind it"]
        producer.flush()
        assert kafka.values() == [b"1", b"2"]
    with pytest.raises(ClosedError):
        producer.send_arrow("t", pa.table({"value": [b"5"]}))


def test_a_small_request_size_bounds_records_and_batches(kafka: FakeKafka) -> None:
    """Also one below `batch.size`, and also where a batch is open."""
    with producing(kafka, max_request_size=1000, linger_ms=50) as producer:
        producer.send("t", b"1")
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
            producer.send("t", b"x" * 2000)
        producer.send_batch("t", [b"x" * 300] * 10).result()
    batches = kafka.partitions[TopicPartition("t", 0)].batches
    assert max(len(batch) for batch in batches) <= 1000
    assert sum(map(len, batches)) > 3000


def test_callbacks_run_in_the_callers_thread(kafka: FakeKafka) -> None:
    told: list[Any] = []
    me = threading.get_ident()

    def on_delivery(metadata: Any, error: Any) -> None:
        assert threading.get_ident() == me
        told.append(metadata.offset if metadata else error)

    with producing(kafka) as producer:
        producer.send("t", b"a", on_delivery=on_delivery)
        producer.flush()
        assert told == [0]
        producer.send("t", b"b", on_delivery=on_delivery).result()
        assert told == [0, 1]
        producer.send("t", b"c", on_delivery=on_delivery)
    assert told == [0, 1, 2]


def test_callbacks_that_send_do_not_nest(kafka: FakeKafka) -> None:
    depth = deepest = 0
    first: list[Any] = []
    second: list[Any] = []

    def again(metadata: Any, error: Any) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        first.append(metadata)
        producer.send("t", b"2", on_delivery=lambda metadata, error: second.append(metadata))
        depth -= 1

    kafka.create("many", 400)
    with producing(kafka, linger_ms=1000) as producer:
        deliveries = [producer.send("many", b"1", partition=number, on_delivery=again) for number in range(400)]
        producer._life.buffer.begin_flush()  # all finish before the first callback is called
        while not all(delivery.done() for delivery in deliveries):
            time.sleep(0.001)
        producer.flush()
    assert (len(first), len(second), deepest) == (400, 400, 1)


def test_callbacks_that_close_have_the_others_called(kafka: FakeKafka) -> None:
    called: list[Any] = []

    def closing(metadata: Any, error: Any) -> None:
        called.append(metadata)
        producer.send("t", b"2", on_delivery=lambda metadata, error: called.append(metadata))
        producer.close()

    producer = producing(kafka)
    producer.send("t", b"1", on_delivery=closing)
    producer.flush()
    assert len(called) == 2


def test_an_interrupted_callback_leaves_the_others_due(kafka: FakeKafka) -> None:
    called: list[int] = []

    def interrupted(metadata: Any, error: Any) -> None:
        called.append(metadata.offset)
        if len(called) == 3:
            raise KeyboardInterrupt

    with producing(kafka, linger_ms=1000) as producer:
        for _ in range(10):
            producer.send("t", b"x", on_delivery=interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert called == [0, 1, 2]
        producer.flush()
        assert called == list(range(10)), "each once, in order"


def two_threads(kafka: FakeKafka, finish: Any, stop: type[BaseException] | None = None) -> list[int]:
    """What callbacks have been called when `finish` returns, while another thread calls the first of them."""
    called: list[int] = []
    inside, go_on = threading.Event(), threading.Event()

    def slow(metadata: Any, error: Any) -> None:
        if not called:
            inside.set()
            assert go_on.wait(20)
        called.append(metadata.offset)
        if len(called) == 2 and stop is not None:
            raise stop

    def flush() -> None:
        with suppress(KeyboardInterrupt):
            producer.flush()

    with producing(kafka, linger_ms=1000) as producer:
        for _ in range(5):
            producer.send("t", b"x", on_delivery=slow)
        other = threading.Thread(target=flush)
        other.start()
        assert inside.wait(20)
        waited = threading.Timer(0.1, go_on.set)
        waited.start()
        finish(producer)
        found = list(called)
        go_on.set()
        other.join()
    return found


@pytest.mark.parametrize("stop", [None, KeyboardInterrupt])
@pytest.mark.parametrize("finish", [Producer.flush, Producer.close])
def test_flush_and_close_wait_for_callbacks_in_other_threads(
    kafka: FakeKafka, finish: Any, stop: type[BaseException] | None
) -> None:
    assert two_threads(kafka, finish, stop) == list(range(5))


def test_flush_waits_no_longer_than_its_timeout_for_callbacks_in_other_threads(kafka: FakeKafka) -> None:
    def finish(producer: Producer) -> None:
        with pytest.raises(KafkaTimeoutError, match="callbacks"):
            producer.flush(timeout=0.02)

    assert two_threads(kafka, finish) == []


def test_interceptors(kafka: FakeKafka) -> None:
    class Shout(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            record.value = record.value.upper()
            return record

    with producing(kafka, interceptor_classes=[Shout]) as producer:
        producer.send("t", b"a")
        producer.send_batch("t", [b"b"])
    assert kafka.values() == [b"A", b"B"]


def test_failures_that_nobody_saw(kafka: FakeKafka) -> None:
    with producing(kafka) as producer:
        producer.partitions_for("t")
        kafka.faults.extend([Fault(ErrorCode.INVALID_RECORD), Fault(ErrorCode.INVALID_RECORD)])
        producer.send("t", b"a")
        with pytest.raises(DeliveryError, match="1 records"):
            producer.flush()
        seen = producer.send("t", b"b")
        with pytest.raises(KafkaError):
            seen.result()
    with pytest.raises(SerializationError), producing(kafka, linger_ms=5) as producer:
        producer.send("t", b"an open batch")
        producer.send("t", "text")


def test_an_exception_of_the_user_still_flushes(kafka: FakeKafka) -> None:
    with pytest.raises(ZeroDivisionError), producing(kafka, linger_ms=10_000, delivery_timeout_ms=60_000) as producer:
        producer.send("t", b"a")
        raise ZeroDivisionError
    assert kafka.values() == [b"a"]


def test_waiting_for_a_delivery_can_time_out(kafka: FakeKafka) -> None:
    with producing(kafka) as producer:
        producer.send("t", b"a").result()
        fault, event = held()
        kafka.faults.append(fault)
        delivery = producer.send("t", b"b")
        with pytest.raises(KafkaTimeoutError):
            delivery.result(timeout=0.02)
        with pytest.raises(KafkaTimeoutError):
            producer.flush(timeout=0.02)
        get_portal().call_soon(event.set)
        assert delivery.result(timeout=10).offset == 1


def test_send_waits_for_room_in_order(kafka: FakeKafka) -> None:
    values = [b"%03d" % n + b"x" * 97 for n in range(400)]
    with producing(kafka, buffer_memory=3000, batch_size=1000) as producer:
        for value in values[:200]:
            producer.send("t", value)
        producer.send_batch("t", values[200:])
    assert kafka.values() == values


def test_no_room_in_time(kafka: FakeKafka) -> None:
    with producing(kafka, buffer_memory=1000, batch_size=500, max_block_ms=50) as producer:
        producer.send("t", b"a").result()
        fault, event = held()
        kafka.faults.extend([fault] * 5)
        with pytest.raises(BufferExhaustedError, match=r"buffer\.memory"):
            for _ in range(100):
                producer.send("t", b"x" * 100)
        get_portal().call_soon(event.set)
    with pytest.raises(RecordTooLargeError), producing(kafka, buffer_memory=1000) as producer:
        producer.send("t", b"x" * 2000)


def test_many_threads_share_one(kafka: FakeKafka) -> None:
    with producing(kafka, buffer_memory=20_000, batch_size=1000) as producer:

        def work(me: int) -> None:
            for n in range(500):
                producer.send("four", b"%d:%d" % (me, n), partition=me)

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush()
        for me in range(4):
            assert kafka.values("four", me) == [b"%d:%d" % (me, n) for n in range(500)]


def test_ctrl_c_in_send_appends_nothing(kafka: FakeKafka) -> None:
    with producing(kafka, buffer_memory=1000, batch_size=500) as producer:
        producer.send("t", b"a").result()
        fault, event = held()
        kafka.faults.extend([fault] * 5)
        appended = 0
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        with suppress(KeyboardInterrupt):
            for _ in range(100):
                producer.send("t", b"x" * 100)
                appended += 1
        timer.join()
        assert appended < 100
        kafka.faults.clear()
        get_portal().call_soon(event.set)
        producer.flush()
        assert len(kafka.values()) == 1 + appended


def test_leaving_by_ctrl_c_is_quick_and_counts(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, producing(kafka) as producer:
        producer.send("t", b"a").result()
        kafka.faults.append(held()[0])
        producer.send("t", b"b")
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["kclient: 1 records were not sent"]
    assert "1 records were not sent" in caplog.text
    with pytest.raises(ClosedError):
        producer.send("t", b"c")


def test_ctrl_c_during_close_gives_up(kafka: FakeKafka) -> None:
    told: list[Any] = []

    class Closing(ProducerInterceptor):
        def close(self) -> None:
            told.append("closed")

    producer = producing(kafka, interceptor_classes=[Closing()])
    producer.send("t", b"a").result()
    kafka.faults.append(held()[0])
    delivery = producer.send("t", b"b", on_delivery=lambda _, error: told.append(type(error)))
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    timer.join()
    assert told == [ClosedError, "closed"]
    with pytest.raises(ClosedError):
        delivery.result(timeout=10)


def test_a_serializer_keeps_the_long_way(kafka: FakeKafka) -> None:
    with producing(kafka, value_serializer="string") as producer:
        producer.send("t", "text", partition=0, headers=[("h", b"1")]).result()
    assert kafka.values() == [b"text"]


def test_producers_end_with_their_last_reference(kafka: FakeKafka) -> None:
    producer = producing(kafka)
    producer.send("t", b"a").result()
    producer.close()
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None


def test_figures(kafka: FakeKafka) -> None:
    with producing(kafka) as producer:
        producer.send("t", b"a").result()
        assert producer.metrics().value("record-send-total") == 1
        assert [info.partition for info in producer.partitions_for("four")] == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_old_one_refuses_and_a_new_one_works() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads: what is tested
from kclient.errors import IllegalStateError
from kclient.sync.portal import get_portal
from kclient.sync.producer import Producer
from tests.fake_kafka import FakeKafka

def cluster():
    kafka = FakeKafka({"t": 1})
    get_portal().call(kafka.start)
    return kafka

kafka = cluster()
producer = Producer(bootstrap_servers=kafka.bootstrap)
delivery = producer.send("t", b"parent")
delivery.result()
pending = producer.send("t", b"pending")
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (lambda: producer.send("t", b"child"), producer.flush, lambda: producer.send_batch("t", [b"x"]),
                 lambda: producer.partitions_for("t")):
        try:
            call()
        except IllegalStateError as error:
            refused += "fork" in str(error)
    producer.close()
    mine = cluster()
    with Producer(bootstrap_servers=mine.bootstrap) as fresh:
        works = fresh.send("t", b"child").result().offset == 0
    os._exit(0 if works and refused == 4 else 10 + refused)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pending.result().offset)
producer.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "1"], (done.stdout, done.stderr)


@pytest.mark.slow
def test_an_unclosed_producer_does_not_keep_the_interpreter_and_is_told() -> None:
    code = """
from kclient.sync.portal import get_portal
from kclient.sync.producer import Producer
from tests.fake_kafka import FakeKafka
kafka = FakeKafka({"t": 1})
get_portal().call(kafka.start)
producer = Producer(bootstrap_servers=kafka.bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
producer.partitions_for("t")
producer.send("t", b"lost")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 records were not sent" in done.stderr
