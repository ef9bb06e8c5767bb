"""State of share groups, kept by the share coordinator; spoken between brokers (KIP-932)."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import INT8, INT16, INT32, INT64, STRING, UUID

__all__ = [
    "DeleteShareGroupStateRequest",
    "DeleteShareGroupStateRequestPartitionData",
    "DeleteShareGroupStateResponse",
    "DeleteShareGroupStateResponsePartitionResult",
    "DeleteStateData",
    "DeleteStateResult",
    "InitializeShareGroupStateRequest",
    "InitializeShareGroupStateRequestPartitionData",
    "InitializeShareGroupStateResponse",
    "InitializeShareGroupStateResponsePartitionResult",
    "InitializeStateData",
    "InitializeStateResult",
    "ReadShareGroupStateRequest",
    "ReadShareGroupStateRequestPartitionData",
    "ReadShareGroupStateResponse",
    "ReadShareGroupStateResponseBatch",
    "ReadShareGroupStateResponsePartitionResult",
    "ReadShareGroupStateSummaryRequest",
    "ReadShareGroupStateSummaryRequestPartitionData",
    "ReadShareGroupStateSummaryResponse",
    "ReadShareGroupStateSummaryResponsePartitionResult",
    "ReadStateData",
    "ReadStateResult",
    "ReadStateSummaryData",
    "ReadStateSummaryResult",
    "WriteShareGroupStateRequest",
    "WriteShareGroupStateRequestBatch",
    "WriteShareGroupStateRequestPartitionData",
    "WriteShareGroupStateResponse",
    "WriteShareGroupStateResponsePartitionResult",
    "WriteStateData",
    "WriteStateResult",
]


class InitializeShareGroupStateRequestPartitionData(Message):
    """One of the `partitions` of a `InitializeStateData`."""

    partition: int = field(INT32)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64)


class InitializeStateData(Message):
    """One of the `topics` of a `InitializeShareGroupStateRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[InitializeShareGroupStateRequestPartitionData] = field(
        ArrayOf(InitializeShareGroupStateRequestPartitionData)
    )


class InitializeShareGroupStateRequest(ApiMessage, api_key=83, versions="0", flexible="0+"):
    """Begins the state of share partitions at an offset."""

    group_id: str = field(STRING)
    topics: list[InitializeStateData] = field(ArrayOf(InitializeStateData))


class InitializeShareGroupStateResponsePartitionResult(Message):
    """One of the `partitions` of a `InitializeStateResult`."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class InitializeStateResult(Message):
    """One of the `results` of a `InitializeShareGroupStateResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[InitializeShareGroupStateResponsePartitionResult] = field(
        ArrayOf(InitializeShareGroupStateResponsePartitionResult)
    )


class InitializeShareGroupStateResponse(ApiMessage, api_key=83, versions="0", flexible="0+"):
    """Whether it worked, for each partition."""

    results: list[InitializeStateResult] = field(ArrayOf(InitializeStateResult))


class ReadShareGroupStateRequestPartitionData(Message):
    """One of the `partitions` of a `ReadStateData`."""

    partition: int = field(INT32)
    leader_epoch: int = field(INT32)


class ReadStateData(Message):
    """One of the `topics` of a `ReadShareGroupStateRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[ReadShareGroupStateRequestPartitionData] = field(ArrayOf(ReadShareGroupStateRequestPartitionData))


class ReadShareGroupStateRequest(ApiMessage, api_key=84, versions="0", flexible="0+"):
    """Reads the state of share partitions."""

    group_id: str = field(STRING)
    topics: list[ReadStateData] = field(ArrayOf(ReadStateData))


class ReadShareGroupStateResponseBatch(Message):
    """One of the `state_batches` of a `ReadShareGroupStateResponsePartitionResult`."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class ReadShareGroupStateResponsePartitionResult(Message):
    """One of the `partitions` of a `ReadStateResult`."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    state_batches: list[ReadShareGroupStateResponseBatch] = field(ArrayOf(ReadShareGroupStateResponseBatch))


class ReadStateResult(Message):
    """One of the `results` of a `ReadShareGroupStateResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[ReadShareGroupStateResponsePartitionResult] = field(
        ArrayOf(ReadShareGroupStateResponsePartitionResult)
    )


class ReadShareGroupStateResponse(ApiMessage, api_key=84, versions="0", flexible="0+"):
    """The state: start offset, and batches with delivery state and count."""

    results: list[ReadStateResult] = field(ArrayOf(ReadStateResult))


class WriteShareGroupStateRequestBatch(Message):
    """One of the `state_batches` of a `WriteShareGroupStateRequestPartitionData`."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class WriteShareGroupStateRequestPartitionData(Message):
    """One of the `partitions` of a `WriteStateData`."""

    partition: int = field(INT32)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, "1+", default=-1, ignorable=True)
    state_batches: list[WriteShareGroupStateRequestBatch] = field(ArrayOf(WriteShareGroupStateRequestBatch))


class WriteStateData(Message):
    """One of the `topics` of a `WriteShareGroupStateRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[WriteShareGroupStateRequestPartitionData] = field(
        ArrayOf(WriteShareGroupStateRequestPartitionData)
    )


class WriteShareGroupStateRequest(ApiMessage, api_key=85, versions="0-1", flexible="0+"):
    """Writes the state of share partitions. v1 adds the number of completed deliveries (KIP-1226)."""

    group_id: str = field(STRING)
    topics: list[WriteStateData] = field(ArrayOf(WriteStateData))


class WriteShareGroupStateResponsePartitionResult(Message):
    """One of the `partitions` of a `WriteStateResult`."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class WriteStateResult(Message):
    """One of the `results` of a `WriteShareGroupStateResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[WriteShareGroupStateResponsePartitionResult] = field(
        ArrayOf(WriteShareGroupStateResponsePartitionResult)
    )


class WriteShareGroupStateResponse(ApiMessage, api_key=85, versions="0-1", flexible="0+"):
    """Whether it worked, for each partition."""

    results: list[WriteStateResult] = field(ArrayOf(WriteStateResult))


class DeleteShareGroupStateRequestPartitionData(Message):
    """One of the `partitions` of a `DeleteStateData`."""

    partition: int = field(INT32)


class DeleteStateData(Message):
    """One of the `topics` of a `DeleteShareGroupStateRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[DeleteShareGroupStateRequestPartitionData] = field(
        ArrayOf(DeleteShareGroupStateRequestPartitionData)
    )


class DeleteShareGroupStateRequest(ApiMessage, api_key=86, versions="0", flexible="0+"):
    """Deletes the state of share partitions."""

    group_id: str = field(STRING)
    topics: list[DeleteStateData] = field(ArrayOf(DeleteStateData))


class DeleteShareGroupStateResponsePartitionResult(Message):
    """One of the `partitions` of a `DeleteStateResult`."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DeleteStateResult(Message):
    """One of the `results` of a `DeleteShareGroupStateResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[DeleteShareGroupStateResponsePartitionResult] = field(
        ArrayOf(DeleteShareGroupStateResponsePartitionResult)
    )


class DeleteShareGroupStateResponse(ApiMessage, api_key=86, versions="0", flexible="0+"):
    """Whether it worked, for each partition."""

    results: list[DeleteStateResult] = field(ArrayOf(DeleteStateResult))


class ReadShareGroupStateSummaryRequestPartitionData(Message):
    """One of the `partitions` of a `ReadStateSummaryData`."""

    partition: int = field(INT32)
    leader_epoch: int = field(INT32)


class ReadStateSummaryData(Message):
    """One of the `topics` of a `ReadShareGroupStateSummaryRequest`."""

    topic_id: bytes = field(UUID)
    partitions: list[ReadShareGroupStateSummaryRequestPartitionData] = field(
        ArrayOf(ReadShareGroupStateSummaryRequestPartitionData)
    )


class ReadShareGroupStateSummaryRequest(ApiMessage, api_key=87, versions="0-1", flexible="0+"):
    """Reads start offsets of share partitions without their batches."""

    group_id: str = field(STRING)
    topics: list[ReadStateSummaryData] = field(ArrayOf(ReadStateSummaryData))


class ReadShareGroupStateSummaryResponsePartitionResult(Message):
    """One of the `partitions` of a `ReadStateSummaryResult`."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, "1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Message):
    """One of the `results` of a `ReadShareGroupStateSummaryResponse`."""

    topic_id: bytes = field(UUID)
    partitions: list[ReadShareGroupStateSummaryResponsePartitionResult] = field(
        ArrayOf(ReadShareGroupStateSummaryResponsePartitionResult)
    )


class ReadShareGroupStateSummaryResponse(ApiMessage, api_key=87, versions="0-1", flexible="0+"):
    """The start offsets; v1 adds the number of completed deliveries (KIP-1226)."""

    results: list[ReadStateSummaryResult] = field(ArrayOf(ReadStateSummaryResult))
