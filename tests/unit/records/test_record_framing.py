"""The framing that a message store uses, and the twins' equal faces."""

from __future__ import annotations

import pytest

from kclient.records import RecordBatchFraming, restamp
from tests.unit.records.faces import Face, build


def batch_at(face: Face, offset: int) -> bytes:
    buffer = bytearray(build(face, [(10, None, b"a", []), (30, None, b"b", []), (20, None, b"c", [])]))
    restamp(buffer, base_offset=offset, partition_leader_epoch=1)
    return bytes(buffer)


def test_finding_ones_way(face: Face) -> None:
    framing = RecordBatchFraming()
    first, second = batch_at(face, 100), batch_at(face, 103)
    data = memoryview(first + second)
    assert framing.measure(data[: framing.prefix]) == len(first)
    assert framing.measure(data, len(first)) == len(second)
    info = framing.inspect(data[: len(first) + framing.prefix], len(first))
    assert (info.length, info.first, info.last, info.max_timestamp) == (len(second), 103, 105, 30)
    assert framing.verify(data)
    assert framing.verify(data, len(first))
    assert not framing.verify(data, 1)


def test_the_stores_own_type(face: Face) -> None:
    framing = RecordBatchFraming(lambda length, first, last, timestamp: {"length": length, "first": first})
    batch = batch_at(face, 7)
    assert framing.inspect(batch) == {"length": len(batch), "first": 7}


def test_what_is_no_batch(face: Face) -> None:
    framing = RecordBatchFraming()
    batch = batch_at(face, 0)
    for data in (b"", b"\xff" * 100, bytes(100), batch[:50], b"\x00" * 16 + b"\x01" + bytes(100)):
        with pytest.raises(ValueError):
            framing.inspect(data)
        assert not framing.verify(data)
    with pytest.raises(ValueError):
        framing.measure(bytes(61))
    for position in range(8, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert framing.verify(damaged) is (12 <= position < 16)
        assert not framing.verify(batch[:position])
