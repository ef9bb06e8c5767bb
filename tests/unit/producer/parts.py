"""Parts of a producer with a clock that is a number, and producers that wait for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import anyio

from kclient.cluster import Backoff, ClusterSnapshot, MetadataCache, PartitionMetadata, TopicMetadata
from kclient.errors import KafkaTimeoutError
from kclient.metrics.windows import MetricWindows
from kclient.producer import Producer
from kclient.producer.accumulator import Accumulator
from kclient.producer.batch import ProducerBatch
from kclient.producer.batch_buffer import BatchBuffer
from kclient.producer.delivery_reports import DeliveryReports
from kclient.producer.drain import BatchDrain
from kclient.producer.interfaces import DeliveryCallback
from kclient.producer.metrics import ProducerMetrics
from kclient.producer.producer_id import ProducerIdState
from kclient.producer.sender import Actions, InFlight, PartitionOutcome, Sender
from kclient.producer.settings import AccumulatorSettings, SenderSettings
from kclient.producer.transactions import TransactionManager
from kclient.records import BatchBuilder, decode_records
from kclient.types import Headers, Node, TopicPartition
from tests.fake_kafka import FakeKafka

T = TypeVar("T")

TOPIC_ID = b"t" * 16
FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}


@asynccontextmanager
async def producing(kafka: FakeKafka, **settings: Any) -> AsyncIterator[Producer]:
    """A producer that sends at once and tries again at once."""
    async with Producer(bootstrap_servers=kafka.bootstrap, **{**FAST, **settings}) as producer:
        yield producer


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """What a call comes to that may be made again, however short `max.block.ms` is and however busy the machine."""
    with anyio.fail_after(30):
        while True:
            with suppress(KafkaTimeoutError):
                return await call()


async def begin(producer: Producer) -> None:
    """The first transaction; the topic `t` is known, so that a record is taken at once."""
    await insist(producer.init_transactions)
    await insist(lambda: producer.partitions_for("t"))
    await producer.begin_transaction()


def cluster_of(
    leaders: dict[int, int] | int = 1, *, topic: str = "t", epoch: int = 0, topic_id: bytes = TOPIC_ID
) -> ClusterSnapshot:
    """A snapshot with one topic; leaders by partition, or how many partitions broker 1 leads."""
    if isinstance(leaders, int):
        leaders = dict.fromkeys(range(leaders), 1)
    partitions = {p: PartitionMetadata(topic, p, leader, epoch) for p, leader in leaders.items()}
    nodes = {n: Node(n, f"host{n}", 9092) for n in {1, *leaders.values()} if n >= 0}
    return ClusterSnapshot(
        nodes=nodes, topics={topic: TopicMetadata(topic, topic_id, False, partitions)}, names={topic_id: topic}
    )


class Parts:
    """Accumulator, transactions and sender together, in simulated time."""

    def __init__(
        self,
        leaders: dict[int, int] | int = 1,
        *,
        idempotent: bool = True,
        acks: int = -1,
        retries: int = 2147483647,
        max_in_flight: int = 5,
        seed: int = 1,
        transactional: bool = False,
        **settings: Any,
    ) -> None:
        defaults: dict[str, Any] = {"batch_size": 1000, "linger": 0.0, "growth": 1000}
        self.now = 1000.0
        self.wakes = 0
        self.settings = AccumulatorSettings(**{**defaults, **settings}, transactional=transactional)
        self.reports = DeliveryReports()
        self.producer_id_state = ProducerIdState(transactional=transactional) if idempotent else None
        self.transactions = (
            TransactionManager("id", self.producer_id_state) if transactional and self.producer_id_state else None
        )
        self.buffer = BatchBuffer(self.settings, self._wake, Random(seed))
        self.accumulator = Accumulator(self.buffer, self.settings, self.reports)
        self.drain = BatchDrain(
            self.buffer,
            self.settings,
            self.producer_id_state,
            self.transactions,
            mute=not idempotent and max_in_flight == 1,
        )
        self.metadata = MetadataCache(max_age=300, backoff=Backoff(100, 1000))
        self.metadata.begin_update(self.now)
        self.connected = {1, 2, 3}
        self.sender = Sender(
            self.buffer,
            self.drain,
            self.producer_id_state,
            self.metadata,
            SenderSettings(
                acks=acks,
                retries=retries,
                max_in_flight=max_in_flight,
                delivery_timeout=self.settings.delivery_timeout,
            ),
            Backoff(100, 1000, jitter=0.0),
            ProducerMetrics(MetricWindows(lambda: self.now, seconds=1000.0)),
            transactions=self.transactions,
        )
        self.lead(leaders)

    def _wake(self) -> None:
        self.wakes += 1

    def lead(self, leaders: dict[int, int] | int, epoch: int = 0, topic_id: bytes = TOPIC_ID) -> None:
        """New metadata."""
        self.metadata.snapshot = cluster_of(leaders, epoch=epoch, topic_id=topic_id)
        self.buffer.update(self.metadata.snapshot)

    def forget_partitions(self) -> None:
        self.metadata.snapshot = replace(self.metadata.snapshot, topics={})

    def send(
        self,
        value: bytes | None = b"v",
        key: bytes | None = None,
        partition: int | None = 0,
        timestamp: int = 5,
        headers: Headers = (),
        callback: DeliveryCallback | None = None,
    ) -> Any:
        """Append a record as the producer does: to the open batch if that is possible, else by the accumulator."""
        if callback is None:
            made = self.buffer.appender.append("t", value, key, partition, timestamp, headers)
            if made is not None:
                return made
        return self.accumulator.append("t", value, key, partition, timestamp, headers, callback, now=self.now)

    def send_many(self, values: Sequence[bytes], start: int = 0) -> Any:
        return self.accumulator.append_many("t", 0, 5, values, start, now=self.now)

    def poll(self) -> Actions:
        return self.sender.poll(self.now, self.connected.__contains__)

    def requests(self) -> list[InFlight]:
        """Poll as the dispatcher does: until nothing more leaves; the batches are encoded."""
        found: list[InFlight] = []
        while new := self.poll().requests:
            found += new
        for request in found:
            for batch in request.batches.values():
                batch.encode()
        return found

    def ready_id(self, producer_id: int = 7, epoch: int = 0) -> None:
        """Give the producer its id, which the leaders know already."""
        assert self.producer_id_state is not None
        self.producer_id_state.initializing()
        self.sender.on_producer_id(producer_id, epoch)
        for partition in self.metadata.snapshot.topics["t"].partitions:
            self.producer_id_state.partition(TopicPartition("t", partition)).known = True

    def answer(self, request: InFlight, code: int = 0, offset: int = 0, **rest: Any) -> None:
        """The broker answers the same for every partition."""
        outcome = PartitionOutcome(code, -1 if code else offset, **rest)
        self.sender.on_response(request, dict.fromkeys(request.batches, outcome), self.now)


def batch_of(
    *values: bytes, reports: DeliveryReports | None = None, partition: int = 0, timestamp: int = 5
) -> ProducerBatch:
    """A closed batch of some values."""
    builder = BatchBuilder(limit=1_000_000)
    for value in values:
        builder.append(timestamp, None, value)
    batch = ProducerBatch(TopicPartition("t", partition), builder, 0.0, 0, reports or DeliveryReports())
    batch.close()
    return batch


def values_of(batch: ProducerBatch) -> list[Any]:
    """The values in an encoded batch."""
    assert batch.data is not None
    return [record.value for record in decode_records(batch.data, *batch.tp)]


def only(request: InFlight) -> ProducerBatch:
    """The single batch of a request."""
    (batch,) = request.batches.values()
    return batch
