"""Kafka's record batches as messages of a store: what the gateway does, without the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclient.htp import OrderError, TopicSettings
from kclient.records import BatchBuilder, RecordBatchFraming, decode_records
from tests.unit.htp.by_name import NamedStore
from tests.unit.htp.conftest import OpenStore
from tests.unit.htp.plain_messages import TOPIC

pytestmark = pytest.mark.anyio

FRAMING = RecordBatchFraming()


def batch(first: int, count: int, timestamp: int) -> bytearray:
    builder = BatchBuilder(limit=1 << 20)
    for number in range(first, first + count):
        builder.append(timestamp + number - first, b"key", b"value %d" % number)
    return builder.build(base_offset=first)


async def fill(store: NamedStore) -> None:
    await store.manager.create_domain(TOPIC.domain)
    await store.manager.create_topic(TOPIC)
    await store.broker.open(TOPIC, FRAMING)
    for number in range(10):
        sent = await store.broker.send(TOPIC, [batch(number * 10, 10, number * 1000)])
        await sent.synced()


async def values(store: NamedStore) -> list[bytes]:
    found: list[bytes] = []
    position = await store.broker.start(TOPIC)
    while (pulled := await store.broker.pull(TOPIC, position, max_bytes=700)).data:
        found += [record.value for record in decode_records(pulled.data, TOPIC.name, 0, start_offset=position)]
        position = pulled.last + 1
    return found


async def test_batches(reopen: OpenStore) -> None:
    settings = TopicSettings(segment_bytes=1000, index_interval_bytes=300)
    async with reopen(settings=settings) as store:
        await fill(store)
        assert await values(store) == [b"value %d" % number for number in range(100)]
        assert (await store.broker.pull(TOPIC, 57, max_bytes=1)).first == 50
        found = await store.broker.find_by_timestamp(TOPIC, 4005)
        assert found == (40, 49, 4009)
        with pytest.raises(OrderError):
            await store.broker.send(TOPIC, [batch(99, 1, 0)])
        assert (await store.broker.trim(TOPIC, 45)) <= 45
    async with reopen(settings=settings) as store:
        status = await store.broker.open(TOPIC, FRAMING)
        assert status.next == 100
        assert await values(store) == [b"value %d" % number for number in range(status.start, 100)]


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
@pytest.mark.parametrize("cut", [1, 11, 12, 16, 20, 60, 61, 100])
async def test_a_torn_batch_is_cut(reopen: OpenStore, store_url: str, cut: int) -> None:
    async with reopen() as store:
        await fill(store)
    (segment,) = Path(store_url.removeprefix("embedded:")).rglob("*.log")
    with segment.open("ab") as file:
        file.write(batch(100, 10, 0)[:cut])
        file.write(bytes(20))
    async with reopen() as store:
        assert (await store.broker.open(TOPIC, FRAMING)).next == 100
        await (await store.broker.send(TOPIC, [batch(100, 10, 0)])).synced()
        assert len(await values(store)) == 110
