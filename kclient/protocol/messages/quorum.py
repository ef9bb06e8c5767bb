"""The KRaft quorum, and what the cluster as a whole can do."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16, UUID

__all__ = [
    "AddRaftVoterRequest",
    "AddRaftVoterRequestListener",
    "AddRaftVoterResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumRequestPartitionData",
    "DescribeQuorumRequestTopicData",
    "DescribeQuorumResponse",
    "DescribeQuorumResponseListener",
    "DescribeQuorumResponseNode",
    "DescribeQuorumResponsePartitionData",
    "DescribeQuorumResponseReplicaState",
    "DescribeQuorumResponseTopicData",
    "FeatureUpdateKey",
    "RemoveRaftVoterRequest",
    "RemoveRaftVoterResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
    "UpdatableFeatureResult",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
]


class DescribeQuorumRequestPartitionData(Message):
    """One of the `partitions` of a `DescribeQuorumRequestTopicData`."""

    partition_index: int = field(INT32)


class DescribeQuorumRequestTopicData(Message):
    """One of the `topics` of a `DescribeQuorumRequest`."""

    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumRequestPartitionData] = field(ArrayOf(DescribeQuorumRequestPartitionData))


class DescribeQuorumRequest(ApiMessage, api_key=55, versions="0-2", flexible="0+"):
    """Asks for the state of the KRaft quorum (KIP-595)."""

    topics: list[DescribeQuorumRequestTopicData] = field(ArrayOf(DescribeQuorumRequestTopicData))


class DescribeQuorumResponseReplicaState(Message):
    """One of the `current_voters` of a `DescribeQuorumResponsePartitionData`."""

    replica_id: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "2+")
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Message):
    """One of the `partitions` of a `DescribeQuorumResponseTopicData`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: list[DescribeQuorumResponseReplicaState] = field(ArrayOf(DescribeQuorumResponseReplicaState))
    observers: list[DescribeQuorumResponseReplicaState] = field(ArrayOf(DescribeQuorumResponseReplicaState))


class DescribeQuorumResponseTopicData(Message):
    """One of the `topics` of a `DescribeQuorumResponse`."""

    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumResponsePartitionData] = field(ArrayOf(DescribeQuorumResponsePartitionData))


class DescribeQuorumResponseListener(Message):
    """One of the `listeners` of a `DescribeQuorumResponseNode`."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class DescribeQuorumResponseNode(Message):
    """One of the `nodes` of a `DescribeQuorumResponse`."""

    node_id: int = field(INT32)
    listeners: list[DescribeQuorumResponseListener] = field(ArrayOf(DescribeQuorumResponseListener))


class DescribeQuorumResponse(ApiMessage, api_key=55, versions="0-2", flexible="0+"):
    """Leader, voters and observers with their end offsets.

    v1 adds when they last fetched and caught up (KIP-836), v2 directory ids and the addresses of the
    nodes (KIP-853).
    """

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = field(ArrayOf(DescribeQuorumResponseTopicData))
    nodes: list[DescribeQuorumResponseNode] = field(ArrayOf(DescribeQuorumResponseNode), "2+")


class AddRaftVoterRequestListener(Message):
    """One of the `listeners` of a `AddRaftVoterRequest`."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class AddRaftVoterRequest(ApiMessage, api_key=80, versions="0-1", flexible="0+"):
    """Adds a voter to the KRaft quorum (KIP-853). v1 can wait for the commit."""

    cluster_id: str | None = field(STRING, nullable="0+")
    timeout_ms: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)
    listeners: list[AddRaftVoterRequestListener] = field(ArrayOf(AddRaftVoterRequestListener))
    ack_when_committed: bool = field(BOOL, "1+", default=True)


class AddRaftVoterResponse(ApiMessage, api_key=80, versions="0-1", flexible="0+"):
    """Whether it worked."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", ignorable=True)


class RemoveRaftVoterRequest(ApiMessage, api_key=81, versions="0", flexible="0+"):
    """Removes a voter from the KRaft quorum (KIP-853)."""

    cluster_id: str | None = field(STRING, nullable="0+")
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)


class RemoveRaftVoterResponse(ApiMessage, api_key=81, versions="0", flexible="0+"):
    """Whether it worked."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", ignorable=True)


class FeatureUpdateKey(Message):
    """One of the `feature_updates` of a `UpdateFeaturesRequest`."""

    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


class UpdateFeaturesRequest(ApiMessage, api_key=57, versions="0-2", flexible="0+"):
    """Changes the level of features of the cluster (KIP-584). v1 can validate only and says how to
    downgrade.
    """

    timeout_ms: int = field(INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = field(ArrayOf(FeatureUpdateKey))
    validate_only: bool = field(BOOL, "1+")


class UpdatableFeatureResult(Message):
    """One of the `results` of a `UpdateFeaturesResponse`."""

    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0-1")


class UpdateFeaturesResponse(ApiMessage, api_key=57, versions="0-2", flexible="0+"):
    """Whether it worked; v0 and v1 tell it for each feature."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[UpdatableFeatureResult] = field(ArrayOf(UpdatableFeatureResult), "0-1", ignorable=True)


class UnregisterBrokerRequest(ApiMessage, api_key=64, versions="0", flexible="0+"):
    """Removes a broker that will not return from the cluster (KIP-631)."""

    broker_id: int = field(INT32)


class UnregisterBrokerResponse(ApiMessage, api_key=64, versions="0", flexible="0+"):
    """Whether it worked."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
