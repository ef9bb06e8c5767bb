"""The spans of what consumers get, process and commit, and how they are linked to what producers sent."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import kclient.sync
from kclient import Consumer, Producer, ShareConsumer
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.consumer import ConsumerInterceptor, ConsumerRecords
from kclient.errors import RecordDeserializationError, WakeupError
from kclient.testing import memory_broker
from tests.traced import Spans, attributes, id_of, linked

pytestmark = pytest.mark.anyio

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


async def sent(spans: Spans, broker: str, *values: bytes) -> list[int]:
    """The ids of the spans in which values were sent."""
    async with Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
        for value in values:
            await (await producer.send("t", value, b"key"))
    ids = [id_of(span) for span in spans.named("send t")]
    spans.ended.clear()
    spans.begun = 0
    return ids


def reading(spans: Spans, broker: str, **settings: Any) -> Consumer:
    common: dict[str, Any] = {"group_id": "g", "client_id": "me", "auto_offset_reset": "earliest", **settings}
    return Consumer("t", bootstrap_servers=broker, tracing=spans.provider, **common)


async def test_a_poll_is_linked_to_what_was_sent() -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await sent(spans, broker, b"1", b"2")
        async with Producer(bootstrap_servers=broker) as producer:
            await (await producer.send("t", b"3"))
        async with reading(spans, broker, enable_auto_commit=False) as consumer:
            with anyio.fail_after(20):
                assert len(await consumer.poll(10)) == 3
            assert not await consumer.poll(0)
            await consumer.commit()
    poll = spans.one("poll t")
    assert poll.kind is SpanKind.CLIENT
    assert linked(poll) == set(ids)
    common = {"system": "kafka", "client.id": "me", "consumer.group.name": "g", "destination.name": "t"}
    assert attributes(poll) == {
        **common,
        "operation.name": "poll",
        "operation.type": "receive",
        "destination.partition.id": "0",
        "batch.message_count": 3,
    }
    commit = spans.one("commit t")
    assert commit.kind is SpanKind.CLIENT
    assert commit.status.status_code is StatusCode.UNSET
    assert attributes(commit) == {
        **common,
        "operation.name": "commit",
        "operation.type": "settle",
        "destination.partition.id": "0",
        "kafka.offset": 3,
    }
    assert not spans.open


async def test_records_are_processed_in_their_context() -> None:
    spans = Spans()
    with memory_broker() as broker:
        first, second = await sent(spans, broker, b"1", b"2")
        async with reading(spans, broker) as consumer:
            with anyio.fail_after(20):
                records = await consumer.poll(10)
            with consumer.processing(records[0]) as span:
                assert trace.get_current_span() is span
                await anyio.sleep(0)
            assert not trace.get_current_span().get_span_context().is_valid
            tracer = spans.provider.get_tracer("test")
            with tracer.start_as_current_span("around") as around, consumer.processing(records[1]):
                pass
            with pytest.raises(ZeroDivisionError), consumer.processing(records):
                raise ZeroDivisionError("mine")
            for wrong in (5, "text", [5]):
                with pytest.raises(TypeError, match="processing needs"):
                    consumer.processing(wrong)  # type: ignore[arg-type]
    alone, within, both = spans.named("process t")
    assert {span.kind for span in (alone, within, both)} == {SpanKind.CONSUMER}
    assert alone.parent is not None
    assert alone.parent.span_id == first
    assert linked(alone) == {first}
    assert within.parent == around.get_span_context()
    assert linked(within) == {second}
    assert both.parent is None
    assert linked(both) == {first, second}
    assert attributes(alone)["kafka.offset"] == 0
    assert attributes(alone)["kafka.message.key"] == "key"
    assert attributes(both)["batch.message_count"] == 2
    assert attributes(both)["error.type"] == "ZeroDivisionError"
    assert both.status.status_code is StatusCode.ERROR
    assert both.status.description == "mine"
    assert not spans.open


async def test_records_of_an_iteration_are_received_one_by_one() -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await sent(spans, broker, b"1", b"2", b"3")
        seen: list[int] = []

        class Sees(ConsumerInterceptor):
            def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
                seen.extend(record.offset for record in records)
                return records

        for interceptors in ([], [Sees()]):
            spans.ended.clear()
            settings: dict[str, Any] = {"group_id": f"g{len(interceptors)}", "interceptor_classes": interceptors}
            async with reading(spans, broker, enable_auto_commit=False, **settings) as consumer:
                with anyio.fail_after(20):
                    async for record in consumer:
                        if record.offset == 1:
                            break
            polls = spans.named("poll t")
            assert [linked(span) for span in polls] == [{ids[0]}, {ids[1]}], "what is at hand is not received yet"
            assert [attributes(span)["kafka.offset"] for span in polls] == [0, 1]
    assert seen == [0, 1]


async def test_columns() -> None:
    spans = Spans()
    with memory_broker() as broker:
        await sent(spans, broker, b"1", b"2")
        async with reading(spans, broker) as consumer:
            with anyio.fail_after(20):
                assert (await consumer.poll_arrow(10)).num_rows == 2
    assert attributes(spans.one("poll"))["batch.message_count"] == 2


async def test_polls_that_end_otherwise() -> None:
    spans = Spans()

    def refuse(data: bytes) -> str:
        raise ValueError("not this one")

    with memory_broker() as broker:
        await sent(spans, broker, b"1")
        async with reading(spans, broker, value_deserializer=refuse) as consumer:
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await consumer.poll(10)
            with anyio.move_on_after(0.001):
                await consumer.poll(10)
            assert not [span for span in spans.ended if span.name.startswith("poll")], "nothing was handed out"
            with pytest.raises(RecordDeserializationError):
                await consumer.poll(10)
            with anyio.move_on_after(0.02):
                with contextlib.suppress(RecordDeserializationError):
                    await consumer.poll(10)
    failed = spans.named("poll")[0]
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "RecordDeserializationError"
    assert not spans.open


async def test_commits_end_with_the_consumer() -> None:
    spans = Spans()
    with memory_broker() as broker:
        await sent(spans, broker, b"1")
        async with reading(spans, broker, enable_auto_commit=False) as consumer:
            with anyio.fail_after(20):
                await consumer.poll(10)
            for _ in range(3):
                consumer.commit_async()
            await consumer.close(0)
    assert len(spans.named("commit t")) == 3
    assert not spans.open


@ON_ASYNCIO
async def test_the_blocking_consumer() -> None:
    spans = Spans()
    with memory_broker() as broker:
        (first,) = await sent(spans, broker, b"1")

        def consume() -> None:
            settings: dict[str, Any] = {"bootstrap_servers": broker, "auto_offset_reset": "earliest"}
            with kclient.sync.Consumer("t", group_id="g", tracing=spans.provider, **settings) as consumer:
                for record in consumer:
                    with consumer.processing(record):
                        assert trace.get_current_span().get_span_context().is_valid
                    break
                consumer.commit()

        await anyio.to_thread.run_sync(consume)
    assert linked(spans.one("poll t")) == linked(spans.one("process t")) == {first}
    assert spans.named("commit t")
    assert not spans.open


async def test_a_share_consumer() -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await sent(spans, broker, b"1", b"2")
        async with Admin(bootstrap_servers=broker) as admin:
            group = ConfigResource(ConfigResourceType.GROUP, "s")
            await admin.alter_configs({group: {"share.auto.offset.reset": "earliest"}})
        async with ShareConsumer("t", bootstrap_servers=broker, group_id="s", tracing=spans.provider) as consumer:
            with anyio.fail_after(30):
                records = await consumer.poll(20)
                assert len(records) == 2
                with consumer.processing(records[0]):
                    pass
                await consumer.commit()
                assert await consumer.commit() == {}
            async with Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
                await (await producer.send("t", b"3"))
            with anyio.fail_after(30):
                async for record in consumer:
                    assert record.value == b"3"
                    break
    polls = spans.named("poll t")
    assert linked(polls[0]) == set(ids)
    assert linked(polls[1]) == {id_of(spans.one("send t"))}
    assert attributes(polls[1])["kafka.offset"] == 2
    assert linked(spans.one("process t")) == {ids[0]}
    assert attributes(spans.one("commit t"))["operation.type"] == "settle"
    assert not spans.open


async def test_only_an_end_of_a_partition_is_no_span() -> None:
    spans = Spans()
    with memory_broker() as broker:
        await sent(spans, broker, b"1")
        async with reading(spans, broker, auto_offset_reset="latest", enable_partition_eof=True) as consumer:
            with anyio.fail_after(20):
                assert (await consumer.poll(10)).partition_ends
    assert not [span for span in spans.ended if span.name.startswith("poll")]


async def test_processing_needs_records_that_stay_and_a_block_of_its_own() -> None:
    spans = Spans()
    with memory_broker() as broker:
        await sent(spans, broker, b"1")
        async with reading(spans, broker) as consumer:
            with anyio.fail_after(20):
                records = await consumer.poll(10)
            once = iter(records)
            with pytest.raises(TypeError, match="an iterator would be used up"):
                consumer.processing(once)  # type: ignore[arg-type]
            assert len(list(once)) == 1
            block = consumer.processing(records)
            with block, pytest.raises(RuntimeError, match="entered before"), block:
                pass
    assert spans.open == 0
