"""Sends that are cancelled anywhere, from several tasks or threads: every span ends, and tells what was stored."""

from __future__ import annotations

import random
import threading
from typing import Any

import anyio
import pytest
from opentelemetry.trace import StatusCode

import kclient.sync
from kclient import Producer
from kclient.testing import memory_broker
from tests.traced import Spans, attributes

pytestmark = pytest.mark.anyio

TINY: dict[str, Any] = {"buffer_memory": 4096, "batch_size": 512, "linger_ms": 0}


def stored(spans: Spans) -> int:
    """How many records were stored, as the spans tell."""
    return sum(
        attributes(span).get("batch.message_count", int(span.status.status_code is not StatusCode.ERROR))
        for span in spans.ended
    )


def ends(broker: str) -> int:
    with kclient.sync.Consumer(bootstrap_servers=broker) as consumer:
        return sum(consumer.end_offsets([("t", 0), ("t", 1)]).values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_sends(seed: int) -> None:
    chance = random.Random(seed)
    spans = Spans()
    with memory_broker() as broker:
        with kclient.sync.Admin(bootstrap_servers=broker) as admin:
            admin.create_topic("t", 2)

        async def work() -> None:
            for _ in range(60):
                with anyio.move_on_after(chance.random() * 0.004):
                    if chance.random() < 0.5:
                        await producer.send("t", bytes(chance.randrange(400)))
                    else:
                        await producer.send_batch("t", [bytes(200)] * chance.randrange(1, 30))

        async with (
            Producer(bootstrap_servers=broker, tracing=spans.provider, **TINY) as producer,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(work)
        assert not spans.open
        assert stored(spans) == await anyio.to_thread.run_sync(ends, broker)
        assert any(attributes(span).get("error.type") for span in spans.ended), "some were cancelled"


def test_threads() -> None:
    spans = Spans()
    with memory_broker() as broker:
        with kclient.sync.Admin(bootstrap_servers=broker) as admin:
            admin.create_topic("t", 2)
        with kclient.sync.Producer(bootstrap_servers=broker, tracing=spans.provider, **TINY) as producer:

            def work() -> None:
                for number in range(50):
                    if number % 5:
                        producer.send("t", bytes(100))
                    else:
                        producer.send_batch("t", [bytes(100)] * 20)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not spans.open
        assert len(spans.ended) == 200
        assert stored(spans) == ends(broker) == 4 * (40 + 10 * 20)
