"""The offsets that the group has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.cluster import ZERO_ID, version_for
from kclient.consumer.group.coordinator import CHANNEL
from kclient.consumer.group.offsets import FETCH_LAST_WITH_NAMES, committed_offsets, committed_request
from kclient.errors import (
    BrokerConnectionError,
    GroupIdNotFoundError,
    KafkaError,
    KafkaTimeoutError,
    RefreshCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from kclient.protocol.messages import OffsetFetchRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock
    from kclient.consumer.attempts import Attempts
    from kclient.consumer.group.coordinator import CoordinatorAccess
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.group.metrics import GroupMetrics
    from kclient.types import OffsetAndMetadata, TopicPartition


class CommittedLookup:
    """Asks the coordinator for committed offsets.

    Args:
        lock: Guards the state machines.
        member: Names the group.
        coordinator: Whom to ask.
        cluster: Connects to it.
        attempts: Tries again.
        metrics: Are told how long it takes.
    """

    def __init__(
        self,
        lock: MomentLock,
        member: Membership,
        coordinator: CoordinatorAccess,
        cluster: Cluster,
        attempts: Attempts,
        metrics: GroupMetrics,
    ) -> None:
        self._lock = lock
        self._member = member
        self._coordinator = coordinator
        self._cluster = cluster
        self._attempts = attempts
        self._metrics = metrics

    async def fetch(
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

        async def fetch_all() -> dict[TopicPartition, OffsetAndMetadata | None]:
            told = await self.fetch_once(wanted, timeout)
            found: dict[TopicPartition, OffsetAndMetadata | None] = {}
            for tp in wanted:
                offset = told.get(tp)
                if isinstance(offset, KafkaError):
                    raise offset
                found[tp] = offset
            return found

        began = self._cluster.clock()
        try:
            return await self._attempts.retry(fetch_all, timeout, "Fetching committed offsets", self.unanswered)
        finally:
            self._metrics.lookup_time.add(self._cluster.clock() - began)

    async def fetch_once(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
        """One attempt of `fetch`, which tells of each partition what is known."""
        member, wanted = self._member, list(partitions)
        node = await self._coordinator.node(timeout)
        with self._lock:
            epoch = member.lookup.epoch
            identity = member.fetch_identity()
        try:
            connection = await self._cluster.connection(node, CHANNEL)
            topic_ids = self._topic_ids(wanted)
            version = version_for(connection, OffsetFetchRequest, None if topic_ids else FETCH_LAST_WITH_NAMES)
            request = committed_request(member.settings.group_id, wanted, version, identity, topic_ids)
            found = committed_offsets(await connection.request(request, version), topic_ids)
        except KafkaError as error:
            if identity is not None and isinstance(
                error, StaleMemberEpochError | UnknownMemberIdError | GroupIdNotFoundError
            ):
                # a heartbeat is about to tell who this member is by now, or that it is none any more
                raise type(error)(error.message, retriable=True) from error
            if isinstance(error, RefreshCoordinatorError | BrokerConnectionError | KafkaTimeoutError):
                self._coordinator.failed(f"fetching committed offsets failed: {error}", epoch)
            raise
        self._coordinator.answered(epoch)
        return found

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[bytes, str]:
        """The topics' names by their ids; empty unless all are known."""
        snapshot = self._cluster.snapshot
        names = {tp.topic for tp in partitions}
        ids = {snapshot.topic_id(name): name for name in names}
        return {} if ZERO_ID in ids or len(ids) < len(names) else ids

    def unanswered(self) -> str:
        """Who is asked, as one that does not answer; empty where nobody is known."""
        return self._coordinator.unanswered()
