"""A broker's logs in memory, and a fetcher with the clock in the test's hand."""

from __future__ import annotations

from typing import Any

from kclient.cluster import ClusterSnapshot, PartitionMetadata, TopicMetadata
from kclient.consumer.fetch.completed_fetch import CompletedFetch
from kclient.consumer.fetch.fetcher import Fetcher, FetchNews, FetchSettings, PlannedFetch
from kclient.consumer.metrics import FetchMetrics
from kclient.consumer.reset import ResetPolicy
from kclient.consumer.subscription import SubscriptionState
from kclient.errors import ErrorCode
from kclient.metrics.windows import MetricWindows
from kclient.protocol.messages import (
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
)
from kclient.records import BatchBuilder, decode_some
from kclient.types import Node, TopicPartition

TOPIC_ID = b"\x07" * 16


def batch(base_offset: int, values: list[bytes], epoch: int = 3) -> bytes:
    builder = BatchBuilder(limit=1 << 24)
    for value in values:
        builder.append(1000, None, value)
    return bytes(builder.build(base_offset=base_offset, partition_leader_epoch=epoch))


class Logs:
    """Partitions of the topic `t`, in batches of a few records; serves fetches with sessions as a broker does."""

    def __init__(
        self,
        partitions: int = 2,
        batches: int = 10,
        records: int = 5,
        size: int = 100,
        leaders: dict[int, int] | None = None,
    ) -> None:
        self.records = records
        self.leaders = leaders or {}
        """The brokers that lead the partitions; 1 those that are not named."""
        self.batches = {
            number: [batch(i * records, [b"%d" % number + bytes(size)] * records) for i in range(batches)]
            for number in range(partitions)
        }
        self.errors: dict[int, ErrorCode] = {}
        self.session: dict[int, tuple[int, int]] = {}
        self.session_id = 0
        self.topic_id = TOPIC_ID
        self.requests: list[Any] = []

    @property
    def snapshot(self) -> ClusterSnapshot:
        partitions = {
            number: PartitionMetadata("t", number, leader_id=self.leaders.get(number, 1), leader_epoch=3)
            for number in self.batches
        }
        return ClusterSnapshot(
            nodes={1: Node(1, "b", 9092), 2: Node(2, "c", 9092)},
            topics={"t": TopicMetadata("t", self.topic_id, False, partitions)},
            names={self.topic_id: "t"},
        )

    def serve(self, plan: PlannedFetch) -> FetchResponse:
        request = plan.request
        self.requests.append(request)
        if request.session_epoch <= 0:
            asked: dict[int, tuple[int, int]] = {}
        else:
            assert request.session_id == self.session_id
            asked = dict(self.session)
        for topic in request.topics:
            for item in topic.partitions:
                asked[item.partition] = (item.fetch_offset, item.partition_max_bytes)
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                del asked[number]
        if request.session_epoch >= 0:
            self.session = asked
            self.session_id = self.session_id or 77
        left = request.max_bytes
        answers = []
        for number, (offset, most) in asked.items():
            data = self._read(number, offset, min(most, left), whole=left == request.max_bytes)
            left -= len(data)
            answers.append(self._answer(number, data))
        return FetchResponse(
            session_id=self.session_id if request.session_epoch >= 0 else 0,
            responses=[FetchableTopicResponse(topic_id=self.topic_id, partitions=answers)],
        )

    def _answer(self, number: int, data: bytes) -> FetchResponsePartitionData:
        code = self.errors.get(number, ErrorCode.NONE)
        return FetchResponsePartitionData(
            partition_index=number,
            error_code=code,
            high_watermark=self.end(number),
            log_start_offset=0,
            records=memoryview(b"" if code else data),
        )

    def end(self, number: int) -> int:
        return len(self.batches[number]) * self.records

    def _read(self, number: int, offset: int, most: int, *, whole: bool) -> bytes:
        """Batches from an offset on; `whole` returns the first one, however large."""
        found = b""
        for data in self.batches[number][offset // self.records :]:
            if (found or not whole) and len(found) + len(data) > most:
                break
            found += data
        return found


class FetchBox:
    """A fetcher over `Logs`."""

    def __init__(self, logs: Logs, policy: str = "none", **settings: Any) -> None:
        self.logs = logs
        self.now = 50.0
        self.subscriptions = SubscriptionState(ResetPolicy.parse(policy))
        self.counted = FetchMetrics(MetricWindows(lambda: self.now))
        self.fetcher = Fetcher(FetchSettings(**settings), self.subscriptions, self.counted)
        self.partitions = [TopicPartition("t", number) for number in logs.batches]
        self.subscriptions.assign(self.partitions)
        for tp in self.partitions:
            self.subscriptions.seek(tp, 0)

    def plan(self) -> list[PlannedFetch]:
        return self.fetcher.plan(self.logs.snapshot, self.now)[0]

    def answer(self, plan: PlannedFetch) -> FetchNews:
        return self.fetcher.received(plan, self.logs.serve(plan), self.now)

    def fetch(self) -> FetchNews:
        (plan,) = self.plan()
        return self.answer(plan)

    def open_head(self) -> CompletedFetch | None:
        completed = self.fetcher.buffer.head()
        if completed is not None and completed.error is None and completed.records is None:
            completed.decode(decode_some)
        return completed

    def take(self, most: int = 10**9) -> list[tuple[int, int]]:
        """Hand out records as (partition, offset)."""
        taken: list[tuple[int, int]] = []
        while len(taken) < most and (completed := self.open_head()) is not None:
            assert completed.records is not None, completed.error
            part = completed.records[completed.index : completed.index + most - len(taken)]
            taken += [(record.partition, record.offset) for record in part]
            self.fetcher.buffer.advance(completed, len(part))
        return taken

    def position(self, number: int) -> int:
        return self.subscriptions.state(self.partitions[number]).position
