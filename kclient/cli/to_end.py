"""How far `kclient consume --to-end` reads, and of which topics: one that is created anew under the name is another."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from kclient.admin import PartialFailureError
from kclient.cli.trouble import Patience, patiently
from kclient.config import AdminConfig
from kclient.errors import BrokerConnectionError, KafkaTimeoutError, UnknownTopicOrPartitionError
from kclient.sync import Admin
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.records import ConsumerRecord
    from kclient.sync import Consumer

_LOOK_S = 1.0
"""Seconds between looks at whether the topics are still there."""
_AGAIN_S = 0.5
"""Seconds after which a topic that is not there is looked for once more: brokers may lag behind."""
_POSITION_S = 1.0
"""Seconds to wait for a position, before it is looked whether there will be one."""
_NAMED = 8
"""So many partitions are named; others are counted."""


class ToEnd:
    """The ends of partitions as they are now; close `admin` afterwards.

    Args:
        consumer: Is assigned the partitions.
        admin: Knows the topics' ids.
        partitions: Which.
        patience: How long to ask for the ends; once they are known, it is for as long as it takes.
    """

    def __init__(
        self, consumer: Consumer, admin: Admin, partitions: Collection[TopicPartition], patience: Patience
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._patience = patience
        self._ids = self._ask({partition.topic for partition in partitions})  # before the ends: these are of no others
        self._ends = patience(lambda timeout: consumer.end_offsets(partitions, timeout=timeout))
        self._patience = patiently
        self._left = dict(self._ends)
        self._next: dict[TopicPartition, int] = {}
        self._looked = time.monotonic()

    def reached(self) -> bool:
        """Whether all is read.

        Raises:
            UnknownTopicOrPartitionError: A topic was deleted before it was.
        """
        read, unsure = [], False
        for partition, end in self._left.items():
            if self._next.get(partition, 0) < end:
                if not self._is_at(partition, end):
                    break
                unsure = True  # a position may be that in a topic that was created anew
            read.append(partition)
        if unsure or time.monotonic() - self._looked >= _LOOK_S:
            self._look()
        for partition in read:
            del self._left[partition]
        return not self._left

    def of(self, records: Iterable[ConsumerRecord]) -> list[ConsumerRecord]:
        """Those of the records that are to be read.

        Raises:
            UnknownTopicOrPartitionError: A topic was deleted before all of it was read.
        """
        wanted: list[ConsumerRecord] = []
        following, unsure = dict(self._next), time.monotonic() - self._looked >= _LOOK_S
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if record.offset < self._ends[partition]:
                # nothing comes before what was read, but in a topic that was created anew
                unsure = unsure or record.offset < following.get(partition, 1 << 63)
                following[partition] = record.offset + 1
                wanted.append(record)
        if unsure:
            self._look()
        self._next = following
        return wanted

    def _is_at(self, partition: TopicPartition, end: int) -> bool:
        try:
            return self._consumer.position(partition, timeout=_POSITION_S) >= end
        except (KafkaTimeoutError, BrokerConnectionError) as error:
            if not error.retriable:
                raise
            return False

    def _look(self) -> None:
        """Raises `UnknownTopicOrPartitionError` where a topic that is not all read is gone, or is another."""
        topics = {partition.topic for partition, end in self._left.items() if self._next.get(partition, 0) < end}
        now = self._ask(topics)
        if topics - now.keys():
            time.sleep(_AGAIN_S)
            now = self._ask(topics)
        self._looked = time.monotonic()
        for topic in sorted(topics):
            if now.get(topic) != self._ids.get(topic):
                raise UnknownTopicOrPartitionError(self._account(topic, again=topic in now))

    def _account(self, topic: str, *, again: bool) -> str:
        left = [
            f"{partition} (to before {self._next[partition]} of {end})" if partition in self._next else f"{partition}"
            for partition, end in sorted(self._left.items())
            if partition.topic == topic and self._next.get(partition, 0) < end
        ]
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        what = "was deleted and created again" if again else "was deleted"
        return f"topic {topic!r} {what}; not read to the end: {', '.join(left[:_NAMED])}{more}"

    def _ask(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of those of the topics that there are."""
        try:
            return self._ids_of(sorted(topics))
        except (UnknownTopicOrPartitionError, PartialFailureError):
            found: dict[str, str] = {}
            for topic in sorted(topics):
                try:
                    found |= self._ids_of([topic])
                except UnknownTopicOrPartitionError:
                    continue
            return found

    def _ids_of(self, topics: list[str]) -> dict[str, str]:
        described = self._patience(lambda timeout: self._admin.describe_topics(topics, timeout=timeout))
        return {name: topic.topic_id for name, topic in described.items()}


def open_admin(settings: Mapping[str, object]) -> Admin:
    """An admin client with those of a consumer's settings that it has as well."""
    known = AdminConfig.settings()
    return Admin({name: value for name, value in settings.items() if name.replace("_", ".") in known})
