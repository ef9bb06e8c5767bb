"""Finds where to begin: committed offsets, and what `auto.offset.reset` or a seek to an end leads to.

Every broker is asked by a task of its own, and what it answers is used at once: a broker that hangs delays its own
partitions only, and those just until another leads them.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kclient.cluster import topic_error
from kclient.consumer.fetch.buffer import deleted_position
from kclient.consumer.fetch.list_offsets import Question, by_leader, no_leader
from kclient.consumer.partition_state import PositionState
from kclient.consumer.reset import LATEST, ResetKind
from kclient.errors import KafkaError, NoOffsetForPartitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.cluster import Cluster, ClusterSnapshot
    from kclient.concurrency import MomentLock
    from kclient.consumer.attempts import Attempts
    from kclient.consumer.fetch.list_offsets import OffsetAnswer
    from kclient.consumer.notices import PendingErrors
    from kclient.consumer.partition_state import PartitionState
    from kclient.consumer.subscription import SubscriptionState
    from kclient.consumer.tasks import BackgroundTasks
    from kclient.consumer.waits import Waits
    from kclient.errors import KafkaTimeoutError
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")


class CommittedSource(Protocol):
    """Whom to ask for committed offsets."""

    async def fetch_once(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
        """One attempt to have the committed offsets, or why one is not told; None where there is none."""

    def unanswered(self) -> str:
        """Who is asked, as one that does not answer; empty where nobody is known."""


class PositionFinder:
    """Starts a task for each question that the partitions without a valid position raise.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        check: Raises if the consumer failed, or is not open.
        subscriptions: The partitions.
        errors: What poll is to raise.
        cluster: Knows and asks the leaders.
        committed: Knows the committed offsets; None without a group.
        tasks: Run the questions.
        waits: Are told of progress, and end the calls that wait.
        attempts: Says why a call is late.
        on_progress: Called when positions were found, or were not.
        default_timeout: `default.api.timeout.ms`, in seconds.
        read_committed: Whether the end of a partition is its last stable offset.
        rebalancing: Whether partitions that were given up may come back; called under the lock.
        request_timeout_ms: `request.timeout.ms`.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        check: Callable[[], None],
        subscriptions: SubscriptionState,
        errors: PendingErrors,
        cluster: Cluster,
        committed: CommittedSource | None,
        tasks: BackgroundTasks,
        waits: Waits,
        attempts: Attempts,
        on_progress: Callable[[], None],
        default_timeout: float,
        read_committed: bool,
        rebalancing: Callable[[], bool],
        request_timeout_ms: int,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._check = check
        self._subscriptions = subscriptions
        self._errors = errors
        self._cluster = cluster
        self._committed = committed
        self._tasks = tasks
        self._waits = waits
        self._late = attempts.late
        self._on_progress = on_progress
        self._default_timeout = default_timeout
        self._read_committed = read_committed
        self._rebalancing = rebalancing
        self._request_timeout_ms = request_timeout_ms
        self._problem: KafkaError | None = None
        """What last kept positions from being found, for the text of errors."""
        self._snapshot: ClusterSnapshot | None = None
        self._leaderless: list[PartitionState] = []

    # ------------------------------------------------------------------ who waits for one

    async def position(self, tp: TopicPartition, timeout: float) -> int:
        """The position in a partition, once it is known; a rebalance may take it away meanwhile, and give it back.

        Raises:
            KafkaTimeoutError: It did not become known in time.
        """

        assigned = False

        def known() -> bool:
            nonlocal assigned
            with self._lock:
                if self._subscriptions.find(tp) is None:
                    self._check()  # who closes has given it up
                    if assigned and self._rebalancing():
                        return False
                state = self._subscriptions.state(tp)
                assigned = True
                if state.state is PositionState.OUTDATED:
                    raise deleted_position(state)
                if state.to_find:
                    self._errors.raise_first()
                return not state.to_find

        late = partial(self._late_position, tp)
        await self._waits.until(known, timeout, f"Finding the position in {tp}", late)
        return self._subscriptions.state(tp).position

    def _late_position(self, tp: TopicPartition, what: str, timeout: float) -> KafkaTimeoutError:
        with self._lock:
            state = self._subscriptions.find(tp)
        attempt = None if state is None else state.attempt
        unanswered = ""
        if isinstance(attempt, Question):
            unanswered = self._cluster.unanswered([attempt.node_id])
        elif attempt is not None and self._committed is not None:
            unanswered = self._committed.unanswered()
        return self._late(what, timeout, self._problem, unanswered)

    # ------------------------------------------------------------------ asking

    def start(self) -> None:
        """Ask what is due; returns at once."""
        now = self._clock()
        with self._lock:
            unknown = self._subscriptions.without_position(now)
            if self._committed is None:
                for state in unknown:
                    self._reset(state)
                unknown = []
            attempt = object()
            for state in unknown:
                state.attempt = attempt
            questions = self._questions(self._cluster.snapshot, now)
        if unknown:
            self._tasks.spawn(self._use_committed, self._committed, unknown, attempt, name="committed offsets")
        for question in questions:
            self._tasks.spawn(self._ask, question, name=f"offsets from node {question.node_id}")

    def _questions(self, snapshot: ClusterSnapshot, now: float) -> list[Question]:
        """Under the lock: what to ask which broker about the resets under way."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._heed(snapshot)
        states = {state.tp: state for state in self._subscriptions.resetting(now)}
        if not states:
            return []
        led, leaderless = by_leader(states, snapshot)
        questions = []
        now_ms = time.time_ns() // 1_000_000
        for node_id, partitions in led.items():
            policies = {tp: states[tp].policy or self._subscriptions.default_policy for tp in partitions}
            question = Question(node_id, {tp: policy.timestamp(now_ms) for tp, policy in policies.items()})
            questions.append(question)
            for tp in partitions:
                states[tp].attempt = question
        self._leaderless = [states[tp] for tp in leaderless]
        if leaderless:
            self._later(self._leaderless, topic_error(snapshot, leaderless[0].topic) or no_leader(leaderless))
            self._cluster.ask_anew({tp.topic for tp in leaderless})
        return questions

    def _heed(self, snapshot: ClusterSnapshot) -> None:
        """There are new metadata: nobody waits for a broker that does not lead the partition any more, or for a leader
        that is known by now."""
        for state in self._leaderless:
            if snapshot.leader_id(state.tp) is not None:
                state.retry_at = 0.0
                self._problem = None
        for state in self._subscriptions:
            if isinstance(state.attempt, Question):
                leader = snapshot.leader_id(state.tp)
                if leader not in {state.attempt.node_id, None}:
                    state.attempt = None

    # ------------------------------------------------------------------ committed offsets

    async def _use_committed(self, committed: CommittedSource, states: list[PartitionState], attempt: object) -> None:
        """Begin at the committed offsets, or where `auto.offset.reset` says."""
        try:
            found = await committed.fetch_once([state.tp for state in states], self._default_timeout)
        except KafkaError as error:
            with self._lock:
                self._later(_of(states, attempt), error)
        else:
            with self._lock:
                for state in _of(states, attempt):
                    offset = found.get(state.tp)
                    if isinstance(offset, KafkaError):
                        self._later([state], offset)
                    elif offset is not None:
                        self._subscriptions.found(state.tp, state.version, offset.offset, offset.leader_epoch)
                    else:
                        self._reset(state)
        self._progress()

    def _reset(self, state: PartitionState) -> None:
        """Under the lock: go on where `auto.offset.reset` says."""
        try:
            self._subscriptions.reset(state.tp)
        except NoOffsetForPartitionError as error:
            state.attempt = None
            state.retry_at = self._clock() + self._cluster.retry_backoff.seconds(1)
            self._errors.add(error)

    # ------------------------------------------------------------------ resets

    async def _ask(self, question: Question) -> None:
        """Ask a leader where the resets under way lead."""
        states = [state for tp in question.wanted if (state := self._subscriptions.find(tp)) is not None]
        request = question.request(
            self._cluster.snapshot, read_committed=self._read_committed, timeout_ms=self._request_timeout_ms
        )
        try:
            answer = question.read(await self._cluster.request(question.node_id, request))
        except KafkaError as error:
            self._cluster.request_update()
            with self._lock:
                self._later(_of(states, question), error)
        else:
            with self._lock:
                for state in _of(states, question):
                    self._end_reset(state, answer)
        self._progress()

    def _end_reset(self, state: PartitionState, answer: OffsetAnswer) -> None:
        """Under the lock: a leader answered for a partition that waits for it."""
        if state.tp in answer.refused:
            self._later([state], answer.refused[state.tp])
            return
        found = answer.found[state.tp]
        if found is not None:
            state.failures = 0
            self._subscriptions.found(state.tp, state.version, found.offset, found.leader_epoch)
            logger.info("%s: begins at offset %d", state.tp, found.offset)
        elif state.policy is not None and state.policy.kind is ResetKind.BY_DURATION:
            self._subscriptions.reset(state.tp, LATEST)  # no record is that new
        else:
            self._later([state], None)

    def _later(self, states: Iterable[PartitionState], error: KafkaError | None) -> None:
        """Under the lock: ask again in a while; tell the user what asking again does not help against."""
        now = self._clock()
        concerned = False
        for state in states:
            if state.to_find:
                concerned = True
                state.attempt = None
                state.failures += 1
                state.retry_at = now + self._cluster.retry_backoff.seconds(state.failures)
        if error is None or not concerned:
            return
        logger.debug("finding positions: %s", error)
        self._problem = error
        if error.refresh_metadata:
            self._cluster.request_update()
        if not error.retriable:
            self._errors.add(error)

    def _progress(self) -> None:
        with self._lock:
            if not any(state.to_find for state in self._subscriptions):
                self._problem = None  # it is over
        self._on_progress()


def _of(states: list[PartitionState], attempt: object) -> list[PartitionState]:
    """Those that still wait for the attempt: not sought elsewhere, given up, or asked about at another broker."""
    return [state for state in states if state.attempt is attempt]
