"""Records gather here, per partition, until a batch of them is worth sending.

Any thread may append. The accumulator neither waits nor reads a clock: where there is no room it answers FULL, and
where nothing is known of the topic NO_METADATA; the caller waits. What has gathered is in the `BatchBuffer`, which the
sender's task empties (`BatchDrain`).

Nearly every record finds an open batch with room: those the compiled `Appender` of `kclient.records` takes, under the
same lock, and the accumulator is asked only where that did nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from kclient.errors import RecordTooLargeError
from kclient.producer.batch import ProducerBatch
from kclient.producer.delivery import Delivery
from kclient.producer.states import BatchState
from kclient.records import HEADER_SIZE, BatchBuilder, partition_for_key, size_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kclient.producer.batch import BatchReports
    from kclient.producer.batch_buffer import BatchBuffer
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.queues import PartitionQueue, TopicQueues
    from kclient.producer.settings import AccumulatorSettings
    from kclient.records import Appended, RecordSource
    from kclient.types import Buffer, Headers

T = TypeVar("T")


class Full(Enum):
    """The answer of an append for which there is no room."""

    FULL = "full"


FULL: Final = Full.FULL


class NoMetadata(Enum):
    """The answer of an append to a topic, or a partition of it, that is not known yet."""

    NO_METADATA = "no metadata"


NO_METADATA: Final = NoMetadata.NO_METADATA

_GREAT_PART: Final = 8
"""The part of the memory, one in so many, that one batch is not given at once."""

_SLACK: Final = 14
"""Bytes by which a record may be larger than `size_of_record` says: the varints of its time and index."""


class Accumulator:
    """Gathers records into batches. Thread-safe.

    Args:
        buffer: Where the batches are.
        settings: Sizes and times.
        reports: Where finished batches report.
    """

    def __init__(self, buffer: BatchBuffer, settings: AccumulatorSettings, reports: BatchReports) -> None:
        self._buffer = buffer
        self._settings = settings
        self._reports = reports
        self._roomy: dict[ProducerBatch, None] = {}
        """Open batches that are ready before they are full."""

    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        partition: int | None,
        timestamp: int,
        headers: Headers,
        callback: DeliveryCallback | None,
        *,
        now: float,
        following: int = 0,
    ) -> Delivery | Full | NoMetadata:
        """Add a record.

        Args:
            topic: Its topic.
            value: The value's bytes.
            key: The key's bytes.
            partition: Its partition; None takes that of the key, or else the topic's sticky one.
            timestamp: Milliseconds since the epoch.
            headers: The headers.
            callback: Called with the outcome.
            now: Monotonic time in seconds, from which a batch that begins with the record has its age.
            following: Bytes that are about to follow in the topic: a batch gets room for its share of them at once,
                if it may become as large and memory is not short.

        Returns:
            The handle; FULL if there is no room now, NO_METADATA if nothing is known of the topic (any more).

        Raises:
            RecordTooLargeError: The record alone exceeds `max.request.size` or `buffer.memory`.
            ClosedError: The producer was closed.
        """
        # what may run other code comes before the lock, which that code would wait for in vain if it sends
        headers = [(name, data) for name, data in headers] if headers else ()
        need = size_of_record(key, value, headers) + _SLACK

        def change() -> Delivery | Full | NoMetadata:
            topics = self._buffer.topic(topic)
            if topics is None:
                return NO_METADATA
            batch = self._room(topics, key, partition, need, now, following)
            if batch is None:
                return FULL
            # under the same lock, or the batch might be drained empty
            assert batch.builder is not None
            index = batch.builder.append(timestamp, key, value, headers)
            if callback is not None:
                batch.add_callback(index, callback)
            return Delivery(batch, index)

        return self._locked(change)

    def append_many(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        values: Sequence[Buffer | None],
        start: int,
        *,
        now: float,
    ) -> tuple[ProducerBatch, int, int] | Full | NoMetadata:
        """Add values without keys, as many as fit into one batch.

        Args:
            topic: Their topic.
            partition: Their partition; None takes the topic's sticky one.
            timestamp: Milliseconds since the epoch.
            values: The values.
            start: Position of the first one to add.
            now: Monotonic time in seconds, as for `append`.

        Returns:
            The batch, the index of the first record in it and how many were added (at least one); or FULL or
            NO_METADATA, as for `append`.

        Raises:
            RecordTooLargeError: The first record alone exceeds `max.request.size` or `buffer.memory`.
            ClosedError: The producer was closed.
        """
        need = size_of_record(None, values[start]) + _SLACK

        def change() -> tuple[ProducerBatch, int, int] | Full | NoMetadata:
            topics = self._buffer.topic(topic)
            if topics is None:
                return NO_METADATA
            batch = self._room(topics, None, partition, need, now)
            if batch is None:
                return FULL
            assert batch.builder is not None
            return batch, batch.builder.count, batch.builder.append_many(timestamp, values, None, start)

        return self._locked(change)

    def append_rows(self, source: RecordSource, start: int = 0) -> Appended:
        """Add rows of columns to open batches, as `Appender.append_rows`; the first that it leaves is for `append`.

        Args:
            source: The rows.
            start: The first one to add.

        Raises:
            ValueError: The first row makes no sense.
        """
        appended = self._buffer.appender.append_rows(source, start)
        self._locked(self._fill_roomy)
        return appended

    def end_rows(self) -> None:
        """No more rows follow: open batches give back the room that they were given for more."""
        for waiter in self._locked(self._end_rows):
            waiter()

    def _end_rows(self) -> list[Callable[[], object]]:
        buffer = self._buffer
        self._fill_roomy()
        for batch in self._roomy:
            assert batch.builder is not None
            limit = self._limit(buffer.queue(batch.tp).topic)
            batch.builder.limit = limit  # first: it holds no more than is reserved, wherever this is broken off
            buffer.pool.give(batch.reserved - limit)
            batch.reserved = limit
        self._roomy.clear()
        return buffer.pool.to_wake()

    def _room(
        self, topics: TopicQueues, key: Buffer | None, partition: int | None, need: int, now: float, following: int = 0
    ) -> ProducerBatch | None:
        """An open batch with room for a record of `need` bytes, or None if memory is short. Under the lock."""
        buffer, settings = self._buffer, self._settings
        self._check_size(need)
        if partition is None and key is not None and not settings.ignore_keys:
            partition = partition_for_key(key, topics.slots.partitions)
        may_switch = partition is None
        if not may_switch:
            following //= max(topics.slots.partitions, 1)
        while True:
            queue = topics.queue(topics.sticky.current if partition is None else partition, buffer.snapshot)
            batch = queue.open
            if batch is None:
                return self._open(queue, need, now, following)
            builder = batch.builder
            assert builder is not None
            if builder.size + need <= builder.limit or not builder.count:
                return batch
            self._fill(queue, batch)
            if may_switch:
                may_switch = False
                topics.switch()
                continue
            step = max(min(settings.batch_size, settings.buffer_memory), need)
            size = max(builder.limit, builder.size)
            if size + step > topics.growth:
                queue.close_open()
                buffer.want_wake()
                continue
            taken = self._reserve(step, min(following, topics.growth - size))
            if taken == 0:
                return None
            batch.reserved += taken
            builder.limit = size + taken
            return batch

    def _fill_roomy(self) -> None:
        """Batches with more room than makes them ready: see which are. Under the lock."""
        for batch in list(self._roomy):
            if batch.state is not BatchState.OPEN or batch.builder is None:
                del self._roomy[batch]
                continue
            queue = self._buffer.queue(batch.tp)
            if batch.builder.size >= self._limit(queue.topic):
                del self._roomy[batch]
                if self._fill(queue, batch) and queue.topic.sticky.current == batch.tp.partition:
                    queue.topic.switch()

    def _fill(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """The batch has its size, and leaves when its broker takes something; False if that is known."""
        if batch.full:
            return False
        batch.full = True
        if queue.leader not in self._buffer.busy:
            self._buffer.want_wake()
        return True

    def _reserve(self, size: int, better: int) -> int:
        """Reserve memory: as much as were better, if there is that and it is no great part; else `size`, or 0."""
        pool = self._buffer.pool
        better = min(better, self._settings.buffer_memory // _GREAT_PART)
        if size < better <= pool.free:
            size = better
        return size if pool.take(size) else 0

    def _limit(self, topics: TopicQueues) -> int:
        """Size of a new batch."""
        settings = self._settings
        return max(min(settings.batch_size, topics.growth, settings.buffer_memory), HEADER_SIZE)

    def _check_size(self, need: int) -> None:
        total = need + HEADER_SIZE
        for limit, name in (
            (self._settings.max_request_size, "max.request.size"),
            (self._settings.buffer_memory, "buffer.memory"),
        ):
            if total > limit:
                raise RecordTooLargeError(f"The record takes {total} bytes, more than {name} ({limit}) allows")

    def _open(self, queue: PartitionQueue, need: int, now: float, following: int = 0) -> ProducerBatch | None:
        buffer, settings = self._buffer, self._settings
        limit = self._limit(queue.topic)
        least = max(limit, need + HEADER_SIZE)
        size = self._reserve(least, min(following, queue.topic.growth))
        if size == 0:
            return None
        roomy = size > least
        if roomy:
            limit = size
        builder = BatchBuilder(
            limit=limit,
            compression=settings.compression,
            level=settings.compression_level,
            is_transactional=settings.transactional,
        )
        batch = ProducerBatch(queue.tp, builder, now, size, self._reports)
        buffer.add(queue, batch)
        queue.begin(batch, builder)
        if roomy:
            self._roomy[batch] = None
        due = now + settings.linger
        if due < buffer.sender_due:
            # else the sender looks again before it is due
            buffer.sender_due = due
            buffer.want_wake()
        return batch

    def _locked(self, change: Callable[[], T]) -> T:
        """Change something under the lock, and wake the sender if it has something to look at then.

        An exception of a signal handler may come anywhere, also while what another one broke off is made whole; then
        whoever has the lock next does that. Nor is a batch left that was opened for a record which cannot be appended.
        """
        buffer = self._buffer
        try:
            with buffer.lock:
                try:
                    if buffer.changing:
                        buffer.recover()
                    buffer.changing = True
                    result = change()
                    buffer.tell_sender()
                    buffer.changing = False
                except BaseException:  # whatever it is: a handler may raise one of ours
                    buffer.recover()
                    raise
        except BaseException:
            buffer.wake()  # whether or not that was done
            raise
        return result
