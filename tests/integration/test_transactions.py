"""Transactions of our producer at real Kafka 4.3 (transaction.version 2) and 3.9 (version 1), and the gateway (2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.admin import Admin, NewTopic
from kclient.errors import (
    CommitFailedError,
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.conftest import require_java
from tests.kafka_artifacts import KAFKA_3, KAFKA_4
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.anyio

PARTITIONS = 3


REAL = [pytest.param(name, marks=pytest.mark.kafka) for name in ("kafka", "kafka3")]


@pytest.fixture(params=[*REAL, "gateway"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    server: KafkaServer | str = request.getfixturevalue(request.param)
    return server if isinstance(server, str) else server.bootstrap


@pytest.fixture
def version(request: pytest.FixtureRequest, bootstrap: str) -> int:
    """Which generation of the protocol the broker has finalized."""
    return 1 if "kafka3" in request.node.callspec.params.values() else 2


@pytest.fixture
async def made(bootstrap: str, topic: str) -> str:
    """A topic with three partitions."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    return topic


async def values(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """What a reader sees of a topic, in the order of offsets, partition by partition."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    settings: dict[str, Any] = {"isolation_level": isolation_level, "auto_offset_reset": "earliest"}
    async with kclient.Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        with anyio.fail_after(60):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(timeout=0.2):
                    found[record.partition].append(record.value)
    return [value for number in range(PARTITIONS) for value in found[number]]


async def test_what_is_committed_is_seen_and_what_is_aborted_is_not(bootstrap: str, made: str) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as producer:
        await producer.init_transactions()
        for number in range(3):
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    await producer.send(made, b"%d-%d" % (partition, number), partition=partition)
        await producer.begin_transaction()
        stored = await (await producer.send(made, b"aborted", partition=0))
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(made, b"0-3", partition=0)
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await producer.send(made, b"outside")
    assert stored.offset == 6, "each commit has its marker"
    expected = [b"0-0", b"0-1", b"0-2", b"0-3", b"1-0", b"1-1", b"1-2", b"2-0", b"2-1", b"2-2"]
    assert await values(bootstrap, made) == expected
    assert b"aborted" in await values(bootstrap, made, "read_uncommitted")


async def test_an_exception_in_the_block_aborts(bootstrap: str, made: str) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made, linger_ms=10_000) as producer:
        await producer.init_transactions()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                unsent = await producer.send(made, b"unsent")
                raise ZeroDivisionError
        with pytest.raises(TransactionAbortedError):
            await unsent
        async with producer.transaction():
            await producer.send(made, b"sent")
    assert await values(bootstrap, made) == [b"sent"]


async def test_an_abort_of_what_never_left_takes_no_epoch(bootstrap: str, made: str) -> None:
    async with (
        kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made, linger_ms=10_000) as producer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        await producer.init_transactions()
        epochs = set[int]()
        for _ in range(3):
            await producer.begin_transaction()
            await producer.send(made, b"unsent")
            await producer.abort_transaction()
            epochs.add((await admin.describe_transactions([made]))[made].producer_epoch)
    assert epochs == {0}


async def test_a_second_producer_fences_the_first(bootstrap: str, made: str) -> None:
    async with (
        kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as first,
        kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as second,
    ):
        await first.init_transactions()
        await first.begin_transaction()
        await (await first.send(made, b"zombie", partition=0))
        await second.init_transactions()
        with pytest.raises(ProducerFencedError):
            await first.commit_transaction()
        with pytest.raises(ProducerFencedError):
            await first.begin_transaction()
        with pytest.raises(ProducerFencedError):
            await first.send(made, b"zombie")
        async with second.transaction():
            await second.send(made, b"second", partition=0)
    assert await values(bootstrap, made) == [b"second"]


async def test_a_record_that_is_refused_makes_it_abortable(bootstrap: str, topic: str) -> None:
    """Afterwards the sequences begin anew under another epoch (KIP-360)."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1, configs={"max.message.bytes": "1000"})])
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
        await producer.init_transactions()
        for number in range(3):
            async with producer.transaction():
                await producer.send(topic, b"good-%d" % number, partition=0)
            await producer.begin_transaction()
            await producer.send(topic, b"before", partition=0)
            await producer.send(topic, b"x" * 2000, partition=1)
            with pytest.raises(TransactionAbortableError, match=r"max\.message\.bytes"):
                await producer.commit_transaction()
            with pytest.raises(TransactionAbortableError):
                await producer.send(topic, b"after")
            await producer.abort_transaction()
        await producer.flush()
    assert await values(bootstrap, topic) == [b"good-0", b"good-1", b"good-2"]


async def test_the_time_out_of_a_transaction(bootstrap: str, version: int, made: str) -> None:
    settings: dict[str, Any] = {"transactional_id": made, "transaction_timeout_ms": 100}
    tp = TopicPartition(made, 0)
    async with kclient.Producer(bootstrap_servers=bootstrap, **settings) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send(made, b"late", partition=0))
        async with kclient.Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
            with anyio.fail_after(40):  # the broker looks every ten seconds
                while not (await consumer.end_offsets([tp]))[tp]:
                    await anyio.sleep(0.1)
        if version == 2:
            with pytest.raises(TransactionAbortableError, match=r"transaction\.timeout\.ms"):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(made, b"same", partition=0)
        else:
            with pytest.raises(ProducerFencedError, match=r"transaction\.timeout\.ms"):
                await producer.commit_transaction()
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(made, b"again", partition=0)
    assert await values(bootstrap, made) == ([b"same", b"again"] if version == 2 else [b"again"])


def consumer_of(bootstrap: str, topic: str, **settings: Any) -> kclient.Consumer:
    fixed: dict[str, Any] = {
        "group_id": f"group-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    }
    return kclient.Consumer(topic, bootstrap_servers=bootstrap, **fixed, **settings)


async def test_consume_transform_produce(bootstrap: str, made: str) -> None:
    """The offsets are committed with the records, or not at all."""
    target = f"{made}-target"
    count = 60
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(target, PARTITIONS, 1)])
    async with kclient.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            await producer.send(made, b"%d" % number, partition=number % PARTITIONS)
    done = crashes = 0
    while done < count:
        async with (
            kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as producer,
            consumer_of(bootstrap, made, max_poll_records=10) as consumer,
        ):
            await producer.init_transactions()
            with anyio.move_on_after(20) as attempt:
                while done < count:
                    records = await consumer.poll(timeout=1.0)
                    if not records:
                        continue
                    await producer.begin_transaction()
                    for record in records:
                        await producer.send(target, record.value, partition=record.partition)
                    positions = {tp: await consumer.position(tp) for tp in records.partitions()}
                    await producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                    if crashes < 2:
                        crashes += 1
                        await producer.flush()
                        break  # closed amid the transaction
                    await producer.commit_transaction()
                    done += len(records)
            assert not attempt.cancelled_caught
    assert sorted(map(int, await values(bootstrap, target))) == list(range(count))
    async with consumer_of(bootstrap, made) as consumer:
        committed = await consumer.committed([TopicPartition(made, n) for n in range(PARTITIONS)])
    assert {tp.partition: found.offset for tp, found in committed.items() if found} == dict.fromkeys(range(3), 20)


async def test_offsets_of_a_member_that_the_group_has_left_behind(bootstrap: str, made: str) -> None:
    """KIP-447: the group's generation fences a zombie, whatever its transactional id."""
    tp = TopicPartition(made, 0)
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id=made) as producer:
        await producer.init_transactions()
        async with consumer_of(bootstrap, made) as zombie:
            await zombie.poll(timeout=1.0)
            with anyio.fail_after(30):
                while zombie.group_metadata().generation_id < 0:
                    await zombie.poll(timeout=0.2)
            former = zombie.group_metadata()
        async with consumer_of(bootstrap, made) as successor:
            with anyio.fail_after(30):
                while not await _assigned(successor):
                    pass
            await producer.begin_transaction()
            await producer.send(made, b"zombie", partition=0)
            with pytest.raises(CommitFailedError):
                await producer.send_offsets_to_transaction({tp: 5}, former)
            with pytest.raises(TransactionAbortableError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_offsets_to_transaction({tp: 7}, successor.group_metadata())
            committed = await successor.committed([tp])
    found = committed[tp]
    assert found is not None
    assert found.offset == 7
    assert await values(bootstrap, made) == []


async def _assigned(consumer: kclient.Consumer) -> bool:
    await consumer.poll(timeout=0.2)
    return bool(consumer.assignment())


async def test_blocking(bootstrap: str, made: str) -> None:
    def use() -> None:
        with kclient.sync.Producer(bootstrap_servers=bootstrap, transactional_id=made) as producer:
            producer.init_transactions()
            with pytest.raises(IllegalStateError):
                producer.send(made, b"outside")
            with producer.transaction():
                for number in range(1000):
                    producer.send(made, b"%03d" % number, partition=0)
            with pytest.raises(ZeroDivisionError), producer.transaction():
                producer.send(made, b"aborted")
                raise ZeroDivisionError
            with pytest.raises(IllegalStateError):
                producer.send(made, b"outside")

    await anyio.to_thread.run_sync(use)
    assert await values(bootstrap, made) == [b"%03d" % number for number in range(1000)]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("release", [KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.long)])
async def test_a_broker_that_is_killed_amid_a_transaction(release: str, tmp_path: Path, topic: str) -> None:
    """Leader, coordinator of the transaction and of the group in one; it comes back with what it had."""
    require_java()
    server = KafkaServer(release, tmp_path, heap="512m")
    server.format()
    await anyio.to_thread.run_sync(server.start)
    tp, group = TopicPartition(topic, 0), ConsumerGroupMetadata(f"group-{topic}")
    expected: list[bytes] = []
    try:
        async with Admin(bootstrap_servers=server.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        async with kclient.Producer(bootstrap_servers=server.bootstrap, transactional_id=topic) as producer:
            await producer.init_transactions()
            for commits in (True, False):
                await producer.begin_transaction()
                for part in ("before", "after"):
                    for number in range(100):
                        value = f"{commits}-{part}-{number}".encode()
                        await producer.send(topic, value, partition=0)
                        expected += [value] if commits else []
                    if part == "before":
                        await producer.flush()
                        await producer.send_offsets_to_transaction({tp: 5 if commits else 6}, group)
                        await anyio.to_thread.run_sync(server.stop, True)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(producer.commit_transaction if commits else producer.abort_transaction)
                    await anyio.to_thread.run_sync(server.start)
            async with producer.transaction():
                await producer.send(topic, b"last", partition=0)
        assert await values(server.bootstrap, topic) == [*expected, b"last"]
        async with consumer_of(server.bootstrap, topic) as consumer:
            committed = (await consumer.committed([tp]))[tp]
        assert committed is not None
        assert committed.offset == 5
    finally:
        await anyio.to_thread.run_sync(server.stop)


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_cluster_is_upgraded_under_the_producer(tmp_path: Path, topic: str) -> None:
    """From `transaction.version` 1 to 2; the producer learns of it when it connects anew."""
    require_java()
    server = KafkaServer(KAFKA_4, tmp_path, heap="512m")
    server.format("--feature", "transaction.version=1")
    await anyio.to_thread.run_sync(server.start)
    upgrade = ("--bootstrap-server", server.bootstrap, "upgrade", "--feature", "transaction.version=2")
    try:
        async with Admin(bootstrap_servers=server.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        async with kclient.Producer(bootstrap_servers=server.bootstrap, transactional_id=topic) as producer:
            await producer.init_transactions()
            for value in (b"a", b"b", b"c", b"d"):
                async with producer.transaction():
                    await producer.send(topic, value, partition=0)
                if value == b"b":
                    await anyio.to_thread.run_sync(server.run_tool, "org.apache.kafka.tools.FeatureCommand", *upgrade)
                    await anyio.to_thread.run_sync(server.stop)
                    await anyio.to_thread.run_sync(server.start)
            await producer.begin_transaction()
            await (await producer.send(topic, b"aborted", partition=0))
            await producer.abort_transaction()
        assert await values(server.bootstrap, topic) == [b"a", b"b", b"c", b"d"]
    finally:
        await anyio.to_thread.run_sync(server.stop)
