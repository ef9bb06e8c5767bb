"""Looking through the records of a batch in pieces: what readers would choke on is refused, in both implementations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError
from kclient.records import HEADER_SIZE, BatchHeader, read_header
from kclient.records.batch_header import write_header
from tests.example_budget import examples
from tests.unit.records.faces import FACES, INTERPRETED, Face, build, outcome, rows

ROWS = [(1000, b"k", b"first", [("h", b"1")]), (1007, None, b"second" * 40, []), (1003, b"", None, [("h", None)])]


def pieces(payload: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(payload)) for cut in cuts})
    return [payload[start:end] for start, end in zip([0, *places], [*places, len(payload)], strict=True)]


def scanned(face: Face, header: BatchHeader, parts: list[bytes], **options: Any) -> Any:
    scan = face.RecordScan(header, **options)
    for part in parts:
        scan.feed(part)
    scan.finish()
    return scan.count, scan.least_timestamp, scan.greatest_timestamp, scan.keyless


def rewritten(batch: bytes, **changes: int) -> bytes:
    """The batch with other numbers in its header, and a right checksum."""
    made = bytearray(batch)
    header = read_header(batch)
    numbers = {
        "base_offset": header.base_offset,
        "partition_leader_epoch": header.partition_leader_epoch,
        "attributes": header.attributes,
        "last_offset_delta": header.last_offset_delta,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "count": header.count,
    }
    write_header(made, **{**numbers, **changes})
    return bytes(made)


@pytest.mark.parametrize("cuts", [[], [1], [7, 8, 30], list(range(400))])
def test_a_good_batch(face: Face, cuts: list[int]) -> None:
    batch = build(face, ROWS)
    header = read_header(batch)
    assert scanned(face, header, pieces(batch[HEADER_SIZE:], cuts), needs_keys=True) == (3, 1000, 1007, [1])


@given(rows, st.lists(st.integers(0, 600), max_size=5))
def test_what_can_be_read_passes(records: list[Any], cuts: list[int]) -> None:
    batch = build(INTERPRETED, records)
    header = read_header(batch)
    stamps = [row[0] for row in records]
    keyless = [number for number, row in enumerate(records) if row[1] is None]
    expected = (len(records), min(stamps), max(stamps), keyless)
    for face in FACES:
        assert scanned(face, header, pieces(batch[HEADER_SIZE:], cuts), needs_keys=True) == expected


@examples(400)
@given(st.data())
def test_what_passes_can_be_read(data: st.DataObject) -> None:
    """Changed bytes: both say the same of them, cut anywhere, and what they let through every reader reads."""
    batch = bytearray(build(INTERPRETED, ROWS))
    for place in data.draw(st.lists(st.integers(HEADER_SIZE, len(batch) - 1), min_size=1, max_size=3)):
        batch[place] = data.draw(st.integers(0, 255))
    header = read_header(rewritten(batch))
    payload = bytes(batch[HEADER_SIZE:])
    cuts = data.draw(st.lists(st.integers(0, len(payload)), max_size=4))
    found = [outcome(scanned, face, header, [payload]) for face in FACES]
    assert all(each == found[0] for each in found), found
    torn = [outcome(scanned, face, header, pieces(payload, cuts)) for face in FACES]
    assert all(each == torn[0] for each in torn), torn
    refused = isinstance(found[0][0], type)
    assert refused is isinstance(torn[0][0], type), (found, torn)
    if not refused:
        for face in FACES:
            records = face.decode_records(rewritten(batch), "t", 0)
            assert [record.offset for record in records] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ({"count": 4, "last_offset_delta": 3}, lambda body: body),
        ({"count": 2, "last_offset_delta": 1}, lambda body: body),
        ({}, lambda body: body + b"\x00"),
        ({}, lambda body: body[:-1]),
        ({}, lambda body: b"\xff" * len(body)),
        ({"count": 1, "last_offset_delta": 0}, lambda body: b"\x01" + body),
        ({"count": 1, "last_offset_delta": 0}, lambda _: b"\x0e\x00\x00\x02\x01\x01\x00\x00"),  # offset delta 1 of 0
    ],
    ids=["one fewer", "one more", "trailing", "cut off", "no varint", "negative length", "delta"],
)
def test_what_readers_would_choke_on(face: Face, changes: dict[str, int], payload: Any) -> None:
    batch = rewritten(build(face, ROWS), **changes)
    body = payload(batch[HEADER_SIZE:])
    for cuts in ([], [3], list(range(len(body)))):
        with pytest.raises(CorruptRecordError):
            scanned(face, read_header(batch), pieces(body, cuts))


def test_offsets_of_a_producer_have_no_gaps(face: Face) -> None:
    builder = face.BatchBuilder(limit=1 << 20)
    builder.append_at(0, 1, None, b"a")
    builder.append_at(2, 1, None, b"b")
    batch = bytes(builder.build())
    with pytest.raises(CorruptRecordError):
        scanned(face, read_header(batch), [batch[HEADER_SIZE:]])
    assert scanned(face, read_header(batch), [batch[HEADER_SIZE:]], since=2)[0] == 2, "but those of a log may"


@pytest.mark.parametrize(
    ("since", "first", "expected"),
    [(0, 0, (0, 1000)), (1001, 0, (1, 1007)), (0, 2, (2, 1003)), (1008, 0, None), (1007, 2, None)],
)
@pytest.mark.parametrize("cuts", [[], [5, 11, 290]])
def test_searching(face: Face, since: int, first: int, expected: object, cuts: list[int]) -> None:
    batch = build(face, ROWS)
    scan = face.RecordScan(read_header(batch), since=since, first_delta=first)
    for part in pieces(batch[HEADER_SIZE:], cuts):
        scan.feed(part)
    assert scan.found == expected
