"""Messages that name their partition and their ordinal."""

from __future__ import annotations

from array import array

import pytest

from kclient.errors import CorruptRecordError
from kclient.gateway.virtual.envelopes import (
    LAYOUT,
    ORDINALS,
    SIZE,
    OrdinalFraming,
    found_in,
    last_offset_at,
    wrap,
)
from kclient.htp.framings import find_framing
from kclient.records import EnvelopedBatches
from kclient.records.restamping import place_batch
from tests.gateway_wire import batch_of

FRAMING = OrdinalFraming()


def batch_at(offset: int, *values: bytes) -> bytearray:
    batch = batch_of(*values, timestamp=1000 + offset)
    place_batch(batch, offset, 3)
    return batch


BATCHES = [(7, batch_at(0, b"a")), (2, batch_at(5, b"b", b"c")), (7, batch_at(1, b"d" * 100)), (2, batch_at(9, b"e"))]
MESSAGES = [wrap(partition, 40 + at, batch) for at, (partition, batch) in enumerate(BATCHES)]
DATA = b"".join(MESSAGES)


def test_it_is_found_by_its_name() -> None:
    assert isinstance(find_framing("kclient.envelope.v2"), OrdinalFraming)


def test_a_store_finds_its_way() -> None:
    place = 0
    for at, message in enumerate(MESSAGES):
        assert FRAMING.measure(DATA, place) == len(message)
        offset = [0, 5, 1, 9][at]
        assert tuple(FRAMING.inspect(DATA, place))[:4] == (len(message), 40 + at, 40 + at, 1000 + offset)  # type: ignore[arg-type]
        assert FRAMING.verify(DATA, place)
        place += len(message)
    assert not FRAMING.verify(DATA, place)


def test_any_change_of_a_byte_is_found() -> None:
    message = MESSAGES[0]
    for place in range(len(message)):
        if SIZE <= place < SIZE + 16 and place not in range(SIZE + 8, SIZE + 12):
            continue  # the base offset and the leader epoch are under no checksum, as in every batch
        changed = bytearray(message)
        changed[place] ^= 0x10
        assert not FRAMING.verify(changed), place
    for length in range(len(message)):
        assert not FRAMING.verify(message[:length])


def test_the_batches_of_each_partition() -> None:
    batches = EnvelopedBatches(DATA, 40, LAYOUT)
    assert (batches.first, batches.next) == (40, 44)
    for at, (partition, batch) in enumerate(BATCHES):
        begin, end = batches.place(40 + at)
        assert DATA[begin:end] == batch
        assert last_offset_at(DATA, begin) == [0, 6, 1, 9][at]
        numbers, offsets = array("q", [40 + at]), array("q", [[0, 5, 1, 9][at]])
        assert batches.select(partition, numbers, offsets, 0, 1, 0) == (1, len(batch))
        assert batches.select(partition + 1, numbers, offsets, 0, 1, 0) == (0, 0)
    assert [tuple(found)[:4] for found in found_in(DATA, 40)] == [
        (7, 40, 0, 0), (2, 41, 5, 6), (7, 42, 1, 1), (2, 43, 9, 9),
    ]  # fmt: skip


def test_a_reader_stops_at_what_is_not_due() -> None:
    for data, first, whole in ((DATA, 41, 41), (MESSAGES[0] + MESSAGES[2], 40, 41), (DATA[:-1], 40, 43)):
        assert EnvelopedBatches(data, first, LAYOUT).next == whole
        with pytest.raises(CorruptRecordError):
            list(found_in(data, first))
    changed = bytearray(DATA)
    changed[len(MESSAGES[0]) + 11] ^= 1  # another partition
    with pytest.raises(CorruptRecordError):
        list(found_in(changed, 40))


def test_a_reader_passes_over_kinds_that_it_does_not_know() -> None:
    from crc32c import crc32c

    other = bytearray(MESSAGES[1])
    other[3] = 9
    other[20:24] = crc32c(bytes(other[:20])).to_bytes(4)
    data = MESSAGES[0] + bytes(other) + MESSAGES[2]
    batches = EnvelopedBatches(data, 40, LAYOUT)
    assert batches.next == 43
    assert batches.select(7, array("q", [40, 42]), array("q", [0, 1]), 0, 9, 999)[0] == 2
    with pytest.raises(ValueError, match="no batch in a message with the number 41"):
        batches.place(41)
    assert [found.ordinal for found in found_in(data, 40)] == [40, 42]
    assert FRAMING.verify(bytes(other))
    assert FRAMING.inspect(bytes(other)).max_timestamp == -1


def test_in_extents_ordinals_are_offsets() -> None:
    found = list(ORDINALS.batches(DATA))
    assert [(header.base_offset, header.last_offset) for header, _ in found] == [(at, at) for at in range(40, 44)]
    assert [bytes(message) for _, message in found] == MESSAGES
    assert bytes(ORDINALS.joined(DATA, found[:1], found[1:3])) == MESSAGES[1] + MESSAGES[2]
    assert ORDINALS.wrap(MESSAGES[0]) is MESSAGES[0]
