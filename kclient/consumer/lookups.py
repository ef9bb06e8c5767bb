"""Questions to the cluster that calls of the consumer wait for: coordinators, committed offsets, offsets by time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from kclient.arguments import check_topic, in_seconds
from kclient.cluster import MetadataCache, topic_error, version_for
from kclient.consumer.group_driver import CHANNEL
from kclient.consumer.list_offsets import OffsetSearch
from kclient.consumer.offsets import FETCH_MAX_VERSION, committed_offsets, committed_request
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.protocol.messages import MetadataRequest, OffsetFetchRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kclient.cluster import ClusterSnapshot
    from kclient.consumer.core import ConsumerCore
    from kclient.types import OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition

T = TypeVar("T")


class Lookups:
    """Asks brokers on behalf of one consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self.problem: KafkaError | None = None
        """What last kept positions from being found, for the text of errors."""

    def late(self, what: str, timeout: float, cause: BaseException | None = None) -> KafkaTimeoutError:
        """What was asked for did not come in time; the text says why, as far as that is known."""
        reason = cause or self._core.cluster.error or self.problem
        text = (
            f"{what} did not succeed within {in_seconds(timeout)} (default.api.timeout.ms or the timeout of the call)"
        )
        error = KafkaTimeoutError(f"{text}: {reason}" if reason is not None else text)
        error.__cause__ = reason
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
                return coordinator.coordinator is not None

        await core.until(known, timeout, f"Finding the coordinator of group {coordinator.settings.group_id!r}")
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
        found = await self._retry(lambda: self.committed_once(wanted, timeout), timeout, "Fetching committed offsets")
        return {tp: found.get(tp) for tp in wanted}

    async def committed_once(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """One attempt of `committed`."""
        core = self._core
        coordinator = core.group()
        node = await self.coordinator(timeout)
        try:
            connection = await core.cluster.connection(node, CHANNEL)
            version = version_for(connection, OffsetFetchRequest, FETCH_MAX_VERSION)
            request = committed_request(
                coordinator.settings.group_id, partitions, version, require_stable=core.plan.read_committed
            )
            return committed_offsets(await connection.request(request, version))
        except KafkaError as error:
            if error.retriable:
                with core.lock:
                    coordinator.lose_coordinator(f"fetching committed offsets failed: {error}", core.clock())
                core.group_wakeup.set()
            raise

    async def search(self, search: OffsetSearch, timeout: float) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find offsets by time.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
            KafkaError: A topic must not be read.
        """
        if not search.wanted:
            return {}
        self._core.cluster.track({tp.topic for tp in search.wanted})

        async def round_of_requests() -> None:
            await self.search_once(search)
            if search.missing:
                raise unanswered(search)

        await self._retry(round_of_requests, timeout, "Finding offsets")
        return search.found

    async def search_once(self, search: OffsetSearch) -> None:
        """Ask the leaders once for what is still missing; what could not be found stays missing.

        Raises:
            KafkaError: A partition was refused for good.
        """
        cluster = self._core.cluster
        requests, leaderless = search.requests(cluster.snapshot, read_committed=self._core.plan.read_committed)
        for tp in leaderless:
            error = topic_error(cluster.snapshot, tp.topic)
            if error is not None and not error.retriable:
                raise error
            search.error = error or search.error
        if leaderless:
            cluster.request_update()
        for node, request in requests.items():
            try:
                search.received(await cluster.request(node, request))
            except KafkaError as error:
                if not error.retriable:
                    raise
                search.error = error
        if search.missing:
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

        if not known(cluster.snapshot):
            cluster.track([topic])
            await cluster.wait_until(known, timeout=timeout, what=f"The partitions of topic {topic!r}")
        return cluster.snapshot.partitions_for(topic)

    async def list_topics(self, timeout: float) -> dict[str, list[PartitionInfo]]:
        """Every topic that may be described, with its partitions.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        core = self._core

        async def ask() -> ClusterSnapshot:
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            response = await core.cluster.request(None, request)
            answer = MetadataCache(max_age=0, backoff=core.cluster.retry_backoff)
            return answer.update(response, core.clock(), asked=None)

        snapshot = await self._retry(ask, timeout, "Listing the topics")
        return {name: snapshot.partitions_for(name) for name in sorted(snapshot.topics)}

    async def _retry(self, attempt: Callable[[], Awaitable[T]], timeout: float, what: str) -> T:
        """Call until it succeeds or fails for good."""
        core = self._core
        deadline = core.clock() + timeout
        attempts = 0
        last: KafkaError | None = None
        with anyio.move_on_after(max(timeout, 0)):
            while True:
                try:
                    return await attempt()
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
        raise self.late(what, timeout, last)


def unanswered(search: OffsetSearch) -> KafkaError:
    """Why a search is not finished yet."""
    missing = ", ".join(str(tp) for tp in sorted(search.missing)[:5])
    return search.error or KafkaTimeoutError(f"no leader is known for {missing}: does it exist?")
