"""The producer's figures, under the names of the Java client's metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.producer.batch import ProducerBatch


_TRANSACTION_CALLS: Final = {
    "init_transactions": "txn-init-time-ns-total",
    "begin_transaction": "txn-begin-time-ns-total",
    "send_offsets_to_transaction": "txn-send-offsets-time-ns-total",
    "commit_transaction": "txn-commit-time-ns-total",
    "abort_transaction": "txn-abort-time-ns-total",
}


@dataclass(slots=True)
class ProducerMetrics:
    """Counters and sums since the producer started; kept by the sender, per batch, and by calls of transactions."""

    records_sent: int = 0
    records_failed: int = 0
    records_retried: int = 0
    batches_sent: int = 0
    batches_split: int = 0
    bytes_sent: int = 0
    requests: int = 0
    responses: int = 0
    queue_time: float = 0.0
    queue_time_max: float = 0.0
    latency: float = 0.0
    latency_max: float = 0.0
    batch_size_max: int = 0
    throttle_time: float = 0.0
    throttle_time_max: float = 0.0
    transaction_times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TRANSACTION_CALLS, 0.0))

    def request(self, batches: Iterable[ProducerBatch], now: float) -> None:
        """A request goes out."""
        self.requests += 1
        for batch in batches:
            waited = now - batch.created
            self.queue_time += waited
            self.queue_time_max = max(self.queue_time_max, waited)
            self.batches_sent += 1
            self.bytes_sent += batch.size
            self.batch_size_max = max(self.batch_size_max, batch.size)

    def response(self, seconds: float) -> None:
        """A request was answered."""
        self.responses += 1
        self.latency += seconds
        self.latency_max = max(self.latency_max, seconds)

    def throttled(self, seconds: float) -> None:
        """An answer said for how long the broker holds the producer back; 0 if it does not."""
        self.throttle_time += seconds
        self.throttle_time_max = max(self.throttle_time_max, seconds)

    def sent(self, batch: ProducerBatch) -> None:
        """The broker has a batch."""
        self.records_sent += batch.count

    def failed(self, batch: ProducerBatch) -> None:
        """A batch was given up."""
        self.records_failed += batch.count

    def retried(self, batch: ProducerBatch) -> None:
        """A batch is sent again."""
        self.records_retried += batch.count

    def split(self) -> None:
        """A batch was too large for the broker."""
        self.batches_split += 1

    def transaction_call(self, name: str, seconds: float) -> None:
        """A call of a transaction was successful (KIP-761); those that are ours alone have no figure."""
        if name in self.transaction_times:
            self.transaction_times[name] += seconds

    def figures(self) -> dict[str, float]:
        """By Java's names; times in milliseconds unless the name says otherwise, sizes in bytes before compression."""
        batches = max(self.batches_sent, 1)
        return {
            "record-send-total": self.records_sent,
            "record-error-total": self.records_failed,
            "record-retry-total": self.records_retried,
            "batch-split-total": self.batches_split,
            "batch-size-avg": self.bytes_sent / batches,
            "batch-size-max": self.batch_size_max,
            "byte-total": self.bytes_sent,
            "request-total": self.requests,
            "response-total": self.responses,
            "records-per-request-avg": (self.records_sent + self.records_failed) / max(self.requests, 1),
            "record-queue-time-avg": self.queue_time * 1000 / batches,
            "record-queue-time-max": self.queue_time_max * 1000,
            "request-latency-avg": self.latency * 1000 / max(self.responses, 1),
            "request-latency-max": self.latency_max * 1000,
            "produce-throttle-time-avg": self.throttle_time * 1000 / max(self.responses, 1),
            "produce-throttle-time-max": self.throttle_time_max * 1000,
            **{metric: self.transaction_times[name] * 1e9 for name, metric in _TRANSACTION_CALLS.items()},
        }
