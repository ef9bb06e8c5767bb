"""`send` takes a `ProducerRecord`: the same as its fields one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kclient import ProducerRecord, sync
from kclient.errors import UnknownTopicOrPartitionError
from kclient.producer import Producer, ProducerInterceptor
from kclient.testing import memory_broker
from kclient.types import RecordMetadata

pytestmark = pytest.mark.anyio

WHOLE = ProducerRecord("t", b"v", b"k", partition=2, timestamp=1234, headers=[("h", b"x")])


def read(address: str) -> list[tuple[Any, ...]]:
    with sync.Consumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([("t", number) for number in range(4)])
        found: list[tuple[Any, ...]] = []
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [
                (record.partition, record.key, record.value, record.timestamp, tuple(record.headers))
                for record in consumer.poll(1.0)
            ]
    return found


@pytest.fixture
def address() -> Any:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", partitions=4)
        yield found


class Seen(ProducerInterceptor):
    def __init__(self) -> None:
        self.records: list[ProducerRecord] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.records.append(record)
        return record


@pytest.mark.parametrize("settings", [{}, {"value_serializer": bytes}, {"interceptor_classes": [Seen]}])
async def test_a_record_is_sent_with_all_that_it_has(address: str, settings: dict[str, Any]) -> None:
    told: list[RecordMetadata | None] = []
    async with Producer(bootstrap_servers=address, **settings) as producer:
        await producer.send("t", b"first", partition=2)  # the second one finds an open batch
        for _ in range(2):
            metadata = await (await producer.send(WHOLE, on_delivery=lambda found, _error: told.append(found)))
            assert metadata.partition == 2
    assert len(told) == 2
    assert read(address)[1:] == [(2, b"k", b"v", 1234, (("h", b"x"),))] * 2


@pytest.mark.parametrize("settings", [{}, {"value_serializer": bytes}, {"interceptor_classes": [Seen]}])
def test_of_the_blocking_producer_too(address: str, settings: dict[str, Any]) -> None:
    with sync.Producer(bootstrap_servers=address, **settings) as producer:
        producer.send("t", b"first", partition=2)
        for _ in range(2):
            assert producer.send(WHOLE).result().partition == 2
    assert read(address)[1:] == [(2, b"k", b"v", 1234, (("h", b"x"),))] * 2


async def test_interceptors_see_it(address: str) -> None:
    seen = Seen()
    async with Producer(bootstrap_servers=address, interceptor_classes=[seen]) as producer:
        await producer.send(WHOLE)
    assert seen.records == [WHOLE]


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"value": b"x"}, "value belong"),
        ({"key": b"x", "partition": 1}, "key and partition belong"),
        ({"timestamp": 1}, "timestamp belong"),
        ({"headers": [("a", b"")]}, "headers belong"),
        ({"value": np.zeros(3)}, "value belong"),
    ],
)
async def test_nothing_stands_beside_it(address: str, others: dict[str, Any], named: str) -> None:
    async with Producer(bootstrap_servers=address) as producer:
        with pytest.raises(TypeError, match=f"a ProducerRecord alone: {named}"):
            await producer.send(WHOLE, **others)
    with sync.Producer(bootstrap_servers=address) as producer_too, pytest.raises(TypeError, match="alone"):
        producer_too.send(WHOLE, **others)
    assert read(address) == []


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (ProducerRecord("t", b"v", partition=-1), ValueError),
        (ProducerRecord(5, b"v"), TypeError),  # type: ignore[arg-type]
        (ProducerRecord("t", b"v", headers="text"), TypeError),  # type: ignore[arg-type]
        (ProducerRecord("t", b"v", partition=9), UnknownTopicOrPartitionError),
    ],
)
async def test_what_is_wrong_in_it_is_refused(address: str, record: ProducerRecord, error: type[Exception]) -> None:
    async with Producer(bootstrap_servers=address, max_block_ms=300) as producer:
        with pytest.raises(error):
            await producer.send(record)
        await (await producer.send(WHOLE))


async def test_headers_of_an_iterator_are_sent_each_time(address: str) -> None:
    """An iterator can be read once only; the record may be sent again, or read by an interceptor before."""
    record = ProducerRecord("t", b"v", headers=iter([("a", b"1")]))  # type: ignore[arg-type]
    async with Producer(bootstrap_servers=address) as producer:
        for _ in range(2):
            await (await producer.send(record))
    async with Producer(bootstrap_servers=address, interceptor_classes=[Reading()]) as producer:
        await (await producer.send("t", b"v", headers=iter([("a", b"1")])))  # type: ignore[arg-type]
    assert [headers for *_, headers in read(address)] == [(("a", b"1"),)] * 3


class Reading(ProducerInterceptor):
    """Looks at the headers."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        assert list(record.headers) == [("a", b"1")]
        return record
