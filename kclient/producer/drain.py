"""Which batches may leave, and what becomes of those that have left: the sender's side of the batch buffer.

All its methods belong to the sender's task. They neither wait nor read a clock.

A batch is *ready* when it holds `batch.size` bytes, or has waited `linger.ms`. Unlike Java's, a full batch goes on
growing, up to `growth` bytes, while the sender cannot take it, and for the rest of its linger while another request
is on its way to the same broker: under load batches become larger instead of more, which is what makes small default
batches fast. No record waits longer than `linger.ms` for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.producer.batch import split_batch
from kclient.records import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from kclient.cluster import ClusterSnapshot
    from kclient.producer.batch import ProducerBatch
    from kclient.producer.batch_buffer import BatchBuffer
    from kclient.producer.producer_id import ProducerIdState
    from kclient.producer.queues import PartitionQueue
    from kclient.producer.settings import AccumulatorSettings
    from kclient.producer.transactions import TransactionManager
    from kclient.types import TopicPartition


_WEIGH_INTERVAL: Final = 0.005
"""Seconds between looks at the lengths of queues, which are too dear for every request."""

_REQUEST_OVERHEAD: Final = 512
"""Bytes reserved for the parts of a Produce request around the batches."""


@dataclass(slots=True)
class Ready:
    """What may be sent now."""

    nodes: set[int] = field(default_factory=set)
    """Leaders for which a batch is ready."""
    next_at: float = inf
    """When the next batch becomes ready if nothing happens."""
    unknown_leaders: set[str] = field(default_factory=set)
    """Topics with a queued batch whose partition has no known leader."""


class Drained(NamedTuple):
    """What was taken away."""

    batches: dict[int, list[ProducerBatch]]
    """Closed batches by broker, none of them encoded yet."""
    more: bool
    """Whether one of these brokers could be sent another request at once."""


class BatchDrain:
    """Takes batches out of the buffer, and puts them back.

    Args:
        buffer: Where they are.
        settings: Sizes and times.
        producer_id_state: Assigns sequence numbers, and keeps back what must not leave yet; None without idempotence.
        transactions: Keeps back what no transaction holds yet; None without a transactional id.
        mute: Keep a partition's other batches back while one is on its way.
    """

    def __init__(
        self,
        buffer: BatchBuffer,
        settings: AccumulatorSettings,
        producer_id_state: ProducerIdState | None = None,
        transactions: TransactionManager | None = None,
        *,
        mute: bool = False,
    ) -> None:
        self._buffer = buffer
        self._settings = settings
        self._producer_id_state = producer_id_state
        self._transactions = transactions
        self._mute = mute
        self._turn = 0
        self._weighed = -inf
        self._blocked: dict[int, float] = {}
        """Since when a broker could have been sent something, and was not."""

    # ------------------------------------------------------------------ taking away

    def ready(self, snapshot: ClusterSnapshot, now: float, busy: Container[int | None] = ()) -> Ready:
        """Which brokers can be sent something now, and when to look again.

        Args:
            snapshot: The metadata to go by.
            now: Monotonic time in seconds.
            busy: Brokers that a request is on its way to.
        """
        result = Ready()
        linger = self._settings.linger
        buffer = self._buffer
        with buffer.lock:
            buffer.make_whole()
            buffer.sender_looks()
            buffer.go_by(snapshot)
            flushing = buffer.flushing
            for queue in buffer.active.values():
                if queue.leader is None:
                    result.unknown_leaders.add(queue.tp.topic)
                elif not queue.muted:
                    due = queue.due(linger, flushing, queue.leader in busy)
                    if due <= now:
                        result.nodes.add(queue.leader)
                    elif due < result.next_at:
                        result.next_at = due
            buffer.sender_due = result.next_at
            buffer.busy = busy
            if now - self._weighed >= _WEIGH_INTERVAL:
                self._weigh(result.nodes, now)
        return result

    def _weigh(self, nodes: set[int], now: float) -> None:
        """Let records without a key go where they leave soonest."""
        self._weighed = now
        settings = self._settings
        oldest = now - settings.availability_timeout if settings.availability_timeout > 0 else -inf
        for node in nodes:
            self._blocked.setdefault(node, now)
        for topics in {queue.topic.name: queue.topic for queue in self._buffer.active.values()}.values():
            topics.weigh(settings.batch_size if settings.adaptive else None, self._blocked, oldest)

    def drain(self, snapshot: ClusterSnapshot, nodes: Iterable[int], now: float) -> Drained:
        """Take away what is ready for some brokers: one batch per partition, up to `max.request.size` per broker.

        Args:
            snapshot: The metadata to go by.
            nodes: The brokers that can be sent a request now.
            now: Monotonic time in seconds.
        """
        taken: dict[int, list[ProducerBatch]] = {node: [] for node in nodes}
        room = dict.fromkeys(taken, self._settings.max_request_size - _REQUEST_OVERHEAD)
        more = False
        buffer = self._buffer
        with buffer.lock:
            buffer.make_whole()
            buffer.go_by(snapshot)
            flushing = buffer.flushing
            for node in taken:
                self._blocked.pop(node, None)
            for queue in self._in_turn():
                leader = queue.leader
                if leader is None or leader not in room or queue.muted:
                    continue
                first = queue.batches[0]
                if queue.due(self._settings.linger, flushing) > now or not self._may_send(first, leader):
                    continue
                size = first.wire_size
                if size > room[leader] and taken[leader]:
                    room[leader] = -1  # full; what comes later in turn must not overtake by being small
                    more = True
                    continue
                room[leader] -= size
                self._send(queue, leader)
                taken[leader].append(first)
                more = more or (bool(queue.batches) and queue.batches[0] is not queue.open)
            waiters = buffer.pool.to_wake()
        for waiter in waiters:
            waiter()
        return Drained({node: batches for node, batches in taken.items() if batches}, more)

    def _in_turn(self) -> list[PartitionQueue]:
        """The queues with batches, starting with another one each time so that none starves."""
        queues = list(self._buffer.active.values())
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    def _may_send(self, batch: ProducerBatch, leader: int) -> bool:
        if self._producer_id_state is not None and not self._producer_id_state.may_send(batch, leader):
            return False
        return self._transactions is None or self._transactions.may_leave(batch.tp)

    def _send(self, queue: PartitionQueue, leader: int) -> None:
        """The first batch of a queue leaves for a broker."""
        batch = self._buffer.take(queue)
        batch.send(queue.leader_epoch)
        queue.muted = self._mute
        if self._producer_id_state is not None:
            self._producer_id_state.assign(batch)
            self._producer_id_state.departed(batch.tp, leader)
        if self._transactions is not None:
            self._transactions.departed()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Remove and return the queued batches whose `delivery.timeout.ms` is over."""
        timeout = self._settings.delivery_timeout
        expired: list[ProducerBatch] = []
        with self._buffer.lock:
            self._buffer.make_whole()
            for queue in list(self._buffer.active.values()):
                # the same sum as whoever sleeps until then: rounded otherwise, it might be woken and find nothing
                while queue.batches and queue.batches[0].created + timeout <= now:
                    expired.append(self._buffer.take(queue))
        return expired

    @property
    def oldest(self) -> float:
        """When the oldest queued batch was begun."""
        with self._buffer.lock:
            self._buffer.make_whole()
            return min((queue.batches[0].created for queue in self._buffer.active.values()), default=inf)

    # ------------------------------------------------------------------ coming back

    def landed(self, tp: TopicPartition) -> None:
        """The partition's batch has come back; the next may leave."""
        if self._mute:
            with self._buffer.lock:
                self._buffer.make_whole()
                topics = self._buffer.queues_of(tp.topic)
                if topics is not None:  # it was given up, and its topic is gone meanwhile
                    topics.queue(tp.partition, self._buffer.snapshot).muted = False

    def reenqueue(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back in front of its queue, to be sent again at `retry_at` or later."""
        batch.retry(retry_at)
        with self._buffer.lock:
            self._buffer.make_whole()
            self._buffer.put_back(batch)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Replace a batch that was too large for the broker by smaller ones, in front of its queue.

        From then on batches of this topic are kept as small as the pieces.
        """
        settings = self._settings
        limit = max(min(settings.batch_size, batch.size // 2), HEADER_SIZE)
        level = settings.compression_level
        children = split_batch(batch, limit, settings.compression, level, is_transactional=settings.transactional)
        batch.split(children)
        with self._buffer.lock:
            self._buffer.make_whole()
            topics = self._buffer.queue(batch.tp).topic
            topics.growth = min(topics.growth, limit)
            self._buffer.replace(batch, children)
        return children
