"""Building record batches: what fits, what is refused, and what the bytes are."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, CorruptRecordError, IllegalStateError
from kclient.records import (
    HEADER_SIZE,
    MAX_BATCH_SIZE,
    CompressionType,
    check_batch,
    read_header,
    restamp,
    size_of_record,
)
from kclient.types import TimestampType
from tests.unit.records.faces import FACES, Face, build, rows


def test_bytes_of_a_small_batch(face: Face) -> None:
    builder = face.BatchBuilder(limit=1000)
    assert builder.append(1000, b"k", b"value") == 0
    assert builder.append(1001, None, None, [("h", None), ("é", b"\x00")]) == 1
    batch = builder.build(7, 42, 3, 9, 5)
    records = bytes(
        [24, 0, 0, 0, 2, ord("k"), 10, *b"value", 0, 28, 0, 2, 2, 1, 1, 4, 2, ord("h"), 1, 4, 0xC3, 0xA9, 2, 0]
    )
    assert batch[HEADER_SIZE:] == records
    assert batch[21:HEADER_SIZE] == struct.pack(">hiqqqhii", 0, 1, 1000, 1001, 42, 3, 9, 2)
    assert batch[:17] == struct.pack(">qiib", 7, len(batch) - 12, 5, 2)
    header = check_batch(batch)
    assert (header.last_offset, header.next_offset, header.length) == (8, 9, len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 9)


def test_state_of_the_builder(face: Face) -> None:
    builder = face.BatchBuilder(limit=200)
    assert (builder.count, builder.size, builder.limit) == (0, HEADER_SIZE, 200)
    assert (builder.first_timestamp, builder.max_timestamp) == (-1, -1)
    for timestamp in (500, 900, 100):
        builder.append(timestamp, b"", b"x")
    assert (builder.count, builder.first_timestamp, builder.max_timestamp) == (3, 500, 900)
    assert builder.size == len(builder.build())
    assert read_header(builder.build()).max_timestamp == 900


def test_limit(face: Face) -> None:
    size = size_of_record(None, b"x" * 50)
    builder = face.BatchBuilder(limit=HEADER_SIZE + 2 * size)
    assert builder.append(1, None, b"x" * 50) == 0
    assert builder.append(1, None, b"x" * 51) == -1
    assert builder.append(1, None, b"x" * 50) == 1
    assert builder.append(1, None, None) == -1
    assert (builder.count, builder.size) == (2, builder.limit)
    assert len(builder.build()) == builder.limit


def test_empty_batch_takes_any_record(face: Face) -> None:
    builder = face.BatchBuilder(limit=0)
    assert builder.append(1, None, b"x" * 100_000) == 0
    assert builder.append(1, None, b"") == -1
    (record,) = face.decode_records(builder.build(), "t", 0)
    assert record.value == b"x" * 100_000


def test_append_many(face: Face) -> None:
    values = [None if n % 5 == 0 else b"v%d" % n for n in range(1000)]
    keys = tuple(b"k%d" % n for n in range(1000))
    done = 0
    decoded: list[Any] = []
    while done < len(values):
        builder = face.BatchBuilder(limit=3000)
        taken = builder.append_many(77, values, keys, done)
        assert taken == builder.count > 0
        assert builder.size <= 3000
        decoded += face.decode_records(builder.build(), "t", 0)
        done += taken
    assert [record.value for record in decoded] == values
    assert tuple(record.key for record in decoded) == keys
    assert {record.timestamp for record in decoded} == {77}


def test_append_many_edges(face: Face) -> None:
    builder = face.BatchBuilder(limit=1000)
    assert builder.append_many(1, []) == 0
    assert builder.append_many(1, [b"a"], start=5) == 0
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        builder.append_many(1, [b"a"], [b"a", b"b"])
    with pytest.raises(ValueError, match="start must be from 0"):
        builder.append_many(1, [b"a"], start=-1)
    with pytest.raises(TypeError, match="value"):
        builder.append_many(1, [b"good", "bad"])
    assert builder.count == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((1, "text", b""), TypeError),
        ((1, b"", 5), TypeError),
        ((1, b"", [1]), TypeError),
        ((-2, b"", b""), ValueError),
        ((2**63, b"", b""), ValueError),
        ((1.5, b"", b""), TypeError),
        ((1, b"", b"", [(b"bytes", b"")]), TypeError),
        ((1, b"", b"", [("name", "text")]), TypeError),
        ((1, b"", b"", [("name",)]), TypeError),
        ((1, b"", b"", [("\ud800", b"")]), ValueError),
        ((1, b"", b"", 5), TypeError),
    ],
)
def test_refused_records_change_nothing(face: Face, arguments: tuple[Any, ...], kind: type[Exception]) -> None:
    builder = face.BatchBuilder(limit=1000)
    builder.append(1, b"k", b"v")
    with pytest.raises(kind):
        builder.append(*arguments)
    assert (builder.count, builder.size) == (1, HEADER_SIZE + size_of_record(b"k", b"v"))
    builder.append(2, b"k", b"v")
    assert [record.timestamp for record in face.decode_records(builder.build(), "t", 0)] == [1, 2]


class Subclass(bytes):
    """Bytes of a kind of their own."""


@pytest.mark.parametrize(
    "value",
    [bytearray(b"abcdef"), memoryview(b"abcdef"), memoryview(b"a-b-c-d-e-f")[::2], Subclass(b"abcdef")],
    ids=["bytearray", "memoryview", "strided", "subclass"],
)
def test_kinds_of_buffers(face: Face, value: Any) -> None:
    builder = face.BatchBuilder(limit=1000)
    builder.append(1, value, value, [("h", value)])
    (record,) = face.decode_records(builder.build(), "t", 0)
    assert (record.key, record.value, record.headers) == (b"abcdef", b"abcdef", (("h", b"abcdef"),))
    assert builder.size == HEADER_SIZE + size_of_record(value, value, [("h", value)])


def test_value_may_change_after_append(face: Face) -> None:
    value = bytearray(b"before")
    builder = face.BatchBuilder(limit=1000)
    builder.append(1, None, value)
    value[:] = b"after!, and longer"
    assert face.decode_records(builder.build(), "t", 0)[0].value == b"before"


def test_headers_that_append_to_the_builder(face: Face) -> None:
    builder = face.BatchBuilder(limit=10_000)

    class Sly(list[Any]):
        def __iter__(self) -> Any:
            builder.append(5, None, b"inner" * 100)
            return iter([("h", b"x")])

    assert builder.append(6, None, b"outer", Sly([1])) == 1
    values = [record.value for record in face.decode_records(builder.build(), "t", 0)]
    assert values == [b"inner" * 100, b"outer"]


def test_built_once_and_stamped_again(face: Face) -> None:
    for compression in CompressionType:
        builder = face.BatchBuilder(limit=10_000, compression=compression)
        builder.append_many(5, [b"x" * 100] * 20)
        first = builder.build()
        copy = bytes(first)
        assert read_header(copy).producer_id == -1
        again = builder.build(producer_id=7, producer_epoch=1, base_sequence=33)
        assert again is first
        header = check_batch(again)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 33)
        assert again[HEADER_SIZE:] == copy[HEADER_SIZE:]
        with pytest.raises(IllegalStateError):
            builder.append(1, None, b"")
        with pytest.raises(IllegalStateError):
            builder.append(1, bytearray(b""), b"")
        with pytest.raises(IllegalStateError):
            builder.append_many(1, [b""])
        assert builder.count == 20


def test_empty_batch_cannot_be_built(face: Face) -> None:
    with pytest.raises(IllegalStateError):
        face.BatchBuilder(limit=100).build()


def test_attributes(face: Face) -> None:
    builder = face.BatchBuilder(limit=100, compression=CompressionType.ZSTD, is_transactional=True, is_control=True)
    builder.append(1, b"\0\0\0\0", b"")
    header = check_batch(builder.build())
    assert header.compression is CompressionType.ZSTD
    assert header.is_transactional
    assert header.is_control
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_settings_are_checked(face: Face) -> None:
    with pytest.raises(ConfigError, match="limit"):
        face.BatchBuilder(limit=-1)
    with pytest.raises(ConfigError, match=r"compression\.gzip\.level"):
        face.BatchBuilder(limit=1, compression=CompressionType.GZIP, level=10)
    with pytest.raises(ConfigError, match="no levels"):
        face.BatchBuilder(limit=1, compression=CompressionType.SNAPPY, level=1)
    with pytest.raises(ValueError, match="not 9"):
        face.BatchBuilder(limit=1, compression=9)
    assert face.BatchBuilder(limit=2**40).limit == MAX_BATCH_SIZE


def test_restamp(face: Face) -> None:
    prefix = b"garbage"
    batch = build(face, [(1000, b"k", b"v", []), (2000, None, b"w", [])], compression=CompressionType.LZ4)
    buffer = bytearray(prefix + batch)
    crc = read_header(buffer, len(prefix)).crc
    restamp(buffer, len(prefix), base_offset=500, partition_leader_epoch=4)
    header = check_batch(buffer, len(prefix))
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (500, 4, crc)
    restamp(memoryview(buffer), len(prefix), base_offset=600, partition_leader_epoch=5, log_append_time=9999)
    header = check_batch(buffer, len(prefix))
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.max_timestamp, header.base_timestamp, header.compression) == (9999, 1000, CompressionType.LZ4)
    records = face.decode_records(buffer[len(prefix) :], "t", 0)
    assert [(record.offset, record.timestamp, record.timestamp_type) for record in records] == [
        (600, 9999, TimestampType.LOG_APPEND_TIME),
        (601, 9999, TimestampType.LOG_APPEND_TIME),
    ]
    assert buffer[: len(prefix)] == prefix


@pytest.mark.parametrize("log_append_time", [None, 9999])
def test_what_is_truncated_is_not_restamped(log_append_time: int | None) -> None:
    batch = build(FACES[0], [(1000, b"k", b"v", [])])
    for length in range(len(batch)):
        cut = bytearray(b"xx" + batch[:length])
        with pytest.raises(CorruptRecordError, match="truncated") as caught:
            restamp(cut, 2, base_offset=5, partition_leader_epoch=4, log_append_time=log_append_time)
        assert caught.value.position == 2
        assert cut == b"xx" + batch[:length]


@given(rows)
def test_twins_build_the_same_bytes(records: list[Any]) -> None:
    if len(FACES) < 2:
        pytest.skip("the compiled implementation is not built")
    for compression in CompressionType:
        batches = {build(face, records, compression=compression) for face in FACES}
        assert len(batches) == 1


@given(rows)
def test_predicted_size(records: list[Any]) -> None:
    for face in FACES:
        builder = face.BatchBuilder(limit=1 << 24)
        for index, (timestamp, key, value, headers) in enumerate(records):
            before = builder.size
            builder.append(timestamp, key, value, headers)
            delta = timestamp - builder.first_timestamp
            predicted = size_of_record(key, value, headers, timestamp_delta=delta, offset_delta=index)
            assert builder.size - before == predicted
        assert builder.size == len(builder.build())


def test_offsets_with_gaps(face: Face) -> None:
    builder = face.BatchBuilder(limit=1000)
    assert builder.append_at(3, 10, b"k", b"a") == 0
    assert builder.append(11, b"k", b"b") == 1
    assert builder.append_at(70_000, 12, b"k", b"c", [("h", None)]) == 2
    batch = builder.build(100)
    header = check_batch(batch)
    assert (header.base_offset, header.last_offset, header.count) == (100, 70_100, 3)
    assert [(r.offset, r.value) for r in face.decode_records(batch, "t", 0)] == [
        (103, b"a"),
        (104, b"b"),
        (70_100, b"c"),
    ]
    assert read_header(builder.build(100, last_offset_delta=70_005)).next_offset == 70_106
    for wrong in (69_999, -1, 2**31):
        with pytest.raises(ValueError, match="last_offset_delta must be from"):
            builder.build(100, last_offset_delta=wrong)


def test_offsets_that_cannot_be(face: Face) -> None:
    builder = face.BatchBuilder(limit=200)
    assert builder.append_at(2, 10, None, b"a") == 0
    for delta in (-1, 1, 2, 2**31):
        with pytest.raises(ValueError, match="offset_delta must be from 3 to"):
            builder.append_at(delta, 10, None, b"b")
    with pytest.raises(ValueError, match="-5"):
        builder.append_at(9, -5, None, b"b")
    with pytest.raises(TypeError):
        builder.append_at(9, 5, "key", b"b")
    assert builder.append_at(9, 5, None, b"x" * 200) == -1, "it does not fit"
    assert builder.append(5, None, b"b") == 1, "nothing has changed"
    assert builder.append_at(2**31 - 1, 5, None, b"c") == 2
    assert builder.append(5, None, b"d") == -1, "there are no more offsets in this batch"
    assert [r.offset for r in face.decode_records(builder.build(), "t", 0)] == [2, 3, 2**31 - 1]


def test_delete_horizon(face: Face) -> None:
    builder = face.BatchBuilder(limit=1000, delete_horizon=50_000)
    for timestamp in (40_000, 60_000, -1):
        builder.append(timestamp, b"k", None)
    assert (builder.first_timestamp, builder.max_timestamp) == (40_000, 60_000)
    batch = builder.build()
    header = check_batch(batch)
    assert (header.delete_horizon, header.base_timestamp, header.attributes) == (50_000, 50_000, 0x40)
    assert [r.timestamp for r in face.decode_records(batch, "t", 0)] == [40_000, 60_000, -1]
    assert check_batch(build(face, [(7, None, None, [])])).delete_horizon is None
    with pytest.raises(ConfigError, match="delete_horizon must be"):
        face.BatchBuilder(limit=1000, delete_horizon=-1)


@given(rows, st.integers(0, 2**62))
def test_predicted_size_beside_a_delete_horizon(records: list[Any], horizon: int) -> None:
    for face in FACES:
        builder = face.BatchBuilder(limit=1 << 24, delete_horizon=horizon)
        for record in records:
            builder.append(*record)
        batch = builder.build()
        assert len(batch) == builder.size
        assert [r.timestamp for r in face.decode_records(batch, "t", 0)] == [row[0] for row in records]


@pytest.mark.parametrize(
    ("name", "value"),
    [("base_offset", -1), ("base_offset", 2**63), ("partition_leader_epoch", 2**31), ("log_append_time", -5)],
)
def test_restamping_with_impossible_numbers_writes_nothing(name: str, value: int) -> None:
    buffer = bytearray(build(FACES[0], [(1000, b"k", b"v", [])]))
    before = bytes(buffer)
    numbers = {"base_offset": 500, "partition_leader_epoch": 4, "log_append_time": 9999, name: value}
    with pytest.raises(ValueError, match=name):
        restamp(buffer, **numbers)
    assert buffer == before
