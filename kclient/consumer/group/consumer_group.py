"""The consumer's side of its group: what the user's calls and polls make of the membership."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

from kclient.arguments import shown
from kclient.consumer.actions import Await
from kclient.consumer.group.committer import Commit
from kclient.consumer.group.model import Prepare
from kclient.errors import ClosedError, KafkaError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping

    from kclient.concurrency import MomentLock
    from kclient.consumer.actions import Script, Told
    from kclient.consumer.group.auto_commit import AutoCommit
    from kclient.consumer.group.committed import CommittedLookup
    from kclient.consumer.group.committer import Committer
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.group.rebalance import Rebalance
    from kclient.consumer.interfaces import CommitCallback, RebalanceListener
    from kclient.consumer.notices import Notices
    from kclient.consumer.patterns import SubscriptionPattern
    from kclient.consumer.subscription import Places, SubscriptionState
    from kclient.consumer.waits import Waits
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")

LAST_WORDS = 0.1
"""Seconds for which even a hasty `close` waits until LeaveGroup has been sent."""


class ConsumerGroup:
    """A consumer that has a `group.id`: subscribes, commits, leaves.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: The membership.
        subscriptions: The subscription, and the positions to commit.
        committer: Commits them.
        auto_commit: When they are committed by themselves.
        committed: What was committed.
        rebalance: Carries out what the membership asks for.
        notices: Tell listeners that cannot be told at once.
        waits: End the calls that wait.
        match_pattern: Chooses the topics of a pattern from what is known of the cluster; called under the lock.
        wake_group: Has the group's task go on.
        wake_fetch: Has the fetching task go on.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: Membership,
        subscriptions: SubscriptionState,
        committer: Committer,
        auto_commit: AutoCommit,
        committed: CommittedLookup,
        rebalance: Rebalance,
        notices: Notices,
        waits: Waits,
        match_pattern: Callable[[], None],
        wake_group: Callable[[], None],
        wake_fetch: Callable[[], None],
    ) -> None:
        self.member: Membership = member
        self.committer: Committer = committer
        self.auto_commit: AutoCommit = auto_commit
        self.committed: CommittedLookup = committed
        self.rebalance: Rebalance = rebalance
        self._clock = clock
        self._lock = lock
        self._subscriptions = subscriptions
        self._notices = notices
        self._waits = waits
        self._match_pattern = match_pattern
        self._wake_group = wake_group
        self._wake_fetch = wake_fetch

    @property
    def in_use(self) -> bool:
        """Whether the group decides what is read."""
        return self._subscriptions.uses_group

    # ------------------------------------------------------------------ subscription

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None) -> None:
        """Subscribe to topics."""
        wanted = list(topics)
        with self._lock:
            self._subscriptions.subscribe(wanted)
            self._subscriptions.listener = listener
            self.member.subscribe(wanted)
        self._wake_group()
        self._wake_fetch()

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None) -> None:
        """Subscribe to all topics whose name matches."""
        if not isinstance(pattern.pattern, str):
            raise TypeError(f"topics are matched by a pattern of text, not of bytes: {shown(pattern)}")
        with self._lock:
            self._subscriptions.subscribe_pattern(pattern)
            self._subscriptions.listener = listener
            self._match_pattern()
            self.member.subscribe(self._subscriptions.topics, by_pattern=True)
        self._wake_group()
        self._wake_fetch()

    def subscribe_remotely(self, pattern: SubscriptionPattern, listener: RebalanceListener | None) -> None:
        """Subscribe to all topics that match in the broker's eyes.

        Raises:
            IllegalStateError: Brokers evaluate no patterns in this protocol.
        """
        with self._lock:
            self.member.check_remote_patterns()
            self._subscriptions.subscribe_remotely()
            self._subscriptions.listener = listener
            self.member.subscribe_remotely(pattern.pattern)
        self._wake_group()
        self._wake_fetch()

    def owned(self) -> tuple[list[TopicPartition], bool]:
        """The partitions that the group gave, and whether they are others' by now."""
        with self._lock:
            step = self.member.step()
            lost = self.member.metadata.generation_id < 0 or (isinstance(step, Prepare) and step.lost)
            return sorted(self._subscriptions.assignment), lost

    def enforce_rebalance(self, reason: str) -> None:
        """Have the group rebalance with the next poll."""
        with self._lock:
            self.member.request_rejoin(reason)
        self._wake_group()

    # ------------------------------------------------------------------ polling

    @property
    def needs_poll(self) -> bool:
        """Under the lock: whether poll has something to do for the group."""
        return self.in_use and (self.member.step() is not None or self.member.error is not None)

    def polled(self, now: float) -> None:
        """Under the lock: the user polls.

        Raises:
            KafkaError: The group refused this member.
        """
        if not self.in_use:
            return
        outside = self.member.outside
        self.member.polled(now)
        if outside and not self.member.outside:
            self._wake_group()

    def commit_if_due(self, now: float) -> None:
        """Under the lock: the user polls, so the positions may be committed, in the background."""
        if not self.auto_commit.polled(now) or self.committer.busy or self._absent:
            return
        places = self._subscriptions.consumed()
        if places.offsets:
            self.committer.put(Commit(places, deadline=now, automatic=True))

    def wait_in_poll(self, begins: bool) -> None:
        """The user begins to wait inside poll, or ends it: `max.poll.interval.ms` does not count that time."""
        with self._lock:
            self.member.wait_in_poll(begins, self._clock())

    # ------------------------------------------------------------------ commits

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, timeout: float) -> Script:
        """Commit given offsets, or the positions, and wait for it."""
        yield Await(self._waits.interruptible, (self.committer.commit, self._to_commit(offsets), timeout))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, callback: CommitCallback | None
    ) -> None:
        """Commit in the background, once."""
        self.committer.put(Commit(self._to_commit(offsets), self._clock(), callback))

    def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """What is committed by default from now on."""
        with self._lock:
            self._subscriptions.store(offsets)

    def _to_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> Places:
        with self._lock:
            return self._subscriptions.consumed() if offsets is None else self._subscriptions.given(offsets)

    @property
    def _absent(self) -> bool:
        """Whether there is a subscription, and no membership to commit in."""
        return self.in_use and self.member.metadata.generation_id < 0

    def commit_at_last(self, deadline: float) -> Script:
        """With auto commit, commit the positions before the consumer closes."""
        if not self.auto_commit.enabled or self._absent:
            return
        places = self._to_commit(None)
        if not places.offsets:
            return
        commit = Commit(places, deadline, automatic=True)
        self.committer.put(commit)
        done: bool = yield Await(self.committer.settled, (commit, deadline))
        if not done or isinstance(commit.done.error, ClosedError):
            logger.warning("the positions of %d partitions were not committed in time by close", len(places.offsets))

    def warn_of_positions(self) -> None:
        """With auto commit, say that nobody is left who could commit the positions."""
        if self.auto_commit.enabled and (offsets := self._to_commit(None).offsets):
            logger.warning("the positions of %d partitions were not committed: the tasks had ended", len(offsets))

    # ------------------------------------------------------------------ leaving

    def leave(self, reason: str, tell: bool | None = None) -> None:
        """Be no member any more; the coordinator is told in the background, see `Membership.leave`."""
        with self._lock:
            self.member.leave(reason, tell)
        self._wake_group()

    def depart(self, reason: str, timeout: float, unsubscribe: Callable[[], None], tell: bool | None = None) -> Told:
        """Give the partitions up, leave, and wait until the coordinator knows; returns what the listener raised.

        Nothing is awaited between leaving the group and unsubscribing: who is cancelled has done both, or neither.
        """
        self.committer.give_up_handing_over()
        error: Exception | None = None
        if self.in_use:
            ended = self._subscriptions.ended
            error = yield from self.rebalance.give_up(*self.owned())
            if self._subscriptions.ended == ended:  # else another task has done it meanwhile
                self.leave(reason, tell)
                unsubscribe()
        else:
            unsubscribe()
        if self.member.leaving:  # also by an earlier call that has not waited
            yield Await(self.left, (timeout,))
        return error

    def depart_at_once(self) -> Callable[[], None]:
        """As `depart`, without waiting for the coordinator to know; returns what tells the listener afterwards."""
        listener = self._subscriptions.listener
        partitions, lost = self.owned() if self.in_use else ([], False)
        self.committer.give_up_handing_over()
        self.leave("the consumer unsubscribed")

        def tell_listener() -> None:
            if listener is None or not partitions:
                return
            tell = listener.on_partitions_lost if lost else listener.on_partitions_revoked
            if inspect.iscoroutinefunction(tell):
                self._notices.add(tell, partitions)
            else:
                tell(partitions)

        return tell_listener

    async def left(self, timeout: float) -> None:
        """Wait until the coordinator knows that this member left, or the time is over."""
        try:
            await self._waits.until(lambda: not self.member.leaving, max(timeout, LAST_WORDS), "Leaving the group")
        except KafkaError as error:
            logger.info("%s", error)
