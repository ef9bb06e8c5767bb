"""Finds where to begin: committed offsets, and what `auto.offset.reset` or a seek to an end leads to.

Every broker is asked by a task of its own, and what it answers is used at once: a broker that hangs delays its own
partitions only, and those just until another leads them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from kclient.cluster import topic_error
from kclient.consumer.list_offsets import Question, by_leader, no_leader
from kclient.consumer.reset import LATEST, ResetKind
from kclient.consumer.subscription import PositionState
from kclient.errors import KafkaError, NoOffsetForPartitionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.core import ConsumerCore
    from kclient.consumer.list_offsets import Answer
    from kclient.consumer.subscription import PartitionState

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")


class PositionFinder:
    """Starts a task for each question that the partitions without a valid position raise."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._snapshot: ClusterSnapshot | None = None
        self._leaderless: list[PartitionState] = []

    def start(self) -> None:
        """Ask what is due; returns at once."""
        core = self._core
        now = core.clock()
        with core.lock:
            unknown = core.subscriptions.without_position(now)
            if core.coordinator is None:
                for state in unknown:
                    self._reset(state)
                unknown = []
            attempt = object()
            for state in unknown:
                state.attempt = attempt
            questions = self._questions(core.cluster.snapshot, now)
        if unknown:
            core.spawn(self._use_committed, unknown, attempt, name="committed offsets")
        for question in questions:
            core.spawn(self._ask, question, name=f"offsets from node {question.node_id}")

    def _questions(self, snapshot: ClusterSnapshot, now: float) -> list[Question]:
        """Under the lock: what to ask which broker about the resets under way."""
        core = self._core
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._heed(snapshot)
        states = {state.tp: state for state in core.subscriptions.resetting(now)}
        if not states:
            return []
        led, leaderless = by_leader(states, snapshot)
        questions = []
        now_ms = time.time_ns() // 1_000_000
        for node_id, partitions in led.items():
            policies = {tp: states[tp].policy or core.subscriptions.default_policy for tp in partitions}
            question = Question(node_id, {tp: policy.timestamp(now_ms) for tp, policy in policies.items()})
            questions.append(question)
            for tp in partitions:
                states[tp].attempt = question
        self._leaderless = [states[tp] for tp in leaderless]
        if leaderless:
            self._later(self._leaderless, topic_error(snapshot, leaderless[0].topic) or no_leader(leaderless))
        return questions

    def _heed(self, snapshot: ClusterSnapshot) -> None:
        """There are new metadata: nobody waits for a broker that does not lead the partition any more, or for a leader
        that is known by now."""
        for state in self._leaderless:
            if snapshot.leader_id(state.tp) is not None:
                state.retry_at = 0.0
                self._core.lookups.problem = None
        for state in self._core.subscriptions:
            if isinstance(state.attempt, Question):
                leader = snapshot.leader_id(state.tp)
                if leader not in {state.attempt.node_id, None}:
                    state.attempt = None

    # ------------------------------------------------------------------ committed offsets

    async def _use_committed(self, states: list[PartitionState], attempt: object) -> None:
        """Begin at the committed offsets, or where `auto.offset.reset` says."""
        core = self._core
        try:
            found = await core.lookups.committed_once([state.tp for state in states], core.plan.default_timeout)
        except KafkaError as error:
            with core.lock:
                self._later(_of(states, attempt), error)
        else:
            with core.lock:
                for state in _of(states, attempt):
                    committed = found.get(state.tp)
                    if committed is not None:
                        core.subscriptions.found(state.tp, state.version, committed.offset, committed.leader_epoch)
                    else:
                        self._reset(state)
        self._news()

    def _reset(self, state: PartitionState) -> None:
        """Under the lock: go on where `auto.offset.reset` says."""
        core = self._core
        try:
            core.subscriptions.reset(state.tp)
        except NoOffsetForPartitionError as error:
            state.attempt = None
            state.retry_at = core.clock() + core.config.retry_backoff_ms / 1000
            core.complain(error)

    # ------------------------------------------------------------------ resets

    async def _ask(self, question: Question) -> None:
        """Ask a leader where the resets under way lead."""
        core = self._core
        states = [state for tp in question.wanted if (state := core.subscriptions.find(tp)) is not None]
        request = question.request(
            core.cluster.snapshot, read_committed=core.plan.read_committed, timeout_ms=core.config.request_timeout_ms
        )
        try:
            answer = question.read(await core.cluster.request(question.node_id, request))
        except KafkaError as error:
            core.cluster.request_update()
            with core.lock:
                self._later(_of(states, question), error)
        else:
            with core.lock:
                for state in _of(states, question):
                    self._end_reset(state, answer)
        self._news()

    def _end_reset(self, state: PartitionState, answer: Answer) -> None:
        """Under the lock: a leader answered for a partition that waits for it."""
        core = self._core
        if state.tp in answer.refused:
            self._later([state], answer.refused[state.tp])
            return
        found = answer.found[state.tp]
        if found is not None:
            state.failures = 0
            core.subscriptions.found(state.tp, state.version, found.offset, found.leader_epoch)
            logger.info("%s: begins at offset %d", state.tp, found.offset)
        elif state.policy is not None and state.policy.kind is ResetKind.BY_DURATION:
            core.subscriptions.reset(state.tp, LATEST)  # no record is that new
        else:
            self._later([state], None)

    def _later(self, states: Iterable[PartitionState], error: KafkaError | None) -> None:
        """Under the lock: ask again in a while; tell the user what asking again does not help against."""
        core = self._core
        now = core.clock()
        concerned = False
        for state in states:
            if state.state is not PositionState.VALID:
                concerned = True
                state.attempt = None
                state.failures += 1
                state.retry_at = now + core.plan.retry_backoff.seconds(state.failures)
        if error is None or not concerned:
            return
        logger.debug("finding positions: %s", error)
        core.lookups.problem = error
        if error.refresh_metadata:
            core.cluster.request_update()
        if not error.retriable:
            core.complain(error)

    def _news(self) -> None:
        core = self._core
        with core.lock:
            if all(state.state is PositionState.VALID for state in core.subscriptions):
                core.lookups.problem = None  # it is over
        core.fetch_wakeup.set()
        core.waits.changed()
        core.look()


def _of(states: list[PartitionState], attempt: object) -> list[PartitionState]:
    """Those that still wait for the attempt: not sought elsewhere, given up, or asked about at another broker."""
    return [state for state in states if state.attempt is attempt]
