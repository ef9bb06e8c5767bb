"""What consumers of either kind count as they fetch and are polled, under the names of the Java client's metrics.

It is counted per answer, per poll and per partition that a poll returns records of; a record costs nothing.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kclient.consumer.partition_state import PartitionState
    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricGroup, MetricsRegistry
    from kclient.metrics.windows import MetricSpread, MetricTally, MetricWindows, Percentiles
    from kclient.types import ConsumerGroupMetadata


class PollMetrics:
    """How often the user polls, and what part of the time he waits there.

    Args:
        windows: What metrics are computed over.
    """

    def __init__(self, windows: MetricWindows) -> None:
        self._windows = windows
        self.between: MetricTally = windows.tally()
        """Milliseconds from one poll to the next."""
        self.idle: MetricTally = windows.tally()
        """The part of these that the poll took."""
        self.polls: int = 0
        self._last: float | None = None
        self._ended = 0.0

    def begins(self, now: float) -> None:
        """The user polls."""
        self._windows.look()
        self.polls += 1
        if self._last is not None and now > self._last:
            self.between.add((now - self._last) * 1000)
            self.idle.add(max(self._ended - self._last, 0.0) / (now - self._last))
        self._last = now

    def ends(self, now: float) -> None:
        """The poll returns."""
        self._ended = now

    def define(self, registry: MetricsRegistry, group_name: str) -> None:
        """Have the client's metrics tell of it, in a group."""
        registry.define(lambda: self._metrics(registry.group(group_name)))

    def _metrics(self, group: MetricGroup) -> Iterator[Metric]:
        yield from group.extent("time-between-poll", "ms from one poll to the next", lambda: [self.between])
        yield group.average("poll-idle-ratio-avg", "part of the time that polls took", lambda: [self.idle])
        yield group.gauge("last-poll-seconds-ago", "The seconds since the last poll; -1 before the first", self._ago)
        yield group.counter("poll-total", "The total number of polls", lambda: float(self.polls))

    def _ago(self) -> float:
        return -1.0 if self._last is None else max(self._windows.clock() - self._last, 0.0)


class TopicFetchMetrics:
    """What is counted of one topic."""

    __slots__ = ("records", "sizes")

    def __init__(self, windows: MetricWindows) -> None:
        self.records: MetricTally = windows.tally()
        """Records of each partition that were handed out at a time."""
        self.sizes: MetricTally = windows.tally()
        """Bytes of each partition in an answer."""


class FetchMetrics:
    """What is fetched, and handed out.

    Args:
        windows: What metrics are computed over.
        read_committed: Whether only what is committed is read, which ends at the last stable offset.
    """

    def __init__(self, windows: MetricWindows, *, read_committed: bool = False) -> None:
        self.windows: MetricWindows = windows
        self.topics: dict[str, TopicFetchMetrics] = {}
        self.records: MetricTally = windows.tally()
        """Records that were handed out at a time."""
        self.fetches: MetricTally = windows.tally()
        """Bytes of each answer."""
        self.latency: Percentiles = windows.percentiles()
        """Milliseconds until each answer."""
        self.throttle_time: MetricTally = windows.tally()
        """Milliseconds that each answer asks to pause."""
        self._lags: MetricTally = windows.tally()
        self._leads: MetricSpread = windows.spread()
        self._read_committed = read_committed

    def topic(self, name: str) -> TopicFetchMetrics:
        """What is counted of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicFetchMetrics(self.windows)
        return found

    # ------------------------------------------------------------------ counting

    def answered(self, size: int, throttle_time_ms: int, seconds: float) -> None:
        """A fetch was answered with so many bytes of records, within so many seconds."""
        self.windows.look()
        self.fetches.add(size)
        self.latency.add(seconds * 1000)
        self.throttle_time.add(throttle_time_ms)

    def fetched(self, topic: str, size: int) -> None:
        """So many bytes of records of a partition have come."""
        self.topic(topic).sizes.add(size)

    def handed_out(self, state: PartitionState, count: int) -> None:
        """The user gets so many records of a partition, and the position is behind them."""
        self.records.add(count)
        self.topic(state.tp.topic).records.add(count)
        lag = state.lag(read_committed=self._read_committed)
        if lag is not None:
            if state.lags is None:
                state.lags = self.windows.tally()
            state.lags.add(lag)
            self._lags.add(lag)
        lead = state.lead
        if lead is not None:
            if state.leads is None:
                state.leads = self.windows.spread()
            state.leads.add(lead)
            self._leads.add(lead)

    def handed_out_rows(self, states: Iterable[PartitionState], rows: int) -> None:
        """The user gets so many rows of some partitions; whose topics' they are is known where it is one topic."""
        topics = {state.tp.topic for state in states}
        if len(topics) == 1:
            self.topic(topics.pop()).records.add(rows)
        self.records.add(rows)

    # ------------------------------------------------------------------ telling

    def define(self, registry: MetricsRegistry, group_name: str, buffered: Callable[[], int]) -> None:
        """Have the client's metrics tell of it.

        Args:
            registry: The client's metrics.
            group_name: The group.
            buffered: How many bytes are fetched and not handed out.
        """
        registry.define(lambda: self._of_client(registry.group(group_name), buffered))

    def define_topics(self, registry: MetricsRegistry, group_name: str) -> None:
        """Have them tell of each topic as well."""
        registry.family(
            lambda: list(self.topics),
            lambda topic: _of_topic(registry.group(group_name, topic=topic), self.topics[topic]),
        )

    def define_partitions(
        self, registry: MetricsRegistry, group_name: str, states: Callable[[], Sequence[PartitionState]]
    ) -> None:
        """Have them tell of each partition that is read, and of the greatest lag.

        Args:
            registry: The client's metrics.
            group_name: The group.
            states: What is read now.
        """

        def make(state: PartitionState) -> Iterable[Metric]:
            group = registry.group(group_name, topic=state.tp.topic, partition=str(state.tp.partition))
            return self._of_partition(group, state)

        registry.family(states, make)
        registry.define(lambda: self._extremes(registry.group(group_name), states))

    def _of_client(self, group: MetricGroup, buffered: Callable[[], int]) -> Iterator[Metric]:
        yield group.gauge(
            "buffered-bytes", "The bytes of records that are fetched and not handed out", lambda: float(buffered())
        )
        yield from group.meter("records-consumed", "records handed out", lambda: [self.records])
        yield from group.meter("bytes-consumed", "bytes of records fetched", lambda: [self.fetches])
        yield from group.meter("fetch", "answers to fetches", lambda: [self.fetches], by_count=True)
        yield from group.extent("fetch-size", "bytes of records in an answer", lambda: [self.fetches])
        yield from group.extent("fetch-latency", "ms until a fetch is answered", lambda: [self.latency])
        yield from group.percentiles("fetch-latency", "ms until a fetch is answered", lambda: [self.latency])
        yield from group.extent(
            "fetch-throttle-time", "ms that a broker held fetches back", lambda: [self.throttle_time]
        )
        yield group.gauge(
            "records-per-request-avg",
            "The average number of records for an answer",
            lambda: _ratio(self.records, self.fetches),
        )

    def _extremes(self, group: MetricGroup, states: Callable[[], Sequence[PartitionState]]) -> Iterator[Metric]:
        def lag() -> float:
            now = [lag for state in states() if (lag := state.lag(read_committed=self._read_committed)) is not None]
            return _known(max([self._lags.highest, *now]))

        yield group.gauge("records-lag-max", "The maximum lag of any partition, in records", lag)
        yield group.gauge(
            "records-lead-min",
            "The minimum distance of any position from the beginning of its partition, in records",
            lambda: _known(self._leads.lowest),
        )

    def _of_partition(self, group: MetricGroup, state: PartitionState) -> Iterator[Metric]:
        def lag() -> float:
            found = state.lag(read_committed=self._read_committed)
            return nan if found is None else float(found)

        def lead() -> float:
            return nan if state.lead is None else float(state.lead)

        def lags() -> list[MetricTally]:
            return [] if state.lags is None else [state.lags]

        def leads() -> list[MetricTally]:
            return [] if state.leads is None else [state.leads]

        yield group.gauge("records-lag", "How many records are behind the position", lag)
        yield group.average("records-lag-avg", "lag, in records", lags)
        yield group.maximum("records-lag-max", "lag, in records", lags)
        yield group.gauge("records-lead", "How far the position is from the beginning, in records", lead)
        yield group.average("records-lead-avg", "distance from the beginning, in records", leads)
        yield group.gauge(
            "records-lead-min",
            "The minimum distance from the beginning, in records",
            lambda: nan if state.leads is None else _known(state.leads.lowest),
        )
        yield group.gauge(
            "preferred-read-replica",
            "The replica that is read from instead of the leader; -1 for none (KIP-392)",
            lambda: -1.0 if state.preferred_replica is None else float(state.preferred_replica),
        )


def _of_topic(group: MetricGroup, topic: TopicFetchMetrics) -> Iterator[Metric]:
    yield from group.meter("records-consumed", "records handed out", lambda: [topic.records])
    yield from group.meter("bytes-consumed", "bytes of records fetched", lambda: [topic.sizes])
    yield from group.extent("fetch-size", "bytes of a partition's records in an answer", lambda: [topic.sizes])
    yield group.gauge(
        "records-per-request-avg",
        "The average number of records for a partition in an answer",
        lambda: _ratio(topic.records, topic.sizes),
    )


def _ratio(records: MetricTally, answers: MetricTally) -> float:
    count = answers.recent[0]
    return records.recent[1] / count if count else nan


def _known(value: float) -> float:
    return nan if value in (float("inf"), -float("inf")) else float(value)


def resource_of(client_rack: str, member: ConsumerGroupMetadata | None) -> dict[str, str]:
    """What the cluster is told of a consumer beside its metrics (KIP-714).

    Args:
        client_rack: `client.rack`.
        member: Who it is in its group; None without one.
    """
    found = {"client_rack": client_rack}
    if member is not None:
        found |= {
            "group_id": member.group_id,
            "group_instance_id": member.group_instance_id or "",
            "group_member_id": member.member_id,
        }
    return {name: value for name, value in found.items() if value}
