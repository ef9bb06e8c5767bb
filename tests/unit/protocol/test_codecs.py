"""Compiled codecs against the interpreted schema, for every message in every version."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol import ApiMessage, EncodeError, framing, schema_of
from kclient.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    DescribeQuorumResponse,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceData,
    ProduceRequest,
    ReassignablePartition,
    ReassignableTopic,
    SaslAuthenticateRequest,
    TopicProduceData,
)
from kclient.types import Buffer
from tests.example_budget import examples
from tests.protocol_values import TOP_LEVEL, every_version, fitted, messages, versions_of

ALL = pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)


@ALL
@examples(12)
@given(data=st.data())
def test_round_trip_in_every_version(message: type[ApiMessage], data: st.DataObject) -> None:
    drawn = data.draw(messages(message))
    for version in versions_of(message):
        value = fitted(drawn, version)
        encoded = value.encode(version)
        assert message.decode(encoded, version) == value
        assert message.decode(memoryview(bytearray(encoded)), version) == value


@ALL
@examples(8)
@given(data=st.data())
def test_interpreted_schema_agrees(message: type[ApiMessage], data: st.DataObject) -> None:
    drawn = data.draw(messages(message))
    for version in versions_of(message):
        schema = schema_of(message, version)
        encoded = fitted(drawn, version).encode(version)
        assert schema.encode(fitted(drawn, version)) == encoded
        struct = schema.decode(encoded)
        assert schema.encode(struct) == encoded
        assert schema.encode(struct.as_dict()) == encoded


@pytest.mark.slow
@ALL
@examples(15)
@given(data=st.data())
def test_damage_is_a_protocol_error_or_another_value(message: type[ApiMessage], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(message)))
    encoded = bytearray(fitted(data.draw(messages(message)), version).encode(version))
    for _ in range(3):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    try:
        decoded = message.decode(encoded, version)
    except ProtocolError:
        return
    assert isinstance(decoded, message)


@given(garbage=st.binary(max_size=60), index=st.integers(0, 10_000))
@examples(400)
def test_garbage_is_a_protocol_error_or_a_value(garbage: bytes, index: int) -> None:
    everything = list(every_version())
    message, version = everything[index % len(everything)]
    try:
        decoded = message.decode(garbage, version)
    except ProtocolError:
        return
    assert isinstance(decoded, message)


@pytest.mark.parametrize("version", [8, 9, 12])
@pytest.mark.parametrize("claim", [2**31 - 1, 2**30, 1_000_000])
def test_an_absurd_count_allocates_nothing(version: int, claim: int) -> None:
    count = claim.to_bytes(4, "big") if version < 9 else _uvarint(claim + 1)
    with pytest.raises(ProtocolError):
        MetadataRequest.decode(count + b"\0\0\0", version)
    partition = MetadataResponse(
        topics=[MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition(replica_nodes=[1])])]
    ).encode(version)
    one_replica = b"\0\0\0\1\0\0\0\1" if version < 9 else b"\2\0\0\0\1"
    assert one_replica in partition
    with pytest.raises(ProtocolError):
        MetadataResponse.decode(partition.replace(one_replica, count + one_replica[-4:]), version)


@pytest.mark.parametrize("length", [-2, -1, -(2**31)])
def test_negative_lengths(length: int) -> None:
    with pytest.raises(ProtocolError):
        MetadataRequest.decode(length.to_bytes(4, "big", signed=True), 0)
    with pytest.raises(ProtocolError):
        HeartbeatRequest.decode(max(length, -(2**15)).to_bytes(2, "big", signed=True) + bytes(10), 0)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_lengths_may_take_more_bytes_than_they_need() -> None:
    """Null, empty and "text" with a length in two bytes: unusual, but what Java reads too."""
    quorum = DescribeQuorumResponse.decode(b"\0\0\x80\0\1\1\0", 2)
    assert quorum == DescribeQuorumResponse(error_message=None)
    assert DescribeQuorumResponse.decode(b"\0\0\x85\0text\1\1\0", 2).error_message == "text"

    partition = ReassignablePartition(partition_index=1, replicas=None)
    message = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
    encoded = message.encode(0)
    assert AlterPartitionReassignmentsRequest.decode(encoded.replace(b"\0\1\0", b"\0\1\x80\0"), 0) == message
    partition.replicas = []
    assert AlterPartitionReassignmentsRequest.decode(encoded.replace(b"\0\1\0", b"\0\1\x81\0"), 0) == message


def test_null_in_two_bytes_is_null() -> None:
    metadata = MetadataResponse(topics=[MetadataResponseTopic(partitions=[MetadataResponsePartition()])]).encode(12)
    at = metadata.index(b"\xff\xff\xff\xff\1\1\1\0") + 4  # the number of replicas, behind the leader epoch
    with pytest.raises(ProtocolError, match="null in a field"):
        MetadataResponse.decode(metadata[:at] + b"\x80\0" + metadata[at + 1 :], 12)


def test_bad_utf8_is_a_protocol_error() -> None:
    encoded = HeartbeatRequest(group_id="abc", member_id="m").encode(4)
    assert b"abc" in encoded
    with pytest.raises(ProtocolError, match="Heartbeat v4 request: group_id: a text is not valid UTF-8"):
        HeartbeatRequest.decode(encoded.replace(b"abc", b"a\xff\xfe"), 4)


def test_trailing_bytes_are_a_protocol_error() -> None:
    encoded = HeartbeatRequest(group_id="abc").encode(4)
    with pytest.raises(ProtocolError, match="Heartbeat v4 request: 2 bytes follow"):
        HeartbeatRequest.decode(encoded + b"\0\0", 4)
    assert HeartbeatRequest.decode_from(b"xx" + encoded + b"yy", 2, 4) == (
        HeartbeatRequest(group_id="abc"),
        2 + len(encoded),
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    large = MetadataResponse(topics=[MetadataResponseTopic(name="t" * 100) for _ in range(1000)]).encode(12)
    assert len(large) > 64 * 1024
    (gc.enable if enabled else gc.disable)()
    try:
        MetadataResponse.decode(large, 12)
        assert gc.isenabled() == enabled
        with pytest.raises(ProtocolError):
            MetadataResponse.decode(large[:-1], 12)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_produce_does_not_copy_the_records() -> None:
    records: list[bytes | bytearray] = [bytearray(b"r" * 1000), b"s" * 2000]
    for version in versions_of(ProduceRequest):
        data = [PartitionProduceData(index=index, records=held) for index, held in enumerate(records)]
        request = ProduceRequest(topic_data=[TopicProduceData(partition_data=data)])
        parts = framing.encode_request(request, version, 7, "client")
        assert [part for part in parts if len(part) >= 1000] == records
        assert all(any(part is held for part in parts) for held in records)
        frame = bytearray(b"".join(parts))
        _, read = framing.decode_request(memoryview(frame)[4:])
        assert isinstance(read, ProduceRequest)
        check_views([item.records for item in read.topic_data[0].partition_data], records, frame)


def test_fetch_does_not_copy_the_records() -> None:
    records: list[bytes | bytearray] = [bytearray(b"r" * 1000), b"s" * 2000]
    for version in versions_of(FetchResponse):
        data = [FetchResponsePartitionData(partition_index=index, records=held) for index, held in enumerate(records)]
        response = FetchResponse(responses=[FetchableTopicResponse(partitions=data)])
        parts = framing.encode_response(response, version, 7)
        assert all(any(part is held for part in parts) for held in records)
        frame = bytearray(b"".join(parts))
        _, read = framing.decode_response(FetchResponse, memoryview(frame)[4:], version)
        check_views([item.records for item in read.responses[0].partitions], records, frame)


def check_views(found: list[Buffer | None], records: list[bytes | bytearray], frame: bytearray) -> None:
    """What was read are views of the frame: what is changed in one is changed in the other."""
    assert found == records
    for view in found:
        assert isinstance(view, memoryview)
        assert view.obj is frame
        view[:2] = b"ab"
    assert frame.count(b"ab") == len(records)


def test_a_field_that_the_version_lacks() -> None:
    with pytest.raises(UnsupportedVersionError, match="group_instance_id"):
        JoinGroupRequest(group_instance_id="x").encode(4)
    assert JoinGroupRequest.decode(JoinGroupRequest(reason="ignorable").encode(4), 4).reason is None
    with pytest.raises(UnsupportedVersionError, match="topics"):
        MetadataRequest(topics=None).encode(0)


def test_a_version_that_is_not_known() -> None:
    with pytest.raises(UnsupportedVersionError, match="0-4"):
        HeartbeatRequest().encode(5)
    with pytest.raises(UnsupportedVersionError, match="0-4"):
        HeartbeatRequest.decode(b"", 5)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (MetadataRequest(topics=[MetadataRequestTopic(name=3)]), r"topics\[0\]\.name"),  # type: ignore[arg-type]
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short", name="t")]), r"topics\[0\]\.topic_id"),
        (MetadataRequest(topics=3), "topics"),  # type: ignore[arg-type]
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), r"topics\[0\]\.name"),
    ],
)
def test_a_wrong_value_is_named(request_: MetadataRequest, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        request_.encode(12)


def test_repr_shows_what_differs_and_no_secrets() -> None:
    assert repr(MetadataRequest(topics=None)) == "MetadataRequest(topics=None)"
    assert repr(SaslAuthenticateRequest(auth_bytes=b"secret")) == "SaslAuthenticateRequest(auth_bytes=<hidden>)"
    assert "<1000 bytes>" in repr(PartitionProduceData(records=bytes(1000)))


def test_constructor_refuses_unknown_names() -> None:
    with pytest.raises(TypeError, match="MetadataRequest: no field 'topicz'; did you mean 'topics'"):
        MetadataRequest(topicz=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="MetadataRequest: no field 'xyz'; the fields are topics, allow_auto"):
        MetadataRequest(xyz=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"MetadataRequest\.__init__"):
        MetadataRequest([])  # type: ignore[misc]
    with pytest.raises(AttributeError):
        MetadataRequest().topic = []  # type: ignore[attr-defined]


def test_defaults_are_not_shared() -> None:
    first, second = MetadataRequest(), MetadataRequest()
    assert first.topics is not second.topics
