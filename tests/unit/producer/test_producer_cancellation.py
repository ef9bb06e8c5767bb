"""The producer's calls beside `send` cancelled at each checkpoint: nothing is doubled, and the producer goes on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kclient import Producer
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.fake_kafka import FakeKafka
from tests.unit.producer.parts import producing

pytestmark = pytest.mark.anyio

VALUES = [b"%d" % number + b"x" * 50 for number in range(20)]
# Room for a batch or two, so that the calls have to wait again and again.
TIGHT: dict[str, Any] = {"buffer_memory": 600, "batch_size": 300}


async def check(kafka: FakeKafka, producer: Producer, outcome: Outcome) -> None:
    """A head of the values is there, in order and once; all of them if the call finished; and one more can follow."""
    await (await producer.send("t", b"last"))
    await producer.flush()
    *sent, last = kafka.values()
    assert last == b"last"
    assert sent == VALUES[: len(sent)]
    assert len(sent) == len(VALUES) or outcome is Outcome.CANCELLED
    assert producer.metrics().value("buffer-available-bytes") == TIGHT["buffer_memory"]


@pytest.mark.parametrize("keys", [None, [b"k"] * len(VALUES)], ids=["values", "keys"])
async def test_send_batch(keys: list[bytes] | None) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka, **TIGHT) as producer:
            outcome = await cancelled(producer.send_batch("t", VALUES, keys))
            if outcome is Outcome.FINISHED:
                assert [row.offset for row in await cancelled.result] == list(range(len(VALUES)))
            await check(kafka, producer, outcome)

    assert await at_every_checkpoint(scenario) >= 3


async def test_the_wait_for_all_deliveries() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka, **TIGHT) as producer:
            deliveries = await producer.send_batch("t", VALUES)
            await cancelled(deliveries)
            assert len(await deliveries) == len(VALUES)
            await check(kafka, producer, Outcome.FINISHED)

    assert await at_every_checkpoint(scenario) >= 1


@pytest.mark.parametrize("columns", [{}, {"partition": pa.array([0] * len(VALUES), pa.int32())}], ids=["all", "each"])
async def test_send_arrow(columns: dict[str, Any]) -> None:
    table = pa.table({"value": pa.array(VALUES, pa.binary()), **columns})

    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka, **TIGHT) as producer:
            outcome = await cancelled(producer.send_arrow("t", table))
            await check(kafka, producer, outcome)

    assert await at_every_checkpoint(scenario) >= 3


async def test_send_arrow_to_many_partitions() -> None:
    """Whatever partitions they went to, the rows that are there are the first ones."""
    keys = [b"%d" % number for number in range(len(VALUES))]
    table = pa.table({"value": pa.array(VALUES, pa.binary()), "key": pa.array(keys, pa.binary())})

    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka({"t": 3}) as kafka, producing(kafka, **TIGHT) as producer:
            outcome = await cancelled(producer.send_arrow("t", table.to_batches(max_chunksize=7)))
            if outcome is Outcome.FINISHED:
                assert len(await cancelled.result) == len(VALUES)
            await producer.flush()
            found = [kafka.values("t", number) for number in range(3)]
            assert all(values == sorted(values, key=VALUES.index) for values in found)
            sent = sorted((value for values in found for value in values), key=VALUES.index)
            assert sent == VALUES[: len(sent)]
            assert len(sent) == len(VALUES) or outcome is Outcome.CANCELLED
            assert producer.metrics().value("buffer-available-bytes") == TIGHT["buffer_memory"]

    assert await at_every_checkpoint(scenario) >= 3


async def test_partitions_for() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, producing(kafka) as producer:
            await cancelled(producer.partitions_for("t"))
            assert [each.partition for each in await producer.partitions_for("t")] == [0]
            assert (await (await producer.send("t", b"a"))).offset == 0

    assert await at_every_checkpoint(scenario) >= 1
