"""What is known of positions, and the list of extents, without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import IllegalStateError
from kclient.gateway.extents import Chunk, Chunks, Extent
from kclient.gateway.extents.chunks import MOST
from kclient.gateway.extents.extent import check, find, replaced, split, trimmed
from kclient.gateway.rows.extents import (
    ChunkRow,
    ChunksRow,
    ExtentRow,
    decode_chunks,
    decode_extents,
    encode_chunks,
    encode_extents,
)
from kclient.htp import Place, Topic

PLACE, OTHER = Place(Topic("t", "0"), "brk-0", 1), Place(Topic("t", "0.1"), "brk-1", 2)


def extent(first: int, until: int | None, start: int, end: int | None, place: Place = PLACE) -> Extent:
    return Extent(place, first, until, end, Chunks.starting_at(first, start))


@pytest.mark.slow
def test_chunks_are_never_too_many_and_forget_no_bytes() -> None:
    chunks = Chunks.starting_at(0, 0)
    size = 0
    for number in range(200_000):
        if chunks.full:
            chunks.begin(number * 10, number * 7)
        chunks.grow(100_000, number, number)
        size += 100_000
        assert len(chunks.all) <= MOST
    assert chunks.size == size
    assert [chunk.first for chunk in chunks.all] == sorted({chunk.first for chunk in chunks.all})
    assert chunks.last.max_timestamp == chunks.last.modified_ms == 199_999
    assert chunks.unit < 4 * size / MOST


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(0, 3_000))
def test_an_offset_lies_in_the_chunk_that_begins_before_it(lengths: list[int], offset: int) -> None:
    chunks, first = Chunks.starting_at(0, 0), 0
    for length in lengths:
        first += length
        chunks.begin(first, first * 3)
    found = chunks.all[chunks.index(offset)]
    assert found.first == max(chunk.first for chunk in chunks.all if chunk.first <= offset)


def test_the_list_of_a_partition() -> None:
    extents = [extent(0, 100, 0, 500), extent(100, 250, 30, 90, OTHER), extent(300, None, 500, None)]
    check(extents)
    assert [find(extents, offset) for offset in (0, 99, 100, 249, 250, 299, 300, 10_000)] == [0, 0, 1, 1, 2, 2, 2, 2]
    assert trimmed(extents, 100) == extents[1:]
    assert trimmed(extents, 99) == extents
    assert trimmed(extents, 10_000) == extents[2:]


@pytest.mark.parametrize(
    "extents",
    [
        [],
        [extent(0, 100, 0, 50)],
        [extent(0, None, 0, None), extent(100, None, 0, None)],
        [extent(0, 100, 0, 50), extent(99, None, 0, None)],
        [extent(5, 5, 0, 50), extent(99, None, 0, None)],
    ],
)
def test_what_is_no_list_of_a_partition(extents: list[Extent]) -> None:
    with pytest.raises(IllegalStateError):
        check(extents)


def test_others_take_the_place_of_extents_only_from_bound_to_bound() -> None:
    extents = [extent(0, 100, 0, 500), extent(100, 250, 500, 900), extent(250, None, 900, None)]
    copy = extent(20, 90, 0, 10, OTHER)
    assert replaced(extents, 0, 100, [copy]) == [copy, *extents[1:]]
    assert replaced(extents, 0, 250, [copy]) == [copy, extents[2]]
    assert replaced(extents, 100, 250, []) == [extents[0], extents[2]]
    for first, until, by in [
        (0, 99, [copy]),
        (1, 100, [copy]),
        (250, 300, [copy]),
        (0, 100, [extent(20, 110, 0, 10, OTHER)]),
        (0, 100, [extent(20, None, 0, None, OTHER)]),
        (250, 250, []),
    ]:
        with pytest.raises(IllegalStateError):
            replaced(extents, first, until, by)


def test_an_extent_is_split_with_what_is_known_of_it() -> None:
    whole = extent(0, None, 0, None)
    for first, position in [(100, 10), (200, 20), (300, 30)]:
        whole.chunks.begin(first, position)
    below, rest = split(whole, 200, 20, Chunk(200, 20, 0, -1, 0))
    assert (below.first, below.next, below.end, rest.first, rest.next, rest.end) == (0, 200, 20, 200, None, None)
    assert [chunk.first for chunk in below.chunks.all] == [0, 100]
    assert [chunk.first for chunk in rest.chunks.all] == [200, 300]
    whole.chunks.all[2] = whole.chunks.all[2]._replace(size=1_000, max_timestamp=9)
    below, rest = split(whole, 250, 25, Chunk(200, 20, 300, 7, 1))
    assert (below.chunks.size, rest.chunks.size) == (300, 700)
    assert [chunk.first for chunk in below.chunks.all] == [0, 100, 200]
    assert [(chunk.first, chunk.position) for chunk in rest.chunks.all] == [(250, 25), (300, 30)]


def test_rows_tell_what_was_written_and_damage_is_an_error() -> None:
    extents = [ExtentRow("t", "0", "brk-0", 4, 0, 100, 0, 50), ExtentRow("t", "ü", "", 5, 100, None, 0, None)]
    chunks = [ChunksRow(0, 4, 100, [ChunkRow(0, 0, 1, -1, 2), ChunkRow(50, 9, 1, 3, 4)])]
    assert decode_extents(encode_extents(extents)) == extents
    assert decode_chunks(encode_chunks(chunks)) == chunks
    for row in (encode_extents(extents), encode_chunks(chunks)):
        for at in range(len(row)):
            for wrong in (row[:at], row[:at] + b"7" + row[at + 1 :]):
                if wrong not in (row, row[:-9]):  # without its checksum it is as the first versions wrote rows
                    for decode in (decode_extents, decode_chunks):
                        with pytest.raises(ValueError, match=r"."):
                            decode(wrong)  # type: ignore[operator]
    with pytest.raises(ValueError, match="comes after"):
        decode_chunks(encode_chunks([ChunksRow(0, 4, 100, [ChunkRow(5, 9, 1, 1, 1), ChunkRow(4, 9, 1, 1, 1)])]))
    with pytest.raises(ValueError, match="no chunk"):
        decode_chunks(encode_chunks([ChunksRow(0, 4, 100, [])]))
