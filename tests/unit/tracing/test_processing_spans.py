"""Processors make a span for what the function is given, and what comes of it is sent within."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace

import kclient.sync
from kclient import Consumer, ConsumerRecord, Producer, ProducerRecord
from kclient.processing import BlockingProcessor, Processor, Retry
from kclient.testing import memory_broker
from tests.traced import Spans, attributes, id_of, linked

pytestmark = pytest.mark.anyio

READS: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
}


async def put(spans: Spans, broker: str) -> list[int]:
    async with Producer(bootstrap_servers=broker, tracing=spans.provider) as producer:
        for value in (b"1", b"2"):
            await (await producer.send("in", value))
    return [id_of(span) for span in spans.named("send in")]


def check(spans: Spans, ids: list[int], *, batch: bool = False) -> None:
    processed, sent = spans.named("process in"), spans.named("send out")
    if batch:
        (one,) = processed
        assert linked(one) == set(ids)
        assert attributes(one)["batch.message_count"] == 2
        assert [span.parent and span.parent.span_id for span in sent] == [id_of(one)] * 2
    else:
        assert [linked(span) for span in processed] == [{each} for each in ids]
        assert [span.parent and span.parent.span_id for span in processed] == ids
        assert [span.parent and span.parent.span_id for span in sent] == [id_of(span) for span in processed]
    assert not spans.open


@pytest.mark.parametrize("batch", [False, True])
async def test_asynchronous(batch: bool) -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await put(spans, broker)
        common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
        async with Consumer("in", **READS, **common) as consumer, Producer(transactional_id="x", **common) as producer:

            async def function(given: Any) -> list[ProducerRecord]:
                assert trace.get_current_span().get_span_context().is_valid
                await anyio.sleep(0)
                records = list(given) if batch else [given]
                if records[-1].value == b"2":
                    processor.stop()
                return [ProducerRecord("out", record.value) for record in records]

            processor = Processor(consumer, producer, function, batch=batch)
            with anyio.fail_after(20):
                await processor.run()
    check(spans, ids, batch=batch)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("batch", [False, True])
async def test_blocking(batch: bool) -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await put(spans, broker)
        common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}

        def work() -> None:
            with (
                kclient.sync.Consumer("in", **READS, **common) as consumer,
                kclient.sync.Producer(transactional_id="x", **common) as producer,
            ):

                def function(given: Any) -> list[ProducerRecord]:
                    records = list(given) if batch else [given]
                    if records[-1].value == b"2":
                        processor.stop()
                    return [ProducerRecord("out", record.value) for record in records]

                processor = BlockingProcessor(consumer, producer, function, batch=batch)
                processor.run()

        await anyio.to_thread.run_sync(work)
    check(spans, ids, batch=batch)


async def test_a_record_that_fails_and_is_tried_again() -> None:
    spans = Spans()
    with memory_broker() as broker:
        ids = await put(spans, broker)
        common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
        async with Consumer("in", **READS, **common) as consumer, Producer(transactional_id="x", **common) as producer:
            tried = 0

            def function(record: ConsumerRecord) -> ProducerRecord:
                nonlocal tried
                tried += 1
                if tried == 1:
                    raise ZeroDivisionError("mine")
                if record.value == b"2":
                    processor.stop()
                return ProducerRecord("out", record.value)

            processor = Processor(consumer, producer, function, on_error=Retry(0.0))
            with anyio.fail_after(20):
                progress = await processor.run()
    assert progress.records_in == 2
    assert progress.records_out == 2
    failed, again, second = spans.named("process in")
    assert attributes(failed)["error.type"] == "ZeroDivisionError"
    assert [linked(span) for span in (failed, again, second)] == [{ids[0]}, {ids[0]}, {ids[1]}]
    assert [span.parent and span.parent.span_id for span in spans.named("send out")] == [id_of(again), id_of(second)]
    assert not spans.open
