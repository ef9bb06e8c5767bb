"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, cast

from kclient.concurrency import Completion
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.groups.offsets import CommittedOffset, GroupOffsets
from kclient.gateway.groups.replies import Answer
from kclient.gateway.handlers import Begun, Handler
from kclient.gateway.handlers._work import FEW, Work, lazily, started
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
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.gateway.core import RequestContext
    from kclient.gateway.groups.writer import Write
    from kclient.gateway.topics import TopicRecord

API_VERSIONS = {
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.OFFSET_DELETE: (0, 0),
}

_WITH_TOPIC_IDS = 10  # OffsetCommit and OffsetFetch name topics by id from this version on
_WITH_GROUP_ID_NOT_FOUND = 9
_NOTHING = CommittedOffset(-1)

_PER_PARTITION: Final = 120
"""About how many bytes of memory a partition's row of the response takes."""
_UNDER_WAY: Final = 16
"""So many times `_AT_A_TIME` partitions of one request are on their way to the store at a time."""
_AT_A_TIME: Final = 128
"""Partitions that are handed to the store at a time: others come in between."""

_Response: TypeAlias = OffsetCommitResponse | OffsetDeleteResponse
_Partition: TypeAlias = OffsetCommitResponsePartition | OffsetDeleteResponsePartition


class _Storing:
    """Partitions on their way to the store, and the response that says how that went.

    Args:
        submit: Hands some of them to the store, with their topics by name.
        response: The response.
        gone: What is said of partitions whose topic is deleted before they are handed over.
    """

    def __init__(
        self,
        submit: Callable[[Mapping[TopicPartition, CommittedOffset], Mapping[str, TopicRecord]], Write],
        response: _Response,
        gone: ErrorCode,
    ) -> None:
        self._submit = submit
        self._response = response
        self._gone = gone
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._records: dict[str, TopicRecord] = {}
        self._rows: list[tuple[TopicRecord, _Partition]] = []
        self._writes: deque[Write] = deque()
        self._left = 1  # this object, until everything has been handed over
        self._done: Completion[_Response] = Completion()

    def add(self, record: TopicRecord, index: int, committed: CommittedOffset, row: _Partition) -> None:
        """One more partition of a topic, and its row of the response."""
        if len(self._rows) >= _AT_A_TIME or self._records.get(record.name, record) is not record:
            self._hand_over()
        self._records[record.name] = record
        self._offsets[TopicPartition(record.name, index)] = committed
        self._rows.append((record, row))

    def answer(self) -> Answer[_Response]:
        """The response, once the store has answered for all."""
        if self._rows:
            self._hand_over()
        self._one_done()
        return self._response if self._done.done else self._done

    def _hand_over(self) -> None:
        offsets, records = self._offsets, self._records
        rows = [row for record, row in self._rows if not record.gone]
        if len(rows) < len(self._rows):
            for record, row in self._rows:
                if record.gone:
                    row.error_code = self._gone
            offsets = {key: value for key, value in offsets.items() if not records[key.topic].gone}
        self._offsets, self._records, self._rows = {}, {}, []
        if not rows:
            return
        self._left += 1
        write = self._submit(offsets, records)
        self._writes.append(write)
        write.on_done(lambda write: self._stored(rows, write.result()))

    def backlog(self) -> Write | None:
        """What to wait for before more is handed over; None if there is room."""
        while self._writes and self._writes[0].done:
            self._writes.popleft()
        return self._writes.popleft() if len(self._writes) > _UNDER_WAY else None

    def _stored(self, rows: list[_Partition], error: ErrorCode) -> None:
        if error:
            for row in rows:
                row.error_code = error
        self._one_done()

    def _one_done(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set_result(self._response)


class OffsetCommitHandler(Handler):
    """Stores the positions of groups."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT
    ROLE: ClassVar[Role] = Role.GROUPS

    def begin(self, request: OffsetCommitRequest, context: RequestContext) -> Begun:
        """Check each partition, and send those that are right to the store."""
        return cast("Begun", started(self._begin(request, context.api_version)))

    def _begin(self, request: OffsetCommitRequest, version: int) -> Work:
        groups = self.core.groups
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= _WITH_GROUP_ID_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION
        refused = groups.check_commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            missing=missing,
        )
        response = OffsetCommitResponse()
        by_id = version >= _WITH_TOPIC_IDS
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stored = _Storing(partial(groups.commit, request.group_id), response, unknown)
        count = 0
        for topic in request.topics:
            record = self.core.topics.by_id(topic.topic_id) if by_id else self.core.topics.get(topic.name)
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            for partition in topic.partitions:
                count += 1
                if count % FEW == 0:
                    yield _PER_PARTITION * FEW
                    yield stored.backlog()
                error = refused or (unknown if record is None else self._check(record, partition))
                row = OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                answer.partitions.append(row)
                if not error and record is not None:
                    committed = self._committed(partition, request.retention_time_ms)
                    stored.add(record, partition.partition_index, committed, row)
        return stored.answer()

    def _check(self, record: TopicRecord, partition: OffsetCommitRequestPartition) -> ErrorCode:
        if not 0 <= partition.partition_index < record.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        longest = self.core.groups.settings.offset_metadata_max_bytes
        if len(partition.committed_metadata or "") > longest:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(self, partition: OffsetCommitRequestPartition, retention_ms: int) -> CommittedOffset:
        now_ms = self.core.wall_ms()
        return CommittedOffset(
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            now_ms,
            None if retention_ms < 0 else now_ms + retention_ms,
        )

    def fail(self, request: OffsetCommitRequest, context: RequestContext, error: KafkaError) -> OffsetCommitResponse:
        """The answer to a commit that failed as a whole."""
        code = code_of(error, self.ROLE)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


class OffsetFetchHandler(Handler):
    """Tells the positions of groups, whatever state they are in.

    `require_stable` asks to wait for open transactions; there are none yet, so every offset is stable.
    """

    API: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def begin(self, request: OffsetFetchRequest, context: RequestContext) -> Begun:
        """Look the offsets up."""
        return cast("Begun", started(self._begin(request, context.api_version)))

    def _begin(self, request: OffsetFetchRequest, version: int) -> Work:
        if version >= 8:
            answers = [self._group(group, version) for group in request.groups[:FEW]]
            if len(request.groups) > FEW or any(map(_is_large, answers)):
                yield None
            rest = (self._group(group, version) for group in islice(request.groups, FEW, None))
            return OffsetFetchResponse(groups=lazily(len(request.groups), chain(answers, rest)))
        offsets = self.core.groups.offsets(request.group_id)
        if request.topics is None:
            wanted = _everything(offsets)
        else:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        if len(wanted) > FEW or any(len(partitions) > FEW for _, partitions in wanted):
            yield None
        rows = (
            OffsetFetchResponseTopic(
                name=name,
                partitions=lazily(len(partitions), (_old_row(offsets, name, partition) for partition in partitions)),
            )
            for name, partitions in wanted
        )
        return OffsetFetchResponse(topics=lazily(len(wanted), rows))

    def _group(self, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
        offsets = self.core.groups.offsets(group.group_id)
        by_id = version >= _WITH_TOPIC_IDS
        response = OffsetFetchResponseGroup(group_id=group.group_id)
        if group.topics is None:
            for name, indexes in _everything(offsets):
                record = self.core.topics.get(name)
                if record is not None or not by_id:
                    topic_id = record.topic_id if record is not None else bytes(16)
                    response.topics.append(_answer(offsets, name, topic_id, indexes, ErrorCode.NONE))
            return response
        rows = (self._of_topic(offsets, topic, by_id=by_id) for topic in group.topics)
        response.topics = list(rows) if len(group.topics) <= FEW else lazily(len(group.topics), rows)
        return response

    def _of_topic(
        self, offsets: GroupOffsets | None, topic: OffsetFetchRequestTopics, *, by_id: bool
    ) -> OffsetFetchResponseTopics:
        name, error = topic.name, ErrorCode.NONE
        if by_id:
            record = self.core.topics.by_id(topic.topic_id)
            name = "" if record is None else record.name
            error = ErrorCode.UNKNOWN_TOPIC_ID if record is None else ErrorCode.NONE
        return _answer(offsets, name, topic.topic_id, topic.partition_indexes, error)


def _everything(offsets: GroupOffsets | None) -> list[tuple[str, list[int]]]:
    return [] if offsets is None else [(name, list(partitions)) for name, partitions in offsets.topics().items()]


def _is_large(group: OffsetFetchResponseGroup) -> bool:
    # many topics are made when they are written, and must not be looked at before
    return len(group.topics) > FEW or any(len(topic.partitions) > FEW for topic in group.topics)


def _found(offsets: GroupOffsets | None, topic: str, partition: int) -> CommittedOffset:
    return (None if offsets is None else offsets.get(topic, partition)) or _NOTHING


def _old_row(offsets: GroupOffsets | None, name: str, partition: int) -> OffsetFetchResponsePartition:
    found = _found(offsets, name, partition)
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _row(offsets: GroupOffsets | None, name: str, partition: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    found = _NOTHING if error else _found(offsets, name, partition)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error,
    )


def _answer(
    offsets: GroupOffsets | None, name: str, topic_id: bytes, partitions: list[int], error: ErrorCode
) -> OffsetFetchResponseTopics:
    rows = (_row(offsets, name, partition, error) for partition in partitions)
    return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=lazily(len(partitions), rows))


class OffsetDeleteHandler(Handler):
    """Forgets the positions of groups, of partitions that nobody reads (KIP-496)."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE
    ROLE: ClassVar[Role] = Role.GROUPS

    def begin(self, request: OffsetDeleteRequest, context: RequestContext) -> Begun:
        """Check each partition, and have the store forget those that are right."""
        return cast("Begun", started(self._begin(request)))

    def _begin(self, request: OffsetDeleteRequest) -> Work:
        groups = self.core.groups
        error, subscribed = yield from groups.check_offset_delete(request.group_id)
        if error:
            return OffsetDeleteResponse(error_code=error)
        response = OffsetDeleteResponse()
        stored = _Storing(
            lambda offsets, _: groups.delete_offsets(request.group_id, offsets),
            response,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        count = 0
        for topic in request.topics:
            record = self.core.topics.get(topic.name)
            error = self._check(record, topic.name, subscribed)
            answer = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answer)
            for partition in topic.partitions:
                count += 1
                if count % FEW == 0:
                    yield _PER_PARTITION * FEW
                    yield stored.backlog()
                row = OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=error)
                answer.partitions.append(row)
                if record is not None and not error:
                    stored.add(record, partition.partition_index, _NOTHING, row)
        return stored.answer()

    @staticmethod
    def _check(record: TopicRecord | None, topic: str, subscribed: Container[str]) -> ErrorCode:
        if record is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE


HANDLERS: dict[ApiKey, type[Handler]] = {
    ApiKey.OFFSET_COMMIT: OffsetCommitHandler,
    ApiKey.OFFSET_FETCH: OffsetFetchHandler,
    ApiKey.OFFSET_DELETE: OffsetDeleteHandler,
}
