"""Messages of a partition: batches as they are, and batches in envelopes."""

from __future__ import annotations

from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import CorruptRecordError
from kclient.gateway.extents import BARE, Enveloped
from kclient.records.restamping import place_batch
from tests.gateway_wire import batch_of

ID = b"0123456789abcdef"


def at(offset: int, *values: bytes) -> bytes:
    batch = bytearray(batch_of(*values))
    place_batch(batch, offset, 3)
    return bytes(batch)


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=50)), min_size=1, max_size=20))
def test_each_partition_finds_its_own_batches(written: list[tuple[int, bytes]]) -> None:
    batches = [(partition, at(offset, value)) for offset, (partition, value) in enumerate(written)]
    messages = b"".join(Enveloped(ID, partition, 3).wrap(batch) for partition, batch in batches)
    for partition in range(4):
        encoding = Enveloped(ID, partition, 3)
        found = list(encoding.batches(messages))
        own = [batch for each, batch in batches if each == partition]
        assert [bytes(batch) for _, batch in found] == own
        assert bytes(encoding.joined(messages, [], found)) == b"".join(own)
        assert [header.base_offset for header, _ in found] == [
            offset for offset, (each, _) in enumerate(written) if each == partition
        ]


def test_the_framing_finds_its_way_among_envelopes() -> None:
    encoding = Enveloped(ID, 7, 3)
    messages = [encoding.wrap(at(100 + number, b"x" * number, b"y")) for number in range(5)]
    data, position = b"".join(messages), 0
    for number, message in enumerate(messages):
        assert encoding.framing.measure(data, position) == len(message)
        assert encoding.framing.verify(data, position)
        info = encoding.framing.inspect(data, position)
        assert (info.length, info.first, info.last) == (len(message), 100 + number, 101 + number)
        position += len(message)
    assert len(messages[0]) > encoding.framing.prefix


def test_a_damaged_envelope_is_told() -> None:
    encoding = Enveloped(ID, 7, 3)
    message = encoding.wrap(at(5, b"value"))
    for number in range(len(message)):
        wrong = bytearray(message)
        wrong[number] ^= 0x40
        whole = encoding.framing.verify(bytes(wrong))
        assert not whole or number in range(28, 40) or number in range(40, 45), number  # the offset and the epoch
        if number < 28:
            with pytest.raises(CorruptRecordError):
                list(encoding.batches(bytes(wrong)))
            with pytest.raises(ValueError, match=r"envelope"):
                encoding.framing.measure(bytes(wrong))
    for size in range(len(message)):
        assert not encoding.framing.verify(message[:size])


def test_a_kind_of_a_later_version_is_passed_over() -> None:
    later = bytearray(Enveloped(ID, 7, 3).wrap(at(5, b"value")))
    later[3] = 9
    later[24:28] = pack(">I", crc32c(bytes(later[:24])))
    after = Enveloped(ID, 7, 3).wrap(at(6, b"more"))
    assert [header.base_offset for header, _ in Enveloped(ID, 7, 3).batches(bytes(later) + after)] == [6]
    framing = Enveloped(ID, 7, 3).framing
    assert framing.verify(bytes(later))
    assert framing.inspect(bytes(later)).length == len(later)


def test_an_envelope_is_as_long_as_its_batch() -> None:
    batch = at(5, b"value")
    longer = Enveloped(ID, 7, 3).wrap(batch + b"junk")
    assert not Enveloped(ID, 7, 3).framing.verify(longer)
    with pytest.raises(CorruptRecordError, match="its batch"):
        list(Enveloped(ID, 7, 3).batches(longer))


def test_a_bare_batch_is_its_own_message() -> None:
    one, two = at(0, b"a"), at(1, b"b")
    found = list(BARE.batches(one + two))
    assert [bytes(batch) for _, batch in found] == [one, two]
    assert bytes(BARE.joined(one + two, found[:1], found[1:])) == two
    assert BARE.wrap(one) is one
