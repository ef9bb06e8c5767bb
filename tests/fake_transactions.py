"""A transaction coordinator for the Kafka cluster in memory, which misbehaves on command.

It keeps transactions as Kafka's does, of either generation of the protocol, and checks what Kafka checks: epochs,
states, and that a partition belongs to the transaction before records arrive for it (or joins with them).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    ApiVersion,
    ApiVersionsResponse,
    EndTxnResponse,
    FinalizedFeatureKey,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kclient.protocol.registry import ApiKey
from kclient.records import decode_records, read_header
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker, FakeKafka, Producer

VERSIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
}


@dataclass
class Trouble:
    """What happens to one request of a kind."""

    code: int = 0
    """What it is answered with; nothing is done then."""
    drop: bool = False
    """It is done, and the connection breaks instead of an answer."""
    hold: anyio.Event | None = None
    """It is answered when this is set."""


@dataclass
class Transaction:
    """One transactional id."""

    producer_id: int
    epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    state: str = "Empty"
    last: tuple[int, bool] | None = None
    """Epoch and outcome of the last end, which may be asked for again."""


class FakeTransactions:
    """Joins a `FakeKafka`, and answers for it what has to do with transactions.

    Args:
        kafka: The cluster.
        version: Which generation of the protocol it has finalized.
    """

    def __init__(self, kafka: FakeKafka, version: int) -> None:
        self.kafka = kafka
        self.version = version
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.ends: dict[TopicPartition, list[tuple[int, int, bool]]] = defaultdict(list)
        """By partition: how many batches there were, the producer id, and whether it was committed."""
        self.trouble: dict[ApiKey, deque[Trouble]] = defaultdict(deque)
        self.before: Callable[[ApiKey, Any], None] | None = None
        kafka.versions |= VERSIONS
        kafka.scripts |= {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.END_TXN: self._end,
        }
        kafka.before_produce = self._check_produce
        self.violations: list[str] = []
        """What a client must not do."""

    # ------------------------------------------------------------------ what readers see

    def visible(self, topic: str = "t", partition: int = 0) -> list[Any]:
        """The values that a read_committed consumer sees."""
        tp = TopicPartition(topic, partition)
        found: list[Any] = []
        for position, data in enumerate(self.kafka.partitions[tp].batches):
            producer = read_header(data).producer_id
            ends = [end for end in self.ends[tp] if end[1] == producer and end[0] > position]
            if ends and ends[0][2]:
                found += [record.value for record in decode_records(data, topic, partition)]
        return found

    def undecided(self) -> list[TopicPartition]:
        """The partitions that have records of open transactions."""
        return [tp for found in self.transactions.values() for tp in found.partitions]

    # ------------------------------------------------------------------ answers

    def _api_versions(self, broker: FakeBroker, request: Any) -> Any:
        ranges = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.kafka.versions.items()]
        feature = FinalizedFeatureKey(
            name="transaction.version", max_version_level=self.version, min_version_level=self.version
        )
        return ApiVersionsResponse(api_keys=ranges, finalized_features_epoch=1, finalized_features=[feature])

    def _answer(self, key: ApiKey, broker: FakeBroker, refused: Callable[[int], Any], do: Callable[[], Any]) -> Any:
        if self.before is not None:
            self.before(key, None)
        trouble = self.trouble[key].popleft() if self.trouble[key] else Trouble()
        if trouble.code:
            return refused(trouble.code)
        made = do()
        if trouble.drop:
            broker.hang_up()
        return _held(trouble.hold, made) if trouble.hold is not None else made

    def _init(self, broker: FakeBroker, request: Any) -> Any:
        def do() -> InitProducerIdResponse:
            name = request.transactional_id
            found = self.transactions.get(name)
            if found is None:
                found = self.transactions[name] = Transaction(next(self.kafka._ids))
            elif request.producer_id >= 0 and (request.producer_id, request.producer_epoch) != (
                found.producer_id,
                found.epoch,
            ):
                return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
            if found.state == "Ongoing":
                found.epoch += 1  # who had it is fenced by the markers
                self._decide(found, committed=False)
            found.epoch += 1
            found.state, found.last = "Empty", None
            return InitProducerIdResponse(producer_id=found.producer_id, producer_epoch=found.epoch)

        return self._answer(ApiKey.INIT_PRODUCER_ID, broker, lambda code: InitProducerIdResponse(error_code=code), do)

    def _found(self, name: str, producer_id: int, epoch: int) -> Transaction | int:
        found = self.transactions.get(name)
        if found is None or found.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return found if found.epoch == epoch else ErrorCode.PRODUCER_FENCED

    def _add_partitions(self, broker: FakeBroker, request: Any) -> Any:
        def answer(code: int) -> AddPartitionsToTxnResponse:
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                            for number in topic.partitions
                        ],
                    )
                    for topic in request.v3_and_below_topics
                ]
            )

        def do() -> AddPartitionsToTxnResponse:
            found = self._found(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
            )
            if isinstance(found, int):
                return answer(found)
            found.state = "Ongoing"
            for topic in request.v3_and_below_topics:
                found.partitions |= {TopicPartition(topic.name, number) for number in topic.partitions}
            return answer(0)

        return self._answer(ApiKey.ADD_PARTITIONS_TO_TXN, broker, answer, do)

    def _add_offsets(self, broker: FakeBroker, request: Any) -> Any:
        def do() -> AddOffsetsToTxnResponse:
            found = self._found(request.transactional_id, request.producer_id, request.producer_epoch)
            if isinstance(found, int):
                return AddOffsetsToTxnResponse(error_code=found)
            found.state = "Ongoing"
            found.groups.setdefault(request.group_id, {})
            return AddOffsetsToTxnResponse()

        return self._answer(
            ApiKey.ADD_OFFSETS_TO_TXN, broker, lambda code: AddOffsetsToTxnResponse(error_code=code), do
        )

    def _commit_offsets(self, broker: FakeBroker, request: Any) -> Any:
        def answer(code: int) -> TxnOffsetCommitResponse:
            return TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )

        def do() -> TxnOffsetCommitResponse:
            found = self._found(request.transactional_id, request.producer_id, request.producer_epoch)
            if isinstance(found, int):
                return answer(found)
            if self.version == 1 and request.group_id not in found.groups:
                return answer(ErrorCode.INVALID_TXN_STATE)
            found.state = "Ongoing"
            pending = found.groups.setdefault(request.group_id, {})
            for topic in request.topics:
                for each in topic.partitions:
                    pending[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
            return answer(0)

        return self._answer(ApiKey.TXN_OFFSET_COMMIT, broker, answer, do)

    def _check_produce(self, request: ProduceRequest) -> None:
        """What arrives belongs to the transaction, or joins it."""
        if request.transactional_id is None:
            return
        found = self.transactions[request.transactional_id]
        names = {topic_id: name for name, topic_id in self.kafka.ids.items()}
        for topic in request.topic_data:
            name = topic.name or names[bytes(topic.topic_id)]
            for data in topic.partition_data:
                header = read_header(bytes(data.records or b""))
                tp = TopicPartition(name, data.index)
                if not header.is_transactional:
                    self.violations.append(f"{tp}: a batch outside of the transaction")
                if (header.producer_id, header.producer_epoch) != (found.producer_id, found.epoch):
                    continue  # a zombie's, or one that comes late
                if self.version == 2:
                    found.state = "Ongoing"
                    found.partitions.add(tp)
                elif tp not in found.partitions:
                    self.violations.append(f"{tp}: the partition is not in the transaction")

    def _end(self, broker: FakeBroker, request: Any) -> Any:
        bumps = self.kafka.requests[-1][0] >= 5

        def do() -> EndTxnResponse:
            found = self.transactions.get(request.transactional_id)
            if found is None or found.producer_id != request.producer_id:
                return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            again = found.last == (request.producer_epoch, request.committed)
            if again and found.state != "Ongoing":
                return self._ended(found)
            if found.epoch != request.producer_epoch:
                return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
            if found.state != "Ongoing" and not (self.version == 2 and not request.committed):
                return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
            found.last = (request.producer_epoch, request.committed)
            self._decide(found, committed=request.committed)
            if bumps:
                found.epoch += 1
            return self._ended(found)

        return self._answer(ApiKey.END_TXN, broker, lambda code: EndTxnResponse(error_code=code), do)

    def _ended(self, found: Transaction) -> EndTxnResponse:
        return EndTxnResponse(producer_id=found.producer_id, producer_epoch=found.epoch)

    def _decide(self, found: Transaction, *, committed: bool) -> None:
        for tp in found.partitions:
            partition = self.kafka.partitions[tp]
            self.ends[tp].append((len(partition.batches), found.producer_id, committed))
            known = partition.producers.get(found.producer_id)
            if known is None or known.epoch < found.epoch:
                partition.producers[found.producer_id] = Producer(found.epoch)
        if committed:
            self.offsets |= {
                (group, tp): offset for group, pending in found.groups.items() for tp, offset in pending.items()
            }
        found.partitions.clear()
        found.groups.clear()
        found.state = "Complete"


async def _held(hold: anyio.Event, made: Any) -> Any:
    await hold.wait()
    return made
