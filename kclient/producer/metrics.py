"""The producer's metrics, under the names of the Java client's.

They are counted per batch and per request; a record costs nothing.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Final

from kclient.metrics.windows import rate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricGroup, MetricsRegistry
    from kclient.metrics.windows import MetricTally, MetricWindows
    from kclient.producer.batch import ProducerBatch


_TRANSACTION_CALLS: Final = {
    "init_transactions": "init",
    "begin_transaction": "begin",
    "send_offsets_to_transaction": "send-offsets",
    "commit_transaction": "commit",
    "abort_transaction": "abort",
}


class TopicMetrics:
    """What is counted of one topic."""

    __slots__ = ("bytes", "failed", "retried", "sent", "uncompressed")

    def __init__(self, windows: MetricWindows) -> None:
        self.sent: MetricTally = windows.tally()
        """Records of each batch that a broker has."""
        self.failed: MetricTally = windows.tally()
        """Records of each batch that was given up."""
        self.retried: MetricTally = windows.tally()
        """Records of each batch that is sent again."""
        self.bytes: MetricTally = windows.tally()
        """Bytes of each batch, as it was sent."""
        self.uncompressed: MetricTally = windows.tally()
        """Bytes of each batch before compression."""


class ProducerMetrics:
    """What is counted since the producer started, by the sender and by calls of transactions.

    Args:
        windows: What metrics are computed over.
    """

    def __init__(self, windows: MetricWindows) -> None:
        self.windows: MetricWindows = windows
        self.topics: dict[str, TopicMetrics] = {}
        self.splits: MetricTally = windows.tally()
        self.batches: MetricTally = windows.tally()
        """Batches of each request."""
        self.records: MetricTally = windows.tally()
        """Records of each request."""
        self.queue_time: MetricTally = windows.tally()
        """Milliseconds that each batch waited."""
        self.throttle_time: MetricTally = windows.tally()
        """Milliseconds that each answer asks to pause."""
        self.exhausted: MetricTally = windows.tally()
        """Calls that found no room in `buffer.memory` within `max.block.ms`."""
        self.room_time: MetricTally = windows.tally()
        """Seconds that calls waited for room."""
        self.metadata_time: MetricTally = windows.tally()
        """Seconds that calls waited for topics."""
        self.flush_time: MetricTally = windows.tally()
        """Seconds that calls waited for everything to be acknowledged."""
        self.transaction_times: dict[str, MetricTally] = {name: windows.tally() for name in _TRANSACTION_CALLS}
        """Seconds of each call."""

    def topic(self, name: str) -> TopicMetrics:
        """What is counted of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMetrics(self.windows)
        return found

    # ------------------------------------------------------------------ counting

    def request(self, batches: Sequence[ProducerBatch], now: float) -> None:
        """A request goes out."""
        if now >= self.windows.due:
            self.windows.look()
        records = 0
        for batch in batches:
            records += batch.count
            self.queue_time.add((now - batch.created) * 1000)
        self.batches.add(len(batches))
        self.records.add(records)

    def throttled(self, seconds: float) -> None:
        """An answer said for how long the broker holds the producer back; 0 if it does not."""
        self.windows.look()
        self.throttle_time.add(seconds * 1000)

    def sent(self, batch: ProducerBatch) -> None:
        """The broker has a batch."""
        self.windows.look()  # the window may be over in which it was sent
        topic = self.topic(batch.tp.topic)
        topic.sent.add(batch.count)
        topic.bytes.add(batch.wire_size)
        topic.uncompressed.add(batch.size)

    def failed(self, batch: ProducerBatch) -> None:
        """A batch was given up."""
        self.windows.look()
        self.topic(batch.tp.topic).failed.add(batch.count)

    def retried(self, batch: ProducerBatch) -> None:
        """A batch is sent again."""
        self.windows.look()
        self.topic(batch.tp.topic).retried.add(batch.count)

    def split(self) -> None:
        """A batch was too large for the broker."""
        self.splits.add()

    def transaction_call(self, name: str, seconds: float) -> None:
        """A call of a transaction was successful (KIP-761); those that are ours alone have no figure."""
        if name in self.transaction_times:
            self.transaction_times[name].add(seconds)

    # ------------------------------------------------------------------ telling

    def define(self, registry: MetricsRegistry) -> None:
        """Have the client's metrics tell of it."""
        registry.define(lambda: self._of_client(registry.group("producer-metrics")))
        registry.family(
            lambda: list(self.topics),
            lambda topic: _of_topic(registry.group("producer-topic-metrics", topic=topic), self.topics[topic]),
        )

    def _of(self, tally: Callable[[TopicMetrics], MetricTally]) -> Callable[[], list[MetricTally]]:
        return lambda: [tally(topic) for topic in list(self.topics.values())]

    def _of_client(self, group: MetricGroup) -> Iterator[Metric]:
        sizes = self._of(lambda topic: topic.bytes)
        yield from _records(group, *map(self._of, (_sent, _failed, _retried)))
        yield from group.extent("batch-size", "bytes of a batch, as it was sent", sizes)
        yield group.gauge("compression-rate-avg", _COMPRESSED, lambda: _compression(list(self.topics.values())))
        yield from group.meter("batch-split", "batches that were split because brokers took none so large", self._split)
        yield from group.extent("record-queue-time", "ms that a batch waited to be sent", lambda: [self.queue_time])
        yield group.average("records-per-request-avg", "number of records in a request", lambda: [self.records])
        yield group.gauge("record-size-avg", "The average bytes of a record, before compression", self._record_size)
        yield from group.extent(
            "produce-throttle-time", "ms that a broker held the producer back", lambda: [self.throttle_time]
        )
        yield from group.meter(
            "buffer-exhausted", "calls that found no room in buffer.memory in time", lambda: [self.exhausted]
        )
        yield group.gauge(
            "bufferpool-wait-ratio",
            "The part of the time that calls waited for room in buffer.memory; of several their sum",
            lambda: rate_of(self.windows, self.room_time),
        )
        yield _nanoseconds(group, "bufferpool-wait-time-ns-total", "calls waited for room", self.room_time)
        yield _nanoseconds(group, "metadata-wait-time-ns-total", "calls waited for topics", self.metadata_time)
        yield _nanoseconds(group, "flush-time-ns-total", "flush took", self.flush_time)
        for name, short in _TRANSACTION_CALLS.items():
            yield _nanoseconds(group, f"txn-{short}-time-ns-total", f"{name} took", self.transaction_times[name])

    def _split(self) -> list[MetricTally]:
        return [self.splits]

    def _record_size(self) -> float:
        topics = list(self.topics.values())
        records = sum(topic.sent.recent[1] for topic in topics)
        return sum(topic.uncompressed.recent[1] for topic in topics) / records if records else nan


_COMPRESSED = "The part that batches have of their bytes before compression"


def _compression(topics: Sequence[TopicMetrics]) -> float:
    before = sum(topic.uncompressed.recent[1] for topic in topics)
    return sum(topic.bytes.recent[1] for topic in topics) / before if before else nan


def _sent(topic: TopicMetrics) -> MetricTally:
    return topic.sent


def _failed(topic: TopicMetrics) -> MetricTally:
    return topic.failed


def _retried(topic: TopicMetrics) -> MetricTally:
    return topic.retried


def _records(
    group: MetricGroup,
    sent: Callable[[], Sequence[MetricTally]],
    failed: Callable[[], Sequence[MetricTally]],
    retried: Callable[[], Sequence[MetricTally]],
) -> Iterator[Metric]:
    yield from group.meter("record-send", "records that brokers have acknowledged", sent)
    yield from group.meter("record-error", "records that were given up", failed)
    yield from group.meter("record-retry", "records that were sent again", retried)


def _of_topic(group: MetricGroup, topic: TopicMetrics) -> Iterable[Metric]:
    yield from _records(group, lambda: [topic.sent], lambda: [topic.failed], lambda: [topic.retried])
    yield from group.meter("byte", "bytes that brokers have acknowledged", lambda: [topic.bytes])
    yield group.gauge("compression-rate", _COMPRESSED, lambda: _compression([topic]))


def _nanoseconds(group: MetricGroup, name: str, text: str, tally: MetricTally) -> Metric:
    return group.counter(name, f"The total time that {text}, in nanoseconds", lambda: tally.total * 1e9)
