"""murmur2 and the choice of partitions as Java's client has them, FNV-1a as Sarama has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from tests.unit.records.faces import FACES, Face

# from Kafka's UtilsTest.testMurmur2
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_values_of_the_java_client(face: Face) -> None:
    assert {key: face.murmur2(key) for key in JAVA} == JAVA


@given(st.binary(max_size=100), st.integers(1, 2**31 - 1))
def test_same_as_kafka_python(key: bytes, partitions: int) -> None:
    expected = kafka_python_murmur2(key)
    for face in FACES:
        assert face.murmur2(key) & 0xFFFFFFFF == expected & 0xFFFFFFFF
        assert face.murmur2(bytearray(key)) == face.murmur2(memoryview(key)) == face.murmur2(key)
        assert face.partition_for_key(key, partitions) == (expected & 0x7FFFFFFF) % partitions


# what Go's hash/fnv gives Sarama, as librdkafka's unit test has it
SARAMA = {
    b"kafka": 0xD33C4E1,
    b"giberish123456789": 0x77A58295,
    b"1234": 0x23BDD03,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x65CBD69C,
    b"": 0x7EE3623B,
}


def test_values_of_sarama(face: Face) -> None:
    assert {key: face.fnv1a(key) for key in SARAMA} == SARAMA
    assert face.fnv1a(bytearray(b"kafka")) == face.fnv1a(memoryview(b"-kafka-")[1:6]) == SARAMA[b"kafka"]


@given(st.binary(max_size=100))
def test_both_have_the_same_fnv1a(key: bytes) -> None:
    first, *others = [face.fnv1a(key) for face in FACES]
    assert 0 <= first <= 2**31
    assert all(other == first for other in others)


@pytest.mark.parametrize("partitions", [0, -1, 2**31, 2**70])
def test_impossible_numbers_of_partitions(face: Face, partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions must be from 1 to 2147483647"):
        face.partition_for_key(b"k", partitions)


@pytest.mark.parametrize("key", ["text", None, 5])
def test_keys_must_be_bytes(face: Face, key: Any) -> None:
    with pytest.raises(TypeError):
        face.murmur2(key)
    with pytest.raises(TypeError):
        face.fnv1a(key)
    with pytest.raises(TypeError):
        face.partition_for_key(key, 3)
