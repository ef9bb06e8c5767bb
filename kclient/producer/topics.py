"""How many partitions topics have, and the wait for those that are not known yet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import anyio

from kclient.arguments import check_topic, in_seconds, shown
from kclient.cluster import topic_error, what_lacks
from kclient.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kclient.cluster import Cluster, ClusterSnapshot, TopicMetadata
    from kclient.types import PartitionInfo


def _usable(topic: TopicMetadata) -> bool:
    """Whether it is known how many partitions there are to choose from."""
    return bool(topic.partitions) and topic.counted


class KnownTopics:
    """The number of each topic's partitions, as appends go by it. Any thread may read."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Replaced as a whole, never changed."""

    def update(self, snapshot: ClusterSnapshot) -> None:
        """Go by new metadata from now on."""
        self.counts = {name: len(topic.partitions) for name, topic in snapshot.topics.items() if _usable(topic)}

    def forget(self) -> None:
        """Know nothing any more, so that every append asks whether the producer takes records."""
        self.counts = {}


class TopicLoader:
    """Waits for topics in the loop.

    Args:
        cluster: Fetches metadata.
        topics: Is updated when metadata come.
        check: Raises where the producer has failed or was closed.
        max_block: Seconds within which a topic has to be known (`max.block.ms`).
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: KnownTopics,
        check: Callable[[], None],
        *,
        max_block: float,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._check = check
        self._max_block = max_block
        self._clock = clock
        self._awaited: Counter[str] = Counter()

    @property
    def awaited(self) -> Collection[str]:
        """The topics that calls wait for."""
        return self._awaited.keys()

    async def load(self, topic: str, timeout: float, partition: int | None = None) -> None:
        """Wait until the partitions of a topic are known, or one that it may have got lately; asking may create it.

        Raises:
            KafkaTimeoutError: They are not known within `timeout` seconds; the text says what was tried.
            KafkaError: The topic can never be used.
        """
        cluster = self._cluster

        def known(snapshot: ClusterSnapshot) -> bool:
            self._check()
            error = topic_error(snapshot, topic)
            if error is not None and not error.retriable:
                raise error
            return topic in self._topics.counts

        self._awaited[topic] += 1
        deadline = self._clock() + timeout
        try:
            cluster.track([topic], create=False)  # but it is in use now, so asking creates it
            cluster.ask_anew([topic])
            await cluster.wait_until(known, timeout=timeout, what=f"The partitions of topic {shown(topic)}")
            if partition is not None:
                await self._grown(topic, partition, deadline, timeout)
        except KafkaTimeoutError as late:
            error = topic_error(cluster.snapshot, topic)
            lacks = what_lacks(cluster.snapshot, topic)
            if error is None and not cluster.trouble and lacks:
                raise KafkaTimeoutError(f"{late.message}: {lacks}") from late
            if error is None:
                raise
            raise KafkaTimeoutError(f"{late.message}: {error}") from error
        finally:
            self._awaited[topic] -= 1
            self._awaited = +self._awaited

    async def _grown(self, topic: str, partition: int, deadline: float, timeout: float) -> None:
        """Ask for the topic again and again, ever less often, until it has a partition."""
        cluster = self._cluster
        attempts = 0
        while (count := self._topics.counts.get(topic, 0)) <= partition:
            left = deadline - self._clock()
            if left <= 0:
                text = f"The partition {partition} of topic {topic!r} did not appear within"
                time_over = f"{in_seconds(self._max_block)} (max.block.ms)"
                raise UnknownTopicOrPartitionError(f"{text} {time_over}: the topic has {count} partitions")
            attempts += 1
            delay = cluster.retry_backoff.seconds(attempts) if attempts > 1 else 0.0
            await anyio.sleep(min(delay, left))
            self._check()
            with anyio.move_on_after(max(deadline - self._clock(), 0.0)):
                await cluster.refresh(timeout=timeout)

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The topic's partitions, fetched if they are not known."""
        self._check()
        check_topic(topic)
        if topic not in self._topics.counts:
            await self.load(topic, self._max_block)
        return self._cluster.snapshot.partitions_for(topic)
