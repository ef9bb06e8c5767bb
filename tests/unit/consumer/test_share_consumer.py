"""A share consumer beside brokers in memory that hold records for it, lose its session, move away, and hang."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient import AcknowledgeType, ShareConsumer
from kclient.errors import (
    ClosedError,
    ConfigError,
    CorruptRecordError,
    ErrorCode,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    IllegalStateError,
    InvalidRecordStateError,
    InvalidTopicError,
    KafkaError,
    RecordDeserializationError,
    ShareSessionNotFoundError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import ShareFetchRequest, ShareGroupHeartbeatResponse
from kclient.protocol.registry import ApiKey
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from kclient.types import TopicPartition
from tests.fake_shares import SharingKafka

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def settings(kafka: SharingKafka, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.bootstrap,
        "group_id": "g",
        "fetch_max_wait_ms": 20,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
        **more,
    }


@asynccontextmanager
async def sharing(kafka: SharingKafka, *, explicit: bool = True, **more: Any) -> AsyncIterator[ShareConsumer]:
    mode = "explicit" if explicit else "implicit"
    async with ShareConsumer("t", **settings(kafka, share_acknowledgement_mode=mode, **more)) as consumer:
        yield consumer


async def poll(consumer: ShareConsumer) -> list[kclient.ConsumerRecord]:
    with anyio.fail_after(20):
        while not (records := await consumer.poll(1.0)):
            pass
    return list(records)


def values(records: Iterable[kclient.ConsumerRecord]) -> list[int]:
    return [int(record.value) for record in records]


async def test_what_is_said_of_records() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 6)
        records = await poll(consumer)
        assert values(records) == [0, 1, 2, 3, 4, 5]
        assert consumer.acquisition_lock_timeout_ms() == 30_000
        kinds = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
        for record in records:
            consumer.acknowledge(record, kinds[record.offset % 3])
        again = await poll(consumer)
        assert [(record.offset, record.delivery_count) for record in again] == [(1, 2), (4, 2)]
        assert kafka.done[T0] == {0, 2, 3, 5}
        for record in again:
            consumer.acknowledge(record, AcknowledgeType.RENEW)
        back = await poll(consumer)
        assert back == again
        for record in back:
            consumer.acknowledge(record)
        assert await consumer.commit() == {T0: None}
        assert kafka.done[T0] == set(range(6))
        assert consumer.metrics().value("acknowledgements-send-total") == 10


async def test_what_the_cluster_says_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    """As a consumer of a group: one that does not exist is logged once, one that cannot be had is raised."""

    def told() -> list[str]:
        return [record.message for record in caplog.records if "does not exist" in record.message]

    async with SharingKafka() as kafka, sharing(kafka, metadata_max_age_ms=50) as consumer:
        consumer.subscribe(["typo", "t"])
        with anyio.fail_after(20):
            while not told():
                await consumer.poll(0.05)
        kafka.topic_errors["typo"] = ErrorCode.INVALID_TOPIC_EXCEPTION
        with anyio.fail_after(20), pytest.raises(InvalidTopicError, match="'typo'"):
            while True:
                await consumer.poll(0.05)
        assert told() == ["topic 'typo' does not exist, so nothing of it is read until it does: is this its name?"]
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        kafka.fill("t", 0, 1)
        assert values(await poll(consumer)) == [0]


async def test_leaving_gives_back_what_was_not_acknowledged() -> None:
    async with SharingKafka() as kafka:
        kafka.fill("t", 0, 6)
        async with sharing(kafka) as consumer:
            records = await poll(consumer)
            consumer.acknowledge(records[2])
        assert kafka.done[T0] == {2}
        assert kafka.held[T0] == {}
        assert kafka.members == {}
        assert len(kafka.left) == 1


async def test_iterating_accepts_what_was_returned_only() -> None:
    async with SharingKafka() as kafka:
        kafka.fill("t", 0, 6)
        async with sharing(kafka, explicit=False) as consumer:
            with anyio.fail_after(20):
                async for record in consumer:
                    if record.offset == 2:
                        break
        assert kafka.done[T0] == {0, 1}, "the last one may not be processed"
        assert kafka.held[T0] == {}


async def test_what_was_returned_last_is_given_back_where_the_block_is_left() -> None:
    """However it is left: an error may have come amid these records."""
    async with SharingKafka() as kafka:
        kafka.fill("t", 0, 3)
        with pytest.raises(ZeroDivisionError):
            async with sharing(kafka, explicit=False) as consumer:
                assert len(await poll(consumer)) == 3
                raise ZeroDivisionError
        assert (kafka.done[T0], kafka.held[T0]) == (set(), {})
        async with sharing(kafka, explicit=False) as consumer:
            records = await poll(consumer)
            assert [record.delivery_count for record in records] == [2, 2, 2]
            await consumer.commit()
        assert kafka.done[T0] == {0, 1, 2}


async def test_iterating_in_explicit_mode_wants_each_acknowledged() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 3)
        record = await anext(consumer)
        with pytest.raises(IllegalStateError, match="1 records of t-0 were not acknowledged"):
            await anext(consumer)
        consumer.acknowledge(record)
        assert (await anext(consumer)).offset == 1


async def test_polls_in_pieces() -> None:
    async with SharingKafka() as kafka, sharing(kafka, explicit=False) as consumer:
        kafka.fill("t", 0, 5)
        found: list[int] = []
        with anyio.fail_after(20):
            while len(found) < 5:
                records = await consumer.poll(1.0, max_records=2)
                assert len(records) <= 2
                found += values(records)
        assert found == [0, 1, 2, 3, 4]


async def test_offsets_without_records_are_told_of_as_gaps() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 2)
        kafka.partitions[T0].end += 3  # markers, say
        records = await poll(consumer)
        assert values(records) == [0, 1]
        for record in records:
            consumer.acknowledge(record)
        await consumer.commit()
        with anyio.fail_after(10):
            while kafka.done[T0] != {0, 1, 2, 3, 4}:
                assert not await consumer.poll(0.05)


async def test_a_session_that_the_broker_has_dropped() -> None:
    told: list[tuple[dict[TopicPartition, set[int]], KafkaError | None]] = []
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
        kafka.fill("t", 0, 2)
        first = await poll(consumer)
        kafka.session_codes = [122]
        for record in first:
            consumer.acknowledge(record)
        found = await consumer.commit()
        assert isinstance(found[T0], ShareSessionNotFoundError)
        [(offsets, error)] = told
        assert offsets == {T0: {0, 1}}
        assert isinstance(error, ShareSessionNotFoundError)
        again = await poll(consumer)
        assert [record.delivery_count for record in again] == [2, 2]
        for record in again:
            consumer.acknowledge(record)
        assert await consumer.commit() == {T0: None}


async def test_records_of_a_lost_session_cannot_be_acknowledged() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 2)
        first, second = await poll(consumer)
        kafka.session_codes = [123]
        consumer.acknowledge(first)
        await consumer.commit()
        consumer.acknowledge(second)
        [error] = (await consumer.commit()).values()
        assert isinstance(error, ShareSessionNotFoundError)
        assert "does not hold these records for this consumer any more" in str(error)


async def test_a_connection_that_breaks() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 2)
        records = await poll(consumer)
        kafka.brokers[1].hang_up()
        for member in kafka.members:
            kafka.lose_session(1, member)
        for record in records:
            consumer.acknowledge(record)
        [error] = (await consumer.commit()).values()
        assert error is not None
        assert [record.delivery_count for record in await poll(consumer)] == [2, 2]


async def test_several_brokers_and_one_that_gives_its_partition_away() -> None:
    async with SharingKafka({"t": 2}, brokers=2) as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 1)
        kafka.fill("t", 1, 1)
        found: list[kclient.ConsumerRecord] = []
        while len(found) < 2:
            for record in (records := await poll(consumer)):
                consumer.acknowledge(record)
            found += records
        assert sorted(record.partition for record in found) == [0, 1]
        await consumer.commit()
        kafka.move("t", 0, 2)
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        assert (record.partition, record.offset) == (0, 1)
        consumer.acknowledge(record)
        assert await consumer.commit() == {T0: None}


async def test_a_topic_that_is_made_again_shares_nothing_with_its_namesake() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 2)
        for record in await poll(consumer):
            consumer.acknowledge(record)
        await consumer.commit()
        kafka.delete("t")
        for known in (kafka.held, kafka.done, kafka.counts):
            known.clear()
        kafka.create("t", 1)
        kafka.fill("t", 0, 1)
        consumer.subscribe(["t", "u"])  # so that the next heartbeat brings the assignment
        [record] = await poll(consumer)
        assert (record.offset, record.delivery_count) == (0, 1)
        consumer.acknowledge(record)
        assert await consumer.commit() == {T0: None}


async def test_an_acknowledgement_is_tried_again_where_that_can_help() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        consumer.acknowledge(record)
        kafka.acknowledge_codes = [14, 15, 0]
        assert await consumer.commit() == {T0: None}
        assert kafka.acknowledge_codes == []
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        kafka.release()
        consumer.acknowledge(record)
        [error] = (await consumer.commit()).values()
        assert isinstance(error, InvalidRecordStateError)


async def test_locks_that_are_over_before_a_poll() -> None:
    async with SharingKafka() as kafka, sharing(kafka, max_poll_records=2) as consumer:
        kafka.lock_ms = 1
        kafka.fill("t", 0, 2)
        with anyio.move_on_after(0.3):
            await consumer.poll(0.0)
            while not kafka.held[T0]:
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
        assert not await consumer.poll(0.0)
        kafka.lock_ms = 30_000
        kafka.release()
        assert [record.delivery_count for record in await poll(consumer)] == [2, 2]


async def test_one_broker_at_a_time_with_record_limit() -> None:
    async with (
        SharingKafka({"t": 2}, brokers=2) as kafka,
        sharing(kafka, share_acquire_mode="record_limit", max_poll_records=1, fetch_max_wait_ms=5) as consumer,
    ):
        found: set[int] = set()
        for partition in (0, 1):
            kafka.fill("t", partition, 1)
        while len(found) < 2:
            [record] = await poll(consumer)
            assert sum(map(len, kafka.held.values())) == 1
            consumer.acknowledge(record)
            found.add(record.partition)
        fetches = [message for _, message in kafka.requests if isinstance(message, ShareFetchRequest)]
        assert {(fetch.share_acquire_mode, fetch.max_records) for fetch in fetches} <= {(1, 1)}


async def test_a_record_that_cannot_be_deserialized() -> None:
    async with SharingKafka() as kafka, sharing(kafka, value_deserializer=positive) as consumer:
        kafka.fill("t", 0, 3)
        with pytest.raises(RecordDeserializationError, match="The record is released"):
            await poll(consumer)
        assert kafka.held[T0].keys() == {0, 1, 2}  # what is to become of it is told by the next poll
        records = await poll(consumer)
        assert values(records) == [1, 2]
        for record in records:
            consumer.acknowledge(record)
        await consumer.commit()
        assert (kafka.done[T0], kafka.counts[T0][0]) == ({1, 2}, 1)
        with pytest.raises(RecordDeserializationError):
            await poll(consumer)
        consumer.acknowledge_offset(T0, 0, AcknowledgeType.REJECT)
        await consumer.commit()
        assert kafka.done[T0] == {0, 1, 2}


async def test_a_record_that_cannot_be_deserialized_behind_others() -> None:
    async with SharingKafka() as kafka, sharing(kafka, value_deserializer=not_one) as consumer:
        kafka.fill("t", 0, 3)
        [record] = await poll(consumer)
        consumer.acknowledge(record)
        with pytest.raises(RecordDeserializationError):
            await poll(consumer)
        consumer.acknowledge_offset(T0, 1, AcknowledgeType.REJECT)
        [record] = await poll(consumer)
        assert record.value == 2
        consumer.acknowledge(record)
        await consumer.commit()
        assert kafka.done[T0] == {0, 1, 2}


def not_one(data: bytes) -> int:
    return positive(b"%d" % (int(data) - 1)) + 1


async def test_a_batch_that_is_damaged() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 3)
        kafka.fill("t", 0, 2)
        damaged = bytearray(kafka.partitions[T0].batches[-1])
        damaged[-1] ^= 1
        kafka.partitions[T0].batches[-1] = bytes(damaged)
        kafka.fill("t", 0, 1)
        for record in (records := await poll(consumer)):
            consumer.acknowledge(record)
        assert values(records) == [0, 1, 2]
        with pytest.raises(CorruptRecordError, match="The batch is rejected, and not delivered again"):
            await poll(consumer)
        [record] = await poll(consumer)
        assert record.offset == 5
        consumer.acknowledge(record)
        await consumer.commit()
        assert kafka.done[T0] == set(range(6))


def positive(data: bytes) -> int:
    number = int(data)
    if not number:
        raise ValueError("zero")
    return number


async def test_columns_of_what_was_acquired() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 6)
        kafka.done[T0] = {1, 4}
        with anyio.fail_after(20):
            while not (batch := await consumer.poll_arrow(1.0)).num_rows:
                pass
        assert batch.column("offset").to_pylist() == [0, 2, 3, 5]
        assert batch.column("deliveryCount").to_pylist() == [1, 1, 1, 1]
        consumer.acknowledge_arrow(batch.slice(0, 1))
        consumer.acknowledge_arrow(batch.slice(1), AcknowledgeType.RENEW)
        with anyio.fail_after(20):
            while not (back := await consumer.poll_arrow(1.0, columns=["deliveryCount", "value"])).num_rows:
                pass
        assert back.to_pylist() == [{"deliveryCount": 1, "value": b"%d" % number} for number in (2, 3, 5)]
        for offset in (2, 3, 5):
            consumer.acknowledge_offset(T0, offset)
        await consumer.commit()
        assert kafka.done[T0] == set(range(6))
        assert (await consumer.poll_arrow(0.05, include_headers=True)).schema.names[-2:] == ["headers", "deliveryCount"]


async def test_columns_before_and_behind_a_batch_that_is_damaged() -> None:
    async with SharingKafka() as kafka, sharing(kafka, explicit=False) as consumer:
        for _ in range(3):
            kafka.fill("t", 0, 2)
        damaged = bytearray(kafka.partitions[T0].batches[1])
        damaged[-1] ^= 1
        kafka.partitions[T0].batches[1] = bytes(damaged)
        found: list[int] = []
        with anyio.fail_after(20):
            while len(found) < 2:
                found += (await consumer.poll_arrow(1.0)).column("offset").to_pylist()
            with pytest.raises(CorruptRecordError, match="The batch is rejected"):
                await consumer.poll_arrow(1.0)
            while len(found) < 4:
                found += (await consumer.poll_arrow(1.0)).column("offset").to_pylist()
        assert found == [0, 1, 4, 5]
        await consumer.commit()
        assert kafka.done[T0] == set(range(6))


async def test_what_the_group_refuses() -> None:
    async with SharingKafka() as kafka:
        codes = [30, 69]
        kafka.scripts[ApiKey.SHARE_GROUP_HEARTBEAT] = lambda broker, request: None
        answered = kafka.answer

        def answer(broker: Any, key: ApiKey, version: int, request: Any, connection: Any) -> Any:
            if key is ApiKey.SHARE_GROUP_HEARTBEAT and codes:
                return ShareGroupHeartbeatResponse(error_code=codes.pop(0), error_message="so it is")
            return answered(broker, key, version, request, connection)

        kafka.answer = answer  # type: ignore[method-assign]
        async with sharing(kafka) as consumer:
            with pytest.raises(GroupAuthorizationError, match="so it is"):
                await consumer.poll(5.0)
            with pytest.raises(GroupIdNotFoundError, match=r"take another group\.id"):
                await consumer.poll(5.0)
            kafka.fill("t", 0, 1)
            assert values(await poll(consumer)) == [0]


async def test_a_member_that_the_broker_has_forgotten_joins_again() -> None:
    async with SharingKafka() as kafka, sharing(kafka) as consumer:
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        consumer.acknowledge(record)
        kafka.members.clear()
        consumer.subscribe(["t", "u"])  # so that a heartbeat is due
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        assert record.offset == 1
        with anyio.fail_after(10):
            while not kafka.members:
                await anyio.sleep(0.01)


async def test_a_broker_that_knows_no_share_groups() -> None:
    async with SharingKafka() as kafka:
        del kafka.versions[ApiKey.SHARE_GROUP_HEARTBEAT]
        async with sharing(kafka) as consumer:
            with pytest.raises(UnsupportedVersionError, match=r"share\.version=1.*kclient\.Consumer"):
                await consumer.poll(10.0)


@pytest.mark.parametrize("what", ["record_limit", "renew"])
async def test_a_broker_that_knows_less_of_them(what: str) -> None:
    async with SharingKafka() as kafka:
        kafka.versions[ApiKey.SHARE_FETCH] = kafka.versions[ApiKey.SHARE_ACKNOWLEDGE] = (1, 1)
        kafka.fill("t", 0, 1)
        mode = "record_limit" if what == "record_limit" else "batch_optimized"
        async with sharing(kafka, share_acquire_mode=mode) as consumer:
            if what == "record_limit":
                with pytest.raises(UnsupportedVersionError, match=r"record_limit: that needs Kafka 4\.2"):
                    await consumer.poll(10.0)
                return
            [record] = await poll(consumer)
            consumer.acknowledge(record, AcknowledgeType.RENEW)
            [error] = (await consumer.commit()).values()
            assert isinstance(error, UnsupportedVersionError)


async def test_what_may_not_be_done() -> None:
    with pytest.raises(ConfigError, match=r"group\.id is missing"):
        ShareConsumer("t", bootstrap_servers="localhost:1")
    for name in ("auto.offset.reset", "enable.auto.commit", "isolation.level", "group.instance.id"):
        with pytest.raises(ConfigError, match=rf"{name} cannot be set for a share consumer: "):
            ShareConsumer({"bootstrap.servers": "localhost:1", "group.id": "g", name: "true"})
    async with SharingKafka() as kafka:
        async with ShareConsumer(**settings(kafka)) as consumer:
            with pytest.raises(IllegalStateError, match="subscribe to topics first"):
                await consumer.poll()
            with pytest.raises(ValueError, match="at least one topic"):
                consumer.subscribe([])
            with pytest.raises(TypeError, match="a record that poll returned"):
                consumer.acknowledge(1)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="must be one of AcknowledgeType's"):
                consumer.acknowledge_offset(T0, 0, 1)  # type: ignore[arg-type]
            assert await consumer.commit() == {}
            assert consumer.subscription() == set()
        with pytest.raises(ClosedError):
            consumer.subscribe(["t"])
        with pytest.raises(ClosedError):
            consumer.commit_async()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_one_that_is_forgotten_leaves_its_group() -> None:
    async with SharingKafka() as kafka:
        kafka.fill("t", 0, 1)
        consumer = ShareConsumer("t", **settings(kafka))
        await consumer.start()
        await poll(consumer)
        del consumer
        gc.collect()
        with anyio.fail_after(10):
            while not kafka.left:
                await anyio.sleep(0.01)


@pytest.mark.slow
async def test_too_long_without_a_poll() -> None:
    async with SharingKafka() as kafka, sharing(kafka, max_poll_interval_ms=50) as consumer:
        kafka.fill("t", 0, 1)
        [record] = await poll(consumer)
        with anyio.fail_after(10):
            while not kafka.left:
                await anyio.sleep(0.01)
        consumer.acknowledge(record)
        kafka.fill("t", 0, 1)
        assert (await poll(consumer))[0].offset == 1


# ------------------------------------------------------------------ cancelled at any moment


@pytest.mark.slow
async def test_a_poll_that_is_cancelled_loses_no_record() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with SharingKafka() as kafka, sharing(kafka, explicit=False, max_poll_records=2) as consumer:
            kafka.fill("t", 0, 6)
            found: list[int] = []
            while len(found) < 6:
                if await cancelled(consumer.poll(5.0)) is Outcome.FINISHED:
                    found += values(cancelled.result)
            assert found == [0, 1, 2, 3, 4, 5]
            assert set(kafka.counts[T0].values()) == {1}
            assert await consumer.commit() == {T0: None}
            assert kafka.done[T0] == set(range(6))

    assert await at_every_checkpoint(scenario) > 3


@pytest.mark.slow
async def test_iterating_and_columns_cancelled() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with SharingKafka() as kafka, sharing(kafka, explicit=False) as consumer:
            kafka.fill("t", 0, 4)
            found: list[int] = []
            while len(found) < 2:
                if await cancelled(anext(consumer)) is Outcome.FINISHED:
                    found.append(int(cancelled.result.value))
            while len(found) < 4:
                if await cancelled(consumer.poll_arrow(5.0)) is Outcome.FINISHED:
                    found += map(int, cancelled.result.column("value").to_pylist())
            assert found == [0, 1, 2, 3]

    assert await at_every_checkpoint(scenario) > 2


@pytest.mark.slow
async def test_commit_unsubscribe_and_close_cancelled() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with SharingKafka() as kafka:
            kafka.fill("t", 0, 3)
            consumer = ShareConsumer("t", **settings(kafka, share_acknowledgement_mode="explicit"))
            await consumer.start()
            for record in await poll(consumer):
                consumer.acknowledge(record)
            await cancelled(consumer.commit())
            with anyio.fail_after(10):
                while kafka.done[T0] != {0, 1, 2}:
                    await consumer.poll(0.01)
            await cancelled(consumer.unsubscribe())
            assert consumer.subscription() == set()
            consumer.subscribe("t")
            kafka.fill("t", 0, 1)
            [record] = await poll(consumer)
            assert record.offset == 3
            await cancelled(consumer.close())
            await consumer.close()

    assert await at_every_checkpoint(scenario) > 3
