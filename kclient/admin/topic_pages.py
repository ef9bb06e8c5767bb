"""Topics told of page by page (DescribeTopicPartitions, KIP-966): what is asked for next, what was told so far."""

from __future__ import annotations

from collections.abc import Collection

from kclient.arguments import shown
from kclient.errors import InconsistentTopicIdError, UnknownServerError
from kclient.protocol.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponseTopic,
)


class TopicPages:
    """The pages of one call. A broker keeps nothing between them, so each may come from another one.

    Args:
        names: the topics.
        limit: so many partitions are in a page at most; brokers have a limit of their own
            (`max.request.partition.size.limit`, 2,000).
    """

    def __init__(self, names: Collection[str], limit: int) -> None:
        self._left = sorted(names)
        self._limit = limit
        self._cursor: DescribeTopicPartitionsResponseCursor | None = None
        self.topics: dict[str, DescribeTopicPartitionsResponseTopic] = {}
        """By name, with the partitions of all pages so far."""

    def request(self) -> DescribeTopicPartitionsRequest:
        """What asks for the next page."""
        cursor = self._cursor
        return DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in self._left],
            response_partition_limit=self._limit,
            cursor=None
            if cursor is None
            else DescribeTopicPartitionsRequestCursor(
                topic_name=cursor.topic_name, partition_index=cursor.partition_index
            ),
        )

    def take(self, page: DescribeTopicPartitionsResponse) -> bool:
        """Add a page.

        Returns:
            Whether another follows.

        Raises:
            InconsistentTopicIdError: a topic was deleted and created again between two pages; ask from the start.
            UnknownServerError: the answer's cursor leads nowhere.
        """
        for topic in page.topics:
            if topic.name is not None:
                self._add(topic.name, topic)
        cursor = page.next_cursor
        if cursor is None:
            return False
        if cursor.topic_name not in self._left or not self._is_ahead(cursor):
            raise UnknownServerError(
                f"Describing topics: the broker's answer goes on at partition {cursor.partition_index} of "
                f"{shown(cursor.topic_name)}, which was not asked for or was told of before"
            )
        self._cursor = cursor
        self._left = self._left[self._left.index(cursor.topic_name) :]
        return True

    def _is_ahead(self, cursor: DescribeTopicPartitionsResponseCursor) -> bool:
        """Whether a cursor leads on: topics before the last one's are not left."""
        last = self._cursor
        return last is None or cursor.topic_name != last.topic_name or cursor.partition_index > last.partition_index

    def _add(self, name: str, topic: DescribeTopicPartitionsResponseTopic) -> None:
        known = self.topics.setdefault(name, topic)
        if known is topic:
            return
        if topic.error_code:  # deleted meanwhile
            self.topics[name] = topic
        elif known.topic_id != topic.topic_id:
            raise InconsistentTopicIdError(f"Topic {shown(name)} was deleted and created again meanwhile")
        else:
            known.partitions += topic.partitions
