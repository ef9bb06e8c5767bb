"""Partitions that topics get while `kclient consume` shows them."""

from __future__ import annotations

import time

from kclient.cli import output
from kclient.errors import KafkaTimeoutError, RetriableError, UnknownTopicOrPartitionError
from kclient.sync import Consumer
from kclient.types import TopicPartition

_EVERY_S = 1.0


class NewPartitions:
    """Assigns partitions that come while records are shown, from their beginning: nobody has seen any of them.

    It looks at what the consumer knows, which asks every `metadata.max.age.ms` and whenever a topic is made anew.

    Args:
        consumer: Its partitions are assigned by hand.
        topics: All of their partitions are to be shown.
    """

    def __init__(self, consumer: Consumer, topics: list[str]) -> None:
        self._consumer = consumer
        self._topics = list(dict.fromkeys(topics))
        self._next = time.monotonic() + _EVERY_S

    def assign(self) -> None:
        """Assign what has come since the last time, once a second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        assigned = self._consumer.assignment()
        kept, new = list[TopicPartition](), list[TopicPartition]()
        for topic in self._topics:
            mine = [each for each in assigned if each.topic == topic]
            known = self._known(topic)
            # one that is there no more comes back as another, if it does
            kept += [each for each in mine if each in known] if known else mine
            new += [each for each in known if each not in assigned]
        if len(kept) == len(assigned) and not new:
            return
        self._consumer.assign([*kept, *new])
        if not new:
            return
        self._consumer.seek_to_beginning(new)
        output.note(f"new partitions, shown from their beginning: {', '.join(map(str, new))}")

    def _known(self, topic: str) -> list[TopicPartition]:
        try:
            found = self._consumer.partitions_for(topic, timeout=0)
        except (KafkaTimeoutError, RetriableError, UnknownTopicOrPartitionError):
            return []  # it is being made anew, or it has gone
        return [TopicPartition(topic, each.partition) for each in sorted(found, key=lambda info: info.partition)]
