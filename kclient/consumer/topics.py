"""Which topics a consumer wants metadata of, and what it makes of those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.cluster import topic_error
from kclient.consumer.subscription import SubscriptionKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock
    from kclient.consumer.fetch.control import FetchControl
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.notices import UnreadableTopics
    from kclient.consumer.subscription import SubscriptionState


class TopicWatch:
    """Follows the metadata of the topics that are subscribed to or read.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        subscriptions: The topics.
        member: The membership in the group, which has the topics of others too where it leads; None without a group.
        control: Is told of topics that were created again.
        unreadable: Is told what the cluster says of them.
        cluster: Has the metadata.
        exclude_internal: Whether patterns leave internal topics out (`exclude.internal.topics`).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        subscriptions: SubscriptionState,
        member: Membership | None,
        control: FetchControl,
        unreadable: UnreadableTopics,
        cluster: Cluster,
        exclude_internal: bool,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._subscriptions = subscriptions
        self._member = member
        self._control = control
        self._unreadable = unreadable
        self._cluster = cluster
        self._exclude_internal = exclude_internal

    def of_interest(self) -> set[str]:
        """The topics whose metadata are needed."""
        with self._lock:
            topics = self._used()
            if self._member is not None:
                topics |= self._member.group_topics
        return topics

    def _used(self) -> set[str]:
        return {*self._subscriptions.topics, *(state.tp.topic for state in self._subscriptions)}

    def update(self) -> None:
        """There are new metadata."""
        snapshot = self._cluster.snapshot
        now = self._clock()
        with self._lock:
            self._control.recognise_topics()
            if self._subscriptions.kind is SubscriptionKind.PATTERN:
                self.match_pattern()
            if self._member is not None:
                counts = {name: len(topic.partitions) for name, topic in snapshot.topics.items() if topic.counted}
                unusable = snapshot.errors.keys() | (snapshot.topics.keys() - counts.keys())
                self._member.update_metadata(counts, unusable, now, snapshot.racks)
            for topic in self._used():
                self._unreadable.heed(topic, topic_error(snapshot, topic))

    def match_pattern(self) -> None:
        """Under the lock: choose the topics by the pattern, from what is known of the cluster."""
        found = self._cluster.snapshot.topics.items()
        names = [name for name, topic in found if not (self._exclude_internal and topic.is_internal)]
        if self._subscriptions.match(names) and self._member is not None:
            self._member.subscribe(self._subscriptions.topics, by_pattern=True)
