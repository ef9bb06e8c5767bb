"""What partitions are opened through that share a topic of HTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kclient.concurrency import NamedLocks
from kclient.errors import KafkaError
from kclient.gateway.virtual.index_rows import IndexRows
from kclient.gateway.virtual.partition import SharedPartition
from kclient.gateway.virtual.topic import SharedTopic, Standing
from kclient.gateway.virtual.windows import Kept
from kclient.htp.errors import FencedError, StorageError
from kclient.htp.port import CAP_FIND_BY_TIMESTAMP, CAP_NOWAIT, CAP_ORDINAL_POSITIONS, CAP_POSITIONS, CAP_SEGMENTS
from kclient.large_buffers import LargeBuffers

if TYPE_CHECKING:
    from kclient.gateway.extents import CommitRows, PartitionStore
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.htp.port import Manager, OpenTopic, Place, TopicSettings
    from kclient.memory_ledger import MemoryPart

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_TOPIC: Final = 0
"""What a topic is opened by where it is one partition: its messages in the order of their ordinals."""


class SharedStore:
    """Partitions of a topic lie in one topic of HTP. Implements `PartitionStore`.

    Args:
        ordinals: Opens a topic so that its positions are the ordinals of its messages.
        manager: Keeps the rows of the index.
        writer: Writes them.
        memory: What the gateway holds.
        wall_ms: The time in milliseconds since the epoch.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        ordinals: PartitionStore,
        manager: Manager,
        writer: FencedWriter,
        memory: MemoryPart,
        wall_ms: Callable[[], int],
        spawn: Callable[..., object],
    ) -> None:
        self._ordinals = ordinals
        self._manager = manager
        self._writer = writer
        self._wall_ms = wall_ms
        self._spawn = spawn
        self._kept = Kept(memory)
        self._buffers = LargeBuffers("messages of shared topics")
        self._buffers.count_in(memory.ledger, memory.loop)
        self._topics: dict[Place, SharedTopic] = {}
        self._rows: dict[Place, IndexRows] = {}
        self._opening: NamedLocks[Place] = NamedLocks()
        self._users: dict[Place, int] = {}
        """Who opens them, or has opened a partition."""
        self._leaving: dict[Place, SharedTopic] = {}
        """Those that are used no more while their index is being written."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The topic's, and what the index makes up for; offsets are never where the store puts a message."""
        made_up = {CAP_ORDINAL_POSITIONS, CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS}
        return (self._ordinals.capabilities | made_up) - {CAP_POSITIONS}

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
    ) -> SharedPartition:
        """A partition of the topic, which is opened with the first one."""
        self._users[place] = self._users.get(place, 0) + 1
        try:
            async with self._opening.hold(place):
                topic = self._topics.get(place)
                if topic is not None and topic.epoch > epoch:
                    raise FencedError(f"{place.topic} was opened under epoch {topic.epoch}", epoch=topic.epoch)
                if topic is None or topic.epoch < epoch:
                    topic = await self._open(place, topic_id, epoch, settings, topic)
                elif topic.over:
                    raise StorageError(f"{place.topic}: what became of a send is not known, so it is opened anew")
                else:
                    await topic.configure(settings)
            if topic is not self._topics.get(place) or topic.over:
                raise StorageError(f"{place.topic} was opened anew meanwhile")
        except BaseException:
            self._left(place)
            raise
        index = topic.index(partition)
        index.least = max(index.least, next_offset)
        topic.trim_index(index, start_offset)
        opened = SharedPartition(topic, index, f"{place.topic.name}-{partition}", stalled)
        before = topic.partitions.get(partition)
        topic.partitions[partition] = opened
        if before is not None:
            before.give_up()
            self._left(place)
        return opened

    async def _open(
        self, place: Place, topic_id: bytes, epoch: int, settings: TopicSettings, before: SharedTopic | None
    ) -> SharedTopic:
        await self.left(place)
        rows = self._rows.get(place)
        if rows is None:
            rows = self._rows[place] = IndexRows(self._manager, self._writer, topic_id, str(place.topic))
        written = None
        if before is None:
            written = await rows.read()
            following = written.next
        else:
            before.stop(StorageError(f"{place.topic} is opened under epoch {epoch}"), but=None)
            await before.saved()
            following = before.end
        inner = await self._ordinals.open(
            place, topic_id, _TOPIC, epoch=epoch, settings=settings, next_offset=following, start_offset=0,
            stalled=lambda _: None,
        )  # fmt: skip
        direct = inner if CAP_NOWAIT in self._ordinals.capabilities else None
        topic = SharedTopic(
            inner, direct, rows, lambda: self._ordinals.rows(inner),  # type: ignore[arg-type]
            kept=self._kept, buffers=self._buffers, settings=settings, wall_ms=self._wall_ms, save_soon=self._save_soon,
        )  # fmt: skip
        if before is not None:
            await topic.find_out(topic.take_over(before))
        elif written is not None:
            await topic.load(written)
        self._topics[place] = topic
        if before is not None:  # whoever has not been opened anew yet is told once more when it is used
            self._users[place] -= len(before.partitions)
        return topic

    def _left(self, place: Place) -> None:
        """Somebody does not use a topic any more."""
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._rows.pop(place, None)
            topic = self._topics.pop(place, None)
            if topic is not None:
                topic.close()
                if topic.saving:
                    self._leaving[place] = topic

    def busy(self, place: Place) -> bool:
        """Whether the index of a topic that is used no more is being written."""
        topic = self._leaving.get(place)
        if topic is None:
            return False
        if not topic.saving:
            del self._leaving[place]
        return topic.saving

    async def left(self, place: Place) -> None:
        """Until the index of a topic that is used no more is not being written."""
        topic = self._leaving.get(place)
        if topic is not None:
            await topic.saved()
            if self._leaving.get(place) is topic:
                del self._leaving[place]

    def release(self, opened: OpenTopic) -> None:
        """A partition has gone: it is not used any more."""
        assert isinstance(opened, SharedPartition)
        topic, place = opened.topic, opened.place
        if topic.partitions.get(opened.number) is opened:
            del topic.partitions[opened.number]
            opened.give_up()
            if self._topics.get(place) is topic:
                self._left(place)

    def rows(self, opened: OpenTopic) -> Mapping[str, bytes]:
        """Nothing: the index of all partitions is written together, by `save`."""
        return {}

    async def save(self, opened: Iterable[OpenTopic]) -> None:
        """Write the index of the topics of some partitions; what cannot be written is told in the log."""
        topics = {each.topic: None for each in opened if isinstance(each, SharedPartition)}
        for topic in topics:
            await self._save(topic)

    async def hand_over(self, opened: OpenTopic, commit: CommitRows) -> None:
        """Write the index of the topic of a partition with `commit`, unless it is written."""
        assert isinstance(opened, SharedPartition)
        await opened.topic.save(commit)

    async def _save(self, topic: SharedTopic) -> None:
        try:
            await topic.save()
        except KafkaError as error:
            logger.warning(
                "the index of %s could not be written, the next time it will be: until then opening it reads more: %s",
                topic, error,
            )  # fmt: skip

    def _save_soon(self, topic: SharedTopic) -> None:
        try:
            self._spawn(self._save, topic, name=f"write the index of {topic}")
        except Exception as failure:  # noqa: BLE001  (the gateway's own, which whoever waits for it is told)
            logger.debug("no task is started any more: %r", failure)

    def standings(self) -> Iterator[tuple[str, Standing]]:
        """Name and standing of each topic in use."""
        for topic in list(self._topics.values()):
            if not topic.over:  # others have their turn in between
                yield topic.place.topic.name, topic.standing()

    def memory_of(self, opened: OpenTopic) -> int:
        """Of its index."""
        assert isinstance(opened, SharedPartition)
        return opened.index.memory
