"""Committing offsets and fetching committed ones: the requests, and what their answers mean."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kclient.cluster import ZERO_ID
from kclient.errors import (
    ErrorCode,
    KafkaError,
    RefreshCoordinatorError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    error_for,
)
from kclient.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from kclient.consumer.group.model import ConsumerGroupMetadata
    from kclient.protocol.messages import OffsetCommitResponse, OffsetFetchResponse

COMMIT_LAST_WITH_NAMES = 9
"""Later versions name topics by id: what was read of a deleted topic is not committed to its namesake."""
FETCH_LAST_WITH_NAMES = 9
"""Later versions name topics by id: what was committed of a deleted topic is not taken for its namesake's."""

_FIRST_WITH_GROUPS = 8
_FIRST_WITH_STABLE = 7


def commit_request(
    identity: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: Mapping[TopicPartition, bytes],
) -> OffsetCommitRequest:
    """The request that commits offsets, in any version up to `COMMIT_LAST_WITH_NAMES`; in any if all ids are known."""
    topics: dict[tuple[str, bytes], list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, offset in offsets.items():
        topics[tp.topic, topic_ids.get(tp, ZERO_ID)].append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=identity.group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=found)
            for (name, topic_id), found in topics.items()
        ],
    )


class CommitAnswer(NamedTuple):
    """What a broker said to a commit."""

    code: int
    """The error that decides about the whole commit; 0 if there is none."""
    unknown: list[TopicPartition]
    """Partitions that do not exist (any more); the others may be committed."""


def read_commit(response: OffsetCommitResponse, request: OffsetCommitRequest) -> CommitAnswer:
    """What the answer to a commit means.

    Raises:
        TopicAuthorizationError: Some topics must not be committed; names them.
        KafkaError: The metadata are too long for the broker.
    """
    names = {bytes(topic.topic_id): topic.name for topic in request.topics}
    unauthorized = set()
    unknown = []
    first = 0
    for topic in response.topics:
        name = topic.name or names.get(bytes(topic.topic_id), "")
        for partition in topic.partitions:
            code = partition.error_code
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                unauthorized.add(name)
            elif code in {ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE}:
                raise error_for(code, f"{name}-{partition.partition_index}: {error_for(code).message}")
            elif code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}:
                unknown.append(TopicPartition(name, partition.partition_index))
            elif code:
                first = first or code
    if unauthorized:
        raise TopicAuthorizationError(f"Not allowed to commit offsets of {', '.join(sorted(unauthorized))}")
    return CommitAnswer(first, unknown)


def committed_request(
    group_id: str,
    partitions: Iterable[TopicPartition],
    version: int,
    identity: ConsumerGroupMetadata | None = None,
    topic_ids: Mapping[bytes, str] | None = None,
) -> OffsetFetchRequest:
    """The request for committed offsets, for the version that was negotiated.

    It waits out transactions that are about to commit offsets (KIP-447), whatever the isolation level.

    Args:
        group_id: The group.
        partitions: Those that are asked for.
        version: Of the request; beyond `FETCH_LAST_WITH_NAMES` all topics' ids have to be known.
        identity: Who asks, to be refused when it is no member any more; None for nobody in particular.
        topic_ids: The topics' names by their ids, as far as they are known.
    """
    ids = {name: topic_id for topic_id, name in (topic_ids or {}).items()}
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    stable = version >= _FIRST_WITH_STABLE
    if version >= _FIRST_WITH_GROUPS:
        group = OffsetFetchRequestGroup(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, ZERO_ID), partition_indexes=found)
                for name, found in topics.items()
            ],
        )
        if identity is not None:
            group.member_id, group.member_epoch = identity.member_id, identity.generation_id
        return OffsetFetchRequest(groups=[group], require_stable=stable)
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=found) for name, found in topics.items()],
        require_stable=stable,
    )


def committed_offsets(
    response: OffsetFetchResponse, topic_ids: Mapping[bytes, str] | None = None
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
    """The committed offset of each partition, or why it is not told; None where nothing was committed.

    Args:
        response: The answer.
        topic_ids: The topics' names by their ids, which later versions answer with.

    Raises:
        KafkaError: The answer is an error, or that of a partition says that another broker is to be asked.
    """
    answer: Any = response.groups[0] if response.groups else response
    if answer.error_code:
        raise error_for(answer.error_code)
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            name = topic.name or (topic_ids or {}).get(bytes(topic.topic_id), "")
            tp = TopicPartition(name, partition.partition_index)
            error = _partition_error(partition.error_code, tp) if partition.error_code else None
            if isinstance(error, RefreshCoordinatorError):  # the first versions say so of each partition
                raise error
            found[tp] = error or _offset(partition)
    return found


def _offset(partition: Any) -> OffsetAndMetadata | None:
    if partition.committed_offset < 0:
        return None
    epoch = partition.committed_leader_epoch
    return OffsetAndMetadata(partition.committed_offset, partition.metadata or "", None if epoch < 0 else epoch)


def _partition_error(code: int, tp: TopicPartition) -> KafkaError:
    error = error_for(code)
    if code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return error_for(code, f"{tp}: an open transaction is about to commit an offset")
    text = f"{tp}: {error.message}"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopicOrPartitionError(text, retriable=False)  # asking again does not help, as in the Java client
    return error_for(code, text)
