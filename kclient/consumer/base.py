"""What the async and the blocking consumer offer alike: everything that waits for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.arguments import (
    as_offset,
    as_partition,
    as_partitions,
    as_topics,
    by_partition,
    check_callback,
    check_text,
)
from kclient.config import ConsumerConfig
from kclient.consumer.core import ConsumerCore
from kclient.consumer.face_base import FaceBase, split_arguments
from kclient.consumer.interfaces import check_listener
from kclient.consumer.patterns import SubscriptionPattern
from kclient.consumer.reset import EARLIEST, LATEST
from kclient.errors import IllegalStateError
from kclient.records import ConsumerRecord
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.config import ConfigInput
    from kclient.consumer.actions import Script
    from kclient.consumer.fetch.buffer import FetchBuffer
    from kclient.consumer.fetch.collector import FetchCollector
    from kclient.consumer.group.model import ConsumerGroupMetadata
    from kclient.consumer.interfaces import CommitCallback, RebalanceListener
    from kclient.types import Offsets, Partition, PartitionWatermarks


class ConsumerBase(FaceBase):
    """The part of a consumer that is the same for async and blocking code."""

    # declared again, since this kind of consumer has more of them
    _core: ConsumerCore
    _collector: FetchCollector
    _buffer: FetchBuffer

    def __init__(self, *topics: str | Mapping[str, Any] | Path, config: ConfigInput = None, **settings: Any) -> None:
        names, source = split_arguments(topics, config)
        self._core = ConsumerCore(ConsumerConfig.parse(source, **settings), self._clock)
        self._collector = self._core.collector
        self._buffer = self._core.fetcher.buffer
        self._readiness = self._core.readiness
        if names:
            self.subscribe(names)

    @property
    def config(self) -> ConsumerConfig:
        """The settings that it was made with, checked and complete."""
        return self._core.config

    def _poll_script(self, deadline: float, take: Callable[[], Any]) -> Script:
        return self._core.polling.poll(deadline, take)

    def _departure(self, timeout: float, leave_group: bool | None) -> Script:
        return self._core.departure.close(timeout, leave_group)

    # ------------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group; the next `poll` joins it. Replaces the subscription before.

        Args:
            topics: Names of topics; or one name; or a compiled pattern, which the whole name has to match. New topics
                that match are found within `metadata.max.age.ms`; or a `SubscriptionPattern`, which the broker
                evaluates (`group.protocol=consumer`). No names at all unsubscribe, as in the Java client; a listener
                that is a coroutine function is told of that by the next `poll`, `commit` or `close`.
            listener: Told when partitions come and go.

        Raises:
            InvalidGroupIdError: There is no `group.id`.
            IllegalStateError: Partitions were assigned, or patterns and names mixed: `unsubscribe` first. Or a
                `SubscriptionPattern` is given with `group.protocol=classic`.
            TypeError: It is neither names nor a pattern of text, or the listener lacks a method.
            ClosedError: The consumer was closed.
        """
        self._check_here()
        core = self._core
        core.life.check_open()
        check_listener(listener)
        wanted = topics if isinstance(topics, re.Pattern | SubscriptionPattern) else as_topics(topics)
        group = core.group()
        self._collector.settle()
        if isinstance(wanted, re.Pattern):
            group.subscribe_pattern(wanted, listener)
        elif isinstance(wanted, SubscriptionPattern):
            group.subscribe_remotely(wanted, listener)
        elif wanted:
            group.subscribe(wanted, listener)
        else:
            self._unsubscribe_at_once()

    def _unsubscribe_at_once(self) -> None:
        """Give everything up without waiting for the coordinator to know."""
        core = self._core
        tell_listener = core.group().depart_at_once() if core.has_group else None
        core.control.unsubscribe()
        if tell_listener is not None:
            tell_listener()

    def subscription(self) -> set[str]:
        """The topics subscribed to; with a pattern those that match now, with a `SubscriptionPattern` those that this
        consumer has partitions of."""
        return set(self._core.subscriptions.topics)

    @property
    def rebalance_listener(self) -> RebalanceListener | None:
        """Who is told when partitions come and go: what `subscribe` was given, until another one is set.

        Raises:
            TypeError: What is set is no listener.
            IllegalStateError: It is set while the consumer is not subscribed.
        """
        return self._core.subscriptions.listener

    @rebalance_listener.setter
    def rebalance_listener(self, listener: RebalanceListener | None) -> None:
        check_listener(listener)
        if not self._core.subscriptions.uses_group:
            raise IllegalStateError("There is nobody to tell a rebalance listener of anything: subscribe first")
        self._core.subscriptions.listener = listener

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, without a group deciding; works without `group.id`.

        Those that were read before keep their positions. Without any partition it is `unsubscribe`, as in the Java
        client, which does not wait for the coordinator to know.

        Raises:
            IllegalStateError: The consumer is subscribed; `unsubscribe` first.
            ClosedError: The consumer was closed.
            TypeError: These are not partitions.
            ValueError: A topic is empty or a number negative.
        """
        self._check_here()
        self._core.life.check_open()
        wanted = as_partitions(partitions)
        self._collector.settle()
        if wanted:
            self._core.control.assign(wanted)
        else:
            self._unsubscribe_at_once()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return self._core.subscriptions.assignment

    # ------------------------------------------------------------------ positions

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Go on at an offset; what was fetched from elsewhere is dropped.

        Raises:
            IllegalStateError: The partition is not assigned.
            ValueError: The offset or the partition's number is negative.
            TypeError: The offset is not a whole number, or the partition is not one.
        """
        self._check()
        tp, place = as_partition(partition), as_offset(offset, "seek to")
        self._collector.settle()
        self._core.control.seek(tp, place.offset, place.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[Partition] = ()) -> None:
        """Go on at the oldest record of these partitions, or of all that are assigned.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._check()
        self._collector.settle()
        self._core.control.reset(as_partitions(partitions), EARLIEST)

    def seek_to_end(self, partitions: Iterable[Partition] = ()) -> None:
        """Go on behind the newest record of these partitions, or of all that are assigned.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._check()
        self._collector.settle()
        self._core.control.reset(as_partitions(partitions), LATEST)

    def current_lag(self, partition: Partition) -> int | None:
        """How many offsets are to be read until the end, as the last fetch has told it; asks nobody (KIP-695).

        The end is the high watermark, or with `read_committed` the last stable offset. Offsets that no record has
        (markers of transactions, what was compacted) count.

        Returns:
            None while the position or the end is not known: of a partition that was not fetched yet.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        self._check()
        tp = as_partition(partition)
        self._collector.settle()
        return self._core.current_lag(tp)

    def watermarks(self, partition: Partition) -> PartitionWatermarks:
        """Where a partition begins and ends, as the last fetch has told it; asks nobody.

        `beginning_offsets` and `end_offsets` ask for what is true now.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        self._check()
        return self._core.watermarks(as_partition(partition))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Return nothing of these partitions until `resume`; the membership in the group goes on.

        What was fetched of them is kept while nobody else needs its room (`fetch.max.bytes`); else it is fetched again
        when they go on.

        Raises:
            IllegalStateError: A partition is not assigned.
            ClosedError: The consumer was closed.
        """
        self._check_here()
        self._core.life.check_open()
        wanted = as_partitions(partitions)
        self._collector.settle()
        self._core.control.pause(wanted)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Undo `pause`.

        Raises:
            IllegalStateError: A partition is not assigned.
            ClosedError: The consumer was closed.
        """
        self._check_here()
        self._core.life.check_open()
        self._core.control.resume(as_partitions(partitions))

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return self._core.subscriptions.paused

    # ------------------------------------------------------------------ the rest

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit in the background, after the commits before it; does not try again.

        Args:
            offsets: As for `commit`.
            callback: Called as `callback(offsets, error)` by a later `poll`, `commit` or `close`: at the latest by
                `close`, with `ClosedError` for what it gives up.

        Raises:
            TypeError: The callback cannot be called, or the offsets are none.
            ValueError: An offset or a partition's number is negative.
        """
        self._check()
        group = self._core.group()
        check_callback(callback, "callback")
        wanted = _chosen_offsets(offsets)
        self._collector.settle()
        group.commit_async(wanted, callback)

    def store_offsets(self, offsets: Offsets | ConsumerRecord) -> None:
        """Say up to where you are through: with `enable.auto.offset.store=false` this is what is committed.

        That is by `commit` and `commit_async` without offsets, by auto commit, before a rebalance and by `close`. So
        records may be processed by other threads or tasks, which may call this at any time, and none is committed that
        is not through. What was stored of a partition is forgotten when it goes to another member. The commit comes
        before the rebalance listener: one that waits for the rest and stores it calls `commit`, too.

        Args:
            offsets: The offset of the next record to process, by partition, as for `commit`; or a record with which,
                and with all before it in its partition, you are through.

        Raises:
            IllegalStateError: A partition is not assigned (any more), and then nothing is stored; or
                `enable.auto.offset.store` is on.
            InvalidGroupIdError: There is no `group.id`.
            ClosedError: The consumer was closed.
            TypeError: These are neither offsets nor a record.
            ValueError: An offset or a partition's number is negative.
        """
        self._check()
        group = self._core.group()
        if isinstance(offsets, ConsumerRecord):
            place = TopicPartition(offsets.topic, offsets.partition)
            offsets = {place: OffsetAndMetadata(offsets.offset + 1, "", offsets.leader_epoch)}
        # positions are not settled: another thread may just be polling
        group.store(by_partition(offsets, as_offset, "offsets"))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for `send_offsets_to_transaction` of a producer.

        After the group has gone on without it, this is who it was until the next one is known: so its offsets are
        refused (KIP-447). After `unsubscribe` it is nobody.

        Raises:
            InvalidGroupIdError: There is no `group.id`.
        """
        return self._core.group().member.transactional_identity()

    def enforce_rebalance(self, reason: str = "enforce_rebalance was called") -> None:
        """Have the group rebalance with the next `poll`.

        With `group.protocol=consumer` the broker decides when to: then this does nothing but log a warning, as in the
        Java client.

        Raises:
            InvalidGroupIdError: There is no `group.id`.
            ClosedError: The consumer was closed.
            TypeError: The reason is not text.
            ValueError: It is none that can be sent.
        """
        self._check_here()
        self._core.life.check_open()
        check_text(reason, "the reason to rebalance")
        self._core.group().enforce_rebalance(reason)

    def _commit_script(self, offsets: Offsets | None, timeout: float | None) -> Script:
        """What `commit` does."""
        wanted, seconds = _chosen_offsets(offsets), self._seconds(timeout)
        self._core.life.check()
        group = self._core.group()
        yield from group.commit(wanted, seconds)
        yield from self._core.notices.run_callbacks()


def _chosen_offsets(offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """The offsets to commit in their full form; None stays None."""
    if offsets is None:
        return None
    return by_partition(offsets, as_offset, "offsets")
