"""What the row of a topic says now: where a change of it has failed, and where another gateway has changed it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kclient.errors import KafkaError
from kclient.gateway.rows.keys import intent_key, topic_key
from kclient.gateway.topics.remains import TopicEpochs, TopicOffsets, TopicRemains, end, is_intent, same_intent
from kclient.htp.errors import HtpError, StorageError

if TYPE_CHECKING:
    from kclient.gateway.shields import Shields
    from kclient.gateway.topics.loading import TopicReader
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.settings import TopicConfigs
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")


class TopicRefresher:
    """Has in force what rows of topics say. Whoever calls holds the topic's lock.

    Args:
        topics: Where the topics are found.
        settings: Of the topics.
        loader: Makes topics of rows.
        remains: Of deleted topics.
        offsets: What is committed of them.
        epochs: Under which they are led.
        manager: Keeps the rows.
        shields: Keep changes from being left half done.
        retry: Has what the store did not tell looked up again later.
    """

    def __init__(
        self,
        topics: TopicTable,
        settings: TopicConfigs,
        loader: TopicReader,
        remains: TopicRemains,
        offsets: TopicOffsets,
        epochs: TopicEpochs,
        *,
        manager: Manager,
        shields: Shields,
        retry: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._loader = loader
        self._remains = remains
        self._offsets = offsets
        self._epochs = epochs
        self._manager = manager
        self._shields = shields
        self._retry = retry

    async def find_out(self, name: str) -> None:
        """See what the row of a topic says where a change of it has failed; the caller holds its lock.

        Until that is known, nothing is changed, and a topic that may be deleted takes nothing: it would go with it. One
        that may have been created is not there yet.

        Raises:
            StorageError: It is still not known, and is looked up again later.
        """
        record = self._topics.unsure.get(name)
        if record is None:
            return
        served, new, key = name in self._topics, not record.version, topic_key(name)
        try:
            row = (await self._manager.get([key])).get(key)
            written = None if row is None else self._loader.parse(name, row)
        except (ValueError, KafkaError) as error:
            text = f"what became of a change of topic {name} is not known, it is looked up again"
            logger.error("%s: %s", text, error)
            self._retry()
            raise StorageError(f"{text}: {error}") from error
        del self._topics.unsure[name]
        if written is None or written.topic_id != record.topic_id:
            if not new:  # else its places are removed with what others have left
                await (self._gone(record) if served else self._remains.deleted(record))
            return
        self._topics.take_over(record, written)
        if new:
            self.created(record)
            return
        if not served:
            self._topics.add(record)
        await self._settings.reconfigure(record)  # it has missed what was changed meanwhile

    async def read(self, name: str) -> bool:
        """See what the row of a topic says; the caller holds its lock, and no change is unsure.

        Returns:
            Whether there is an intent that is another gateway's.
        """
        key, intent = topic_key(name), intent_key(name)
        found = await self._manager.get([key, intent])
        row, record = found.get(key), self._topics.get(name)
        if row is None and record is None:
            if name in self._topics.damaged and intent not in found:
                del self._topics.damaged[name]
        elif row is None or record is None or row.version != record.version:
            with self._shields.shield():
                if row is None:
                    assert record is not None
                    await self._gone(record)
                elif record is None:
                    await self._add(name, row)
                else:
                    await self._follow(record, row)
        if intent not in found:
            return False
        left, written = self._topics.left.get(name), found[intent].value
        if left is None:
            if name in self._topics.damaged and not is_intent(written):  # then only a deletion is asked for
                return False
            return not self._remains.take_back(name, written)
        return not same_intent(written, left)

    async def _follow(self, record: TopicRecord, row: Versioned) -> None:
        """A topic has another row than is known."""
        try:
            written = self._loader.parse(record.name, row)
        except (ValueError, KafkaError) as error:
            logger.error("topic %s is served as it was known, its row cannot be read: %s", record.name, error)
            record.version = row.version  # whoever changes it writes the row anew
            return
        if written.topic_id != record.topic_id:
            await self._gone(record)
            await self._add(record.name, row)
            return
        self._topics.take_over(record, written)
        with suppress(KafkaError):  # the log tells of it
            await self._settings.reconfigure(record)

    async def _add(self, name: str, row: Versioned) -> None:
        """Another gateway has created a topic."""
        if name in self._topics.damaged:
            if self._is_damaged(name, row):
                return
            del self._topics.damaged[name]
        await self._forget_offsets(name)
        await self._loader.load_rows({name: row})

    def _is_damaged(self, name: str, row: Versioned) -> bool:
        try:
            self._loader.parse(name, row)
        except (ValueError, KafkaError):
            return True
        return False

    async def _gone(self, record: TopicRecord) -> None:
        """Another gateway has deleted a topic, and removes what is left of it."""
        name = record.name
        self._topics.remove(record)
        record.gone = True
        await self._offsets.topic_deleted(name)
        logger.info("topic %s was deleted by another gateway", name)
        partitions = list(record.logs.values())
        record.logs.clear()
        await end(partitions)
        self._epochs.forget(record.topic_id)
        await self._forget_offsets(name)

    async def _forget_offsets(self, name: str) -> None:
        """No offsets of a deleted topic are kept when a namesake comes. Raises `StorageError`; then call it again."""
        try:
            await self._offsets.forget_topic(name)
        except HtpError:
            raise
        except KafkaError as error:
            raise StorageError(str(error)) from error

    def created(self, record: TopicRecord) -> None:
        """A topic has a row, and no intent any more."""
        del self._topics.left[record.name]
        self._settings.configure(record)  # as they are now
        self._topics.add(record)
