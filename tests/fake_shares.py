"""The small cluster in memory, for share groups (KIP-932): records held for members, acknowledged, and given back.

One member gets the partitions that it asks for; what a broker holds is lost when the session is, and locks end when a
test says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AcquiredRecords,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker
from tests.fake_reads import ReadableKafka

VERSIONS = {ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1), ApiKey.SHARE_FETCH: (1, 2), ApiKey.SHARE_ACKNOWLEDGE: (1, 2)}

_RENEW = 4
_DONE = frozenset({0, 1, 3})
"""What is said of records that are not delivered again."""


class SharingKafka(ReadableKafka):
    """A cluster with one share group, in which each partition begins with its first record."""

    def __init__(self, topics: dict[str, int] | None = None, brokers: int = 1) -> None:
        super().__init__(topics, brokers)
        self.versions = {**self.versions, **VERSIONS}
        self.held: dict[TopicPartition, dict[int, str]] = defaultdict(dict)
        """Which member has which offset."""
        self.counts: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        """How often each offset was delivered."""
        self.done: dict[TopicPartition, set[int]] = defaultdict(set)
        """What is not delivered again."""
        self.epochs: dict[tuple[int, str], int] = {}
        """The epoch of each session, by broker and member."""
        self.shared: dict[tuple[int, str], set[tuple[bytes, int]]] = defaultdict(set)
        """What each session fetches, by topic id and number."""
        self.members: dict[str, int] = {}
        self.left: list[str] = []
        self.lock_ms = 30_000
        self.session_codes: list[int] = []
        """Error codes for the next fetches and acknowledgements as a whole."""
        self.acknowledge_codes: list[int] = []
        """Error codes for the partitions of the next acknowledgements."""

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        match key:
            case ApiKey.SHARE_GROUP_HEARTBEAT:
                return self._share_heartbeat(request)
            case ApiKey.SHARE_FETCH:
                return self._share_fetch(broker, request)
            case ApiKey.SHARE_ACKNOWLEDGE:
                return self._share_acknowledge(broker, request)
        return super().answer(broker, key, version, request, connection)

    # ------------------------------------------------------------------ the group

    def _share_heartbeat(self, request: Any) -> ShareGroupHeartbeatResponse:
        member = request.member_id
        if request.member_epoch < 0:
            self.members.pop(member, None)
            self.left.append(member)
            return ShareGroupHeartbeatResponse(member_id=member, member_epoch=-1)
        if request.member_epoch and member not in self.members:
            return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        assignment = None
        if request.subscribed_topic_names is not None:
            self.members[member] = self.members.get(member, 0) + 1
            assignment = ShareGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ShareGroupHeartbeatResponseTopicPartitions(
                        topic_id=self.ids[topic],
                        partitions=[tp.partition for tp in self.partitions if tp.topic == topic],
                    )
                    for topic in request.subscribed_topic_names
                    if topic in self.ids
                ]
            )
        return ShareGroupHeartbeatResponse(
            member_id=member, member_epoch=self.members[member], heartbeat_interval_ms=5000, assignment=assignment
        )

    # ------------------------------------------------------------------ sessions

    def _tp(self, topic_id: bytes, partition: int) -> TopicPartition:
        name = next((name for name, known in self.ids.items() if known == bytes(topic_id)), "?")
        return TopicPartition(name, partition)

    def _session(self, broker: FakeBroker, request: Any) -> int:
        """The error code of a request as a whole; the epoch goes on."""
        if self.session_codes:
            code = self.session_codes.pop(0)
            if code:
                self.lose_session(broker.node_id, request.member_id)
            return code
        key = broker.node_id, request.member_id
        if request.share_session_epoch == -1:
            return 0 if self.epochs.pop(key, None) is not None else ErrorCode.SHARE_SESSION_NOT_FOUND
        if request.share_session_epoch == 0:
            self.lose_session(*key)
        elif key not in self.epochs:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif self.epochs[key] != request.share_session_epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        self.epochs[key] = request.share_session_epoch + 1
        return 0

    def lose_session(self, node_id: int, member_id: str) -> None:
        """The broker gives back what it holds for the member."""
        self.epochs.pop((node_id, member_id), None)
        self.shared.pop((node_id, member_id), None)
        for tp, held in self.held.items():
            if self.partitions[tp].leader == node_id:
                self.held[tp] = {offset: member for offset, member in held.items() if member != member_id}

    def release(self) -> None:
        """All locks are over."""
        self.held.clear()

    def _settle(self, tp: TopicPartition, member: str, batches: Any) -> int:
        if self.acknowledge_codes and (code := self.acknowledge_codes.pop(0)):
            return code
        said: dict[int, int] = {}
        for batch in batches:
            kinds = batch.acknowledge_types
            length = batch.last_offset - batch.first_offset + 1
            assert len(kinds) in {1, length}
            for index in range(length):
                said[batch.first_offset + index] = kinds[index if len(kinds) > 1 else 0]
        if any(self.held[tp].get(offset) != member for offset in said):
            return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in said.items():
            if kind in _DONE:
                self.done[tp].add(offset)
            if kind != _RENEW:
                del self.held[tp][offset]
        return 0

    def _share_acknowledge(self, broker: FakeBroker, request: Any) -> ShareAcknowledgeResponse:
        code = self._session(broker, request)
        if code:
            return ShareAcknowledgeResponse(error_code=code)
        responses = [
            ShareAcknowledgeTopicResponse(
                topic_id=topic.topic_id,
                partitions=[
                    ShareAcknowledgeResponsePartitionData(
                        partition_index=partition.partition_index,
                        error_code=self._settle(
                            self._tp(topic.topic_id, partition.partition_index),
                            request.member_id,
                            partition.acknowledgement_batches,
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        if request.share_session_epoch == -1:
            self.lose_session(broker.node_id, request.member_id)
        return ShareAcknowledgeResponse(acquisition_lock_timeout_ms=self.lock_ms, responses=responses)

    async def _share_fetch(self, broker: FakeBroker, request: Any) -> ShareFetchResponse:
        code = self._session(broker, request)
        if code:
            return ShareFetchResponse(error_code=code)
        shared = self.shared[broker.node_id, request.member_id]
        acknowledged: dict[TopicPartition, int] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                tp = self._tp(topic.topic_id, partition.partition_index)
                shared.add((bytes(topic.topic_id), partition.partition_index))
                if partition.acknowledgement_batches:
                    acknowledged[tp] = self._settle(tp, request.member_id, partition.acknowledgement_batches)
        for topic in request.forgotten_topics_data:
            shared -= {(bytes(topic.topic_id), number) for number in topic.partitions}
        waits = request.max_wait_ms / 1000
        rung = anyio.Event()
        fetched = [self._tp(*place) for place in shared]
        watched = [self.partitions[tp] for tp in fetched if tp in self.partitions]
        for found in watched:
            found.watchers.add(rung)
        try:
            if not any(self._available(tp) for tp in fetched):
                with anyio.move_on_after(waits):
                    await rung.wait()
        finally:
            for found in watched:
                found.watchers.discard(rung)
        return self._acquired(broker, request, sorted(shared), acknowledged)

    def _available(self, tp: TopicPartition) -> list[int]:
        if tp not in self.partitions:
            return []
        return [
            offset
            for offset in range(self.partitions[tp].end)
            if offset not in self.done[tp] and offset not in self.held[tp]
        ]

    def _acquired(
        self, broker: FakeBroker, request: Any, shared: list[tuple[bytes, int]], acknowledged: dict[TopicPartition, int]
    ) -> ShareFetchResponse:
        left = request.max_records
        topics: dict[bytes, list[ShareFetchResponsePartitionData]] = defaultdict(list)
        for topic_id, number in shared:
            tp = self._tp(topic_id, number)
            answer = ShareFetchResponsePartitionData(
                partition_index=tp.partition, acknowledge_error_code=acknowledged.get(tp, 0)
            )
            topics[topic_id].append(answer)
            partition = self.partitions.get(tp)
            if partition is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if partition.leader != broker.node_id:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                answer.current_leader.leader_id = partition.leader
                answer.current_leader.leader_epoch = partition.epoch
                continue
            offsets = self._available(tp)[:left]
            left -= len(offsets)
            for offset in offsets:
                self.held[tp][offset] = request.member_id
                self.counts[tp][offset] = self.counts[tp].get(offset, 0) + 1
            answer.records = b"".join(partition.batches) if offsets else b""
            answer.acquired_records = [
                AcquiredRecords(first_offset=offset, last_offset=offset, delivery_count=self.counts[tp][offset])
                for offset in offsets
            ]
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self.lock_ms,
            responses=[
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()
            ],
        )
