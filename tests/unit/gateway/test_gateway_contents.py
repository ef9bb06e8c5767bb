"""What is in a batch: poison is refused whatever its codec, a compacted topic takes no records without keys."""

from __future__ import annotations

import time

import lz4.frame
import pytest
import zstandard

from kclient.errors import ErrorCode
from kclient.protocol.messages.produce import PartitionProduceResponse
from kclient.records import HEADER_SIZE, BatchBuilder, CompressionType, read_header
from kclient.records.batch_header import write_header
from kclient.records.compression import compress, decompress
from tests.gateway_wire import Wire, batch_of, produce_request, running
from tests.hostile_clients import wrapped

pytestmark = pytest.mark.anyio

CODECS = list(CompressionType)
BODY = bytes(batch_of(b"first", b"second" * 50, b"third", key=b"k")[HEADER_SIZE:])
POISON = {
    "one record fewer": (BODY, 4),
    "one record more": (BODY, 2),
    "bytes behind the last": (BODY + b"\x00\x00", 3),
    "the last cut off": (BODY[:-3], 3),
    "a length that lies": (bytes([BODY[0] + 2]) + BODY[1:], 3),
    "nothing inside": (b"", 3),
}


def packed(body: bytes, count: int, codec: CompressionType) -> bytes:
    return wrapped(codec, body if codec is CompressionType.NONE else compress(codec, body), count)


async def refused(wire: Wire, topic: str, batch: bytes, version: int = 9) -> PartitionProduceResponse:
    row = await wire.produce(topic, batch, version=version)
    assert (row.error_code != 0, row.base_offset) == (True, -1)
    return row


@pytest.mark.parametrize("codec", CODECS)
async def test_poison_is_refused(codec: CompressionType) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        for what, (body, count) in POISON.items():
            row = await refused(wire, "t", packed(body, count, codec))
            assert row.error_code == ErrorCode.INVALID_RECORD, (what, row)
            assert row.error_message
        assert (await wire.produce("t", packed(BODY, 3, codec))).base_offset == 0, "nothing of them was stored"
        assert await wire.values("t") == [b"first", b"second" * 50, b"third"]


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [100, 200_000])
async def test_what_cannot_be_decompressed_is_refused(codec: CompressionType, size: int) -> None:
    payload = compress(codec, bytes(batch_of(*[bytes([number % 251]) * 90 for number in range(size // 90 + 1)])))
    async with running() as (_, wire):
        await wire.create("t")
        for broken in (payload[: len(payload) // 2], b"\x00" * size, payload[:10] + b"\xff" * 20 + payload[30:]):
            row = await refused(wire, "t", wrapped(codec, broken, 1))
            assert row.error_code == ErrorCode.INVALID_RECORD, row
        assert (await wire.produce("t", batch_of(b"next"))).base_offset == 0


LINES = [b"line %d of a log that says much the same again and again" % number for number in range(4000)]
RECORDS = bytes(batch_of(*LINES)[HEADER_SIZE:])
SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


def lz4_of(data: bytes, *, linked: bool = False) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=linked, block_size=lz4.frame.BLOCKSIZE_MAX64KB))


def not_ended(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


UNREADABLE = {
    "lz4, linked blocks": (CompressionType.LZ4, lz4_of(RECORDS, linked=True)),
    "lz4, two frames": (CompressionType.LZ4, lz4_of(RECORDS[:70_000]) + lz4_of(RECORDS[70_000:])),
    "lz4, an empty frame first": (CompressionType.LZ4, lz4_of(b"") + lz4_of(RECORDS)),
    "lz4, a skipped frame first": (CompressionType.LZ4, SKIPPED + lz4_of(RECORDS)),
    "lz4, a skipped frame behind": (CompressionType.LZ4, lz4_of(RECORDS) + SKIPPED),
    "zstd, without its last block": (CompressionType.ZSTD, not_ended(RECORDS)),
}


@pytest.mark.parametrize("what", UNREADABLE)
async def test_what_only_a_lenient_reader_decompresses_is_refused(what: str) -> None:
    """All records come out of it, and Java's consumers or librdkafka stop at it for good."""
    codec, payload = UNREADABLE[what]
    if codec is CompressionType.LZ4:
        assert decompress(codec, payload) == RECORDS, "a consumer of ours reads it where a broker has it"
    async with running() as (_, wire):
        await wire.create("t")
        row = await refused(wire, "t", wrapped(codec, payload, len(LINES)))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert f"{codec.name.lower()} cannot decompress the records" in row.error_message
        assert (await wire.produce("t", wrapped(codec, compress(codec, RECORDS), len(LINES)))).error_code == 0


async def test_a_header_that_makes_no_sense_is_no_damage() -> None:
    """Clients send a damaged batch again, for it may come better; one that came as it was made will not."""
    async with running() as (_, wire):
        await wire.create("t")
        for change in (
            {"base_offset": 100}, {"base_offset": -7}, {"count": -1}, {"count": 4}, {"attributes": 7},
            {"last_offset_delta": 1}, {"last_offset_delta": -1, "count": 0},
        ):  # fmt: skip
            batch = bytearray(batch_of(b"first", b"second", b"third"))
            header = read_header(batch)
            fields = {
                name: getattr(header, name)
                for name in (
                    "base_offset", "partition_leader_epoch", "attributes", "last_offset_delta", "base_timestamp",
                    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count",
                )
            }  # fmt: skip
            write_header(batch, **{**fields, **change})
            assert (await refused(wire, "t", batch)).error_code == ErrorCode.INVALID_RECORD, change
            batch[-1] ^= 1
            assert (await refused(wire, "t", batch)).error_code == ErrorCode.CORRUPT_MESSAGE, change


async def test_poison_does_not_take_the_place_of_good_batches() -> None:
    """One partition's batch is refused, the others of the request are stored, and so is what comes after it."""
    async with running() as (_, wire):
        await wire.create("t", partitions=3)
        request = produce_request("t", batch_of(b"a"), 0)
        for number, batch in ((1, packed(BODY, 4, CompressionType.ZSTD)), (2, batch_of(b"b" * 100_000))):
            request.topic_data[0].partition_data += produce_request("t", batch, number).topic_data[0].partition_data
        after = produce_request("t", batch_of(b"after"), 1)
        await wire.send(request, 9)
        await wire.send(after, 9)
        codes = [row.error_code for row in (await wire.read(request, 9)).responses[0].partition_responses]
        assert codes == [0, ErrorCode.INVALID_RECORD, 0]
        assert (await wire.read(after, 9)).responses[0].partition_responses[0].base_offset == 0
        assert await wire.values("t", partition=1) == [b"after"]


def keyed(*keys: bytes | None, codec: CompressionType = CompressionType.NONE, size: int = 1) -> bytes:
    builder = BatchBuilder(limit=1 << 24, compression=codec)
    for key in keys:
        builder.append(int(time.time() * 1000), key, b"v" * size)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 60_000])
async def test_a_compacted_topic_refuses_records_without_keys(codec: CompressionType, size: int) -> None:
    async with running() as (_, wire):
        await wire.create("t", cleanup_policy="compact")
        bad = keyed(b"a", None, b"", None, codec=codec, size=size)
        row = await refused(wire, "t", bad)
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert "the topic is compacted, so a record needs a key (t-0)" in row.error_message
        assert [error.batch_index for error in row.record_errors] == [1, 3]
        assert all("key" in (error.batch_index_error_message or "") for error in row.record_errors)
        old = await refused(wire, "t", bad, version=7)  # has no place for the records
        assert (old.error_code, old.record_errors) == (ErrorCode.INVALID_RECORD, [])
        assert (await wire.produce("t", keyed(b"a", b"", codec=codec, size=size))).base_offset == 0


async def test_many_records_without_keys_are_named_by_their_numbers() -> None:
    async with running() as (_, wire):
        await wire.create("t", cleanup_policy="delete,compact")
        row = await refused(wire, "t", keyed(*[None] * 500))
        assert [error.batch_index for error in row.record_errors] == list(range(500))
        assert "0, 1, 2 and 497 more" in row.error_message


async def test_a_topic_that_becomes_compacted() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        assert (await wire.produce("t", keyed(None))).error_code == 0
        assert await wire.alter(2, "t", ("cleanup.policy", 0, "compact")) == 0
        assert (await wire.produce("t", keyed(None))).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
async def test_the_greatest_timestamp_is_that_of_the_records(codec: CompressionType) -> None:
    """Searches by time rely on it; a header that says another one is put right."""
    now = int(time.time() * 1000)
    for lie in (now - 5000, now + 5000, -1):
        batch = batch_of(b"a", b"b", timestamp=now, compression=codec)
        header = read_header(batch)
        write_header(
            batch,
            base_offset=0,
            partition_leader_epoch=-1,
            attributes=header.attributes,
            last_offset_delta=1,
            base_timestamp=now,
            max_timestamp=lie,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=2,
        )
        async with running() as (_, wire):
            await wire.create("t")
            assert (await wire.produce("t", batch)).error_code == 0
            assert read_header((await wire.fetch("t", 0)).records or b"").max_timestamp == now
            assert await wire.values("t") == [b"a", b"b"], "and its checksum is right"
