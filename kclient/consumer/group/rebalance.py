"""What a rebalance has the caller of `poll` do: commit, run the listener, give partitions up, take others over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from kclient.consumer.actions import Await, Call
from kclient.consumer.group.assignors import RebalanceProtocol
from kclient.consumer.group.committer import Commit
from kclient.consumer.group.model import Complete, Prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kclient.concurrency import MomentLock
    from kclient.consumer.actions import ScriptPart, Told
    from kclient.consumer.group.auto_commit import AutoCommit
    from kclient.consumer.group.committer import Committer
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.group.metrics import GroupMetrics
    from kclient.consumer.subscription import SubscriptionState
    from kclient.consumer.waits import Waits
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


class AssignedPartitions(Protocol):
    """Who reads what the group assigns."""

    def take_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, as the group decided."""

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading some partitions."""


class Rebalance:
    """Carries out the steps of the membership. Its methods are parts of scripts, see `actions`.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: Asks for the steps.
        subscriptions: What is read now, and the listener.
        partitions: Takes partitions over, and gives them up.
        committer: Commits positions before partitions go.
        auto_commit: Whether to commit them.
        waits: End the wait for a commit.
        wake_group: Has the group's task go on.
        metrics: Are told how long rebalances take, and the listener.
        default_timeout: `default.api.timeout.ms`, in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: Membership,
        subscriptions: SubscriptionState,
        partitions: AssignedPartitions,
        committer: Committer,
        auto_commit: AutoCommit,
        waits: Waits,
        wake_group: Callable[[], None],
        metrics: GroupMetrics,
        default_timeout: float,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._member = member
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._committer = committer
        self._auto_commit = auto_commit
        self._waits = waits
        self._wake_group = wake_group
        self._metrics = metrics
        self._default_timeout = default_timeout
        self._preparing: Prepare | None = None
        self._taking: tuple[Complete, set[TopicPartition]] | None = None
        """The assignment that is being taken over, and what the consumer read before it."""

    def steps(self, deadline: float) -> ScriptPart:
        """Carry out the steps that are due; False if the time was over, and the next poll goes on.

        While one awaits, another task may unsubscribe, and assign: what is read then is none of the step's business.

        Raises:
            KafkaError: The group refused this member amid a step.
        """
        while self._subscriptions.uses_group:
            with self._lock:
                step = self._member.step()
                if step is None and self._member.outside:
                    # it ended amid a step: others may read what this poll would hand out, which has to be told first
                    self._member.polled(self._clock())
                    step = self._member.step()
            if step is None:
                return True
            if isinstance(step, Prepare):
                done = yield from self._prepare(step, deadline)
            else:
                done = yield from self._complete(step, deadline)
            if not done:
                return False
        return True

    def _prepare(self, step: Prepare, deadline: float) -> ScriptPart:
        """Before joining: commit, and give up what must not be kept."""
        subscriptions = self._subscriptions
        ended = subscriptions.ended
        if step is not self._preparing:  # else a poll goes on with it
            self._preparing = step
            self._metrics.rebalance_begins(self._clock(), anew=True)
        with self._lock:
            owned = list(subscriptions.assignment)
            going = owned
            if not step.lost and self._member.protocol is RebalanceProtocol.COOPERATIVE:
                going = [tp for tp in owned if tp.topic not in subscriptions.topics]
        if step.lost:
            self._committer.give_up_handing_over()
        elif not (yield from self._commit_positions(owned, deadline)):
            return False
        with self._lock:
            due = subscriptions.ended == ended and self._member.is_due(step)
        if not due:
            return True
        error = yield from self.give_up(sorted(going), step.lost)
        with self._lock:
            if subscriptions.ended == ended:
                self._member.prepared(step, subscriptions.assignment, self._clock())
        self._wake_group()
        if error is not None:
            raise error
        return True

    def _complete(self, step: Complete, deadline: float) -> ScriptPart:
        """After joining: take over what the group assigned."""
        subscriptions, member = self._subscriptions, self._member
        self._metrics.rebalance_begins(self._clock(), anew=False)
        ended = subscriptions.ended
        cooperative = member.protocol is RebalanceProtocol.COOPERATIVE
        with self._lock:
            if self._taking is None or self._taking[0] is not step:  # else the same step was cancelled half-way
                self._taking = (step, subscriptions.assignment)
            before = self._taking[1]
            going = sorted(subscriptions.assignment - set(step.assigned)) if cooperative else []
        gave_up = bool(before - set(step.assigned)) and cooperative
        error: Exception | None = None
        if going:
            if not (yield from self._commit_positions(going, deadline)):
                return False
            with self._lock:
                due = subscriptions.ended == ended and member.is_due(step)
                if due:
                    member.begin(step)
            if due:
                error = yield from self.give_up(going, False)
        with self._lock:  # else the membership has ended: what is kept is lost, and what was assigned never taken over
            due = subscriptions.ended == ended and member.is_due(step)
            if due:
                member.took_over(step)
        if due:
            self._partitions.take_over(step.assigned)
            try:
                member.tell_assignor(step)
                if subscriptions.listener is not None:
                    added = sorted(set(step.assigned) - before)
                    began = self._clock()
                    try:
                        yield Call(subscriptions.listener.on_partitions_assigned, (added,))
                    finally:
                        self._metrics.assigned.add((self._clock() - began) * 1000)
            except Exception as failed:  # noqa: BLE001 - raised by poll, once the rebalance is over
                error = error or failed
        with self._lock:
            self._taking = None
            if due and subscriptions.ended == ended:
                before_this = member.rebalances
                member.completed(step, gave_up=gave_up)
                if member.rebalances > before_this:
                    self._metrics.rebalance_ends(self._clock())
        self._wake_group()
        if error is not None:
            raise error
        return True

    def give_up(self, partitions: Sequence[TopicPartition], lost: bool) -> Told:
        """Tell the listener and stop reading some partitions; returns what the listener raised."""
        if not partitions:
            return None
        error: Exception | None = None
        ended = self._subscriptions.ended
        listener = self._subscriptions.listener
        if listener is not None:
            began = self._clock()
            try:
                yield Call(listener.on_partitions_lost if lost else listener.on_partitions_revoked, (partitions,))
            except Exception as failed:  # noqa: BLE001 - raised by poll, once the rebalance is over
                error = failed
            finally:
                (self._metrics.lost if lost else self._metrics.revoked).add((self._clock() - began) * 1000)
        if self._subscriptions.ended == ended:  # else these may be others of the same name
            self._partitions.drop(partitions)
        return error

    def _commit_positions(self, partitions: Sequence[TopicPartition], deadline: float) -> ScriptPart:
        """With auto commit, commit before partitions go to others; a failure is logged, as in the Java client.

        False if it is not through by the deadline: the next poll goes on waiting, as long as the group may do.
        """
        member, committer = self._member, self._committer
        commit = committer.handing_over
        if self._auto_commit.enabled and member.metadata.generation_id >= 0:
            with self._lock:
                places = self._subscriptions.consumed(partitions)
            # one that is waited for since an earlier step may be of fewer partitions, or of what was read by then
            if commit is None or not places.offsets.items() <= commit.offsets.items():
                patience = min(self._default_timeout, member.settings.max_poll_interval / 2)
                commit = Commit(places, self._clock() + patience, automatic=True) if places.offsets else None
                if commit is not None:
                    committer.put(commit)
                committer.handing_over = commit
        if commit is None:
            return True
        done: bool = yield Await(self._waits.interruptible, (committer.settled, commit, min(deadline, commit.deadline)))
        if not done and self._clock() < commit.deadline:
            return False
        committer.give_up_handing_over()
        if not done:
            logger.warning("auto commit before a rebalance was not answered in time")
        return True
