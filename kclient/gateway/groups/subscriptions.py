"""What the gateway reads of a consumer's opaque metadata: the topics it is subscribed to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from kclient.errors import ProtocolError
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.messages import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from kclient.gateway.groups.group import AskedTopics
    from kclient.gateway.groups.members import Roster

CONSUMER = "consumer"
"""The protocol type of consumers; others (Connect) are opaque throughout."""


_LONG: Final = 16 * 1024
"""Bytes of metadata that are read in one go."""
_AT_ONCE: Final = 500


def read_topics(
    members: Roster, protocol: Callable[[], str | None], asked: AskedTopics
) -> Generator[None, None, frozenset[str] | None]:
    """The topics of those asked about that members read, in steps; None if what one says cannot be read, or changes.

    Nothing else of what they name is kept: that may be a million of short names.

    Args:
        members: The members.
        protocol: Tells the group's protocol, as it is then.
        asked: The topics; keeps the answer as long as the members are the same.
    """
    name = protocol()
    now = members.changes, name
    if asked.read_of != now:
        topics: set[str] | None = set()
        for member in members:
            found = yield from subscribed_topics(member.metadata(name or member.protocols[0][0]), asked.names)
            if topics is None or found is None:
                topics = None
            else:
                topics |= found
            yield
        if now != (members.changes, protocol()):
            return None
        asked.read_of = now
        asked.read = None if topics is None else frozenset(topics)
    return asked.read


def subscribed_topics(metadata: bytes, names: frozenset[str]) -> Generator[None, None, AbstractSet[str] | None]:
    """Those topics of a ConsumerProtocolSubscription that have these names, in steps; None when it cannot be read."""
    try:
        if len(metadata) <= _LONG:
            return names.intersection(decode_embedded(ConsumerProtocolSubscription, metadata).topics)
        return (yield from _long(metadata, names))
    except (ProtocolError, struct.error, UnicodeDecodeError):
        return None


def _long(metadata: bytes, names: frozenset[str]) -> Generator[None, None, AbstractSet[str] | None]:
    """Version, then the array of topics; what follows them is for the members."""
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or count < 0:
        return None
    place, topics = 6, set[str]()
    for number in range(count):
        (length,) = struct.unpack_from(">h", metadata, place)
        place += 2
        if not 0 <= length <= len(metadata) - place:
            return None
        name = metadata[place : place + length].decode()
        if name in names:
            topics.add(name)
        place += length
        if number % _AT_ONCE == 0:
            yield
    return topics
