"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.groups.offsets import CommittedOffset, GroupOffsets
from kclient.gateway.groups.replies import Answer, when_done
from kclient.gateway.handlers import Handler
from kclient.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
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

API_VERSIONS = {
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.OFFSET_DELETE: (0, 0),
}

_WITH_TOPIC_IDS = 10  # OffsetCommit and OffsetFetch name topics by id from this version on
_WITH_GROUP_ID_NOT_FOUND = 9
_NOTHING = CommittedOffset(-1)

_Response = TypeVar("_Response", OffsetCommitResponse, OffsetDeleteResponse)


def _stored(
    response: _Response,
    answers: Iterable[OffsetCommitResponsePartition | OffsetDeleteResponsePartition],
    error: ErrorCode,
) -> _Response:
    """The response, once the store has answered for the partitions that were right."""
    for answer in answers:
        answer.error_code = error
    return response


class OffsetCommitHandler(Handler):
    """Stores the positions of groups."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT

    def begin(self, request: OffsetCommitRequest, context: RequestContext) -> Answer[OffsetCommitResponse]:
        """Check each partition, and send those that are right to the store."""
        groups = self.core.groups
        version = context.api_version
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= _WITH_GROUP_ID_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION
        refused = groups.check_commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            missing=missing,
        )
        accepted: dict[TopicPartition, CommittedOffset] = {}
        answered: list[OffsetCommitResponsePartition] = []  # those that wait for the store
        topics = [
            self._topic(topic, request.retention_time_ms, version, refused, accepted, answered)
            for topic in request.topics
        ]
        response = OffsetCommitResponse(topics=topics)
        if not accepted:
            return response
        return when_done(groups.commit(request.group_id, accepted), partial(_stored, response, answered))

    def _topic(
        self,
        topic: OffsetCommitRequestTopic,
        retention_ms: int,
        version: int,
        refused: ErrorCode,
        accepted: dict[TopicPartition, CommittedOffset],
        answered: list[OffsetCommitResponsePartition],
    ) -> OffsetCommitResponseTopic:
        by_id = version >= _WITH_TOPIC_IDS
        record = self.core.topics.by_id(topic.topic_id) if by_id else self.core.topics.get(topic.name)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        for partition in topic.partitions:
            error = refused or (unknown if record is None else self._check(partition))
            answer = OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            response.partitions.append(answer)
            if not error and record is not None:
                key = TopicPartition(record.name, partition.partition_index)
                accepted[key] = self._committed(partition, retention_ms)
                answered.append(answer)
        return response

    def _check(self, partition: OffsetCommitRequestPartition) -> ErrorCode:
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
        code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
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

    def begin(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        """Look the offsets up."""
        if context.api_version >= 8:
            return OffsetFetchResponse(groups=[self._group(group, context.api_version) for group in request.groups])
        offsets = self.core.groups.offsets(request.group_id)
        if request.topics is None:
            wanted: Iterable[tuple[str, Iterable[int]]] = _everything(offsets)
        else:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=partition,
                            committed_offset=found.offset,
                            committed_leader_epoch=found.leader_epoch,
                            metadata=found.metadata,
                        )
                        for partition in partitions
                        for found in (_found(offsets, name, partition),)
                    ],
                )
                for name, partitions in wanted
            ]
        )

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
        for topic in group.topics:
            name, error = topic.name, ErrorCode.NONE
            if by_id:
                record = self.core.topics.by_id(topic.topic_id)
                name = "" if record is None else record.name
                error = ErrorCode.UNKNOWN_TOPIC_ID if record is None else ErrorCode.NONE
            response.topics.append(_answer(offsets, name, topic.topic_id, topic.partition_indexes, error))
        return response


def _everything(offsets: GroupOffsets | None) -> list[tuple[str, Iterable[int]]]:
    return [] if offsets is None else [(name, sorted(partitions)) for name, partitions in offsets.topics().items()]


def _found(offsets: GroupOffsets | None, topic: str, partition: int) -> CommittedOffset:
    return (None if offsets is None else offsets.get(topic, partition)) or _NOTHING


def _answer(
    offsets: GroupOffsets | None, name: str, topic_id: bytes, partitions: Iterable[int], error: ErrorCode
) -> OffsetFetchResponseTopics:
    response = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
    for partition in partitions:
        found = _NOTHING if error else _found(offsets, name, partition)
        response.partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=error,
            )
        )
    return response


class OffsetDeleteHandler(Handler):
    """Forgets the positions of groups, of partitions that nobody reads (KIP-496)."""

    API: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE

    def begin(self, request: OffsetDeleteRequest, context: RequestContext) -> Answer[OffsetDeleteResponse]:
        """Check each partition, and have the store forget those that are right."""
        groups = self.core.groups
        error, subscribed = groups.check_offset_delete(request.group_id)
        if error:
            return OffsetDeleteResponse(error_code=error)
        gone: list[TopicPartition] = []
        answered: list[OffsetDeleteResponsePartition] = []
        response = OffsetDeleteResponse()
        for topic in request.topics:
            error = self._check(topic.name, subscribed)
            answers = [
                OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=error)
                for partition in topic.partitions
            ]
            response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
            if not error:
                gone += [TopicPartition(topic.name, partition.partition_index) for partition in topic.partitions]
                answered += answers
        if not gone:
            return response
        return when_done(groups.delete_offsets(request.group_id, gone), partial(_stored, response, answered))

    def _check(self, topic: str, subscribed: set[str]) -> ErrorCode:
        if self.core.topics.get(topic) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE


HANDLERS: dict[ApiKey, type[Handler]] = {
    ApiKey.OFFSET_COMMIT: OffsetCommitHandler,
    ApiKey.OFFSET_FETCH: OffsetFetchHandler,
    ApiKey.OFFSET_DELETE: OffsetDeleteHandler,
}
