"""What partitions are opened through, whatever the positions of the store mean."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kclient.errors import ConfigError
from kclient.gateway.extents.encoding import BARE, Enveloped
from kclient.gateway.extents.fencing import LeaseGuard
from kclient.gateway.extents.rows import ExtentRows
from kclient.gateway.extents.topic import ExtentTopic
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_SEGMENTS,
)

if TYPE_CHECKING:
    from kclient.gateway.extents.encoding import Encoding
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Broker, Framing, Manager, OpenTopic, Place, TopicSettings


_CHUNK: Final = 220
"""About how many bytes of memory a chunk takes."""
_START: Final = 130
"""And the start of an epoch."""
EncodingOf: TypeAlias = Callable[[bytes, int, int], "Encoding"]
"""What a message is to a partition: by the id of its topic, its number, and the epoch of its leader."""

CommitRows: TypeAlias = "Callable[[Mapping[str, bytes | None]], Awaitable[object]]"
"""Writes rows, all or none; None removes one."""


class PartitionStore(Protocol):
    """Keeps the batches of partitions by their offsets."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What the topics that it opens can do, see `kclient.htp.port`."""
        ...

    async def open(
        self,
        place: Place,
        topic_id: bytes,
        partition: int,
        *,
        epoch: int,
        settings: TopicSettings,
        next_offset: int,
        start_offset: int,
        stalled: Callable[[BaseException], object],
    ) -> OpenTopic:
        """Take a partition over, as `kclient.htp.Broker.open` does a topic: positions are offsets.

        Args:
            place: Where it lies, or began.
            topic_id: Of its topic.
            partition: Its number.
            epoch: The leader's.
            settings: Layout of its topics in HTP.
            next_offset: No offset below is given, whatever is stored.
            start_offset: Nobody reads below this: what holds nothing else may be dropped.
            stalled: Called, with the reason, if nothing is done with it any more before it was opened under a newer
                epoch, though none of its own sends was the cause: it shares its topic with others.
        """
        ...

    def release(self, opened: OpenTopic) -> None:
        """A partition has gone, or its gateway closes: nobody uses it any more."""
        ...

    def busy(self, place: Place) -> bool:
        """Whether rows of partitions there that have gone are being written: others may not be removed yet."""
        ...

    async def left(self, place: Place) -> None:
        """Until they are not."""
        ...

    def rows(self, opened: OpenTopic) -> Mapping[str, bytes]:
        """What is to be written together with the partition's checkpoint."""
        ...

    async def save(self, opened: Iterable[OpenTopic]) -> None:
        """Write what is known of the positions of partitions, beside `rows`; a failure is told in the log."""
        ...

    async def hand_over(self, opened: OpenTopic, commit: CommitRows) -> None:
        """Write that of a partition, for the last time before another gateway opens it.

        Args:
            opened: The partition.
            commit: Writes the rows. What it raises, this does.
        """
        ...

    def memory_of(self, opened: OpenTopic) -> int:
        """About how many bytes of memory are taken by what is known of a partition's positions."""
        ...


class DirectStore:
    """A partition is a topic whose positions are offsets.

    Args:
        broker: With capability `ordinal_positions`.
        framing: Of the messages; record batches if None.
    """

    def __init__(self, broker: Broker, framing: Framing | None = None) -> None:
        self._broker = broker
        self._framing = framing or BARE.framing

    @property
    def capabilities(self) -> frozenset[str]:
        """The broker's."""
        return self._broker.capabilities

    async def open(
        self,
        place: Place,
        topic_id: bytes,
        partition: int,
        *,
        epoch: int,
        settings: TopicSettings,
        next_offset: int,
        start_offset: int = 0,
        stalled: Callable[[BaseException], object] | None = None,
    ) -> OpenTopic:
        """The broker's topic."""
        return await self._broker.open(place, self._framing, epoch=epoch, settings=settings, next_position=next_offset)

    def release(self, opened: OpenTopic) -> None:
        """Whoever deletes the place, or closes the store, ends it."""

    def busy(self, place: Place) -> bool:
        """Rows are written by partitions only."""
        return False

    async def left(self, place: Place) -> None:
        """At once."""

    def rows(self, opened: OpenTopic) -> Mapping[str, bytes]:
        """Nothing: the store knows where offsets lie."""
        return {}

    async def save(self, opened: Iterable[OpenTopic]) -> None:
        """Nothing."""

    async def hand_over(self, opened: OpenTopic, commit: CommitRows) -> None:
        """The same."""

    def memory_of(self, opened: OpenTopic) -> int:
        """None: the store counts its own."""
        return 0


class ExtentStore:
    """A partition is a list of extents in topics whose positions may be anything that grows.

    Args:
        manager: Keeps what is known of positions.
        broker: Keeps messages.
        lease: Under which rows are written.
        wall_ms: The time in milliseconds since the epoch.
        encoding: What a message is; a batch if None. Where the store cannot fence, it has to tell epochs.
        now: The monotonic clock by which the lease is reckoned, in seconds; the system's if None.
    """

    def __init__(
        self,
        manager: Manager,
        broker: Broker,
        lease: HeldLease,
        wall_ms: Callable[[], int],
        encoding: EncodingOf | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._manager = manager
        self._broker = broker
        self._lease = lease
        self._wall_ms = wall_ms
        self._encoding = encoding or _bare
        self._guard: LeaseGuard | None = None
        """None where the store fences."""
        if CAP_FENCED_SENDS not in broker.capabilities:
            self._guard = LeaseGuard(lease, now or time.monotonic)

    @property
    def capabilities(self) -> frozenset[str]:
        """The broker's, and what chunks make up for; offsets are never where the store puts a message."""
        made_up = {CAP_ORDINAL_POSITIONS, CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS}
        return (self._broker.capabilities | made_up) - {CAP_NOWAIT, CAP_POSITIONS}

    async def open(
        self,
        place: Place,
        topic_id: bytes,
        partition: int,
        *,
        epoch: int,
        settings: TopicSettings,
        next_offset: int,
        start_offset: int = 0,
        stalled: Callable[[BaseException], object] | None = None,
    ) -> ExtentTopic:
        """The partition's extents as one topic."""
        rows = ExtentRows(self._manager, self._broker, self._lease, topic_id, partition)
        extents, starts = await rows.read(place)
        opened = ExtentTopic(
            place, epoch, extents,
            broker=self._broker, encoding=self._encoding(topic_id, partition, epoch), settings=settings,
            next_offset=next_offset, rows=rows, wall_ms=self._wall_ms, starts=starts, guard=self._guard,
        )  # fmt: skip
        await opened.open()
        return opened

    def release(self, opened: OpenTopic) -> None:
        """Whoever deletes its places, or closes the store, ends it."""

    def busy(self, place: Place) -> bool:
        """Rows are written by partitions only."""
        return False

    async def left(self, place: Place) -> None:
        """At once."""

    def rows(self, opened: OpenTopic) -> Mapping[str, bytes]:
        """Where some of its offsets lie."""
        assert isinstance(opened, ExtentTopic)
        return opened.rows()

    async def save(self, opened: Iterable[OpenTopic]) -> None:
        """Nothing: all that it knows is in its rows."""

    async def hand_over(self, opened: OpenTopic, commit: CommitRows) -> None:
        """The same."""

    def memory_of(self, opened: OpenTopic) -> int:
        """Of its chunks, and where its epochs start."""
        assert isinstance(opened, ExtentTopic)
        return _CHUNK * sum(len(extent.chunks.all) for extent in opened.extents) + _START * len(opened.starts.all)


def _bare(topic_id: bytes, partition: int, epoch: int) -> Encoding:
    return BARE


def partition_store(
    manager: Manager,
    broker: Broker,
    lease: HeldLease,
    wall_ms: Callable[[], int],
    now: Callable[[], float] | None = None,
) -> PartitionStore:
    """What suits a broker.

    Args:
        manager: Keeps what is known of positions.
        broker: Keeps messages.
        lease: Under which rows are written.
        wall_ms: The time in milliseconds since the epoch.
        now: The monotonic clock by which the lease is reckoned, in seconds; the system's if None.

    Raises:
        ConfigError: Positions are ordinals, and the store cannot fence: the start of an epoch has no ordinal.
    """
    fenced, ordinal = (each in broker.capabilities for each in (CAP_FENCED_SENDS, CAP_ORDINAL_POSITIONS))
    if ordinal and not fenced:
        raise ConfigError(
            f"a store with capability {CAP_ORDINAL_POSITIONS!r} needs {CAP_FENCED_SENDS!r} too: without it, messages "
            "are stored that have no offset. Its backend has to leave the first one out"
        )
    if ordinal:
        return DirectStore(broker)
    return ExtentStore(manager, broker, lease, wall_ms, None if fenced else Enveloped, now)
