"""HTP's *brk*: topics are opened under an epoch, and their messages deleted; what it can do beyond that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kclient.htp.port.framing import Framing
from kclient.htp.port.open_topic import OpenTopic, TopicSettings
from kclient.htp.port.places import Place

__all__ = [
    "CAP_DURABLE",
    "CAP_EXCLUSIVE",
    "CAP_FENCED_SENDS",
    "CAP_FIND_BY_TIMESTAMP",
    "CAP_NOWAIT",
    "CAP_ORDINAL_POSITIONS",
    "CAP_POSITIONS",
    "CAP_REWRITE",
    "CAP_SEGMENTS",
    "CAP_SHARED",
    "DURABILITY_SYNCED",
    "DURABILITY_WRITTEN",
    "Broker",
]

CAP_POSITIONS = "positions"
"""`Sent.first` and `Sent.last` tell where the messages were stored."""
CAP_ORDINAL_POSITIONS = "ordinal_positions"
"""Positions are the ordinals that the topic's `Framing` reads from the messages.

Without it they are the store's own: whole numbers that grow from message to message. A message may take several, and
there may be gaps; `pull` begins anywhere from a topic's start to its end. `open` is given no `next_position` then, and
no ordinal is checked."""
CAP_NOWAIT = "nowait"
"""`Broker.open` gives `DirectTopic`s: appends and warm reads without a switch of tasks."""
CAP_FIND_BY_TIMESTAMP = "find_by_timestamp"
"""`OpenTopic.find_by_timestamp` works."""
CAP_SEGMENTS = "segments"
"""`OpenTopic.segments` and `OpenTopic.roll` work, and `TopicSettings` are heeded."""
CAP_REWRITE = "rewrite"
"""`Broker.open` gives `RewritableTopic`s: other messages may take the place of those of a closed segment, as compaction
needs it. Needs `segments`."""
CAP_EXCLUSIVE = "exclusive"
"""While a store is open no other process has it. So a lease that cannot be renewed there goes to nobody elsewhere, and
those that are there when it is opened are free, whoever held them."""
CAP_FENCED_SENDS = "fenced_sends"
"""`Broker.open` seals older epochs, durably: nothing is appended, trimmed or deleted under one afterwards.

Without it, whoever led before may go on, and a message whose outcome was unknown may become stored after it was looked
for in vain. The gateway then has messages tell epochs (`kclient.gateway.extents`), and says that something is stored
only while its lease lasts. Such a store has no `ordinal_positions`: the start of an epoch is a message without any."""
CAP_SHARED = "shared"
"""Several gateways may serve the store at once, each with its own lease, in a process or in several: each is told soon
what others change, and nothing but epochs and versions keeps them apart. Needs `fenced_sends` and `ordinal_positions`.
`memory:` has it, and `embedded:`."""
CAP_DURABLE = "durable"
"""What was reported as synced, and what the manager has committed, outlives this process, however it ends."""

DURABILITY_SYNCED = "synced"
"""Messages are visible, and reported as synced, once they are on disk."""
DURABILITY_WRITTEN = "written"
"""Messages are visible, and reported as synced, once the operating system has them (Kafka's own default)."""


class Broker(Protocol):
    """HTP's *brk*: it keeps the messages of topics."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend can do beyond the required calls (the `CAP_*` names)."""
        ...

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> OpenTopic:
        """Take a topic over under an epoch, and make it ready for use; recovers it if need be.

        With capability `fenced_sends` older epochs are sealed, durably, before this returns: what was opened under
        one raises `FencedError`, and none can open it again. Nothing is appended between the sealing and what
        `status` then tells; what was sent before, also what had an unknown outcome, is below the `end` that it tells or
        never will be there. Without it nothing is sealed.

        With the epoch that the topic is open under already, this is cheap and gives the same again.

        Args:
            place: A topic that the manager knows, in its present incarnation.
            framing: How its messages are to be read.
            epoch: The opener's: it is the leader from now on. Not negative.
            settings: Layout of the topic; the backend's defaults if None.
            next_position: The next ordinal is at least this, whatever is stored: a log that was trimmed to
                nothing, or that lost its end, never restarts below (capability `ordinal_positions`; else 0).

        Raises:
            UnknownTopicError: If the manager knows no such topic, or another incarnation of it; or another broker
                keeps it.
            FencedError: If it was opened under a newer epoch before.
            FramingMismatchError: If it was opened with a framing of another name before, as far as the backend knows.
            StorageError: If what is stored cannot be read.
            ValueError: If the epoch or the position is negative, or too large to be recorded (31 and 62 bits).
        """
        ...

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics, durably; whoever has one of them open has it no more.

        The manager's topics are deleted before or afterwards. One that is not there is no error: that incarnation
        has no messages. Another incarnation of the same name is left alone.

        Args:
            places: The topics, each at this broker; however many they are, it takes few writes.
            epoch: Whoever deletes must not come after a newer epoch either.

        Raises:
            FencedError: If one of them was opened under a newer epoch; then none was deleted.
            StorageError: If the store failed: some may have been deleted, trying again is right.
        """
        ...
