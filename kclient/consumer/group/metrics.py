"""What a member of a group counts: commits, heartbeats and rebalances, under the names of the Java client's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.group.model import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricGroup, MetricsRegistry
    from kclient.metrics.windows import MetricTally, MetricWindows, Percentiles

_HEARTBEATS = frozenset({RequestKind.HEARTBEAT, RequestKind.CONSUMER_HEARTBEAT, RequestKind.SHARE_HEARTBEAT})


class GroupMetrics:
    """What is counted of a membership.

    Args:
        windows: What metrics are computed over.
    """

    def __init__(self, windows: MetricWindows) -> None:
        self._windows = windows
        self.heartbeats: MetricTally = windows.tally()
        """Milliseconds until each heartbeat was answered."""
        self.joins: MetricTally = windows.tally()
        """Milliseconds until each JoinGroup was answered."""
        self.syncs: MetricTally = windows.tally()
        """Milliseconds until each SyncGroup was answered."""
        self.rebalances: MetricTally = windows.tally()
        """Milliseconds of each rebalance that was completed."""
        self.broken_off: MetricTally = windows.tally()
        """Rebalances that began anew before they were completed."""
        self.commits: Percentiles = windows.percentiles()
        """Milliseconds until each attempt to commit was answered."""
        self.committed: MetricTally = windows.tally()
        """Commits that succeeded."""
        self.not_committed: MetricTally = windows.tally()
        """Commits that failed."""
        self.commit_time: MetricTally = windows.tally()
        """Seconds that calls of `commit` took."""
        self.lookup_time: MetricTally = windows.tally()
        """Seconds that calls of `committed` took."""
        self.assigned: MetricTally = windows.tally()
        """Milliseconds of each call of `on_partitions_assigned`."""
        self.revoked: MetricTally = windows.tally()
        """Milliseconds of each call of `on_partitions_revoked`."""
        self.lost: MetricTally = windows.tally()
        """Milliseconds of each call of `on_partitions_lost`."""
        self._last_heartbeat: float | None = None
        self._last_rebalance: float | None = None
        self._rebalance_began: float | None = None

    # ------------------------------------------------------------------ counting

    def sent(self, kind: RequestKind, now: float) -> None:
        """A request of the member goes out."""
        if kind in _HEARTBEATS:
            self._last_heartbeat = now

    def answered(self, kind: RequestKind, seconds: float) -> None:
        """One was answered, within so many seconds."""
        self._windows.look()
        if kind in _HEARTBEATS:
            self.heartbeats.add(seconds * 1000)
        elif kind is RequestKind.JOIN:
            self.joins.add(seconds * 1000)
        elif kind is RequestKind.SYNC:
            self.syncs.add(seconds * 1000)

    def rebalance_begins(self, now: float, *, anew: bool) -> None:
        """The member begins to rebalance.

        Args:
            now: Monotonic time in seconds.
            anew: Whether it gives up what it was amid.
        """
        if self._rebalance_began is None:
            self._rebalance_began = now
        elif anew:
            self.broken_off.add()
            self._rebalance_began = now

    def rebalance_ends(self, now: float) -> None:
        """The member has what it was assigned."""
        began = now if self._rebalance_began is None else self._rebalance_began
        self.rebalances.add((now - began) * 1000)
        self._rebalance_began = None
        self._last_rebalance = now

    def assigned_anew(self, times: int) -> None:
        """A broker that tells nothing else has assigned something else, so many times in all."""
        while self.rebalances.count < times:
            self.rebalances.add(0.0)

    # ------------------------------------------------------------------ telling

    def define(self, registry: MetricsRegistry, *, classic: bool, partitions: Callable[[], int]) -> None:
        """Have the consumer's metrics tell of it.

        Args:
            registry: The consumer's metrics.
            classic: Whether the group has the classic protocol, in which members join and sync.
            partitions: How many partitions are assigned.
        """
        registry.define(
            lambda: self._of_member(registry.group("consumer-coordinator-metrics"), classic=classic, count=partitions)
        )
        registry.define(lambda: self._of_calls(registry.group("consumer-metrics")))

    def define_share(self, registry: MetricsRegistry, partitions: Callable[[], int]) -> None:
        """Have a share consumer's metrics tell of it, and of how many partitions are assigned."""

        def metrics() -> Iterator[Metric]:
            group = registry.group("consumer-share-coordinator-metrics")
            yield group.gauge("assigned-partitions", "How many partitions are read", lambda: float(partitions()))
            yield from self._heartbeats(group)
            yield from group.meter("rebalance", "assignments", self._rebalances, by_count=True, hourly=True)

        registry.define(metrics)

    def _rebalances(self) -> list[MetricTally]:
        return [self.rebalances]

    def _heartbeats(self, group: MetricGroup) -> Iterator[Metric]:
        yield from group.meter("heartbeat", "answered heartbeats", lambda: [self.heartbeats], by_count=True)
        yield group.maximum(
            "heartbeat-response-time-max", "ms until a heartbeat was answered", lambda: [self.heartbeats]
        )
        yield group.gauge(
            "last-heartbeat-seconds-ago",
            "The seconds since a heartbeat was sent; -1 before the first",
            lambda: self._ago(self._last_heartbeat),
        )

    def _of_member(self, group: MetricGroup, *, classic: bool, count: Callable[[], int]) -> Iterator[Metric]:
        yield group.gauge("assigned-partitions", "How many partitions are read", lambda: float(count()))
        yield from self._heartbeats(group)
        yield from group.extent("commit-latency", "ms until a commit was answered", lambda: [self.commits])
        yield from group.percentiles("commit-latency", "ms until a commit was answered", lambda: [self.commits])
        yield from group.meter("commit", "successful commits", lambda: [self.committed])
        yield group.total("failed-commit-total", "The total number of failed commits", lambda: [self.not_committed])
        if classic:
            yield from group.meter("join", "joins of the group", lambda: [self.joins], by_count=True)
            yield from group.extent("join-time", "ms until JoinGroup was answered", lambda: [self.joins])
            yield from group.meter("sync", "syncs of the group", lambda: [self.syncs], by_count=True)
            yield from group.extent("sync-time", "ms until SyncGroup was answered", lambda: [self.syncs])
        yield from group.meter("rebalance", "completed rebalances", self._rebalances, by_count=True, hourly=True)
        yield from group.meter("failed-rebalance", "rebalances that began anew", lambda: [self.broken_off], hourly=True)
        yield from group.extent("rebalance-latency", "ms of a completed rebalance", self._rebalances)
        yield group.total("rebalance-latency-total", "The total ms of completed rebalances", self._rebalances)
        yield group.gauge(
            "last-rebalance-seconds-ago",
            "The seconds since a rebalance was completed; -1 before the first",
            lambda: self._ago(self._last_rebalance),
        )
        yield from group.extent("partition-assigned-latency", "ms of on_partitions_assigned", lambda: [self.assigned])
        yield from group.extent("partition-revoked-latency", "ms of on_partitions_revoked", lambda: [self.revoked])
        yield from group.extent("partition-lost-latency", "ms of on_partitions_lost", lambda: [self.lost])

    def _of_calls(self, group: MetricGroup) -> Iterator[Metric]:
        yield group.counter(
            "commit-sync-time-ns-total",
            "The total time that commit took, in nanoseconds",
            lambda: self.commit_time.total * 1e9,
        )
        yield group.counter(
            "committed-time-ns-total",
            "The total time that committed took, in nanoseconds",
            lambda: self.lookup_time.total * 1e9,
        )

    def _ago(self, at: float | None) -> float:
        return -1.0 if at is None else max(self._windows.clock() - at, 0.0)
