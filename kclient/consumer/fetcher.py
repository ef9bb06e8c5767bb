"""What to fetch from whom, and what was fetched: bookkeeping without I/O or clock.

Each broker is asked for the partitions it leads, in up to two requests at a time: while one waits at the broker
for quiet partitions, a busy partition is fetched by the other, on a connection of its own. A partition is fetched
ahead until it has more than `max.partition.fetch.bytes` buffered; all of them together stay within
`fetch.max.bytes`. What arrives waits as undecoded chunks, in order of arrival, for `poll`.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kclient.consumer.chunk import Chunk
from kclient.consumer.fetch_session import Asked, FetchSession
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
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.subscription import PartitionState, SubscriptionState
    from kclient.protocol.messages import FetchResponse, FetchResponsePartitionData

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
    retry_backoff: float = 0.1
    """Seconds before a partition is asked for again after an error."""
    preferred_replica_age: float = 300.0
    """Seconds for which a replica that the leader sent us to is used."""


@dataclass(slots=True, eq=False)
class FetchPlan:
    """A fetch to send; its answer goes to `Fetcher.received`, an error to `failed`."""

    node_id: int
    lane: int
    request: FetchRequest
    max_version: int | None
    asked: dict[TopicPartition, tuple[PartitionState, int, int]]
    """State, version and offset of each partition, as they were when it was planned."""
    names: dict[bytes, str]
    reserved: int


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
    """

    def __init__(self, settings: FetchSettings, subscriptions: SubscriptionState) -> None:
        self.settings = settings
        self.buffered: int = 0
        """Bytes that were fetched and not handed out."""
        self.fetches: int = 0
        self.bytes_fetched: int = 0
        self._subscriptions = subscriptions
        self._ready: deque[Chunk] = deque()
        self._busy: dict[tuple[int, int], FetchPlan] = {}
        self._sessions: dict[tuple[int, int], FetchSession] = {}

    # ------------------------------------------------------------------ asking

    def plan(self, snapshot: ClusterSnapshot, now: float) -> tuple[list[FetchPlan], bool]:
        """The fetches to send now.

        Returns:
            The fetches, and whether a partition has no known leader, so that metadata are needed.
        """
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
        plans = []
        for node, states in by_node.items():
            plan = self._plan_node(node, states, snapshot)
            if plan is not None:
                plans.append(plan)
        return plans, leaderless

    def next_retry(self, now: float) -> float | None:
        """When a partition that failed may be fetched again."""
        times = [state.retry_at for state in self._subscriptions if state.fetchable and state.retry_at > now]
        return min(times, default=None)

    def _wants_more(self, state: PartitionState, now: float) -> bool:
        return (
            state.fetchable
            and state.fetching != state.version
            and state.retry_at <= now
            and state.buffered <= self.settings.max_partition_bytes
        )

    def _source(self, state: PartitionState, snapshot: ClusterSnapshot, now: float) -> int | None:
        replica = state.preferred_replica
        if replica is not None and now < state.preferred_until and replica in snapshot.nodes:
            return replica
        return snapshot.leader_id(state.tp)

    def _plan_node(self, node: int, states: list[PartitionState], snapshot: ClusterSnapshot) -> FetchPlan | None:
        lane = next((lane for lane in range(LANES) if (node, lane) not in self._busy), None)
        if lane is None:
            return None
        reserved = sum(plan.reserved for plan in self._busy.values())
        room = self.settings.max_bytes - self.buffered - reserved
        size = min(room, len(states) * self.settings.max_partition_bytes)
        if room < self.settings.max_partition_bytes and (self.buffered or reserved):
            return None  # without anything buffered even a tiny fetch.max.bytes must make progress
        wanted = {state.tp: self._ask(state, snapshot) for state in states}
        session = self._sessions.setdefault((node, lane), FetchSession(enabled=lane == 0))
        part = session.plan(wanted)
        request = FetchRequest(
            max_wait_ms=self.settings.max_wait_ms,
            min_bytes=self.settings.min_bytes,
            max_bytes=max(size, 1),
            isolation_level=int(self.settings.read_committed),
            session_id=part.session_id,
            session_epoch=part.epoch,
            topics=part.topics,
            forgotten_topics_data=part.forgotten,
            rack_id=self.settings.client_rack,
        )
        with_ids = all(asked.topic_id != _NO_TOPIC_ID for asked in wanted.values())
        plan = FetchPlan(
            node_id=node,
            lane=lane,
            request=request,
            max_version=None if with_ids else _LAST_VERSION_WITH_NAMES,
            asked={state.tp: (state, state.version, state.fetch_offset) for state in states},
            names={asked.topic_id: tp.topic for tp, asked in wanted.items()},
            reserved=max(size, 0),
        )
        self._busy[node, lane] = plan
        for state in states:
            state.fetching = state.version
        return plan

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

    def received(self, plan: FetchPlan, response: FetchResponse, now: float) -> FetchNews:
        """The answer to a planned fetch."""
        session = self._done(plan)
        session.answered(response)
        self.fetches += 1
        news = FetchNews()
        if response.error_code:
            logger.debug("fetch from node %d: %s", plan.node_id, error_for(response.error_code))
            if response.error_code in _MOVED:
                news.refresh_metadata = True
                self._hold(plan, now)
            return news
        for topic in response.responses:
            name = topic.topic or plan.names.get(bytes(topic.topic_id), "")
            for data in topic.partitions:
                self._take_in(plan, TopicPartition(name, data.partition_index), data, news, now)
        return news

    def failed(self, plan: FetchPlan, now: float) -> None:
        """A planned fetch could not be sent, or was not answered."""
        self._done(plan).failed()
        self._hold(plan, now)

    def _done(self, plan: FetchPlan) -> FetchSession:
        del self._busy[plan.node_id, plan.lane]
        for state, version, _ in plan.asked.values():
            if state.fetching == version:
                state.fetching = -1
        return self._sessions[plan.node_id, plan.lane]

    def _hold(self, plan: FetchPlan, now: float) -> None:
        for state, version, _ in plan.asked.values():
            if state.version == version:
                state.retry_at = now + self.settings.retry_backoff
                state.preferred_replica = None

    def _take_in(
        self, plan: FetchPlan, tp: TopicPartition, data: FetchResponsePartitionData, news: FetchNews, now: float
    ) -> None:
        """Keep what was fetched of one partition, unless it jumped or left meanwhile."""
        asked = plan.asked.get(tp)
        if asked is None or asked[0].version != asked[1] or self._subscriptions.find(tp) is not asked[0]:
            return
        state = asked[0]
        if data.error_code:
            self._refused(plan, state, data, news, now)
            return
        if data.diverging_epoch.end_offset >= 0:
            end = data.diverging_epoch.end_offset
            self._add(Chunk.failure(state, _truncated(state, end), end), news)
            return
        state.high_watermark = data.high_watermark
        if data.last_stable_offset >= 0:
            state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            state.preferred_until = now + self.settings.preferred_replica_age
        if data.records is not None and len(data.records):
            self._keep(state, data, news)

    def _keep(self, state: PartitionState, data: FetchResponsePartitionData, news: FetchNews) -> None:
        assert data.records is not None
        aborted = None
        if self.settings.read_committed:
            aborted = [(item.producer_id, item.first_offset) for item in data.aborted_transactions or ()]
        try:
            chunk = Chunk.of(state, data.records, aborted)
        except (CorruptRecordError, RecordTooLargeError) as error:
            chunk = Chunk.failure(state, _in_partition(error, state))
        self.bytes_fetched += chunk.size
        self._add(chunk, news)

    def _add(self, chunk: Chunk, news: FetchNews) -> None:
        state = chunk.state
        if chunk.error is None:
            state.fetch_offset = chunk.next_offset
            state.fetch_epoch = chunk.epoch
            state.buffered += chunk.size
            self.buffered += chunk.size
        else:
            # nothing can be fetched behind it before poll has dealt with it
            state.fetching = state.version
        self._ready.append(chunk)
        news.ready = True

    def _refused(
        self, plan: FetchPlan, state: PartitionState, data: FetchResponsePartitionData, news: FetchNews, now: float
    ) -> None:
        code = data.error_code
        from_replica = state.preferred_replica is not None
        state.preferred_replica = None
        if data.current_leader.leader_id >= 0:
            news.leaders[state.tp] = (data.current_leader.leader_id, data.current_leader.leader_epoch)
        if code in _MOVED or code in _WAIT or (from_replica and code == ErrorCode.OFFSET_OUT_OF_RANGE):
            news.refresh_metadata = news.refresh_metadata or code in _MOVED or code == ErrorCode.UNKNOWN_LEADER_EPOCH
            state.retry_at = now + self.settings.retry_backoff
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._add(Chunk.failure(state, _out_of_range(state, plan.asked[state.tp][2])), news)
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error = TopicAuthorizationError(f"Not allowed to read topic {state.tp.topic!r}")
            self._add(Chunk.failure(state, error), news)
        else:
            self._add(Chunk.failure(state, _in_partition(error_for(code), state)), news)

    # ------------------------------------------------------------------ handing out

    def head(self) -> Chunk | None:
        """The first chunk that may be handed out; what nobody waits for any more is thrown away."""
        kept: list[Chunk] = []
        found: Chunk | None = None
        while self._ready:
            chunk = self._ready[0]
            if self._stale(chunk):
                self._ready.popleft()
                self.buffered -= chunk.size
            elif chunk.state.paused:
                kept.append(self._ready.popleft())
            else:
                found = chunk
                break
        self._ready.extendleft(reversed(kept))
        return found

    def _stale(self, chunk: Chunk) -> bool:
        state = chunk.state
        return state.version != chunk.version or self._subscriptions.find(state.tp) is not state

    def advance(self, chunk: Chunk, count: int) -> bool:
        """`count` records of the first chunk are handed out; moves the position behind them.

        Returns:
            Whether the chunk is used up, so that there is room to fetch more.
        """
        assert chunk.records is not None
        place = chunk.place_behind(count)
        chunk.index += count
        if chunk.index < len(chunk.records):
            chunk.state.position, chunk.state.epoch = place
            return False
        self.finish(chunk)
        return True

    def finish(self, chunk: Chunk) -> None:
        """The chunk is used up: the position is behind it, even where it ends with records that are not for users."""
        state = chunk.state
        self._ready.remove(chunk)
        self.buffered -= chunk.size
        if chunk.broken:
            self._subscriptions.seek(state.tp, chunk.next_offset, state.epoch)
        elif chunk.error is None:
            state.position = chunk.next_offset
            state.epoch = chunk.epoch
            state.buffered -= chunk.size
        elif state.fetching == chunk.version:
            state.fetching = -1

    def still_there(self, chunk: Chunk) -> bool:
        """Whether a chunk that was handed out in part has not been thrown away since."""
        return not self._stale(chunk) and chunk in self._ready

    @property
    def has_ready(self) -> bool:
        """Whether something can be handed out."""
        return any(not chunk.state.paused and not self._stale(chunk) for chunk in self._ready)

    def chunks(self) -> Iterator[Chunk]:
        """Everything that can be handed out now, in order."""
        return (chunk for chunk in list(self._ready) if not chunk.state.paused and not self._stale(chunk))

    def drop_stale(self) -> None:
        """Throw away what nobody waits for any more, to make room."""
        for chunk in [chunk for chunk in self._ready if self._stale(chunk)]:
            self._ready.remove(chunk)
            self.buffered -= chunk.size


def _out_of_range(state: PartitionState, offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"Offset {offset} of {state.tp} does not exist (any more) and auto.offset.reset is none: seek to a position, "
        "or set auto.offset.reset to earliest, latest or by_duration"
    )


def _truncated(state: PartitionState, end_offset: int) -> LogTruncationError:
    return LogTruncationError(
        f"{state.tp} was cut back to offset {end_offset}, below the consumer's position {state.fetch_offset} (unclean "
        "leader election): records were lost; seek to go on",
        partitions=[state.tp],
    )


def _in_partition(error: KafkaError, state: PartitionState) -> KafkaError:
    error.message = f"{state.tp}: {error.message}"
    return error
