"""Elements that look alike, read by functions written for their layout: the same values, the same errors."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kclient.errors import ProtocolError
from kclient.protocol import ApiMessage, Message, Schema, _runs, schema_of
from kclient.protocol._decoder import decoder_source
from kclient.protocol._runs import Runs, can_run
from kclient.protocol.codec import compile_decoder
from kclient.protocol.messages import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.protocol.schema import ArrayType, StructType
from tests.example_budget import examples
from tests.protocol_values import every_version, fitted, messages

COUNTS = st.sampled_from([0, 1, 3, 3, 3, 3, 32, 33, 130])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are written for the second of two neighbours; decoders are compiled anew for each test."""
    monkeypatch.setattr(_runs, "WORTH", 1)
    monkeypatch.setattr(MetadataResponse, "_decoders", {})
    monkeypatch.setattr(DescribeTopicPartitionsResponse, "_decoders", {})


def partition(*counts: int, number: int = 0, unknown: dict[int, bytes] | None = None) -> MetadataResponsePartition:
    made = MetadataResponsePartition(
        partition_index=number,
        leader_id=counts[0],
        replica_nodes=list(range(counts[0])),
        isr_nodes=list(range(7, 7 + counts[1])),
        offline_replicas=list(range(-counts[2], 0)),
    )
    made.unknown_tagged_fields = unknown
    return made


PARTITIONS = st.lists(
    st.builds(
        lambda counts, times, unknown: [partition(*counts, number=n, unknown=unknown) for n in range(times)],
        st.tuples(COUNTS, COUNTS, COUNTS),
        st.integers(1, 6),
        st.sampled_from([None, None, None, {5: b"unknown"}]),
    ),
    max_size=6,
).map(lambda groups: [item for group in groups for item in group])
RESPONSES = st.builds(
    MetadataResponse,
    topics=st.lists(st.builds(MetadataResponseTopic, name=st.just("topic"), partitions=PARTITIONS), max_size=3),
)
EACH = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@EACH
@given(response=RESPONSES, version=st.sampled_from([9, 12, MetadataResponse.VERSIONS.high]))
def test_any_mixture(response: MetadataResponse, version: int) -> None:
    encoded = response.encode(version)
    assert MetadataResponse.decode(encoded, version) == response
    assert MetadataResponse.decode(bytearray(encoded), version).encode(version) == encoded


@EACH
@given(response=RESPONSES, data=st.data())
def test_damage_is_what_it_is_without_runs(response: MetadataResponse, data: st.DataObject) -> None:
    encoded = bytearray(response.encode(12))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(encoded) == outcome(encoded, worth=10**9)


def outcome(encoded: bytes | bytearray, worth: int = 1) -> MetadataResponse | str:
    """The message, or the error; with a high worth by the decoder alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_runs, "WORTH", worth)
        patch.setattr(MetadataResponse, "_decoders", {})
        try:
            return MetadataResponse.decode(encoded, 12)
        except ProtocolError as error:
            return str(error)


@pytest.mark.slow
def test_every_truncation() -> None:
    partitions = [partition(3, 3, 0, number=n) for n in range(20)] + [partition(3, 2, 1, number=20)]
    response = MetadataResponse(topics=[MetadataResponseTopic(name="topic", partitions=partitions)])
    encoded = response.encode(12)
    for size in range(len(encoded)):
        with pytest.raises(ProtocolError):
            MetadataResponse.decode(encoded[:size], 12)
    with pytest.raises(ProtocolError):
        MetadataResponse.decode(encoded + b"\0", 12)


def test_the_last_ones_are_shorter_than_the_layout() -> None:
    """Nothing is read behind the end of the buffer, though the run would need it."""
    partitions = [partition(30, 30, 30, number=n) for n in range(5)] + [partition(0, 0, 0)]
    topics = [MetadataResponseTopic(name="topic", partitions=partitions)]
    response = MetadataResponse(topics=[*topics, MetadataResponseTopic(name="t", partitions=[partition(0, 0, 0)])])
    assert MetadataResponse.decode(response.encode(12), 12) == response


def test_null_arrays() -> None:
    items = [DescribeTopicPartitionsResponsePartition(partition_index=n, replica_nodes=[1]) for n in range(4)]
    others = [
        DescribeTopicPartitionsResponsePartition(partition_index=n, last_known_elr=[1], eligible_leader_replicas=[])
        for n in range(4)
    ]
    topic = DescribeTopicPartitionsResponseTopic(name="topic", partitions=[*items, *others, *items])
    response = DescribeTopicPartitionsResponse(topics=[topic])
    assert DescribeTopicPartitionsResponse.decode(response.encode(0), 0) == response
    for null in (0, 1):  # where the schema has no null
        schema = schema_of(MetadataResponse, 12)
        whole = MetadataResponse(topics=[MetadataResponseTopic(name="", partitions=[partition(1, 1, 0)] * 4)])
        encoded = bytearray(whole.encode(12))
        encoded[encoded.rindex(b"\x02\0\0\0\0\x02") + 5 * null] = 0
        for decode in (schema.decode, lambda data: MetadataResponse.decode(data, 12)):
            with pytest.raises(ProtocolError):
                decode(bytes(encoded))


def alike(value: Message) -> Message:
    """Puts five copies before the first element of every list of nested messages, so that neighbours are alike."""
    for item in value.FIELDS:
        held = getattr(value, item.name)
        if isinstance(item.type, ArrayType) and isinstance(item.type.element, StructType) and held:
            setattr(value, item.name, [alike(held[0])] * 5 + held)
    return value


def with_runs() -> list[tuple[type[ApiMessage], int]]:
    found = [
        (message, version)
        for message, version in every_version()
        if "runs_of" in decoder_source(message, version).text()
    ]
    return list(dict(found).items())  # the newest version of each


@EACH
@pytest.mark.parametrize(
    ("message", "version"), [pytest.param(*found, id=f"{found[0].__name__}-{found[1]}") for found in with_runs()]
)
@given(data=st.data())
def test_every_message_that_has_runs(message: type[ApiMessage], version: int, data: st.DataObject) -> None:
    drawn = fitted(data.draw(messages(message)), version)
    alike(drawn)
    encoded = drawn.encode(version)
    value, end = compile_decoder(message, version)(encoded, 0)
    assert end == len(encoded)
    assert schema_of(message, version).encode(value) == encoded


def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends many layouts makes us write few functions, and none for a layout that came by chance."""
    monkeypatch.setattr(_runs, "WORTH", 3)
    runs = Runs(MetadataResponsePartition, schema_of(MetadataResponsePartition, 12, flexible=True), [], {})
    first, second, third, fourth = [runs[4, 4, 1] for _ in range(4)]
    assert (first, second) == (None, None)
    assert third is not None
    assert fourth is third
    for _ in range(5):
        for length in range(1, 33):
            for other in range(1, 33):
                found = runs[length, other, 1]
                assert found is None or len(runs) <= _runs.MOST
    assert len(runs) == _runs.MOST
    assert len(runs._seen) == _runs.MOST


def test_too_long_or_null_has_no_reader() -> None:
    runs = Runs(MetadataResponsePartition, schema_of(MetadataResponsePartition, 12, flexible=True), [], {})
    assert runs[34, 4, 1] is None
    assert runs[4, 0, 1] is None


def schema_in(message: type[Message], version: int) -> Schema:
    return schema_of(message, version, flexible=True)


def test_who_can_run() -> None:
    assert can_run(schema_in(MetadataResponsePartition, 12))
    assert not can_run(schema_in(MetadataResponseTopic, 12)), "strings"
    assert not can_run(schema_of(MetadataResponsePartition, 8, flexible=False)), "lengths of four bytes"
