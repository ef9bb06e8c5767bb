"""The queues of batches, per topic and partition; all of it is guarded by the batch buffer's lock."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from kclient.producer.batch import is_later
from kclient.producer.states import BatchState
from kclient.records import TopicSlots
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.cluster import ClusterSnapshot
    from kclient.producer.batch import ProducerBatch
    from kclient.producer.partitioner import StickyChoice
    from kclient.records import BatchBuilder


class PartitionQueue:
    """The batches of one partition, oldest first; only the last may be open."""

    __slots__ = ("batches", "leader", "leader_epoch", "muted", "open", "topic", "tp")

    def __init__(self, tp: TopicPartition, topic: TopicQueues) -> None:
        self.tp: TopicPartition = tp
        self.topic: TopicQueues = topic
        self.leader: int | None = None
        """Id of the broker that leads, if it is known."""
        self.leader_epoch: int | None = None
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.muted: bool = False
        """Whether a batch is on its way and no other may leave, to keep the order without idempotence."""

    def go_by(self, snapshot: ClusterSnapshot) -> None:
        """Take the leader over from new metadata."""
        self.leader = snapshot.leader_id(self.tp)
        self.leader_epoch = snapshot.leader_epoch(self.tp)

    def due(self, linger: float, flushing: bool, busy: bool = False) -> float:
        """When the first batch may leave; 0 if it need not wait.

        Args:
            linger: How long a batch may wait for more records, in seconds.
            flushing: Whether nothing is to linger.
            busy: Whether a request is on its way to the leader: then `linger` is used to the full even by a batch
                that has its size, because fewer and larger requests are cheaper for both sides.
        """
        first = self.batches[0]
        if first.state is BatchState.RETRYING:
            # a new leader is tried at once (KIP-951)
            return first.retry_at if first.attempt_leader_epoch == self.leader_epoch else 0.0
        if flushing or len(self.batches) > 1 or (first.full and not busy):
            return 0.0
        return first.created + linger

    def begin(self, batch: ProducerBatch, builder: BatchBuilder) -> None:
        """A batch is open now: records go there."""
        self.open = batch
        self.topic.slots.open(self.tp.partition, batch, builder)

    def close_open(self) -> None:
        """The open batch, if any, takes no more records."""
        if self.open is not None:
            self.topic.slots.close(self.tp.partition)
            self.open.close()
            self.open = None

    def recover(self) -> None:
        """After an append that was broken off anywhere: only a batch with records is there, or open."""
        # first: whatever this is broken off by, nothing is appended to a batch that is about to go
        self.topic.slots.close(self.tp.partition)
        for batch in self.batches:
            if not batch.records:
                batch.close()
        if self.open is not None and self.open.state is not BatchState.OPEN:
            self.open = None
        self.batches = deque(batch for batch in self.batches if batch.records)
        if self.open is not None and self.open.builder is not None:
            self.topic.slots.open(self.tp.partition, self.open, self.open.builder)

    def insert(self, batch: ProducerBatch) -> None:
        """Put a batch back where it was.

        Several may come back at once, in any order. With idempotence, those without a sequence were never sent.
        """
        position = 0
        for waiting in self.batches:
            if batch.has_sequence:
                if not waiting.has_sequence or is_later(waiting.base_sequence, batch.base_sequence):
                    break
            elif waiting.created >= batch.created:
                break
            position += 1
        self.batches.insert(position, batch)

    def length(self, unit: int) -> int:
        """How long it is, in units of bytes."""
        return sum(batch.reserved for batch in self.batches) // max(unit, 1)


class TopicQueues:
    """The queues of one topic.

    Args:
        name: The topic.
        sticky: Chooses partitions for records without a key.
        growth: Size up to which batches may grow.
    """

    __slots__ = ("available", "growth", "name", "partitions", "slots", "sticky")

    def __init__(self, name: str, sticky: StickyChoice, growth: int) -> None:
        self.name: str = name
        self.slots: TopicSlots = TopicSlots()
        """The open batches as the compiled append sees them."""
        self.growth: int = growth
        """Size up to which batches may grow; shrinks when the broker says that one was too large."""
        self.partitions: dict[int, PartitionQueue] = {}
        self.available: list[tuple[int, int]] = []
        """The partitions that have a leader, each with it; all of them if none has."""
        self.sticky: StickyChoice = sticky

    def queue(self, partition: int, snapshot: ClusterSnapshot | None) -> PartitionQueue:
        """The queue of a partition, made on first use."""
        found = self.partitions.get(partition)
        if found is None:
            found = PartitionQueue(TopicPartition(self.name, partition), self)
            if snapshot is not None:
                found.go_by(snapshot)
            self.partitions[partition] = found
        return found

    def switch(self) -> None:
        """Let records without a key go to another partition."""
        self.sticky.next()
        self.slots.sticky = self.sticky.current

    def recover(self) -> None:
        """After an append that was broken off anywhere."""
        self.slots.sticky = self.sticky.current

    def go_by(self, snapshot: ClusterSnapshot) -> None:
        """Take partitions and leaders over from new metadata."""
        found = snapshot.topics.get(self.name)
        for queue in self.partitions.values():
            queue.go_by(snapshot)
        if found is None or not found.counted:
            return
        leaders = [(number, found.partitions[number].leader_id) for number in sorted(found.partitions)]
        self.available = [entry for entry in leaders if entry[1] in snapshot.nodes] or leaders
        self.slots.partitions = len(leaders)
        self.sticky.load([number for number, _ in self.available])
        if self.sticky.current not in found.partitions:
            self.switch()

    def weigh(self, unit: int | None, blocked: dict[int, float], oldest: float) -> None:
        """Tell the sticky choice how long the queues are, and which brokers take nothing (KIP-794).

        Args:
            unit: Bytes that count as one; None if the lengths do not matter.
            blocked: Since when a broker could have been sent something, and was not.
            oldest: Brokers blocked before this time are avoided.
        """
        available = self.available
        if oldest > -inf:
            available = [entry for entry in available if blocked.get(entry[1], inf) > oldest] or available
        partitions = [number for number, _ in available]
        if unit is None:
            self.sticky.load(partitions)
            return
        queues = [self.partitions.get(number) for number in partitions]
        self.sticky.load(partitions, [0 if queue is None else queue.length(unit) for queue in queues])
