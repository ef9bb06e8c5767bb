"""What the gateway reads of a consumer's opaque metadata: the topics it is subscribed to."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final

from kclient.errors import ProtocolError
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.messages import ConsumerProtocolSubscription

CONSUMER = "consumer"
"""The protocol type of consumers; others (Connect) are opaque throughout."""


_LONG: Final = 16 * 1024
"""Bytes of metadata that are read in one go."""
_AT_ONCE: Final = 500


def subscribed_topics(metadata: bytes) -> Generator[None, None, set[str] | None]:
    """The topics of a ConsumerProtocolSubscription, read in steps; None when it cannot be read."""
    try:
        if len(metadata) <= _LONG:
            return set(decode_embedded(ConsumerProtocolSubscription, metadata).topics)
        return (yield from _long(metadata))
    except (ProtocolError, struct.error, UnicodeDecodeError):
        return None


def _long(metadata: bytes) -> Generator[None, None, set[str] | None]:
    """Version, then the array of topics; what follows them is for the members."""
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or count < 0:
        return None
    place, topics = 6, set()
    for number in range(count):
        (length,) = struct.unpack_from(">h", metadata, place)
        place += 2
        if not 0 <= length <= len(metadata) - place:
            return None
        topics.add(metadata[place : place + length].decode())
        place += length
        if number % _AT_ONCE == 0:
            yield
    return topics
