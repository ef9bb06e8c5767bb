"""Questions about offsets and topics that calls of the user wait for; what the consumer reads has no part in them."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

import anyio

from kclient.arguments import as_timestamp, by_partition, check_topic, shown
from kclient.cluster import MetadataCache, Trial, topic_error, what_lacks
from kclient.consumer.fetch.list_offsets import OffsetSearch, Question, no_leader
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.protocol.messages import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kclient.cluster import Cluster, ClusterSnapshot
    from kclient.consumer.attempts import Attempts
    from kclient.consumer.waits import Waits
    from kclient.net.connection import Connection
    from kclient.types import OffsetAndTimestamp, PartitionInfo, Timestamps, TopicPartition


class OffsetQueries:
    """Asks brokers on behalf of one consumer.

    Args:
        clock: Monotonic time in seconds.
        check: Raises if the consumer failed, or is not open.
        cluster: Whom to ask.
        waits: Tell when metadata or answers are there.
        attempts: Try again.
        read_committed: Whether the end of a partition is its last stable offset.
        request_timeout_ms: `request.timeout.ms`.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        check: Callable[[], None],
        cluster: Cluster,
        waits: Waits,
        attempts: Attempts,
        read_committed: bool,
        request_timeout_ms: int,
    ) -> None:
        self._clock = clock
        self._check = check
        self._cluster = cluster
        self._waits = waits
        self._attempts = attempts
        self._read_committed = read_committed
        self._request_timeout_ms = request_timeout_ms

    async def offsets_for_times(
        self, timestamps: Timestamps, timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after some times; None where there is none."""
        self._check()
        return await self._search(by_partition(timestamps, as_timestamp, "timestamps"), timeout)

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Where partitions begin or end."""
        self._check()
        found = await self._search(dict.fromkeys(partitions, timestamp), timeout)
        return {tp: 0 if offset is None else offset.offset for tp, offset in found.items()}

    async def _search(
        self, wanted: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find offsets by time, at all leaders at once.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
            KafkaError: A topic must not be read.
        """
        search = OffsetSearch(wanted, self._cluster.retry_backoff)
        with self._looking_at({tp.topic for tp in wanted}), anyio.move_on_after(max(timeout, 0)):
            async with anyio.create_task_group() as questions:
                while not search.over:
                    try:
                        self._check()
                    except KafkaError as error:
                        search.error = error  # as it is, and not in an ExceptionGroup
                        break
                    now = self._clock()
                    due, leaderless = search.plan(self._cluster.snapshot, now)
                    for question in due:
                        questions.start_soon(self._ask, search, question)
                    if leaderless:
                        self._miss(search, leaderless)
                    retry_at = search.next_retry(now)
                    with anyio.move_on_after(inf if retry_at is None else max(retry_at - now, 0)):
                        await self._waits.progress()
                questions.cancel_scope.cancel()
        if search.error is not None:
            raise search.error
        if not search.over:
            raise self._not_found(search, timeout)
        return search.found

    def _not_found(self, search: OffsetSearch, timeout: float) -> KafkaTimeoutError:
        cluster = self._cluster
        problem = search.problem or cluster.error
        if problem is None and search.unasked and not cluster.trouble:  # there are metadata, and this is what they say
            problem = no_leader(search.unasked)
        return self._attempts.late("Finding offsets", timeout, problem, cluster.unanswered(search.silent))

    async def _ask(self, search: OffsetSearch, question: Question) -> None:
        request = question.request(
            self._cluster.snapshot, read_committed=self._read_committed, timeout_ms=self._request_timeout_ms
        )
        try:
            answer = question.read(await self._cluster.request(question.node_id, request))
        except KafkaError as error:
            search.failed(question, error, self._clock())
            self._cluster.request_update()
        except Exception as error:  # noqa: BLE001 - raised by `_search`, not by a group of tasks
            search.error = search.error or error
        else:
            if search.received(question, answer, self._clock()):
                self._cluster.request_update()
        self._waits.signal_progress()

    def _miss(self, search: OffsetSearch, leaderless: list[TopicPartition]) -> None:
        """Nobody is known to lead some partitions."""
        cluster = self._cluster
        for tp in leaderless:
            search.leaderless(tp, topic_error(cluster.snapshot, tp.topic))
        cluster.request_update()

    async def partitions_for(self, topic: str, timeout: float) -> list[PartitionInfo]:
        """The partitions of a topic.

        Raises:
            KafkaTimeoutError: Nothing is known of it in time.
            TypeError, InvalidTopicError: There is no such name.
        """
        check_topic(topic)
        cluster = self._cluster

        def known(snapshot: ClusterSnapshot) -> bool:
            error = topic_error(snapshot, topic)
            if error is not None and not error.retriable:
                raise error
            return topic in snapshot.topics

        if topic in cluster.snapshot.topics:
            return cluster.snapshot.partitions_for(topic)
        with self._looking_at({topic}):
            try:
                what = f"The partitions of topic {shown(topic)}"
                snapshot = await cluster.wait_until(known, timeout=timeout, what=what)
            except KafkaTimeoutError as error:
                said = topic_error(cluster.snapshot, topic)  # by a broker that did answer
                lacks = what_lacks(cluster.snapshot, topic)
                if said is None and not cluster.trouble and lacks:
                    raise KafkaTimeoutError(f"{error.message}: {lacks}") from error
                if said is None:
                    raise
                raise KafkaTimeoutError(f"{error.message}. {said.message}") from said
        return snapshot.partitions_for(topic)

    @contextmanager
    def _looking_at(self, topics: set[str]) -> Iterator[None]:
        """Have metadata of topics for as long as a call takes."""
        cluster = self._cluster
        with cluster.looking_at(topics):
            cluster.ask_anew(topics)
            if not topics <= cluster.snapshot.topics.keys():
                cluster.request_update(urgent=True)
            yield

    async def list_topics(self, timeout: float) -> dict[str, list[PartitionInfo]]:
        """Every topic that may be described, with its partitions.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        trial = Trial()

        async def exchange(connection: Connection) -> MetadataResponse:
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            return await self._cluster.request_on(connection, request, response=MetadataResponse)

        async def ask() -> ClusterSnapshot:
            response = await self._cluster.ask_any(exchange, trial=trial)
            answer = MetadataCache(max_age=0, backoff=self._cluster.retry_backoff)
            return answer.update(response, self._clock(), asked=None)

        snapshot = await self._attempts.retry(ask, timeout, "Listing the topics", lambda: trial.unanswered)
        return {name: snapshot.partitions_for(name) for name in sorted(snapshot.topics)}
