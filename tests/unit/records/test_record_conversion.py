"""Conversions between message formats: what is kept, what is lost, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import (
    CorruptRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from kclient.records import CompressionType, encode_end_marker, iter_headers, restamp
from kclient.records.message_header import encode_message
from kclient.types import TimestampType
from tests.unit.records.faces import FACES, Face, build, message_set, outcome, rows
from tests.unit.records.test_message_sets import CODECS, ROWS, WRAPPED, codecs, mixed_log, old_formats, old_rows
from tests.unit.records.test_record_corruption import record, with_records

FORMATS = [0, 1, 2]


def seen(face: Face, data: bytes) -> list[Any]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in face.decode_records(data, "t", 0)]


def formats(data: bytes) -> set[int]:
    return {header.magic for _, header in iter_headers(data)}


@given(codecs, rows, st.integers(0, 2**40), old_formats)
def test_down(codec: CompressionType, records: list[Any], base: int, magic: int) -> None:
    for face in FACES:
        batch = bytearray(build(face, records, compression=codec))
        restamp(batch, base_offset=base, partition_leader_epoch=3)
        down = face.down_convert(batch, magic)
        assert down == message_set(magic, records, base, compression=codec), "as if built in that format"
        assert [header.compression for _, header in iter_headers(down)] == [codec] * len(list(iter_headers(down)))


@given(codecs, old_rows, st.integers(0, 2**40), old_formats)
def test_up(codec: CompressionType, records: list[Any], base: int, magic: int) -> None:
    for face in FACES:
        data = message_set(magic, records, base, compression=codec)
        up = face.up_convert(data, 2)
        assert seen(face, up) == seen(face, data)
        ((_, header),) = iter_headers(up)
        assert (header.magic, header.compression, header.base_offset) == (2, codec, base)
        assert (header.count, header.producer_id, header.partition_leader_epoch) == (len(records), -1, -1)
        assert header.timestamp_type is TimestampType.CREATE_TIME
        assert face.down_convert(up, magic) == data, "and down again"


@pytest.mark.parametrize("codec", CODECS)
def test_v0_to_v1_has_no_timestamps(face: Face, codec: CompressionType) -> None:
    up = face.up_convert(message_set(0, ROWS, 4, compression=codec), 1)
    assert up == message_set(1, [(-1, *row[1:]) for row in ROWS], 4, compression=codec)
    assert {r.timestamp_type for r in face.decode_records(up, "t", 0)} == {TimestampType.CREATE_TIME}
    assert face.down_convert(message_set(1, ROWS, 4, compression=codec), 0) == message_set(
        0, ROWS, 4, compression=codec
    )


@pytest.mark.parametrize("magic", FORMATS)
@pytest.mark.parametrize("way", ["down", "up"])
def test_what_fits_is_copied(face: Face, magic: int, way: str) -> None:
    log, _ = mixed_log(face)
    convert: Any = face.down_convert if way == "down" else face.up_convert
    converted = convert(log, magic)
    assert formats(converted) == {n for n in FORMATS if (n <= magic if way == "down" else n >= magic)}
    assert [(o, k, v) for o, _, k, v in seen(face, converted)] == [(o, k, v) for o, _, k, v in seen(face, log)]
    assert convert(converted, magic) == converted
    for position, header in iter_headers(log):
        if header.magic in formats(converted):
            assert log[position : position + header.length] in converted
    assert convert(b"", magic) == b""
    assert convert(log + log[:10], magic) == converted, "a partial batch is left out"


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_kept(face: Face, magic: int, codec: CompressionType) -> None:
    batch = bytearray(build(face, [(*row, []) for row in ROWS], compression=codec))
    restamp(batch, base_offset=2, partition_leader_epoch=0, log_append_time=8888)
    old = message_set(1, ROWS, 2, compression=codec, log_append_time=8888)
    converted = face.up_convert(old, 2) if magic == 2 else face.down_convert(batch, 1)
    if magic == 1:
        assert converted == old
    for one in face.decode_records(converted, "t", 0):
        assert (one.timestamp, one.timestamp_type) == (8888, TimestampType.LOG_APPEND_TIME)
    assert {r.timestamp for r in face.decode_records(face.down_convert(converted, 0), "t", 0)} == {-1}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_gaps_are_kept(face: Face, magic: int, codec: CompressionType) -> None:
    builder = face.BatchBuilder(limit=1 << 20, compression=codec)
    for delta in (2, 3, 50):
        builder.append_at(delta, 10, None, b"%d" % delta)
    batch = bytes(builder.build(100, last_offset_delta=60))
    down = face.down_convert(batch, magic)
    assert [r.offset for r in face.decode_records(down, "t", 0)] == [102, 103, 150]
    assert [r.offset for r in face.decode_records(face.up_convert(down, 2), "t", 0)] == [102, 103, 150]


@pytest.mark.parametrize("magic", [0, 1])
def test_what_the_old_formats_do_not_know_is_left_out(face: Face, magic: int) -> None:
    data = face.BatchBuilder(limit=1 << 20, is_transactional=True)
    data.append(5, b"k", b"v", [("h", b"x")])
    control = face.BatchBuilder(limit=1 << 20, is_transactional=True, is_control=True)
    control.append(6, *encode_end_marker(commit=True, coordinator_epoch=0))
    log = bytes(data.build(7, 4, 0, 0)) + bytes(control.build(8, 4, 0))
    assert face.down_convert(log, magic) == message_set(magic, [(5, b"k", b"v")], 7)
    assert face.down_convert(log, 2) == log
    assert face.up_convert(log, magic) == log


def test_records_before_the_fetch_are_left_out_as_brokers_do(face: Face) -> None:
    plain = build(face, [(*row, []) for row in ROWS])
    gzip = build(face, [(*row, []) for row in ROWS], compression=CompressionType.GZIP)
    assert face.down_convert(plain, 1, first_offset=2) == b"".join(
        [message_set(1, [row], 2 + n) for n, row in enumerate(ROWS[2:])]
    )
    assert face.down_convert(plain, 0, first_offset=9) == b""
    assert face.down_convert(gzip, 1, first_offset=2) == face.down_convert(gzip, 1)
    old = message_set(1, ROWS)
    assert face.down_convert(old, 0, first_offset=3) == message_set(0, ROWS[3:], 3)


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_does_not_go_down(face: Face, magic: int) -> None:
    with pytest.raises(UnsupportedCompressionTypeError, match="offset 0 is compressed with zstd"):
        face.down_convert(build(face, [(*row, []) for row in ROWS], compression=CompressionType.ZSTD), magic)


def test_impossible_formats(face: Face) -> None:
    for magic in (-1, 3):
        for convert in (face.down_convert, face.up_convert):
            with pytest.raises(ValueError, match=f"v{magic}"):
                convert(b"", magic)  # type: ignore[operator]


def test_levels(face: Face) -> None:
    data = message_set(0, [(1, None, b"abcdefgh" * 5000)], compression=CompressionType.GZIP)
    sizes = [len(face.up_convert(data, 2, level=level)) for level in (1, 9)]
    assert sizes[0] > sizes[1]
    assert face.up_convert(message_set(0, ROWS), 1, level=1), "not compressed, so without effect"


@pytest.mark.parametrize("codec", WRAPPED)
def test_limit(face: Face, codec: CompressionType) -> None:
    data = message_set(1, [(1, None, bytes(100_000))], compression=codec)
    with pytest.raises(RecordTooLargeError):
        face.up_convert(data, 2, max_decompressed=50_000)


def test_damage(face: Face) -> None:
    good = build(face, [(*row, []) for row in ROWS])
    bad = bytearray(good)
    bad[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        face.down_convert(good + bytes(bad), 1)
    assert caught.value.position == len(good)
    assert face.down_convert(good + bytes(bad), 2) == good + bytes(bad), "what is copied is not looked at"
    backwards = with_records(record(b"\0", 0, 1, -1, -1, 0) + record(b"\0", 0, 0, -1, -1, 0), 2, 1)
    assert [r.offset for r in face.decode_records(backwards, "t", 0)] == [1, 0]
    with pytest.raises(CorruptRecordError, match="the offset 0 follows 1"):
        face.down_convert(backwards, 1)
    with pytest.raises(InvalidTimestampError, match="-9"):
        face.up_convert(encode_message(1, 0, -9, 0, None, None), 2)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4), st.sampled_from(FORMATS))
def test_twins_agree_on_damage(changes: list[tuple[int, int]], magic: int) -> None:
    log = bytearray(mixed_log(FACES[0])[0])
    for position, change in changes:
        log[position % len(log)] ^= change
    found = [
        [outcome(convert, log, magic, check_crcs=False) for convert in (face.down_convert, face.up_convert)]
        for face in FACES
    ]
    assert all(each == found[0] for each in found)
