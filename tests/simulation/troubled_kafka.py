"""A cluster in memory with what a real one has beside logs: fetch sessions, leader epochs, metadata that lag."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    Coordinator,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FindCoordinatorResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataResponse,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kclient.protocol.messages.fetch import FetchResponseLeaderIdAndEpoch
from kclient.protocol.registry import ApiKey
from kclient.records import BatchBuilder
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker
from tests.fake_reads import ReadableKafka
from tests.simulation.troubled_group import KINDS, TroubledGroup, commit_answer, refusal


@dataclass
class _Session:
    """What a broker remembers of a fetch."""

    number: int
    epoch: int
    asked: dict[TopicPartition, Any]


class TroubledKafka(ReadableKafka):
    """A cluster whose brokers know what happens to the others a moment later, and forget sessions when they die.

    Args:
        topics: Number of partitions by topic; led by the brokers in turn.
        brokers: How many brokers.
    """

    def __init__(self, topics: dict[str, int], brokers: int) -> None:
        self.lag = 0.0
        """Seconds after which brokers know of a new leader."""
        self.has_sessions = True
        self.starts: dict[TopicPartition, int] = defaultdict(int)
        """Where logs begin."""
        self._bases: dict[TopicPartition, list[int]] = defaultdict(list)
        self._epochs: dict[TopicPartition, list[int]] = defaultdict(list)
        self._sessions: dict[int, dict[int, _Session]] = defaultdict(dict)
        self._numbers = itertools.count(1)
        self._views: dict[int, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        self.group = TroubledGroup()
        super().__init__(topics, brokers)

    async def start(self) -> None:
        await super().start()
        self._supervisor.spawn(self.group.run, name="the group's timers")

    # ------------------------------------------------------------------ what happens to it

    def feed(self, tp: TopicPartition, count: int) -> None:
        """Append a batch; the value of a record is its offset."""
        found = self.partitions[tp]
        builder = BatchBuilder(limit=1 << 20)
        for offset in range(found.end, found.end + count):
            builder.append(1000 + offset, None, b"%d" % offset)
        self._bases[tp].append(found.end)
        self._epochs[tp].append(found.epoch)
        found.append(bytes(builder.build(base_offset=found.end, partition_leader_epoch=found.epoch)))

    def move(self, topic: str, partition: int, leader: int) -> None:
        """Another broker leads; the brokers learn of it by and by."""
        super().move(topic, partition, leader)
        tp = TopicPartition(topic, partition)
        known = leader, self.partitions[tp].epoch
        for broker in self.brokers.values():
            self._supervisor.spawn(self._learn, broker, tp, known, name="news of a leader")

    async def _learn(self, broker: FakeBroker, tp: TopicPartition, known: tuple[int, int]) -> None:
        await anyio.sleep(self.lag)
        await broker.runs()
        if tp in self.partitions:
            self._views[broker.node_id][tp] = max(self._view(broker, tp), known, key=lambda view: view[1])
            self.partitions[tp].ring()

    def die(self, node: int) -> None:
        """A broker is killed."""
        self.brokers[node].down = True
        self.brokers[node].hang_up()
        self._sessions.pop(node, None)
        if node == self.coordinator:
            self.group.move()

    def coordinate(self, node: int) -> None:
        """Another broker has the group."""
        self.coordinator = node
        self.group.move()

    # ------------------------------------------------------------------ answers

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        if key in KINDS:
            if broker.node_id != self.coordinator:
                return refusal(key)
            return self.group.answer(key, request)  # type: ignore[no-any-return]
        if key in {ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH} and broker.node_id != self.coordinator:
            code = ErrorCode.NOT_COORDINATOR
            if key is ApiKey.OFFSET_COMMIT:
                return commit_answer(request, code)
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code)])
        if key is ApiKey.OFFSET_COMMIT and (code := self.group.check_commit(request)):
            return commit_answer(request, code)
        answer = super().answer(broker, key, version, request, connection)
        if isinstance(answer, MetadataResponse):
            for topic in answer.topics:
                for part in topic.partitions:
                    view = self._view(broker, TopicPartition(topic.name or "", part.partition_index))
                    part.leader_id, part.leader_epoch = view
        return answer

    def _coordinator(self, version: int, request: Any) -> FindCoordinatorResponse:
        broker = self.brokers[self.coordinator]
        if broker.listed and not broker.down:
            return super()._coordinator(version, request)
        found = [Coordinator(key=k, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE) for k in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    def _view(self, broker: FakeBroker, tp: TopicPartition) -> tuple[int, int]:
        """The leader and its epoch, as far as a broker knows."""
        found = self._views[broker.node_id].get(tp)
        return found or (sorted(self.brokers)[tp.partition % len(self.brokers)], 0)

    def refusal(self, broker: FakeBroker, tp: TopicPartition, epoch: int) -> int:
        """The error with which a broker refuses to speak for a partition, to a client that knows an epoch; 0 if not."""
        found = self.partitions.get(tp)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader, known = self._view(broker, tp)
        if epoch > known:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if leader != broker.node_id or known != found.epoch:  # one that leads no more could not tell where the log ends
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.FENCED_LEADER_EPOCH if 0 <= epoch < known else 0

    # ------------------------------------------------------------------ fetching

    async def _fetch(self, broker: FakeBroker, version: int, request: Any) -> ApiMessage:
        code, session, asked = self._asked(broker, request)
        if code:
            return FetchResponse(error_code=code)
        bell = anyio.Event()
        watched = [self.partitions[tp] for tp in asked if tp in self.partitions]
        with anyio.move_on_after(request.max_wait_ms / 1000):
            while not any(self._has_news(broker, tp, item) for tp, item in asked.items()):
                for partition in watched:
                    partition.watchers.add(bell)
                try:
                    await bell.wait()
                finally:
                    for partition in watched:
                        partition.watchers.discard(bell)
                bell = anyio.Event()
        return self._read_all(broker, version, request, session, asked)

    def _asked(
        self, broker: FakeBroker, request: FetchRequest
    ) -> tuple[int, _Session | None, dict[TopicPartition, Any]]:
        """Error code, session, and what is asked of each partition."""
        named = {
            TopicPartition(self._name_of(topic), item.partition): item
            for topic in request.topics
            for item in topic.partitions
        }
        sessions = self._sessions[broker.node_id]
        if request.session_epoch <= 0:
            sessions.pop(request.session_id, None)
            if request.session_epoch < 0 or not self.has_sessions:
                return 0, None, named
            session = _Session(next(self._numbers), 1, named)
            sessions[session.number] = session
            return 0, session, session.asked
        if request.session_id not in sessions:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, {}
        session = sessions[request.session_id]
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, {}
        session.epoch += 1
        session.asked |= named
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                del session.asked[TopicPartition(self._name_of(topic), number)]
        return 0, session, session.asked

    def _name_of(self, topic: Any) -> str:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        name: str = topic.topic or names.get(bytes(topic.topic_id), "")
        return name

    def _has_news(self, broker: FakeBroker, tp: TopicPartition, asked: Any) -> bool:
        found = self.partitions.get(tp)
        refused = self.refusal(broker, tp, asked.current_leader_epoch)
        return found is None or bool(refused) or found.end != asked.fetch_offset

    def _read_all(
        self,
        broker: FakeBroker,
        version: int,
        request: FetchRequest,
        session: _Session | None,
        asked: dict[TopicPartition, Any],
    ) -> FetchResponse:
        left = request.max_bytes
        found = False
        topics: dict[str, FetchableTopicResponse] = {}
        for tp, item in list(asked.items()):
            answer = self._read_one(broker, tp, item, left, whole=not found)
            if answer.records:
                found = True
                left -= len(answer.records)
                asked[tp] = asked.pop(tp)  # who has been served comes last
            elif session is not None and request.session_epoch > 0 and not answer.error_code:
                continue
            name = topics.setdefault(tp.topic, FetchableTopicResponse(topic=tp.topic, topic_id=self.ids[tp.topic]))
            name.partitions.append(answer)
        number = 0 if session is None else session.number
        return FetchResponse(session_id=number, responses=list(topics.values()))

    def _read_one(
        self, broker: FakeBroker, tp: TopicPartition, asked: Any, left: int, *, whole: bool
    ) -> FetchResponsePartitionData:
        answer = FetchResponsePartitionData(partition_index=tp.partition, high_watermark=-1)
        answer.error_code = self.refusal(broker, tp, asked.current_leader_epoch)
        if answer.error_code:
            view = self._view(broker, tp)
            if self.announce_leaders and view[0] != broker.node_id:
                answer.current_leader = FetchResponseLeaderIdAndEpoch(leader_id=view[0], leader_epoch=view[1])
            return answer
        log = self.partitions[tp]
        if not self.starts[tp] <= asked.fetch_offset <= log.end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        first = bisect_right(self._bases[tp], asked.fetch_offset) - 1
        if asked.last_fetched_epoch >= 0 and asked.fetch_offset:
            before = bisect_right(self._bases[tp], asked.fetch_offset - 1) - 1
            assert asked.last_fetched_epoch == self._epochs[tp][before], "the epoch of what was read last"
        data = bytearray()
        if asked.fetch_offset < log.end:
            for batch in log.batches[first:]:
                if len(data) + len(batch) > min(left, asked.partition_max_bytes) and not (whole and not data):
                    break
                data += batch
        answer.high_watermark = answer.last_stable_offset = log.end
        answer.log_start_offset = self.starts[tp]
        answer.records = bytes(data)
        return answer

    # ------------------------------------------------------------------ offsets

    def _list_offsets(self, broker: FakeBroker, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                tp = TopicPartition(topic.name, item.partition_index)
                answer = ListOffsetsPartitionResponse(partition_index=item.partition_index)
                answer.error_code = self.refusal(broker, tp, item.current_leader_epoch)
                if not answer.error_code:
                    found = self.partitions[tp]
                    answer.offset = found.end if item.timestamp == -1 else self.starts[tp]
                    answer.leader_epoch = found.epoch
                partitions.append(answer)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)
