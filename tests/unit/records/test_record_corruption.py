"""Damaged and hostile batches: always an exception that says where, the same from both implementations."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError, KafkaError
from kclient.records import (
    HEADER_SIZE,
    ArrowChunk,
    BatchHeader,
    CompressionType,
    check_batch,
    encode_end_marker,
    iter_headers,
    read_header,
)
from kclient.records.batch_header import check_crc
from kclient.records.corruption import Corruption, record_error
from kclient.records.varint import encode_varint
from tests.example_budget import examples
from tests.unit.records.faces import FACES, INTERPRETED, Face, build, outcome, rows

ROWS = [(1000, b"key", b"value", [("h", b"x")]), (1001, None, b"v" * 200, []), (1002, b"k", None, [])]
GREATEST = 2**63 - 1


def signed(batch: bytes | bytearray) -> bytes:
    """The batch with the right checksum for what is in it now."""
    stamped = bytearray(batch)
    stamped[17:21] = crc32c(bytes(stamped[21:])).to_bytes(4, "big")
    return bytes(stamped)


def with_records(payload: bytes, count: int = 1, last_delta: int = 0, **fields: int) -> bytes:
    """A batch with a right checksum around any payload."""
    batch = bytearray(build(INTERPRETED, [(0, None, None, [])])[:HEADER_SIZE]) + payload
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[23:27] = last_delta.to_bytes(4, "big", signed=True)
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    if "base_timestamp" in fields:
        batch[27:35] = fields["base_timestamp"].to_bytes(8, "big", signed=True)
    return signed(batch)


@pytest.mark.parametrize("compression", list(CompressionType))
def test_any_changed_byte_is_detected(face: Face, compression: CompressionType) -> None:
    batch = build(face, ROWS, compression=compression)
    for position in range(len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x55
        if position < 8 and not damaged[0] & 0x80:
            assert check_batch(damaged).base_offset != 0  # assigned by the broker, and not in the checksum
        elif 12 <= position < 16:
            assert check_batch(damaged).partition_leader_epoch != -1
        else:
            with pytest.raises(CorruptRecordError) as caught:
                check_batch(damaged)
            assert caught.value.position == 0
            assert caught.value.offset is not None


def readings(
    face: Face, data: bytes | bytearray, aborted: list[tuple[int, int]] | None, start: int
) -> list[Callable[[], Any]]:
    """All ways to read fetched data."""
    wanted: dict[str, Any] = {"start_offset": start, "aborted": aborted}
    return [
        lambda: face.decode_records(data, "t", 0, **wanted),
        lambda: list(face.iter_batches(data, "t", 0, **wanted)),
        lambda: face.decode_arrow([ArrowChunk("t", 0, data, start, None, aborted)]),
    ]


@pytest.mark.parametrize("start", [0, 50], ids=["wanted", "before-the-start"])
@pytest.mark.parametrize("aborted", [None, [], [(7, 0)]], ids=["uncommitted", "committed", "aborted"])
@pytest.mark.parametrize("kind", ["plain", "control", "transactional"])
def test_no_reader_passes_over_a_flipped_bit(
    face: Face, kind: str, aborted: list[tuple[int, int]] | None, start: int
) -> None:
    settings = {"is_transactional": kind != "plain", "is_control": kind == "control"}
    builder = face.BatchBuilder(limit=1000, **settings)
    for row in [(1000, *encode_end_marker(commit=False, coordinator_epoch=3))] if kind == "control" else ROWS[::2]:
        builder.append(*row)
    batch = bytes(builder.build(0, 7, 1, 5))
    for read in readings(face, batch, aborted, start):
        read()
    for position in (*range(8, 12), *range(16, len(batch))):  # the rest is outside the checksum
        for bit in range(8) if position < HEADER_SIZE else [position % 8]:  # behind it nobody looks at single bits
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            if position < 12 and int.from_bytes(damaged[8:12], "big", signed=True) > len(batch) - 12:
                # Longer than what is there: a fetch may end like this, so nothing is read and nobody moves on.
                assert list(face.iter_batches(damaged, "t", 0, start_offset=start, aborted=aborted)) == []
                continue
            for read in readings(face, damaged, aborted, start):
                with pytest.raises(CorruptRecordError) as caught:
                    read()
                assert caught.value.position == 0


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_no_reader_passes_over_a_format_of_old_that_is_none(face: Face, compression: CompressionType) -> None:
    """With the byte at 16 changed, that of the checksum behind it is where a message's compression would be."""
    seen = set()
    for stamp in range(100):
        damaged = bytearray(build(face, [(stamp, None, b"value", [])] * 3, compression=compression))
        damaged[7] = 100
        seen.add(damaged[17] & 7)
        for magic in (0, 1):
            damaged[16] = magic
            for read in readings(face, damaged, None, 102):
                with pytest.raises(CorruptRecordError):
                    read()
    assert seen == set(range(8))


def test_each_checksum_is_compared_once(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counting(buffer: Any, position: int, header: BatchHeader) -> None:
        compared.append(position)
        check_crc(buffer, position, header)

    monkeypatch.setattr("kclient.records.reader.check_crc", counting)
    control = face.BatchBuilder(limit=1000, is_transactional=True, is_control=True)
    control.append(1000, *encode_end_marker(commit=False, coordinator_epoch=3))
    parts = [
        bytes(control.build(0, 7, 1)),
        *(build(face, ROWS, compression=codec, is_transactional=True) for codec in CompressionType),
    ]
    data = b"".join(parts)
    places = [len(b"".join(parts[:n])) for n in range(len(parts))]
    for aborted in (None, [], [(-1, 0)]):
        for read in readings(face, data, aborted, 0):
            read()
            assert compared == places
            compared.clear()
    assert len(face.decode_records(data, "t", 0, check_crcs=False, aborted=[])) == 15
    assert compared == []


@pytest.mark.parametrize("compression", list(CompressionType))
def test_any_truncation_is_detected(face: Face, compression: CompressionType) -> None:
    batch = build(face, ROWS, compression=compression)
    for length in range(len(batch)):
        with pytest.raises(CorruptRecordError, match="truncated") as caught:
            check_batch(batch[:length])
        assert caught.value.position == 0
        assert face.decode_records(batch[:length], "t", 0) == []


def test_checks_can_be_left_out(face: Face) -> None:
    damaged = bytearray(build(face, ROWS))
    damaged[damaged.index(b"vvv")] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        face.decode_records(damaged, "t", 0)
    assert len(face.decode_records(damaged, "t", 0, check_crcs=False)) == 3


def test_error_names_offset_and_position(face: Face) -> None:
    good = build(face, ROWS)
    bad = bytearray(good)
    bad[7] = 77
    bad[-1] ^= 1
    with pytest.raises(CorruptRecordError) as caught:
        face.decode_records(good + bytes(bad), "t", 0)
    assert (caught.value.offset, caught.value.position) == (77, len(good))
    assert "offset 77" in str(caught.value)


def record(*parts: int | bytes, length: int | None = None) -> bytes:
    """A record of varints and raw bytes, with its length or a wrong one in front."""
    body = b"".join(part if isinstance(part, bytes) else encode_varint(part) for part in parts)
    return encode_varint(len(body) if length is None else length) + body


LONG = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
CORRUPTIONS: list[tuple[Corruption, bytes, int]] = [
    (Corruption.TRUNCATED, record() + b"\0" * 6, 1),
    (Corruption.TRUNCATED, record(b"\0") + b"\0" * 6, 2),
    (Corruption.TRUNCATED, record(b"\0", 0, b"\x80") + b"\x01" * 6, 3),
    (Corruption.TRUNCATED, record(b"\0", 0, 0, -1) + b"\x01" * 6, 5),
    (Corruption.TRUNCATED, record(b"\0", 0, 0, -1, -1) + b"\0" * 6, 6),
    (Corruption.VARINT, LONG, 0),
    (Corruption.VARINT, b"\xff\xff\xff\xff\x1f" + b"\0" * 9, 0),
    (Corruption.VARINT, record(b"\0", LONG, b"\0" * 9), 2),
    (Corruption.VARINT, record(b"\0", b"\xff" * 9 + b"\x02", b"\0" * 9), 2),
    (Corruption.VARINT, record(b"\0", 0, b"\xff\xff\xff\xff\x10", b"\0" * 9), 3),
    (Corruption.RECORD_LENGTH, record(b"\0" * 6, length=-1), 0),
    (Corruption.RECORD_LENGTH, record(b"\0" * 6, length=7), 0),
    (Corruption.RECORD_LENGTH, record(b"\0" * 6, length=2**31 - 1), 0),
    (Corruption.RECORD_LENGTH, record(b"\0" * 6, length=-(2**31)), 0),
    (Corruption.OFFSET_DELTA, record(b"\0", 0, 1, -1, -1, 0), 3),
    (Corruption.OFFSET_DELTA, record(b"\0", 0, -1, -1, -1, 0), 3),
    (Corruption.OFFSET_DELTA, record(b"\0", 0, 2**31 - 1, -1, -1, 0), 3),
    (Corruption.KEY_LENGTH, record(b"\0", 0, 0, 100, b"k", -1, 0), 4),
    (Corruption.KEY_LENGTH, record(b"\0", 0, 0, -2, -1, 0), 4),
    (Corruption.KEY_LENGTH, record(b"\0", 0, 0, 2**31 - 1, -1, 0), 4),
    (Corruption.VALUE_LENGTH, record(b"\0", 0, 0, -1, 3, b"v", 0), 5),
    (Corruption.VALUE_LENGTH, record(b"\0", 0, 0, -1, -(2**31), 0), 5),
    (Corruption.HEADER_COUNT, record(b"\0", 0, 0, -1, -1, -1), 6),
    (Corruption.HEADER_COUNT, record(b"\0", 0, 0, -1, -1, 2, b"\0\0\0"), 6),
    (Corruption.HEADER_COUNT, record(b"\0", 0, 0, -1, -1, 2**31 - 1, b"\0\0"), 6),
    (Corruption.HEADER_KEY_LENGTH, record(b"\0", 0, 0, -1, -1, 1, -1, -1), 7),
    (Corruption.HEADER_KEY_LENGTH, record(b"\0", 0, 0, -1, -1, 1, 9, b"k", -1), 7),
    (Corruption.HEADER_VALUE_LENGTH, record(b"\0", 0, 0, -1, -1, 1, 1, b"k", 9), 9),
    (Corruption.HEADER_VALUE_LENGTH, record(b"\0", 0, 0, -1, -1, 1, 1, b"k", -2), 9),
    (Corruption.RECORD_REMAINDER, record(b"\0", 0, 0, -1, -1, 0, b"x"), 7),
    (Corruption.BATCH_REMAINDER, record(b"\0", 0, 0, -1, -1, 0) + b"x", 7),
]


def expected_error(corruption: Corruption, byte: int) -> CorruptRecordError:
    """The error of a batch of one record at offset 0."""
    header = BatchHeader(0, 61, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return record_error(corruption, header, 0, 1 if corruption is Corruption.BATCH_REMAINDER else 0, byte)


@pytest.mark.parametrize(("corruption", "payload", "byte"), CORRUPTIONS)
def test_corruptions(face: Face, corruption: Corruption, payload: bytes, byte: int) -> None:
    batch = with_records(payload)
    check_batch(batch)  # the corruption is in the records only
    expected = str(expected_error(corruption, byte))
    with pytest.raises(CorruptRecordError) as caught:
        face.decode_records(batch, "t", 0)
    assert str(caught.value) == expected
    assert (caught.value.offset, caught.value.position) == (0, 0)
    builder = face.ColumnBuilder(True)
    with pytest.raises(CorruptRecordError) as caught:
        builder.append(payload, read_header(batch), 0, 0, GREATEST)
    assert str(caught.value) == expected


def test_every_flaw_has_a_case() -> None:
    assert {corruption for corruption, _, _ in CORRUPTIONS} | {Corruption.TIMESTAMP} == set(Corruption)


@pytest.mark.parametrize(("base", "delta"), [(GREATEST, 1), (-GREATEST - 1, -1), (-2, -GREATEST)])
def test_timestamp_overflow(face: Face, base: int, delta: int) -> None:
    batch = with_records(record(b"\0", delta, 0, -1, -1, 0), base_timestamp=base)
    with pytest.raises(CorruptRecordError, match="timestamp is out of range"):
        face.decode_records(batch, "t", 0)


def test_greatest_numbers(face: Face) -> None:
    batch = bytearray(with_records(record(b"\0", -GREATEST, 0, -1, -1, 0), base_timestamp=GREATEST))
    batch[:8] = (GREATEST - 1).to_bytes(8, "big")
    (only,) = face.decode_records(batch, "t", 0)
    assert (only.offset, only.timestamp) == (GREATEST - 1, 0)


def test_varints_need_not_be_shortest(face: Face) -> None:
    batch = with_records(
        record(b"\0", b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\x81\x00", b"\x82\x00", b"v", b"\x80\x00")
    )
    (only,) = face.decode_records(batch, "t", 0)
    assert (only.timestamp, only.offset, only.key, only.value) == (-1 + 1, 0, None, b"v")


@pytest.mark.parametrize("count", [2, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_absurd_number_of_records(face: Face, count: int, compression: CompressionType) -> None:
    batch = bytearray(build(face, [(1, None, b"x", [])], compression=compression))
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    batch[23:27] = max(count - 1, 0).to_bytes(4, "big")
    batch = bytearray(signed(batch))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            face.decode_records(batch, "t", 0)
        if count > 0:  # else already the header makes no sense
            header = read_header(batch)
            payload = batch[HEADER_SIZE:] if not header.compression else bytes(record(b"\0", 0, 0, -1, -1, 0))
            with pytest.raises(CorruptRecordError):
                face.ColumnBuilder().append(payload, header, 0, 0, GREATEST)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, (-1).to_bytes(8, "big", signed=True)),
        (0, GREATEST.to_bytes(8, "big")),
        (8, (48).to_bytes(4, "big")),
        (8, bytes(4)),
        (8, (-1).to_bytes(4, "big", signed=True)),
        (16, b"\x03"),
        (16, b"\xff"),
        (21, (5).to_bytes(2, "big")),
        (21, (7).to_bytes(2, "big")),
        (23, (-1).to_bytes(4, "big", signed=True)),
        (23, (1).to_bytes(4, "big")),
        (57, (-1).to_bytes(4, "big", signed=True)),
        (57, (4).to_bytes(4, "big")),
    ],
)
def test_absurd_headers(face: Face, position: int, value: bytes) -> None:
    batch = bytearray(build(face, ROWS))
    batch[position : position + len(value)] = value
    data = b"xx" + signed(batch)
    for read in (read_header, check_batch, lambda data, position: list(iter_headers(data, position))):
        with pytest.raises(CorruptRecordError) as caught:
            read(data, 2)
        assert caught.value.position == 2
        assert "position 2" in str(caught.value)
    with pytest.raises(CorruptRecordError):
        face.decode_records(data[2:], "t", 0)


def read_everything(face: Face, batch: bytes) -> list[Any]:
    """What objects and columns make of a batch without looking at its checksum."""
    header = outcome(read_header, batch)
    columns = None
    if isinstance(header, BatchHeader) and not header.compression:
        builder = face.ColumnBuilder(True)
        columns = outcome(builder.append, batch[HEADER_SIZE : header.length], header, 0, 2, GREATEST)
        if isinstance(columns, int):
            columns = [bytes(part) if isinstance(part, bytearray | memoryview) else part for part in builder.finish()]
    return [repr(outcome(face.decode_records, batch, "t", 0, check_crcs=False, max_decompressed=10_000)), columns]


def assert_twins_agree(batch: bytes) -> None:
    first, *others = [read_everything(face, batch) for face in FACES]
    for other in others:
        assert other == first


@given(
    rows, st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=6), st.sampled_from(CompressionType)
)
@examples(300)
def test_twins_agree_on_damaged_batches(
    records: list[Any], changes: list[tuple[int, int]], compression: CompressionType
) -> None:
    batch = bytearray(build(INTERPRETED, records, compression=compression))
    for position, change in changes:
        batch[HEADER_SIZE + position % (len(batch) - HEADER_SIZE)] ^= change
    assert_twins_agree(bytes(batch))


@given(st.binary(min_size=7, max_size=200), st.integers(0, 30), st.integers(0, 2**31 - 2))
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1, 0)
@examples(300)
def test_twins_agree_on_random_records(payload: bytes, count: int, last_delta: int) -> None:
    assert_twins_agree(with_records(payload, count, max(last_delta, count - 1, 0)))


fields = st.one_of(
    st.integers(-3, 70), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), GREATEST), st.binary(max_size=12)
)


@pytest.mark.slow
@given(st.lists(st.lists(fields, max_size=12), min_size=1, max_size=4), st.integers(0, 5))
@examples(500)
def test_twins_agree_on_plausible_records(records: list[list[int | bytes]], last_delta: int) -> None:
    payload = b"".join(record(b"\0", *parts) for parts in records)
    assert_twins_agree(with_records(payload, len(records), max(last_delta, len(records) - 1)))


@given(rows, st.integers(0, HEADER_SIZE - 1), st.integers(1, 255))
@examples(300)
def test_twins_agree_on_damaged_headers(records: list[Any], position: int, change: int) -> None:
    batch = bytearray(build(INTERPRETED, records))
    batch[position] ^= change
    assert_twins_agree(bytes(batch))


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    for face in FACES:
        result = outcome(face.decode_records, data, "t", 0)
        assert result == [] or issubclass(result[0], KafkaError)
