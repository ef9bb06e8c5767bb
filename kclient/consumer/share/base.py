"""What the async and the blocking share consumer offer alike: everything that waits for nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.arguments import as_partition, as_topics, check_callback, index_of, shown
from kclient.config import ShareConsumerConfig
from kclient.consumer.face_base import FaceBase, split_arguments
from kclient.consumer.share.core import ShareConsumerCore
from kclient.consumer.share.model import AcknowledgeType
from kclient.consumer.share.opening import DELIVERY_COUNT, pyarrow
from kclient.records import ConsumerRecord
from kclient.records.arrow import column_names
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kclient.config import ConfigInput
    from kclient.consumer.actions import Script
    from kclient.consumer.share.collector import ShareCollector
    from kclient.consumer.share.model import AcknowledgementCommitCallback
    from kclient.types import Partition


class ShareConsumerBase(FaceBase):
    """The part of a share consumer that is the same for async and blocking code."""

    # declared again, since this kind of consumer has more of them
    _core: ShareConsumerCore
    _collector: ShareCollector
    _buffer: ShareCollector

    def __init__(self, *topics: str | Mapping[str, Any] | Path, config: ConfigInput = None, **settings: Any) -> None:
        names, source = split_arguments(topics, config, "ShareConsumer")
        self._core = ShareConsumerCore(ShareConsumerConfig.parse(source, **settings), self._clock)
        self._collector = self._buffer = self._core.collector
        self._readiness = self._core.readiness
        if names:
            self.subscribe(names)

    @property
    def config(self) -> ShareConsumerConfig:
        """The settings that it was made with, checked and complete."""
        return self._core.config

    def _poll_script(self, deadline: float, take: Callable[[], Any]) -> Script:
        return self._core.polling.poll(deadline, take)

    def _departure(self, timeout: float, leave_group: bool | None) -> Script:
        core = self._core
        deadline = core.clock() + timeout
        return core.polling.close(timeout, lambda: core.shut(max(deadline - core.clock(), 0.0)))

    # ------------------------------------------------------------------ what to read

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Read topics as a member of the share group; the next `poll` joins it. Replaces the subscription before.

        Args:
            topics: Names of topics, or one name. At least one: `unsubscribe` gives all of them up.

        Raises:
            TypeError: These are no names.
            ValueError: There is none, or one that no topic can have.
            ClosedError: The consumer was closed.
        """
        self._check_here()
        self._core.life.check_open()
        # plain text: the background tasks compare them, and what the user's own kind of it does is raised here only
        names = [str.__str__(topic) for topic in as_topics(topics)]
        if not names:
            raise ValueError("subscribe needs at least one topic; unsubscribe gives all of them up")
        self._core.subscribe(names)

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        return set(self._core.member.topics)

    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long brokers hold a record for this consumer (KIP-1222), in milliseconds; None before the first fetch.

        It is the group's `share.record.lock.duration.ms`. When it is over the record is delivered again, unless it was
        acknowledged before, or its lock renewed (`AcknowledgeType.RENEW`).
        """
        return self._core.sessions.lock_timeout_ms

    # ------------------------------------------------------------------ acknowledgements

    def acknowledge(self, record: ConsumerRecord, acknowledge_type: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record, with `share.acknowledgement.mode=explicit`. The next poll or commit tells it.

        Until then, another call for the same record replaces what was said.

        Args:
            record: A record that the last poll returned, or one of which the lock was renewed since.
            acknowledge_type: What became of it.

        Raises:
            IllegalStateError: The mode is `implicit`; or the record was not returned, or what became of it was told
                before.
            TypeError: It is no record, or no `AcknowledgeType`.
        """
        if not isinstance(record, ConsumerRecord):
            raise TypeError(f"acknowledge needs a record that poll returned, not {shown(record)}")
        self._say([(TopicPartition(record.topic, record.partition), record.offset)], acknowledge_type)

    def acknowledge_offset(
        self, partition: Partition, offset: int, acknowledge_type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """As `acknowledge`, of a record by its place: also of one that raised `RecordDeserializationError`.

        Args:
            partition: Where it is.
            offset: Its offset.
            acknowledge_type: What became of it.

        Raises:
            IllegalStateError: As for `acknowledge`.
            TypeError: These are no partition, whole number and `AcknowledgeType`.
            ValueError: A topic is empty or a number negative.
        """
        place = index_of(offset)
        if place is None:
            raise TypeError(f"the offset to acknowledge must be a whole number, not {shown(offset)}")
        self._say([(as_partition(partition), place)], acknowledge_type)

    def acknowledge_arrow(self, batch: Any, acknowledge_type: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """As `acknowledge`, of all rows of a record batch that `poll_arrow` returned, or of some of them.

        Args:
            batch: A `pyarrow.RecordBatch` or `pyarrow.Table` with the columns `topic`, `partition` and `offset`.
            acknowledge_type: What became of them.

        Raises:
            IllegalStateError: As for `acknowledge`; the rows before are acknowledged.
            MissingExtraError: pyarrow is not installed.
            TypeError: It has no such columns, or this is no `AcknowledgeType`.
        """
        pa = pyarrow()
        names = ("topic", "partition", "offset")
        if not isinstance(batch, pa.RecordBatch | pa.Table) or not set(names) <= set(batch.schema.names):
            raise TypeError(
                f"acknowledge_arrow needs the columns topic, partition and offset of poll_arrow, not {shown(batch)}"
            )
        topics, partitions, offsets = (batch.column(name).to_pylist() for name in names)
        places = zip(map(TopicPartition, topics, partitions), offsets, strict=True)
        self._say(places, acknowledge_type)

    def _say(self, places: Iterable[tuple[TopicPartition, int]], kind: AcknowledgeType) -> None:
        self._check()
        if not isinstance(kind, AcknowledgeType):
            raise TypeError(f"acknowledge_type must be one of AcknowledgeType's, not {shown(kind)}")
        self._core.acknowledge(lambda hand: hand.acknowledge(places, kind))

    def commit_async(self) -> None:
        """Tell the brokers what became of records, in the background; the callback is told how that went.

        In `implicit` mode, everything that was returned is accepted. What can be tried again is, for
        `default.api.timeout.ms`.
        """
        self._check()
        self._core.polling.commit_async()

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have a function told what became of acknowledgements; it replaces the one before, None tells nobody.

        Args:
            callback: Called as `callback(offsets, error)` by a later `poll`, `commit`, `unsubscribe` or `close`, once
                for each partition of each answer: with the offsets of records by partition, and None or what went
                wrong.

        Raises:
            TypeError: It cannot be called.
        """
        check_callback(callback, "callback")
        self._core.callback = callback


def arrow_columns(columns: Iterable[str] | None, include_headers: bool) -> tuple[str, ...]:
    """Which columns `poll_arrow` is to return: those of the consumer, and `deliveryCount`.

    Raises:
        TypeError: They are no names.
        ValueError: One is unknown or named twice, or there is none, or headers are asked for in both ways.
    """
    if columns is None:
        return (*column_names(None, include_headers), DELIVERY_COUNT)
    if isinstance(columns, str | bytes):
        return column_names(columns, include_headers)  # which says why not
    names = list(columns)
    if names.count(DELIVERY_COUNT) > 1:
        raise ValueError(f"the column {DELIVERY_COUNT} is named twice")
    others = [name for name in names if name != DELIVERY_COUNT]
    if others or not names:
        column_names(others, include_headers)
    return tuple(names)
