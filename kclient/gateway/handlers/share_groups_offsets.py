"""Start offsets of share groups (KIP-932): Describe-, Alter- and DeleteShareGroupOffsets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    InvalidGroupIdError,
    InvalidRequestError,
    KafkaError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers._work import counted, rows_of
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.handlers.share_groups import check_shares_are_on
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.shares.offsets import ShareOffset
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.features import Features
    from kclient.gateway.groups.sharing.administration import ShareGroupAdministration
    from kclient.gateway.peers import PartitionEnds
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable

_PER_PARTITION: Final = 400
"""About how many bytes of memory a partition takes, its row of the response included."""
_PER_TOPIC: Final = 600
_UNKNOWN: Final = -1
"""The start offset of a partition of which nothing was read yet, and the lag where an offset is not known."""
_NO_TOPIC: Final = bytes(16)


class DescribeShareGroupOffsetsHandler(Handler):
    """Tells how far share groups have come."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    VERSIONS: ClassVar[VersionRange] = (0, 1)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(
        self,
        access: Access,
        shares: ShareGroupAdministration,
        topics: TopicTable,
        features: Features,
        ends: PartitionEnds,
    ) -> None:
        self._access = access
        self._shares = shares
        self._topics = topics
        self._features = features
        self._ends = ends

    def begin(self, request: DescribeShareGroupOffsetsRequest, context: RequestContext) -> Begun:
        """What is known of a group is read from the store."""
        check_shares_are_on(self._features)
        sizes = rows_of((topic.partitions for group in request.groups for topic in group.topics or ()), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context)))

    async def _finish(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        pace = Pace(context.connection.flow)
        response = DescribeShareGroupOffsetsResponse()
        for group in request.groups:
            await pace.pause()
            row = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
            response.groups.append(row)
            try:
                self._access.check_group(context.connection, AclOperation.DESCRIBE, group.group_id)
                if group.topics is None:
                    row.topics = await self._all(group.group_id, context.connection)
                else:
                    row.topics = await self._some(group.group_id, group.topics, context.connection)
            except KafkaError as error:
                put_error(row, error, self.ROLE)
        return response

    async def _all(self, group_id: str, client: ConnectionContext) -> list[DescribeShareGroupOffsetsResponseTopic]:
        """All that the group has come to, of topics that the client may see."""
        found = await self._shares.describe(group_id)
        seen: dict[bytes, TopicRecord | None] = {}
        for topic_id, _ in found:
            if topic_id not in seen:
                record = self._topics.by_id(topic_id)
                if record is not None and not _may(self._access, client, AclOperation.DESCRIBE, record.name):
                    record = None
                seen[topic_id] = record
        pace = Pace(client.flow)
        ends = await self._ends.ends([each for each, at in found.items() if seen[each.topic_id] and _started(at)])
        topics: dict[bytes, DescribeShareGroupOffsetsResponseTopic] = {}
        for each in sorted(found):
            if pace.over:
                await pace.pause()
            record = seen[each.topic_id]
            if record is None:  # it has gone, or is none of the client's
                continue
            topic = topics.get(each.topic_id)
            if topic is None:
                topic = DescribeShareGroupOffsetsResponseTopic(topic_name=record.name, topic_id=record.topic_id)
                topics[each.topic_id] = topic
            topic.partitions.append(self._row(each.partition, found[each], ends.get(each)))
        return list(topics.values())

    async def _some(
        self, group_id: str, wanted: list[DescribeShareGroupOffsetsRequestTopic], client: ConnectionContext
    ) -> list[DescribeShareGroupOffsetsResponseTopic]:
        pace = Pace(client.flow)
        records: list[TopicRecord | None] = []
        asked: list[PartitionId] = []
        for topic in wanted:
            if pace.over:
                await pace.pause()
            allowed = _may(self._access, client, AclOperation.DESCRIBE, topic.topic_name)
            record = self._topics.get(topic.topic_name) if allowed else None
            records.append(record)
            if record is not None:
                asked += [PartitionId(record.topic_id, number) for number in topic.partitions]
        found = await self._shares.describe(group_id, asked)
        ends = await self._ends.ends([each for each, at in found.items() if _started(at)])
        rows: list[DescribeShareGroupOffsetsResponseTopic] = []
        for topic, record in zip(wanted, records, strict=True):
            topic_id = _NO_TOPIC if record is None else record.topic_id
            row = DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=topic_id)
            rows.append(row)
            allowed = record is not None or _may(self._access, client, AclOperation.DESCRIBE, topic.topic_name)
            for number in topic.partitions:
                if pace.over:
                    await pace.pause()
                each = PartitionId(topic_id, number)
                told = self._row(number, found.get(each), ends.get(each))
                row.partitions.append(told)
                if not allowed:
                    put_error(told, _refused(client, AclOperation.DESCRIBE, topic.topic_name), self.ROLE)
        return rows

    def _row(
        self, number: int, at: ShareOffset | KafkaError | None, end: int | None
    ) -> DescribeShareGroupOffsetsResponsePartition:
        row = DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=_UNKNOWN, leader_epoch=0)
        if isinstance(at, KafkaError):
            put_error(row, at, self.ROLE)
        elif at is not None:
            row.start_offset, row.leader_epoch = at.start, max(at.leader_epoch, 0)
            if _started(at) and end is not None:
                row.lag = end - at.start - at.complete
        return row

    def fail(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext, error: KafkaError
    ) -> DescribeShareGroupOffsetsResponse:
        """The same error for each group."""

        def failed(group: DescribeShareGroupOffsetsRequestGroup) -> DescribeShareGroupOffsetsResponseGroup:
            row = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
            put_error(row, error, self.ROLE)
            return row

        return DescribeShareGroupOffsetsResponse(groups=[failed(group) for group in request.groups])


class AlterShareGroupOffsetsHandler(Handler):
    """Has share groups without members go on from other offsets."""

    API: ClassVar[ApiKey] = ApiKey.ALTER_SHARE_GROUP_OFFSETS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(
        self, access: Access, shares: ShareGroupAdministration, topics: TopicTable, features: Features
    ) -> None:
        self._access = access
        self._shares = shares
        self._topics = topics
        self._features = features

    def begin(self, request: AlterShareGroupOffsetsRequest, context: RequestContext) -> Begun:
        """The answer waits for the store."""
        check_shares_are_on(self._features)
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        if not request.group_id:
            raise InvalidGroupIdError("The group id is invalid.")
        sizes = rows_of((topic.partitions for topic in request.topics), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context)))

    async def _finish(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        client = context.connection
        pace = Pace(client.flow)
        response = AlterShareGroupOffsetsResponse()
        offsets: dict[PartitionId, int] = {}
        for topic in request.topics:
            answer = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=_NO_TOPIC)
            response.responses.append(answer)
            problem, record = _usable(self._access, self._topics, client, topic.topic_name)
            if record is not None:
                answer.topic_id = record.topic_id
            for wanted in topic.partitions:
                if pace.over:
                    await pace.pause()
                number, start = wanted.partition_index, wanted.start_offset
                row = AlterShareGroupOffsetsResponsePartition(partition_index=number)
                answer.partitions.append(row)
                found = problem
                if record is not None and not 0 <= number < record.partitions:
                    found = UnknownTopicOrPartitionError(f"there is no partition {record.name}-{number}")
                elif start < _UNKNOWN:
                    found = InvalidRequestError(f"{start} is not an offset")
                if found is not None:
                    put_error(row, found, self.ROLE)
                elif record is not None:
                    offsets[PartitionId(record.topic_id, number)] = start
        try:
            await self._shares.alter(request.group_id, offsets)
        except KafkaError as error:
            return cast("AlterShareGroupOffsetsResponse", self.fail(request, context, error))
        return response


class DeleteShareGroupOffsetsHandler(Handler):
    """Has share groups without members forget how far they have come in topics."""

    API: ClassVar[ApiKey] = ApiKey.DELETE_SHARE_GROUP_OFFSETS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(
        self, access: Access, shares: ShareGroupAdministration, topics: TopicTable, features: Features
    ) -> None:
        self._access = access
        self._shares = shares
        self._topics = topics
        self._features = features

    def begin(self, request: DeleteShareGroupOffsetsRequest, context: RequestContext) -> Begun:
        """The answer waits for the store."""
        check_shares_are_on(self._features)
        self._access.check_group(context.connection, AclOperation.DELETE, request.group_id)
        sizes: Iterator[int] = (_PER_TOPIC for _ in request.topics)
        return cast("Begun", counted(sizes, partial(self._finish, request, context)))

    async def _finish(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        client = context.connection
        response = DeleteShareGroupOffsetsResponse()
        rows: dict[bytes, DeleteShareGroupOffsetsResponseTopic] = {}
        pace = Pace(client.flow)
        for name in dict.fromkeys(topic.topic_name for topic in request.topics):
            if pace.over:
                await pace.pause()
            row = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=_NO_TOPIC)
            response.responses.append(row)
            problem, record = _usable(self._access, self._topics, client, name)
            if problem is not None:
                put_error(row, problem, self.ROLE)
            elif record is not None:
                rows[record.topic_id] = row
        try:
            known = await self._shares.forget(request.group_id, rows.keys())
        except KafkaError as error:
            return cast("DeleteShareGroupOffsetsResponse", self.fail(request, context, error))
        for topic_id, row in rows.items():
            if topic_id in known:
                row.topic_id = topic_id
            else:
                nothing = UnknownTopicOrPartitionError("There is no offset information to delete.")
                put_error(row, nothing, self.ROLE)
        return response


def _started(at: ShareOffset | KafkaError) -> bool:
    """Whether a group has begun to read a partition."""
    return isinstance(at, ShareOffset) and at.start > _UNKNOWN


def _usable(
    access: Access, topics: TopicTable, client: ConnectionContext, name: str
) -> tuple[KafkaError | None, TopicRecord | None]:
    """The topic of a name, for who changes offsets; or why there is none for this client."""
    if not _may(access, client, AclOperation.READ, name):
        return _refused(client, AclOperation.READ, name), None
    record = topics.get(name)
    if record is None:
        return UnknownTopicOrPartitionError(f"there is no topic {name[:300]}"), None
    return None, record


def _may(access: Access, client: ConnectionContext, operation: AclOperation, topic: str) -> bool:
    return access.allows(client, operation, ResourceType.TOPIC, topic, asked=True)


def _refused(client: ConnectionContext, operation: AclOperation, topic: str) -> TopicAuthorizationError:
    return TopicAuthorizationError(f"{client.principal} may not {operation.name} the topic {topic[:300]}")
