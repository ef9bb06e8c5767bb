"""Every message in every version, cut off at every byte: `ProtocolError` that says what was read, and nothing else."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ProtocolError
from kclient.protocol import ApiMessage, framing, request_class, schema_of
from kclient.protocol.codec import compile_decoder
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.message import Message
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.protocol.registry import ApiKey
from tests.example_budget import examples
from tests.fuzz.fuzz_messages import filled
from tests.protocol_values import TOP_LEVEL, fitted, messages, versions_of

pytestmark = pytest.mark.slow

ALL = pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)
MOST = 4096
"""Bytes of a generated message of which every beginning is tried."""
PYTHON = re.compile(r"index out of|unpack|buffer of at least|codec can't|object|Error\b")
"""What Python says, and what no error of ours says."""


def check(read: Callable[[bytes], object], title: str, encoded: bytes, sizes: Sequence[int]) -> None:
    """Reading the beginnings of those sizes fails, and says what it was that was read."""
    for size in sizes:
        with pytest.raises(ProtocolError) as caught:
            read(encoded[:size])
        text = str(caught.value)
        assert text.startswith(title), text
        assert not PYTHON.search(text), text
        assert caught.value.position is not None
        assert caught.value.position <= size


def title_of(message: type[Message], version: int) -> str:
    name = message.__name__
    for kind in ("Request", "Response"):
        if name.endswith(kind):
            return f"{name.removesuffix(kind)} v{version} {kind.lower()}: "
    return f"{name} v{version}: "


@ALL
def test_something_in_every_field(message: type[ApiMessage]) -> None:
    """Every version, every byte, compiled and interpreted."""
    for version in versions_of(message):
        encoded = filled(message, version).encode(version)
        title = title_of(message, version)
        check(lambda data, v=version: message.decode(data, v), title, encoded, range(len(encoded)))
        check(schema_of(message, version).decode, title, encoded, range(len(encoded)))


@ALL
@examples(2)
@given(data=st.data())
def test_generated_values(message: type[ApiMessage], data: st.DataObject) -> None:
    """Longer arrays and texts, whose lengths take two bytes.

    Every beginning is given to the compiled decoder itself: it fails in one of the ways that `decode_from` expects of
    it, or ends behind the end. What is then said about it is looked at for some of them.
    """
    version = data.draw(st.sampled_from(versions_of(message)))
    encoded = fitted(data.draw(messages(message)), version).encode(version)
    decode = compile_decoder(message, version)
    for size in range(min(len(encoded), MOST)):
        try:
            _, end = decode(encoded[:size], 0)
        except (ProtocolError, IndexError, ValueError, struct.error):
            continue
        assert end > size
    title = title_of(message, version)
    some = range(0, len(encoded), 1 + len(encoded) // 20)
    check(lambda cut: message.decode(cut, version), title, encoded, some)
    check(schema_of(message, version).decode, title, encoded, some)


def test_a_message_too_large_to_be_read_again() -> None:
    """Beyond 256 KiB the field is not searched for."""
    partition = MetadataResponsePartition(replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
    topics = [MetadataResponseTopic(name=f"topic-{index}", partitions=[partition] * 10) for index in range(800)]
    encoded = MetadataResponse(topics=topics).encode(12)
    assert len(encoded) > 260 * 1024
    for size in (len(encoded) - 1, len(encoded) - 30, 263 * 1024, 263 * 1024 + 1, 263 * 1024 + 7, 263 * 1024 + 19):
        with pytest.raises(ProtocolError, match=r"^Metadata v12 response: cut off") as caught:
            MetadataResponse.decode(encoded[:size], 12)
        assert not PYTHON.search(str(caught.value))
    with pytest.raises(ProtocolError, match=r"^Metadata v12 response: a text is not valid UTF-8$"):
        MetadataResponse.decode(encoded.replace(b"topic-799", b"topic-79\xff"), 12)


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_whole_frames(key: ApiKey) -> None:
    """The header too, with a client id, in the lowest and the highest version."""
    cls = request_class(key)
    for version in {cls.VERSIONS.low, cls.VERSIONS.high}:
        frame = b"".join(framing.encode_request(filled(cls, version), version, 1, "client"))[4:]
        for size in range(len(frame)):
            with pytest.raises(ProtocolError) as caught:
                framing.decode_request(frame[:size])
            assert not PYTHON.search(str(caught.value))
            assert str(caught.value).startswith(("the header of a request: ", title_of(cls, version)))


def test_embedded() -> None:
    encoded = encode_embedded(filled(ConsumerProtocolAssignment, 3), 3)
    for size in range(len(encoded)):
        with pytest.raises(ProtocolError, match="ConsumerProtocolAssignment"):
            decode_embedded(ConsumerProtocolAssignment, encoded[:size])
