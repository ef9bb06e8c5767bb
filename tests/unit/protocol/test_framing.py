"""Headers, frames, and the parser that finds frames in a stream."""

from __future__ import annotations

import gc
import struct
from contextlib import suppress
from typing import Any

import pytest

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol import ApiKey, EncodeError, UnknownRequestError, request_class, response_class
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.framing import (
    MOST_TAGS,
    FrameHeader,
    decode_request,
    decode_request_header,
    decode_response,
    decode_response_header,
    encode_request,
    encode_response,
    frame_size_error,
    has_flexible_response_header,
)
from kclient.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    HeartbeatRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    RequestHeader,
)
from kclient.protocol.messages import ResponseHeader as ResponseHeaderMessage
from kclient.protocol.primitives import RawTaggedField, write_uvarint

EVERY_API = pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)


@EVERY_API
def test_request_round_trip_in_every_version(key: ApiKey) -> None:
    cls = request_class(key)
    for version in range(cls.VERSIONS.low, cls.VERSIONS.high + 1):
        frame = b"".join(encode_request(cls(), version, 77, "client-é"))
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        assert decode_request(frame[4:]) == (FrameHeader(key, version, 77, "client-é"), cls())


@EVERY_API
def test_response_round_trip_in_every_version(key: ApiKey) -> None:
    cls = response_class(key)
    for version in range(cls.VERSIONS.low, cls.VERSIONS.high + 1):
        frame = b"".join(encode_response(cls(), version, -3))
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        assert decode_response(cls, frame[4:], version) == (-3, cls())


@pytest.mark.parametrize("client_id", [None, "", "me"])
@pytest.mark.parametrize("version", [8, 12])
def test_headers_are_the_declared_ones(client_id: str | None, version: int) -> None:
    request = MetadataRequest()
    frame = b"".join(encode_request(request, version, 5, client_id))
    header = RequestHeader(
        request_api_key=ApiKey.METADATA, request_api_version=version, correlation_id=5, client_id=client_id
    )
    assert frame[4:] == header.encode(2 if version >= 9 else 1) + request.encode(version)
    response = MetadataResponse()
    answer = b"".join(encode_response(response, version, 5))
    assert answer[4:] == ResponseHeaderMessage(correlation_id=5).encode(int(version >= 9)) + response.encode(version)


def test_api_versions_response_never_has_a_flexible_header() -> None:
    assert ApiVersionsResponse.is_flexible(3)
    assert not has_flexible_response_header(ApiKey.API_VERSIONS, flexible=True)
    frame = b"".join(encode_response(ApiVersionsResponse(), 3, 9))
    assert frame[4:8] + ApiVersionsResponse().encode(3) == frame[4:]


def test_header_of_an_unknown_api_or_version() -> None:
    known = b"".join(encode_request(ApiVersionsRequest(), 4, 6, "me"))[4:]
    newer = known[:2] + (99).to_bytes(2, "big") + known[4:]
    header, position = decode_request_header(newer)
    assert header == FrameHeader(ApiKey.API_VERSIONS, 99, 6, "me")
    assert newer[position:] == ApiVersionsRequest().encode(4)
    with pytest.raises(UnsupportedVersionError):
        decode_request(newer)
    unknown = (31000).to_bytes(2, "big") + known[2:]
    assert decode_request_header(unknown)[0] == FrameHeader(31000, 4, 6, "me")
    with pytest.raises(UnknownRequestError, match="31000") as caught:
        decode_request(unknown)
    assert isinstance(caught.value, UnsupportedVersionError)


def test_damaged_headers() -> None:
    frame = b"".join(encode_request(MetadataRequest(), 12, 6, "me"))[4:]
    for size in range(13):
        with pytest.raises(ProtocolError):
            decode_request_header(frame[:size])
    with pytest.raises(ProtocolError):
        decode_request_header(frame.replace(b"me", b"\xff\xfe"))
    with pytest.raises(ProtocolError):
        decode_request_header(frame[:8] + b"\xff\xfe" + frame[10:])  # a client id of -2 bytes
    for size in range(5):
        with pytest.raises(ProtocolError):
            decode_response_header(bytes(size), flexible=size == 4)
    with pytest.raises(ProtocolError, match="follow"):
        decode_request(frame + b"x")
    with pytest.raises(ProtocolError, match="follow"):
        decode_response(MetadataResponse, b"".join(encode_response(MetadataResponse(), 12, 1))[4:] + b"x", 12)


def test_tags_in_headers_are_skipped() -> None:
    frame = b"".join(encode_request(HeartbeatRequest(group_id="g"), 4, 6, None))[4:]
    assert frame[10] == 0
    tagged = frame[:10] + b"\1\x07\2ab" + frame[11:]
    assert decode_request(tagged)[1] == HeartbeatRequest(group_id="g")


def test_records_stay_apart_in_a_frame() -> None:
    records = bytearray(100_000)
    response = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[FetchResponsePartitionData(records=records)])]
    )
    parts = encode_response(response, 11, 1)
    assert any(part is records for part in parts)
    frame = b"".join(parts)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    assert decode_response(FetchResponse, frame[4:], 11)[1] == response


def test_a_client_id_that_is_too_long() -> None:
    message = HeartbeatRequest()
    assert encode_request(message, 0, 1, "x" * 32767)
    with pytest.raises(ValueError, match="client_id: a string of 32768 bytes"):
        encode_request(message, 0, 1, "x" * 32768)


@pytest.mark.parametrize("wrong", [None, "abc", "a text of more than ten bytes", 5])
def test_frames_are_bytes(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a message is read from bytes, bytearray or memoryview, not from"):
        decode_request(wrong)
    for version in (0, 12):
        with pytest.raises(TypeError, match="a message is read from bytes, bytearray or memoryview, not from"):
            decode_response(MetadataResponse, wrong, version)


def test_only_responses_are_encoded_as_such() -> None:
    no_response: Any
    for no_response in (MetadataRequest(), ConsumerProtocolAssignment()):
        with pytest.raises(EncodeError, match=f"{type(no_response).__name__} is not a response"):
            encode_response(no_response, 0, 1)
    for no_response in ("x", None):
        with pytest.raises(EncodeError, match=f"expected a message, got {no_response!r}"):
            encode_response(no_response, 0, 1)


def test_errors_are_sentences() -> None:
    beginning = "the header of a request: cut off: {} of the beginning {} missing"
    for size, part, verb in (
        (0, "all 10 bytes", "are"),
        (8, "2 of the 10 bytes", "are"),
        (9, "1 of the 10 bytes", "is"),
    ):
        with pytest.raises(ProtocolError, match=beginning.format(part, verb)):
            decode_request(bytes(size))
    claim = {b"\2": "2 elements, only 1 byte is left", b"\1": "1 element, nothing is left"}
    for count, text in claim.items():
        with pytest.raises(ProtocolError, match=f"an array claims {text}"):
            MetadataRequest.decode(bytes(3) + count + bytes(len(text.split()) == 7), 0)
    with pytest.raises(ProtocolError, match="cut off: both bytes of a length are missing"):
        HeartbeatRequest.decode(b"", 0)


def test_only_requests_have_an_api_key() -> None:
    with pytest.raises(ValueError, match="not a request"):
        encode_request(ConsumerProtocolAssignment(), 0, 1, None)


# --- sizes of frames -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "guess"),
    [(b"HTTP/1.1 400", "HTTP"), (b"GET / HTTP/1.1", "HTTP"), (b"\x15\x03\x03\0\2", "TLS"), (b"SSH-2.0", "SSH")],
)
def test_other_protocols_are_recognised(head: bytes, guess: str) -> None:
    error = frame_size_error(int.from_bytes(head[:4], "big"), limit=1000)
    assert guess in str(error)
    assert "limit is 1000" in str(error)


# --- embedded messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_embedded_messages(version: int) -> None:
    message = ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"x")
    encoded = encode_embedded(message, version)
    assert encoded[:2] == bytes([0, version])
    assert decode_embedded(ConsumerProtocolSubscription, encoded) == message


def test_embedded_messages_of_a_later_version() -> None:
    encoded = encode_embedded(ConsumerProtocolSubscription(topics=["a"], rack_id="r"))
    later = b"\0\x09" + encoded[2:] + b"whatever comes later"
    assert decode_embedded(ConsumerProtocolSubscription, later) == ConsumerProtocolSubscription(
        topics=["a"], rack_id="r"
    )


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\1\0"])
def test_damaged_embedded_messages(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_embedded(ConsumerProtocolAssignment, data)


@pytest.mark.parametrize("count", [MOST_TAGS, MOST_TAGS + 1])
def test_tagged_fields_of_a_header_are_bounded(count: int) -> None:
    frame = b"".join(encode_request(HeartbeatRequest(group_id="g"), 4, 1, None))[4:]
    number = bytearray()
    write_uvarint(number, count)
    tagged = frame[:10] + number + b"\x01\x00" * count + frame[11:]
    if count == MOST_TAGS:
        assert decode_request(tagged)[1] == HeartbeatRequest(group_id="g")
    else:
        with pytest.raises(ProtocolError, match="header of a request: 1025 tagged fields are too many, 1024 may be"):
            decode_request(tagged)


def test_a_failed_decoding_leaves_no_garbage() -> None:
    body = MetadataRequest(topics=None).encode(9)
    number = bytearray()
    write_uvarint(number, 5000)
    malformed = body[:-1] + number + b"\x01\x00" * 4999
    gc.collect()
    gc.disable()
    try:
        for decode in (MetadataRequest.decode_from, lambda *given: list(MetadataRequest.decode_steps(*given))):
            with suppress(ProtocolError):
                decode(malformed, 0, 9)
                pytest.fail("it is cut off")
            assert not any(type(each) is RawTaggedField for each in gc.get_objects())
    finally:
        gc.enable()


def test_a_failed_encoding_leaves_no_garbage() -> None:
    class Name(str):
        """So that it can be found."""

    def fail_to_encode() -> None:
        topics = [MetadataRequestTopic(name=Name("a")), MetadataRequestTopic(name=3)]  # type: ignore[arg-type]
        request = MetadataRequest(topics=topics)
        with suppress(EncodeError):
            request.encode(9)
            pytest.fail("a name is no number")
        with suppress(EncodeError):
            list(request.encode_steps(bytearray(), [], 9))
            pytest.fail("a name is no number")

    gc.collect()
    gc.disable()
    try:
        fail_to_encode()
        assert not any(type(each) is Name for each in gc.get_objects())
    finally:
        gc.enable()
