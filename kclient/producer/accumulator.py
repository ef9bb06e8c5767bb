"""Records gather here, per partition, until a batch of them is worth sending.

Threads append (`append`, `append_many`), the sender's task asks what is ready and takes it away (`ready`, `drain`).
All of it is guarded by one lock, which is never held during I/O, compression or a user's code. The accumulator
neither waits nor has a clock of its own: where there is no room, `append` answers FULL, and where nothing is known of
the topic NO_METADATA; the caller waits. (Only the
appender, the fast path in `kclient.records`, stamps records without a timestamp by itself.)

A batch is *ready* when it holds `batch.size` bytes, or has waited `linger.ms`. Unlike Java's, a full batch goes on
growing, up to `growth` bytes, while the sender cannot take it, and for the rest of its linger while another request
is on its way to the same broker: under load batches become larger instead of more, which is what makes small default
batches fast. No record waits longer than `linger.ms` for that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final, Literal

from kclient.errors import ClosedError, RecordTooLargeError
from kclient.producer.answers import FULL, NO_METADATA, Drained, Full, NoMetadata, Ready
from kclient.producer.batch import ProducerBatch
from kclient.producer.delivery import Delivery
from kclient.producer.memory import Memory
from kclient.producer.partitioner import StickyChoice
from kclient.producer.queues import PartitionQueue, TopicQueues
from kclient.producer.splitting import split_batch
from kclient.records import (
    HEADER_SIZE,
    Appender,
    BatchBuilder,
    partition_for_key,
    size_of_record,
)
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from kclient.cluster import ClusterSnapshot
    from kclient.errors import KafkaError
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.outcomes import Outcomes
    from kclient.producer.settings import AccumulatorSettings
    from kclient.producer.transactions import TransactionManager
    from kclient.types import Buffer, Headers


SLACK: Final = 14
"""Bytes by which a record may be larger than `size_of_record` says: the varints of its time and index."""

WEIGH_INTERVAL: Final = 0.005
"""Seconds between looks at the lengths of queues, which are too dear for every request."""

REQUEST_OVERHEAD: Final = 512
"""Bytes reserved for the parts of a Produce request around the batches."""


class Accumulator:
    """Gathers records into batches. Thread-safe.

    Args:
        settings: Sizes and times.
        outcomes: Where finished batches report.
        wake: Called (from any thread, under no lock) when the sender has something to look at, at most once until
            the next `drain`.
        clock: Monotonic time in seconds, for the age of a new batch.
        wall_clock: Seconds since the epoch, for records without a timestamp.
        random: Source of randomness of the sticky partitions.
    """

    def __init__(
        self,
        settings: AccumulatorSettings,
        outcomes: Outcomes,
        wake: Callable[[], object],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Random | None = None,
    ) -> None:
        self.settings = settings
        self.memory: Memory = Memory(settings.buffer_memory)
        self.appender: Appender = Appender(Delivery, settings.ignore_keys)
        """Appends to the open batches; `append` is for what that does not do."""
        self.lock: AbstractContextManager[None] = self.appender.lock
        self.snapshot: ClusterSnapshot | None = None
        """The metadata that partitions are chosen by."""
        self._outcomes = outcomes
        self._wake = wake
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random or Random()
        self._growth = max(settings.growth, settings.batch_size)
        self._topics: dict[str, TopicQueues] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._incomplete: dict[ProducerBatch, None] = {}
        self._wake_wanted = False
        self._wake_pending = False
        self._flushes = 0
        self._closed: KafkaError | None = None
        self._turn = 0
        self._planned = inf
        """When the sender looks again by itself."""
        self._busy: Container[int | None] = ()
        self._weighed = -inf
        self._blocked: dict[int, float] = {}
        """Since when a broker could have been sent something, and was not."""

    # ------------------------------------------------------------------ appending

    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        callback: DeliveryCallback | None = None,
    ) -> Delivery | Literal[Full.FULL, NoMetadata.NO_METADATA]:
        """Add a record.

        Args:
            topic: Its topic.
            value: The value's bytes.
            key: The key's bytes.
            partition: Its partition; None takes that of the key, or else the topic's sticky one.
            timestamp: Milliseconds since the epoch; None is now.
            headers: The headers.
            callback: Called with the outcome.

        Returns:
            The handle; FULL if there is no room now, NO_METADATA if nothing is known of the topic (any more).

        Raises:
            RecordTooLargeError: The record alone exceeds `max.request.size` or `buffer.memory`.
            ClosedError: The producer was closed.
        """
        if callback is None:
            # what remains of this method concerns one record in a hundred
            appended: Delivery | None = self.appender.append(topic, value, key, partition, timestamp, headers)
            if appended is not None:
                return appended
        # what may run other code comes before the lock, which that code would wait for in vain if it sends
        headers = [(name, data) for name, data in headers] if headers else ()
        need = size_of_record(key, value, headers) + SLACK
        index = -1
        with self.lock:
            topics = self._find(topic)
            if topics is None:
                return NO_METADATA
            batch = self._room(topics, key, partition, need)
            if batch is not None:
                # under the same lock, or the batch might be drained empty
                assert batch.builder is not None
                stamp = int(self._wall_clock() * 1000) if timestamp is None else timestamp
                with self._discarding(batch):
                    index = batch.builder.append(stamp, key, value, headers)
                if callback is not None:
                    batch.add_callback(index, callback)
            wake = self._take_wake()
        if wake:
            self._wake()
        return FULL if batch is None else Delivery(batch, index)

    def append_many(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        values: Sequence[Buffer | None],
        start: int = 0,
    ) -> tuple[ProducerBatch, int, int] | Literal[Full.FULL, NoMetadata.NO_METADATA]:
        """Add values without keys, as many as fit into one batch.

        Args:
            topic: Their topic.
            partition: Their partition; None takes the topic's sticky one.
            timestamp: Milliseconds since the epoch.
            values: The values.
            start: Position of the first one to add.

        Returns:
            The batch, the index of the first record in it and how many were added (at least one); or FULL or
            NO_METADATA, as for `append`.

        Raises:
            RecordTooLargeError: The first record alone exceeds `max.request.size` or `buffer.memory`.
            ClosedError: The producer was closed.
        """
        need = size_of_record(None, values[start]) + SLACK
        first = taken = 0
        with self.lock:
            topics = self._find(topic)
            if topics is None:
                return NO_METADATA
            batch = self._room(topics, None, partition, need)
            if batch is not None:
                assert batch.builder is not None
                first = batch.builder.count
                with self._discarding(batch):
                    taken = batch.builder.append_many(timestamp, values, None, start)
            wake = self._take_wake()
        if wake:
            self._wake()
        return FULL if batch is None else (batch, first, taken)

    def _find(self, topic: str) -> TopicQueues | None:
        """The queues of a topic; None if nothing is known of it and nothing was sent to it."""
        if self._closed is not None:
            raise self._closed
        found = self._topics.get(topic)
        if found is None and self.snapshot is not None and topic in self.snapshot.topics:
            found = self._topic(topic)
        return found

    def _topic(self, topic: str) -> TopicQueues:
        sticky = StickyChoice(self.settings.batch_size, self._random)
        made = self._topics[topic] = TopicQueues(topic, sticky, self._growth)
        if self.snapshot is not None:
            made.go_by(self.snapshot)
        self.appender.topics[topic] = made.slots
        return made

    def _room(self, topics: TopicQueues, key: Buffer | None, partition: int | None, need: int) -> ProducerBatch | None:
        """An open batch with room for a record of `need` bytes, or None if memory is short."""
        self._check_size(need)
        if partition is None and key is not None and not self.settings.ignore_keys:
            partition = partition_for_key(key, topics.slots.partitions)
        may_switch = partition is None
        while True:
            queue = topics.queue(topics.sticky.current if partition is None else partition, self.snapshot)
            batch = queue.open
            if batch is None:
                return self._open(queue, need)
            builder = batch.builder
            assert builder is not None
            if builder.size + need <= builder.limit or not builder.count:
                return batch
            if not batch.full:
                batch.full = True
                if queue.leader not in self._busy:
                    self._wake_wanted = True
            if may_switch:
                may_switch = False
                topics.switch()
                continue
            step = max(self.settings.batch_size, need)
            if max(builder.limit, builder.size) + step > topics.growth:
                queue.close_open()
                self._wake_wanted = True
            elif not self.memory.take(step):
                return None
            else:
                batch.reserved += step
                builder.limit = max(builder.limit, builder.size) + step
                return batch

    def _check_size(self, need: int) -> None:
        total = need + HEADER_SIZE
        for limit, name in (
            (self.settings.max_request_size, "max.request.size"),
            (self.settings.buffer_memory, "buffer.memory"),
        ):
            if total > limit:
                raise RecordTooLargeError(f"The record takes {total} bytes, more than {name} ({limit}) allows")

    def _open(self, queue: PartitionQueue, need: int) -> ProducerBatch | None:
        limit = max(min(self.settings.batch_size, queue.topic.growth), HEADER_SIZE)
        size = max(limit, need + HEADER_SIZE)
        if not self.memory.take(size):
            return None
        builder = BatchBuilder(
            limit=limit, compression=self.settings.compression, level=self.settings.compression_level
        )
        batch = ProducerBatch(queue.tp, builder, self._clock(), size, self._outcomes)
        queue.batches.append(batch)
        queue.open = batch
        queue.topic.slots.open(queue.tp.partition, batch, builder)
        self._active[queue.tp] = queue
        self._incomplete[batch] = None
        due = batch.created + self.settings.linger
        if due < self._planned:
            # else the sender looks again before it is due
            self._planned = due
            self._wake_wanted = True
        return batch

    @contextmanager
    def _discarding(self, batch: ProducerBatch) -> Iterator[None]:
        """Take a batch away again that was opened for a record which cannot be appended."""
        try:
            yield
        except BaseException:
            assert batch.builder is not None
            if not batch.builder.count:
                queue = self._topics[batch.tp.topic].partitions[batch.tp.partition]
                queue.close_open()
                queue.batches.remove(batch)
                if not queue.batches:
                    del self._active[queue.tp]
                del self._incomplete[batch]
                self.memory.give(batch.reserved)
            raise

    def _take_wake(self) -> bool:
        """Whether the sender has to be woken now; True once until it looks again."""
        wanted, self._wake_wanted = self._wake_wanted, False
        if not wanted or self._wake_pending:
            return False
        self._wake_pending = True
        return True

    def update(self, snapshot: ClusterSnapshot) -> None:
        """Go by new metadata from now on; topics that are gone from them and hold no records are forgotten."""
        with self.lock:
            self._go_by(snapshot)
            gone = self._topics.keys() - snapshot.topics.keys()
            if gone:
                for topic in gone - {batch.tp.topic for batch in self._incomplete}:
                    del self._topics[topic]
                    self.appender.topics.pop(topic, None)

    @property
    def topics(self) -> set[str]:
        """The topics of the records whose fate is open."""
        with self.lock:
            return {batch.tp.topic for batch in self._incomplete}

    def _go_by(self, snapshot: ClusterSnapshot) -> None:
        if snapshot is not self.snapshot:
            self.snapshot = snapshot
            for topics in self._topics.values():
                topics.go_by(snapshot)

    # ------------------------------------------------------------------ waiting for room

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called once when memory becomes free; until then everything counts as ready.

        Returns:
            False if there is room already, or the accumulator was closed: just try again.
        """
        with self.lock:
            if self._closed is not None or self.memory.has_room:
                return False
            self.memory.waiters.append(waiter)
            self._wake_wanted = True
            wake = self._take_wake()
        if wake:
            self._wake()
        return True

    def remove_waiter(self, waiter: Callable[[], object]) -> None:
        """Undo `add_waiter`, if it still stands."""
        with self.lock:
            if waiter in self.memory.waiters:
                self.memory.waiters.remove(waiter)

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self.memory.waiters)

    # ------------------------------------------------------------------ taking away

    def ready(self, snapshot: ClusterSnapshot, now: float, busy: Container[int | None] = ()) -> Ready:
        """Which brokers can be sent something now, and when to look again.

        Args:
            snapshot: The metadata to go by.
            now: Monotonic time in seconds.
            busy: Brokers that a request is on its way to.
        """
        result = Ready()
        linger = self.settings.linger
        with self.lock:
            self._wake_pending = False
            self._go_by(snapshot)
            hurry = self._hurry
            for queue in self._active.values():
                if queue.leader is None:
                    result.unknown_leaders.add(queue.tp.topic)
                elif not queue.muted:
                    due = queue.due(linger, hurry, queue.leader in busy)
                    if due <= now:
                        result.nodes.add(queue.leader)
                    elif due < result.next_at:
                        result.next_at = due
            self._planned = result.next_at
            self._busy = busy
            if now - self._weighed >= WEIGH_INTERVAL:
                self._weigh(result.nodes, now)
        return result

    @property
    def _hurry(self) -> bool:
        """Whether nothing lingers: somebody flushes, waits for room, or closed the producer."""
        return bool(self._flushes or self.memory.waiters or self._closed is not None)

    def _weigh(self, nodes: set[int], now: float) -> None:
        """Let records without a key go where they leave soonest."""
        self._weighed = now
        settings = self.settings
        oldest = now - settings.availability_timeout if settings.availability_timeout > 0 else -inf
        for node in nodes:
            self._blocked.setdefault(node, now)
        for name in {tp.topic for tp in self._active}:
            self._topics[name].weigh(settings.batch_size if settings.adaptive else None, self._blocked, oldest)

    def drain(
        self,
        snapshot: ClusterSnapshot,
        nodes: Iterable[int],
        now: float,
        transactions: TransactionManager | None = None,
        *,
        mute: bool = False,
    ) -> Drained:
        """Take away what is ready for some brokers: one batch per partition, up to `max.request.size` per broker.

        Args:
            snapshot: The metadata to go by.
            nodes: The brokers that can be sent a request now.
            now: Monotonic time in seconds.
            transactions: Assigns sequence numbers, and keeps back what must not leave yet.
            mute: Keep a partition's other batches back until `unmute`.
        """
        taken: dict[int, list[ProducerBatch]] = {node: [] for node in nodes}
        room = dict.fromkeys(taken, self.settings.max_request_size - REQUEST_OVERHEAD)
        more = False
        with self.lock:
            self._go_by(snapshot)
            hurry = self._hurry
            for node in taken:
                self._blocked.pop(node, None)
            for queue in self._in_turn():
                leader = queue.leader
                if leader is None or leader not in room or queue.muted:
                    continue
                first = queue.batches[0]
                if queue.due(self.settings.linger, hurry) > now:
                    continue
                if transactions is not None and not transactions.may_send(first, leader):
                    continue
                size = first.wire_size
                if size > room[leader] and taken[leader]:
                    room[leader] = -1  # full; what comes later in turn must not overtake by being small
                    more = True
                    continue
                room[leader] -= size
                self._take(queue, first)
                if transactions is not None:
                    transactions.assign(first)
                    transactions.departed(first.tp, leader)
                queue.muted = mute
                first.drained = now
                first.attempt_leader_epoch = queue.leader_epoch
                taken[leader].append(first)
                more = more or (bool(queue.batches) and queue.batches[0] is not queue.open)
            waiters = self.memory.to_wake()
        for waiter in waiters:
            waiter()
        return Drained({node: batches for node, batches in taken.items() if batches}, more)

    def _in_turn(self) -> list[PartitionQueue]:
        """The queues with batches, starting with another one each time so that none starves."""
        queues = list(self._active.values())
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    def _take(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.batches.popleft()
        if not queue.batches:
            del self._active[queue.tp]
        if batch is queue.open:
            queue.close_open()
            sticky = queue.topic.sticky
            if sticky.current == queue.tp.partition and not batch.full and sticky.drained(batch.size):
                queue.topic.switch()
        # what was reserved and not used is free again
        spare = batch.reserved - batch.size
        if spare > 0:
            batch.reserved -= spare
            self.memory.give(spare)

    def unmute(self, tp: TopicPartition) -> None:
        """The partition's batch has come back; the next may leave."""
        with self.lock:
            topics = self._topics.get(tp.topic)
            if topics is not None:  # it was given up, and its topic is gone meanwhile
                topics.queue(tp.partition, self.snapshot).muted = False

    # ------------------------------------------------------------------ coming back

    def reenqueue(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back in front of its queue, to be sent again at `retry_at` or later."""
        batch.attempts += 1
        batch.retry_at = retry_at
        with self.lock:
            self._insert(batch)

    def _insert(self, batch: ProducerBatch) -> None:
        queue = self._topics[batch.tp.topic].queue(batch.tp.partition, self.snapshot)
        queue.insert(batch)
        self._active[queue.tp] = queue

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Replace a batch that was too large for the broker by smaller ones, in front of its queue.

        From then on batches of this topic are kept as small as the pieces.
        """
        limit = max(min(self.settings.batch_size, batch.size // 2), HEADER_SIZE)
        children = split_batch(batch, limit, self.settings.compression, self.settings.compression_level)
        batch.split(children)
        with self.lock:
            topics = self._topics[batch.tp.topic]
            topics.growth = min(topics.growth, limit)
            self._incomplete.pop(batch, None)
            self.memory.give(batch.reserved - sum(child.reserved for child in children))
            for child in reversed(children):
                self._incomplete[child] = None
                self._insert(child)
        return children

    def finished(self, batch: ProducerBatch) -> None:
        """The batch succeeded or failed: its memory is free."""
        with self.lock:
            if batch not in self._incomplete:
                return
            del self._incomplete[batch]
            self.memory.give(batch.reserved)
            waiters = self.memory.to_wake()
        for waiter in waiters:
            waiter()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Remove and return the queued batches whose `delivery.timeout.ms` is over."""
        oldest = now - self.settings.delivery_timeout
        expired: list[ProducerBatch] = []
        with self.lock:
            for queue in list(self._active.values()):
                while queue.batches and queue.batches[0].created <= oldest:
                    batch = queue.batches[0]
                    self._take(queue, batch)
                    expired.append(batch)
        return expired

    @property
    def oldest(self) -> float:
        """When the oldest queued batch was begun."""
        with self.lock:
            return min((queue.batches[0].created for queue in self._active.values()), default=inf)

    # ------------------------------------------------------------------ flush and close

    def begin_flush(self) -> list[ProducerBatch]:
        """Make everything ready at once until `end_flush`; returns what is on its way now."""
        with self.lock:
            self._flushes += 1
            self._wake_wanted = True
            wake = self._take_wake()
            incomplete = list(self._incomplete)
        if wake:
            self._wake()
        return incomplete

    def end_flush(self) -> None:
        """The flush is over (or was cancelled)."""
        with self.lock:
            self._flushes -= 1

    @property
    def incomplete(self) -> list[ProducerBatch]:
        """The batches whose fate is open."""
        with self.lock:
            return list(self._incomplete)

    @property
    def open_records(self) -> int:
        """How many records are not acknowledged, in about: it takes no lock, for the garbage collector."""
        return sum(batch.records for batch in list(self._incomplete))

    @property
    def queued(self) -> bool:
        """Whether batches wait to be sent."""
        return bool(self._active)

    def close(self, error: KafkaError | None = None) -> None:
        """Take no more records; what is there becomes ready. Later appends raise `error`."""
        with self.lock:
            self._closed = error or ClosedError("The producer was closed")
            for queue in self._active.values():
                queue.close_open()
            waiters = self.memory.all_waiters()
            self._wake_wanted = True
            wake = self._take_wake()
        for waiter in waiters:
            waiter()  # they find the accumulator closed
        if wake:
            self._wake()

    def abort(self, error: KafkaError) -> list[ProducerBatch]:
        """Fail everything whose fate is open, in flight or not; returns those batches."""
        with self.lock:
            batches = list(self._incomplete)
            for queue in self._active.values():
                queue.close_open()
                queue.batches.clear()
            self._active.clear()
        for batch in batches:
            if not batch.done:
                batch.fail(error)
            self.finished(batch)
        return batches
