"""Questions to the cluster that calls of the consumer wait for: coordinators, committed offsets, offsets by time."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeVar

import anyio

from kclient.arguments import check_topic, in_seconds, shown
from kclient.cluster import MetadataCache, Trial, topic_error, version_for
from kclient.consumer.group_driver import CHANNEL
from kclient.consumer.list_offsets import OffsetSearch, Question, no_leader
from kclient.consumer.offsets import FETCH_MAX_VERSION, committed_offsets, committed_request
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError, RefreshCoordinatorError
from kclient.protocol.messages import MetadataRequest, MetadataResponse, OffsetFetchRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.core import ConsumerCore
    from kclient.net.connection import Connection
    from kclient.types import OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition

T = TypeVar("T")


class Lookups:
    """Asks brokers on behalf of one consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self.problem: KafkaError | None = None
        """What last kept positions from being found, for the text of errors."""

    def late(
        self, what: str, timeout: float, cause: BaseException | None = None, unanswered: str = ""
    ) -> KafkaTimeoutError:
        """What was asked for did not come in time; the text says why, as far as that is known.

        Args:
            what: The start of the sentence.
            timeout: The time of the call, in seconds.
            cause: What last went wrong.
            unanswered: Who was asked and has not answered, see `Cluster.unanswered`.
        """
        cluster = self._core.cluster
        cause = cause or cluster.error
        reason = "; ".join(filter(None, [unanswered, "" if cause is None else str(cause)]))
        reason = reason or cluster.trouble or cluster.silence(timeout)
        text = (
            f"{what} did not succeed within {in_seconds(timeout)} (default.api.timeout.ms or the timeout of the call)"
        )
        error = KafkaTimeoutError(f"{text}: {reason}" if reason else text)
        error.__cause__ = cause
        return error

    async def coordinator(self, timeout: float) -> int:
        """The node id of the group's coordinator.

        Raises:
            KafkaTimeoutError: None was found in time.
            GroupAuthorizationError: The group must not be used.
        """
        core = self._core
        coordinator = core.group()
        with core.lock:
            coordinator.want_coordinator()
        core.group_wakeup.set()

        def known() -> bool:
            with core.lock:
                if coordinator.error is not None and not core.subscriptions.uses_group:
                    raise coordinator.take_error()
                if coordinator.coordinator is None and coordinator.error is not None:
                    raise coordinator.error  # it stays so until the next poll, which raises it too
                return coordinator.coordinator is not None

        await core.waits.until(known, timeout, f"Finding the coordinator of group {coordinator.settings.group_id!r}")
        found = coordinator.coordinator
        assert found is not None
        return found

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets; None where there is none.

        Raises:
            KafkaTimeoutError: No answer in time.
            KafkaError: The group or a topic must not be read.
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        found = await self._retry(
            lambda: self.committed_once(wanted, timeout), timeout, "Fetching committed offsets", self.unanswered_commits
        )
        return {tp: found.get(tp) for tp in wanted}

    def late_position(self, tp: TopicPartition, what: str, timeout: float) -> KafkaTimeoutError:
        """As `late`, for who waits for the position in a partition."""
        core = self._core
        with core.lock:
            state = core.subscriptions.find(tp)
        attempt = None if state is None else state.attempt
        if isinstance(attempt, Question):
            unanswered = core.cluster.unanswered([attempt.node_id])
        else:
            unanswered = "" if attempt is None else self.unanswered_commits()
        return self.late(what, timeout, self.problem, unanswered)

    def unanswered_commits(self) -> str:
        """The coordinator, as one that does not answer; empty where none is known."""
        node = self._core.group().coordinator
        return "" if node is None else self._core.cluster.unanswered([node], CHANNEL)

    async def committed_once(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """One attempt of `committed`."""
        core = self._core
        coordinator = core.group()
        node = await self.coordinator(timeout)
        with core.lock:
            epoch = coordinator.lookup.epoch
        try:
            connection = await core.cluster.connection(node, CHANNEL)
            version = version_for(connection, OffsetFetchRequest, FETCH_MAX_VERSION)
            request = committed_request(coordinator.settings.group_id, partitions, version)
            found = committed_offsets(await connection.request(request, version))
        except KafkaError as error:
            if isinstance(error, RefreshCoordinatorError | BrokerConnectionError | KafkaTimeoutError):
                with core.lock:
                    coordinator.lose_coordinator(f"fetching committed offsets failed: {error}", core.clock(), epoch)
                core.group_wakeup.set()
            raise
        with core.lock:
            coordinator.lookup.answered(epoch)
        return found

    async def search(
        self, wanted: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find offsets by time, at all leaders at once.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
            KafkaError: A topic must not be read.
        """
        core = self._core
        search = OffsetSearch(wanted, core.plan.retry_backoff)
        with self._looking_at({tp.topic for tp in wanted}), anyio.move_on_after(max(timeout, 0)):
            async with anyio.create_task_group() as questions:
                while not search.over:
                    try:
                        core.check()
                    except KafkaError as error:
                        search.error = error  # as it is, and not in an ExceptionGroup
                        break
                    now = core.clock()
                    due, leaderless = search.plan(core.cluster.snapshot, now)
                    for question in due:
                        questions.start_soon(self._ask, search, question)
                    if leaderless:
                        self._miss(search, leaderless)
                    retry_at = search.next_retry(now)
                    with anyio.move_on_after(inf if retry_at is None else max(retry_at - now, 0)):
                        await core.waits.change()
                questions.cancel_scope.cancel()
        if search.error is not None:
            raise search.error
        if not search.over:
            raise self._not_found(search, timeout)
        return search.found

    def _not_found(self, search: OffsetSearch, timeout: float) -> KafkaTimeoutError:
        cluster = self._core.cluster
        problem = search.problem or cluster.error
        if problem is None and search.unasked and not cluster.trouble:  # there are metadata, and this is what they say
            problem = no_leader(search.unasked)
        return self.late("Finding offsets", timeout, problem, cluster.unanswered(search.silent))

    async def _ask(self, search: OffsetSearch, question: Question) -> None:
        core = self._core
        request = question.request(
            core.cluster.snapshot, read_committed=core.plan.read_committed, timeout_ms=core.config.request_timeout_ms
        )
        try:
            answer = question.read(await core.cluster.request(question.node_id, request))
        except KafkaError as error:
            search.failed(question, error, core.clock())
            core.cluster.request_update()
        except Exception as error:  # noqa: BLE001 - raised by `search`, not by a group of tasks
            search.error = search.error or error
        else:
            if search.received(question, answer, core.clock()):
                core.cluster.request_update()
        core.waits.changed()

    def _miss(self, search: OffsetSearch, leaderless: list[TopicPartition]) -> None:
        """Nobody is known to lead some partitions."""
        cluster = self._core.cluster
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
        cluster = self._core.cluster

        def known(snapshot: ClusterSnapshot) -> bool:
            error = topic_error(snapshot, topic)
            if error is not None and not error.retriable:
                raise error
            return topic in snapshot.topics

        if known(cluster.snapshot):
            return cluster.snapshot.partitions_for(topic)
        with self._looking_at({topic}):
            snapshot = await cluster.wait_until(known, timeout=timeout, what=f"The partitions of topic {shown(topic)}")
        return snapshot.partitions_for(topic)

    @contextmanager
    def _looking_at(self, topics: set[str]) -> Iterator[None]:
        """Have metadata of topics for as long as a call takes."""
        cluster = self._core.cluster
        with cluster.looking_at(topics):
            if not topics <= cluster.snapshot.topics.keys():
                cluster.request_update(urgent=True)
            yield

    async def list_topics(self, timeout: float) -> dict[str, list[PartitionInfo]]:
        """Every topic that may be described, with its partitions.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        core = self._core
        trial = Trial()

        async def exchange(connection: Connection) -> MetadataResponse:
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            return await core.cluster.request_on(connection, request, response=MetadataResponse)

        async def ask() -> ClusterSnapshot:
            response = await core.cluster.ask_any(exchange, trial=trial)
            answer = MetadataCache(max_age=0, backoff=core.cluster.retry_backoff)
            return answer.update(response, core.clock(), asked=None)

        snapshot = await self._retry(ask, timeout, "Listing the topics", lambda: trial.unanswered)
        return {name: snapshot.partitions_for(name) for name in sorted(snapshot.topics)}

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], timeout: float, what: str, unanswered: Callable[[], str]
    ) -> T:
        """Call until it succeeds or fails for good; `unanswered` tells who is being asked, when the time is over."""
        core = self._core
        deadline = core.clock() + timeout
        attempts = 0
        last: KafkaError | None = None
        asking = ""
        with anyio.move_on_after(max(timeout, 0)):
            while True:
                try:
                    return await attempt()
                except anyio.get_cancelled_exc_class():
                    asking = unanswered()
                    raise
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    last = error
                    if error.refresh_metadata:
                        core.cluster.request_update()
                attempts += 1
                delay = core.cluster.retry_backoff.seconds(attempts)
                if core.clock() + delay >= deadline:
                    break
                await anyio.sleep(delay)
        raise self.late(what, timeout, last, asking)
