"""The producer against real Kafka and against the gateway: what is acknowledged is there, once and in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import pyarrow as pa
import pytest

import kclient
import kclient.sync
from kclient import ConfigResource, ConfigResourceType
from kclient.errors import InvalidTopicError, KafkaTimeoutError, NotLeaderOrFollowerError, RecordTooLargeError
from kclient.records import partition_for_key
from kclient.types import TimestampType, TopicPartition
from tests.stored import stored_records

pytestmark = pytest.mark.anyio

NOW = int(time.time() * 1000)  # retention deletes what is older than a week


async def contents(bootstrap: str, topic: str, partitions: Sequence[int]) -> dict[int, list[Any]]:
    return {number: await stored_records(bootstrap, TopicPartition(topic, number)) for number in partitions}


async def test_records_come_back_as_they_were_sent(broker: str, topic: str) -> None:
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        metadata = await (
            await producer.send(topic, b"value", b"key", headers=[("h", b"1"), ("h", None)], timestamp=NOW)
        )
        await (await producer.send(topic, None, b"key"))
        count = len(await producer.partitions_for(topic))
    assert metadata.partition == partition_for_key(b"key", count)
    first, second = (await contents(broker, topic, [metadata.partition]))[metadata.partition]
    assert (first.key, first.value, first.timestamp, first.offset) == (b"key", b"value", NOW, 0)
    assert list(first.headers) == [("h", b"1"), ("h", None)]
    assert second.value is None


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_many_records_in_order(broker: str, topic: str, compression: str) -> None:
    values = [b"%06d" % n + b"." * (n % 90) for n in range(5000)]
    async with kclient.Producer(bootstrap_servers=broker, compression_type=compression, linger_ms=2) as producer:
        deliveries = await producer.send_batch(topic, values, partition=0)
        assert [m.offset for m in await deliveries] == list(range(5000))
    records = await stored_records(broker, TopicPartition(topic, 0))
    assert [record.value for record in records] == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_acks(broker: str, topic: str, acks: str) -> None:
    async with kclient.Producer(bootstrap_servers=broker, acks=acks) as producer:
        for number in range(100):
            await producer.send(topic, b"%d" % number, partition=0)
        await producer.flush()
    records: list[Any] = []
    with anyio.fail_after(30):  # with acks=0 the end of the flush is not the end of the append
        while len(records) < 100:
            with suppress(NotLeaderOrFollowerError):  # it has just been created
                records = await stored_records(broker, TopicPartition(topic, 0))
            await anyio.sleep(0.01)
    assert [record.value for record in records] == [b"%d" % number for number in range(100)]


async def test_too_large_for_the_topic(broker: str, topic: str) -> None:
    from kclient.admin import Admin, NewTopic

    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1, configs={"max.message.bytes": "2000"})])
    async with kclient.Producer(bootstrap_servers=broker, linger_ms=20) as producer:
        values = [b"%03d" % n * 30 for n in range(100)]
        metadata = await (await producer.send_batch(topic, values))
        assert [m.offset for m in metadata] == list(range(100)), "split into batches that fit"
        with pytest.raises(RecordTooLargeError):
            await (await producer.send(topic, b"x" * 3000))
        assert (await (await producer.send(topic, b"after"))).offset == 100
    records = await stored_records(broker, TopicPartition(topic, 0))
    assert [record.value for record in records] == [*values, b"after"]


async def test_columns_come_back_as_they_were_sent(broker: str, topic: str) -> None:
    count = 20_000
    keys = [None if n % 5 == 0 else b"key-%d" % (n % 97) for n in range(count)]
    stamps = [NOW + n // 3 for n in range(count)]
    headers = [[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else None for n in range(count)]
    table = pa.table(
        {
            "key": pa.array(keys, pa.large_binary()),
            "value": pa.array([b"%d" % n + b"." * (n % 200) for n in range(count)], pa.binary_view()),
            "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
            "headers": headers,
        }
    )
    async with kclient.Producer(bootstrap_servers=broker, compression_type="lz4") as producer:
        metadata = await (await producer.send_arrow(topic, table))
        partitions = len(await producer.partitions_for(topic))
    found = await contents(broker, topic, range(partitions))
    for n in range(count):
        record = found[metadata[n].partition][metadata[n].offset]
        assert record.value.split(b".")[0] == b"%d" % n
        assert (record.key, record.timestamp) == (keys[n], stamps[n])
        assert list(record.headers) == ([("n", b"%d" % n)] if n % 3 == 0 else [])
        assert keys[n] is None or record.partition == partition_for_key(keys[n], partitions)
    assert sum(map(len, found.values())) == count
    for records in found.values():
        numbers = [int(record.value.split(b".")[0]) for record in records]
        assert numbers == sorted(numbers)


async def test_columns_too_large_for_the_topic(broker: str, topic: str) -> None:
    """Batches that the broker refuses are split, and each delivery finds its record in the pieces."""
    from kclient.admin import Admin, NewTopic

    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(topic, 2, 1, configs={"max.message.bytes": "9000"})])
    values = [b"%05d" % n * 20 for n in range(3000)]
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        table = pa.table({"value": values, "partition": [n % 2 for n in range(3000)]})
        metadata = await (await producer.send_arrow(topic, table))
    assert [(m.partition, m.offset) for m in metadata] == [(n % 2, n // 2) for n in range(3000)]
    found = await contents(broker, topic, [0, 1])
    assert [[record.value for record in found[number]] for number in (0, 1)] == [values[::2], values[1::2]]


async def test_a_topic_name_that_cannot_be(broker: str) -> None:
    async with kclient.Producer(bootstrap_servers=broker, max_block_ms=10_000) as producer:
        with pytest.raises(InvalidTopicError):
            await producer.send("no good/name", b"x")


async def test_nobody_listens() -> None:
    async with kclient.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
            await producer.send("t", b"x")


async def test_blocking(broker: str, topic: str) -> None:
    values = [b"%06d" % n for n in range(3000)]
    told: list[int] = []

    def use() -> None:
        with kclient.sync.Producer(bootstrap_servers=broker) as producer:
            assert producer.send(topic, values[0], partition=0).result(timeout=30).offset == 0
            for value in values[1:]:
                producer.send(topic, value, partition=0, on_delivery=lambda m, e: told.append(m.offset))
            producer.flush()

    await anyio.to_thread.run_sync(use)
    assert told == list(range(1, 3000))
    records = await stored_records(broker, TopicPartition(topic, 0))
    assert [record.value for record in records] == values


async def test_a_delivery_says_who_stamped_the_record(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1, configs={"message.timestamp.type": "LogAppendTime"})
        async with kclient.Producer(bootstrap_servers=broker) as producer:
            first = await (await producer.send(topic, b"a", timestamp=NOW))
            assert (first.offset, first.timestamp_type, first.log_start_offset) == (0, TimestampType.LOG_APPEND_TIME, 0)
            assert first.timestamp > NOW
            await admin.delete_records({(topic, 0): 1})
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            await admin.alter_configs({resource: {"message.timestamp.type": "CreateTime"}})
            with anyio.fail_after(60):
                while True:
                    metadata = await (await producer.send(topic, b"b", timestamp=NOW))
                    if metadata.timestamp_type is TimestampType.CREATE_TIME:
                        break
            assert (metadata.timestamp, metadata.log_start_offset) == (NOW, 1)
        async with kclient.Producer(bootstrap_servers=broker, acks=0, enable_idempotence=False) as producer:
            metadata = await (await producer.send(topic, b"c", timestamp=NOW))
            assert (metadata.offset, metadata.timestamp, metadata.log_start_offset) == (-1, NOW, -1)
            assert metadata.timestamp_type is TimestampType.CREATE_TIME
