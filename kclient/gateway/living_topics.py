"""Has rows of a topic written only while that is there: another gateway may have deleted it, with all its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from kclient.errors import UnknownTopicOrPartitionError
from kclient.gateway.rows.keys import TOPICS, topic_key
from kclient.gateway.rows.topics import TopicRow
from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.htp.port import Manager


class LivingTopic(Protocol):
    """What is known of a topic."""

    name: str
    version: int
    """Of its row, as it was read or written last."""


class TopicGoneError(UnknownTopicOrPartitionError):
    """A topic was deleted: what was to be written of it was not, nor anything else.

    Args:
        topic_id: Its id.
    """

    def __init__(self, topic_id: bytes) -> None:
        super().__init__(f"the topic with the id {topic_id.hex()} was deleted")
        self.topic_id = topic_id


class LivingTopics:
    """Tells which versions the rows of topics have as long as these are there.

    Where this gateway has served alone since the first generation that is kept, nobody else deletes topics, and its own
    deletions wait for what is under way: then nothing is expected.

    Args:
        manager: Keeps the rows.
        find: The topic of an id, as far as it is known.
        generations: Tell whether there are other gateways, or were.
    """

    def __init__(
        self, manager: Manager, find: Callable[[bytes], LivingTopic | None], generations: ClusterGenerations
    ) -> None:
        self._manager = manager
        self._find = find
        self._generations = generations

    def expectation(self, topic_ids: Iterable[bytes]) -> TopicExpectation:
        """What a commit of rows of some topics expects."""
        return TopicExpectation(self._manager, self._find, self._generations, dict.fromkeys(topic_ids))


class TopicExpectation:
    """The rows of some topics and the versions that they have, for one commit, which may be tried again."""

    def __init__(
        self,
        manager: Manager,
        find: Callable[[bytes], LivingTopic | None],
        generations: ClusterGenerations,
        topic_ids: Iterable[bytes],
    ) -> None:
        self._manager = manager
        self._find = find
        self._generations = generations
        self._topic_ids = topic_ids
        self._told: dict[str, int] = {}
        """Versions that were read because others were there than were known."""
        self._ids: dict[str, bytes] = {}
        """Whose rows are expected."""

    @property
    def versions(self) -> dict[str, int]:
        """By the keys of the rows.

        Raises:
            TopicGoneError: One of the topics is not known any more.
        """
        if len(self._generations.current.kept) == 1:
            return {}
        found: dict[str, int] = {}
        for topic_id in self._topic_ids:
            record = self._find(topic_id)
            if record is None:
                raise TopicGoneError(topic_id)
            key = topic_key(record.name)
            found[key] = max(record.version, self._told.get(key, 0))
            self._ids[key] = topic_id
        return found

    async def look_again(self, conflict: ConflictError) -> None:
        """A row has another version than was expected: see whether the topic has been changed, or has gone.

        Raises:
            ConflictError: It is about another row.
            TopicGoneError: It has gone.
            HtpError: The store failed.
        """
        key = conflict.key
        if not key.startswith(TOPICS) or key not in self._ids:
            raise conflict
        row = (await self._manager.get([key])).get(key)
        if row is None:
            raise TopicGoneError(self._ids[key]) from conflict
        with suppress(ValueError):  # nobody knows of a damaged row: it is as it was served
            if TopicRow.decode(row.value).topic_id != self._ids[key]:
                raise TopicGoneError(self._ids[key]) from conflict
        self._told[key] = row.version
