"""Batches among messages in envelopes: found, selected and joined, alike in both implementations."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.records import HEADER_SIZE, EnvelopeLayout
from tests.example_budget import examples
from tests.unit.records.faces import FACES, Face, outcome

MARK = 0x4B450200
LAYOUTS = [EnvelopeLayout(24, MARK, 0xFF, 4, 8, 12), EnvelopeLayout(40, MARK, 0, 7, 20, 32)]
FIRST = 1000
KINDS = [MARK, MARK | 9]


def message(layout: EnvelopeLayout, kind: int, key: int, number: int, offset: int, body: bytes) -> bytes:
    """One of the kind, with a batch of which only the base offset and the length matter."""
    made = bytearray(layout.size)
    batch = offset.to_bytes(8) + bytes(HEADER_SIZE - 8) + body
    Struct(">I").pack_into(made, 0, kind)
    Struct(">I").pack_into(made, layout.length_at, len(batch))
    Struct(">I").pack_into(made, layout.key_at, key)
    Struct(">Q").pack_into(made, layout.number_at, number)
    return bytes(made) + batch


contents = st.lists(
    st.tuples(st.sampled_from([MARK, MARK, MARK, MARK | 9]), st.integers(0, 2), st.binary(max_size=60)), max_size=12
)


def laid_out(layout: EnvelopeLayout, rows: list[tuple[int, int, bytes]]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Messages, and the key and batch of each; of other kinds the key -1. Each batch has its number as its offset."""
    data, batches = [], []
    for at, (kind, key, body) in enumerate(rows):
        data.append(message(layout, kind, key, FIRST + at, 7 * at, body))
        batches.append((key if kind == MARK else -1, data[-1][layout.size :]))
    return b"".join(data), batches


def entries_of(batches: list[tuple[int, bytes]], key: int) -> tuple[array[int], array[int]]:
    mine = [at for at, (each, _) in enumerate(batches) if each == key]
    return array("q", [FIRST + at for at in mine]), array("q", [7 * at for at in mine])


def gathered(face: Face, pieces: list[Any], size: int) -> bytes:
    into = bytearray(b"?" * size)
    assert face.module.gather_batches(pieces, into) is None
    return bytes(into)


@given(contents, st.integers(0, 2), st.integers(0, 4), st.integers(0, 5), st.integers(0, 400))
def test_what_is_there_is_found_and_joined(
    rows: list[tuple[int, int, bytes]], key: int, start: int, most: int, room: int
) -> None:
    data, batches = laid_out(LAYOUTS[0], rows)
    numbers, offsets = entries_of(batches, key)
    mine = [batch for each, batch in batches if each == key]
    for face in FACES:
        found = face.module.EnvelopedBatches(data, FIRST, LAYOUTS[0])
        assert (found.first, found.next) == (FIRST, FIRST + len(rows))
        for at, (each, batch) in enumerate(batches):
            if each == -1:
                assert outcome(found.place, FIRST + at)[0] is ValueError
            else:
                begin, end = found.place(FIRST + at)
                assert data[begin:end] == batch
        expected: list[bytes] = []
        for batch in mine[start : start + most]:
            if expected and sum(map(len, expected)) + len(batch) > room:
                break
            expected.append(batch)
        assert found.select(key, numbers, offsets, start, most, room) == (len(expected), sum(map(len, expected)))
        twice = [(found, numbers, start, len(expected))] * 2
        if start <= len(numbers):
            assert gathered(face, twice, 2 * sum(map(len, expected))) == b"".join(expected) * 2


@examples(300)
@given(st.data())
def test_both_say_the_same_of_changed_bytes(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    whole, batches = laid_out(layout, data.draw(contents))
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(len(changed) - 1, 0)), max_size=3)) if changed else []:
        changed[place] = data.draw(st.integers(0, 255))
    key = data.draw(st.integers(0, 2))
    numbers, offsets = entries_of(batches, key)
    if numbers and data.draw(st.booleans()):
        numbers[data.draw(st.integers(0, len(numbers) - 1))] = data.draw(st.integers(-(2**63), 2**63 - 1))
    said = []
    for face in FACES:
        found = face.module.EnvelopedBatches(bytes(changed), FIRST, layout)
        places = [outcome(found.place, FIRST + at) for at in range(len(batches) + 1)]
        count = outcome(found.select, key, numbers, offsets, 0, 99, 200)
        joined = outcome(gathered, face, [(found, numbers, 0, len(numbers))], count[1])
        said.append((found.next, places, count, joined))
    assert all(each == said[0] for each in said), said


def test_messages_that_are_not_due_end_it(face: Face) -> None:
    layout = LAYOUTS[0]
    first, second = (message(layout, MARK, 1, FIRST + at, 0, b"") for at in (0, 1))
    for data, whole in (
        (first + second, 2), (first + first, 1), (second, 0), (first + second[:-1], 1), (first + bytes(90), 1),
        (first + (MARK ^ 0x100).to_bytes(4) + second[4:], 1), (b"", 0),
    ):  # fmt: skip
        assert face.module.EnvelopedBatches(data, FIRST, layout).next == FIRST + whole
    short = bytearray(first)
    short[7] = HEADER_SIZE - 1
    assert face.module.EnvelopedBatches(short + second, FIRST, layout).next == FIRST, "that is no batch"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_select_stops_at_what_is_not_as_it_should_be(face: Face, place: int) -> None:
    data, _ = laid_out(LAYOUTS[0], [(MARK, 1, b"a"), (MARK, 1, b"b"), (MARK, 1, b"c")])
    found = face.module.EnvelopedBatches(data, FIRST, LAYOUTS[0])
    for wrong in (FIRST + 3, FIRST - 1, -(2**63), 2**63 - 1):
        numbers, offsets = array("q", [FIRST, FIRST + 1, FIRST + 2]), array("q", [0, 7, 14])
        numbers[place] = wrong
        assert found.select(1, numbers, offsets, 0, 9, 9999)[0] == place
        with pytest.raises(ValueError, match=f"no batch in a message with the number {wrong}"):
            face.module.gather_batches([(found, numbers, 0, 3)], bytearray(999))
        numbers[place], offsets[place] = FIRST + place, 8
        assert found.select(1, numbers, offsets, 0, 9, 9999)[0] == place
    assert found.select(1, array("q"), array("q"), 5, 9, 9999) == (0, 0)


def test_wrong_arguments(twins: list[Face]) -> None:
    layout, numbers = LAYOUTS[0], array("q", [FIRST])
    data = message(layout, MARK, 1, FIRST, 0, b"")

    def calls(face: Face) -> list[Any]:
        made, gather = face.module.EnvelopedBatches, face.module.gather_batches
        found = made(data, FIRST, layout)
        return [
            outcome(made, "x", 0, layout),
            outcome(made, b"", -1, layout),
            outcome(made, b"", "0", layout),
            outcome(made, b"", 0, (24, MARK, 0xFF, 4, 8, 12)),
            outcome(made, b"", 0, layout._replace(size=19)),
            outcome(made, b"", 0, layout._replace(number_at=17)),
            outcome(made, b"", 0, layout._replace(key_at=6)),
            outcome(made, b"", 0, layout._replace(length_at=3)),
            outcome(found.place, 1.5),
            outcome(found.place, -1),
            outcome(found.select, -1, numbers, numbers, 0, 1, 1),
            outcome(found.select, 1, [FIRST], numbers, 0, 1, 1),
            outcome(found.select, 1, numbers, array("l", [0]), 0, 1, 1),
            outcome(found.select, 1, numbers, array("d", [0]), 0, 1, 1),
            outcome(found.select, 1, numbers, numbers, -1, 1, 1),
            outcome(found.select, 1, numbers, numbers, 0, -1, 1),
            outcome(found.select, 1, numbers, numbers, 0, 1, 2**63),
            outcome(gather, [(data, numbers, 0, 1)], bytearray(61)),
            outcome(gather, [(found, [FIRST], 0, 1)], bytearray(61)),
            outcome(gather, [(found, numbers, 2, 0)], bytearray(61)),
            outcome(gather, [(found, numbers, 0, 2)], bytearray(61)),
            outcome(gather, [(found, numbers, 0, -1)], bytearray(61)),
            outcome(gather, [(found, numbers, 0, 1)], bytearray(60)),
            outcome(gather, [(found, numbers, 0, 1)], bytearray(62)),
            outcome(gather, [(found, numbers, 0, 1)], bytes(61)),
            outcome(gather, [(found, numbers, 0, 1)], memoryview(bytes(61))),
            outcome(gather, [(found, numbers, 0, 1)], "x"),
        ]

    said = [calls(face) for face in twins]
    assert all(issubclass(each[0], TypeError | ValueError) for each in said[0]), said[0]
    assert said[0] == said[1]


def test_the_greatest_numbers() -> None:
    first = 2**63 - 1
    for face in FACES:
        data = b"".join(message(LAYOUTS[0], MARK, 1, number, 0, b"") for number in (first, first + 1))
        found = face.module.EnvelopedBatches(data, first, LAYOUTS[0])
        assert (found.first, found.next) == (first, first + 2)
        assert found.place(first) == (24, 24 + HEADER_SIZE)
