"""The admin client's calls about transactions, on real Kafka 4.3 and 3.9 and on the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

import kclient
from kclient.admin import (
    AbortTransactionSpec,
    ActiveProducer,
    Admin,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    OffsetSpec,
    PartialFailureError,
)
from kclient.cli.app import run
from kclient.errors import (
    BrokerIdNotRegisteredError,
    InvalidProducerEpochError,
    InvalidRegularExpressionError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kclient.types import TopicPartition
from tests.gateway_wire import batch_of, produce_request
from tests.kafka_server import KafkaServer
from tests.re2_cases import MATCHED, WRONG
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.anyio

BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
HANGING = 1 << 40
"""A producer id that no coordinator has given out."""


KAFKA = [pytest.param(name, marks=pytest.mark.kafka) for name in ("kafka", "kafka3")]


@pytest.fixture(params=[*KAFKA, "gateway"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: KafkaServer | str = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else found.bootstrap


@pytest.fixture
async def admin(bootstrap: str, topic: str) -> AsyncIterator[Admin]:
    """One that has made a topic with two partitions."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2, 1)])
        yield admin


@asynccontextmanager
async def amid_a_transaction(bootstrap: str, topic: str) -> AsyncIterator[kclient.Producer]:
    """A producer whose id is the topic's name, in a transaction with a record in partition 0."""
    async with kclient.Producer(
        bootstrap_servers=bootstrap, transactional_id=topic, transaction_timeout_ms=50_000
    ) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send(topic, b"x", partition=0))
        yield producer


async def hang(admin: Admin, bootstrap: str, topic: str, sequence: int = 0) -> None:
    """Leave a record in partition 1 that no coordinator knows of, as brokers did before they asked it (KIP-890).

    Gateways always ask.
    """
    verification = "transaction.partition.verification.enable"
    await admin.alter_configs({BROKERS: {verification: "false"}})
    try:
        async with wire_session(bootstrap) as wire:
            batch = batch_of(
                b"x", timestamp=1000, producer_id=HANGING, producer_epoch=3, sequence=sequence, transactional=True
            )
            request = produce_request(topic, batch, 1, transactional_id=f"{topic}-gone")
            await until(  # the broker follows its setting a moment later
                lambda: wire(request, 11), lambda answer: not answer.responses[0].partition_responses[0].error_code
            )
    finally:
        await admin.alter_configs({BROKERS: {verification: None}})


async def test_transactions_are_listed_and_described(admin: Admin, bootstrap: str, topic: str) -> None:
    async with amid_a_transaction(bootstrap, topic) as producer:
        (listed,) = [row for row in await admin.list_transactions() if row.transactional_id == topic]
        assert listed.state == "Ongoing"
        assert listed in await admin.list_transactions(states=["Ongoing", "Empty"], producer_ids=[listed.producer_id])
        assert listed not in await admin.list_transactions(states=["Empty"])
        assert await admin.list_transactions(producer_ids=[listed.producer_id + 1_000_000]) == []
        assert listed in await admin.list_transactions(min_duration_ms=0)
        assert listed not in await admin.list_transactions(min_duration_ms=100_000_000)

        described = (await admin.describe_transactions([topic]))[topic]
        assert (described.transactional_id, described.state) == (topic, "Ongoing")
        assert described.coordinator.id == 1
        assert (described.producer_id, described.transaction_timeout_ms) == (listed.producer_id, 50_000)
        assert described.topic_partitions == {TopicPartition(topic, 0)}
        assert described.transaction_start_time_ms is not None
        stamps = await admin.list_offsets({(topic, 0): OffsetSpec.MAX_TIMESTAMP})
        stamp = stamps[TopicPartition(topic, 0)]
        assert stamp is None or abs(described.transaction_start_time_ms - stamp.timestamp) < 60_000

        producers = await admin.describe_producers([(topic, 0), (topic, 1)])
        (active,) = producers[TopicPartition(topic, 0)]
        assert (active.producer_id, active.producer_epoch) == (described.producer_id, described.producer_epoch)
        assert (active.last_sequence, active.transaction_start_offset) == (0, 0)
        assert active.coordinator_epoch is None
        assert producers[TopicPartition(topic, 1)] == ()
        assert await admin.describe_producers([(topic, 0)], broker_id=1) == {TopicPartition(topic, 0): (active,)}
        await producer.commit_transaction()

    async def alone() -> ActiveProducer:
        ((active,),) = (await admin.describe_producers([(topic, 0)])).values()
        return active

    # the end of a transaction is answered once it is decided, before it is in all partitions
    active = await until(alone, lambda active: active.transaction_start_offset is None)
    assert active.coordinator_epoch is not None
    ended = (await admin.describe_transactions([topic]))[topic]
    assert ended.state in ("PrepareCommit", "CompleteCommit")


async def test_filters_that_a_broker_does_not_know(admin: Admin, request: pytest.FixtureRequest, topic: str) -> None:
    with pytest.raises(ValueError, match="broker 1 knows no state 'Asleep'"):
        await admin.list_transactions(states=["Ongoing", "Asleep"])
    if "kafka3" in request.node.callspec.params.values():
        with pytest.raises(UnsupportedVersionError, match="transactional_id_pattern"):
            await admin.list_transactions(transactional_id_pattern=topic)
        return
    assert await admin.list_transactions(transactional_id_pattern=f"{topic}.*") == []
    with pytest.raises(InvalidRegularExpressionError):
        await admin.list_transactions(transactional_id_pattern="(")


@pytest.mark.parametrize("bootstrap", [KAFKA[0], "gateway"], indirect=True)
async def test_patterns_are_read_as_by_kafka(bootstrap: str) -> None:
    """Each id is made, and listed by the patterns that match it, and by no others (KIP-1152)."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        ids = {text for _, text, _ in MATCHED}
        await admin.fence_producers(sorted(ids))  # which gives each a producer id
        for pattern, text, matches in MATCHED:
            found = {row.transactional_id for row in await admin.list_transactions(transactional_id_pattern=pattern)}
            assert (text in found) is matches, (pattern, text)
        for pattern in WRONG:
            with pytest.raises(InvalidRegularExpressionError):
                await admin.list_transactions(transactional_id_pattern=pattern)


async def test_what_is_not_there(admin: Admin, topic: str) -> None:
    with pytest.raises(TransactionalIdNotFoundError, match=f"'{topic}'"):
        await admin.describe_transactions([topic])
    with pytest.raises(PartialFailureError):
        await admin.describe_transactions([topic, f"{topic}-2"])
    for broker_id in (None, 1):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"{topic}-7"):
            await admin.describe_producers([(topic, 7)], broker_id=broker_id)
    with pytest.raises(BrokerIdNotRegisteredError, match="id 77"), anyio.fail_after(10):
        await admin.describe_producers([(topic, 0)], broker_id=77)
    assert await admin.describe_transactions([]) == {}
    assert await admin.describe_producers([]) == {}


async def test_producers_are_fenced(admin: Admin, bootstrap: str, topic: str) -> None:
    async with amid_a_transaction(bootstrap, topic) as producer:
        before = (await admin.describe_transactions([topic]))[topic]
        fenced = (await admin.fence_producers([topic]))[topic]
        assert fenced.producer_id == before.producer_id
        assert fenced.producer_epoch > before.producer_epoch
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()
    async with amid_a_transaction(bootstrap, topic) as producer:
        await admin.force_terminate_transaction(topic)
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()
    async with kclient.Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end = (await consumer.end_offsets([tp]))[tp]
        assert end == 4, "both were aborted, and each abort has its marker"
        found = []
        with anyio.fail_after(30):
            while await consumer.position(tp) < end:
                found += await consumer.poll(timeout=0.1)
        assert found == []


@pytest.mark.parametrize("bootstrap", KAFKA, indirect=True)
async def test_a_transaction_that_hangs_is_found_and_aborted(admin: Admin, bootstrap: str, topic: str) -> None:
    await hang(admin, bootstrap, topic)
    place = TopicPartition(topic, 1)
    assert await admin.find_hanging_transactions([place], max_transaction_timeout_ms=1 << 50) == []
    async with amid_a_transaction(bootstrap, topic):
        hanging = await admin.find_hanging_transactions([(topic, 0), place], max_transaction_timeout_ms=0)
    ((where, producer, transactional_id),) = hanging
    assert (where, producer.producer_id, transactional_id) == (place, HANGING, None)
    assert producer.transaction_start_offset == 0
    assert hanging[0] in await admin.find_hanging_transactions()
    with pytest.raises(InvalidProducerEpochError):
        await admin.abort_transaction(AbortTransactionSpec(place, HANGING, 2, 0))
    await admin.abort_transaction(AbortTransactionSpec.of(place, producer))
    assert await admin.find_hanging_transactions([place], max_transaction_timeout_ms=0) == []
    ((ended,),) = (await admin.describe_producers([place])).values()
    assert (ended.transaction_start_offset, ended.coordinator_epoch) == (None, 0)


@pytest.mark.parametrize("bootstrap", KAFKA, indirect=True)
async def test_the_commands(
    admin: Admin, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", bootstrap)

    async def rows(name: str, *words: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(run, ["transactions", *words, "--output", "json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)[name]
        return found

    async def code(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return await anyio.to_thread.run_sync(run, ["transactions", *words]), capsys.readouterr().err

    await hang(admin, bootstrap, topic)
    async with amid_a_transaction(bootstrap, topic) as producer:
        (listed,) = [row for row in await rows("transactions", "list", "--state", "ongoing") if row["id"] == topic]
        assert listed in await rows("transactions", "list", "--producer-id", str(listed["producer id"]))
        (described,) = await rows("transactions", "describe", topic)
        assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}:0"])
        assert described["timeout ms"] == 50_000
        active, other = await rows("producers", "producers", topic)
        assert (active["producer id"], active["transaction from"]) == (listed["producer id"], 0)
        assert (other["producer id"], other["last record"]) == (HANGING, "1970-01-01T00:00:01.000+00:00")
        assert await rows("producers", "producers", f"{topic}:0", "--broker", "1") == [active]
        assert await rows("hanging", "find-hanging", topic, "--max-timeout", "0") == [{**other, "id": None}]
        assert await code("fence", topic) == (0, "")
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()
    assert (await code("abort", f"{topic}:1", "--start-offset", "7"))[1].endswith(
        "see kclient transactions producers\n"
    )
    assert (await code("abort", f"{topic}:1", "--producer-id", "7"))[0] == 2
    assert (await code("abort", f"{topic}:1"))[0] == 2
    assert (await code("abort", topic, "--start-offset", "0"))[0] == 2
    assert (await code("list", "--state", "asleep"))[0] == 2
    assert (await code("describe", f"{topic}-gone"))[0] == 1
    of_it = ["--producer-id", str(HANGING), "--producer-epoch", "3", "--coordinator-epoch", "0"]
    assert await code("abort", f"{topic}:1", *of_it) == (0, "")
    assert await rows("hanging", "find-hanging", topic, "--max-timeout", "0") == []
    await hang(admin, bootstrap, topic, sequence=1)
    assert await code("abort", f"{topic}:1", "--start-offset", "2") == (0, "")
    assert await rows("hanging", "find-hanging", topic, "--max-timeout", "0") == []
