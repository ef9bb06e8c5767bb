"""Committed offsets of groups."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT16, INT32, INT64, STRING, UUID

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopic",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartition",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopic",
    "OffsetFetchResponseTopics",
]


class OffsetCommitRequestPartition(Message):
    """One of the `partitions` of a `OffsetCommitRequestTopic`."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    commit_timestamp: int = field(INT64, "1", default=-1)
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class OffsetCommitRequestTopic(Message):
    """One of the `topics` of a `OffsetCommitRequest`."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field(ArrayOf(OffsetCommitRequestPartition))


class OffsetCommitRequest(ApiMessage, api_key=8, versions="0-10", flexible="8+"):
    """Commits offsets of a group.

    v1 adds the member and its generation; v2 to v4 have a retention time, later the broker's
    configuration decides; v6 adds leader epochs, v7 static membership, v9 serves groups of KIP-848; v10
    names topics by id.
    """

    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING, "1+", ignorable=True)
    group_instance_id: str | None = field(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field(ArrayOf(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Message):
    """One of the `partitions` of a `OffsetCommitResponseTopic`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetCommitResponseTopic(Message):
    """One of the `topics` of a `OffsetCommitResponse`."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field(ArrayOf(OffsetCommitResponsePartition))


class OffsetCommitResponse(ApiMessage, api_key=8, versions="0-10", flexible="8+"):
    """Whether it worked, for each partition."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field(ArrayOf(OffsetCommitResponseTopic))


class OffsetFetchRequestTopic(Message):
    """One of the `topics` of a `OffsetFetchRequest`."""

    name: str = field(STRING)
    partition_indexes: list[int] = field(ArrayOf(INT32))


class OffsetFetchRequestTopics(Message):
    """One of the `topics` of a `OffsetFetchRequestGroup`."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partition_indexes: list[int] = field(ArrayOf(INT32))


class OffsetFetchRequestGroup(Message):
    """One of the `groups` of a `OffsetFetchRequest`."""

    group_id: str = field(STRING)
    member_id: str | None = field(STRING, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = field(ArrayOf(OffsetFetchRequestTopics), nullable="8+")


class OffsetFetchRequest(ApiMessage, api_key=9, versions="0-10", flexible="6+"):
    """Asks for the committed offsets of a group; null topics mean all (from v2 on).

    v0 reads offsets from ZooKeeper, where very old consumers kept them. v7 can insist on offsets that no
    open transaction may change (KIP-447); v8 asks for many groups at once (KIP-709); v9 adds the member,
    for groups of KIP-848; v10 names topics by id.
    """

    group_id: str = field(STRING, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = field(ArrayOf(OffsetFetchRequestTopic), "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field(ArrayOf(OffsetFetchRequestGroup), "8+")
    require_stable: bool = field(BOOL, "7+")


class OffsetFetchResponsePartition(Message):
    """One of the `partitions` of a `OffsetFetchResponseTopic`."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, nullable="0-7")
    error_code: int = field(INT16)


class OffsetFetchResponseTopic(Message):
    """One of the `topics` of a `OffsetFetchResponse`."""

    name: str = field(STRING)
    partitions: list[OffsetFetchResponsePartition] = field(ArrayOf(OffsetFetchResponsePartition))


class OffsetFetchResponsePartitions(Message):
    """One of the `partitions` of a `OffsetFetchResponseTopics`."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, default=-1, ignorable=True)
    metadata: str | None = field(STRING, nullable="8+")
    error_code: int = field(INT16)


class OffsetFetchResponseTopics(Message):
    """One of the `topics` of a `OffsetFetchResponseGroup`."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field(ArrayOf(OffsetFetchResponsePartitions))


class OffsetFetchResponseGroup(Message):
    """One of the `groups` of a `OffsetFetchResponse`."""

    group_id: str = field(STRING)
    topics: list[OffsetFetchResponseTopics] = field(ArrayOf(OffsetFetchResponseTopics))
    error_code: int = field(INT16)


class OffsetFetchResponse(ApiMessage, api_key=9, versions="0-10", flexible="6+"):
    """The committed offsets, -1 where there is none. v5 adds leader epochs; from v8 on there is a list of
    groups.
    """

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(ArrayOf(OffsetFetchResponseTopic), "0-7")
    error_code: int = field(INT16, "2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(ArrayOf(OffsetFetchResponseGroup), "8+")


class OffsetDeleteRequestPartition(Message):
    """One of the `partitions` of a `OffsetDeleteRequestTopic`."""

    partition_index: int = field(INT32)


class OffsetDeleteRequestTopic(Message):
    """One of the `topics` of a `OffsetDeleteRequest`."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteRequestPartition] = field(ArrayOf(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(ApiMessage, api_key=47, versions="0"):
    """Deletes committed offsets of a group for topics that it is not subscribed to (KIP-496)."""

    group_id: str = field(STRING)
    topics: list[OffsetDeleteRequestTopic] = field(ArrayOf(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Message):
    """One of the `partitions` of a `OffsetDeleteResponseTopic`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetDeleteResponseTopic(Message):
    """One of the `topics` of a `OffsetDeleteResponse`."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteResponsePartition] = field(ArrayOf(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(ApiMessage, api_key=47, versions="0"):
    """Whether it worked, for each partition."""

    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field(ArrayOf(OffsetDeleteResponseTopic))
