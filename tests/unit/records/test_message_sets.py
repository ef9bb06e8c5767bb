"""Message sets v0 and v1: what is written is read, alone, nested, cut off, mixed with batches v2, and damaged."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import lz4.frame
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, CorruptRecordError, IllegalStateError, KafkaError, RecordTooLargeError
from kclient.records import (
    ArrowChunk,
    CompressionType,
    MessageSetBuilder,
    check_batch,
    iter_headers,
    read_header,
    restamp,
    size_of_message,
)
from kclient.records.message_header import encode_message
from kclient.records.message_set import DEEPEST, RUN_RECORDS
from kclient.records.old_lz4 import break_checksum, mended_front, xxh32
from kclient.types import TimestampType
from tests.unit.records.faces import FACES, INTERPRETED, Face, build, message_set, optional_bytes, outcome, timestamps

CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
WRAPPED = CODECS[1:]
ROWS: list[Any] = [(1000, b"key", b"value"), (999, None, b"v" * 200), (2000, b"", None), (-1, None, None)]
GREATEST = 2**63 - 1

old_rows = st.lists(st.tuples(timestamps, optional_bytes, optional_bytes), min_size=1, max_size=12)
codecs = st.sampled_from(CODECS)
old_formats = st.sampled_from([0, 1])


def told(records: list[Any]) -> list[Any]:
    return [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers, r.leader_epoch) for r in records]


def expected(magic: int, records: list[Any], base_offset: int = 0) -> list[Any]:
    kind = TimestampType.CREATE_TIME if magic else TimestampType.NO_TIMESTAMP
    return [
        (base_offset + n, stamp if magic else -1, kind, key, value, (), None)
        for n, (stamp, key, value) in enumerate(records)
    ]


def signed(message: bytes | bytearray) -> bytes:
    """The one message with the size and checksum that it should have."""
    made = bytearray(message)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[12:16] = zlib.crc32(made[16:]).to_bytes(4, "big")
    return bytes(made)


def around(magic: int, inside: bytes, offset: int, codec: int = 1, attributes: int = 0, timestamp: int = 5) -> bytes:
    """A gzip message around anything."""
    return encode_message(magic, offset, timestamp, codec | attributes, None, zlib_gzip(inside))


def zlib_gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


# ------------------------------------------------------------------ what is written is read


@given(old_formats, codecs, old_rows, st.integers(0, 2**40))
def test_what_is_written_is_read(magic: int, codec: CompressionType, records: list[Any], base: int) -> None:
    data = message_set(magic, records, base, compression=codec)
    for face in FACES:
        assert told(face.decode_records(data, "t", 0)) == expected(magic, records, base)
        columns = face.decode_arrow([ArrowChunk("t", 3, data)])
        columns.validate(full=True)
        assert columns["offset"].to_pylist() == [base + n for n in range(len(records))]
        assert columns["key"].to_pylist() == [key for _, key, _ in records]
        assert columns["value"].to_pylist() == [value for _, _, value in records]
        assert set(columns["timestampType"].to_pylist()) == {0 if magic else -1}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_size_is_exact(magic: int, codec: CompressionType) -> None:
    builder = MessageSetBuilder(magic=magic, limit=1 << 20, compression=codec)  # type: ignore[arg-type]
    size = builder.size
    assert size == (0 if codec is CompressionType.NONE else size_of_message(magic, None, None))  # type: ignore[arg-type]
    for index, (stamp, key, value) in enumerate(ROWS):
        assert builder.append(stamp, key, value) == index
        size += size_of_message(magic, key, memoryview(value) if value else value)  # type: ignore[arg-type]
        assert builder.size == size
    data = builder.build(7)
    if codec is CompressionType.NONE:
        assert len(data) == size
        assert [header.length for _, header in iter_headers(data)] == [
            size_of_message(magic, key, value)  # type: ignore[arg-type]
            for _, key, value in ROWS
        ]
    else:
        assert [header.last_offset for _, header in iter_headers(data)] == [10]


def test_a_full_set_takes_no_more() -> None:
    builder = MessageSetBuilder(magic=1, limit=100)
    assert builder.append(1, None, b"x" * 200) == 0, "the first is taken whatever its size"
    assert builder.append(1, None, b"") == -1
    builder = MessageSetBuilder(magic=1, limit=100)
    assert builder.append_many(1, [b"x" * 10] * 5) == 2
    assert (builder.count, builder.size) == (2, 88)
    assert builder.append_many(1, [b"", b"", b""], start=2) == 0
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        builder.append_many(1, [b""], [b"", b""])
    with pytest.raises(ValueError, match="start must be from 0"):
        builder.append_many(1, [b""], start=-1)
    builder.build()
    with pytest.raises(IllegalStateError):
        builder.append(1, None, None)
    with pytest.raises(IllegalStateError):
        builder.build()
    with pytest.raises(IllegalStateError):
        MessageSetBuilder(magic=0, limit=1).build()


@pytest.mark.parametrize(
    ("settings", "flaw"),
    [
        ({"magic": 2}, "not 2"),
        ({"magic": 1, "compression": CompressionType.ZSTD}, "zstd"),
        ({"magic": 0, "log_append_time": 1}, "no log-append time"),
        ({"magic": 1, "level": 3}, "no levels"),
        ({"magic": 1, "limit": -1}, "limit must be an integer from 0"),
    ],
)
def test_impossible_settings(settings: Any, flaw: str) -> None:
    with pytest.raises(ConfigError, match=flaw):
        MessageSetBuilder(**{"limit": 10, **settings})


def test_impossible_records() -> None:
    builder = MessageSetBuilder(magic=1, limit=1000)
    with pytest.raises(ValueError, match="no record headers"):
        builder.append(1, None, None, [("h", b"")])
    with pytest.raises(ValueError, match="-2"):
        builder.append(-2, None, None)
    with pytest.raises(ValueError, match="at most 9223372036854775807"):
        builder.append(2**63, None, None)
    with pytest.raises(TypeError, match="key must be bytes"):
        builder.append(1, "key", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        builder.append(1.5, None, None)  # type: ignore[arg-type]
    assert builder.append_at(3, 1, None, None) == 0
    for delta in (-1, 3, 2**31):
        with pytest.raises(ValueError, match="offset_delta must be from 4"):
            builder.append_at(delta, 1, None, None)
    assert (builder.count, builder.size) == (1, 34)


# ------------------------------------------------------------------ offsets and timestamps


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_gaps_of_compaction(face: Face, magic: int, codec: CompressionType) -> None:
    builder = MessageSetBuilder(magic=magic, limit=1 << 20, compression=codec)  # type: ignore[arg-type]
    for delta in (0, 3, 4, 90):
        builder.append_at(delta, 1000 + delta, b"%d" % delta, None)
    data = builder.build(10)
    assert [r.offset for r in face.decode_records(data, "t", 0)] == [10, 13, 14, 100]
    assert [r.offset for r in face.decode_records(data, "t", 0, start_offset=13, end_offset=100)] == [13, 14]
    (*_, (_, last)) = iter_headers(data)
    assert (last.last_offset, last.next_offset) == (100, 101)


def test_offsets_inside_are_absolute_in_v0_and_relative_in_v1() -> None:
    inner = [struct.unpack_from(">q", _inside(message_set(magic, ROWS, 50, compression=1)))[0] for magic in (0, 1)]
    assert inner == [50, 0]
    assert [read_header(message_set(magic, ROWS, 50, compression=1)).base_offset for magic in (0, 1)] == [53, 53]


def _inside(message: bytes) -> bytes:
    at = 26 if message[16] else 18
    assert message[at : at + 4] == b"\xff" * 4
    return zlib.decompress(message[at + 8 :], wbits=31)


def test_outer_offset_zero_counts_from_zero(face: Face) -> None:
    """As early releases of librdkafka sent message sets, and brokers kept them in requests."""
    data = bytearray(message_set(1, ROWS, compression=1))
    data[:8] = bytes(8)
    assert [r.offset for r in face.decode_records(data, "t", 0)] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(face: Face, codec: CompressionType) -> None:
    data = message_set(1, ROWS, 5, compression=codec, log_append_time=7_000)
    for record in face.decode_records(data, "t", 0):
        assert (record.timestamp, record.timestamp_type) == (7_000, TimestampType.LOG_APPEND_TIME)
    assert face.decode_arrow([("t", 0, data)])["timestamp"].cast("int64").to_pylist() == [7_000_000] * 4


def test_log_append_time_around_create_time(face: Face) -> None:
    """A broker stamps the outer message and leaves those inside as they are."""
    data = around(1, message_set(1, ROWS), 9, attributes=8, timestamp=4444)
    assert [(r.timestamp, r.timestamp_type) for r in face.decode_records(data, "t", 0)] == [(4444, 1)] * 4


def test_timestamps_that_no_builder_takes(face: Face) -> None:
    stamps = [5, -7, -GREATEST - 1, GREATEST, -3]
    data = b"".join(encode_message(1, n, stamp, 0, None, b"x") for n, stamp in enumerate(stamps))
    for message in (data, around(1, data, 4)):
        assert [r.timestamp for r in face.decode_records(message, "t", 0)] == stamps


# ------------------------------------------------------------------ compression


@pytest.mark.parametrize("depth", range(1, DEEPEST + 1))
@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_again_and_again(face: Face, magic: int, depth: int) -> None:
    data = message_set(magic, ROWS, 0 if magic else 20)
    for level in range(depth, 0, -1):
        data = around(magic, data, 23 if level == 1 or not magic else 3)
    assert [r.offset for r in face.decode_records(data, "t", 0)] == [20, 21, 22, 23]


def test_compressed_too_often(face: Face) -> None:
    data = message_set(0, ROWS)
    for _ in range(DEEPEST + 1):
        data = around(0, data, 3)
    with pytest.raises(CorruptRecordError, match=f"more than {DEEPEST} times"):
        face.decode_records(data, "t", 0)


def test_lz4_of_v0_has_a_wrong_checksum() -> None:
    frame = message_set(0, ROWS, compression=CompressionType.LZ4)[26:]
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame)
    front = mended_front(frame)
    mended = front + frame[len(front) :]
    assert lz4.frame.decompress(mended) == message_set(0, ROWS)
    assert (len(front), mended_front(mended)) == (7, b"")
    assert break_checksum(mended) == frame
    assert frame[6] == xxh32(frame[:6]) >> 8 & 0xFF, "the frame's magic number counted in"


def test_lz4_of_v1_has_the_right_checksum() -> None:
    assert lz4.frame.decompress(message_set(1, ROWS, compression=CompressionType.LZ4)[34:]) == message_set(1, ROWS)


@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_of_v0_is_read_with_either_checksum(face: Face, store_size: bool) -> None:
    frame = lz4.frame.compress(message_set(0, ROWS), store_size=store_size)
    for value in (frame, break_checksum(frame), frame[:6] + b"\x00" + frame[7:] if not store_size else frame):
        data = encode_message(0, 3, -1, 3, None, value)
        assert told(face.decode_records(data, "t", 0)) == expected(0, ROWS)


def test_lz4_of_v1_must_have_the_right_checksum(face: Face) -> None:
    data = encode_message(1, 3, 1, 3, None, break_checksum(lz4.frame.compress(message_set(1, ROWS), store_size=False)))
    with pytest.raises(CorruptRecordError, match="lz4"):
        face.decode_records(data, "t", 0)


@pytest.mark.parametrize("data", [b"", b"\x04", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x08\x40", b"no frame at all"])
def test_what_is_no_lz4_frame_is_left_alone(face: Face, data: bytes) -> None:
    assert mended_front(data) == b""
    with pytest.raises(CorruptRecordError):
        face.decode_records(encode_message(0, 3, -1, 3, None, data), "t", 0)


@pytest.mark.parametrize(("data", "value"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)])
def test_xxh32(data: bytes, value: int) -> None:
    assert xxh32(data) == value


@given(st.binary(max_size=100), st.booleans())
def test_checksums_are_mended_to_what_they_were(data: bytes, store_size: bool) -> None:
    frame = lz4.frame.compress(data, store_size=store_size)
    at = 14 if store_size and data else 6
    assert mended_front(frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]) == frame[: at + 1]


@pytest.mark.parametrize("magic", [0, 1])
def test_snappy_framed_and_raw(face: Face, magic: int) -> None:
    framed = message_set(magic, ROWS, compression=CompressionType.SNAPPY)
    assert framed[26 if not magic else 34 :].startswith(b"\x82SNAPPY\x00")
    raw = encode_message(magic, 3, 2000, 2, None, snappy.compress(message_set(magic, ROWS)))
    for data in (framed, raw):
        assert told(face.decode_records(data, "t", 0)) == expected(magic, ROWS)


@pytest.mark.parametrize("codec", WRAPPED)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_stops_at_the_limit(face: Face, magic: int, codec: CompressionType) -> None:
    data = message_set(magic, [(1, None, bytes(100_000))], 7, compression=codec)
    assert len(face.decode_records(data, "t", 0, max_decompressed=200_000)) == 1
    with pytest.raises(RecordTooLargeError, match=r"At offset 7: .*max_decompressed"):
        face.decode_records(data, "t", 0, max_decompressed=50_000)


def test_a_bomb_in_a_bomb(face: Face) -> None:
    data = around(0, around(0, message_set(0, [(1, None, bytes(30_000))]), 0), 0)
    assert len(face.decode_records(data, "t", 0, max_decompressed=31_000)) == 1
    with pytest.raises(RecordTooLargeError):
        face.decode_records(data, "t", 0, max_decompressed=30_030)


@pytest.mark.parametrize("depth", [1, 2, DEEPEST - 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_many_bombs_in_a_bomb_share_the_limit(face: Face, magic: int, depth: int) -> None:
    bomb = message_set(magic, [(1, None, bytes(60_000))])
    size = 0
    for _ in range(depth):
        size += len(bomb)
        bomb = around(magic, bomb, 0)
    size = 30 * (size + len(bomb))
    data = around(magic, bomb * 30, 9)
    assert len(data) < 2000
    assert len(face.decode_records(data, "t", 0, max_decompressed=size)) == 30
    with pytest.raises(RecordTooLargeError, match=f"At offset 9: .*more than {size - 1} bytes"):
        face.decode_records(data, "t", 0, max_decompressed=size - 1)
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLargeError, match="more than 200000 bytes"):
            face.decode_records(data, "t", 0, max_decompressed=200_000)
        with pytest.raises(RecordTooLargeError, match="more than 200000 bytes"):
            face.decode_arrow([("t", 0, data)], max_decompressed=200_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_each_message_has_the_limit_to_itself(face: Face) -> None:
    data = b"".join(message_set(1, [(1, None, bytes(60_000))], n, compression=CompressionType.GZIP) for n in range(5))
    assert len(face.decode_records(data, "t", 0, max_decompressed=61_000)) == 5


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_damage_before_the_start_is_detected(face: Face, magic: int, codec: CompressionType) -> None:
    data = message_set(magic, ROWS[:1], 7, compression=codec)
    assert face.decode_records(data, "t", 0, start_offset=8) == []
    for position in range(17, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x02
        with pytest.raises(CorruptRecordError):
            face.decode_records(damaged, "t", 0, start_offset=8)
        assert outcome(face.decode_arrow, [("t", 0, damaged, 8)])[0] is CorruptRecordError


# ------------------------------------------------------------------ buffers of many


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_a_partial_message_at_the_end_is_left_out(face: Face, magic: int, codec: CompressionType) -> None:
    whole = message_set(magic, ROWS[:2], compression=codec)
    last = message_set(magic, ROWS[2:], 2, compression=codec)
    positions = [position for position, _ in iter_headers(last)]
    for cut in range(len(last)):
        data = whole + last[:cut]
        complete = sum(position <= cut for position in [*positions[1:], len(last)])
        read = face.decode_records(data, "t", 0)
        found = 2 + (complete if codec is CompressionType.NONE else 0)
        assert [r.offset for r in read] == list(range(found))
        assert face.decode_arrow([("t", 0, data)]).num_rows == found
        if cut < positions[1] if len(positions) > 1 else True:
            with pytest.raises(CorruptRecordError, match="truncated"):
                check_batch(data, len(whole))


def mixed_log(face: Face) -> tuple[bytes, list[int]]:
    """What the log of an upgraded broker holds: every format, compressed and not."""
    log, offset = b"", 0
    for magic in (0, 1, 2, 1, 0, 2):
        for codec in CODECS:
            if magic == 2:
                batch = bytearray(build(face, [(*row, []) for row in ROWS], compression=codec))
                restamp(batch, base_offset=offset, partition_leader_epoch=4)
                log += batch
            else:
                log += message_set(magic, ROWS, offset, compression=codec)
            offset += len(ROWS)
    return log, [n % len(ROWS) for n in range(offset)]


def test_formats_mixed_in_one_buffer(face: Face) -> None:
    log, numbers = mixed_log(face)
    records = face.decode_records(log, "t", 0)
    assert [r.offset for r in records] == list(range(len(numbers)))
    assert [(r.key, r.value) for r in records] == [ROWS[n][1:] for n in numbers]
    assert face.decode_arrow([("t", 0, log)])["offset"].to_pylist() == list(range(len(numbers)))
    assert {(r.timestamp_type, r.leader_epoch) for r in records} == {(-1, None), (0, None), (0, 4)}
    positions = [position for position, _ in iter_headers(log)]
    assert positions == sorted(positions)
    assert [header.next_offset for _, header in iter_headers(log)][-1] == len(numbers)
    for start in range(0, len(numbers), 3):
        for end in range(start, len(numbers), 5):
            found = face.decode_records(log, "t", 0, start_offset=start, end_offset=end, aborted=[(1, 2)])
            assert [r.offset for r in found] == list(range(start, end))


def test_batches_of_a_mixed_buffer(face: Face) -> None:
    log, numbers = mixed_log(face)
    seen = 0
    for header, records in face.iter_batches(log, "t", 0):
        assert header.base_offset == seen
        assert (header.count, header.last_offset) == (len(records), records[-1].offset)
        assert header.max_timestamp == max(r.timestamp for r in records)
        assert header.timestamp_type is records[0].timestamp_type
        seen = header.next_offset
    assert seen == len(numbers)


def test_long_sets_come_in_pieces(face: Face) -> None:
    data = message_set(1, [(n, None, b"%d" % n) for n in range(RUN_RECORDS + 10)])
    assert [header.count for header, _ in face.iter_batches(data, "t", 0)] == [RUN_RECORDS, 10]
    assert [r.value for r in face.decode_records(data, "t", 0)] == [b"%d" % n for n in range(RUN_RECORDS + 10)]


def test_offsets_need_not_rise(face: Face) -> None:
    """In requests of clients of old they are anything."""
    data = b"".join(message_set(0, [(1, None, b"%d" % n)]) for n in range(3))
    assert [(r.offset, r.value) for r in face.decode_records(data, "t", 0)] == [(0, b"0"), (0, b"1"), (0, b"2")]
    inside = around(0, data, 0)
    assert [r.value for r in face.decode_records(inside, "t", 0)] == [b"0", b"1", b"2"]


def test_deserializers(face: Face) -> None:
    data = message_set(0, ROWS)
    read = face.decode_records(data, "t", 0, value_deserializer=lambda topic, headers, value: (topic, len(value)))
    assert [r.value for r in read] == [("t", 5), ("t", 200), None, None]


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_any_changed_byte_is_detected(face: Face, magic: int, codec: CompressionType) -> None:
    data = message_set(magic, ROWS[:1] if codec is CompressionType.NONE else ROWS, compression=codec)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        if position < 8 and not damaged[0] & 0x80:
            assert check_batch(damaged).base_offset  # assigned by the broker, and not in the checksum
            continue
        with pytest.raises(CorruptRecordError) as caught:
            check_batch(damaged)
        assert caught.value.position == 0
        assert caught.value.offset is not None


def test_damage_inside_is_detected_too(face: Face) -> None:
    whole = message_set(1, ROWS)
    offsets = {position + byte for position, _ in iter_headers(whole) for byte in range(8)}
    for position in range(len(whole)):
        inside = bytearray(whole)
        inside[position] ^= 0x55
        data = around(1, bytes(inside), 3)
        if position in offsets:  # outside the checksums; whether it makes sense only the other messages tell
            found = outcome(face.decode_records, data, "t", 0)
            assert isinstance(found, list) or found[0] is CorruptRecordError
            continue
        with pytest.raises(CorruptRecordError, match="inside") as caught:
            face.decode_records(data, "t", 0)
        assert caught.value.position == 0
        assert caught.value.offset is not None


def test_checks_can_be_left_out(face: Face) -> None:
    data = bytearray(message_set(1, ROWS))
    data[data.index(b"vvv")] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        face.decode_records(data, "t", 0)
    assert (caught.value.offset, caught.value.position) == (1, list(iter_headers(data))[1][0])
    assert len(face.decode_records(data, "t", 0, check_crcs=False)) == 4


def test_what_comes_before_the_damage_is_given(face: Face) -> None:
    good = message_set(1, ROWS)
    for bad in (
        bytes(8) + signed(b"\0" * 7 + b"\4" + bytes(8) + b"\1\7" + bytes(16))[8:],  # no such compression
        signed(b"\0" * 7 + b"\4" + bytes(8) + b"\1\1" + bytes(8) + b"\xff" * 8),  # compressed, without a value
        signed(b"\0" * 7 + b"\4" + bytes(8) + b"\1\0" + bytes(8) + b"\0\0\0\5" + b"\0\0\0\0"),  # a key longer than all
        bytes(16) + b"\3" + bytes(20),
    ):
        batches = face.iter_batches(good + bad, "t", 0)
        assert next(batches)[0].next_offset == 4
        with pytest.raises(CorruptRecordError) as caught:
            next(batches)
        assert caught.value.position == len(good)
        assert len(face.decode_records(good + bad, "t", 0, end_offset=4)) == 4, "no further than asked for"


PARTS = [
    (b"\xff\xff\xff\xfe" + b"\xff" * 4, "its key"),
    (b"\x00\x00\x00\x01" + b"\xff" * 4, "its key"),
    (b"\x7f\xff\xff\xff" + b"\xff" * 4, "its key"),
    (b"\xff" * 4 + b"\x00\x00\x00\x01", "its value"),
    (b"\xff" * 4 + b"\xff\xff\xff\xfe", "its value"),
    (b"\xff" * 4 + b"\x7f\xff\xff\xff", "its value"),
    (b"\xff" * 8 + b"x", "its value"),
    (b"\xff" * 4 + b"\x00\x00\x00\x01xx", "its value"),
]


@pytest.mark.parametrize(("part", "flaw"), PARTS)
@pytest.mark.parametrize("magic", [0, 1])
def test_lying_lengths(face: Face, magic: int, part: bytes, flaw: str) -> None:
    front = bytes(7) + b"\x09" + bytes(8) + bytes([magic, 0]) + (bytes(8) if magic else b"")
    data = signed(front + part)
    for read in (check_batch, lambda data: face.decode_records(data, "t", 0)):
        with pytest.raises(CorruptRecordError, match=f"offset 9 .* the length of {flaw}") as caught:
            read(data)
        assert (caught.value.offset, caught.value.position) == (9, 0)


@pytest.mark.parametrize("size", [0, 13, -1, -(2**31)])
@pytest.mark.parametrize("magic", [0, 1])
def test_impossible_sizes(face: Face, magic: int, size: int) -> None:
    data = bytearray(message_set(magic, ROWS, 6))
    data[8:12] = size.to_bytes(4, "big", signed=True)
    for read in (read_header, check_batch, lambda data: face.decode_records(data, "t", 0)):
        with pytest.raises(CorruptRecordError, match=f"length field is {size}") as caught:
            read(data)
        assert (caught.value.offset, caught.value.position) == (6, 0)


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (around(1, b"", 3), "there are no messages"),
        (around(1, message_set(1, ROWS)[:-1], 3), "is truncated to"),
        (around(1, message_set(1, ROWS)[:20], 3), "is truncated"),
        (around(1, message_set(1, ROWS, 5), 3), "behind that of the outer one"),
        (around(1, build(INTERPRETED, [(*ROWS[0], [])]), 3), "format v2"),
        (around(0, message_set(0, ROWS)[:-1], 3), "is truncated"),
        (encode_message(1, 3, 1, 1, None, None), "has no value"),
        (encode_message(0, 3, 1, 1, None, b"no gzip"), "gzip cannot decompress"),
        (encode_message(1, 3, 1, 4, None, b""), "attributes 0x04"),
    ],
)
def test_impossible_compressed_messages(face: Face, data: bytes, flaw: str) -> None:
    with pytest.raises(CorruptRecordError, match=flaw) as caught:
        face.decode_records(data, "t", 0)
    assert caught.value.position == 0
    assert caught.value.offset is not None


def test_offsets_that_overflow(face: Face) -> None:
    inside = encode_message(1, GREATEST - 1, 0, 0, None, b"") + encode_message(1, 0, 0, 0, None, b"")
    with pytest.raises(CorruptRecordError, match="offset"):
        face.decode_records(around(1, inside, GREATEST - 1), "t", 0)
    data = encode_message(1, GREATEST - 1, 0, 0, None, b"")
    assert [r.offset for r in face.decode_records(data, "t", 0)] == [GREATEST - 1]
    with pytest.raises(CorruptRecordError):
        face.decode_records(encode_message(1, GREATEST, 0, 0, None, b""), "t", 0)


def test_old_messages_are_not_restamped() -> None:
    with pytest.raises(ValueError, match="format v1"):
        restamp(bytearray(message_set(1, ROWS)), base_offset=1, partition_leader_epoch=1)


@given(old_formats, codecs, old_rows, st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4))
def test_twins_agree_on_damage(
    magic: int, codec: CompressionType, records: list[Any], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(message_set(magic, records, compression=codec) * 2)
    for position, change in changes:
        data[position % len(data)] ^= change
    found = [
        [
            outcome(lambda face=face, check=check: told(face.decode_records(data, "t", 0, check_crcs=check)))
            for check in (True, False)
        ]
        for face in FACES
    ]
    assert all(each == found[0] for each in found)
    for result in found[0]:
        assert isinstance(result, list) or issubclass(result[0], KafkaError)
