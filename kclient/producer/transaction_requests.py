"""The requests of a transactional producer, the versions that they may have, and the codes in their answers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kclient.producer.transaction_coordinator import AllowedVersions, Code
from kclient.producer.transactions import V1, V2
from kclient.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from kclient.producer.producer_id import ProducerIdAndEpoch
    from kclient.protocol.messages import AddPartitionsToTxnResponse, TxnOffsetCommitResponse
    from kclient.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

INIT_VERSIONS: Final = AllowedVersions()
INIT_BUMP_VERSIONS: Final = AllowedVersions(
    3,
    hint="it cannot bump the epoch after an error: make a new producer (with Kafka 2.5 or newer this one could go on)",
)
ADD_PARTITIONS_VERSIONS: Final = AllowedVersions(0, 3)
"""Newer ones are the brokers'."""
END_VERSIONS: Final = {
    V1: AllowedVersions(0, 4),
    V2: AllowedVersions(5, hint="the cluster has transaction.version 2: all brokers have to be Kafka 4.0 or newer"),
}
_FENCING_HINT: Final = (
    "it cannot tell whether the group has gone on without this member (KIP-447): use Kafka 2.5 or newer"
)
OFFSET_COMMIT_VERSIONS: Final = {
    (V1, False): AllowedVersions(0, 4),
    (V1, True): AllowedVersions(3, 4, _FENCING_HINT),
    (V2, False): AllowedVersions(5, hint=END_VERSIONS[V2].hint),
    (V2, True): AllowedVersions(5, hint=END_VERSIONS[V2].hint),
}
"""By generation of the protocol, and whether a membership is told of."""


def single_code(answer: Any) -> Iterator[Code]:
    """The error of an answer that has one for the whole request."""
    yield Code(answer.error_code)


def add_partitions_request(
    transactional_id: str, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """The request that adds partitions, in the versions for clients."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in topics.items()],
    )


def add_partitions_codes(answer: AddPartitionsToTxnResponse) -> Iterator[Code]:
    """The errors of an answer, partition by partition."""
    for topic in answer.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            yield Code(result.partition_error_code, f"{topic.name}-{result.partition_index}")


def can_fence(group: ConsumerGroupMetadata) -> bool:
    """Whether there is a membership that the group can compare (KIP-447)."""
    return group.generation_id >= 0 or bool(group.member_id) or group.group_instance_id is not None


def offset_commit_request(
    transactional_id: str,
    identity: ProducerIdAndEpoch,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    """The request that commits offsets in a transaction."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        topics[topic].append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
    )


def offset_commit_codes(answer: TxnOffsetCommitResponse) -> Iterator[Code]:
    """The errors of an answer, partition by partition."""
    for topic in answer.topics:
        for partition in topic.partitions:
            yield Code(partition.error_code, f"{topic.name}-{partition.partition_index}")
