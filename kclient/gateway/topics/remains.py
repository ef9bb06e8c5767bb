"""What creations, growths and deletions of topics leave to be removed: places in HTP, rows, offsets.

An *intent* row says that there may be something; it goes when nothing is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel

from kclient.errors import KafkaError, KafkaStorageError
from kclient.gateway.rows.keys import intent_key, of_topic, topic_key
from kclient.gateway.topics.record import Intent, TopicRecord
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.partition import Partition
    from kclient.gateway.topics.loading import TopicReader
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Broker, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

_ENDED_AT_ONCE: Final = 100
"""Partitions that are ended in one turn of the loop."""
_LEAVING_S: Final = 1.0
"""Seconds that a deletion waits for partitions that are being opened: a store may hang, then it is tried again."""


class TopicOffsets(Protocol):
    """What is committed of topics: it goes with them."""

    async def topic_deleted(self, topic: str) -> None:
        """A topic has gone: nobody sees its offsets any more when this returns."""
        ...

    async def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic from the store. Raises `KafkaError` if it fails; then call it again."""
        ...


class TopicEpochs(Protocol):
    """The leader epochs of topics: they go with them."""

    def greatest_epoch(self, topic_id: bytes) -> int:
        """The greatest of a topic's partitions: under it what it has is removed."""
        ...

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed with all its rows."""
        ...


class TopicRemains:
    """Announces what may be left, and removes it. Whoever calls holds the topic's lock.

    Args:
        topics: Where the topics are found, and what is left of them.
        loader: Of a topic that is there after all.
        offsets: What is committed of them.
        epochs: Under which they are led.
        manager: Keeps the rows.
        broker: Keeps the messages.
        lease: Under which rows are written.
        run: Of the gateway, for what it begins to be told from what others do.
        retry: Has what could not be removed tried again later.
    """

    def __init__(
        self,
        topics: TopicTable,
        loader: TopicReader,
        offsets: TopicOffsets,
        epochs: TopicEpochs,
        *,
        manager: Manager,
        broker: Broker,
        lease: HeldLease,
        run: str,
        retry: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._loader = loader
        self._offsets = offsets
        self._epochs = epochs
        self._manager = manager
        self._broker = broker
        self._lease = lease
        self._run = run
        self._retry = retry
        self._deletions: dict[str, int] = {}
        """The version of the intent of each deletion that was just made: nothing of it has been tried to remove yet."""
        self._leaving: dict[str, list[Partition]] = {}
        """Partitions of deleted topics that may still write rows: those of others are removed meanwhile."""

    async def intend(self, record: TopicRecord, version: int) -> int:
        """Say, durably, that a topic is being made or changed: its places are nobody else's until the intent has gone.

        Args:
            record: Of the topic.
            version: Of its row; 0 if there is none yet.

        Returns:
            The version of the intent.

        Raises:
            ConflictError: Another gateway is faster.
        """
        key, intent = intent_key(record.name), Intent(record.mapping, record.topic_id, self._run)
        self._topics.left[record.name] = intent  # until the topic's row says otherwise
        try:
            expected = {topic_key(record.name): version, key: 0}
            return await self._manager.commit({key: intent.row()}, expected, lease=self._lease.current)
        except ConflictError:
            del self._topics.left[record.name]
            raise

    def take_back(self, name: str, row: bytes) -> bool:
        """Whether an intent is this gateway's own, by a commit that the store has made after it had said otherwise.

        What that commit has left is removed then.
        """
        try:
            intent = Intent.of(row)
        except (ValueError, KafkaError):
            return False
        if intent.run != self._run:
            return False
        self._topics.left[name] = intent
        self._retry()
        return True

    async def adopt(self, name: str, intent: Intent, version: int) -> bool:
        """Take over what the gateway that had an intent has not finished: nobody else does from then on.

        Args:
            name: Of the topic.
            intent: Whose gateway has ended.
            version: Of its row.

        Returns:
            False if it has gone, or another gateway was faster.

        Raises:
            HtpError: The store failed.
        """
        own, key = Intent(intent.mapping, intent.topic_id, self._run), intent_key(name)
        try:
            await self._manager.commit({key: own.row()}, {key: version}, lease=self._lease.current)
        except ConflictError:
            return False
        self._topics.left[name] = own
        return True

    async def deleted(self, record: TopicRecord, version: int | None = None) -> None:
        """A topic's row has been removed: it has gone, and what is left of it goes now or later.

        Args:
            record: Of the topic.
            version: Of the intent that was written in its place, as far as it is known.
        """
        record.gone = True
        self._topics.left[record.name] = Intent(record.mapping, record.topic_id, self._run)
        if version is not None:
            self._deletions[record.name] = version
        await self._offsets.topic_deleted(record.name)
        logger.info("topic %s deleted", record.name)
        partitions = self._leaving[record.name] = list(record.logs.values())
        record.logs.clear()
        await end(partitions)
        self._retry()  # whoever has it deleted does that at once, unless he is gone by now

    async def remove(self, name: str, *, certain: bool = False) -> None:
        """Remove what a creation that was cut off, or a deletion, has left under a name; the caller holds its lock.

        Args:
            name: Of the topic.
            certain: The intent is that of a deletion, which has been made.
        """
        intent, version = self._topics.left.get(name), self._deletions.pop(name, None)
        if intent is None:
            return
        if any(partition.busy for partition in self._leaving.get(name, ())):  # what it writes would come afterwards
            raise KafkaStorageError(f"a partition of the deleted topic {name} is still being opened, or saved")
        self._leaving.pop(name, None)
        key, intent_at = topic_key(name), intent_key(name)
        row: Versioned | None = None
        if not certain or version is None:
            found = await self._manager.get([key, intent_at])
            row, written = found.get(key), found.get(intent_at)
            if written is not None and not same_intent(written.value, intent):  # the own one went before
                await self._offsets.forget_topic(name)  # of groups here: others remove those of theirs
                del self._topics.left[name]
                return
            version = 0 if written is None else written.version
            if row is None and not (certain and written is not None):
                # Nobody else may make places meanwhile; and a creation that the store was asked for, and has not made
                # yet though it said that it failed, expects another version: it is not made when its places are gone.
                expected = {key: 0, intent_at: version}
                version = await self._manager.commit({intent_at: intent.row()}, expected, lease=self._lease.current)
        rows: dict[str, bytes | None] = {intent_at: None}
        if row is not None:  # it was recorded, though the one who recorded it was told otherwise
            if name not in self._topics and name not in self._topics.damaged:
                await self._offsets.forget_topic(name)  # of a namesake that another gateway has deleted
                await self._loader.load_rows({name: row})
        else:
            logger.info("removing what is left of topic %s", name)
            lease, epoch = self._lease.current, self._epochs.greatest_epoch(intent.topic_id or b"")
            await intent.mapping.delete(self._manager, self._broker, name, lease=lease, epoch=epoch)
            if intent.topic_id is not None:
                for prefix in of_topic(intent.topic_id, shared=intent.mapping.shared):
                    async for page in scan_pages(self._manager, prefix):
                        rows |= dict.fromkeys(page)
            await self._offsets.forget_topic(name)  # before the intent goes: it alone tells that they may
        await self._manager.commit(rows, {intent_at: version}, lease=self._lease.current)
        del self._topics.left[name]
        if row is None and intent.topic_id is not None:
            self._epochs.forget(intent.topic_id)


def is_intent(row: bytes) -> bool:
    """Whether a row is that of an intent, which can be read."""
    try:
        Intent.of(row)
    except (ValueError, KafkaError):
        return False
    return True


def same_intent(row: bytes, intent: Intent) -> bool:
    """Whether a row is that of an intent; one that cannot be read counts as it."""
    try:
        written = Intent.of(row)
    except (ValueError, KafkaError):
        return True
    return (written.topic_id, written.run) == (intent.topic_id, intent.run)


async def end(partitions: list[Partition]) -> None:
    """End them; those stay in the list of which something is still under way after a while."""
    for number, partition in enumerate(partitions, 1):
        partition.drop()
        if number % _ENDED_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
    with anyio.move_on_after(_LEAVING_S):
        for partition in partitions:
            if partition.busy:
                await partition.left()
    partitions[:] = [partition for partition in partitions if partition.busy]
