"""The group's coordinator, as the calls want it that have something to ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.group.model import ConsumerGroupMetadata
    from kclient.consumer.subscription import SubscriptionState
    from kclient.consumer.waits import Waits
    from kclient.errors import KafkaError
    from kclient.types import TopicPartition

CHANNEL = "coordinator"
"""Heartbeats and commits have a connection of their own: brokers answer a connection in order."""


class CoordinatorAccess:
    """Finds the coordinator for calls that wait for it, and takes in how it did.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: Looks it up.
        subscriptions: Tell whether a poll will raise why there is none.
        cluster: Knows who does not answer.
        waits: The calls that wait.
        wake_group: Has the group's task send what is due.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: Membership,
        subscriptions: SubscriptionState,
        cluster: Cluster,
        waits: Waits,
        wake_group: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._member = member
        self._subscriptions = subscriptions
        self._cluster = cluster
        self._waits = waits
        self._wake_group = wake_group

    async def node(self, timeout: float) -> int:
        """Its node id, once it is known.

        Raises:
            KafkaTimeoutError: None was found in time.
            GroupAuthorizationError: The group must not be used.
        """
        member = self._member
        with self._lock:
            member.want_coordinator()
        self._wake_group()
        await self._waits.until(self._known, timeout, f"Finding the coordinator of group {member.settings.group_id!r}")
        found = member.coordinator
        assert found is not None
        return found

    def _known(self) -> bool:
        member = self._member
        with self._lock:
            if member.error is not None and not self._subscriptions.uses_group:
                raise member.take_error()
            if member.coordinator is None and member.error is not None:
                raise member.error  # it stays so until the next poll, which raises it too
            return member.coordinator is not None

    def failed(self, reason: str, epoch: int) -> None:
        """The coordinator of that `lookup.epoch` did not do what it was asked: look it up again."""
        with self._lock:
            self._member.lose_coordinator(reason, self._clock(), epoch)
        self._wake_group()

    def answered(self, epoch: int) -> None:
        """The coordinator of that `lookup.epoch` did what it was asked."""
        with self._lock:
            self._member.lookup.answered(epoch)

    def commit_refused(
        self, code: int, identity: ConsumerGroupMetadata, epoch: int, partitions: Collection[TopicPartition]
    ) -> KafkaError:
        """A commit was answered with an error code: what to raise, see `Membership.commit_refused`."""
        with self._lock:
            error = self._member.commit_refused(code, identity, epoch, self._clock(), partitions)
        self._wake_group()
        return error

    def unanswered(self) -> str:
        """The coordinator, as one that does not answer; empty where none is known."""
        node = self._member.coordinator
        return "" if node is None else self._cluster.unanswered([node], CHANNEL)
