"""Reading record batches as objects: what is chosen, how they look, what deserializers do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given

from kclient.errors import CorruptRecordError, RecordDeserializationError
from kclient.records import (
    CompressionType,
    EndMarker,
    check_batch,
    encode_end_marker,
    iter_headers,
    restamp,
)
from kclient.types import TimestampType
from tests.unit.records.faces import FACES, Face, build, rows


def place(batch: bytes, offset: int, epoch: int = 0) -> bytes:
    buffer = bytearray(batch)
    restamp(buffer, base_offset=offset, partition_leader_epoch=epoch)
    return bytes(buffer)


def numbered(face: Face, first: int, count: int, **settings: Any) -> bytes:
    """A batch whose values are the offsets of its records."""
    return place(build(face, [(n, None, b"%d" % n, []) for n in range(first, first + count)], **settings), first)


@given(rows)
def test_round_trip(records: list[Any]) -> None:
    for face in FACES:
        for compression in CompressionType:
            batch = build(face, records, compression=compression)
            decoded = face.decode_records(batch, "topic", 3)
            assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded] == records
            assert [r.offset for r in decoded] == list(range(len(records)))


def test_fields(face: Face) -> None:
    batch = place(build(face, [(1234, b"k", None, [("a", b"1"), ("a", None)])]), 10**12, epoch=6)
    (record,) = face.decode_records(batch, "topic", 3)
    assert record.topic == "topic"
    assert record.partition == 3
    assert record.offset == 10**12
    assert record.timestamp == 1234
    assert record.timestamp_type is TimestampType.CREATE_TIME
    assert record.key == b"k"
    assert record.value is None
    assert record.headers == (("a", b"1"), ("a", None))
    assert record.leader_epoch == 6


def test_unknown_leader_epoch(face: Face) -> None:
    (record,) = face.decode_records(build(face, [(1, None, b"", [])]), "t", 0)
    assert record.leader_epoch is None


def test_record_is_a_value(face: Face) -> None:
    make = face.ConsumerRecord
    record = make("t", 1, 2, 3, 0, b"k", b"v", [("h", None)], 4)
    same = make("t", 1, 2, 3, TimestampType.CREATE_TIME, b"k", b"v", (("h", None),), 4)
    assert record == same
    assert hash(record) == hash(same)
    assert record != make("t", 1, 2, 3, 1, b"k", b"v", [("h", None)], 4)
    assert record != make("t", 1, 2, 3, 0, b"k", b"v", [("h", None)])
    assert record != "something else"
    assert repr(record) == (
        "ConsumerRecord(topic='t', partition=1, offset=2, timestamp=3, timestamp_type=CREATE_TIME, "
        "key=b'k', value=b'v', headers=(('h', None),), leader_epoch=4)"
    )
    for name in ("topic", "offset", "value", "headers", "timestamp_type", "leader_epoch"):
        with pytest.raises(AttributeError):
            setattr(record, name, 1)
        with pytest.raises(AttributeError):
            delattr(record, name)
    with pytest.raises(AttributeError):
        record.other = 1
    assert make("t", 1, 2, 3, TimestampType.NO_TIMESTAMP, None, None).timestamp_type is TimestampType.NO_TIMESTAMP
    with pytest.raises(TypeError):
        type("Sub", (make,), {})()


def test_how_often_a_record_was_delivered(face: Face) -> None:
    records = face.decode_records(numbered(face, 0, 3), "t", 0)
    assert [record.delivery_count for record in records] == [None, None, None]
    before = face.decode_records(numbered(face, 0, 3), "t", 0)
    face.count_deliveries(records, 1, 3, 7)
    assert [record.delivery_count for record in records] == [None, 7, 7]
    assert records[0] == before[0]
    assert records[1] != before[1]
    assert repr(records[1]).endswith(", delivery_count=7)")
    assert pickle.loads(pickle.dumps(records[1])).delivery_count == 7
    made = face.ConsumerRecord("t", 0, 0, 0, 0, None, None, delivery_count=3)
    assert made.delivery_count == 3
    for wrong in (0, 2**15, 1.5):
        with pytest.raises((TypeError, ValueError), match="delivery_count"):
            face.ConsumerRecord("t", 0, 0, 0, 0, None, None, delivery_count=wrong)


def test_record_survives_pickling(face: Face) -> None:
    record = face.ConsumerRecord("t", 1, 2, 3, 1, b"k", {"json": 1}, [("h", b"x")], None)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert repr(pickle.loads(pickle.dumps(record, protocol))) == repr(record)
    assert repr(copy.copy(record)) == repr(record)


def test_range_of_offsets(face: Face) -> None:
    data = b"".join(numbered(face, first, 10) for first in (100, 110, 120, 130))
    decode = face.decode_records
    assert [int(r.value) for r in decode(data, "t", 0, start_offset=105)] == list(range(105, 140))
    assert [int(r.value) for r in decode(data, "t", 0, start_offset=115, end_offset=125)] == list(range(115, 125))
    assert [int(r.value) for r in decode(data, "t", 0, end_offset=110)] == list(range(100, 110))
    assert decode(data, "t", 0, start_offset=140) == []
    assert decode(data, "t", 0, end_offset=100) == []
    assert [r.offset for r in decode(data, "t", 0, start_offset=139)] == [139]


def test_damage_behind_the_range_is_not_looked_at_but_that_before_it_is(face: Face) -> None:
    good, damaged = numbered(face, 100, 10), bytearray(numbered(face, 110, 10))
    damaged[-1] ^= 1
    assert len(face.decode_records(good + bytes(damaged), "t", 0, end_offset=110)) == 10
    # Whether it lies before the range is told by the header, which may be what is damaged.
    with pytest.raises(CorruptRecordError, match="offset 110"):
        face.decode_records(bytes(damaged) + numbered(face, 120, 10), "t", 0, start_offset=120)


def test_partial_batch_at_the_end_is_left_out(face: Face) -> None:
    whole, partial = numbered(face, 0, 5), numbered(face, 5, 5)
    for length in range(len(partial)):
        data = whole + partial[:length]
        assert len(face.decode_records(data, "t", 0)) == 5
        assert [header.base_offset for _, header in iter_headers(data)] == [0]
    assert face.decode_records(b"", "t", 0) == []
    assert len(face.decode_records(whole + partial, "t", 0)) == 10


def test_batches_one_by_one(face: Face) -> None:
    data = b"".join(numbered(face, first, 10) for first in (0, 10, 20))
    batches = face.iter_batches(memoryview(data), "t", 0, start_offset=12)
    moves = [(header.next_offset, [int(r.value) for r in records]) for header, records in batches]
    assert moves == [(10, []), (20, list(range(12, 20))), (30, list(range(20, 30)))]


def test_buffer_is_free_after_decoding(face: Face) -> None:
    data = bytearray(numbered(face, 0, 10) + numbered(face, 10, 10))
    records = face.decode_records(data, "t", 0)
    for _ in face.iter_batches(data, "t", 0):
        pass
    data.clear()  # raises BufferError while anything still points into it
    assert [int(r.value) for r in records] == list(range(20))


def test_gaps_of_compaction(face: Face) -> None:
    # Compaction removes records and keeps offsets: a batch of two records whose last offset is 9.
    batch = bytearray(build(face, [(n, None, b"%d" % n, []) for n in range(10)]))
    parts = face.decode_records(batch, "t", 0)
    size = (len(batch) - 61) // 10
    kept = batch[:61] + batch[61 + 3 * size : 61 + 4 * size] + batch[61 + 7 * size : 61 + 8 * size]
    kept[57:61] = (2).to_bytes(4, "big")
    kept[8:12] = (len(kept) - 12).to_bytes(4, "big")
    restamp(kept, base_offset=50, partition_leader_epoch=0, log_append_time=1)
    assert [(r.offset, r.value) for r in face.decode_records(kept, "t", 0)] == [
        (53, parts[3].value),
        (57, parts[7].value),
    ]
    assert check_batch(kept).next_offset == 60


def test_empty_batch_of_compaction(face: Face) -> None:
    kept = bytearray(numbered(face, 0, 10)[:61])
    kept[57:61] = bytes(4)
    kept[8:12] = (61 - 12).to_bytes(4, "big")
    restamp(kept, base_offset=50, partition_leader_epoch=0, log_append_time=1)
    assert [(header.next_offset, records) for header, records in face.iter_batches(kept, "t", 0)] == [(60, [])]


def test_deserializers(face: Face) -> None:
    calls: list[Any] = []

    def key(topic: str, headers: Any, data: bytes) -> str:
        calls.append((topic, headers, data))
        return data.decode()

    batch = build(face, [(1, b"1", b"10", [("h", b"x")]), (2, None, b"20", []), (3, b"3", None, [])])
    records = face.decode_records(batch, "t", 0, key_deserializer=key, value_deserializer=lambda t, h, d: int(d))
    assert [(r.key, r.value) for r in records] == [("1", 10), (None, 20), ("3", None)]
    assert calls == [("t", (("h", b"x"),), b"1"), ("t", (), b"3")]


@pytest.mark.parametrize("what", ["key", "value"])
def test_deserializer_fails(face: Face, what: str) -> None:
    batch = place(build(face, [(1, b"1", b"1", []), (2, b"x", b"x", [])]), 40)
    deserializer = {f"{what}_deserializer": lambda t, h, d: int(d)}
    with pytest.raises(RecordDeserializationError, match=f"{what} of the record at offset 41 of t-2") as caught:
        face.decode_records(batch, "t", 2, **deserializer)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 2, 41)
    assert isinstance(caught.value.__cause__, ValueError)


def test_deserializer_that_resizes_the_buffer(face: Face) -> None:
    data = bytearray(numbered(face, 0, 10))

    def sly(topic: str, headers: Any, value: bytes) -> bytes:
        data.clear()
        return value

    with pytest.raises(RecordDeserializationError) as caught:
        face.decode_records(data, "t", 0, value_deserializer=sly)
    assert isinstance(caught.value.__cause__, BufferError)


def test_keyboard_interrupt_in_a_deserializer_passes(face: Face) -> None:
    def interrupted(topic: str, headers: Any, value: bytes) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        face.decode_records(numbered(face, 0, 2), "t", 0, value_deserializer=interrupted)


def test_header_keys_that_are_not_utf8(face: Face) -> None:
    batch = bytearray(build(face, [(1, None, b"", [("ab", b"")])]))
    batch[batch.index(b"ab")] = 0xFF
    (record,) = face.decode_records(batch, "t", 0, check_crcs=False)
    assert record.headers == (("\N{REPLACEMENT CHARACTER}b", b""),)


def marker(face: Face, offset: int, producer_id: int, *, commit: bool) -> bytes:
    builder = face.BatchBuilder(limit=1000, is_transactional=True, is_control=True)
    builder.append(1, *encode_end_marker(commit=commit, coordinator_epoch=0))
    return bytes(builder.build(offset, producer_id, 0))


def transactional(face: Face, offset: int, producer_id: int, count: int = 1) -> bytes:
    builder = face.BatchBuilder(limit=1000, is_transactional=True)
    for n in range(offset, offset + count):
        builder.append(1, None, b"%d" % n)
    return bytes(builder.build(offset, producer_id, 0, 0))


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_is_read(face: Face, commit: bool) -> None:
    builder = face.BatchBuilder(limit=1000, is_transactional=True, is_control=True, compression=CompressionType.GZIP)
    builder.append(1, *encode_end_marker(commit=commit, coordinator_epoch=9))
    assert face.read_end_marker(builder.build(5, 7, 0)) == EndMarker(commit, 9)
    assert face.read_end_marker(transactional(face, 0, 1)) is None
    other = face.BatchBuilder(limit=1000, is_control=True)
    other.append(1, b"\x00\x00\x00\x02", b"")  # of a controller
    assert face.read_end_marker(other.build()) is None
    damaged = face.BatchBuilder(limit=1000, is_control=True)
    damaged.append(1, b"\x00\x00\x00\x01", b"\x00\x00")
    with pytest.raises(CorruptRecordError, match="no valid value"):
        face.read_end_marker(damaged.build())


def test_aborted_transactions_are_hidden(face: Face) -> None:
    log = b"".join(
        [
            transactional(face, 0, 1, 2),  # aborted by 5
            transactional(face, 2, 2),  # committed by 6
            numbered(face, 3, 2),  # of no transaction
            marker(face, 5, 1, commit=False),
            marker(face, 6, 2, commit=True),
            transactional(face, 7, 1),  # the same producer's next transaction, committed
            marker(face, 8, 1, commit=True),
        ]
    )
    everything = face.decode_records(log, "t", 0)
    assert [r.offset for r in everything] == [0, 1, 2, 3, 4, 7]
    committed = face.decode_records(log, "t", 0, aborted=[(1, 0)])
    assert [r.offset for r in committed] == [2, 3, 4, 7]
    moves = [header.next_offset for header, _ in face.iter_batches(log, "t", 0, aborted=[(1, 0)])]
    assert moves == [2, 3, 5, 6, 7, 8, 9]
    pieces: list[list[int]] = []
    place: int | None = 0
    while place is not None:  # a piece begins in the middle of transactions that began before it
        records, place, _ = face.decode_some(log, "t", 0, 1, start_offset=place, aborted=[(1, 0)])
        pieces.append([r.offset for r in records])
    assert pieces == [[2], [3, 4], [7], []]


def test_aborted_transaction_whose_data_are_gone(face: Face) -> None:
    log = marker(face, 5, 1, commit=False) + transactional(face, 6, 1) + marker(face, 7, 1, commit=True)
    assert [r.offset for r in face.decode_records(log, "t", 0, aborted=[(1, 2)])] == [6]
