"""Reading what is stored of a partition, in Kafka's terms; where its topic is opened anew meanwhile, again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kclient.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kclient.gateway.aborted import Hidden
from kclient.gateway.partition_life import LifeSurroundings, PartitionLife
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.recovery import aborted_between
from kclient.gateway.rows.keys import aborted_key
from kclient.htp.errors import FencedError, UnknownTopicError
from kclient.htp.port import CAP_SEGMENTS

if TYPE_CHECKING:
    from kclient.gateway.aborted import ChunkBounds, Entries
    from kclient.gateway.aborted_rows import AbortedRows
    from kclient.gateway.extents import PartitionStore
    from kclient.gateway.log import PartitionLog
    from kclient.htp.port import Found, OpenTopic, Pulled, SegmentInfo

T = TypeVar("T")

_CHUNKS_AT_ONCE: Final = 4
"""Chunks of aborted transactions that are looked at in one go."""


class ReadingSurroundings(LifeSurroundings, Protocol):
    """And what reading needs."""

    @property
    def store(self) -> PartitionStore:
        """Where partitions lie."""
        ...

    @property
    def aborted(self) -> AbortedRows:
        """Chunks of aborted transactions."""
        ...


AroundT = TypeVar("AroundT", bound=ReadingSurroundings)


class StoredPartition(PartitionLife[AroundT]):
    """A partition that can be read while it is open.

    Args:
        name: Of its topic.
        topic_id: Of its topic.
        index: Its number.
        log: As far as it is known.
        around: What it works with.
    """

    __slots__ = ("_stored_in", "_topic_id")

    def __init__(self, name: str, topic_id: bytes, index: int, log: PartitionLog, around: AroundT) -> None:
        super().__init__(name, index, log, around)
        self._topic_id = topic_id
        self._stored_in: OpenTopic | None = None

    @property
    @abstractmethod
    def undecided(self) -> bool:
        """Whether it is not known what is stored at its end: it is being opened anew, or will be."""

    @property
    def stored_in(self) -> OpenTopic:
        """The partition's topic in HTP.

        Raises:
            UnknownTopicOrPartitionError: The partition has gone.
            NotLeaderOrFollowerError: Another gateway leads it now.
        """
        if self.state is PartitionPhase.GONE or self._stored_in is None:
            raise self.gone()
        return self._stored_in

    async def pull(self, offset: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The visible batches from an offset on, as `OpenTopic.pull` gives them."""
        return await self._ask(lambda topic: topic.pull(offset, max_bytes=max_bytes, max_messages=max_messages))

    async def find_by_timestamp(self, timestamp: int, *, start: int) -> Found | None:
        """The first visible batch that is not older than a time, as `OpenTopic.find_by_timestamp` gives it."""
        return await self._ask(lambda topic: topic.find_by_timestamp(timestamp, start=start))

    async def segments(self) -> list[SegmentInfo]:
        """The segments that hold the partition; none where HTP has no such thing."""
        if CAP_SEGMENTS not in self._around.store.capabilities:
            return []
        return await self._ask(lambda topic: topic.segments())

    async def size(self) -> int:
        """Bytes of all batches that are kept."""
        return (await self._ask(lambda topic: topic.status())).size

    async def _ask(self, question: Callable[[OpenTopic], Awaitable[T]]) -> T:
        """What the topic in HTP answers; where it was opened anew meanwhile, what it answers then."""
        while True:
            topic = self.stored_in
            with self._told():
                try:
                    return await question(topic)
                except FencedError:
                    if topic is self._stored_in and not self.undecided:
                        raise
            await self.ready()

    def aborted_nowait(self, first: int, until: int) -> Hidden | None:
        """The aborted transactions with records from an offset to another.

        None if `aborted` has to read them, or there are too many to look at in one go.
        """
        chunks = self.log.transactions.aborted.chunks(first, until)
        if len(chunks) > _CHUNKS_AT_ONCE:
            return None
        hidden = Hidden(first, until)
        for chunk in chunks:
            entries = chunk.entries or self._around.aborted.known(self._aborted_key(chunk.bounds.number), chunk.bounds)
            if entries is None:
                return None
            hidden.add(entries)
        return hidden

    async def aborted(self, first: int, until: int, pause: Callable[[], Awaitable[None]]) -> Hidden:
        """The same, however many; `pause` is where others have their turn."""
        hidden = Hidden(first, until)
        for chunk in self.log.transactions.aborted.chunks(first, until):
            key, bounds = self._aborted_key(chunk.bounds.number), chunk.bounds
            entries = chunk.entries or await self._around.aborted.read(key, bounds, self._aborted_from_log)
            hidden.add(entries)
            await pause()
        return hidden

    def _aborted_key(self, number: int) -> str:
        return aborted_key(self._topic_id, self.index, number)

    async def _aborted_from_log(self, bounds: ChunkBounds) -> Entries:
        return await self._ask(lambda topic: aborted_between(topic, bounds, str(self)))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of HTP about who may use the topic, in Kafka's terms."""
        try:
            yield
        except UnknownTopicError as error:
            raise UnknownTopicOrPartitionError(f"{self} is gone: {error}") from error
        except FencedError as error:
            raise NotLeaderOrFollowerError(f"{self} is led by a newer gateway: {error}") from error
