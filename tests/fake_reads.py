"""The small cluster in memory, for consumers: fetches, offsets, groups of one member; it hangs on command."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    Coordinator,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    SyncGroupResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import BatchBuilder
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker, FakeKafka

VERSIONS = {
    ApiKey.FETCH: (4, 16),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (8, 9),
    ApiKey.JOIN_GROUP: (5, 9),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
}


async def never() -> None:
    """What a broker does that hangs."""
    await anyio.Event().wait()


class ReadableKafka(FakeKafka):
    """A cluster that can be read.

    Args:
        topics: Number of partitions by topic; led by the brokers in turn.
        brokers: How many brokers.
    """

    def __init__(self, topics: dict[str, int] | None = None, brokers: int = 1) -> None:
        super().__init__(topics, brokers, VERSIONS)
        self.hung: set[int] = set()
        """Brokers that accept and never answer."""
        self.silent: set[ApiKey] = set()
        """Requests that are never answered."""
        self.silent_at: set[tuple[int, ApiKey]] = set()
        """The same, of one broker."""
        self.errors: dict[ApiKey, int] = {}
        """Requests that are answered with an error, always."""
        self.coordinator = 1
        self.committed: dict[TopicPartition, int] = {}
        self.untold: dict[TopicPartition, int] = {}
        """Error codes in the place of committed offsets."""
        self.asked: list[tuple[int, ApiKey]] = []
        """Every request, with the broker that it came to."""
        self.rebalance = False
        """Whether heartbeats say that the group rebalances."""

    def fill(self, topic: str, partition: int, count: int) -> None:
        """Append a batch of records with the values 0, 1, 2 …"""
        builder = BatchBuilder(limit=1 << 20)
        for number in range(count):
            builder.append(1000 + number, None, b"%d" % number)
        found = self.partitions[TopicPartition(topic, partition)]
        found.append(bytes(builder.build(base_offset=found.end, partition_leader_epoch=found.epoch)))

    def delete(self, topic: str) -> None:
        """The topic is gone, and what groups committed of it; who waits for its records is told."""
        gone = [self.partitions[tp] for tp in self.partitions if tp.topic == topic]
        super().delete(topic)
        self.committed = {tp: offset for tp, offset in self.committed.items() if tp.topic != topic}
        for partition in gone:
            partition.ring()

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        self.asked.append((broker.node_id, key))
        if broker.node_id in self.hung or key in self.silent or (broker.node_id, key) in self.silent_at:
            return never()
        match key:
            case ApiKey.FETCH:
                return self._fetch(broker, version, request)
            case ApiKey.LIST_OFFSETS:
                return self._list_offsets(broker, request)
            case ApiKey.OFFSET_COMMIT:
                return self._commit(request)
            case ApiKey.OFFSET_FETCH:
                return self._committed(request)
            case ApiKey.JOIN_GROUP:
                return self._join(broker, request)
            case ApiKey.SYNC_GROUP:
                mine = [item.assignment for item in request.assignments if item.member_id == request.member_id]
                return SyncGroupResponse(error_code=self._code(key), assignment=mine[0] if mine else b"")
            case ApiKey.HEARTBEAT:
                code = ErrorCode.REBALANCE_IN_PROGRESS if self.rebalance else self._code(key)
                return HeartbeatResponse(error_code=code)
            case ApiKey.LEAVE_GROUP:
                return LeaveGroupResponse(error_code=self._code(key))
            case _:
                return super().answer(broker, key, version, request, connection)

    def _code(self, key: ApiKey) -> int:
        return self.errors.get(key, 0)

    def _coordinator(self, version: int, request: Any) -> FindCoordinatorResponse:
        where: dict[str, Any] = {"node_id": self.coordinator, "host": self.brokers[self.coordinator].host, "port": 0}
        code = self._code(ApiKey.FIND_COORDINATOR)
        found = [Coordinator(key=key, error_code=code, **where) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    async def _fetch(self, broker: FakeBroker, version: int, request: Any) -> ApiMessage:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        with anyio.move_on_after(request.max_wait_ms / 1000):
            while not any(
                self._news(topic.topic or names.get(bytes(topic.topic_id), ""), item)
                for topic in request.topics
                for item in topic.partitions
            ):
                await anyio.sleep(0.005)
        names = {topic_id: name for name, topic_id in self.ids.items()}  # it may have been deleted meanwhile
        responses = []
        for topic in request.topics:
            name = topic.topic or names.get(bytes(topic.topic_id), "")
            partitions = [self._read(broker, TopicPartition(name, item.partition), item) for item in topic.partitions]
            responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
        return FetchResponse(error_code=self._code(ApiKey.FETCH), responses=responses)

    def _news(self, topic: str, asked: Any) -> bool:
        found = self.partitions.get(TopicPartition(topic, asked.partition))
        return found is None or found.end > asked.fetch_offset

    def _read(self, broker: FakeBroker, tp: TopicPartition, asked: Any) -> FetchResponsePartitionData:
        found = self.partitions.get(tp)
        answer = FetchResponsePartitionData(partition_index=tp.partition, high_watermark=-1)
        if found is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif found.leader != broker.node_id:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not 0 <= asked.fetch_offset <= found.end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            answer.high_watermark = found.end
            bases = 0
            data = b""
            for batch in found.batches:
                count = int.from_bytes(batch[57:61], "big")
                if bases + count > asked.fetch_offset:
                    data += batch
                bases += count
            answer.records = data
        return answer

    def _list_offsets(self, broker: FakeBroker, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                found = self.partitions.get(TopicPartition(topic.name, item.partition_index))
                answer = ListOffsetsPartitionResponse(partition_index=item.partition_index)
                if found is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif found.leader != broker.node_id:
                    answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    answer.error_code = self._code(ApiKey.LIST_OFFSETS)
                    answer.offset = found.end if item.timestamp == -1 else 0
                    answer.timestamp = 1000
                partitions.append(answer)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def _commit(self, request: Any) -> OffsetCommitResponse:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        topics = []
        for topic in request.topics:
            name = topic.name or names.get(bytes(topic.topic_id), "")
            partitions = []
            for item in topic.partitions:
                tp = TopicPartition(name, item.partition_index)
                code = self._code(ApiKey.OFFSET_COMMIT)
                if not name:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                elif tp not in self.partitions:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not code:
                    self.committed[tp] = item.committed_offset
                partitions.append(OffsetCommitResponsePartition(partition_index=tp.partition, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        return OffsetCommitResponse(topics=topics)

    def _committed(self, request: Any) -> OffsetFetchResponse:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        groups = []
        for group in request.groups:
            topics = []
            for topic in group.topics or ():
                name = topic.name or names.get(bytes(topic.topic_id), "")
                partitions = [
                    OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=self.committed.get(TopicPartition(name, number), -1),
                        committed_leader_epoch=-1,
                        metadata="",
                        error_code=self.untold.get(TopicPartition(name, number), 0),
                    )
                    for number in topic.partition_indexes
                ]
                topics.append(
                    OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
                )
            code = self._code(ApiKey.OFFSET_FETCH)
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=code))
        return OffsetFetchResponse(groups=groups)

    def _join(self, broker: FakeBroker, request: Any) -> JoinGroupResponse:
        code = self._code(ApiKey.JOIN_GROUP)
        if broker.node_id != self.coordinator:
            code = ErrorCode.NOT_COORDINATOR
        if code:
            return JoinGroupResponse(error_code=code)
        self.rebalance = False
        self.generation += 1
        chosen = request.protocols[0]
        member = JoinGroupResponseMember(member_id="m", metadata=chosen.metadata)
        return JoinGroupResponse(
            generation_id=self.generation, protocol_name=chosen.name, leader="m", member_id="m", members=[member]
        )

    generation = 0
