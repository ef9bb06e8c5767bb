"""A small Kafka cluster in memory that misbehaves on command: for tests of clients without a real broker.

It knows topics, leaders, producer ids and sequences as Kafka does, and appends batches to lists. Faults are queued
and used up one per Produce request.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio

from kclient.concurrency import Supervisor
from kclient.errors import ErrorCode
from kclient.net.address import Address
from kclient.net.connectors import register
from kclient.net.server import Server, ServerConnection
from kclient.net.streams import memory_pair
from kclient.protocol.framing import decode_request, encode_response
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    ApiVersion,
    ApiVersionsResponse,
    Coordinator,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import ConsumerRecord, decode_records, read_header
from kclient.types import TopicPartition

VERSIONS = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.FIND_COORDINATOR: (0, 6),
}

_clusters: dict[str, FakeKafka] = {}
_names = itertools.count(1)


@dataclass
class Fault:
    """What happens to one Produce request."""

    code: int = 0
    """Error for every partition; 0 for none."""
    append: bool = True
    """Whether the batches are stored all the same (only where there is no code)."""
    drop: bool = False
    """Close the connection instead of answering."""
    hold: anyio.Event | None = None
    """Answer only when this is set."""
    partition: int | None = None
    """Only this partition gets the code."""
    log_start_offset: int = -1
    message: str | None = None
    throttle_ms: int = 0
    """The answer asks for a pause."""
    once: bool = False
    """Spare batches that are stored already: what was valid once is not refused when it is repeated."""


@dataclass
class Producer:
    """What a partition knows of a producer."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


@dataclass
class _Partition:
    leader: int
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    watchers: set[anyio.Event] = field(default_factory=set)
    """Set when there is something new: records, or another leader."""

    def ring(self) -> None:
        """Wake who waits for news."""
        for event in self.watchers:
            event.set()

    def knows(self, data: bytes) -> bool:
        """Whether the batch is stored already."""
        header = read_header(data)
        known = self.producers.get(header.producer_id)
        return (
            known is not None
            and any(first == header.base_sequence for first, _, _ in known.batches)
            and (known.epoch == header.producer_epoch)
        )

    def append(self, data: bytes) -> tuple[int, int]:
        """Error code and base offset."""
        header = read_header(data)
        if header.producer_id >= 0:
            code, offset = self._check(header)
            if code or offset >= 0:
                return code, offset
        base = self.end
        self.batches.append(data)
        self.end += header.count
        self.ring()
        if header.producer_id >= 0:
            last = (header.base_sequence + header.count - 1) & 0x7FFFFFFF
            self.producers[header.producer_id].batches.append((header.base_sequence, last, base))
        return 0, base

    def _check(self, header: Any) -> tuple[int, int]:
        known = self.producers.get(header.producer_id)
        if known is None:
            self.producers[header.producer_id] = Producer(header.producer_epoch)
            return 0, -1
        if header.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.producers[header.producer_id] = Producer(header.producer_epoch)
            return 0, -1
        last = (header.base_sequence + header.count - 1) & 0x7FFFFFFF
        for first_seen, last_seen, offset in known.batches:
            if (first_seen, last_seen) == (header.base_sequence, last):
                return 0, offset
        if known.batches and header.base_sequence != (known.batches[-1][1] + 1) & 0x7FFFFFFF:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if not known.batches and header.base_sequence != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return 0, -1


class FakeBroker:
    """One broker: a server's handler."""

    def __init__(self, cluster: FakeKafka, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"fake:{cluster.name}/{node_id}"
        self.down = False
        """Refuses connections, and leaves the metadata."""
        self.listed = True
        """Whether the metadata name it, if it is not down."""
        self.black_hole = False
        """Whoever connects gets no answer at all."""
        self.connect_seconds: Callable[[], float] = lambda: 0.0
        """How long connecting takes."""
        self.connections: set[ServerConnection] = set()
        self.connects = 0
        self.server: Server | None = None
        self._paused: anyio.Event | None = None

    def pause(self) -> None:
        """As SIGSTOP: connections are accepted, requests arrive, nothing is answered."""
        self._paused = self._paused or anyio.Event()

    def resume(self) -> None:
        """As SIGCONT: what has arrived meanwhile is answered now."""
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.set()

    @property
    def paused(self) -> bool:
        return self._paused is not None

    async def runs(self) -> None:
        """Wait until it is not paused."""
        while self._paused is not None:
            await self._paused.wait()

    def connected(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        self.connects += 1

    def disconnected(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)

    def hang_up(self) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.abort()

    def begin(self, frame: memoryview, connection: ServerConnection) -> Any:
        if self._paused is not None:
            return self._begin_later(self._paused, bytes(frame), connection)
        return self._answer(frame, connection)

    async def _begin_later(self, paused: anyio.Event, frame: bytes, connection: ServerConnection) -> Any:
        await paused.wait()
        reply = self._answer(memoryview(bytearray(frame)), connection)
        return await reply if isinstance(reply, Awaitable) else reply

    def _answer(self, frame: memoryview, connection: ServerConnection) -> Any:
        header, request = decode_request(frame)
        reply = self.cluster.answer(self, ApiKey(header.api_key), header.api_version, request, connection)
        if reply is None:
            return None
        if isinstance(reply, ApiMessage):
            return encode_response(reply, header.api_version, header.correlation_id)
        return self._later(reply, header.api_version, header.correlation_id)

    async def _later(self, reply: Awaitable[ApiMessage | None], version: int, correlation_id: int) -> Any:
        message = await reply
        await self.runs()
        return None if message is None else encode_response(message, version, correlation_id)


class FakeKafka:
    """A cluster; `async with` starts it in the running loop.

    Args:
        topics: Number of partitions by topic; led by the brokers in turn.
        brokers: How many brokers.
        first: The number of the first one.
        versions: Version ranges that differ from the usual.
    """

    def __init__(
        self,
        topics: dict[str, int] | None = None,
        brokers: int = 1,
        versions: dict[ApiKey, tuple[int, int]] | None = None,
        first: int = 1,
    ) -> None:
        self.name = f"c{next(_names)}"
        self.brokers = {n: FakeBroker(self, n) for n in range(first, first + brokers)}
        self.versions = {**VERSIONS, **(versions or {})}
        self.partitions: dict[TopicPartition, _Partition] = {}
        self.ids: dict[str, bytes] = {}
        self.lagging: dict[str, bytes] = {}
        """Ids that metadata name in place of topics' own, as brokers do that lag behind."""
        self.auto_create = 0
        """Partitions of topics that are created when asked for; 0 creates none."""
        self.controller = first
        self.topic_errors: dict[str, int] = {}
        self.faults: deque[Fault | None] = deque()
        self.id_errors: deque[int] = deque()
        self.requests: list[tuple[int, ApiMessage]] = []
        """Every request that came, with its version."""
        self.before_produce: Callable[[ProduceRequest], None] | None = None
        self.max_message_bytes = 0
        """Batches above this size are refused; 0 takes all."""
        self.announce_leaders = False
        """Whether NOT_LEADER answers name the leader (KIP-951)."""
        self.scripts: dict[ApiKey, Callable[[FakeBroker, Any], Any]] = {}
        """What answers requests of other kinds, or in place of the cluster: called with the broker and the request."""
        self._ids = itertools.count(1000)
        self._topic_numbers = itertools.count(1)
        self._supervisor = Supervisor("fake kafka")
        for topic, count in (topics or {"t": 1}).items():
            self.create(topic, count)

    def create(self, topic: str, count: int) -> None:
        """A new topic."""
        self.ids[topic] = topic.encode().ljust(8, b"-")[:8] + next(self._topic_numbers).to_bytes(8, "big")
        self.grow(topic, count)

    def delete(self, topic: str) -> None:
        """The topic is gone, and what was in it."""
        del self.ids[topic]
        self.partitions = {tp: partition for tp, partition in self.partitions.items() if tp.topic != topic}

    def grow(self, topic: str, count: int) -> None:
        """The topic gets more partitions, so many in all."""
        nodes = itertools.cycle(self.brokers)
        for number in range(count):
            self.partitions.setdefault(TopicPartition(topic, number), _Partition(next(nodes)))

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.host for broker in self.brokers.values())

    async def start(self) -> None:
        await self._supervisor.start()
        for broker in self.brokers.values():
            broker.server = Server(broker, self._supervisor)
        _clusters[self.name] = self

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        _clusters.pop(self.name, None)
        for broker in self.brokers.values():
            if broker.server is not None:
                await broker.server.aclose()
        await self._supervisor.aclose()

    def move(self, topic: str, partition: int, leader: int) -> None:
        """Another broker leads."""
        found = self.partitions[TopicPartition(topic, partition)]
        found.leader = leader
        found.epoch += 1
        found.ring()

    def values(self, topic: str = "t", partition: int = 0) -> list[Any]:
        """The values that are stored."""
        return [record.value for record in self.records(topic, partition)]

    def records(self, topic: str = "t", partition: int = 0) -> list[ConsumerRecord]:
        """The records that are stored."""
        batches = self.partitions[TopicPartition(topic, partition)].batches
        return [record for data in batches for record in decode_records(data, topic, partition)]

    def count(self, kind: type[ApiMessage]) -> int:
        """How many requests of a kind came."""
        return sum(isinstance(request, kind) for _, request in self.requests)

    # ------------------------------------------------------------------ answers

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        self.requests.append((version, request))
        if key in self.scripts:
            found: ApiMessage | Awaitable[ApiMessage | None] | None = self.scripts[key](broker, request)
            return found
        match key:
            case ApiKey.API_VERSIONS:
                ranges = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()]
                return ApiVersionsResponse(api_keys=ranges)
            case ApiKey.METADATA:
                return self._metadata(request)
            case ApiKey.INIT_PRODUCER_ID:
                code = self.id_errors.popleft() if self.id_errors else 0
                return InitProducerIdResponse(error_code=code, producer_id=next(self._ids), producer_epoch=0)
            case ApiKey.FIND_COORDINATOR:
                return self._coordinator(version, request)
            case ApiKey.PRODUCE:
                return self._produce(broker, version, request, connection)
            case _:
                raise AssertionError(f"the fake does not serve {key.name}")

    def _metadata(self, request: Any) -> MetadataResponse:
        known = {topic_id: name for name, topic_id in self.ids.items()}
        asked = [MetadataRequestTopic(name=name) for name in self.ids] if request.topics is None else request.topics
        names = [known.get(bytes(topic.topic_id), "") if topic.name is None else topic.name for topic in asked]
        for name in names:
            if name not in self.ids and self.auto_create and request.allow_auto_topic_creation:
                self.create(name, self.auto_create)
        nodes = [
            MetadataResponseBroker(node_id=n, host=broker.host, port=0)
            for n, broker in self.brokers.items()
            if broker.listed and not broker.down
        ]
        return MetadataResponse(
            brokers=nodes,
            cluster_id=self.name,
            controller_id=self.controller,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name in self.topic_errors:
            return MetadataResponseTopic(name=name, error_code=self.topic_errors[name])
        if name not in self.ids:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = [
            MetadataResponsePartition(
                partition_index=tp.partition, leader_id=p.leader, leader_epoch=p.epoch, replica_nodes=list(self.brokers)
            )
            for tp, p in self.partitions.items()
            if tp.topic == name
        ]
        return MetadataResponseTopic(name=name, topic_id=self.lagging.get(name, self.ids[name]), partitions=partitions)

    def _coordinator(self, version: int, request: Any) -> FindCoordinatorResponse:
        where: dict[str, Any] = {"node_id": self.controller, "host": self.brokers[self.controller].host, "port": 0}
        if version < 4:
            return FindCoordinatorResponse(**where)
        found = [Coordinator(key=key, **where) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    def _produce(
        self, broker: FakeBroker, version: int, request: ProduceRequest, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        if self.before_produce is not None:
            self.before_produce(request)
        fault = self.faults.popleft() if self.faults else None
        response = self._append(broker, version, request, fault or Fault())
        if fault is not None and fault.drop:
            connection.abort()
            return None
        if request.acks == 0:
            return None
        if fault is not None and fault.hold is not None:
            return _held(fault.hold, response)
        return response

    def _append(self, broker: FakeBroker, version: int, request: ProduceRequest, fault: Fault) -> ProduceResponse:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        topics = []
        moved: set[int] = set()
        for topic in request.topic_data:
            name = topic.name if version < 13 else names[bytes(topic.topic_id)]
            answers = []
            for data in topic.partition_data:
                tp = TopicPartition(name, data.index)
                answer = self._append_one(broker, tp, bytes(data.records or b""), fault)
                if (
                    answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    and self.announce_leaders
                    and tp in self.partitions
                ):
                    leader = self.partitions[tp]
                    moved.add(leader.leader)
                    answer.current_leader = ProduceResponseLeaderIdAndEpoch(
                        leader_id=leader.leader, leader_epoch=leader.epoch
                    )
                answers.append(answer)
            topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        endpoints = [ProduceResponseNodeEndpoint(node_id=n, host=self.brokers[n].host, port=0) for n in sorted(moved)]
        return ProduceResponse(responses=topics, node_endpoints=endpoints, throttle_time_ms=fault.throttle_ms)

    def _append_one(
        self, broker: FakeBroker, tp: TopicPartition, data: bytes, fault: Fault
    ) -> PartitionProduceResponse:
        partition = self.partitions.get(tp)
        answer = PartitionProduceResponse(index=tp.partition, base_offset=-1, log_start_offset=fault.log_start_offset)
        hit = fault.code and fault.partition in {None, tp.partition}
        if hit and fault.once and partition is not None and partition.knows(data):
            hit = False
        if partition is not None and self.max_message_bytes and len(data) > self.max_message_bytes:
            answer.error_code = ErrorCode.MESSAGE_TOO_LARGE
        elif hit:
            answer.error_code, answer.error_message = fault.code, fault.message
        elif partition is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif partition.leader != broker.node_id:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif fault.append:
            answer.error_code, answer.base_offset = partition.append(data)
        return answer


async def _held(hold: anyio.Event, response: ApiMessage) -> ApiMessage:
    await hold.wait()
    return response


async def _connect(address: Address, config: Any) -> Any:
    name, _, node = address.host.partition("/")
    cluster = _clusters.get(name)
    broker = None if cluster is None else cluster.brokers[int(node)]
    if broker is not None and broker.black_hole:
        await anyio.sleep(config.socket_connection_setup_timeout_ms / 1000)
        raise TimeoutError("no answer")
    if broker is not None and (seconds := broker.connect_seconds()):
        await anyio.sleep(seconds)
    if broker is None or broker.down or broker.server is None:
        raise ConnectionRefusedError(f"nobody listens at {address}")
    mine, theirs = memory_pair(str(address), "client")
    broker.server.attach(theirs)
    return mine


register("fake", _connect)
