"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a partition begins, ends, and was at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final, cast

from kclient.acls import AclOperation
from kclient.concurrency import side_by_side
from kclient.errors import (
    ErrorCode,
    KafkaError,
    OffsetOutOfRangeError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from kclient.gateway.access import Access
from kclient.gateway.contexts import RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.handlers._internal import END, InternalPartitions
from kclient.gateway.handlers._partitions import NamedPartitions
from kclient.gateway.handlers._work import READ_COMMITTED, counted, rows_of
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.partition import Partition
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.peer_calls.names import FromGateway, named_id
from kclient.gateway.peers import PartitionEnds
from kclient.gateway.search import TimestampSearch
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.fetch import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kclient.protocol.registry import ApiKey

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_ENDS: Final = (LATEST, EARLIEST, _EARLIEST_LOCAL)
_HIGH_WATERMARK: Final = -1
_PER_PARTITION: Final = 150
"""About how many bytes of memory a partition's row takes."""
_AT_ONCE: Final = 32
"""Partitions that are searched by time, or whose records are deleted, at once: one whose store hangs is waited for by
itself, and those that become durable share commits."""
_LISTS: Final = 0  # the version of ListOffsets that tells several offsets of each partition
_WITH_LEADER_EPOCH: Final = 4  # ListOffsets tells leader epochs from this version on


def _sizes(request: ListOffsetsRequest | OffsetForLeaderEpochRequest | DeleteRecordsRequest) -> Iterator[int]:
    return rows_of((topic.partitions for topic in request.topics), _PER_PARTITION)


class ListOffsetsHandler(Handler):
    """Answers ListOffsets."""

    ONLY_READS: ClassVar[bool] = True
    API: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS
    VERSIONS: ClassVar[VersionRange] = (0, 11)

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        search: TimestampSearch,
        leadership: Leadership,
        local: PartitionEnds,
        from_gateway: FromGateway,
    ) -> None:
        self._partitions = NamedPartitions(access, partitions, AclOperation.DESCRIBE)
        self._internal = InternalPartitions(access, leadership)
        self._search = search
        self._local = local
        self._from_gateway = from_gateway

    def begin(self, request: ListOffsetsRequest, context: RequestContext) -> Begun:
        """Partitions may have to be opened, and times looked up on the disk."""
        if self._from_gateway(context.client_id):  # others may hold the memory, and wait for this
            return partial(self._ends, request)
        return cast("Begun", counted(_sizes(request), partial(self._finish, request, context)))

    async def _finish(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse | None:
        response = ListOffsetsResponse()
        partitions, version, pace = self._partitions, context.api_version, Pace(context.connection.flow)
        named = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        committed = request.isolation_level == READ_COMMITTED
        async with side_by_side(_AT_ONCE) as begin:
            for topic in request.topics:
                await pace.pause()
                answer = ListOffsetsTopicResponse(name=topic.name)
                response.topics.append(answer)
                for wanted in topic.partitions:
                    if pace.over:
                        await pace.pause()
                        if context.connection.gone:
                            return None
                    row = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                    if version < _WITH_LEADER_EPOCH:
                        row.leader_epoch = -1
                    answer.partitions.append(row)
                    try:
                        if version == _LISTS and wanted.timestamp < EARLIEST:
                            raise UnsupportedVersionError(f"ListOffsets 0 knows no timestamp {wanted.timestamp}")
                        if self._is_internal(context, topic.name, wanted, row, version):
                            continue
                        partition = partitions.find(context, topic.name, wanted.partition_index)
                        await partitions.ready(partition, context, named, pace)
                        if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP:
                            await begin(self._search_for, partition, wanted, row, committed, version)
                        else:
                            self._look_up(partition, wanted, row, version, committed=committed)
                    except KafkaError as error:
                        row.error_code = code_of(error)
        return response

    async def _ends(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Where partitions end, for another gateway: it names topics by their ids."""
        ids = {topic.name: named_id(topic.name) for topic in request.topics}
        ends = await self._local.ends(
            [
                PartitionId(topic_id, wanted.partition_index)
                for topic in request.topics
                if (topic_id := ids[topic.name]) is not None
                for wanted in topic.partitions
            ]
        )
        response = ListOffsetsResponse()
        for topic in request.topics:
            answer = ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(answer)
            for wanted in topic.partitions:
                row = ListOffsetsPartitionResponse(partition_index=wanted.partition_index, leader_epoch=-1)
                end = ends.get(PartitionId(ids[topic.name] or b"", wanted.partition_index))
                if end is None:
                    row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    row.offset = end
                answer.partitions.append(row)
        return response

    def _is_internal(
        self,
        context: RequestContext,
        name: str,
        wanted: ListOffsetsPartition,
        row: ListOffsetsPartitionResponse,
        version: int,
    ) -> bool:
        """Whether this is a partition of Kafka's own topics; then the row says what an empty log does."""
        epoch = self._internal.epoch(
            context.connection, AclOperation.DESCRIBE, name, wanted.partition_index, known=wanted.current_leader_epoch
        )
        if epoch is None:
            return False
        if wanted.timestamp in _ENDS:
            row.offset = END
            if version >= _WITH_LEADER_EPOCH:
                row.leader_epoch = epoch
            if version == _LISTS:
                _list(wanted, row, END, END)
        elif wanted.timestamp < _EARLIEST_PENDING_UPLOAD:
            raise UnsupportedForMessageFormatError(f"there is no timestamp {wanted.timestamp}")
        return True

    @staticmethod
    def _end_of(partition: Partition, wanted: ListOffsetsPartition, *, committed: bool) -> int:
        partition.log.check_epoch(wanted.current_leader_epoch)
        return partition.log.last_stable_offset if committed else partition.log.high_watermark

    def _look_up(
        self,
        partition: Partition,
        wanted: ListOffsetsPartition,
        row: ListOffsetsPartitionResponse,
        version: int,
        *,
        committed: bool,
    ) -> None:
        log, end = partition.log, self._end_of(partition, wanted, committed=committed)
        if wanted.timestamp == LATEST:
            row.offset, epoch = end, log.leader_epoch
        elif wanted.timestamp in (EARLIEST, _EARLIEST_LOCAL):
            row.offset, epoch = log.start_offset, log.epoch_of(log.start_offset)
        elif wanted.timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
            return  # nothing is tiered: offset -1
        else:
            raise UnsupportedForMessageFormatError(f"there is no timestamp {wanted.timestamp}")
        if version >= _WITH_LEADER_EPOCH:
            row.leader_epoch = epoch
        if version == _LISTS:
            _list(wanted, row, row.offset, log.start_offset)

    async def _search_for(
        self,
        partition: Partition,
        wanted: ListOffsetsPartition,
        row: ListOffsetsPartitionResponse,
        committed: bool,
        version: int,
    ) -> None:
        try:
            end = self._end_of(partition, wanted, committed=committed)
            if wanted.timestamp == MAX_TIMESTAMP:
                found = await self._search.greatest(partition)
            else:
                found = await self._search.find(partition, wanted.timestamp)
            if (
                found is not None and found[0] < end
            ):  # what is not decided yet, nobody finds who wants what is committed
                row.offset, row.timestamp = found
                if version >= _WITH_LEADER_EPOCH:
                    row.leader_epoch = partition.log.epoch_of(row.offset)
            if version == _LISTS:
                start = partition.log.start_offset
                _list(wanted, row, end if row.offset < 0 else row.offset, start, before=row.offset != start)
        except KafkaError as error:
            row.error_code = code_of(error)


def _list(
    wanted: ListOffsetsPartition, row: ListOffsetsPartitionResponse, offset: int, start: int, *, before: bool = True
) -> None:
    """What the oldest version tells: offsets before a time, the last one first, as many as are asked for.

    Kafka tells where its segments begin; here the log's start is told in their stead, and nothing where that is not
    before the time.
    """
    offsets = [offset, start] if offset > start else [offset]
    row.old_style_offsets = offsets[: max(wanted.max_num_offsets, 0)] if before else []
    row.offset = row.timestamp = -1  # which that version does not know


class OffsetForLeaderEpochHandler(Handler):
    """Answers OffsetForLeaderEpoch."""

    ONLY_READS: ClassVar[bool] = True
    API: ClassVar[ApiKey] = ApiKey.OFFSET_FOR_LEADER_EPOCH
    VERSIONS: ClassVar[VersionRange] = (0, 4)

    def __init__(self, access: Access, partitions: PartitionTable, leadership: Leadership) -> None:
        self._partitions = NamedPartitions(access, partitions, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION)
        self._internal = InternalPartitions(access, leadership)

    def begin(self, request: OffsetForLeaderEpochRequest, context: RequestContext) -> Begun:
        """Partitions may have to be opened."""
        return cast("Begun", counted(_sizes(request), partial(self._finish, request, context)))

    async def _finish(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse | None:
        response = OffsetForLeaderEpochResponse()
        partitions, pace = self._partitions, Pace(context.connection.flow)
        named = ((topic.topic, each.partition) for topic in request.topics for each in topic.partitions)
        for topic in request.topics:
            await pace.pause()
            answer = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(answer)
            for wanted in topic.partitions:
                if pace.over:
                    await pace.pause()
                    if context.connection.gone:
                        return None
                row = OffsetForLeaderEpochResponseEndOffset(partition=wanted.partition)
                answer.partitions.append(row)
                try:
                    epoch = self._internal.epoch(
                        context.connection, AclOperation.DESCRIBE, topic.topic, wanted.partition,
                        known=wanted.current_leader_epoch,
                    )  # fmt: skip
                    if epoch is not None:
                        if 0 <= wanted.leader_epoch <= epoch:
                            row.leader_epoch, row.end_offset = wanted.leader_epoch, END
                        continue
                    partition = partitions.find(context, topic.topic, wanted.partition)
                    await partitions.ready(partition, context, named, pace)
                    self._look_up(partition, wanted, row)
                except KafkaError as error:
                    row.error_code = code_of(error)
        return response

    @staticmethod
    def _look_up(
        partition: Partition, wanted: OffsetForLeaderPartition, row: OffsetForLeaderEpochResponseEndOffset
    ) -> None:
        partition.log.check_epoch(wanted.current_leader_epoch)
        row.leader_epoch, row.end_offset = partition.log.end_of_epoch(wanted.leader_epoch)


class DeleteRecordsHandler(Handler):
    """Answers DeleteRecords."""

    API: ClassVar[ApiKey] = ApiKey.DELETE_RECORDS
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def __init__(self, access: Access, partitions: PartitionTable) -> None:
        self._partitions = NamedPartitions(access, partitions, AclOperation.DELETE)

    def begin(self, request: DeleteRecordsRequest, context: RequestContext) -> Begun:
        """The new log start has to become durable."""
        return cast("Begun", counted(_sizes(request), partial(self._finish, request, context)))

    async def _finish(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        response = DeleteRecordsResponse()
        partitions, pace = self._partitions, Pace(context.connection.flow)
        named = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        async with side_by_side(_AT_ONCE) as begin:
            for topic in request.topics:
                await pace.pause()
                answer = DeleteRecordsTopicResult(name=topic.name)
                response.topics.append(answer)
                for wanted in topic.partitions:
                    if pace.over:
                        await pace.pause()
                    row = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
                    answer.partitions.append(row)
                    try:
                        partition = partitions.find(context, topic.name, wanted.partition_index)
                        await partitions.ready(partition, context, named, pace)
                        await begin(self._delete, partition, wanted.offset, row)
                    except KafkaError as error:
                        row.error_code = code_of(error)
        return response

    @staticmethod
    async def _delete(partition: Partition, before: int, row: DeleteRecordsPartitionResult) -> None:
        log = partition.log
        try:
            if before == _HIGH_WATERMARK:
                before = log.high_watermark
            if not 0 <= before <= log.high_watermark:
                raise OffsetOutOfRangeError(f"{partition}: {before} is not within the log")
            partition.check_own()
            await partition.trim(before)
            row.low_watermark = log.start_offset
        except KafkaError as error:
            row.error_code = code_of(error)
