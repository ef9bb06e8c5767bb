"""What to fetch from whom: bookkeeping without I/O or clock.

Each broker is asked for the partitions it leads, in up to two requests at a time: while one waits at the broker for
quiet partitions, a busy partition is fetched by the other, which is kept for that, on a connection of its own. A
partition is fetched ahead until it has more than `max.partition.fetch.bytes` buffered; `FetchBudget` divides
`fetch.max.bytes` among the brokers. Brokers and partitions take turns: who has waited longest comes first. What
arrives waits in a `FetchBuffer` for `poll`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from kclient.cluster import Backoff
from kclient.consumer.fetch.budget import FetchBudget, Frame
from kclient.consumer.fetch.buffer import FetchBuffer
from kclient.consumer.fetch.completed_fetch import CompletedFetch
from kclient.consumer.fetch.session import SESSION_ERRORS, Asked, FetchSessionHandler
from kclient.errors import (
    CorruptRecordError,
    ErrorCode,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationError,
    error_for,
)
from kclient.protocol.messages import FetchRequest
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.metrics import FetchMetrics
    from kclient.consumer.partition_state import PartitionState
    from kclient.consumer.subscription import SubscriptionState
    from kclient.protocol.messages import (
        FetchableTopicResponse,
        FetchResponse,
        FetchResponseEpochEndOffset,
        FetchResponsePartitionData,
    )

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")

LANES = 2
"""Requests to one broker at a time."""

_NO_TOPIC_ID = bytes(16)
_LAST_VERSION_WITH_NAMES = 12
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_WAIT = frozenset({ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR})


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """What the fetcher needs of the configuration."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    """Most bytes in a response, and most bytes buffered in all."""
    max_partition_bytes: int = 1_048_576
    read_committed: bool = False
    client_rack: str = ""
    retry_backoff: Backoff = field(default_factory=lambda: Backoff(100, 1000))
    """How long a partition is not asked for after an error."""
    preferred_replica_age: float = 300.0
    """Seconds for which a replica that the leader sent us to is used."""
    tell_ends: bool = False
    """Whether poll tells of the ends of partitions."""


@dataclass(slots=True, eq=False)
class PlannedFetch:
    """A fetch to send; its answer goes to `Fetcher.received`, an error to `failed`."""

    node_id: int
    lane: int
    request: FetchRequest
    max_version: int | None
    asked: dict[TopicPartition, tuple[PartitionState, int]]
    """State and offset of each partition, as they were when it was planned."""
    names: dict[bytes, str]
    reserved: int
    """The most bytes that were asked for."""
    quiet: bool
    """Whether nothing is known to be there of any of them, so that it may wait at the broker."""
    sent: float = 0.0
    """When it left."""

    @property
    def current(self) -> Iterator[PartitionState]:
        """The partitions that still wait for this fetch: no other has taken its place, and no position jumped."""
        return (state for state, _ in self.asked.values() if state.attempt is self)


@dataclass(slots=True)
class FetchNews:
    """What an answer brought beside records."""

    ready: bool = False
    """Whether there is something new for `poll`."""
    refresh_metadata: bool = False
    leaders: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Leaders and their epochs that the broker named (KIP-951)."""


class Fetcher:
    """The fetches of one consumer.

    Args:
        settings: The configuration.
        subscriptions: The partitions and positions; the fetcher moves their `fetch_offset`.
        metrics: Count answers and bytes.
    """

    def __init__(self, settings: FetchSettings, subscriptions: SubscriptionState, metrics: FetchMetrics) -> None:
        self.settings = settings
        self._metrics = metrics
        self._subscriptions = subscriptions
        self._budget = FetchBudget(settings.max_bytes, settings.max_partition_bytes, LANES)
        self.buffer: FetchBuffer = FetchBuffer(subscriptions, self._budget)
        """What was fetched."""
        self._busy: dict[tuple[int, int], PlannedFetch] = {}
        self._sessions: dict[tuple[int, int], FetchSessionHandler] = {}
        self._snapshot: ClusterSnapshot | None = None
        self._turns = 0
        self._assignments = subscriptions.assignments

    # ------------------------------------------------------------------ asking

    def plan(self, snapshot: ClusterSnapshot, now: float) -> tuple[list[PlannedFetch], bool]:
        """The fetches to send now.

        Returns:
            The fetches, and whether a partition has no known leader, so that metadata are needed.
        """
        if snapshot is not self._snapshot:
            self._heed(snapshot, now)
        by_node: dict[int, list[PartitionState]] = {}
        leaderless = False
        for state in self._subscriptions:
            if not self._wants_more(state, now):
                continue
            node = self._source(state, snapshot, now)
            if node is None:
                leaderless = True
            else:
                by_node.setdefault(node, []).append(state)
        self._budget.short_of.clear()
        brokers = len(by_node.keys() | self._budget.busy)
        plans = []
        for states in by_node.values():
            states.sort(key=_turn)
        for node, states in sorted(by_node.items(), key=lambda item: item[1][0].turn):
            plan = self._plan_node(node, states, snapshot, brokers)
            if plan is not None:
                plans.append(plan)
        self.buffer.notice_crowding()
        return plans, leaderless

    def _heed(self, snapshot: ClusterSnapshot, now: float) -> None:
        """There are new metadata: a partition whose leader moved need not wait for the old one's answer."""
        self._snapshot = snapshot
        for plan in self._busy.values():
            for state in plan.current:
                if self._source(state, snapshot, now) not in {plan.node_id, None}:
                    state.attempt = state.quiet_at = None
        self._sessions = {
            place: session
            for place, session in self._sessions.items()
            if place[0] in snapshot.nodes or place in self._busy
        }

    def end_sessions(self, now: float, *, everywhere: bool = False) -> list[tuple[int, int, FetchRequest]]:
        """Requests that end the sessions with brokers of which nothing is read any more, with node ids and lanes.

        Args:
            now: Monotonic time in seconds.
            everywhere: Whether to end all of them.
        """
        if not everywhere and self._assignments == self._subscriptions.assignments:
            return []
        self._assignments = self._subscriptions.assignments
        used: set[int | None] = set()
        if not everywhere and self._snapshot is not None:
            used = {self._source(state, self._snapshot, now) for state in self._subscriptions}
        requests = []
        for place, session in list(self._sessions.items()):
            if place[0] in used:
                continue
            if place in self._busy and not everywhere:
                self._assignments = -1  # look again when it is answered
                continue
            part = session.close()
            if place not in self._busy:
                del self._sessions[place]
            if part is not None:
                request = FetchRequest(max_wait_ms=0, session_id=part.session_id, session_epoch=part.epoch)
                requests.append((*place, request))
        return requests

    def next_retry(self, now: float) -> float | None:
        """When a partition that failed may be fetched again."""
        times = [state.retry_at for state in self._subscriptions if state.fetchable and state.retry_at > now]
        return min(times, default=None)

    def _wants_more(self, state: PartitionState, now: float) -> bool:
        return (
            state.attempt is None
            and state.fetchable
            and state.retry_at <= now
            and state.buffered <= self.settings.max_partition_bytes
        )

    def _source(self, state: PartitionState, snapshot: ClusterSnapshot, now: float) -> int | None:
        replica = state.preferred_replica
        if replica is not None and now < state.preferred_until and replica in snapshot.nodes:
            return replica
        return snapshot.leader_id(state.tp)

    def _plan_node(
        self, node: int, states: list[PartitionState], snapshot: ClusterSnapshot, brokers: int
    ) -> PlannedFetch | None:
        busy = [plan.quiet for lane in range(LANES) if (plan := self._busy.get((node, lane))) is not None]
        if len(busy) == LANES:
            return None
        if any(busy) and len(busy) == LANES - 1:
            # the last lane is kept for those that have something: the quiet ones would let it wait at the broker like
            # the other, so they wait here for that one's answer, which will not be long, and go on with those it brings
            states = [state for state in states if not self._is_quiet(state, node)]
        if not states:
            return None
        lane = next(lane for lane in range(LANES) if (node, lane) not in self._busy)
        size = self._budget.allowance(node, len(states), brokers)
        if not size:
            return None
        wanted = {state.tp: self._ask(state, snapshot) for state in states}
        session = self._sessions.setdefault((node, lane), FetchSessionHandler(enabled=lane == 0))
        part = session.plan(wanted)
        request = FetchRequest(
            max_wait_ms=self.settings.max_wait_ms,
            min_bytes=self.settings.min_bytes,
            max_bytes=size,
            isolation_level=int(self.settings.read_committed),
            session_id=part.session_id,
            session_epoch=part.epoch,
            topics=part.topics,
            forgotten_topics_data=part.forgotten,
            rack_id=self.settings.client_rack,
        )
        with_ids = all(asked.topic_id != _NO_TOPIC_ID for asked in wanted.values())
        plan = PlannedFetch(
            node_id=node,
            lane=lane,
            request=request,
            max_version=None if with_ids else _LAST_VERSION_WITH_NAMES,
            asked={state.tp: (state, state.fetch_offset) for state in states},
            names={asked.topic_id: tp.topic for tp, asked in wanted.items()},
            reserved=size,
            quiet=all(self._is_quiet(state, node) for state in states),
        )
        self._busy[node, lane] = plan
        self._budget.reserve(node, size)
        for state in states:
            state.attempt = plan
        return plan

    def _is_quiet(self, state: PartitionState, node: int) -> bool:
        """Whether a broker has answered last that there is nothing to read. (What has just brought something may have
        more at any moment.)"""
        end = state.end(read_committed=self.settings.read_committed)
        return state.quiet_at == node and end is not None and state.fetch_offset >= end

    def _ask(self, state: PartitionState, snapshot: ClusterSnapshot) -> Asked:
        epoch = snapshot.leader_epoch(state.tp)
        return Asked(
            topic_id=snapshot.topic_id(state.tp.topic),
            fetch_offset=state.fetch_offset,
            leader_epoch=-1 if epoch is None else epoch,
            last_fetched_epoch=-1 if state.fetch_epoch is None else state.fetch_epoch,
            max_bytes=self.settings.max_partition_bytes,
        )

    # ------------------------------------------------------------------ answers

    def received(self, plan: PlannedFetch, response: FetchResponse, now: float) -> FetchNews:
        """The answer to a planned fetch."""
        current = set(plan.current)
        self._done(plan).answered(response)
        for state in current:
            state.quiet_at = plan.node_id
        size = sum(map(_size, response.responses))
        self._metrics.answered(size, response.throttle_time_ms, now - plan.sent)
        news = FetchNews()
        if response.error_code:
            logger.debug("fetch from node %d: %s", plan.node_id, error_for(response.error_code))
            # a session that was forgotten is begun anew at once
            if not plan.request.session_id or response.error_code not in SESSION_ERRORS:
                news.refresh_metadata = True
                self._hold_back(current, now)
            return news
        frame = Frame(plan.node_id, size)
        for state in current:  # what a session leaves out has not changed
            if state.high_watermark is not None:
                state.told_at = now
            if self.settings.tell_ends and state.answered != state.version:
                state.answered = state.version
                news.ready = True
        for topic in response.responses:
            name = topic.topic or plan.names.get(bytes(topic.topic_id), "")
            for data in topic.partitions:
                asked = plan.asked.get(TopicPartition(name, data.partition_index))
                if asked is None or asked[0] not in current:
                    continue
                if data.error_code or topic.topic_id == _NO_TOPIC_ID or asked[0].served(bytes(topic.topic_id)):
                    self._take_in(asked[0], asked[1], data, frame, news, now)
                else:
                    self.buffer.made_anew(asked[0])
                    news.refresh_metadata = True
        return news

    def failed(self, plan: PlannedFetch, now: float) -> None:
        """A planned fetch could not be sent, or was not answered."""
        current = set(plan.current)
        self._done(plan).failed()
        self._hold_back(current, now)

    def _done(self, plan: PlannedFetch) -> FetchSessionHandler:
        del self._busy[plan.node_id, plan.lane]
        self._budget.answered(plan.node_id, plan.reserved)
        for state in plan.current:
            state.attempt = None
        return self._sessions[plan.node_id, plan.lane]

    def _hold_back(self, states: Iterable[PartitionState], now: float) -> None:
        for state in states:
            state.preferred_replica = None
            self._later(state, now)

    def _later(self, state: PartitionState, now: float) -> None:
        state.failures += 1
        state.quiet_at = None
        state.retry_at = now + self.settings.retry_backoff.seconds(state.failures)

    def _take_in(
        self,
        state: PartitionState,
        offset: int,
        data: FetchResponsePartitionData,
        frame: Frame,
        news: FetchNews,
        now: float,
    ) -> None:
        """Keep what was fetched of one partition."""
        if data.error_code or data.records:
            state.quiet_at = None
        if data.error_code:
            state.answered = None
            self._refused(state, offset, data, news, now)
            return
        state.failures = 0
        if data.diverging_epoch.end_offset >= 0:
            self._diverged(state, data.diverging_epoch, news)
            return
        state.high_watermark = data.high_watermark
        state.told_at = now
        if data.last_stable_offset >= 0:
            state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            state.preferred_until = now + self.settings.preferred_replica_age
        if data.records is not None and len(data.records):
            self._keep(state, data, frame, news)
        elif self.settings.tell_ends:
            news.ready = True  # there may be an end to be told of

    def _diverged(self, state: PartitionState, leaders: FetchResponseEpochEndOffset, news: FetchNews) -> None:
        """The leader's log has another epoch at the end of what was fetched (KIP-595).

        Records were lost only if that epoch ends below. Else the leader merely does not know the epoch of the last
        batch any more, because retention or compaction left nothing of it: it is asked again by the epoch it knows.
        """
        if leaders.end_offset < state.fetch_offset:
            self._add(
                CompletedFetch.failure(state, _truncated(state, leaders), leaders.end_offset, leaders.epoch), news
            )
        else:
            # asked by its own epoch it has no reason to say so again; whatever its reason, it is asked by none then
            state.fetch_epoch = None if state.fetch_epoch == leaders.epoch else leaders.epoch

    def _keep(self, state: PartitionState, data: FetchResponsePartitionData, frame: Frame, news: FetchNews) -> None:
        assert data.records is not None
        aborted = None
        if self.settings.read_committed:
            aborted = [(item.producer_id, item.first_offset) for item in data.aborted_transactions or ()]
        try:
            completed = CompletedFetch.of(state, data.records, aborted)
        except (CorruptRecordError, RecordTooLargeError) as error:
            completed = CompletedFetch.failure(state, _in_partition(error, state))
        else:
            completed.frame = frame
            self._budget.hold(frame)
        self._metrics.fetched(state.tp.topic, completed.size)
        self._turns += 1
        state.turn = self._turns
        self._add(completed, news)

    def _add(self, completed: CompletedFetch, news: FetchNews) -> None:
        self.buffer.add(completed)
        news.ready = True

    def _refused(
        self, state: PartitionState, offset: int, data: FetchResponsePartitionData, news: FetchNews, now: float
    ) -> None:
        code = data.error_code
        from_replica = state.preferred_replica is not None
        state.preferred_replica = None
        if data.current_leader.leader_id >= 0:
            news.leaders[state.tp] = (data.current_leader.leader_id, data.current_leader.leader_epoch)
        if code in _MOVED or code in _WAIT or (from_replica and code == ErrorCode.OFFSET_OUT_OF_RANGE):
            news.refresh_metadata = news.refresh_metadata or code in _MOVED or code == ErrorCode.UNKNOWN_LEADER_EPOCH
            self._later(state, now)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            news.refresh_metadata = True  # it may be another topic by now
            self._add(CompletedFetch.failure(state, _out_of_range(state.tp, offset)), news)
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error = TopicAuthorizationError(f"Not allowed to read topic {state.tp.topic!r}")
            self._add(CompletedFetch.failure(state, error), news)
        else:
            self._add(CompletedFetch.failure(state, _in_partition(error_for(code), state)), news)


_turn = attrgetter("turn")


def _size(topic: FetchableTopicResponse) -> int:
    return sum(len(data.records) for data in topic.partitions if data.records is not None)


def _out_of_range(tp: TopicPartition, offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(f"Offset {offset} of {tp} does not exist (any more)", offsets={tp: offset})


def _truncated(state: PartitionState, leaders: FetchResponseEpochEndOffset) -> LogTruncationError:
    end = leaders.end_offset
    return LogTruncationError(
        f"{state.tp} was cut back to offset {end}, below the consumer's position {state.fetch_offset} (unclean "
        "leader election): records were lost",
        divergent_offsets={state.tp: OffsetAndMetadata(end, "", leaders.epoch if leaders.epoch >= 0 else None)},
    )


def _in_partition(error: KafkaError, state: PartitionState) -> KafkaError:
    error.message = f"{state.tp}: {error.message}"
    return error
