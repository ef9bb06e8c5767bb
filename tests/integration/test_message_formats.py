"""Every message format and codec through real brokers: others read what we write, and we read what they write.

Three brokers: Kafka 3.9.1 with ZooKeeper, whose topics keep the formats v0 and v1 as they were sent; Kafka 3.9.1, which
takes them and converts; and Kafka 4.3.1, which knows record batches v2 alone.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import anyio
import pytest

import kclient
from kclient.protocol import ApiKey
from kclient.protocol.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kclient.records import BatchBuilder, CompressionType, MessageSetBuilder, decode_records, iter_headers
from kclient.types import TimestampType, TopicPartition
from tests.conformance.test_records_java import text
from tests.conftest import require_java
from tests.old_kafka import FORMATS, OldKafka
from tests.wire_session import WireSession, wire_session

confluent = pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.kafka

CLIENT = Path(__file__).parent.parent / "java" / "RecordsClient.java"
NOW = 1_700_000_000_000  # of `RecordsClient.java` too
COUNT = 20
PATIENCE_S = 30.0
CODECS = [codec.name.lower() for codec in CompressionType]
PROBED = 4
"""The partition of a topic with old formats that shows when a change of the setting has come through."""
PRODUCE_VERSIONS = {0: 1, 1: 2, 2: 7}
"""A version of Produce that carries a format."""


class Stored(NamedTuple):
    """A record as readers should tell it."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(label: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (
            NOW + number,
            None if number % 5 == 0 else b"key %d" % number,
            None if number % 5 == 4 else b"%s %d" % (label.encode(), number) + b" " * number,
        )
        for number in range(COUNT)
    ]


def built(magic: int, codec: CompressionType, label: str) -> bytes:
    """Twenty records in a format and codec."""
    builder: Any = (
        BatchBuilder(limit=1 << 20, compression=codec)
        if magic == 2
        else MessageSetBuilder(magic=magic, limit=1 << 20, compression=codec)  # type: ignore[arg-type]
    )
    for stamp, key, value in records_of(label):
        builder.append(stamp, key, value, [("h", b"x"), ("none", None)] if magic == 2 else ())
    return bytes(builder.build())


def expected(magic: int, label: str, partition: int, base: int) -> list[Stored]:
    kind = TimestampType.CREATE_TIME if magic else TimestampType.NO_TIMESTAMP
    return [
        Stored(
            partition, base + number, stamp if magic else -1, kind, key, value,
            (("h", b"x"), ("none", None)) if magic == 2 else (),
        )
        for number, (stamp, key, value) in enumerate(records_of(label))
    ]  # fmt: skip


def formats_and_codecs() -> list[tuple[int, CompressionType]]:
    return [(magic, codec) for magic in (0, 1, 2) for codec in CompressionType if magic == 2 or codec < 4]


async def produce(session: WireSession, topic: str, partition: int, records: bytes, version: int) -> int:
    data = PartitionProduceData(index=partition, records=records)
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    (answer,) = (await session(request, version)).responses[0].partition_responses
    assert answer.error_code == 0, answer
    return int(answer.base_offset)


async def fetch(session: WireSession, topic: str, partition: int, version: int, offset: int = 0) -> bytes:
    wanted = FetchRequestPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20,
        topics=[FetchRequestTopic(topic=topic, partitions=[wanted])],
    )  # fmt: skip
    (answer,) = (await session(request, version)).responses[0].partitions
    assert answer.error_code == 0, answer
    return bytes(answer.records or b"")


async def fetch_all(bootstrap: str, topic: str, count: int, partition: int = 0) -> bytes:
    """What is in a partition, as it is stored, once so many records are there."""
    async with wire_session(bootstrap) as session:
        with anyio.fail_after(PATIENCE_S):
            while True:
                data = await fetch(session, topic, partition, 10)
                if len(decode_records(data, topic, partition)) >= count:
                    return data


def told(data: bytes, partition: int = 0) -> list[Stored]:
    return [
        Stored(partition, r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
        for r in decode_records(data, "t", partition)
    ]


# ------------------------------------------------------------------ the topics that we wrote


class Topic(NamedTuple):
    bootstrap: str
    name: str
    records: list[Stored]
    data: dict[int, bytes]
    """What was sent to each partition."""


@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldKafka]:
    """Kafka 3.9.1 with ZooKeeper."""
    require_java()
    server = OldKafka(tmp_path_factory.mktemp("old"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def _upgraded(bootstrap: str) -> Topic:
    name = f"upgraded-{uuid.uuid4().hex[:8]}"
    records: list[Stored] = []
    sent = dict.fromkeys(range(PROBED), b"")
    ends = dict.fromkeys(range(PROBED), 0)
    async with wire_session(bootstrap) as session:
        await session.create(name, PROBED + 1, message_format_version=FORMATS[0])
        for magic, form in enumerate(FORMATS):
            await _raise_format(session, name, form, magic)
            for codec in [codec for found, codec in formats_and_codecs() if found == magic]:
                label = f"{magic} {codec.name.lower()}"
                data = built(magic, codec, label)
                for partition in partitions_for(magic, codec):
                    assert await produce(session, name, partition, data, PRODUCE_VERSIONS[magic]) == ends[partition]
                    records += expected(magic, label, partition, ends[partition])
                    ends[partition] += COUNT
                    sent[partition] += data
    return Topic(bootstrap, name, records, sent)


def partitions_for(magic: int, codec: CompressionType) -> list[int]:
    """Partition 0 takes everything; aiokafka reads no v0 with lz4, and no two formats in one answer."""
    return [0] if (magic, codec) == (0, CompressionType.LZ4) else [0, 1 + magic]


async def _raise_format(session: WireSession, topic: str, form: str, magic: int) -> None:
    """Set what the topic's messages are stored as, and wait until the broker does so."""
    config = IncrementalAlterConfigsRequestConfig(name="message.format.version", config_operation=0, value=form)
    resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=topic, configs=[config])
    answer = await session(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == 0, answer
    with anyio.fail_after(PATIENCE_S):
        while True:
            probe = BatchBuilder(limit=1000)
            probe.append(NOW, None, b"probe")
            at = await produce(session, topic, PROBED, bytes(probe.build()), 7)
            stored = await fetch(session, topic, PROBED, 10, at)
            if [header.magic for _, header in iter_headers(stored)][-1] == magic:
                return
            await anyio.sleep(0.01)


@pytest.fixture(scope="module")
def upgraded(old_kafka: OldKafka) -> Topic:
    """A topic whose format was raised twice: sets of v0, v1 and batches v2 in one log, in every codec."""
    return anyio.run(_upgraded, old_kafka.bootstrap)


async def _present(bootstrap: str) -> Topic:
    name = f"present-{uuid.uuid4().hex[:8]}"
    records: list[Stored] = []
    sent = b""
    async with wire_session(bootstrap) as session:
        await session.create(name)
        for codec in CompressionType:
            data = built(2, codec, codec.name.lower())
            base = await produce(session, name, 0, data, 9)
            records += expected(2, codec.name.lower(), 0, base)
            sent += data
    return Topic(bootstrap, name, records, {0: sent})


@pytest.fixture(scope="module", params=["upgraded", "kafka3", "kafka"])
def topic_of_ours(request: pytest.FixtureRequest) -> Topic:
    """What we wrote to each broker: every format where it keeps them, record batches v2 where it does not."""
    if request.param == "upgraded":
        return request.getfixturevalue("upgraded")  # type: ignore[no-any-return]
    return anyio.run(_present, request.getfixturevalue(request.param).bootstrap)


# ------------------------------------------------------------------ others read what we write


def test_the_old_broker_keeps_what_it_was_sent(upgraded: Topic) -> None:
    for partition, sent in upgraded.data.items():
        count = sum(record.partition == partition for record in upgraded.records)
        stored = anyio.run(fetch_all, upgraded.bootstrap, upgraded.name, count, partition)
        assert {header.magic for _, header in iter_headers(stored)} == [{0, 1, 2}, {0}, {1}, {2}][partition]
        assert told(stored, partition) == [record for record in upgraded.records if record.partition == partition]
        theirs, ours = list(iter_headers(stored)), list(iter_headers(sent))
        # The broker assigned offsets, within compressed sets too; the rest is as it was sent.
        assert [(h.magic, h.compression, h.count) for _, h in theirs] == [
            (h.magic, h.compression, h.count) for _, h in ours
        ]
        for (at, header), (sent_at, _) in zip(theirs, ours, strict=True):
            if header.count >= 0 and header.magic < 2:
                assert stored[at + 8 : at + header.length] == sent[sent_at + 8 : sent_at + header.length]


@pytest.mark.anyio
async def test_our_consumer_reads_every_format(upgraded: Topic) -> None:
    partitions = [TopicPartition(upgraded.name, number) for number in range(PROBED)]
    async with kclient.Consumer(bootstrap_servers=upgraded.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        found: list[Stored] = []
        with anyio.fail_after(PATIENCE_S):
            while len(found) < len(upgraded.records):
                found += [
                    Stored(r.partition, r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
                    for r in await consumer.poll(timeout=1.0)
                ]
        assert sorted(found, key=place) == sorted(upgraded.records, key=place)
        for start in (7, 45, 130, 201):  # from the middle of sets and batches, compressed or not
            consumer.seek(partitions[0], start)
            with anyio.fail_after(PATIENCE_S):
                while not (records := list(await consumer.poll(timeout=1.0))):
                    pass
            assert records[0].offset == start
            await consumer.poll(timeout=0)


@pytest.mark.anyio
async def test_our_consumer_reads_every_format_to_arrow(upgraded: Topic) -> None:
    pytest.importorskip("pyarrow")
    partitions = [TopicPartition(upgraded.name, number) for number in range(PROBED)]
    rows: list[dict[str, Any]] = []
    async with kclient.Consumer(bootstrap_servers=upgraded.bootstrap) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        with anyio.fail_after(PATIENCE_S):
            while len(rows) < len(upgraded.records):
                batch = await consumer.poll_arrow(timeout=1.0)
                at = batch.schema.get_field_index("timestamp")
                rows += batch.set_column(at, "timestamp", batch.column(at).cast("int64")).to_pylist()
    found = [
        Stored(r["partition"], r["offset"], r["timestamp"] // 1000, r["timestampType"], r["key"], r["value"])
        for r in rows
    ]
    assert sorted(found, key=place) == sorted([r._replace(headers=()) for r in upgraded.records], key=place)


def place(record: Stored) -> tuple[int, int]:
    return record.partition, record.offset


def test_librdkafka_reads_what_we_write(topic_of_ours: Topic) -> None:
    client = confluent.Consumer(
        {
            "bootstrap.servers": topic_of_ours.bootstrap,
            "group.id": "formats",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    try:
        client.assign([confluent.TopicPartition(topic_of_ours.name, n, 0) for n in topic_of_ours.data])
        found: list[Stored] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(topic_of_ours.records) and time.monotonic() < deadline:
            for message in client.consume(1000, 0.5):
                assert message.error() is None, message.error()
                kind, stamp = message.timestamp()  # 0 where there is none; then create time, log-append time
                found.append(
                    Stored(
                        message.partition(), message.offset(), stamp if kind else -1, kind - 1,
                        message.key(), message.value(), tuple(message.headers() or ()),
                    )
                )  # fmt: skip
    finally:
        client.close()
    assert sorted(found, key=place) == sorted(topic_of_ours.records, key=place)


def test_aiokafka_reads_what_we_write(topic_of_ours: Topic) -> None:
    numbers = sorted(topic_of_ours.data)[-3:]
    wanted = [record for record in topic_of_ours.records if record.partition in numbers]

    async def read() -> list[Any]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=topic_of_ours.bootstrap, check_crcs=True)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic_of_ours.name, number) for number in numbers]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            return [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in wanted]
        finally:
            await consumer.stop()

    found = [
        Stored(
            r.partition, r.offset, -1 if r.timestamp is None else r.timestamp,
            -1 if r.timestamp is None else r.timestamp_type, r.key, r.value, tuple(r.headers),
        )
        for r in asyncio.run(read())
    ]  # fmt: skip
    assert sorted(found, key=place) == sorted(wanted, key=place)


# ------------------------------------------------------------------ we read what others write


async def _create(bootstrap: str, formats: tuple[str, ...]) -> list[str]:
    async with wire_session(bootstrap) as session:
        names = [f"written-{uuid.uuid4().hex[:8]}" for _ in formats]
        for name, form in zip(names, formats, strict=True):
            await session.create(name, **({"message_format_version": form} if form else {}))
    return names


def topics_to_write(topic: Topic) -> tuple[list[str], tuple[int, ...]]:
    """Topics at the broker, one for each format that it stores, and these formats."""
    formats = (0, 1, 2) if topic.name.startswith("upgraded") else (2,)
    names = anyio.run(_create, topic.bootstrap, tuple(FORMATS[magic] if len(formats) > 1 else "" for magic in formats))
    return names, formats


def check_written(topic: Topic, name: str, magic: int, codecs: list[str]) -> None:
    """Twenty records with each codec are in the topic, stored in the format."""
    stored = anyio.run(fetch_all, topic.bootstrap, name, len(codecs) * COUNT)
    headers = [header for _, header in iter_headers(stored)]
    assert {header.magic for header in headers} == {magic}
    assert {header.compression.name.lower() for header in headers} == set(codecs)
    found = told(stored)
    assert found == [
        record._replace(headers=())
        for number, codec in enumerate(codecs)
        for record in expected(magic, codec, 0, number * COUNT)
    ]


def test_the_java_client_reads_what_we_write_and_we_read_what_it_writes(
    topic_of_ours: Topic, kafka_jars_4: Path
) -> None:
    names, formats = topics_to_write(topic_of_ours)
    codecs = CODECS if formats == (2,) else CODECS[:4]  # the old formats do not know zstd
    command = [
        "java", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars_4}/*", str(CLIENT), topic_of_ours.bootstrap,
        topic_of_ours.name, str(len(topic_of_ours.data)), str(len(topic_of_ours.records)), str(COUNT),
        ",".join(codecs), *names,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = [
        " ".join(
            [str(r.partition), str(r.offset), str(r.timestamp), str(int(r.timestamp_type)), text(r.key), text(r.value)]
            + [part for name, value in r.headers for part in (text(name.encode()), text(value))]
        )
        for r in topic_of_ours.records
    ]
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    for name, magic in zip(names, formats, strict=True):
        check_written(topic_of_ours, name, magic, codecs)


def test_we_read_what_librdkafka_writes(topic_of_ours: Topic) -> None:
    names, formats = topics_to_write(topic_of_ours)
    for name, magic in zip(names, formats, strict=True):
        codecs = CODECS if magic == 2 else CODECS[:4]
        for codec in codecs:
            producer = confluent.Producer(
                {
                    "bootstrap.servers": topic_of_ours.bootstrap,
                    "compression.type": codec,
                    "linger.ms": 1000,
                    "compression.level": -1,
                }
            )
            for stamp, key, value in records_of(codec):
                producer.produce(name, value, key, 0, timestamp=stamp)
            assert producer.flush(PATIENCE_S) == 0
        check_written(topic_of_ours, name, magic, codecs)


def test_we_read_what_aiokafka_writes(topic_of_ours: Topic) -> None:
    names, formats = topics_to_write(topic_of_ours)

    async def write(name: str, codec: str) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=topic_of_ours.bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(name, value, key, 0, timestamp_ms=stamp) for stamp, key, value in records_of(codec)
            ]
            await producer.flush()
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    for name, magic in zip(names, formats, strict=True):
        codecs = CODECS if magic == 2 else CODECS[:4]
        for codec in codecs:
            asyncio.run(write(name, codec))
        check_written(topic_of_ours, name, magic, codecs)


# ------------------------------------------------------------------ brokers that convert


@pytest.mark.anyio
async def test_kafka_3_converts_what_we_send_and_we_read_what_it_converts(kafka3: Any, topic: str) -> None:
    """Old requests carry old formats; the log is in v2; old fetches bring old formats again."""
    fetched_as = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 10: 2}
    wanted: dict[int, list[Stored]] = {0: [], 1: [], 2: []}
    async with wire_session(kafka3.bootstrap) as session:
        await session.create(topic)
        for magic, codec in formats_and_codecs():
            if codec is CompressionType.ZSTD:
                continue  # clients of old are refused a log with zstd
            for version in {0: (0, 1), 1: (2,), 2: (3, 5, 8, 9)}[magic]:
                assert version in session.versions(ApiKey.PRODUCE)
                label = f"{magic} {codec.name.lower()} {version}"
                base = await produce(session, topic, 0, built(magic, codec, label), version)
                for target, records in wanted.items():
                    records += [
                        r._replace(
                            timestamp=r.timestamp if target else -1,
                            timestamp_type=TimestampType.CREATE_TIME if target else TimestampType.NO_TIMESTAMP,
                            headers=r.headers if target == 2 else (),
                        )
                        for r in expected(magic, label, 0, base)
                    ]
        for version, magic in fetched_as.items():
            assert version in session.versions(ApiKey.FETCH)
            found: list[Stored] = []
            while len(found) < len(wanted[magic]):
                data = await fetch(session, topic, 0, version, len(found))
                assert {header.magic for _, header in iter_headers(data)} == {magic}
                found += [record for record in told(data) if record.offset >= len(found)]
            assert found == wanted[magic]
