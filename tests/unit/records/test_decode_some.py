"""Decoding in pieces that are bounded after decompression: nothing is left out, and nothing more is opened."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.records import ArrowChunk, CompressionType
from tests.unit.records.faces import FACES, Face, message_set

MIB = 1 << 20


def batches(face: Face, sizes: list[int], compression: CompressionType) -> bytes:
    """A batch of two records for each size, the offsets with gaps between batches."""
    made = b""
    for number, size in enumerate(sizes):
        builder = face.BatchBuilder(limit=2 * MIB, compression=compression)
        builder.append(1000, None, bytes(size))
        builder.append(1000, b"k", b"end")
        made += bytes(builder.build(base_offset=5 * number))
    return made


@pytest.mark.parametrize("face", FACES, ids=str)
def test_pieces_are_bounded_after_decompression(face: Face) -> None:
    data = batches(face, [MIB] * 20, CompressionType.ZSTD)
    assert len(data) < MIB // 4
    start, pieces = 0, 0
    go_on: int | None = 0
    while go_on is not None:
        records, go_on, opened = face.decode_some(data, "t", 0, 3 * MIB, start_offset=start)
        assert sum(len(record.value) for record in records) <= opened < 5 * MIB
        pieces += 1
        start = go_on or start
    assert pieces == 7

    start, columns = 0, []
    go_on = 0
    while go_on is not None:
        batch, whole, go_on = face.decode_arrow_some([ArrowChunk("t", 0, data, start)], 3 * MIB)
        assert batch.nbytes < 5 * MIB
        assert whole == (1 if go_on is None else 0)
        columns.append(batch)
        start = go_on or start
    assert len(columns) == 7
    assert sum(batch.num_rows for batch in columns) == 40


SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@pytest.mark.parametrize("face", FACES, ids=str)
@given(
    chunks=st.lists(SIZES, min_size=1, max_size=4),
    enough=st.integers(1, 1000),
    start=st.integers(0, 30),
    compression=st.sampled_from([CompressionType.NONE, CompressionType.ZSTD, CompressionType.LZ4]),
)
def test_pieces_make_the_whole(
    face: Face, chunks: list[list[int]], enough: int, start: int, compression: CompressionType
) -> None:
    buffers = [batches(face, sizes, compression) for sizes in chunks]
    wanted = [ArrowChunk("t", number, data, start) for number, data in enumerate(buffers)]

    left, pieces = list(wanted), []
    while left:
        batch, whole, go_on = face.decode_arrow_some(left, enough)
        pieces.append(batch)
        left = left[whole:]
        if go_on is not None:
            left[0] = left[0]._replace(start_offset=go_on)
        assert whole or go_on is not None
    assert pa.Table.from_batches(pieces).combine_chunks().to_pylist() == face.decode_arrow(wanted).to_pylist()

    for number, data in enumerate(buffers):
        found: list[Any] = []
        place: int | None = start
        while place is not None:
            records, place, _ = face.decode_some(data, "t", number, enough, start_offset=place)
            assert records or place is None
            found += records
        assert found == face.decode_records(data, "t", number, start_offset=start)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_partial_batch_at_the_end_is_the_end(face: Face) -> None:
    data = batches(face, [10, 10, 10], CompressionType.NONE)[:-1]
    records, place, _ = face.decode_some(data, "t", 0, 1)
    assert (len(records), place) == (2, 2)
    records, place, _ = face.decode_some(data, "t", 0, 1, start_offset=2)
    assert (len(records), place) == (2, 7)
    assert face.decode_some(data, "t", 0, 1, start_offset=7) == ([], None, 0)


@pytest.mark.parametrize("face", FACES, ids=str)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_message_sets_in_pieces(face: Face, magic: int, compression: CompressionType) -> None:
    data = b"".join(
        message_set(magic, [(1000, None, b"x" * 100)] * 3, 10 * number, compression=compression) for number in range(5)
    )
    whole = face.decode_records(data, "t", 0)
    found: list[Any] = []
    place: int | None = 0
    while place is not None:
        records, place, _ = face.decode_some(data, "t", 0, 150, start_offset=place)
        found += records
    assert found == whole
