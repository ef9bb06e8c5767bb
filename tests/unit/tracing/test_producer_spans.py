"""The spans of what producers send: one for each call, which ends when the fate of its records is known."""

from __future__ import annotations

from typing import Any

import anyio
import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import kclient.sync
from kclient import Consumer, ConsumerRecord, Producer, ProducerRecord
from kclient.errors import ClosedError, DeliveryError, KafkaTimeoutError, RecordTooLargeError, SerializationError
from kclient.producer import ProducerInterceptor
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.traced import Spans, attributes, header_of

pytestmark = pytest.mark.anyio

HEADERS = [("a", b"1"), ("traceparent", b"of another"), ("tracestate", b"of another"), ("b", None)]


async def read(broker: str, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with Consumer(bootstrap_servers=broker) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        with anyio.fail_after(20):
            while len(found) < count:
                found += await consumer.poll(1.0)
    return found


async def test_a_record_has_a_span_and_carries_its_context() -> None:
    spans = Spans()
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, client_id="me", tracing=spans.provider) as producer:
            with spans.provider.get_tracer("test").start_as_current_span("around") as around:
                told = await (await producer.send("t", b"1", b"key", headers=HEADERS))
            await (await producer.send(ProducerRecord("t", None, partition=0)))
        records = await read(broker, 2)
    first, second = spans.named("send t")
    assert first.kind is SpanKind.PRODUCER
    assert first.status.status_code is StatusCode.UNSET
    assert first.parent == around.get_span_context()
    assert second.parent is None
    assert attributes(first) == {
        "system": "kafka",
        "operation.name": "send",
        "operation.type": "send",
        "client.id": "me",
        "destination.name": "t",
        "destination.partition.id": "0",
        "kafka.message.key": "key",
        "kafka.offset": told.offset,
    }
    assert attributes(second)["kafka.message.tombstone"] is True
    assert records[0].headers == (("a", b"1"), ("b", None), header_of(first)), "replaced, not doubled"
    assert records[1].headers == (header_of(second),)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_blocking_producer() -> None:
    spans = Spans()
    with memory_broker() as broker:

        def send() -> None:
            with kclient.sync.Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
                producer.send("t", b"1").result(10)
                producer.send_batch("t", [b"2", b"3"]).result(10)

        await anyio.to_thread.run_sync(send)
        records = await read(broker, 3)
    single, batch = spans.named("send t")
    assert [record.headers for record in records] == [(header_of(single),), (header_of(batch),), (header_of(batch),)]
    assert attributes(batch)["batch.message_count"] == 2
    assert not spans.open


async def test_many_records_of_one_call_share_a_span() -> None:
    spans = Spans()
    own = pa.array([[{"key": "Traceparent", "value": b"x"}, {"key": "q", "value": b"y"}], None])
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
            await (await producer.send_batch("t", [b"1", b"2"], keys=[b"a", None]))
            await (await producer.send_arrow("t", pa.table({"value": [b"3", b"4"]})))
            await (
                await producer.send_arrow(None, pa.table({"topic": ["t", "t"], "value": [b"5", b"6"], "headers": own}))
            )
            assert not await (await producer.send_batch("t", []))
        records = await read(broker, 6)
    batch, arrow, empty = spans.named("send t")
    columns = spans.one("send")
    assert [attributes(span)["batch.message_count"] for span in (batch, arrow, columns, empty)] == [2, 2, 2, 0]
    assert [record.headers for record in records] == [
        (header_of(batch),),
        (header_of(batch),),
        (header_of(arrow),),
        (header_of(arrow),),
        (("q", b"y"), header_of(columns)),
        (header_of(columns),),
    ]
    assert [record.value for record in records] == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_headers_that_are_none_are_told_as_without_tracing() -> None:
    spans = Spans()
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
            traced = [("traceparent", "text")]
            for wrong in (5, {"a": b"1"}, [("a", "text")], ["a"], [(1, b"1")], traced):
                with pytest.raises(TypeError, match="headers are a sequence of pairs"):
                    await producer.send("t", b"1", headers=wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await producer.send(5, b"1")  # type: ignore[arg-type]
            with pytest.raises(SerializationError, match="column 'headers' of type int64"):
                await producer.send_arrow("t", pa.table({"value": [b"1"], "headers": [5]}))
    assert not spans.open


async def test_interceptors_see_the_context() -> None:
    spans = Spans()
    seen: list[Any] = []

    class Sees(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.extend(record.headers)
            return record

    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, tracing=spans.provider, interceptor_classes=[Sees()]) as producer:
            await (await producer.send("t", b"1"))
            await (await producer.send_arrow("t", pa.table({"value": [b"1"]})))
    assert seen == [header_of(span) for span in spans.named("send t")]


async def test_what_close_gives_up_has_ended() -> None:
    spans = Spans()
    with memory_broker() as broker:
        producer = Producer(
            bootstrap_servers=broker, tracing=spans.provider, linger_ms=60_000, delivery_timeout_ms=120_000
        )
        await producer.start()
        await producer.send("t", b"1")
        await producer.send_batch("t", [b"2", b"3"])
        assert spans.open == 2
        with pytest.raises(DeliveryError):
            await producer.close(0)
        assert not spans.open
        with pytest.raises(ClosedError):
            await producer.send("t", b"4")
    dropped, dropped_batch, refused = spans.named("send t")
    for span in (dropped, dropped_batch, refused):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "ClosedError"
        assert [event.name for event in span.events] == ["exception"]


async def test_a_send_that_fails_or_is_cancelled_has_ended() -> None:
    spans = Spans()
    common: dict[str, Any] = {"tracing": spans.provider, "max_block_ms": 50}
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, max_request_size=1000, **common) as producer:
            with pytest.raises(RecordTooLargeError):
                await producer.send("t", bytes(2000))
        async with Producer(bootstrap_servers="127.0.0.1:1", **common) as producer:
            with pytest.raises(KafkaTimeoutError):
                await producer.send("t", b"1")
            with pytest.raises(KafkaTimeoutError):
                await producer.send_batch("t", [b"1"])
            with anyio.move_on_after(0.005) as scope:
                await producer.send("t", b"1")
            assert scope.cancelled_caught
    assert not spans.open
    assert [attributes(span)["error.type"] for span in spans.ended][:3] == [
        "MESSAGE_TOO_LARGE",
        "KafkaTimeoutError",
        "KafkaTimeoutError",
    ]
    assert all(span.status.status_code is StatusCode.ERROR for span in spans.ended)


async def test_a_record_that_travels_in_a_smaller_batch_has_one_span() -> None:
    spans = Spans()
    with memory_broker() as broker:
        from kclient.admin import Admin

        async with Admin(bootstrap_servers=broker) as admin:
            await admin.create_topic("t", 1, configs={"max.message.bytes": "1000"})
        async with Producer(
            bootstrap_servers=broker, tracing=spans.provider, linger_ms=1000, batch_size=100_000
        ) as producer:
            deliveries = [await producer.send("t", bytes(300)) for _ in range(6)]
            batch = await producer.send_batch("t", [bytes(300) for _ in range(6)])
            await producer.flush()
            told = [await delivery for delivery in deliveries]
            await batch
    assert not spans.open
    assert [attributes(span).get("kafka.offset") for span in spans.named("send t")] == [
        *(metadata.offset for metadata in told),
        None,
    ]


async def test_records_that_are_not_sampled_carry_that() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, tracing=provider) as producer:
            await (await producer.send("t", b"1"))
        (record,) = await read(broker, 1)
    ((name, value),) = record.headers
    assert name == "traceparent"
    assert value is not None
    assert not int(value[-2:], 16) & 1


async def test_without_it_there_is_nothing() -> None:
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker) as producer:
            await (await producer.send("t", b"1"))
        (record,) = await read(broker, 1)
        assert record.headers == ()
        async with Consumer(bootstrap_servers=broker) as consumer:
            with consumer.processing(record) as span:
                assert span is None
                assert not trace.get_current_span().get_span_context().is_valid


async def test_arrow_headers_of_another_shape_are_refused_as_without_tracing() -> None:
    spans = Spans()
    headers = pa.array([[{"k": "a", "v": b"1"}]])
    rows = pa.RecordBatch.from_arrays([pa.array([b"1"]), headers], names=["value", "headers"])
    with memory_broker() as broker:
        async with (
            Producer(bootstrap_servers=broker, tracing=spans.provider) as traced,
            Producer(bootstrap_servers=broker) as plain,
        ):
            for producer in (traced, plain):
                with pytest.raises(SerializationError, match="is not a list of keys and values"):
                    await producer.send_arrow("t", rows)
    assert spans.open == 0
