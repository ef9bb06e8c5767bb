"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, cast

from kclient.acls import AclOperation, ResourceType
from kclient.concurrency import Completion
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.groups.offsets import GroupOffsets, OffsetCommit
from kclient.gateway.handlers._work import FEW, Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.rows.groups import CommittedOffset
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kclient.protocol.messages.offsets import OffsetCommitRequestTopic, OffsetFetchRequestTopic
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.clock import Clock
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.groups.committed import CommittedOffsets
    from kclient.gateway.groups.writer import Write
    from kclient.gateway.topics.record import TopicRecord


_WITH_TOPIC_IDS = 10  # OffsetCommit and OffsetFetch name topics by id from this version on
_WITH_GROUP_ID_NOT_FOUND = 9
_WITH_ERROR_CODE = 2  # OffsetFetch has a code for all of the response from this version on
_WITH_GROUPS = 8  # OffsetFetch asks for several groups from this version on
_NOTHING = CommittedOffset(-1)

_PER_PARTITION: Final = 200
"""About how many bytes of memory a partition takes while it is stored, its row of the response included."""

_ROWS_AT_ONCE: Final = 1024
"""Rows of the response that are told of an outcome between two looks at the clock."""

_Response: TypeAlias = OffsetCommitResponse | OffsetDeleteResponse
_Partition: TypeAlias = OffsetCommitResponsePartition | OffsetDeleteResponsePartition


class _Stored:
    """The partitions of a request that are to be stored, and their rows of the response.

    They go to the store as one, in the turn in which the group is found to allow it.

    Args:
        response: The response.
        gone: What is said of partitions whose topic is deleted before they are stored.
    """

    def __init__(self, response: _Response, gone: ErrorCode) -> None:
        self.commit: OffsetCommit = OffsetCommit()
        self._response = response
        self._gone = gone
        self._rows: dict[TopicRecord, list[_Partition]] = {}
        self._count = 0
        self._withheld: dict[str, ErrorCode] = {}

    def add(self, record: TopicRecord, number: int, committed: CommittedOffset | None, row: _Partition) -> None:
        """One more partition of a topic, and its row of the response."""
        self.commit.add(record, number, committed)
        self._rows.setdefault(record, []).append(row)
        self._count += 1

    def withhold(self, topics: Iterable[str], error: ErrorCode) -> None:
        """Those of some topics are not stored."""
        self._withheld = dict.fromkeys(topics, error)
        self.commit.drop(self._withheld)

    def nothing(self, error: ErrorCode) -> Work:
        """The response, where nothing is stored."""
        yield from self._tell(error)
        return self._response

    def answer(self, write: Write) -> Work:
        """The response, once everything is stored or has failed."""
        if self._count > FEW:
            yield write
            yield from self._tell(write.result())
            return self._response
        done: Completion[_Response] = Completion()

        def tell(write: Completion[ErrorCode]) -> None:
            for _ in self._tell(write.result()):
                pass
            done.set_result(self._response)

        write.on_done(tell)
        return self._response if done.done else done

    def _tell(self, error: ErrorCode) -> Iterator[None]:
        for record, rows in self._rows.items():
            code = self._withheld.get(record.name) or error or (self._gone if record.gone else ErrorCode.NONE)
            for count, row in enumerate(rows if code else (), 1):
                row.error_code = code
                if count % _ROWS_AT_ONCE == 0:
                    yield None
            yield None


class OffsetCommitHandler(Handler):
    """Stores the positions of groups."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT
    VERSIONS: ClassVar[VersionRange] = (0, 10)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: CommittedOffsets, clock: Clock) -> None:
        self._access = access
        self._groups = groups
        self._clock = clock

    def begin(self, request: OffsetCommitRequest, context: RequestContext) -> Begun:
        """Check each partition, and send those that are right to the store."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: OffsetCommitRequest, context: RequestContext) -> Work:
        version, client = context.api_version, context.connection
        response = OffsetCommitResponse()
        by_id = version >= _WITH_TOPIC_IDS
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stored = _Stored(response, unknown)
        now_ms = self._clock.wall_ms()
        count = 0
        for topic in request.topics:
            missing = ErrorCode.NONE
            record: TopicRecord | None = None
            try:
                topic_id = topic.topic_id if by_id else None
                record = self._access.described(client, AclOperation.READ, topic.name, topic_id)
            except KafkaError as error:
                missing = ErrorCode(code_of(error))
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            count += 1
            if count % FEW == 0:
                yield _PER_PARTITION * FEW
            for partition in topic.partitions:
                count += 1
                if count % FEW == 0:
                    yield _PER_PARTITION * FEW
                code = missing if record is None else self._check(record, partition)
                row = OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                answer.partitions.append(row)
                if not code and record is not None:
                    committed = _committed(partition, now_ms, request.retention_time_ms)
                    stored.add(record, partition.partition_index, committed, row)
        yield from self._groups.measure(request.group_id, stored.commit)
        # whatever became of the group meanwhile: it is asked and told in one turn, at the end
        refused = self._refused(request, version, stored.commit) or self._groups.check_room(
            request.group_id, stored.commit
        )
        if refused or not stored.commit.size:
            return (yield from stored.nothing(refused))
        return (yield from stored.answer(self._groups.commit(request.group_id, stored.commit)))

    def _refused(self, request: OffsetCommitRequest, version: int, commit: OffsetCommit) -> ErrorCode:
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= _WITH_GROUP_ID_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION
        return self._groups.check_commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            missing=missing,
            commit=commit,
            version=version,
        )

    def _check(self, record: TopicRecord, partition: OffsetCommitRequestPartition) -> ErrorCode:
        if not 0 <= partition.partition_index < record.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        longest = self._groups.settings.offset_metadata_max_bytes
        if len(partition.committed_metadata or "") > longest:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def fail(self, request: OffsetCommitRequest, context: RequestContext, error: KafkaError) -> OffsetCommitResponse:
        """The answer to a commit that failed as a whole."""
        code = code_of(error, self.ROLE)

        def partition(asked: OffsetCommitRequestPartition) -> OffsetCommitResponsePartition:
            return OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)

        def answered(topic: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
            partitions = rows_for(topic.partitions, partition)
            return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)

        return OffsetCommitResponse(topics=rows_for(request.topics, answered))


def _committed(partition: OffsetCommitRequestPartition, now_ms: int, retention_ms: int) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        now_ms if partition.commit_timestamp < 0 else partition.commit_timestamp,
        None if retention_ms < 0 else now_ms + retention_ms,
    )


class OffsetFetchHandler(Handler):
    """Tells the positions of groups, whatever state they are in.

    Whoever sets `require_stable` is told UNSTABLE_OFFSET_COMMIT of those that an open transaction is to commit.
    """

    API: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH
    VERSIONS: ClassVar[VersionRange] = (0, 10)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, groups: CommittedOffsets) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: OffsetFetchRequest, context: RequestContext) -> Begun:
        """Look the offsets up."""
        return cast("Begun", started(self._begin(request, context)))

    def fail(self, request: OffsetFetchRequest, context: RequestContext, error: KafkaError) -> OffsetFetchResponse:
        """The answer to a request that failed as a whole; the oldest version has a code for each partition only."""
        code = ErrorCode(code_of(error, self.ROLE))
        response = OffsetFetchResponse(error_code=code)
        if context.api_version < _WITH_ERROR_CODE:

            def partition(number: int) -> OffsetFetchResponsePartition:
                return _refused_row(number, code)

            def answered(topic: OffsetFetchRequestTopic) -> OffsetFetchResponseTopic:
                partitions = rows_for(topic.partition_indexes, partition)
                return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)

            response.topics = rows_for(request.topics or (), answered)
        return response

    def _begin(self, request: OffsetFetchRequest, context: RequestContext) -> Work:
        client = context.connection
        if context.api_version >= _WITH_GROUPS:
            stable = request.require_stable
            answers = [self._group(group, context, stable=stable) for group in request.groups[:FEW]]
            if len(request.groups) > FEW or any(map(_is_large, answers)):
                yield None
            rest = (self._group(group, context, stable=stable) for group in islice(request.groups, FEW, None))
            return OffsetFetchResponse(groups=lazily(len(request.groups), chain(answers, rest)))
        self._access.check_group(client, AclOperation.DESCRIBE, request.group_id)
        offsets = self._groups.of(request.group_id)
        if request.topics is None:
            wanted = self._everything(offsets, client)
        else:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        if len(wanted) > FEW or any(len(partitions) > FEW for _, partitions in wanted):
            yield None
        rows = (
            OffsetFetchResponseTopic(
                name=name,
                partitions=lazily(
                    len(partitions), self._old_rows(offsets, name, partitions, client, stable=request.require_stable)
                ),
            )
            for name, partitions in wanted
        )
        return OffsetFetchResponse(topics=lazily(len(wanted), rows))

    def _group(
        self, group: OffsetFetchRequestGroup, context: RequestContext, *, stable: bool
    ) -> OffsetFetchResponseGroup:
        access, client = self._access, context.connection
        response = OffsetFetchResponseGroup(group_id=group.group_id)
        try:
            access.check_group(client, AclOperation.DESCRIBE, group.group_id)
        except KafkaError as error:
            response.error_code = code_of(error, self.ROLE)
            return response
        response.error_code = self._groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
        if response.error_code:
            return response
        offsets = self._groups.of(group.group_id)
        by_id = context.api_version >= _WITH_TOPIC_IDS
        if group.topics is None:
            for name, indexes in self._everything(offsets, client):
                record = access.find(client, AclOperation.DESCRIBE, name, None)
                record = record or access.internal(client, AclOperation.DESCRIBE, name)
                if record is not None or not by_id:
                    topic_id = record.topic_id if record is not None else bytes(16)
                    response.topics.append(_answer(offsets, name, topic_id, indexes, ErrorCode.NONE, stable=stable))
            return response
        rows = (self._of_topic(offsets, topic, client, by_id=by_id, stable=stable) for topic in group.topics)
        response.topics = list(rows) if len(group.topics) <= FEW else lazily(len(group.topics), rows)
        return response

    def _of_topic(
        self,
        offsets: GroupOffsets | None,
        topic: OffsetFetchRequestTopics,
        client: ConnectionContext,
        *,
        by_id: bool,
        stable: bool,
    ) -> OffsetFetchResponseTopics:
        name, error = topic.name, ErrorCode.NONE
        if by_id:
            name = ""
            try:
                name = self._access.described(client, AclOperation.DESCRIBE, "", topic.topic_id).name
            except KafkaError as refusal:
                error = ErrorCode(code_of(refusal))
        else:
            error = self._refusal(client, name)
        return _answer(offsets, name, topic.topic_id, topic.partition_indexes, error, stable=stable)

    def _everything(self, offsets: GroupOffsets | None, client: ConnectionContext) -> list[tuple[str, list[int]]]:
        """What a group has committed, of topics that the client may see."""
        if offsets is None:
            return []
        topics = offsets.topics()
        seen = self._access.allowed(client, AclOperation.DESCRIBE, ResourceType.TOPIC, topics)
        return [(name, list(topics[name])) for name in seen]

    def _old_rows(
        self,
        offsets: GroupOffsets | None,
        name: str,
        partitions: Sequence[int],
        client: ConnectionContext,
        *,
        stable: bool,
    ) -> Iterator[OffsetFetchResponsePartition]:
        code = self._refusal(client, name)
        if code is ErrorCode.NONE:
            return (
                _refused_row(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if stable and _is_unstable(offsets, name, partition)
                else _old_row(offsets, name, partition)
                for partition in partitions
            )
        return (_refused_row(partition, code) for partition in partitions)

    def _refusal(self, client: ConnectionContext, name: str) -> ErrorCode:
        """Why a client is not told of a topic's offsets; that it is not there is no reason."""
        try:
            allowed = self._access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name, asked=True)
        except KafkaError as error:
            return ErrorCode(code_of(error))
        return ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _is_large(group: OffsetFetchResponseGroup) -> bool:
    # many topics are made when they are written, and must not be looked at before
    return len(group.topics) > FEW or any(len(topic.partitions) > FEW for topic in group.topics)


def _found(offsets: GroupOffsets | None, topic: str, partition: int) -> CommittedOffset:
    return (None if offsets is None else offsets.get(topic, partition)) or _NOTHING


def _is_unstable(offsets: GroupOffsets | None, topic: str, partition: int) -> bool:
    return offsets is not None and offsets.unstable(topic, partition)


def _old_row(offsets: GroupOffsets | None, name: str, partition: int) -> OffsetFetchResponsePartition:
    found = _found(offsets, name, partition)
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _refused_row(partition: int, code: ErrorCode) -> OffsetFetchResponsePartition:
    row = _old_row(None, "", partition)
    row.error_code = code
    return row


def _row(
    offsets: GroupOffsets | None, name: str, partition: int, error: ErrorCode, *, stable: bool
) -> OffsetFetchResponsePartitions:
    if stable and not error and _is_unstable(offsets, name, partition):
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    found = _NOTHING if error else _found(offsets, name, partition)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error,
    )


def _answer(
    offsets: GroupOffsets | None, name: str, topic_id: bytes, partitions: list[int], error: ErrorCode, *, stable: bool
) -> OffsetFetchResponseTopics:
    rows = (_row(offsets, name, partition, error, stable=stable) for partition in partitions)
    return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=lazily(len(partitions), rows))


class OffsetDeleteHandler(Handler):
    """Forgets the positions of groups, of partitions that nobody reads (KIP-496)."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: CommittedOffsets) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: OffsetDeleteRequest, context: RequestContext) -> Begun:
        """Check each partition, and have the store forget those that are right."""
        self._access.check_group(context.connection, AclOperation.DELETE, request.group_id)
        return cast("Begun", started(self._begin(request, context.connection)))

    def _begin(self, request: OffsetDeleteRequest, client: ConnectionContext) -> Work:
        groups = self._groups
        response = OffsetDeleteResponse()
        stored = _Stored(response, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        count = 0
        for topic in request.topics:
            missing = ErrorCode.NONE
            record: TopicRecord | None = None
            try:
                record = self._access.described(client, AclOperation.READ, topic.name)
            except KafkaError as error:
                missing = ErrorCode(code_of(error))
            answer = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answer)
            count += 1
            if count % FEW == 0:
                yield _PER_PARTITION * FEW
            for partition in topic.partitions:
                count += 1
                if count % FEW == 0:
                    yield _PER_PARTITION * FEW
                row = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
                answer.partitions.append(row)
                there = record is not None and 0 <= partition.partition_index < record.partitions
                if record is not None and not there:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif record is not None and groups.unstable(request.group_id, record.name, partition.partition_index):
                    row.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT  # once the transaction has ended it may go
                elif record is not None:
                    stored.add(record, partition.partition_index, None, row)
                else:
                    row.error_code = missing
        # from its answer on in one turn
        refused, subscribed = yield from groups.check_delete(
            request.group_id, (record.name for record in stored.commit.topics)
        )
        if refused:
            return OffsetDeleteResponse(error_code=refused)
        stored.withhold(subscribed, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        if not stored.commit.size:
            return (yield from stored.nothing(ErrorCode.NONE))
        return (yield from stored.answer(groups.delete(request.group_id, stored.commit)))
