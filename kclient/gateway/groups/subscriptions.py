"""What the gateway reads of a consumer's opaque metadata: the topics it is subscribed to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from kclient.errors import ProtocolError
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.messages import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from kclient.gateway.groups.members import Roster

CONSUMER = "consumer"
"""The protocol type of consumers; others (Connect) are opaque throughout."""


_LONG: Final = 16 * 1024
"""Bytes of metadata that are read in one go."""
_AT_ONCE: Final = 500


class Subscriptions:
    """The topics that the members of a group of consumers read, found out anew when these change."""

    __slots__ = ("_read", "_topics")

    def __init__(self) -> None:
        self._topics: frozenset[str] | None = None
        self._read: tuple[int, str | None] | None = None
        """Of which members `_topics` was found out."""

    def of(self, members: Roster, protocol: Callable[[], str | None]) -> Generator[None, None, frozenset[str] | None]:
        """The topics of these members, in steps; None if what one says cannot be read, or changes meanwhile.

        Args:
            members: The members.
            protocol: Tells the group's protocol, as it is then.
        """
        name = protocol()
        now = members.changes, name
        if self._read != now:
            topics: set[str] | None = set()
            for member in members:
                found = yield from subscribed_topics(member.metadata(name or member.protocols[0][0]))
                if topics is None or found is None:
                    topics = None
                else:
                    topics |= found
                yield
            if now != (members.changes, protocol()):
                return None
            self._read = now
            self._topics = None if topics is None else frozenset(topics)
        return self._topics


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
