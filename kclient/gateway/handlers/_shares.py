"""What ShareFetch and ShareAcknowledge have in common: who asks, what was acknowledged, who leads a partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    ErrorCode,
    InvalidRecordStateError,
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.error_codes import code_of, text_of
from kclient.gateway.handlers._leaders import MOVED
from kclient.gateway.handlers.share_groups import check_shares_are_on
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_life import moved
from kclient.gateway.shares.sessions import SessionName
from kclient.gateway.shares.share_partition import KINDS, RENEW, Verdicts

if TYPE_CHECKING:
    from kclient.concurrency import Completion
    from kclient.gateway.access import Access
    from kclient.gateway.clock import Clock
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.features import Features
    from kclient.gateway.leadership import Leader, Leadership
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.shares.led import LedShare
    from kclient.gateway.shares.sessions import MemberSession, MemberSessions
    from kclient.gateway.shares.table import ShareTable
    from kclient.gateway.topics.record import TopicRecord
    from kclient.net.fair_queue import Pace

PER_PARTITION: Final = 300
"""About how many bytes of memory a partition takes while a request is answered, beside its records."""
RENEWING_SINCE: Final = 2
"""The version from which on locks are renewed (KIP-1222)."""
_KINDS: Final = frozenset(KINDS)
_LONGEST_MEMBER: Final = 36
"""Characters of a member's id (KIP-1082)."""


class _Batch(Protocol):
    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class _Partition(Protocol):
    partition_index: int

    @property
    def acknowledgement_batches(self) -> Sequence[_Batch]: ...


class _Topic(Protocol):
    topic_id: bytes

    @property
    def partitions(self) -> Sequence[_Partition]: ...


class PartOutcome(NamedTuple):
    """What became of a partition of a request."""

    code: int = ErrorCode.NONE
    text: str | None = None

    @classmethod
    def of(cls, error: KafkaError) -> PartOutcome:
        """What goes wrong."""
        return cls(code_of(error), text_of(str(error)))


async def _verdicts_of(batches: Iterable[_Batch], pace: Pace, *, renewing: bool) -> list[Verdicts]:
    """What a request says of a partition.

    Args:
        batches: As it says it.
        pace: Where others have their turn.
        renewing: Whether it says that it renews locks.

    Raises:
        InvalidRequestError: That makes no sense.
    """
    found: list[Verdicts] = []
    least = 0
    for batch in batches:
        if pace.over:
            await pace.pause()
        first, last, kinds = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not least <= first <= last:
            raise InvalidRequestError(f"the offsets from {first} to {last} are not behind those before, or none")
        if len(kinds) not in (1, last - first + 1):
            raise InvalidRequestError(f"{len(kinds)} types of acknowledgement are not 1, nor one for each offset")
        if not _KINDS.issuperset(kinds):
            raise InvalidRequestError(f"there is no such type of acknowledgement among {sorted(set(kinds))[:10]}")
        if RENEW in kinds and not renewing:
            raise InvalidRequestError("a request that renews locks has to be version 2, and to say so (IsRenewAck)")
        found.append(Verdicts(first, last, kinds))
        least = last + 1
    return found


class ShareRequests:
    """Looks after what the requests of share groups have in common.

    Args:
        access: Who finds which topics.
        partitions: Those that are led here.
        leadership: Knows where those are that others lead.
        shares: What groups read of them.
        sessions: Of their members.
        clock: What time it is.
        features: Whether there are share groups.
    """

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        leadership: Leadership,
        shares: ShareTable,
        sessions: MemberSessions,
        clock: Clock,
        features: Features,
    ) -> None:
        self._access = access
        self._partitions = partitions
        self._leadership = leadership
        self.shares: ShareTable = shares
        self.sessions: MemberSessions = sessions
        self._features = features
        self._clock = clock

    def name(self, context: RequestContext, group_id: str | None, member_id: str | None) -> SessionName:
        """Who asks.

        Raises:
            UnsupportedVersionError: There are no share groups.
            InvalidRequestError: The request does not say it.
            GroupAuthorizationError: The client may not read as a member of this group.
        """
        check_shares_are_on(self._features)
        if not group_id or not member_id or len(member_id) > _LONGEST_MEMBER:
            raise InvalidRequestError(
                f"the request has to name a group, and a member in at most {_LONGEST_MEMBER} characters"
            )
        self._access.check(context.connection, AclOperation.READ, ResourceType.GROUP, group_id)
        return SessionName(group_id, member_id)

    def topic(self, client: ConnectionContext, topic_id: bytes) -> TopicRecord:
        """A topic that a client may read. Raises why there is none."""
        return self._access.topic(client, AclOperation.READ, "", topic_id)

    def share(self, client: ConnectionContext, group_id: str, key: PartitionId) -> LedShare:
        """What a group reads of a partition. Raises why there is none here."""
        return self.shares.find(group_id, self.topic(client, key.topic_id), key.partition)

    # Acknowledgements

    async def acknowledge(
        self,
        client: ConnectionContext,
        name: SessionName,
        topics: Iterable[_Topic],
        pace: Pace,
        *,
        renewing: bool,
    ) -> dict[PartitionId, PartOutcome]:
        """Do what a request says of records; returns when it is stored what became of that, by partition."""
        found: dict[PartitionId, PartOutcome] = {}
        written: dict[PartitionId, Completion[None]] = {}
        for topic in topics:
            if pace.over:
                await pace.pause()
            for each in topic.partitions:
                if pace.over:
                    await pace.pause()
                if not each.acknowledgement_batches:
                    continue
                key = PartitionId(topic.topic_id, each.partition_index)
                found[key] = PartOutcome()
                try:
                    verdicts = await _verdicts_of(each.acknowledgement_batches, pace, renewing=renewing)
                    writing = self._say(client, name, key, verdicts)
                except KafkaError as error:
                    found[key] = PartOutcome.of(error)
                else:
                    if writing is not None:
                        written[key] = writing
        for key, completion in written.items():
            try:
                await completion.wait()
            except KafkaError as error:
                found[key] = PartOutcome.of(error)
        return found

    def _say(
        self, client: ConnectionContext, name: SessionName, key: PartitionId, verdicts: Sequence[Verdicts]
    ) -> Completion[None] | None:
        """Say what became of records of a partition; what is returned completes when it is stored."""
        share = self.shares.get(name.group_id, key)
        record = self.topic(client, key.topic_id)
        partition = self._partitions.check(record, key.partition)
        if not self._leadership.leads(record, key.partition):
            raise moved(partition)
        if share is None or share.records is None or not share.is_here or share.partition is not partition:
            raise UnknownTopicOrPartitionError(f"nothing of {partition} is acquired by members of the group any more")
        settings = self.shares.settings(name.group_id)
        if not settings.renewing and any(RENEW in each.kinds for each in verdicts):
            raise InvalidRecordStateError("locks are not renewed: share.renew.acknowledge.enable of the group is false")
        until = self._clock.now() + settings.lock_ms / 1000
        share.records.acknowledge(name.member_id, verdicts, most=settings.deliveries, until=until)
        writing = share.save()
        self.shares.changed(share)
        return writing

    def end(self, session: MemberSession) -> None:
        """A session ends: what its member has is given back."""
        if self.sessions.end(session):
            self.shares.release(*session.name)

    # Leaders

    def leader(self, client: ConnectionContext, key: PartitionId, code: int) -> Leader | None:
        """Who leads a partition, where a client is told so."""
        if code not in MOVED:
            return None
        try:
            record = self.topic(client, key.topic_id)
        except KafkaError:
            return None
        return self._leadership.leader(record, key.partition) if 0 <= key.partition < record.partitions else None

    def endpoints(self, client: ConnectionContext, leaders: Iterable[Leader], row: type[Any]) -> list[Any]:
        """Where leaders are, as rows of an answer."""
        numbers = {leader.node_id for leader in leaders}
        nodes = self._leadership.nodes(client.advertised) if numbers else ()
        return [row(**node._asdict()) for node in nodes if node.node_id in numbers]
