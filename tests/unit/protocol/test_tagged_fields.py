"""Tagged fields (KIP-482) that a message does not know, that come twice or out of order, or that belong elsewhere."""

from __future__ import annotations

import pytest

from kclient.errors import ProtocolError
from kclient.protocol import ApiMessage, EncodeError, RawTaggedField, Struct, schema_of
from kclient.protocol.framing import decode_request_header, encode_request
from kclient.protocol.messages import (
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    HeartbeatRequest,
    MetadataRequest,
    MetadataRequestTopic,
    ProduceResponse,
)
from tests.protocol_values import every_version

PLAIN = HeartbeatRequest(group_id="abc").encode(4)


def tagged(*fields: tuple[int, bytes]) -> bytes:
    """A Heartbeat v4 request with these tagged fields in it, in this order."""
    assert PLAIN.endswith(b"\0")
    return PLAIN[:-1] + bytes([len(fields)]) + b"".join(bytes([tag, len(data)]) + data for tag, data in fields)


def test_unknown_tagged_fields_are_kept() -> None:
    data = tagged((5, b"xyz"), (100, b""))
    decoded = HeartbeatRequest.decode(data, 4)
    assert decoded.unknown_tagged_fields == [RawTaggedField(5, b"xyz"), (100, b"")]
    assert decoded.encode(4) == data
    assert decoded != HeartbeatRequest(group_id="abc")
    assert "unknown_tagged_fields=[RawTaggedField(tag=5, data=b'xyz')" in repr(decoded)
    decoded.unknown_tagged_fields = None
    assert decoded == HeartbeatRequest(group_id="abc")


def test_they_can_be_set_by_a_mapping_or_by_pairs() -> None:
    request = HeartbeatRequest(group_id="abc")
    request.unknown_tagged_fields = {100: b"", 5: b"xyz"}
    assert request.encode(4) == tagged((5, b"xyz"), (100, b""))
    request.unknown_tagged_fields = [(5, b"xyz"), (100, b"")]
    assert request.encode(4) == tagged((5, b"xyz"), (100, b""))
    for none in (None, {}, []):
        request.unknown_tagged_fields = none
        assert request.unknown_tagged_fields is None
        assert request.encode(4) == PLAIN


@pytest.mark.parametrize("fields", [((5, b"a"), (5, b"b")), ((7, b"a"), (5, b"b")), ((5, b"same"), (5, b"same"))])
def test_twice_or_out_of_order_is_read_as_it_comes_and_not_written(fields: tuple[tuple[int, bytes], ...]) -> None:
    """What Kafka's generated classes do: `readUnknownTaggedField` takes everything, `RawTaggedFieldWriter` does not."""
    data = tagged(*fields)
    decoded = HeartbeatRequest.decode(data, 4)
    struct = schema_of(HeartbeatRequest, 4).decode(data)
    assert decoded.unknown_tagged_fields == struct.unknown_tagged_fields == list(fields)
    for encode in (lambda: decoded.encode(4), lambda: schema_of(HeartbeatRequest, 4).encode(struct)):
        with pytest.raises(EncodeError, match=f"Heartbeat v4 request: .*tagged field 5 comes after {fields[0][0]}"):
            encode()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([(0, b"")], "the unknown tagged field 0 has the tag of a field"),
        ([("x", b"")], "expected unknown tagged fields as .tag, bytes., got .'x', b''"),
        ([(1, "text")], "expected unknown tagged fields as .tag, bytes., got .1, 'text'"),
        ([(2**32, b"")], "the tag 4294967296 does not fit"),
        ([(-1, b"")], "the tag -1 does not fit"),
    ],
)
def test_what_cannot_be_an_unknown_tagged_field(fields: list[tuple[int, bytes]], text: str) -> None:
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[FetchResponsePartitionData()])])
    partition = response.responses[0].partitions[0]
    partition.diverging_epoch.epoch = 7  # tag 0
    partition.unknown_tagged_fields = fields
    path = r"Fetch v12 response: responses\[0\]\.partitions\[0\]: "
    with pytest.raises(EncodeError, match=path + text):
        response.encode(12)
    with pytest.raises(EncodeError, match=path + text):
        schema_of(FetchResponse, 12).encode(response)


def test_a_struct_can_be_built_with_them() -> None:
    schema = schema_of(HeartbeatRequest, 4)
    struct = Struct(schema, {"group_id": "abc"}, {100: b"", 5: b"xyz"})
    assert schema.encode(struct) == tagged((5, b"xyz"), (100, b""))


# --- fields that are known -----------------------------------------------------------------------------------


def diverging(response: FetchResponse, epoch: int) -> None:
    response.responses[0].partitions[0].diverging_epoch.epoch = epoch


def fetched() -> tuple[FetchResponse, bytes]:
    """A Fetch v12 response with one tagged field, and the first bytes of it."""
    partition = FetchResponsePartitionData(records=b"")
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    diverging(response, 7)
    return response, b"\1\0\x0d\0\0\0\7"  # one tag, tag 0, 13 bytes, epoch 7


def test_a_tagged_field_of_another_size_than_announced() -> None:
    response, marked = fetched()
    encoded = response.encode(12)
    assert marked in encoded
    assert FetchResponse.decode(encoded, 12) == response
    for size in (0, 12, 14, 0x7F):
        with pytest.raises(ProtocolError, match=r"Fetch v12 response: responses\[0\]\.partitions\[0\]"):
            FetchResponse.decode(encoded.replace(marked, b"\1\0" + bytes([size]) + b"\0\0\0\7"), 12)


def test_a_known_tagged_field_that_comes_twice_has_its_last_value() -> None:
    response, marked = fetched()
    encoded = response.encode(12)
    field = encoded[encoded.index(marked) + 1 :][:15]
    other = field.replace(b"\0\0\0\7", b"\0\0\0\x09")
    twice = encoded.replace(b"\1" + field, b"\2" + field + other)
    diverging(response, 9)
    assert FetchResponse.decode(twice, 12) == response
    assert schema_of(FetchResponse, 12).encode(schema_of(FetchResponse, 12).decode(twice)) == response.encode(12)


def test_a_tagged_field_of_another_version() -> None:
    """Kafka's generated readers refuse it; ProduceResponse has tag 0 from v10."""
    encoded = ProduceResponse().encode(9)
    assert encoded.endswith(b"\0")
    damaged = encoded[:-1] + b"\1\0\1\1"
    assert ProduceResponse.decode(damaged, 10) == ProduceResponse()
    for read in (ProduceResponse.decode, lambda data, version: schema_of(ProduceResponse, version).decode(data)):
        with pytest.raises(
            ProtocolError, match="Produce v9 response: tagged fields: the version has no tagged field 0"
        ):
            read(damaged, 9)
    unknown = encoded[:-1] + b"\1\1\1\1"
    assert ProduceResponse.decode(unknown, 9).unknown_tagged_fields == [(1, b"\1")]


FOREIGN = [
    (message, version)
    for message, version in every_version()
    if message.is_flexible(version) and schema_of(message, version).foreign
]


@pytest.mark.parametrize(("message", "version"), FOREIGN, ids=lambda value: getattr(value, "__name__", value))
def test_every_foreign_tag_is_refused(message: type[ApiMessage], version: int) -> None:
    """Compiled and interpreted, wherever the message itself has tags that belong to other versions."""
    schema = schema_of(message, version)
    for tag in schema.foreign:
        encoded = message().encode(version)
        assert encoded.endswith(b"\0")
        for read in (schema.decode, lambda data: message.decode(data, version)):
            with pytest.raises(ProtocolError, match=f"the version has no tagged field {tag}"):
                read(encoded[:-1] + b"\1" + bytes([tag]) + b"\0")


def test_tags_of_headers_are_not_kept_but_read() -> None:
    frame = encode_request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12, 1, None)[0][4:]
    assert frame[10] == 0
    header, position = decode_request_header(frame[:10] + b"\2\7\1a\7\1b" + frame[11:])
    assert (header.client_id, position) == (None, 17)
