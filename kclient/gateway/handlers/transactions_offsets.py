"""Offsets of groups in transactions: AddOffsetsToTxn, TxnOffsetCommit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.groups.offsets import OffsetCommit
from kclient.gateway.groups.transactional import CommittingMember
from kclient.gateway.handlers._work import FEW, Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Finish, Handler, VersionRange
from kclient.gateway.peers import TransactionOf
from kclient.gateway.rows.groups import CommittedOffset
from kclient.gateway.transaction import ProducerIdentity
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.clock import Clock
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.groups.committed import CommittedOffsets
    from kclient.gateway.groups.transactional import TransactionalOffsets
    from kclient.gateway.peers import Peers
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.transactions.coordinator import TransactionCoordinator
    from kclient.net.fair_queue import Flow

_FENCED_SINCE: Final = 2
"""AddOffsetsToTxn tells PRODUCER_FENCED from this version on."""
_JOINS_SINCE: Final = 5
"""TxnOffsetCommit adds the group to the transaction from this version on (KIP-890)."""
_ABORTABLE_SINCE: Final = 4
"""Both tell TRANSACTION_ABORTABLE from this version on."""
_PER_PARTITION: Final = 200
"""About how many bytes of memory a partition takes while it is stored, its row of the response included."""


class AddOffsetsToTxnHandler(Handler):
    """Adds groups to transactions."""

    API: ClassVar[ApiKey] = ApiKey.ADD_OFFSETS_TO_TXN
    VERSIONS: ClassVar[VersionRange] = (0, 4)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, transactions: TransactionCoordinator) -> None:
        self._access = access
        self._transactions = transactions

    def begin(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> Finish:
        """Have the coordinator add the group, which another gateway may coordinate."""
        client = context.connection
        self._access.check(client, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        self._access.check(client, AclOperation.READ, ResourceType.GROUP, request.group_id)
        return partial(self._finish, request, context.api_version)

    async def _finish(self, request: AddOffsetsToTxnRequest, version: int) -> AddOffsetsToTxnResponse:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            await self._transactions.join(request.transactional_id, producer, (), (request.group_id,), version=1)
        except KafkaError as error:
            code = code_of(error, self.ROLE)
            if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
                code = ErrorCode.INVALID_TXN_STATE
            return AddOffsetsToTxnResponse(error_code=code)
        return AddOffsetsToTxnResponse()


class TxnOffsetCommitHandler(Handler):
    """Takes offsets that transactions are to commit."""

    API: ClassVar[ApiKey] = ApiKey.TXN_OFFSET_COMMIT
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(
        self,
        access: Access,
        groups: CommittedOffsets,
        transactional: TransactionalOffsets,
        peers: Peers,
        clock: Clock,
    ) -> None:
        self._access = access
        self._groups = groups
        self._transactional = transactional
        self._peers = peers
        self._clock = clock

    def begin(self, request: TxnOffsetCommitRequest, context: RequestContext) -> Begun:
        """Check each partition; the transaction and the group are asked afterwards."""
        client = context.connection
        self._access.check(client, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        self._access.check_group(client, AclOperation.READ, request.group_id)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: TxnOffsetCommitRequest, context: RequestContext) -> Work:
        response, commit = TxnOffsetCommitResponse(), OffsetCommit()
        rows: list[tuple[TopicRecord, TxnOffsetCommitResponsePartition]] = []
        now_ms, count = self._clock.wall_ms(), 0
        for topic in request.topics:
            missing = ErrorCode.NONE
            record: TopicRecord | None = None
            try:
                record = self._access.topic(context.connection, AclOperation.READ, topic.name)
            except KafkaError as error:
                missing = ErrorCode(code_of(error))
            answer = TxnOffsetCommitResponseTopic(name=topic.name)
            response.topics.append(answer)
            count += 1
            if count % FEW == 0:
                yield _PER_PARTITION * FEW
            for each in topic.partitions:
                count += 1
                if count % FEW == 0:
                    yield _PER_PARTITION * FEW
                code = missing if record is None else self._check(record, each)
                row = TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                answer.partitions.append(row)
                if not code and record is not None:
                    metadata = each.committed_metadata or ""
                    committed = CommittedOffset(each.committed_offset, each.committed_leader_epoch, metadata, now_ms)
                    commit.add(record, each.partition_index, committed)
                    rows.append((record, row))
        if not rows:
            return response
        yield from self._groups.measure(request.group_id, commit)
        return partial(self._finish, request, context.api_version, context.connection.flow, commit, response, rows)

    def _check(self, record: TopicRecord, partition: TxnOffsetCommitRequestPartition) -> ErrorCode:
        if not 0 <= partition.partition_index < record.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(partition.committed_metadata or "") > self._groups.settings.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    async def _finish(
        self,
        request: TxnOffsetCommitRequest,
        version: int,
        flow: Flow,
        commit: OffsetCommit,
        response: TxnOffsetCommitResponse,
        rows: list[tuple[TopicRecord, TxnOffsetCommitResponsePartition]],
    ) -> TxnOffsetCommitResponse:
        transaction = TransactionOf(request.transactional_id, request.producer_id, request.producer_epoch)
        member = CommittingMember(request.member_id, request.group_instance_id, request.generation_id)
        code: int
        try:
            if version >= _JOINS_SINCE:
                await self._join(transaction, request.group_id)
            code = await self._transactional.commit(request.group_id, transaction, member, commit)
        except KafkaError as error:
            code = _code(error, version)
        pace = Pace(flow)
        for record, row in rows:
            await pace.pause()
            row.error_code = code or (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if record.gone else ErrorCode.NONE)
        return response

    async def _join(self, transaction: TransactionOf, group_id: str) -> None:
        await self._peers.join_group(transaction, group_id)

    def fail(
        self, request: TxnOffsetCommitRequest, context: RequestContext, error: KafkaError
    ) -> TxnOffsetCommitResponse:
        """The same error for every partition."""
        code = code_of(error, self.ROLE)

        def partition(asked: TxnOffsetCommitRequestPartition) -> TxnOffsetCommitResponsePartition:
            return TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)

        def answered(topic: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
            return TxnOffsetCommitResponseTopic(name=topic.name, partitions=rows_for(topic.partitions, partition))

        return TxnOffsetCommitResponse(topics=rows_for(request.topics, answered))


def _code(error: KafkaError, version: int) -> int:
    """As Kafka's group coordinator tells what the one of the transaction has refused."""
    code = code_of(error, Role.GROUPS)
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.NOT_COORDINATOR:  # the one of the transaction, after which clients do not look here
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code
