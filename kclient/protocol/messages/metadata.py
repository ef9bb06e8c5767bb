"""What a client asks about the cluster: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, STRING, UUID

__all__ = [
    "DescribeClusterBroker",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsRequestCursor",
    "DescribeTopicPartitionsRequestTopicRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTopicPartitionsResponseCursor",
    "DescribeTopicPartitionsResponsePartition",
    "DescribeTopicPartitionsResponseTopic",
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
]


class MetadataRequestTopic(Message):
    """One of the `topics` of a `MetadataRequest`."""

    topic_id: bytes = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, nullable="10+")


class MetadataRequest(ApiMessage, api_key=3, versions="0-13", flexible="9+"):
    """Asks for brokers, topics and partitions.

    In v0 an empty list of topics means all topics; from v1 that is null, and an empty list means none. v4
    can forbid the creation of missing topics; from v8 the operations that the client may do can be asked
    for; from v12 topics can be asked for by id (v10 and v11 carry the field, but brokers ignore it).
    """

    topics: list[MetadataRequestTopic] | None = field(ArrayOf(MetadataRequestTopic), nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


class MetadataResponseBroker(Message):
    """One of the `brokers` of a `MetadataResponse`."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Message):
    """One of the `partitions` of a `MetadataResponseTopic`."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: list[int] = field(ArrayOf(INT32))
    isr_nodes: list[int] = field(ArrayOf(INT32))
    offline_replicas: list[int] = field(ArrayOf(INT32), "5+", ignorable=True)


class MetadataResponseTopic(Message):
    """One of the `topics` of a `MetadataResponse`."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    is_internal: bool = field(BOOL, "1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field(ArrayOf(MetadataResponsePartition))
    topic_authorized_operations: int = field(INT32, "8+", default=-2147483648)


class MetadataResponse(ApiMessage, api_key=3, versions="0-13", flexible="9+"):
    """The brokers of the cluster, and the partitions of the topics with their leaders and replicas.

    v1 adds racks, the controller and internal topics, v2 the cluster id, v5 offline replicas, v7 leader
    epochs, v10 topic ids (needed to fetch with v13 and above), v13 an error for the whole response
    (KIP-1102). In v8 to v10 it also tells the operations allowed on the cluster, later DescribeCluster
    does.
    """

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field(ArrayOf(MetadataResponseBroker))
    cluster_id: str | None = field(STRING, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = field(ArrayOf(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, "8-10", default=-2147483648)
    error_code: int = field(INT16, "13+", ignorable=True)


class DescribeClusterRequest(ApiMessage, api_key=60, versions="0-2", flexible="0+"):
    """Asks for the brokers and the id of the cluster (KIP-700).

    v1 can ask for controllers instead of brokers (KIP-919), v2 also for fenced brokers (KIP-1073).
    """

    include_cluster_authorized_operations: bool = field(BOOL)
    endpoint_type: int = field(INT8, "1+", default=1)
    include_fenced_brokers: bool = field(BOOL, "2+")


class DescribeClusterBroker(Message):
    """One of the `brokers` of a `DescribeClusterResponse`."""

    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_fenced: bool = field(BOOL, "2+")


class DescribeClusterResponse(ApiMessage, api_key=60, versions="0-2", flexible="0+"):
    """The brokers, the controller and the id of the cluster."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = field(ArrayOf(DescribeClusterBroker))
    cluster_authorized_operations: int = field(INT32, default=-2147483648)


class DescribeTopicPartitionsRequestTopicRequest(Message):
    """One of the `topics` of a `DescribeTopicPartitionsRequest`."""

    name: str = field(STRING)


class DescribeTopicPartitionsRequestCursor(Message):
    """The `cursor` of a `DescribeTopicPartitionsRequest`."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class DescribeTopicPartitionsRequest(ApiMessage, api_key=75, versions="0", flexible="0+"):
    """Asks for the partitions of topics page by page (KIP-966); a cursor says where to go on."""

    topics: list[DescribeTopicPartitionsRequestTopicRequest] = field(
        ArrayOf(DescribeTopicPartitionsRequestTopicRequest)
    )
    response_partition_limit: int = field(INT32, default=2000)
    cursor: DescribeTopicPartitionsRequestCursor | None = field(
        DescribeTopicPartitionsRequestCursor, nullable="0+", default=None
    )


class DescribeTopicPartitionsResponsePartition(Message):
    """One of the `partitions` of a `DescribeTopicPartitionsResponseTopic`."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, ignorable=True)
    replica_nodes: list[int] = field(ArrayOf(INT32))
    isr_nodes: list[int] = field(ArrayOf(INT32))
    eligible_leader_replicas: list[int] | None = field(ArrayOf(INT32), nullable="0+", default=None)
    last_known_elr: list[int] | None = field(ArrayOf(INT32), nullable="0+", default=None)
    offline_replicas: list[int] = field(ArrayOf(INT32), ignorable=True)


class DescribeTopicPartitionsResponseTopic(Message):
    """One of the `topics` of a `DescribeTopicPartitionsResponse`."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="0+")
    topic_id: bytes = field(UUID, ignorable=True)
    is_internal: bool = field(BOOL, ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        ArrayOf(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = field(INT32, default=-2147483648)


class DescribeTopicPartitionsResponseCursor(Message):
    """The `next_cursor` of a `DescribeTopicPartitionsResponse`."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class DescribeTopicPartitionsResponse(ApiMessage, api_key=75, versions="0", flexible="0+"):
    """One page of partitions, and the cursor of the next one if there is more."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = field(ArrayOf(DescribeTopicPartitionsResponseTopic))
    next_cursor: DescribeTopicPartitionsResponseCursor | None = field(
        DescribeTopicPartitionsResponseCursor, nullable="0+", default=None
    )
