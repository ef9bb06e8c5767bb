"""Decoding some columns only: the same as choosing from all of them, and batches that need not be opened are not."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError
from kclient.records import ArrowChunk, CompressionType, arrow_schema, restamp
from kclient.records.arrow import COLUMN_NAMES
from tests.unit.records.faces import FACES, Face, build, rows
from tests.unit.records.test_decode_records import numbered, place, transactional

chosen = st.lists(st.sampled_from(COLUMN_NAMES), min_size=1, unique=True)
FROM_HEADERS = ["offset", "partition", "topic", "timestampType"]


def sparse(face: Face, first: int) -> bytes:
    """As compaction leaves a batch: records are missing."""
    builder = face.BatchBuilder(limit=1 << 20)
    for delta in (0, 3, 4):
        builder.append_at(delta, 1000 + delta, b"k", b"v%d" % delta)
    return place(bytes(builder.build()), first)


def stamped(batch: bytes, offset: int) -> bytes:
    """As a topic with `message.timestamp.type=LogAppendTime` has it."""
    buffer = bytearray(batch)
    restamp(buffer, base_offset=offset, partition_leader_epoch=0, log_append_time=77)
    return bytes(buffer)


def undecodable(face: Face, *, count: int | None = None) -> bytes:
    """A compressed batch of ten records of which only the header makes sense; it may claim another `count` of them."""
    batch = bytearray(numbered(face, 0, 10, compression=CompressionType.ZSTD))
    batch[61:] = bytes(len(batch) - 61)
    if count is not None:
        struct.pack_into(">i", batch, 23, count - 1)  # last offset delta
        struct.pack_into(">i", batch, 57, count)
    return bytes(batch)


@given(
    st.lists(
        st.tuples(rows, st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(CompressionType), st.booleans()),
        max_size=4,
    ),
    chosen,
    st.integers(0, 2000),
    st.integers(0, 4000),
)
def test_the_same_as_chosen_from_all(parts: list[Any], names: list[str], start: int, end: int) -> None:
    for face in FACES:
        chunks = []
        for number, (records, topic, partition, compression, by_broker) in enumerate(parts):
            batch = build(face, records, compression=compression)
            put = stamped if by_broker else place
            chunks.append(ArrowChunk(topic, partition, put(batch, 1000 * number), start, max(start, end)))
            chunks.append(ArrowChunk(topic, partition, sparse(face, 1000 * number + 500), start, max(start, end)))
        found = face.decode_arrow(chunks, columns=names)
        found.validate(full=True)
        assert found == face.decode_arrow(chunks, include_headers=True).select(names)
        assert found.schema == arrow_schema(columns=iter(names))


def test_a_batch_is_not_opened_where_its_header_is_enough(face: Face) -> None:
    chunk = ArrowChunk("t", 3, undecodable(face), 2, 9)
    found = face.decode_arrow([chunk], columns=FROM_HEADERS, check_crcs=False)
    assert found.column("offset").to_pylist() == list(range(2, 9))
    assert set(found.column("partition").to_pylist()) == {3}
    for name in ("value", "key", "headers", "timestamp"):
        with pytest.raises(CorruptRecordError, match="cannot decompress"):
            face.decode_arrow([chunk], columns=["offset", name], check_crcs=False)


def test_times_that_a_broker_gave_are_in_the_header(face: Face) -> None:
    data = stamped(undecodable(face), 0)
    found = face.decode_arrow([("t", 0, data)], columns=["timestamp"], check_crcs=False)
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [77_000] * 10


def test_checksums_are_compared_all_the_same(face: Face) -> None:
    with pytest.raises(CorruptRecordError, match="checksum"):
        face.decode_arrow([("t", 0, undecodable(face))], columns=["offset"])


def test_more_records_than_can_be_believed_are_counted(face: Face) -> None:
    with pytest.raises(CorruptRecordError):
        face.decode_arrow([("t", 0, undecodable(face, count=2**31 - 1))], columns=["offset"], check_crcs=False)


def test_aborted_records_are_hidden(face: Face) -> None:
    log = transactional(face, 0, 1, 2) + numbered(face, 2, 2)
    found = face.decode_arrow([ArrowChunk("t", 0, log, aborted=[(1, 0)])], columns=["offset"])
    assert found.column("offset").to_pylist() == [2, 3]


def test_rows_without_content_count_for_enough(face: Face) -> None:
    data = b"".join(numbered(face, first, 100, compression=CompressionType.ZSTD) for first in range(0, 1000, 100))
    found, whole, go_on = face.decode_arrow_some([("t", 0, data)], 16 * 250, columns=["offset"])
    assert (found.num_rows, whole, go_on) == (300, 0, 300)


@pytest.mark.parametrize(
    ("columns", "error", "told"),
    [
        ("value", TypeError, "list of names, not 'value'"),
        (5, TypeError, "list of names, not 5"),
        ([b"value"], TypeError, "one of them is b'value'"),
        (["values"], ValueError, r"'values' \(str\); the columns are key, value, topic"),
        (["key", "value", "key"], ValueError, "key is named twice"),
        ([], ValueError, "names none"),
    ],
)
def test_wrong_columns_are_refused(face: Face, columns: Any, error: type[Exception], told: str) -> None:
    for call in (lambda: face.decode_arrow([], columns=columns), lambda: arrow_schema(columns=columns)):
        with pytest.raises(error, match=told):
            call()


def test_headers_are_asked_for_in_one_way(face: Face) -> None:
    with pytest.raises(ValueError, match="name headers among them"):
        face.decode_arrow([], True, columns=["key"])
