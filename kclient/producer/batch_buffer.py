"""What has gathered and is not acknowledged: the batches of each partition, and the memory that they take.

User threads fill it (`Accumulator`), the sender's task empties it (`BatchDrain`). One lock guards all of it; it is held
for moments, never during I/O, compression or a user's code. Methods that say "under the lock" leave taking it to their
caller.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import inf
from random import Random
from typing import TYPE_CHECKING

from kclient.concurrency import watch_lock
from kclient.errors import ClosedError
from kclient.producer.buffer_pool import BufferPool
from kclient.producer.delivery import Delivery
from kclient.producer.partitioner import StickyChoice
from kclient.producer.queues import PartitionQueue, TopicQueues
from kclient.records import Appender

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from kclient.cluster import ClusterSnapshot
    from kclient.errors import KafkaError
    from kclient.producer.batch import ProducerBatch
    from kclient.producer.settings import AccumulatorSettings
    from kclient.types import TopicPartition


class BatchBuffer:
    """The batches of one producer. Thread-safe.

    Args:
        settings: Sizes and times.
        wake_sender: Called (from any thread, also under the lock) when the sender has something to look at, at most
            once until it looks.
        random: Source of randomness of the sticky partitions.
    """

    def __init__(
        self, settings: AccumulatorSettings, wake_sender: Callable[[], object], random: Random | None = None
    ) -> None:
        self._memory = settings.buffer_memory
        self.pool: BufferPool = BufferPool(self._memory)
        self.appender: Appender = Appender(Delivery, settings.ignore_keys)
        """Appends to the open batches; `Accumulator` is for what that does not do."""
        self.lock: AbstractContextManager[None] = self.appender.lock
        watch_lock(self.appender.lock)
        self.snapshot: ClusterSnapshot | None = None
        """The metadata that partitions are chosen by."""
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues that have batches."""
        self.sender_due: float = inf
        """When the sender looks again by itself."""
        self.busy: Container[int | None] = ()
        """Brokers that a request was on its way to when the sender looked."""
        self._batch_size = settings.batch_size
        self._growth = max(settings.growth, settings.batch_size)
        self.changing: bool = False
        """Whether a user's thread is changing something; or did not change it whole, because an exception of a signal
        handler came amid, also amid `recover`, which is due then. Under the lock."""
        self._wake_sender = wake_sender
        self._random = random or Random()
        self._topics: dict[str, TopicQueues] = {}
        self._incomplete: dict[ProducerBatch, None] = {}
        self._wake_wanted = False
        self._wake_pending = False
        self._flushes = 0
        self._closed: KafkaError | None = None
        self._refusal: Callable[[], KafkaError | None] | None = None

    # ------------------------------------------------------------------ topics and their queues

    def topic(self, name: str) -> TopicQueues | None:
        """The queues of a topic, to append to; None if nothing is known of it, or was sent to it. Under the lock.

        Raises:
            KafkaError: The buffer takes nothing more, or nothing now.
        """
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it keeps the frames of all calls that it was raised by
        if self._refusal is not None and (refused := self._refusal()) is not None:
            raise refused
        found = self._topics.get(name)
        if found is None and self.snapshot is not None and name in self.snapshot.topics:
            found = TopicQueues(name, StickyChoice(self._batch_size, self._random), self._growth)
            found.go_by(self.snapshot)
            self.appender.topics[name] = found.slots
            self._topics[name] = found
        return found

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """The queue of a batch. Under the lock."""
        return self._topics[tp.topic].queue(tp.partition, self.snapshot)

    def queues_of(self, name: str) -> TopicQueues | None:
        """The queues of a topic if it has any. Under the lock."""
        return self._topics.get(name)

    def go_by(self, snapshot: ClusterSnapshot) -> None:
        """Go by new metadata from now on. Under the lock."""
        former = self.snapshot
        if snapshot is former:
            return
        # most often one topic of many has changed
        same = {} if former is None or former.nodes is not snapshot.nodes else former.topics
        for name, topics in self._topics.items():
            if name not in same or same[name] is not snapshot.topics.get(name):
                topics.go_by(snapshot)
        self.snapshot = snapshot  # last: where an exception of a signal handler comes amid, all of it is done again

    def update(self, snapshot: ClusterSnapshot) -> None:
        """Go by new metadata from now on; topics that are gone from them and hold no records are forgotten."""
        with self.lock:
            self.make_whole()
            self.go_by(snapshot)
            gone = self._topics.keys() - snapshot.topics.keys()
            if gone:
                for topic in gone - {batch.tp.topic for batch in self._incomplete}:
                    del self._topics[topic]
                    self.appender.topics.pop(topic, None)

    @property
    def topics(self) -> set[str]:
        """The topics of the records whose fate is open."""
        with self.lock:
            self.make_whole()
            return {batch.tp.topic for batch in self._incomplete}

    # ------------------------------------------------------------------ batches come and go

    def add(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch begins, at the end of its queue. Under the lock."""
        queue.batches.append(batch)
        self.active[queue.tp] = queue
        self._incomplete[batch] = None

    def make_whole(self) -> None:
        """What a user's thread left half done is made whole, before anything else is done. Under the lock."""
        if self.changing:
            self.recover()

    def recover(self) -> None:
        """Make whole what an exception of a signal handler, which may come anywhere, left half done. Under the lock.

        Batches without records go, what is open is open everywhere, memory is what the batches have reserved, and the
        sender is woken. Another exception may come amid this too: then it is done again, by whoever has the lock next.
        """
        for topics in self._topics.values():
            topics.recover()
            for queue in topics.partitions.values():
                queue.recover()
                if queue.batches:
                    self.active[queue.tp] = queue
                else:
                    self.active.pop(queue.tp, None)
        self._incomplete = {batch: None for batch in self._incomplete if batch.records}
        self.pool.free = self._memory - sum(batch.reserved for batch in self._incomplete)
        self._wake_sender()
        self._wake_pending = True
        self.changing = False

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Take the first batch out of its queue; what it reserved and does not need is free again. Under the lock."""
        batch = queue.batches.popleft()
        if not queue.batches:
            del self.active[queue.tp]
        if batch is queue.open:
            queue.close_open()
            sticky = queue.topic.sticky
            if sticky.current == queue.tp.partition and not batch.full and sticky.batch_left(batch.size):
                queue.topic.switch()
        spare = batch.reserved - batch.size
        if spare > 0:
            batch.reserved -= spare
            self.pool.give(spare)
        return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """A batch returns to its place in its queue. Under the lock."""
        queue = self.queue(batch.tp)
        queue.insert(batch)
        self.active[queue.tp] = queue

    def replace(self, batch: ProducerBatch, children: Iterable[ProducerBatch]) -> None:
        """Smaller batches take the place of one. Under the lock."""
        children = list(children)
        self._incomplete.pop(batch, None)
        self.pool.give(batch.reserved - sum(child.reserved for child in children))
        for child in reversed(children):
            self._incomplete[child] = None
            self.put_back(child)

    def finished(self, batch: ProducerBatch) -> None:
        """The batch succeeded or failed: its memory is free."""
        with self.lock:
            self.make_whole()
            if batch not in self._incomplete:
                return
            del self._incomplete[batch]
            self.pool.give(batch.reserved)
            waiters = self.pool.to_wake()
        for waiter in waiters:
            waiter()

    @property
    def incomplete(self) -> list[ProducerBatch]:
        """The batches whose fate is open."""
        with self.lock:
            self.make_whole()
            return list(self._incomplete)

    @property
    def open_records(self) -> int:
        """How many records are not acknowledged, in about: it takes no lock, for the garbage collector."""
        return sum(batch.records for batch in list(self._incomplete))

    @property
    def queued(self) -> bool:
        """Whether batches wait to be sent."""
        return bool(self.active)

    # ------------------------------------------------------------------ the sender's wake

    def want_wake(self) -> None:
        """The sender has something to look at. Under the lock."""
        self._wake_wanted = True

    def tell_sender(self) -> None:
        """Wake the sender if that is wanted, once until it looks. Under the lock, as the last thing.

        Not behind it: a signal handler that comes between may flush, and would take the sender for woken. And it is
        noted last: an exception of one may come before the sender is.
        """
        if self._wake_wanted:
            if not self._wake_pending:
                self._wake_sender()
                self._wake_pending = True
            self._wake_wanted = False

    def wake(self) -> None:
        """Wake the sender, whatever it was told before."""
        self._wake_sender()

    def sender_looks(self) -> None:
        """What happens from now on wakes the sender again. Under the lock."""
        self._wake_pending = False

    # ------------------------------------------------------------------ waiting for room

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called once when memory becomes free; until then everything counts as ready.

        Returns:
            False if there is room already, or the buffer was closed: just try again.
        """
        with self.lock:
            self.make_whole()
            if self._closed is not None or self.pool.has_room:
                return False
            self.pool.waiters.append(waiter)
            self.want_wake()
            self.tell_sender()
        return True

    def remove_waiter(self, waiter: Callable[[], object]) -> None:
        """Undo `add_waiter`, if it still stands."""
        with self.lock:
            if waiter in self.pool.waiters:
                self.pool.waiters.remove(waiter)

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self.pool.waiters)

    # ------------------------------------------------------------------ flush and close

    @property
    def flushing(self) -> bool:
        """Whether nothing lingers: somebody flushes, waits for room, or closed the producer."""
        return bool(self._flushes or self.pool.waiters or self._closed is not None)

    def begin_flush(self) -> list[ProducerBatch]:
        """Make everything ready at once until `end_flush`; returns what is on its way now."""
        with self.lock:
            self.make_whole()
            self._flushes += 1
            self.want_wake()
            self.tell_sender()
            return list(self._incomplete)

    def end_flush(self) -> None:
        """The flush is over (or was cancelled)."""
        with self.lock:
            self._flushes -= 1

    def close(self, error: KafkaError | None = None) -> None:
        """Take no more records; what is there becomes ready. Later appends raise `error`."""
        with self.lock:
            self.make_whole()
            self._closed = error or ClosedError("The producer was closed")
            for queue in self.active.values():
                queue.close_open()
            waiters = self.pool.all_waiters()
            self.want_wake()
            self.tell_sender()
        for waiter in waiters:
            waiter()  # they find the buffer closed

    def shut(self, refusal: Callable[[], KafkaError | None]) -> None:
        """Take no records until `reopen`; what is there stays, and nothing joins it.

        Args:
            refusal: Makes the error that appends raise.
        """
        with self.lock:
            self.make_whole()
            self._refusal = refusal
            self.appender.topics.clear()
            for queue in self.active.values():
                queue.close_open()
            waiters = self.pool.all_waiters()
            self.want_wake()
            self.tell_sender()
        for waiter in waiters:
            waiter()  # they find the buffer shut

    def reopen(self) -> None:
        """Take records again, unless the buffer was closed."""
        with self.lock:
            self.make_whole()
            self._refusal = None
            self.appender.topics.update({name: topics.slots for name, topics in self._topics.items()})

    def take_queued(self) -> list[ProducerBatch]:
        """Take away all batches that wait to be sent, also for another attempt."""
        with self.lock:
            self.make_whole()
            return [self.take(queue) for queue in list(self.active.values()) for _ in range(len(queue.batches))]

    def abort(self, error: KafkaError) -> list[ProducerBatch]:
        """Fail everything whose fate is open, in flight or not; returns those batches."""
        with self.lock:
            self.make_whole()
            batches = list(self._incomplete)
            for queue in self.active.values():
                queue.close_open()
                queue.batches.clear()
            self.active.clear()
        for batch in batches:
            if not batch.done:
                batch.fail(error)
            self.finished(batch)
        return batches
