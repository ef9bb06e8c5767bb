"""Reading records, and finding or moving the ends of partitions."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import INT8, INT16, INT32, INT32_MAX, INT64, INT64_MAX, RECORDS, STRING, UUID
from kclient.types import Buffer

__all__ = [
    "AbortedTransaction",
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
    "FetchRequest",
    "FetchRequestForgottenTopic",
    "FetchRequestPartition",
    "FetchRequestReplicaState",
    "FetchRequestTopic",
    "FetchResponse",
    "FetchResponseEpochEndOffset",
    "FetchResponseLeaderIdAndEpoch",
    "FetchResponseNodeEndpoint",
    "FetchResponsePartitionData",
    "FetchableTopicResponse",
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderEpochResponseEndOffset",
    "OffsetForLeaderPartition",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
    "SnapshotId",
]


class FetchRequestReplicaState(Message):
    """The `replica_state` of a `FetchRequest`."""

    replica_id: int = field(INT32, default=-1)
    replica_epoch: int = field(INT64, default=-1)


class FetchRequestPartition(Message):
    """One of the `partitions` of a `FetchRequestTopic`."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "17+", ignorable=True, tag=0)
    high_watermark: int = field(INT64, "18+", default=INT64_MAX, ignorable=True, tag=1)


class FetchRequestTopic(Message):
    """One of the `topics` of a `FetchRequest`."""

    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[FetchRequestPartition] = field(ArrayOf(FetchRequestPartition))


class FetchRequestForgottenTopic(Message):
    """One of the `forgotten_topics_data` of a `FetchRequest`."""

    topic: str = field(STRING, "7-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[int] = field(ArrayOf(INT32))


class FetchRequest(ApiMessage, api_key=1, versions="0-18", flexible="12+"):
    """Reads records from partitions, waiting until there are some.

    v3 limits the whole response, and the order of partitions counts; v4 knows isolation levels and record
    batches v2; v7 brings fetch sessions, in which only changes are sent (KIP-227); v9 the leader epoch
    known to the client (KIP-320); v10 zstd; v11 the client's rack (KIP-392); v12 the epoch of the last
    fetched record; v13 topic ids instead of names (KIP-516). What v15 and above add concerns followers.
    """

    cluster_id: str | None = field(STRING, "12+", nullable="12+", default=None, ignorable=True, tag=0)
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: FetchRequestReplicaState = field(FetchRequestReplicaState, "15+", tag=1)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, "3+", default=INT32_MAX, ignorable=True)
    isolation_level: int = field(INT8, "4+", ignorable=True)
    session_id: int = field(INT32, "7+", ignorable=True)
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: list[FetchRequestTopic] = field(ArrayOf(FetchRequestTopic))
    forgotten_topics_data: list[FetchRequestForgottenTopic] = field(ArrayOf(FetchRequestForgottenTopic), "7+")
    rack_id: str = field(STRING, "11+", ignorable=True)


class FetchResponseEpochEndOffset(Message):
    """The `diverging_epoch` of a `FetchResponsePartitionData`."""

    epoch: int = field(INT32, default=-1)
    end_offset: int = field(INT64, default=-1)


class FetchResponseLeaderIdAndEpoch(Message):
    """The `current_leader` of a `FetchResponsePartitionData`."""

    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)


class SnapshotId(Message):
    """The `snapshot_id` of a `FetchResponsePartitionData`."""

    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


class AbortedTransaction(Message):
    """One of the `aborted_transactions` of a `FetchResponsePartitionData`."""

    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


class FetchResponsePartitionData(Message):
    """One of the `partitions` of a `FetchableTopicResponse`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, "4+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    diverging_epoch: FetchResponseEpochEndOffset = field(FetchResponseEpochEndOffset, "12+", tag=0)
    current_leader: FetchResponseLeaderIdAndEpoch = field(FetchResponseLeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = field(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        ArrayOf(AbortedTransaction), "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: Buffer | None = field(RECORDS, nullable="0+")


class FetchableTopicResponse(Message):
    """One of the `responses` of a `FetchResponse`."""

    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[FetchResponsePartitionData] = field(ArrayOf(FetchResponsePartitionData))


class FetchResponseNodeEndpoint(Message):
    """One of the `node_endpoints` of a `FetchResponse`."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="16+", default=None)


class FetchResponse(ApiMessage, api_key=1, versions="0-18", flexible="12+"):
    """Record batches of partitions, as they are in the log; the last one may be cut off.

    v4 adds the last stable offset and the aborted transactions, v5 the start of the log, v11 a replica to
    prefer (KIP-392), v12 hints on diverging logs and new leaders, v16 the addresses of those leaders
    (KIP-951).
    """

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "7+", ignorable=True)
    session_id: int = field(INT32, "7+")
    responses: list[FetchableTopicResponse] = field(ArrayOf(FetchableTopicResponse))
    node_endpoints: list[FetchResponseNodeEndpoint] = field(ArrayOf(FetchResponseNodeEndpoint), "16+", tag=0)


class ListOffsetsPartition(Message):
    """One of the `partitions` of a `ListOffsetsTopic`."""

    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


class ListOffsetsTopic(Message):
    """One of the `topics` of a `ListOffsetsRequest`."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartition] = field(ArrayOf(ListOffsetsPartition))


class ListOffsetsRequest(ApiMessage, api_key=2, versions="0-11", flexible="6+"):
    """Finds offsets by time: the first at or after a timestamp, or with -1 the end and with -2 the start.

    v0 returns several offsets per partition, later versions one. v2 knows isolation levels, v4 leader
    epochs. Timestamps with a meaning were added over time: -3 the record with the greatest timestamp (v7,
    KIP-734), -4 the start of the local log (v8, KIP-405), -5 the end of the tiered log (v9, KIP-1005), -6
    the first offset not yet tiered (v11, KIP-1023).
    """

    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, "2+")
    topics: list[ListOffsetsTopic] = field(ArrayOf(ListOffsetsTopic))
    timeout_ms: int = field(INT32, "10+", ignorable=True)


class ListOffsetsPartitionResponse(Message):
    """One of the `partitions` of a `ListOffsetsTopicResponse`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    old_style_offsets: list[int] = field(ArrayOf(INT64), "0")
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


class ListOffsetsTopicResponse(Message):
    """One of the `topics` of a `ListOffsetsResponse`."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartitionResponse] = field(ArrayOf(ListOffsetsPartitionResponse))


class ListOffsetsResponse(ApiMessage, api_key=2, versions="0-11", flexible="6+"):
    """The offsets that were found. v1 adds their timestamps, v4 their leader epochs."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field(ArrayOf(ListOffsetsTopicResponse))


class OffsetForLeaderPartition(Message):
    """One of the `partitions` of a `OffsetForLeaderTopic`."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    leader_epoch: int = field(INT32)


class OffsetForLeaderTopic(Message):
    """One of the `topics` of a `OffsetForLeaderEpochRequest`."""

    topic: str = field(STRING)
    partitions: list[OffsetForLeaderPartition] = field(ArrayOf(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(ApiMessage, api_key=23, versions="0-4", flexible="4+"):
    """Asks where a leader epoch ended: how a client or follower notices that a log was truncated
    (KIP-320).

    v2 adds the leader epoch known to the client, v3 the id of the replica that asks.
    """

    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field(ArrayOf(OffsetForLeaderTopic))


class OffsetForLeaderEpochResponseEndOffset(Message):
    """One of the `partitions` of a `OffsetForLeaderTopicResult`."""

    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    end_offset: int = field(INT64, default=-1)


class OffsetForLeaderTopicResult(Message):
    """One of the `topics` of a `OffsetForLeaderEpochResponse`."""

    topic: str = field(STRING)
    partitions: list[OffsetForLeaderEpochResponseEndOffset] = field(ArrayOf(OffsetForLeaderEpochResponseEndOffset))


class OffsetForLeaderEpochResponse(ApiMessage, api_key=23, versions="0-4", flexible="4+"):
    """The end offset of the largest epoch not above the one that was asked for."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field(ArrayOf(OffsetForLeaderTopicResult))


class DeleteRecordsPartition(Message):
    """One of the `partitions` of a `DeleteRecordsTopic`."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)


class DeleteRecordsTopic(Message):
    """One of the `topics` of a `DeleteRecordsRequest`."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartition] = field(ArrayOf(DeleteRecordsPartition))


class DeleteRecordsRequest(ApiMessage, api_key=21, versions="0-2", flexible="2+"):
    """Moves the start of partitions up: records before the given offsets are deleted (KIP-107)."""

    topics: list[DeleteRecordsTopic] = field(ArrayOf(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(Message):
    """One of the `partitions` of a `DeleteRecordsTopicResult`."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


class DeleteRecordsTopicResult(Message):
    """One of the `topics` of a `DeleteRecordsResponse`."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartitionResult] = field(ArrayOf(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(ApiMessage, api_key=21, versions="0-2", flexible="2+"):
    """The new start offsets of the partitions."""

    throttle_time_ms: int = field(INT32)
    topics: list[DeleteRecordsTopicResult] = field(ArrayOf(DeleteRecordsTopicResult))
