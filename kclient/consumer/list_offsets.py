"""Finding offsets by time, at the start or at the end of partitions (ListOffsets)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kclient.errors import ErrorCode, KafkaError, error_for
from kclient.protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kclient.types import OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from kclient.cluster import ClusterSnapshot
    from kclient.protocol.messages import ListOffsetsResponse

_NOT_SUPPORTED_MEANS_ABSENT = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@dataclass(slots=True)
class OffsetSearch:
    """A search in several partitions, whose answers come from several brokers.

    Args:
        wanted: The timestamp to search for in each partition; -1 is the end, -2 the start.
    """

    wanted: dict[TopicPartition, int]
    found: dict[TopicPartition, OffsetAndTimestamp | None] = field(default_factory=dict)
    error: KafkaError | None = None
    """The last error of a partition that is to be asked again."""

    @property
    def missing(self) -> dict[TopicPartition, int]:
        """What is still to be found."""
        return {tp: timestamp for tp, timestamp in self.wanted.items() if tp not in self.found}

    def requests(
        self, snapshot: ClusterSnapshot, *, read_committed: bool, timeout_ms: int = 0
    ) -> tuple[dict[int, ListOffsetsRequest], set[TopicPartition]]:
        """What to ask which broker for the partitions still missing.

        Returns:
            The requests by node id, and the partitions whose leader is unknown.
        """
        nodes: dict[int, dict[str, list[ListOffsetsPartition]]] = defaultdict(lambda: defaultdict(list))
        leaderless = set()
        for tp, timestamp in self.missing.items():
            leader = snapshot.leader_id(tp)
            if leader is None:
                leaderless.add(tp)
                continue
            epoch = snapshot.leader_epoch(tp)
            nodes[leader][tp.topic].append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=-1 if epoch is None else epoch,
                    timestamp=timestamp,
                )
            )
        requests = {
            node: ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=[ListOffsetsTopic(name=name, partitions=found) for name, found in topics.items()],
                timeout_ms=timeout_ms,
            )
            for node, topics in nodes.items()
        }
        return requests, leaderless

    def received(self, response: ListOffsetsResponse) -> None:
        """Take over an answer; `missing` partitions are to be asked again.

        Raises:
            KafkaError: A partition was refused for good.
        """
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                if code == _NOT_SUPPORTED_MEANS_ABSENT:
                    self.found[tp] = None
                elif code:
                    self._refused(tp, code)
                elif partition.offset < 0:
                    self.found[tp] = None
                else:
                    epoch = None if partition.leader_epoch < 0 else partition.leader_epoch
                    self.found[tp] = OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)

    def _refused(self, tp: TopicPartition, code: int) -> None:
        error = error_for(code, f"{tp}: {error_for(code).message}")
        if not error.retriable:
            raise error
        self.error = error
