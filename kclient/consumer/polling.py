"""The calls that wait, as generators: they say what to wait for or to call, and the faces do it.

The async face awaits the actions, the blocking one carries them out in the caller's thread, so there is one
definition of what `poll`, `unsubscribe` and `close` do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.cluster import ClientState
from kclient.consumer.assignors import RebalanceProtocol
from kclient.consumer.committer import Commit
from kclient.consumer.group import Complete, Prepare
from kclient.consumer.subscription import SubscriptionKind
from kclient.errors import ClosedError

if TYPE_CHECKING:
    from kclient.consumer.core import ConsumerCore
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


_LEAVE_PATIENCE = 1.0
"""Seconds that `unsubscribe` waits for the coordinator to know; then it goes on without."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `core.notify` is called."""

    until: float
    """At most until this time (monotonic, in seconds)."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the user's, and await what it returns if that can be awaited."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Await:
    """Await a coroutine function of the core."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    arguments: tuple[Any, ...] = ()


Action: TypeAlias = Wait | Call | Await
Script: TypeAlias = Generator[Action, Any, Any]
Steps: TypeAlias = Generator[Action, Any, bool]
"""Part of a script; says whether it is done, or was out of time."""
Told: TypeAlias = Generator[Action, Any, Exception | None]
"""Part of a script that calls the user's code; gives what that raised."""


def poll(core: ConsumerCore, deadline: float, take: Callable[[], Any]) -> Script:
    """Do what the group needs, then return what `take` gives; None if there is nothing until `deadline`."""
    core.metrics.polls += 1
    while True:
        core.check(polling=True)
        core.waits.take_wakeup()
        core.polled()
        if not (yield from rebalance(core, deadline)):
            return None
        yield from run_callbacks(core)
        taken = take()
        if core.attention or not taken:
            core.look()
        if taken:
            return taken
        if core.clock() >= deadline:
            return None
        core.waiting(True)
        try:
            yield Wait(deadline)
        finally:
            core.waiting(False)


def rebalance(core: ConsumerCore, deadline: float) -> Steps:
    """Carry out the steps that the coordinator asks for; False if the time was over, and the next poll goes on."""
    while core.coordinator is not None and core.subscriptions.uses_group:
        with core.lock:
            step = core.coordinator.step()
        if step is None:
            return True
        if isinstance(step, Prepare):
            done = yield from _prepare(core, step, deadline)
        else:
            done = yield from _complete(core, step, deadline)
        if not done:
            return False
    return True


def _prepare(core: ConsumerCore, step: Prepare, deadline: float) -> Steps:
    """Before joining: commit, and give up what must not be kept."""
    coordinator = core.group()
    with core.lock:
        owned = list(core.subscriptions.assignment)
        going = owned
        if not step.lost and coordinator.protocol is RebalanceProtocol.COOPERATIVE:
            going = [tp for tp in owned if tp.topic not in core.subscriptions.topics]
    if step.lost:
        core.committer.give_up_handing_over()
    elif not (yield from _commit_positions(core, owned, deadline)):
        return False
    error = yield from _give_up(core, sorted(going), step.lost)
    with core.lock:
        coordinator.prepared(core.subscriptions.assignment, core.clock())
    core.wake()
    if error is not None:
        raise error
    return True


def _complete(core: ConsumerCore, step: Complete, deadline: float) -> Steps:
    """After joining: take over what the group assigned."""
    coordinator = core.group()
    cooperative = coordinator.protocol is RebalanceProtocol.COOPERATIVE
    with core.lock:
        if core.taking is None or core.taking[0] is not step:  # else the same step was cancelled half-way
            core.taking = (step, core.subscriptions.assignment)
        before = core.taking[1]
        going = sorted(core.subscriptions.assignment - set(step.assigned)) if cooperative else []
    gave_up = bool(before - set(step.assigned)) and cooperative
    error: Exception | None = None
    if going:
        if not (yield from _commit_positions(core, going, deadline)):
            return False
        error = yield from _give_up(core, going, False)
    with core.lock:
        core.subscriptions.assign_from_group(step.assigned)
        core.assigned()
    core.wake()
    try:
        coordinator.assignor(step.protocol).on_assignment(step.assigned, step.user_data, step.generation_id)
        if core.listener is not None:
            added = sorted(set(step.assigned) - before)
            yield Call(core.listener.on_partitions_assigned, (added,))
    except Exception as failed:  # noqa: BLE001 - raised by poll, once the rebalance is over
        error = error or failed
    with core.lock:
        core.taking = None
        coordinator.completed(step, gave_up=gave_up)
    core.group_wakeup.set()
    if error is not None:
        raise error
    return True


def _give_up(core: ConsumerCore, partitions: Sequence[TopicPartition], lost: bool) -> Told:
    """Tell the listener and stop reading some partitions; returns what the listener raised."""
    if not partitions:
        return None
    error: Exception | None = None
    listener = core.listener
    if listener is not None:
        try:
            yield Call(listener.on_partitions_lost if lost else listener.on_partitions_revoked, (partitions,))
        except Exception as failed:  # noqa: BLE001 - raised by poll, once the rebalance is over
            error = failed
    with core.lock:
        core.subscriptions.drop(partitions)
        core.moved()
    return error


def _commit_positions(core: ConsumerCore, partitions: Sequence[TopicPartition], deadline: float) -> Steps:
    """With auto commit, commit before partitions go to others; a failure is logged, as in the Java client.

    False if it is not through by the deadline: the next poll goes on waiting, as long as the group may do.
    """
    committer = core.committer
    commit = committer.handing_over
    if commit is None:
        if not core.auto_commit.enabled or core.group().metadata.generation_id < 0:
            return True
        places = core.consumed(partitions)
        if not places.offsets:
            return True
        patience = min(core.plan.default_timeout, core.group().settings.max_poll_interval / 2)
        commit = Commit(places, core.clock() + patience, automatic=True)
        committer.put(commit)
        committer.handing_over = commit
    done: bool = yield Await(core.waits.interruptible, (core.settled, commit, min(deadline, commit.deadline)))
    if not done and core.clock() < commit.deadline:
        return False
    committer.give_up_handing_over()
    if not done:
        logger.warning("auto commit before a rebalance was not answered in time")
    return True


def run_callbacks(core: ConsumerCore) -> Script:
    """Tell callbacks, interceptors and listeners what happened in the background."""
    error = yield from _tell(core)
    if error is not None:
        raise error


def _tell(core: ConsumerCore) -> Told:
    """As `run_callbacks`. While the consumer closes all are called, and the first error is returned.

    Nothing while one of them runs: it may commit or close, and what comes of that is told after it.
    """
    notices = core.notices
    if notices.telling:
        return None
    notices.telling = True
    error: Exception | None = None
    try:
        # no more than there are now: callbacks that commit would keep poll for ever
        left = len(notices.due)
        while notices.due and (left > 0 or core.state is not ClientState.RUNNING):
            left -= 1
            function, arguments = notices.due.popleft()
            try:
                yield Call(function, arguments)
            except Exception as failed:
                if core.state is ClientState.RUNNING:
                    raise
                if not (core.state is ClientState.CLOSED and isinstance(failed, ClosedError)):  # it has been told that
                    error = error or failed
    finally:
        notices.telling = False
        if core.state is ClientState.CLOSED:
            notices.close_plugins()
    return error


def unsubscribe(
    core: ConsumerCore, reason: str = "the consumer unsubscribed", timeout: float = _LEAVE_PATIENCE
) -> Script:
    """Give everything up and leave the group."""
    error: Exception | None = None
    core.committer.give_up_handing_over()
    if core.coordinator is not None and core.subscriptions.uses_group:
        error = yield from _give_up(core, *core.owned())
        core.leave(reason)
        yield Await(core.left, (timeout,))
    core.unsubscribe()
    if error is not None:
        raise error


def commit(core: ConsumerCore, offsets: dict[TopicPartition, OffsetAndMetadata] | None, timeout: float) -> Script:
    """Commit given offsets, or the positions."""
    core.check()
    core.group()
    yield Await(core.waits.interruptible, (core.committer.commit, core.to_commit(offsets), timeout))
    yield from run_callbacks(core)


def close(core: ConsumerCore, timeout: float) -> Script:
    """Commit, leave the group, end the tasks, and tell what is due: also of the commits that this gives up."""
    error: Exception | None = None
    try:
        if core.coordinator is not None:
            error = yield from _depart(core, timeout)
    finally:
        try:
            yield Await(core.shut)
        finally:
            failed = yield from _tell(core)
            error = error or failed
    if error is not None:
        raise error


def _depart(core: ConsumerCore, timeout: float) -> Told:
    """Commit and leave the group; returns what a callback raised."""
    deadline = core.clock() + timeout
    error: Exception | None = None
    if not core.supervisor.running:
        deadline, timeout = core.clock(), 0  # the tasks that would talk to brokers have ended
        if core.auto_commit.enabled and (offsets := core.consumed().offsets):
            logger.warning("the positions of %d partitions were not committed: the tasks had ended", len(offsets))
    if timeout > 0:
        yield Await(core.drained, (timeout,))
        error = yield from _tell(core)
        if core.committer.busy:  # by a callback
            yield Await(core.drained, (max(deadline - core.clock(), 0),))
        if core.auto_commit.enabled and core.subscriptions.kind is not SubscriptionKind.NONE:
            yield from _commit_at_last(core, deadline)
    yield from unsubscribe(core, "the consumer was closed", max(deadline - core.clock(), 0))
    return error


def _commit_at_last(core: ConsumerCore, deadline: float) -> Script:
    if core.subscriptions.uses_group and core.group().metadata.generation_id < 0:
        return
    places = core.consumed()
    if not places.offsets:
        return
    commit = Commit(places, deadline, automatic=True)
    core.committer.put(commit)
    done: bool = yield Await(core.settled, (commit, deadline))
    if not done or isinstance(commit.done.error, ClosedError):
        logger.warning("the positions of %d partitions were not committed in time by close", len(places.offsets))
