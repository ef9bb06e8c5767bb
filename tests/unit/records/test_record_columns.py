"""Decoding to Arrow columns: the same records as the objects, in the schema of Spark's source."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError, IllegalStateError, RecordTooLargeError
from kclient.records import ArrowChunk, CompressionType, arrow_schema, read_header, restamp
from tests.unit.records.faces import FACES, Face, build, rows
from tests.unit.records.test_decode_records import marker, numbered, place, transactional

GREATEST = 2**63 - 1


def as_rows(face: Face, chunks: list[ArrowChunk]) -> list[dict[str, Any]]:
    """What `decode_arrow` ought to say, from the objects."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": min(record.timestamp * 1000, GREATEST),
            "timestampType": int(record.timestamp_type),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for chunk in chunks
        for record in face.decode_records(
            chunk.buffer,
            chunk.topic,
            chunk.partition,
            start_offset=chunk.start_offset,
            end_offset=chunk.end_offset,
            aborted=chunk.aborted,
        )
    ]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    position = batch.schema.get_field_index("timestamp")
    return batch.set_column(position, "timestamp", batch.column(position).cast(pa.int64())).to_pylist()  # type: ignore[no-any-return]


def test_schema(face: Face) -> None:
    empty = face.decode_arrow([])
    assert empty.num_rows == 0
    assert empty.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert face.decode_arrow([], include_headers=True).schema == empty.schema.append(pa.field("headers", headers))
    assert arrow_schema() == empty.schema


@given(
    st.lists(st.tuples(rows, st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(CompressionType)), max_size=4)
)
def test_same_as_objects(parts: list[Any]) -> None:
    for face in FACES:
        chunks = [
            ArrowChunk(topic, partition, place(build(face, records, compression=compression), 1000 * number))
            for number, (records, topic, partition, compression) in enumerate(parts)
        ]
        batch = face.decode_arrow(chunks, include_headers=True)
        assert rows_of(batch) == as_rows(face, chunks)
        assert face.decode_arrow(map(tuple, chunks)) == batch.drop_columns(["headers"])


def test_many_batches_and_ranges(face: Face) -> None:
    data = b"".join(numbered(face, first, 100, compression=CompressionType(first % 5)) for first in range(0, 3000, 100))
    chunks = [ArrowChunk("t", 0, data, 150, 2750), ArrowChunk("t", 1, data, 2999), ArrowChunk("u", 1, data, 3000)]
    assert rows_of(face.decode_arrow(chunks, include_headers=True)) == as_rows(face, chunks)
    assert face.decode_arrow(chunks).num_rows == 2601


def test_nulls_in_every_place(face: Face) -> None:
    for count in range(1, 20):
        for null in range(count):
            records = [(1, None if n == null else b"k", b"v" if n == null else None, []) for n in range(count)]
            batch = face.decode_arrow([("t", 0, build(face, records), 0, None)])
            assert batch.column("key").to_pylist() == [key for _, key, _, _ in records]
            assert batch.column("value").to_pylist() == [value for _, _, value, _ in records]
            assert batch.column("key").null_count == 1


def test_aborted_transactions_are_hidden(face: Face) -> None:
    log = transactional(face, 0, 1, 2) + numbered(face, 2, 2) + marker(face, 4, 1, commit=False)
    batch = face.decode_arrow([ArrowChunk("t", 0, log, aborted=[(1, 0)])])
    assert batch.column("offset").to_pylist() == [2, 3]
    assert face.decode_arrow([ArrowChunk("t", 0, log)]).num_rows == 4


def test_log_append_time(face: Face) -> None:
    buffer = bytearray(build(face, [(1, None, b"", []), (2, None, b"", [])]))
    restamp(buffer, base_offset=0, partition_leader_epoch=0, log_append_time=77)
    batch = face.decode_arrow([("t", 0, buffer)])
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [77_000, 77_000]
    assert batch.column("timestampType").to_pylist() == [1, 1]


def test_timestamps_beyond_arrow(face: Face) -> None:
    limit = GREATEST // 1000
    records = [(stamp, None, None, []) for stamp in (limit, limit + 1, GREATEST, -1)]
    batch = face.decode_arrow([("t", 0, build(face, records))])
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [limit * 1000, GREATEST, GREATEST, -1000]


def test_header_keys_that_are_not_utf8(face: Face) -> None:
    data = bytearray(build(face, [(1, None, b"", [("ab", b"")])]))
    data[data.index(b"ab")] = 0xFF
    batch = face.decode_arrow([("t", 0, data)], include_headers=True, check_crcs=False)
    assert batch.column("headers").to_pylist() == [[{"key": "\N{REPLACEMENT CHARACTER}b", "value": b""}]]


def test_corrupt_batch(face: Face) -> None:
    good = numbered(face, 0, 10)
    bad = bytearray(numbered(face, 10, 10))
    bad[-2] ^= 1
    with pytest.raises(CorruptRecordError) as caught:
        face.decode_arrow([("t", 0, good + bytes(bad))])
    assert (caught.value.offset, caught.value.position) == (10, len(good))
    assert face.decode_arrow([("t", 0, good + bytes(bad))], check_crcs=False).num_rows == 20


def test_buffers_are_free_afterwards_and_columns_stay(face: Face) -> None:
    data = bytearray(numbered(face, 0, 1000))
    batch = face.decode_arrow([("t", 0, data)])
    data.clear()
    assert batch.column("value").to_pylist() == [b"%d" % n for n in range(1000)]


def test_builder_is_empty_after_finish(face: Face) -> None:
    builder = face.ColumnBuilder(True)
    data = numbered(face, 0, 10)
    header = read_header(data)
    assert builder.append(data[61:], header, 0, 0, GREATEST) == 10
    first = builder.finish()
    assert builder.append(data[61:], header, 0, 5, 8) == 3
    second = builder.finish()
    assert (first.rows, second.rows, builder.finish().rows) == (10, 3, 0)
    assert bytes(second.value_data) == b"567"
    assert second.headers == [None] * 3


def test_more_than_two_gibibytes_are_refused(face: Face) -> None:
    builder = face.ColumnBuilder()
    data = numbered(face, 0, 1)
    header = read_header(data)
    beyond = memoryview(mmap.mmap(-1, 1 << 31))  # pages that nobody touches
    with pytest.raises(RecordTooLargeError, match="2 GiB"):
        builder.append(beyond, header, 0, 0, GREATEST)


@pytest.mark.slow
def test_threads_do_not_share_a_builder(twins: list[Face]) -> None:
    """The compiled one decodes without the GIL; a second thread is turned away instead of moving its buffers."""
    compiled = twins[-1]
    data = build(compiled, [(1, None, b"x" * 50, [])] * 100_000)
    header = read_header(data)
    builder = compiled.ColumnBuilder()
    refused: list[Exception] = []

    def work() -> None:
        for _ in range(20):
            try:
                builder.append(data[61:], header, 0, 0, GREATEST)
            except IllegalStateError as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.finish().rows == (80 - len(refused)) * 100_000


@pytest.mark.parametrize("size", [0, 10, 3_000, 100_000])
def test_keys_of_any_size(face: Face, size: int) -> None:
    """More than room was made for at first, in batches that are read with and without the GIL."""
    records = [(n, bytes([n % 256]) * (size + n % 7), b"v" * (n % 3), []) for n in range(30)]
    batches = [build(face, records[:20]), build(face, records[20:])]
    chunks = [ArrowChunk("t", 0, batch) for batch in batches]
    assert face.decode_arrow(chunks)["key"].to_pylist() == [key for _, key, _, _ in records]
    if size:
        compressed = build(face, records, compression=CompressionType.LZ4)
        columns = face.decode_arrow([("t", 0, compressed, 3, 25)], include_headers=True)
        assert columns["key"].to_pylist() == [key for _, key, _, _ in records[3:25]]


def test_many_rows_of_one_topic(face: Face) -> None:
    batch = numbered(face, 0, 200)
    columns = face.decode_arrow([("name" * 5, 7, batch)] * 90)
    columns.validate(full=True)
    assert set(columns["topic"].to_pylist()) == {"name" * 5}
    assert set(columns["partition"].to_pylist()) == {7}
    assert columns.num_rows == 18_000
