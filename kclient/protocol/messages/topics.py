"""Creating, deleting and growing topics."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, INT8, INT16, INT32, STRING, UUID

__all__ = [
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreatePartitionsAssignment",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreatePartitionsTopic",
    "CreatePartitionsTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeletableTopicResult",
    "DeleteTopicState",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
]


class CreatableReplicaAssignment(Message):
    """One of the `assignments` of a `CreatableTopic`."""

    partition_index: int = field(INT32)
    broker_ids: list[int] = field(ArrayOf(INT32))


class CreatableTopicConfig(Message):
    """One of the `configs` of a `CreatableTopic`."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class CreatableTopic(Message):
    """One of the `topics` of a `CreateTopicsRequest`."""

    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: list[CreatableReplicaAssignment] = field(ArrayOf(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = field(ArrayOf(CreatableTopicConfig))


class CreateTopicsRequest(ApiMessage, api_key=19, versions="0-7", flexible="5+"):
    """Creates topics.

    v1 can validate only; from v4 number of partitions and replication factor may be -1 for the broker's
    defaults (KIP-464).
    """

    topics: list[CreatableTopic] = field(ArrayOf(CreatableTopic))
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL, "1+")


class CreatableTopicConfigs(Message):
    """One of the `configs` of a `CreatableTopicResult`."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="5+")
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)


class CreatableTopicResult(Message):
    """One of the `topics` of a `CreateTopicsResponse`."""

    name: str = field(STRING)
    topic_id: bytes = field(UUID, "7+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "1+", nullable="1+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", ignorable=True, tag=0)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(
        ArrayOf(CreatableTopicConfigs), "5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(ApiMessage, api_key=19, versions="0-7", flexible="5+"):
    """Whether it worked, for each topic.

    v5 adds what was created: partitions, replication factor and configuration (KIP-525); v7 adds the
    topic id.
    """

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[CreatableTopicResult] = field(ArrayOf(CreatableTopicResult))


class DeleteTopicState(Message):
    """One of the `topics` of a `DeleteTopicsRequest`."""

    name: str | None = field(STRING, nullable="6+", default=None)
    topic_id: bytes = field(UUID)


class DeleteTopicsRequest(ApiMessage, api_key=20, versions="0-6", flexible="4+"):
    """Deletes topics; from v6 by name or id."""

    topics: list[DeleteTopicState] = field(ArrayOf(DeleteTopicState), "6+")
    topic_names: list[str] = field(ArrayOf(STRING), "0-5", ignorable=True)
    timeout_ms: int = field(INT32)


class DeletableTopicResult(Message):
    """One of the `responses` of a `DeleteTopicsResponse`."""

    name: str | None = field(STRING, nullable="6+")
    topic_id: bytes = field(UUID, "6+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(ApiMessage, api_key=20, versions="0-6", flexible="4+"):
    """Whether it worked, for each topic. v5 adds error messages, v6 topic ids."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    responses: list[DeletableTopicResult] = field(ArrayOf(DeletableTopicResult))


class CreatePartitionsAssignment(Message):
    """One of the `assignments` of a `CreatePartitionsTopic`."""

    broker_ids: list[int] = field(ArrayOf(INT32))


class CreatePartitionsTopic(Message):
    """One of the `topics` of a `CreatePartitionsRequest`."""

    name: str = field(STRING)
    count: int = field(INT32)
    assignments: list[CreatePartitionsAssignment] | None = field(ArrayOf(CreatePartitionsAssignment), nullable="0+")


class CreatePartitionsRequest(ApiMessage, api_key=37, versions="0-3", flexible="2+"):
    """Adds partitions to topics, up to the given counts (KIP-195)."""

    topics: list[CreatePartitionsTopic] = field(ArrayOf(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


class CreatePartitionsTopicResult(Message):
    """One of the `results` of a `CreatePartitionsResponse`."""

    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class CreatePartitionsResponse(ApiMessage, api_key=37, versions="0-3", flexible="2+"):
    """Whether it worked, for each topic."""

    throttle_time_ms: int = field(INT32)
    results: list[CreatePartitionsTopicResult] = field(ArrayOf(CreatePartitionsTopicResult))
