"""The calls that wait, as generators: they say what to wait for or to call, and the faces do it.

The async face awaits the actions, the blocking one carries them out in the caller's thread, so there is one
definition of what `poll`, `unsubscribe` and `close` do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.consumer.assignors import RebalanceProtocol
from kclient.consumer.group import Complete, Prepare
from kclient.consumer.subscription import SubscriptionKind
from kclient.errors import KafkaError

if TYPE_CHECKING:
    from kclient.consumer.core import ConsumerCore
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


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
class CommitNow:
    """Commit and wait for it."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    timeout: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait for asynchronous commits that are under way."""

    timeout: float


@dataclass(frozen=True, slots=True)
class Left:
    """Wait until the coordinator knows that the member left."""

    timeout: float


Action: TypeAlias = Wait | Call | CommitNow | Drain | Left
Script: TypeAlias = Generator[Action, Any, Any]


def poll(core: ConsumerCore, deadline: float, take: Callable[[], Any]) -> Script:
    """Do what the group needs, then return what `take` gives; None if there is nothing until `deadline`."""
    core.metrics.polls += 1
    while True:
        core.check(polling=True)
        core.take_wakeup()
        core.polled()
        yield from rebalance(core)
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


def rebalance(core: ConsumerCore) -> Script:
    """Carry out the steps that the coordinator asks for."""
    while core.coordinator is not None and core.subscriptions.uses_group:
        with core.lock:
            step = core.coordinator.step()
        if step is None:
            return
        if isinstance(step, Prepare):
            yield from _prepare(core, step)
        else:
            yield from _complete(core, step)


def _prepare(core: ConsumerCore, step: Prepare) -> Script:
    """Before joining: commit, and give up what must not be kept."""
    coordinator = core.group()
    with core.lock:
        owned = list(core.subscriptions.assignment)
        going = owned
        if not step.lost and coordinator.protocol is RebalanceProtocol.COOPERATIVE:
            going = [tp for tp in owned if tp.topic not in core.subscriptions.topics]
    if not step.lost:
        yield from _commit_positions(core)
    error = yield from _give_up(core, sorted(going), lost=step.lost)
    with core.lock:
        coordinator.prepared(core.subscriptions.assignment, core.clock())
    core.wake()
    if error is not None:
        raise error


def _complete(core: ConsumerCore, step: Complete) -> Script:
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
        yield from _commit_positions(core, going)
        error = yield from _give_up(core, going, lost=False)
    with core.lock:
        core.subscriptions.assign_from_group(step.assigned)
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


def _give_up(
    core: ConsumerCore, partitions: Sequence[TopicPartition], *, lost: bool
) -> Generator[Action, Any, Exception | None]:
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


def _commit_positions(core: ConsumerCore, partitions: Sequence[TopicPartition] | None = None) -> Script:
    """With auto commit, commit before partitions go to others; a failure is logged, as in the Java client."""
    if not core.auto_commit.enabled:
        return
    offsets = core.consumed(partitions)
    if not offsets or core.group().metadata.generation_id < 0:
        return
    timeout = min(core.plan.default_timeout, core.group().settings.max_poll_interval / 2)
    try:
        yield CommitNow(offsets, timeout)
    except KafkaError as error:
        logger.warning("committing before a rebalance failed: %s", error)


def run_callbacks(core: ConsumerCore) -> Script:
    """Call the callbacks of asynchronous commits that are through."""
    while core.callbacks:
        callback, offsets, error = core.callbacks.popleft()
        yield Call(callback, (offsets, error))


def unsubscribe(core: ConsumerCore, reason: str = "the consumer unsubscribed", timeout: float = 5.0) -> Script:
    """Give everything up and leave the group."""
    error: Exception | None = None
    if core.coordinator is not None and core.subscriptions.uses_group:
        with core.lock:
            step = core.coordinator.step()
            lost = core.coordinator.metadata.generation_id < 0 or (isinstance(step, Prepare) and step.lost)
            owned = sorted(core.subscriptions.assignment)
        error = yield from _give_up(core, owned, lost=lost)
        with core.lock:
            core.coordinator.leave(reason)
        core.group_wakeup.set()
        yield Left(timeout)
    with core.lock:
        core.subscriptions.unsubscribe()
        core.moved()
        core.listener = None
        core.errors.clear()
    core.wake()
    if error is not None:
        raise error


def commit(core: ConsumerCore, offsets: dict[TopicPartition, OffsetAndMetadata] | None, timeout: float) -> Script:
    """Commit given offsets, or the positions."""
    core.check()
    core.group()
    yield CommitNow(core.consumed() if offsets is None else offsets, timeout)
    yield from run_callbacks(core)


def close(core: ConsumerCore, timeout: float) -> Script:
    """Commit, leave the group, run what callbacks are due."""
    deadline = core.clock() + timeout
    if core.coordinator is not None:
        if timeout > 0:
            yield Drain(timeout)
            if core.auto_commit.enabled and core.subscriptions.kind is not SubscriptionKind.NONE:
                yield from _commit_at_last(core, max(deadline - core.clock(), 0))
        yield from unsubscribe(core, "the consumer was closed", max(deadline - core.clock(), 0))
        yield from run_callbacks(core)


def _commit_at_last(core: ConsumerCore, timeout: float) -> Script:
    if core.subscriptions.uses_group and core.group().metadata.generation_id < 0:
        return
    offsets = core.consumed()
    if not offsets:
        return
    try:
        yield CommitNow(offsets, timeout)
    except KafkaError as error:
        logger.warning("committing before closing failed: %s", error)
