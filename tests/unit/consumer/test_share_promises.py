"""What a share consumer promises, beside brokers in memory that keep silent, hang, or refuse."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient import ShareConsumer
from kclient.errors import ClosedError, ErrorCode, IllegalStateError, InvalidRecordStateError, KafkaError
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    ShareAcknowledgeResponse,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
)
from kclient.protocol.registry import ApiKey
from kclient.sync.portal import get_portal
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker
from tests.fake_shares import SharingKafka
from tests.unit.consumer.test_share_consumer import T0, T1, poll, settings, sharing, values

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

Told = list[tuple[dict[TopicPartition, set[int]], KafkaError | None]]


class OddKafka(SharingKafka):
    """One whose brokers do not answer all that is asked."""

    def __init__(self, topics: dict[str, int] | None = None, brokers: int = 1) -> None:
        super().__init__(topics, brokers)
        self.mute = False
        """Whether answers to acknowledgements leave out what became of them."""
        self.withheld: dict[ApiKey, set[int]] = defaultdict(set)
        """Which brokers do not answer what, until `resumed`."""
        self.resumed = anyio.Event()
        self.partition_code = 0
        """What fetches are answered with for each partition."""
        self.share_fetches = 0

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        if broker.node_id in self.withheld[key]:
            return self._later(broker, key, version, request, connection)
        self.share_fetches += key is ApiKey.SHARE_FETCH
        answer = super().answer(broker, key, version, request, connection)
        if isinstance(answer, ShareAcknowledgeResponse) and self.mute:
            answer.responses = []
        return answer

    async def _later(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | None:
        await self.resumed.wait()
        answer = super().answer(broker, key, version, request, connection)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _share_fetch(self, broker: FakeBroker, request: Any) -> ShareFetchResponse:
        if not self.partition_code:
            return await super()._share_fetch(broker, request)
        found = [
            ShareFetchableTopicResponse(
                topic_id=topic_id,
                partitions=[ShareFetchResponsePartitionData(partition_index=number, error_code=self.partition_code)],
            )
            for topic_id, number in sorted(
                {(bytes(topic.topic_id), each.partition_index) for topic in request.topics for each in topic.partitions}
                | self.shared[broker.node_id, request.member_id]
            )
        ]
        assert not self._session(broker, request)
        self.shared[broker.node_id, request.member_id] |= {
            (bytes(each.topic_id), each.partitions[0].partition_index) for each in found
        }
        return ShareFetchResponse(acquisition_lock_timeout_ms=self.lock_ms, responses=found)


async def test_an_acknowledgement_that_the_answer_leaves_out_is_not_told_success() -> None:
    told: Told = []
    async with OddKafka() as kafka, sharing(kafka) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
        kafka.fill("t", 0, 2)
        for record in await poll(consumer):
            consumer.acknowledge(record)
        kafka.mute = True
        [error] = (await consumer.commit()).values()
        assert isinstance(error, InvalidRecordStateError)
        assert "does not say what became of the acknowledgement" in str(error)
        assert told == [({T0: {0, 1}}, error)]


@pytest.mark.parametrize("explicit", [True, False])
async def test_unsubscribing_gives_up_what_was_returned(explicit: bool) -> None:
    told: Told = []
    async with OddKafka() as kafka, sharing(kafka, explicit=explicit) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
        kafka.fill("t", 0, 2)
        records = await poll(consumer)
        await consumer.unsubscribe()
        if explicit:
            with pytest.raises(IllegalStateError, match="the consumer has unsubscribed since"):
                consumer.acknowledge(records[0])
        consumer.subscribe("t")
        assert [record.delivery_count for record in await poll(consumer)] == [2, 2]
        assert told == []
        assert not kafka.done[T0]


@pytest.mark.parametrize("timeout", [0.0, 5.0])
async def test_a_poll_amid_which_a_callback_closes_returns_nothing(timeout: float) -> None:
    async with OddKafka() as kafka, sharing(kafka, explicit=False) as consumer:

        async def close(offsets: dict[TopicPartition, set[int]], error: KafkaError | None) -> None:
            await consumer.close(timeout)

        consumer.set_acknowledgement_commit_callback(close)
        kafka.fill("t", 0, 4)
        with anyio.fail_after(20):
            while not await consumer.poll(1.0, max_records=2):
                pass
            consumer.commit_async()
            while consumer.metrics().value("acknowledgements-send-total") < 2:
                await anyio.sleep(0.005)
            with pytest.raises(ClosedError):
                await consumer.poll(1.0)
        assert kafka.done[T0] == {0, 1}


@pytest.mark.parametrize("closes", [True, False])
async def test_leaving_takes_no_longer_than_it_may_where_brokers_hang(closes: bool) -> None:
    async with OddKafka() as kafka:
        consumer = ShareConsumer("t", **settings(kafka, share_acknowledgement_mode="explicit"))
        await consumer.start()
        kafka.fill("t", 0, 1)
        for record in await poll(consumer):
            consumer.acknowledge(record)
        for key in (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
            kafka.withheld[key] = {1}
        begun = anyio.current_time()
        await (consumer.close(1.0) if closes else consumer.unsubscribe())
        assert anyio.current_time() - begun < 1.5
        await consumer.close(0)
        kafka.resumed.set()


async def test_closing_leaves_the_group_though_a_broker_hangs() -> None:
    async with OddKafka({"t": 2}, brokers=2) as kafka:
        consumer = ShareConsumer("t", **settings(kafka, share_acknowledgement_mode="explicit"))
        await consumer.start()
        kafka.fill("t", 1, 1)
        for record in await poll(consumer):
            consumer.acknowledge(record)
        kafka.withheld[ApiKey.SHARE_ACKNOWLEDGE] = {kafka.partitions[T1].leader}
        begun = anyio.current_time()
        await consumer.close(1.0)
        assert anyio.current_time() - begun < 1.5
        assert len(kafka.left) == 1
        kafka.resumed.set()


def test_a_commit_accepts_nothing_that_a_poll_of_another_thread_has_not_returned() -> None:
    """A commit comes amid a poll, which is interrupted then: nobody has got what it had taken."""

    def decoded(data: bytes) -> int:
        records.append(data)
        if len(records) == 3:  # those of one partition are taken, and those of the other one follow
            thread = threading.Thread(target=consumer.commit_async)
            thread.start()
            thread.join(10)
            raise KeyboardInterrupt
        return int(data)

    records: list[bytes] = []
    kafka = OddKafka({"t": 2}, brokers=2)
    get_portal().call(kafka.start)
    consumer = kclient.sync.ShareConsumer("t", **settings(kafka, value_deserializer=decoded))
    try:
        kafka.fill("t", 0, 2)
        kafka.fill("t", 1, 2)
        consumer.poll(0.0)
        deadline = time.monotonic() + 20
        while sum(map(len, kafka.held.values())) < 4 and time.monotonic() < deadline:
            consumer.metrics()
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() < deadline:
                consumer.poll(0.3)
        found: list[kclient.ConsumerRecord] = []
        while len(found) < 4 and time.monotonic() < deadline:
            found += consumer.poll(0.3)
        assert sorted((record.partition, record.offset) for record in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    finally:
        consumer.close(5)
        get_portal().call(kafka.aclose)


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_a_broker_that_refuses_all_partitions_is_asked_ever_less_often(code: ErrorCode) -> None:
    async with OddKafka() as kafka, sharing(kafka, retry_backoff_ms=50, retry_backoff_max_ms=200) as consumer:
        kafka.partition_code = code
        kafka.fill("t", 0, 1)
        assert not await consumer.poll(1.0)
        assert 2 < kafka.share_fetches < 15
        kafka.partition_code = 0
        assert values(await poll(consumer)) == [0]
        asked = kafka.share_fetches
        for offset in range(1, 4):  # and then at once again
            consumer.acknowledge_offset(T0, offset - 1)
            kafka.fill("t", 0, 1)
            assert [record.offset for record in await poll(consumer)] == [offset]
        assert kafka.share_fetches > asked
        consumer.acknowledge_offset(T0, 3)
