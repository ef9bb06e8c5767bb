"""Produce 0 to 2 and Fetch 0 to 3: message formats v0 and v1 are converted at the edge, and never stored."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator
from typing import Literal

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.protocol.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kclient.protocol.messages.produce import InitProducerIdRequest
from kclient.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, EndTxnRequest
from kclient.records import BatchBuilder, CompressionType, MessageSetBuilder, decode_records, iter_headers
from kclient.records.compression import compress
from kclient.records.message_header import encode_message
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, produce_request, running
from tests.message_sets import read_message_set, write_message_set

pytestmark = pytest.mark.anyio

CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
NOW = int(time.time() * 1000)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with running() as (_, wire):
        await wire.create("t", 2)
        yield wire


def message_set(
    magic: Literal[0, 1], *values: bytes, codec: CompressionType = CompressionType.NONE, base: int = 0
) -> bytes:
    builder = MessageSetBuilder(magic=magic, limit=1 << 24, compression=codec)
    for value in values:
        builder.append(NOW if magic else -1, b"key", value)
    return bytes(builder.build(base))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_message_sets_become_one_batch(wire: Wire, version: int, codec: CompressionType) -> None:
    magic: Literal[0, 1] = 1 if version == 2 else 0
    for base in (0, 2):
        answer = await wire.produce("t", message_set(magic, b"a", b"b" * 1000, codec=codec), version=version)
        assert (answer.error_code, answer.base_offset) == (0, base)
    data = (await wire.fetch("t", 0)).records or b""
    headers = [header for _, header in iter_headers(data)]
    assert [(each.base_offset, each.count, each.magic, each.compression) for each in headers] == [
        (0, 2, 2, codec),
        (2, 2, 2, codec),
    ]
    records = decode_records(data, "t", 0)
    assert [(each.key, each.value) for each in records] == [(b"key", b"a"), (b"key", b"b" * 1000)] * 2
    assert {each.timestamp for each in records} == {NOW if magic else -1}


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("outer", [0, 1, 2, 77])
async def test_producers_number_messages_as_they_like(wire: Wire, codec: CompressionType, outer: int) -> None:
    """0, 0, 0, or from 0 on; the outer message has the first one's offset, or the last one's, or any."""
    for inner in ([0, 0, 0], [0, 1, 2], [5, 6, 7]):
        inside = b"".join(encode_message(1, offset, NOW, 0, None, b"x%d" % offset) for offset in inner)
        sent = encode_message(1, outer, NOW, codec, None, compress(codec, inside))
        assert (await wire.produce("t", sent, version=2)).error_code == 0
    assert await wire.values("t") == [b"x0"] * 3 + [b"x0", b"x1", b"x2", b"x5", b"x6", b"x7"]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
async def test_the_offsets_that_producers_write_mean_nothing(wire: Wire, magic: Literal[0, 1], offset: int) -> None:
    """Some write -1 into all of them, which Kafka 3.9.1 takes too."""
    plain = encode_message(magic, offset, NOW if magic else -1, 0, None, b"x")
    sent = [plain]
    for codec in CODECS[1:]:
        sent.append(encode_message(magic, offset, NOW if magic else -1, codec, None, compress(codec, plain)))
    for base, each in enumerate(sent):
        answer = await wire.produce("t", each, version=2)
        assert (answer.error_code, answer.base_offset) == (0, base)
    assert await wire.values("t") == [b"x"] * len(sent)


async def test_what_is_not_whole_is_left_out_and_nothing_is_no_error(wire: Wire) -> None:
    whole = message_set(1, b"a", b"b")
    assert (await wire.produce("t", whole[:-3], version=2)).base_offset == 0
    for nothing in (b"", b"\0" * 11, whole[:20]):
        answer = await wire.produce("t", nothing, version=2)
        assert (answer.error_code, answer.base_offset) == (0, -1)
    assert await wire.values("t") == [b"a"]


async def test_damaged_messages_are_refused(wire: Wire) -> None:
    for damaged in (
        message_set(0, b"a", b"b")[:-1] + b"X",
        message_set(1, b"a" * 100, codec=CompressionType.GZIP)[:-9] + b"X" * 9,
        encode_message(1, 0, NOW, CompressionType.GZIP, None, b"no gzip"),
        encode_message(1, 0, NOW, CompressionType.GZIP, None, gzip.compress(b"")),
        encode_message(1, 0, NOW, CompressionType.GZIP, None, gzip.compress(message_set(1, b"a")[:-1])),
        encode_message(1, 0, NOW, CompressionType.ZSTD, None, b"x"),
        message_set(1, b"a") + bytes(batch_of(b"b")),
    ):
        assert (await wire.produce("t", damaged, version=2)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await wire.fetch("t", 0)).high_watermark == 0


async def test_what_is_too_much_is_refused() -> None:
    async with running(config={"message.max.decompressed.bytes": "1000000"}) as (_, wire):
        await wire.create("t")
        bomb = message_set(1, b"\0" * 1_100_000, codec=CompressionType.GZIP)
        assert (await wire.produce("t", bomb, version=2)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        large = message_set(1, *[b"x" * 10_000] * 150)
        assert (await wire.produce("t", large, version=2)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await wire.produce("t", message_set(1, b"fits"), version=2)).base_offset == 0


async def test_settings_of_the_topic_hold(wire: Wire) -> None:
    await wire.create("compacts", cleanup_policy="compact")
    keyless = write_message_set(1, [(b"k", b"a"), (None, b"b")], NOW)
    assert (await wire.produce("compacts", keyless, version=2)).error_code == ErrorCode.INVALID_RECORD
    await wire.create("stamps", message_timestamp_type="LogAppendTime")
    answer = await wire.produce("stamps", message_set(0, b"a"), version=2)
    assert answer.log_append_time_ms >= NOW
    await wire.create("gzips", compression_type="gzip")
    assert (await wire.produce("gzips", message_set(0, b"a" * 1000), version=1)).base_offset == 0
    ((_, header),) = iter_headers((await wire.fetch("gzips", 0)).records or b"")
    assert header.compression is CompressionType.GZIP
    late = message_set(1, b"a")
    await wire.create("strict", message_timestamp_before_max_ms="1")
    old = encode_message(1, 0, NOW - 10_000_000, 0, None, b"x")
    assert (await wire.produce("strict", old, version=2)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert (await wire.produce("t", late, version=2)).error_code == 0


async def test_several_partitions_and_acks(wire: Wire) -> None:
    request = produce_request("t", message_set(1, b"a"), acks=1)
    request.topic_data[0].partition_data.append(
        produce_request("t", message_set(0, b"b"), 1).topic_data[0].partition_data[0]
    )
    answer = await wire(request, 2)
    assert [(row.error_code, row.base_offset) for row in answer.responses[0].partition_responses] == [(0, 0)] * 2
    await wire.send(produce_request("t", message_set(1, b"c"), acks=0), 2)
    assert (await wire.produce("t", message_set(1, b"d"), version=2)).base_offset == 2
    assert await wire.values("t") == [b"a", b"c", b"d"]
    assert await wire.values("t", partition=1) == [b"b"]
    missing = await wire.produce("no", message_set(1, b"a"), version=0)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("codec", CODECS)
async def test_old_consumers_read_in_their_format(wire: Wire, version: int, codec: CompressionType) -> None:
    builder = BatchBuilder(limit=1 << 20, compression=codec)
    for number in range(3):
        builder.append(NOW + number, b"k", b"v%d" % number, [("header", b"lost")])
    assert (await wire.produce("t", builder.build())).error_code == 0
    assert (await wire.produce("t", batch_of(b"last", timestamp=NOW))).error_code == 0
    data = bytes((await wire.fetch("t", 1, version=version)).records or b"")
    assert data[16] == (0 if version < 2 else 1)
    records = decode_records(data, "t", 0, start_offset=1)
    assert [(each.offset, each.value) for each in records] == [(1, b"v1"), (2, b"v2"), (3, b"last")]
    assert [each.timestamp for each in records] == ([-1] * 3 if version < 2 else [NOW + 1, NOW + 2, NOW])
    if codec is CompressionType.NONE:
        assert [each.offset for each in read_message_set(data)] == [1, 2, 3], "old clients do not skip those before"


async def test_zstd_is_told_where_it_comes_first(wire: Wire) -> None:
    assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
    assert (await wire.produce("t", batch_of(b"b", compression=CompressionType.ZSTD))).error_code == 0
    data = (await wire.fetch("t", 0, version=3)).records or b""
    assert [each.value for each in decode_records(data, "t", 0)] == [b"a"]
    assert (await wire.fetch("t", 1, version=3)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await wire.fetch("t", 1, version=10)).error_code == 0


async def test_fetches_go_on_behind_control_batches(wire: Wire) -> None:
    """A client of old asks for the offset behind the last record: what it does not know must not stop it there."""
    begun = await wire(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 4)
    batch = batch_of(b"a", producer_id=begun.producer_id, producer_epoch=0, sequence=0, transactional=True)
    answer = await wire(produce_request("t", batch, transactional_id="tx"), 12)
    assert not answer.responses[0].partition_responses[0].error_code
    end = EndTxnRequest(transactional_id="tx", producer_id=begun.producer_id, producer_epoch=0, committed=True)
    assert not (await wire(end, 5)).error_code
    assert (await wire.fetch("t", 1, max_wait_ms=30_000)).high_watermark == 2, "the marker is there"
    data = (await wire.fetch("t", 0, version=3)).records or b""
    assert [each.value for each in decode_records(data, "t", 0)] == [b"a"]
    empty = await wire.fetch("t", 1, version=3, max_wait_ms=50)
    assert (empty.error_code, empty.records, empty.high_watermark) == (0, b"", 2)
    assert (await wire.produce("t", batch_of(b"b"))).base_offset == 2
    data = (await wire.fetch("t", 1, version=3, partition_max_bytes=1)).records or b""
    assert [(each.offset, each.value) for each in decode_records(data, "t", 0)] == [(2, b"b")]


@pytest.mark.slow
async def test_control_batches_do_not_make_a_fetch_wait_for_longer() -> None:
    """Of transactions without records there are markers alone, which such a client is never told of."""
    async with running() as (gateway, first), anyio.create_task_group() as tasks:
        await first.create("t")
        begun = await first(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 2)
        who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
        second, answered = connect(gateway), anyio.Event()

        async def fetch() -> None:
            row = await second.fetch("t", 0, version=3, max_wait_ms=1500)
            assert (row.error_code, row.records) == (0, b"")
            answered.set()

        tasks.start_soon(fetch)
        with anyio.fail_after(10):
            while not answered.is_set():
                add = AddPartitionsToTxnRequest(v3_and_below_transactional_id="tx", v3_and_below_topics=topics)
                add.v3_and_below_producer_id = begun.producer_id
                add.v3_and_below_producer_epoch = begun.producer_epoch
                await first(add, 3)
                await first(EndTxnRequest(transactional_id="tx", committed=True, **who), 3)
        assert (await first.fetch("t", 0)).high_watermark > 1
        await second.aclose()


@pytest.mark.parametrize("total", [16, 32, 64])
async def test_little_memory_makes_answers_smaller(total: int) -> None:
    """What is read leaves room to make it older in: small batches are never too large, however many were asked for."""
    batch = batch_of(*[b"x" * 1000] * 50)
    async with running(config={"connections.max.memory.bytes": str(total << 20)}) as (_, wire):
        await wire.create("t", 3)
        for number in range(3 * 90):
            assert (await wire.produce("t", batch, number // 90)).error_code == 0
        request = fetch_request("t", 0, partition_max_bytes=4 << 20)
        for number in (1, 2):
            request.topics[0].partitions += (
                fetch_request("t", 0, number, partition_max_bytes=4 << 20).topics[0].partitions
            )
        for most in (3, 1):
            del request.topics[0].partitions[most:]
            rows = (await wire(request, 2)).responses[0].partitions
            assert {row.error_code for row in rows} == {0}
            assert len(rows[0].records) > 100_000


async def test_a_fetch_that_waits_is_answered_when_there_is_something() -> None:
    request = fetch_request("t", 0, max_wait_ms=30_000)
    async with running() as (gateway, first):
        await first.create("t")
        await first.send(request, 0)
        second = connect(gateway)
        assert not (await second.produce("t", message_set(0, b"a"), version=0)).error_code
        answer = await first.read(request, 0)
        await second.aclose()
    assert [each.value for each in read_message_set(bytes(answer.responses[0].partitions[0].records))] == [b"a"]


async def test_offsets_of_old(wire: Wire) -> None:
    for stamp in (NOW, NOW + 1000, NOW + 2000):
        await wire.produce("t", batch_of(b"x", timestamp=stamp))

    async def ask(timestamp: int, most: int) -> list[int]:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=most)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
        row = (await wire(request, 0)).topics[0].partitions[0]
        assert row.error_code == (ErrorCode.UNSUPPORTED_VERSION if timestamp < -2 else 0)
        return list(row.old_style_offsets)

    assert await ask(-1, 1) == [3]
    assert await ask(-1, 5) == [3, 0]
    assert await ask(-2, 5) == [0]
    assert await ask(NOW + 1000, 2) == [1, 0]
    assert await ask(NOW + 5000, 1) == [3]
    assert await ask(NOW, 5) == [], "nothing is before that time"
    assert await ask(-3, 5) == await ask(-9, 5) == []
    assert await ask(-1, 0) == []
    assert await ask(-1, -1) == []
