"""The cluster as Spark jobs need it: topics with their ids, offsets, and consumers at explicit positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from kclient.config import AdminConfig, ConsumerConfig
from kclient.errors import KafkaError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from kclient.sync import Admin, Consumer
    from kclient.types import OffsetAndTimestamp, TopicPartition

_FIXED = {
    "auto.offset.reset": "none",
    "enable.auto.commit": "false",
    "client.id": "kclient-spark",
    "allow.auto.create.topics": "false",
}
"""Of the consumers: positions are always explicit, and a topic that was deleted is not created again by reading it."""

NO_TOPIC_ID = "A" * 22
"""What stands in an id's place where brokers know none (Kafka before 2.8)."""


@dataclass(frozen=True)
class KnownTopic:
    """A topic as it is now: deleted and created again it has another id."""

    topic_id: str
    partitions: tuple[int, ...]


class TopicView(Protocol):
    """What planning asks."""

    def names(self) -> list[str]:
        """Every topic that is not Kafka's own."""
        ...

    def topics(self, names: Collection[str]) -> dict[str, KnownTopic]:
        """These topics; those that do not exist are left out."""
        ...

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The first offset of each log."""
        ...

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset behind the last record; with `isolation.level=read_committed` the last stable one."""
        ...

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset behind the last record, open transactions included."""
        ...

    def offsets_for_times(
        self, wanted: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in milliseconds, or None."""
        ...


class LiveCluster:
    """A cluster that is asked over the network; `with` closes it. Nothing is connected before it is needed."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._open = ExitStack()
        self._consumer: Consumer | None = None
        self._admin: Admin | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def close(self) -> None:
        """As the end of `with`."""
        self._open.close()

    @property
    def consumer(self) -> Consumer:
        """A consumer that belongs to no group, for explicit positions only."""
        if self._consumer is None:
            self._consumer = self._open.enter_context(_open_consumer(self._settings))
        return self._consumer

    @property
    def admin(self) -> Admin:
        """An admin client."""
        if self._admin is None:
            self._admin = self._open.enter_context(open_admin(self._settings))
        return self._admin

    def names(self) -> list[str]:
        return [topic.name for topic in self.admin.list_topics()]

    def topics(self, names: Collection[str]) -> dict[str, KnownTopic]:
        wanted = sorted(set(names))
        try:
            found = self.admin.describe_topics(wanted) if wanted else {}
        except KafkaError as error:
            unknown = isinstance(error, UnknownTopicOrPartitionError)
            if len(wanted) == 1 and unknown:
                return {}
            # which of several are missing is no part of the error
            existing = {topic.name for topic in self.admin.list_topics(include_internal=True)}
            left = [name for name in wanted if name in existing]
            if left == wanted and not unknown:
                raise
            return self.topics(left)  # one that is unknown and listed was deleted a moment ago, or is being created
        return {
            name: KnownTopic(topic.topic_id, tuple(info.partition for info in topic.partitions))
            for name, topic in found.items()
        }

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.consumer.beginning_offsets(partitions) if partitions else {}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.consumer.end_offsets(partitions) if partitions else {}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        from kclient import OffsetSpec

        found = self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)) if partitions else {}
        return {partition: 0 if place is None else place.offset for partition, place in found.items()}

    def offsets_for_times(
        self, wanted: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        return self.consumer.offsets_for_times(wanted) if wanted else {}


def _open_consumer(settings: Mapping[str, str]) -> Consumer:
    """A blocking consumer without group membership, for explicit positions only."""
    from kclient.sync import Consumer

    return Consumer({**_FIXED, **settings})


def check_settings(settings: Mapping[str, str]) -> ConsumerConfig:
    """What a consumer makes of them. Raises `ConfigError` or `NotYetSupportedError` where it would."""
    return ConsumerConfig.parse({**_FIXED, **settings})


def open_admin(settings: Mapping[str, str]) -> Admin:
    """An admin client with those of a consumer's settings that it has as well; the consumer checks the others."""
    from kclient.sync import Admin

    known = AdminConfig.settings()
    return Admin({"client.id": "kclient-spark", **{name: value for name, value in settings.items() if name in known}})
