"""Transactions: what belongs to them, how they end, and looking at them."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, INT64, STRING

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnPartitionResult",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddPartitionsToTxnResult",
    "AddPartitionsToTxnTopic",
    "AddPartitionsToTxnTopicResult",
    "AddPartitionsToTxnTransaction",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeTransactionsResponseTopicData",
    "DescribeTransactionsResponseTransactionState",
    "EndTxnRequest",
    "EndTxnResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "ListTransactionsResponseTransactionState",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitResponse",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
    "WritableTxnMarker",
    "WritableTxnMarkerPartitionResult",
    "WritableTxnMarkerResult",
    "WritableTxnMarkerTopic",
    "WritableTxnMarkerTopicResult",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]


class AddPartitionsToTxnTopic(Message):
    """One of the `topics` of a `AddPartitionsToTxnTransaction`."""

    name: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class AddPartitionsToTxnTransaction(Message):
    """One of the `transactions` of a `AddPartitionsToTxnRequest`."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    verify_only: bool = field(BOOL)
    topics: list[AddPartitionsToTxnTopic] = field(ArrayOf(AddPartitionsToTxnTopic))


class AddPartitionsToTxnRequest(ApiMessage, api_key=24, versions="0-5", flexible="3+"):
    """Adds partitions to a transaction.

    Clients use v0 to v3, each for one transaction. v4 and above are for brokers, which verify and add for
    many transactions at once (KIP-890).
    """

    transactions: list[AddPartitionsToTxnTransaction] = field(ArrayOf(AddPartitionsToTxnTransaction), "4+")
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(ArrayOf(AddPartitionsToTxnTopic), "0-3")


class AddPartitionsToTxnPartitionResult(Message):
    """One of the `results_by_partition` of a `AddPartitionsToTxnTopicResult`."""

    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


class AddPartitionsToTxnTopicResult(Message):
    """One of the `topic_results` of a `AddPartitionsToTxnResult`."""

    name: str = field(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(ArrayOf(AddPartitionsToTxnPartitionResult))


class AddPartitionsToTxnResult(Message):
    """One of the `results_by_transaction` of a `AddPartitionsToTxnResponse`."""

    transactional_id: str = field(STRING)
    topic_results: list[AddPartitionsToTxnTopicResult] = field(ArrayOf(AddPartitionsToTxnTopicResult))


class AddPartitionsToTxnResponse(ApiMessage, api_key=24, versions="0-5", flexible="3+"):
    """Whether it worked, for each partition: of one transaction up to v3, of many from v4 on."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(ArrayOf(AddPartitionsToTxnResult), "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        ArrayOf(AddPartitionsToTxnTopicResult), "0-3"
    )


class AddOffsetsToTxnRequest(ApiMessage, api_key=25, versions="0-4", flexible="3+"):
    """Adds a group's offsets to a transaction; TxnOffsetCommit then commits them."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


class AddOffsetsToTxnResponse(ApiMessage, api_key=25, versions="0-4", flexible="3+"):
    """Whether it worked. v2 can answer PRODUCER_FENCED, v4 TRANSACTION_ABORTABLE (KIP-890)."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)


class TxnOffsetCommitRequestPartition(Message):
    """One of the `partitions` of a `TxnOffsetCommitRequestTopic`."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class TxnOffsetCommitRequestTopic(Message):
    """One of the `topics` of a `TxnOffsetCommitRequest`."""

    name: str = field(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = field(ArrayOf(TxnOffsetCommitRequestPartition))


class TxnOffsetCommitRequest(ApiMessage, api_key=28, versions="0-5", flexible="3+"):
    """Commits offsets of a group as part of a transaction.

    v2 adds leader epochs, v3 the member and its generation (KIP-447). From v5 on it also adds the offsets
    to the transaction (KIP-890).
    """

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field(ArrayOf(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Message):
    """One of the `partitions` of a `TxnOffsetCommitResponseTopic`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class TxnOffsetCommitResponseTopic(Message):
    """One of the `topics` of a `TxnOffsetCommitResponse`."""

    name: str = field(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = field(ArrayOf(TxnOffsetCommitResponsePartition))


class TxnOffsetCommitResponse(ApiMessage, api_key=28, versions="0-5", flexible="3+"):
    """Whether it worked, for each partition."""

    throttle_time_ms: int = field(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = field(ArrayOf(TxnOffsetCommitResponseTopic))


class EndTxnRequest(ApiMessage, api_key=26, versions="0-5", flexible="3+"):
    """Commits or aborts a transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)


class EndTxnResponse(ApiMessage, api_key=26, versions="0-5", flexible="3+"):
    """Whether it worked. v5 bumps the producer's epoch with every transaction and tells the new one
    (KIP-890).
    """

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(INT16, "5+", default=-1, ignorable=True)


class WritableTxnMarkerTopic(Message):
    """One of the `topics` of a `WritableTxnMarker`."""

    name: str = field(STRING)
    partition_indexes: list[int] = field(ArrayOf(INT32))


class WritableTxnMarker(Message):
    """One of the `markers` of a `WriteTxnMarkersRequest`."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)
    topics: list[WritableTxnMarkerTopic] = field(ArrayOf(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, "2+", ignorable=True)


class WriteTxnMarkersRequest(ApiMessage, api_key=27, versions="0-2", flexible="1+"):
    """Has commit or abort markers written into partitions; sent by transaction coordinators, and by tools
    that end hanging transactions.

    v2 tells the version of the transaction protocol (KIP-1228).
    """

    markers: list[WritableTxnMarker] = field(ArrayOf(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(Message):
    """One of the `partitions` of a `WritableTxnMarkerTopicResult`."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class WritableTxnMarkerTopicResult(Message):
    """One of the `topics` of a `WritableTxnMarkerResult`."""

    name: str = field(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = field(ArrayOf(WritableTxnMarkerPartitionResult))


class WritableTxnMarkerResult(Message):
    """One of the `markers` of a `WriteTxnMarkersResponse`."""

    producer_id: int = field(INT64)
    topics: list[WritableTxnMarkerTopicResult] = field(ArrayOf(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(ApiMessage, api_key=27, versions="0-2", flexible="1+"):
    """Whether it worked, for each partition."""

    markers: list[WritableTxnMarkerResult] = field(ArrayOf(WritableTxnMarkerResult))


class DescribeTransactionsRequest(ApiMessage, api_key=65, versions="0", flexible="0+"):
    """Asks for the state of transactions by transactional id (KIP-664)."""

    transactional_ids: list[str] = field(ArrayOf(STRING))


class DescribeTransactionsResponseTopicData(Message):
    """One of the `topics` of a `DescribeTransactionsResponseTransactionState`."""

    topic: str = field(STRING)
    partitions: list[int] = field(ArrayOf(INT32))


class DescribeTransactionsResponseTransactionState(Message):
    """One of the `transaction_states` of a `DescribeTransactionsResponse`."""

    error_code: int = field(INT16)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: list[DescribeTransactionsResponseTopicData] = field(ArrayOf(DescribeTransactionsResponseTopicData))


class DescribeTransactionsResponse(ApiMessage, api_key=65, versions="0", flexible="0+"):
    """Transactions: state, producer, timeout, start and partitions."""

    throttle_time_ms: int = field(INT32)
    transaction_states: list[DescribeTransactionsResponseTransactionState] = field(
        ArrayOf(DescribeTransactionsResponseTransactionState)
    )


class ListTransactionsRequest(ApiMessage, api_key=66, versions="0-2", flexible="0+"):
    """Lists transactions, filtered by state and producer.

    v1 can filter by duration (KIP-994), v2 by a pattern of transactional ids (KIP-1152).
    """

    state_filters: list[str] = field(ArrayOf(STRING))
    producer_id_filters: list[int] = field(ArrayOf(INT64))
    duration_filter: int = field(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = field(STRING, "2+", nullable="2+", default=None)


class ListTransactionsResponseTransactionState(Message):
    """One of the `transaction_states` of a `ListTransactionsResponse`."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


class ListTransactionsResponse(ApiMessage, api_key=66, versions="0-2", flexible="0+"):
    """The transactions that match, and filters on states that the broker does not know."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    unknown_state_filters: list[str] = field(ArrayOf(STRING))
    transaction_states: list[ListTransactionsResponseTransactionState] = field(
        ArrayOf(ListTransactionsResponseTransactionState)
    )
