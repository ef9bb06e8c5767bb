"""A topic that is deleted and created again under a consumer: what is read, and what of it is committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    RetriableCommitFailedError,
    UnknownTopicOrPartitionError,
)
from kclient.protocol.registry import ApiKey
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.fake_reads import ReadableKafka

T0 = TopicPartition("t", 0)
OLD, NEW = 10, 3
"""Records in the deleted topic, and in the one after it."""
BY_ID, BY_NAME = 10, 9
"""How offsets are committed."""


@asynccontextmanager
async def half_read(commits: int = BY_ID, **settings: Any) -> AsyncIterator[tuple[ReadableKafka, kclient.Consumer]]:
    """A consumer that has read a topic to its end."""
    defaults = {
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
    }
    async with ReadableKafka({"t": 1}) as kafka:
        kafka.versions[ApiKey.OFFSET_COMMIT] = (2, commits)
        kafka.fill("t", 0, OLD)
        async with kclient.Consumer(bootstrap_servers=kafka.bootstrap, **{**defaults, **settings}) as consumer:  # type: ignore[arg-type]
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await read(consumer, OLD)
            yield kafka, consumer


async def read(consumer: kclient.Consumer, count: int) -> None:
    with anyio.fail_after(10):
        while count > 0:
            count -= len(await consumer.poll(1.0))
    assert count == 0


def make_anew(kafka: ReadableKafka) -> None:
    kafka.delete("t")
    kafka.create("t", 1)
    kafka.fill("t", 0, NEW)


async def learnt(consumer: kclient.Consumer) -> None:
    """Wait until the consumer knows, without any poll."""
    with anyio.fail_after(10):
        while await consumer.position(T0) != 0:
            await anyio.sleep(0.01)


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [BY_ID, BY_NAME])
async def test_close_commits_no_position_in_the_deleted_topic(commits: int) -> None:
    async with half_read(commits, enable_auto_commit=True) as (kafka, consumer):
        make_anew(kafka)
        await learnt(consumer)
        await consumer.close()
        assert kafka.committed == {T0: 0}


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [BY_ID, BY_NAME])
async def test_a_commit_is_of_the_position_in_the_new_topic(commits: int) -> None:
    async with half_read(commits) as (kafka, consumer):
        await consumer.commit()
        assert kafka.committed == {T0: OLD}
        make_anew(kafka)
        await learnt(consumer)
        await consumer.commit()
        assert kafka.committed == {T0: 0}
        await read(consumer, NEW)
        await consumer.commit()
        assert kafka.committed == {T0: NEW}


@pytest.mark.anyio
async def test_the_broker_refuses_what_is_of_a_topic_that_the_client_does_not_know_to_be_deleted() -> None:
    async with half_read(enable_auto_commit=True) as (kafka, consumer):
        await consumer.committed([T0])  # so the coordinator need not be asked for behind metadata that never come
        kafka.silent = {ApiKey.METADATA}
        make_anew(kafka)
        with pytest.raises(KafkaTimeoutError, match=r"t-0: such partitions do not exist \(any more\)"):
            await consumer.commit(timeout=1)
        told: list[KafkaError | None] = []
        consumer.commit_async(callback=lambda _, error: told.append(error))
        await consumer.close()  # auto commit
        assert kafka.committed == {}
        assert list(map(type, told)) == [RetriableCommitFailedError]


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [BY_ID, BY_NAME])
async def test_a_commit_that_waits_is_given_up_with_its_topic(commits: int) -> None:
    async with half_read(commits) as (kafka, consumer):
        kafka.errors[ApiKey.OFFSET_COMMIT] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        async def commit() -> None:
            with pytest.raises(UnknownTopicOrPartitionError):
                await consumer.commit(timeout=10)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            with anyio.fail_after(10):
                while (1, ApiKey.OFFSET_COMMIT) not in kafka.asked:
                    await anyio.sleep(0.01)
            make_anew(kafka)
            await learnt(consumer)
            del kafka.errors[ApiKey.OFFSET_COMMIT]
        assert kafka.committed == {}


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [BY_ID, BY_NAME])
async def test_offsets_of_records_that_were_handed_out_before_are_refused(commits: int) -> None:
    async with half_read(commits) as (kafka, consumer):
        make_anew(kafka)
        await learnt(consumer)
        with pytest.raises(UnknownTopicOrPartitionError, match=r"t-0: the topic .* was deleted, and created again"):
            await consumer.commit({T0: OffsetAndMetadata(OLD)})
        assert kafka.committed == {}
        await read(consumer, NEW)
        await consumer.commit({T0: OffsetAndMetadata(2)})
        assert kafka.committed == {T0: 2}
        make_anew(kafka)
        await learnt(consumer)
        consumer.seek(T0, 1)
        await consumer.commit({T0: OffsetAndMetadata(1)})
        assert kafka.committed == {T0: 1}


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [BY_ID, BY_NAME])
@pytest.mark.parametrize("seek", ["nowhere", "to the beginning", "to the end"])
async def test_offsets_at_the_position_in_the_new_topic_are_committed(commits: int, seek: str) -> None:
    """Though nothing of it was handed out yet."""
    async with half_read(commits) as (kafka, consumer):
        make_anew(kafka)
        await learnt(consumer)
        if seek == "to the beginning":
            consumer.seek_to_beginning([T0])
        elif seek == "to the end":
            consumer.seek_to_end([T0])
        position = await consumer.position(T0)
        assert position == (NEW if seek == "to the end" else 0)
        await consumer.commit({T0: OffsetAndMetadata(position)})
        assert kafka.committed == {T0: position}


@asynccontextmanager
async def misled(**settings: Any) -> AsyncIterator[tuple[ReadableKafka, kclient.Consumer]]:
    """A consumer that has seen one answer of a broker that lags behind: it names a topic that was deleted before."""
    async with half_read(metadata_max_age_ms=50, **settings) as (kafka, consumer):
        consumer.pause([T0])
        kafka.lagging["t"] = bytes(15) + b"o"
        await learnt(consumer)
        del kafka.lagging["t"]
        yield kafka, consumer


@pytest.mark.anyio
async def test_what_a_leader_serves_is_the_topic_whatever_a_broker_that_lags_behind_says() -> None:
    async with misled() as (kafka, consumer):
        consumer.resume([T0])
        await read(consumer, OLD)  # again: nobody knows whether it was another topic
        await consumer.commit()
        assert kafka.committed == {T0: OLD}


@pytest.mark.anyio
async def test_a_coordinator_that_does_not_know_the_topic_has_the_metadata_believed() -> None:
    async with misled(enable_auto_commit=True, auto_commit_interval_ms=20) as (kafka, consumer):
        with anyio.fail_after(10):
            while T0 not in kafka.committed:
                await consumer.poll(0.02)  # paused: no leader tells
        assert kafka.committed == {T0: 0}


@pytest.mark.anyio
async def test_offsets_of_partitions_that_are_not_read_are_committed_by_name() -> None:
    async with half_read() as (kafka, consumer):
        kafka.create("other", 1)
        other = TopicPartition("other", 0)
        await consumer.commit({T0: OffsetAndMetadata(4), other: OffsetAndMetadata(5)})
        assert kafka.committed == {T0: 4, other: 5}


@pytest.mark.anyio
async def test_without_a_reset_policy_the_user_is_told_until_he_seeks() -> None:
    async with half_read(auto_offset_reset="none", group_id=None, enable_auto_commit=None) as (kafka, consumer):
        make_anew(kafka)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match="deleted and created again: offset 10 of t-0"):
                await read(consumer, NEW)
        with pytest.raises(OffsetOutOfRangeError, match="deleted and created again"):
            await consumer.position(T0)
        consumer.seek(T0, 1)
        assert await consumer.position(T0) == 1
        await read(consumer, NEW - 1)
