"""A stream cut into frames in chunks of any size, and the requests and responses in the frames."""

from __future__ import annotations

from random import Random

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.net.frames import FrameAssembler
from kclient.protocol import ApiMessage
from kclient.protocol.framing import (
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from tests.fuzz.fuzz_messages import MESSAGES, can_be_written, filled

LIMIT = 1 << 20
FRAMED = [(cls, version) for cls, version in MESSAGES if cls.API_KEY is not None]
RESPONSES = [(cls, version) for cls, version in FRAMED if not cls.IS_REQUEST]


def check(data: bytes) -> None:
    """The first two bytes choose the sizes of the chunks, the rest is the stream."""
    if len(data) < 2:
        return
    stream = data[2:]
    chunked = _cut(stream, Random(int.from_bytes(data[:2], "big")))
    assert chunked == _cut(stream, None)
    for frame in chunked[0]:
        _check_request(frame)
        if len(frame) >= 4:
            _check_response(frame, *RESPONSES[int.from_bytes(frame[:4], "big") % len(RESPONSES)])


def _cut(stream: bytes, sizes: Random | None) -> tuple[list[bytes], bool, str]:
    """The frames of a stream, whether it had to end there, and where it stood then."""
    assembler = FrameAssembler(LIMIT, first_room=1)
    position = 0
    try:
        while position < len(stream):
            size = sizes.choice((1, 2, 3, 5, 17, 300)) if sizes else len(stream)
            assembler.feed(stream[position : position + size])
            position += size
    except ProtocolError:
        return [bytes(frame) for frame in assembler.take()], True, ""
    return [bytes(frame) for frame in assembler.take()], assembler.idle, assembler.pending


def _check_request(frame: bytes) -> None:
    try:
        header, _ = decode_request_header(frame)
        assert (header, decode_request(frame)[1]) == decode_request(memoryview(frame))
        _, message = decode_request(frame)
    except (ProtocolError, UnsupportedVersionError):
        return
    if not can_be_written(message):
        return
    parts = encode_request(message, header.api_version, header.correlation_id, header.client_id)
    again, _ = decode_request(b"".join(parts)[4:])
    assert again == header


def _check_response(frame: bytes, cls: type[ApiMessage], version: int) -> None:
    try:
        correlation_id, message = decode_response(cls, frame, version)
    except ProtocolError:
        return
    if not can_be_written(message):
        return
    again, _ = decode_response(cls, b"".join(encode_response(message, version, correlation_id))[4:], version)
    assert again == correlation_id


def seeds() -> list[bytes]:
    """Streams of one to three requests or responses, and what other protocols begin with."""
    streams = [b"".join(_frame(index)) for index in range(0, len(FRAMED), 7)]
    pairs = [first + second for first, second in zip(streams, reversed(streams), strict=True)]
    foreign = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b""]
    return [index.to_bytes(2, "big") + stream for index, stream in enumerate(streams + pairs + foreign)]


def _frame(index: int) -> list[bytes]:
    message_class, version = FRAMED[index]
    message = filled(message_class, version)
    if message_class.IS_REQUEST:
        parts = encode_request(message, version, index, "client")
    else:
        # a response's correlation id tells `check` what it is
        parts = encode_response(message, version, RESPONSES.index((message_class, version)))
    return [bytes(part) for part in parts]
