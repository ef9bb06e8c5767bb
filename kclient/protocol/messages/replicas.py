"""Where replicas are: leaders, brokers, log directories."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, INT64, STRING

__all__ = [
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterReplicaLogDir",
    "AlterReplicaLogDirPartitionResult",
    "AlterReplicaLogDirTopic",
    "AlterReplicaLogDirTopicResult",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "DescribableLogDirTopic",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
    "ElectLeadersRequest",
    "ElectLeadersRequestTopicPartitions",
    "ElectLeadersResponse",
    "ElectLeadersResponsePartitionResult",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListPartitionReassignmentsTopics",
    "OngoingPartitionReassignment",
    "OngoingTopicReassignment",
    "ReassignablePartition",
    "ReassignablePartitionResponse",
    "ReassignableTopic",
    "ReassignableTopicResponse",
    "ReplicaElectionResult",
]


class ElectLeadersRequestTopicPartitions(Message):
    """One of the `topic_partitions` of a `ElectLeadersRequest`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class ElectLeadersRequest(ApiMessage, api_key=43, versions="0-2", flexible="2+"):
    """Has leaders elected: the preferred one, or from v1 on also one that is not in sync (KIP-460). Null
    partitions mean all.
    """

    election_type: int = field(INT8, "1+")
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None = field(
        ArrayOf(ElectLeadersRequestTopicPartitions), nullable="0+"
    )
    timeout_ms: int = field(INT32, default=60000)


class ElectLeadersResponsePartitionResult(Message):
    """One of the `partition_result` of a `ReplicaElectionResult`."""

    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReplicaElectionResult(Message):
    """One of the `replica_election_results` of a `ElectLeadersResponse`."""

    topic: str = field(STRING)
    partition_result: list[ElectLeadersResponsePartitionResult] = field(ArrayOf(ElectLeadersResponsePartitionResult))


class ElectLeadersResponse(ApiMessage, api_key=43, versions="0-2", flexible="2+"):
    """Whether it worked, for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field(ArrayOf(ReplicaElectionResult))


class ReassignablePartition(Message):
    """One of the `partitions` of a `ReassignableTopic`."""

    partition_index: int = field(INT32)
    replicas: list[int] | None = field(ArrayOf(INT32), nullable="0+", default=None)


class ReassignableTopic(Message):
    """One of the `topics` of a `AlterPartitionReassignmentsRequest`."""

    name: str = field(STRING)
    partitions: list[ReassignablePartition] = field(ArrayOf(ReassignablePartition))


class AlterPartitionReassignmentsRequest(ApiMessage, api_key=45, versions="0-1", flexible="0+"):
    """Moves partitions to other brokers, or with null replicas cancels a move (KIP-455).

    v1 can forbid that the replication factor changes (KIP-860).
    """

    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = field(ArrayOf(ReassignableTopic))


class ReassignablePartitionResponse(Message):
    """One of the `partitions` of a `ReassignableTopicResponse`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReassignableTopicResponse(Message):
    """One of the `responses` of a `AlterPartitionReassignmentsResponse`."""

    name: str = field(STRING)
    partitions: list[ReassignablePartitionResponse] = field(ArrayOf(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(ApiMessage, api_key=45, versions="0-1", flexible="0+"):
    """Whether the moves began, for each partition."""

    throttle_time_ms: int = field(INT32)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    responses: list[ReassignableTopicResponse] = field(ArrayOf(ReassignableTopicResponse))


class ListPartitionReassignmentsTopics(Message):
    """One of the `topics` of a `ListPartitionReassignmentsRequest`."""

    name: str = field(STRING)
    partition_indexes: list[int] = field(ArrayOf(INT32))


class ListPartitionReassignmentsRequest(ApiMessage, api_key=46, versions="0", flexible="0+"):
    """Lists moves that are going on (KIP-455); null topics mean all."""

    timeout_ms: int = field(INT32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        ArrayOf(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


class OngoingPartitionReassignment(Message):
    """One of the `partitions` of a `OngoingTopicReassignment`."""

    partition_index: int = field(INT32)
    replicas: list[int] = field(ArrayOf(INT32))
    adding_replicas: list[int] = field(ArrayOf(INT32))
    removing_replicas: list[int] = field(ArrayOf(INT32))


class OngoingTopicReassignment(Message):
    """One of the `topics` of a `ListPartitionReassignmentsResponse`."""

    name: str = field(STRING)
    partitions: list[OngoingPartitionReassignment] = field(ArrayOf(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(ApiMessage, api_key=46, versions="0", flexible="0+"):
    """The moves: present, added and removed replicas."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: list[OngoingTopicReassignment] = field(ArrayOf(OngoingTopicReassignment))


class AlterReplicaLogDirTopic(Message):
    """One of the `topics` of a `AlterReplicaLogDir`."""

    name: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class AlterReplicaLogDir(Message):
    """One of the `dirs` of a `AlterReplicaLogDirsRequest`."""

    path: str = field(STRING)
    topics: list[AlterReplicaLogDirTopic] = field(ArrayOf(AlterReplicaLogDirTopic))


class AlterReplicaLogDirsRequest(ApiMessage, api_key=34, versions="0-2", flexible="2+"):
    """Moves replicas between log directories of this broker (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = field(ArrayOf(AlterReplicaLogDir))


class AlterReplicaLogDirPartitionResult(Message):
    """One of the `partitions` of a `AlterReplicaLogDirTopicResult`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class AlterReplicaLogDirTopicResult(Message):
    """One of the `results` of a `AlterReplicaLogDirsResponse`."""

    topic_name: str = field(STRING)
    partitions: list[AlterReplicaLogDirPartitionResult] = field(ArrayOf(AlterReplicaLogDirPartitionResult))


class AlterReplicaLogDirsResponse(ApiMessage, api_key=34, versions="0-2", flexible="2+"):
    """Whether the moves began, for each partition."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterReplicaLogDirTopicResult] = field(ArrayOf(AlterReplicaLogDirTopicResult))


class DescribableLogDirTopic(Message):
    """One of the `topics` of a `DescribeLogDirsRequest`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class DescribeLogDirsRequest(ApiMessage, api_key=35, versions="0-5", flexible="2+"):
    """Asks what is in the broker's log directories (KIP-113); null topics mean all."""

    topics: list[DescribableLogDirTopic] | None = field(ArrayOf(DescribableLogDirTopic), nullable="0+")


class DescribeLogDirsPartition(Message):
    """One of the `partitions` of a `DescribeLogDirsTopic`."""

    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


class DescribeLogDirsTopic(Message):
    """One of the `topics` of a `DescribeLogDirsResult`."""

    name: str = field(STRING)
    partitions: list[DescribeLogDirsPartition] = field(ArrayOf(DescribeLogDirsPartition))


class DescribeLogDirsResult(Message):
    """One of the `results` of a `DescribeLogDirsResponse`."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: list[DescribeLogDirsTopic] = field(ArrayOf(DescribeLogDirsTopic))
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    is_cordoned: bool = field(BOOL, "5+", ignorable=True)


class DescribeLogDirsResponse(ApiMessage, api_key=35, versions="0-5", flexible="2+"):
    """Sizes and lags of replicas by log directory.

    v3 adds an error for the whole response, v4 size and free space of the volumes (KIP-827), v5 whether a
    directory is cordoned.
    """

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field(ArrayOf(DescribeLogDirsResult))
