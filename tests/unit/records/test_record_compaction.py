"""Which records of a batch a compaction keeps, in both implementations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError
from kclient.records import HEADER_SIZE, BatchHeader, CompressionType, emptied_batch, read_header, restamp
from kclient.records.batch_header import write_header
from kclient.records.bounds import INT64_MAX
from tests.unit.records.faces import FACES, Face, outcome

HORIZON = 1_000_000
keys = st.sampled_from([b"", b"a", b"b", b"key-8byt", b"a longer key of more than one word"])
records = st.lists(
    st.tuples(
        st.integers(-1, 2**40),
        st.none() | keys,
        st.none() | st.binary(max_size=200),
        st.just([]) | st.just([("h", b"v"), ("n", None)]),
    ),
    min_size=1,
    max_size=10,
)


def batch_of(face: Face, rows: list[Any], base_offset: int = 0, **settings: Any) -> tuple[memoryview, BatchHeader]:
    """A batch at an offset, and its header."""
    builder = face.BatchBuilder(limit=1 << 24, **settings)
    for row in rows:
        assert builder.append(*row) >= 0
    batch = memoryview(bytes(builder.build(base_offset, 7, 1, 5, 3)))
    return batch, read_header(batch)


def contents(face: Face, batch: Any) -> list[tuple[int, int, bytes | None, bytes | None, Any]]:
    """Offset, timestamp, key, value and headers of each record."""
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in face.decode_records(batch, "t", 0)
    ]


def test_the_last_offset_of_each_key_is_noted(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    assert (offsets.slots, offsets.most, offsets.count, offsets.end) == (10, 9, 0, 0)
    batch, header = batch_of(face, [(0, b"a", b"1"), (0, b"b", b"2"), (0, None, b"3"), (0, b"a", b"4")], 10)
    assert face.note_keys(batch, header, offsets, 0)
    assert (offsets.count, offsets.end) == (2, 14)
    assert [offsets.superseded(b"a", offset) for offset in (10, 12, 13, 14)] == [True, True, False, False]
    assert [offsets.superseded(b"b", offset) for offset in (10, 11)] == [True, False]
    assert not offsets.superseded(b"c", 0)
    offsets.passed(20)
    assert offsets.end == 20


def test_what_lies_below_the_start_is_not_noted(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    batch, header = batch_of(face, [(0, b"a", b"1"), (0, b"b", b"2")], 10)
    assert face.note_keys(batch, header, offsets, 11)
    assert (offsets.count, offsets.superseded(b"a", 0), offsets.superseded(b"b", 0)) == (1, False, True)


def test_a_table_that_is_full_says_how_far_it_came(face: Face) -> None:
    offsets = face.KeyOffsets(3)  # of which two may be taken
    batch, header = batch_of(face, [(0, b"a", b""), (0, b"b", b""), (0, b"a", b""), (0, b"c", b""), (0, b"a", b"")], 5)
    assert not face.note_keys(batch, header, offsets, 0)
    assert (offsets.count, offsets.end) == (2, 8), "a key that is known needs no room"
    assert offsets.superseded(b"a", 6)
    assert not offsets.superseded(b"a", 7)


def test_many_keys(face: Face) -> None:
    offsets = face.KeyOffsets(3000)
    rows = [(0, b"%d" % (number % 1500), b"x") for number in range(4500)]
    batch, header = batch_of(face, rows)
    assert face.note_keys(batch, header, offsets, 0)
    assert offsets.count == 1500
    assert [offsets.superseded(b"%d" % number, 3000 + number) for number in range(1500)] == [False] * 1500
    assert all(offsets.superseded(b"%d" % number, 2999 + number) for number in range(1500))
    kept = face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON)
    assert [offset for offset, *_ in contents(face, kept)] == list(range(3000, 4500))


@pytest.mark.parametrize(
    ("slots", "error"), [(1, ValueError), (-1, ValueError), (1 << 41, ValueError), ("2", TypeError), (2.0, TypeError)]
)
def test_wrong_numbers_of_slots(face: Face, slots: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="slots must be"):
        face.KeyOffsets(slots)


@pytest.mark.parametrize("compression", CompressionType)
def test_records_that_were_superseded_go(face: Face, compression: CompressionType) -> None:
    offsets = face.KeyOffsets(10)
    rows = [(5, b"a", b"1"), (7, b"b", b"2", [("h", b"x")]), (6, b"a", b"3"), (9, None, b"no key"), (4, b"c", b"4")]
    batch, header = batch_of(face, rows, 10, compression=compression)
    later, second = batch_of(face, [(0, b"c", b"5")], 20)
    assert face.note_keys(batch, header, offsets, 0)
    assert face.note_keys(later, second, offsets, 0)
    kept = face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON)
    assert contents(face, kept) == [(11, 7, b"b", b"2", (("h", b"x"),)), (12, 6, b"a", b"3", ())]
    found = read_header(kept)
    changed = {"length", "crc", "count", "max_timestamp"}
    assert found.max_timestamp == 7
    assert found.count == 2
    unchanged = [name for name in BatchHeader._fields if name not in changed]
    assert [getattr(found, name) for name in unchanged] == [getattr(header, name) for name in unchanged]


def test_a_batch_of_which_nothing_goes_stays_as_it_is(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    batch, header = batch_of(face, [(5, b"a", b"1"), (7, b"b", b"2")])
    assert face.note_keys(batch, header, offsets, 0)
    assert face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON) is batch


def test_of_what_was_not_noted_all_stays(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    offsets.passed(10)
    batch, header = batch_of(face, [(5, None, b"1"), (7, b"b", b"2")], 10)
    assert face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON) is batch
    below, header = batch_of(face, [(5, None, b"1"), (7, b"b", b"2")], 9)
    assert [
        offset for offset, *_ in contents(face, face.compact_batch(below, header, offsets, now_ms=0, horizon_ms=0))
    ] == [10]


def test_a_tombstone_stays_until_its_horizon(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    batch, header = batch_of(face, [(500, b"a", None, [("h", None)]), (7, b"b", b"2"), (9, b"b", b"3")])
    assert face.note_keys(batch, header, offsets, 0)
    first = face.compact_batch(batch, header, offsets, now_ms=10, horizon_ms=HORIZON)
    expected = [(0, 500, b"a", None, (("h", None),)), (2, 9, b"b", b"3", ())]
    assert contents(face, first) == expected
    marked = read_header(first)
    assert (marked.delete_horizon, marked.base_timestamp, marked.max_timestamp) == (HORIZON, HORIZON, 500)
    view = memoryview(first)
    assert face.compact_batch(view, marked, offsets, now_ms=HORIZON - 1, horizon_ms=2 * HORIZON) is view
    last = face.compact_batch(view, marked, offsets, now_ms=HORIZON, horizon_ms=2 * HORIZON)
    assert contents(face, last) == expected[1:]
    assert read_header(last).delete_horizon == HORIZON, "it stays stamped"


def test_a_batch_of_which_no_record_stays(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    batch, header = batch_of(face, [(5, b"a", b"1"), (7, b"a", b"2")])
    later, second = batch_of(face, [(0, b"a", b"5")], 20)
    assert face.note_keys(later, second, offsets, 0)
    assert face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON) is None
    empty = read_header(emptied_batch(header))
    assert (empty.count, empty.base_sequence, empty.last_offset_delta, empty.producer_id) == (0, 5, 1, 7)
    assert (empty.length, empty.base_timestamp, empty.max_timestamp) == (HEADER_SIZE, -1, 7)


def test_the_time_of_the_log_stays_that_of_the_batch(face: Face) -> None:
    builder = face.BatchBuilder(limit=1 << 20)
    for key in (b"a", b"b", b"a"):
        builder.append(5, key, b"")
    batch = builder.build()
    restamp(batch, base_offset=0, partition_leader_epoch=0, log_append_time=777)
    view, header = memoryview(bytes(batch)), read_header(batch)
    offsets = face.KeyOffsets(10)
    assert face.note_keys(view, header, offsets, 0)
    kept = face.compact_batch(view, header, offsets, now_ms=0, horizon_ms=HORIZON)
    assert contents(face, kept) == [(1, 777, b"b", b"", ()), (2, 777, b"a", b"", ())]


@pytest.mark.parametrize("horizon", [0, HORIZON, INT64_MAX])
def test_timestamps_of_any_size_are_counted_from_a_horizon(face: Face, horizon: int) -> None:
    offsets = face.KeyOffsets(10)
    rows = [(-1, b"a", None), (0, b"b", None), (2**62, b"c", b"long" * 40), (INT64_MAX - 1, b"d", b"")]
    batch, header = batch_of(face, rows)
    assert face.note_keys(batch, header, offsets, 0)
    kept = face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=horizon)
    assert [stamp for _, stamp, *_ in contents(face, kept)] == [-1, 0, 2**62, INT64_MAX - 1]
    assert read_header(kept).delete_horizon == horizon


def test_a_damaged_batch_is_refused(face: Face) -> None:
    offsets = face.KeyOffsets(10)
    batch, header = batch_of(face, [(5, b"a", b"1"), (7, b"a", b"2")])
    damaged = bytearray(batch)
    damaged[-3] ^= 1
    with pytest.raises(CorruptRecordError):
        face.note_keys(memoryview(damaged), header, offsets, 0)
    with pytest.raises(CorruptRecordError):
        face.compact_batch(memoryview(damaged), header, offsets, now_ms=0, horizon_ms=HORIZON)


def test_records_that_make_no_sense_are_told_alike(twins: list[Face]) -> None:
    batch, header = batch_of(twins[0], [(5, b"a", b"1"), (7, b"b", b"2" * 50), (9, b"c", None)])
    payload = bytes(batch[HEADER_SIZE:])
    for place in range(len(payload)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = payload[:place] + bytes([value]) + payload[place + 1 :]
            for piece in (changed, changed[:-1], changed + b"\0"):
                told = []
                for face in twins:
                    offsets = face.KeyOffsets(10)
                    noted = outcome(offsets.note, piece, header, 0)
                    offsets.passed(3)
                    kept = outcome(face.surviving_records, piece, header, offsets, True, 50)
                    told.append((noted, offsets.count, kept))
                assert told[0] == told[1], (place, value)


@given(st.lists(records, min_size=1, max_size=5), st.integers(0, 50), st.booleans(), st.sampled_from(CompressionType))
def test_both_keep_what_a_dictionary_would(
    batches: list[list[Any]], end: int, past: bool, compression: CompressionType
) -> None:
    kept = []
    for face in FACES:
        made, offset = [], 0
        for rows in batches:
            made.append(batch_of(face, rows, offset, compression=compression))
            offset += len(rows)
        offsets = face.KeyOffsets(20)
        last: dict[bytes, int] = {}
        for (batch, header), rows in zip(made, batches, strict=True):
            if header.base_offset >= end:
                break
            assert face.note_keys(batch, header, offsets, 0)
            last |= {row[1]: header.base_offset + number for number, row in enumerate(rows) if row[1] is not None}
        found = []
        for (batch, header), rows in zip(made, batches, strict=True):
            if past and compression is CompressionType.NONE:
                header = header._replace(attributes=header.attributes | 0x40)
                batch = restamped(batch, header)
                header = read_header(batch)
            now = header.base_timestamp if past else 0
            out = face.compact_batch(batch, header, offsets, now_ms=now, horizon_ms=HORIZON)
            tombstones = header.delete_horizon is None or now < header.delete_horizon
            expected = [
                (place, stamp, key, value, tuple(headers))
                for place, (stamp, key, value, headers) in enumerate(rows, header.base_offset)
                if place >= offsets.end
                or (key is not None and last[key] <= place and (value is not None or tombstones))
            ]
            assert (contents(face, out) if out is not None else []) == expected
            found.append(None if out is None else bytes(out))
        kept.append(found)
    assert all(each == kept[0] for each in kept)


def restamped(batch: memoryview, header: BatchHeader) -> memoryview:
    """A batch with other attributes."""
    made = bytearray(batch)
    fields = header._asdict()
    for name in ("length", "magic", "crc"):
        del fields[name]
    write_header(made, **fields)
    return memoryview(bytes(made))


def test_more_than_one_piece_of_work_without_the_lock(face: Face) -> None:
    """Batches of more than 64 KiB are looked at without the interpreter's lock."""
    rows = [(number, b"%d" % (number % 700), b"v" * 100) for number in range(1400)]
    batch, header = batch_of(face, rows)
    offsets = face.KeyOffsets(2000)
    assert face.note_keys(batch, header, offsets, 0)
    kept = face.compact_batch(batch, header, offsets, now_ms=0, horizon_ms=HORIZON)
    assert [offset for offset, *_ in contents(face, kept)] == list(range(700, 1400))
