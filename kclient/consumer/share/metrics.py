"""What a share consumer counts as it fetches and acknowledges, under the names of the Java client's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricGroup, MetricsRegistry
    from kclient.metrics.windows import MetricTally, MetricWindows, Percentiles

_GROUP = "consumer-share-fetch-manager-metrics"


class ShareMetrics:
    """What is fetched, handed out and acknowledged.

    Args:
        windows: What metrics are computed over.
    """

    def __init__(self, windows: MetricWindows) -> None:
        self._windows = windows
        self.records: MetricTally = windows.tally()
        """Records that were handed out; only the sum is kept, since iterating adds each by itself."""
        self.fetches: MetricTally = windows.tally()
        """Bytes of each answer."""
        self.acquired: MetricTally = windows.tally()
        """Records of each answer."""
        self.latency: Percentiles = windows.percentiles()
        """Milliseconds until each answer."""
        self.throttle_time: MetricTally = windows.tally()
        """Milliseconds that each answer asks to pause."""
        self.acknowledged: MetricTally = windows.tally()
        """Records that were acknowledged, or of which that failed."""
        self.not_acknowledged: MetricTally = windows.tally()
        """Records whose acknowledgement failed."""

    def answered(self, size: int, records: int, throttle_time_ms: int, seconds: float) -> None:
        """A fetch was answered with so many bytes and records, within so many seconds."""
        self._windows.look()
        self.fetches.add(size)
        self.acquired.add(records)
        self.latency.add(seconds * 1000)
        self.throttle_time.add(throttle_time_ms)

    def define(self, registry: MetricsRegistry) -> None:
        """Have the client's metrics tell of it."""
        registry.define(lambda: self._metrics(registry.group(_GROUP)))

    def _metrics(self, group: MetricGroup) -> Iterator[Metric]:
        yield from group.meter("records-consumed", "records handed out", lambda: [self.records])
        yield from group.meter("bytes-consumed", "bytes of records fetched", lambda: [self.fetches])
        yield from group.meter("fetch", "answers to fetches", lambda: [self.fetches], by_count=True)
        yield from group.extent("fetch-size", "bytes of records in an answer", lambda: [self.fetches])
        yield from group.extent("fetch-latency", "ms until a fetch is answered", lambda: [self.latency])
        yield from group.percentiles("fetch-latency", "ms until a fetch is answered", lambda: [self.latency])
        yield from group.extent(
            "fetch-throttle-time", "ms that a broker held fetches back", lambda: [self.throttle_time]
        )
        yield from group.extent("records-per-request", "number of records in an answer", lambda: [self.acquired])
        yield from group.meter(
            "acknowledgements-send", "records that were acknowledged, or of which that failed",
            lambda: [self.acknowledged],
        )  # fmt: skip
        yield from group.meter(
            "acknowledgements-error", "records whose acknowledgement failed", lambda: [self.not_acknowledged]
        )
