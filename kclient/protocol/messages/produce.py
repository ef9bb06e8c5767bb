"""Writing records, and the ids of producers."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import INT16, INT32, INT64, RECORDS, STRING, UUID
from kclient.types import Buffer

__all__ = [
    "BatchIndexAndErrorMessage",
    "DescribeProducersRequest",
    "DescribeProducersRequestTopicRequest",
    "DescribeProducersResponse",
    "DescribeProducersResponsePartition",
    "DescribeProducersResponseTopic",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceResponseLeaderIdAndEpoch",
    "ProduceResponseNodeEndpoint",
    "ProducerState",
    "TopicProduceData",
    "TopicProduceResponse",
]


class PartitionProduceData(Message):
    """One of the `partition_data` of a `TopicProduceData`."""

    index: int = field(INT32)
    records: Buffer | None = field(RECORDS, nullable="0+")


class TopicProduceData(Message):
    """One of the `topic_data` of a `ProduceRequest`."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field(ArrayOf(PartitionProduceData))


class ProduceRequest(ApiMessage, api_key=0, versions="0-13", flexible="9+"):
    """Appends record batches to partitions.

    v0 to v2 carry message sets in the formats v0 and v1; from v3 on it is record batches v2, and there is
    a transactional id. v7 allows zstd (KIP-110). From v12 on a transactional request also adds its
    partitions to the transaction (KIP-890). v13 names topics by id instead of name (KIP-516).

    With `acks=0` the broker sends no response.
    """

    transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: list[TopicProduceData] = field(ArrayOf(TopicProduceData))


class BatchIndexAndErrorMessage(Message):
    """One of the `record_errors` of a `PartitionProduceResponse`."""

    batch_index: int = field(INT32)
    batch_index_error_message: str | None = field(STRING, nullable="8+", default=None)


class ProduceResponseLeaderIdAndEpoch(Message):
    """The `current_leader` of a `PartitionProduceResponse`."""

    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)


class PartitionProduceResponse(Message):
    """One of the `partition_responses` of a `TopicProduceResponse`."""

    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(ArrayOf(BatchIndexAndErrorMessage), "8+", ignorable=True)
    error_message: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: ProduceResponseLeaderIdAndEpoch = field(ProduceResponseLeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Message):
    """One of the `responses` of a `ProduceResponse`."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field(ArrayOf(PartitionProduceResponse))


class ProduceResponseNodeEndpoint(Message):
    """One of the `node_endpoints` of a `ProduceResponse`."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="10+", default=None)


class ProduceResponse(ApiMessage, api_key=0, versions="0-13", flexible="9+"):
    """Where the batches were appended, or why not.

    v2 adds the time of the append (if the topic stamps records so), v5 the start of the log, v8 which
    records of a batch were at fault (KIP-467), v10 the new leader and its address where the leader moved
    (KIP-951).
    """

    responses: list[TopicProduceResponse] = field(ArrayOf(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    node_endpoints: list[ProduceResponseNodeEndpoint] = field(ArrayOf(ProduceResponseNodeEndpoint), "10+", tag=0)


class InitProducerIdRequest(ApiMessage, api_key=22, versions="0-5", flexible="2+"):
    """Asks for a producer id; with a transactional id it also fences the producers that had it before.

    v3 lets a producer go on with its id after a fenced epoch (KIP-360).
    """

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)


class InitProducerIdResponse(ApiMessage, api_key=22, versions="0-5", flexible="2+"):
    """The producer id and its epoch. v4 can answer PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE (KIP-890)."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)


class DescribeProducersRequestTopicRequest(Message):
    """One of the `topics` of a `DescribeProducersRequest`."""

    name: str = field(STRING)
    partition_indexes: list[int] = field(ArrayOf(INT32))


class DescribeProducersRequest(ApiMessage, api_key=61, versions="0", flexible="0+"):
    """Asks which producers are known in partitions (KIP-664)."""

    topics: list[DescribeProducersRequestTopicRequest] = field(ArrayOf(DescribeProducersRequestTopicRequest))


class ProducerState(Message):
    """One of the `active_producers` of a `DescribeProducersResponsePartition`."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)


class DescribeProducersResponsePartition(Message):
    """One of the `partitions` of a `DescribeProducersResponseTopic`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: list[ProducerState] = field(ArrayOf(ProducerState))


class DescribeProducersResponseTopic(Message):
    """One of the `topics` of a `DescribeProducersResponse`."""

    name: str = field(STRING)
    partitions: list[DescribeProducersResponsePartition] = field(ArrayOf(DescribeProducersResponsePartition))


class DescribeProducersResponse(ApiMessage, api_key=61, versions="0", flexible="0+"):
    """The producers of partitions: their epochs, sequences and open transactions."""

    throttle_time_ms: int = field(INT32)
    topics: list[DescribeProducersResponseTopic] = field(ArrayOf(DescribeProducersResponseTopic))
