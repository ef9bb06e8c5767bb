"""Listings by all brokers: one that does not answer keeps nobody from hearing of the others, and is told of."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import anyio
import pytest

from kclient.admin import Admin, Listing, PartialFailureError, ReplicaLogDirInfo
from kclient.errors import (
    BrokerIdNotRegisteredError,
    ClusterAuthorizationError,
    ErrorCode,
    KafkaStorageError,
    KafkaTimeoutError,
    LogDirNotFoundError,
)
from kclient.protocol.messages import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ListedGroup,
    ListGroupsResponse,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, administering

pytestmark = pytest.mark.anyio

VERSIONS = {
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.LIST_TRANSACTIONS: (0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
}


def cluster(silent: Collection[int] = ()) -> FakeKafka:
    """Three brokers: each has a group, a transactional id and log directories; of these some of them tell nothing."""
    kafka = FakeKafka({"t": 3}, 3, versions={**KRAFT, **VERSIONS})

    def list_groups(broker: FakeBroker, request: object) -> ListGroupsResponse:
        name = f"g{broker.node_id}"
        return ListGroupsResponse(groups=[ListedGroup(group_id=name, protocol_type="", group_state="Empty")])

    def list_transactions(broker: FakeBroker, request: object) -> ListTransactionsResponse:
        state = ListTransactionsResponseTransactionState(
            transactional_id=f"x{broker.node_id}", producer_id=broker.node_id, transaction_state="Ongoing"
        )
        return ListTransactionsResponse(transaction_states=[state])

    def describe_log_dirs(broker: FakeBroker, request: Any) -> DescribeLogDirsResponse:
        found = [DescribeLogDirsPartition(partition_index=0, partition_size=10 * broker.node_id, offset_lag=0)]
        moving = [DescribeLogDirsPartition(partition_index=0, partition_size=1, offset_lag=3, is_future_key=True)]
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(log_dir="/b", topics=[DescribeLogDirsTopic(name="t", partitions=moving)]),
                DescribeLogDirsResult(
                    log_dir="/a", topics=[DescribeLogDirsTopic(name="t", partitions=found)], total_bytes=9,
                    usable_bytes=5, is_cordoned=True,
                ),
                DescribeLogDirsResult(log_dir="/broken", error_code=ErrorCode.KAFKA_STORAGE_ERROR),
            ]
        )  # fmt: skip

    def unless_silent(answer: Callable[[FakeBroker, Any], Any], broker: FakeBroker, request: object) -> Any:
        return anyio.sleep_forever() if broker.node_id in silent else answer(broker, request)

    kafka.scripts[ApiKey.LIST_GROUPS] = partial(unless_silent, list_groups)
    kafka.scripts[ApiKey.LIST_TRANSACTIONS] = partial(unless_silent, list_transactions)
    kafka.scripts[ApiKey.DESCRIBE_LOG_DIRS] = partial(unless_silent, describe_log_dirs)
    return kafka


async def groups(admin: Admin, timeout: float) -> tuple[list[str], Listing[Any]]:
    found = await admin.list_groups(timeout=timeout)
    return [group.group_id for group in found], found


async def transactions(admin: Admin, timeout: float) -> tuple[list[str], Listing[Any]]:
    found = await admin.list_transactions(timeout=timeout)
    return [row.transactional_id for row in found], found


async def log_dirs(admin: Admin, timeout: float) -> tuple[list[str], Listing[Any]]:
    found = await admin.describe_log_dirs(timeout=timeout)
    return [f"d{each.broker_id}" for each in found if each.path == "/a"], found


@pytest.mark.parametrize(("listing", "letter"), [(groups, "g"), (transactions, "x"), (log_dirs, "d")])
async def test_one_broker_that_hangs_fails_no_listing(
    listing: Any, letter: str, caplog: pytest.LogCaptureFixture
) -> None:
    silent = set[int]()
    async with cluster(silent) as kafka, administering(kafka) as admin:
        names, found = await listing(admin, 20)
        assert names == [f"{letter}{number}" for number in (1, 2, 3)]
        assert found.errors == {}
        assert found.complete() is found
        silent.add(2)
        with caplog.at_level(logging.WARNING, "kclient.admin"), anyio.fail_after(10):
            names, found = await listing(admin, 0.5)
        assert names == [f"{letter}{number}" for number in (1, 3)]
        assert list(found.errors) == [2]
        assert "broker 2 has not answered, what it knows is left out" in caplog.text
        with pytest.raises(KafkaTimeoutError, match=kafka.brokers[2].host):
            found.complete()
        silent.add(1)
        names, found = await listing(admin, 0.5)
        assert (names, list(found.errors)) == ([f"{letter}3"], [1, 2])
        with pytest.raises(PartialFailureError, match="failed for 2: broker 1"):
            found.complete()


@pytest.mark.parametrize("listing", [groups, transactions, log_dirs])
async def test_a_listing_that_nobody_answers_fails(listing: Any) -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        await listing(admin, 20)
        for broker in kafka.brokers.values():
            broker.pause()
        with anyio.fail_after(10), pytest.raises(KafkaTimeoutError, match=r"did not succeed within 0\.3 s"):
            await listing(admin, 0.3)


async def test_a_refusal_for_good_fails_a_listing() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        answer = kafka.scripts[ApiKey.LIST_GROUPS]

        def refuse(broker: FakeBroker, request: object) -> Any:
            if broker.node_id == 2:
                return ListGroupsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return answer(broker, request)

        kafka.scripts[ApiKey.LIST_GROUPS] = refuse
        with anyio.fail_after(10), pytest.raises(ClusterAuthorizationError):
            await admin.list_groups(timeout=30)


async def test_who_was_not_ready_is_asked_again_and_nobody_else() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        answer = kafka.scripts[ApiKey.LIST_GROUPS]
        asked: list[int] = []

        def late(broker: FakeBroker, request: object) -> Any:
            asked.append(broker.node_id)
            if broker.node_id == 2 and asked.count(2) < 3:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return answer(broker, request)

        kafka.scripts[ApiKey.LIST_GROUPS] = late
        found = await admin.list_groups()
        assert ([group.group_id for group in found], found.errors) == (["g1", "g2", "g3"], {})
        assert sorted(asked) == [1, 2, 2, 2, 3]


async def test_a_listing_that_has_used_up_its_retries_tells_why() -> None:
    async with cluster() as kafka, administering(kafka, retries=2) as admin:
        answer = kafka.scripts[ApiKey.LIST_GROUPS]

        def never(broker: FakeBroker, request: object) -> Any:
            if broker.node_id == 2:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return answer(broker, request)

        kafka.scripts[ApiKey.LIST_GROUPS] = never
        found = await admin.list_groups()
        assert [group.group_id for group in found] == ["g1", "g3"]
        assert [error.code for error in found.errors.values()] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_log_directories() -> None:
    silent = set[int]()
    async with cluster(silent) as kafka, administering(kafka) as admin:
        found = await admin.describe_log_dirs([3, 1, 3])
        assert [(each.broker_id, each.path) for each in found] == [
            (1, "/a"), (1, "/b"), (1, "/broken"), (3, "/a"), (3, "/b"), (3, "/broken")
        ]  # fmt: skip
        first, moving, broken = found[:3]
        assert (first.total_bytes, first.usable_bytes, first.is_cordoned, first.size) == (9, 5, True, 10)
        assert (moving.total_bytes, moving.usable_bytes, moving.is_cordoned) == (None, None, False)
        assert moving.replicas[TopicPartition("t", 0)].is_future
        assert isinstance(broken.error, KafkaStorageError)
        there = await admin.describe_replica_log_dirs([("t", 0, 2), ("t", 1, 2)])
        assert there == {("t", 0, 2): ReplicaLogDirInfo("/a", 0, "/b", 3), ("t", 1, 2): ReplicaLogDirInfo()}
        with pytest.raises(BrokerIdNotRegisteredError, match="the id 7"):
            await admin.describe_log_dirs([7, 1])
        silent.add(3)
        with pytest.raises(KafkaTimeoutError, match="no answer"):
            await admin.describe_replica_log_dirs([("t", 0, 2), ("t", 0, 3)], timeout=0.5)


async def test_replicas_are_moved_at_all_brokers_and_each_refusal_is_told() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        asked: list[tuple[int, str, str, list[int]]] = []

        def alter(broker: FakeBroker, request: Any) -> Any:
            if broker.node_id == 3:
                return anyio.sleep_forever()
            topics = []
            for directory in request.dirs:
                for topic in directory.topics:
                    asked.append((broker.node_id, directory.path, topic.name, list(topic.partitions)))
                    code = ErrorCode.LOG_DIR_NOT_FOUND if directory.path == "/c" else 0
                    rows = [
                        AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                        for index in topic.partitions
                    ]
                    topics.append(AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=rows))
            return AlterReplicaLogDirsResponse(results=topics)

        kafka.scripts[ApiKey.ALTER_REPLICA_LOG_DIRS] = alter
        await admin.alter_replica_log_dirs({("t", 0, 1): "/a", ("t", 1, 1): "/a", ("t", 0, 2): "/b"})
        assert sorted(asked) == [(1, "/a", "t", [0, 1]), (2, "/b", "t", [0])]
        with pytest.raises(LogDirNotFoundError, match="Replica t-0 at broker 1"):
            await admin.alter_replica_log_dirs({("t", 0, 1): "/c", ("t", 0, 2): "/b"})
        asked.clear()
        with pytest.raises(PartialFailureError) as caught:
            await admin.alter_replica_log_dirs(
                {("t", 0, 1): "/c", ("t", 0, 2): "/b", ("t", 0, 3): "/b", ("t", 0, 7): "/b"}, timeout=0.5
            )
        told = {name: type(error) for name, error in caught.value.failures.items()}
        assert told == {
            "t-0 at broker 1": LogDirNotFoundError,
            "t-0 at broker 3": KafkaTimeoutError,
            "t-0 at broker 7": BrokerIdNotRegisteredError,
        }
        assert (2, "/b", "t", [0]) in asked


def test_a_listing_is_a_list() -> None:
    listing = Listing("Listing", [1, 2], {3: KafkaTimeoutError("it hangs")})
    again = pickle.loads(pickle.dumps(listing))
    assert listing == again == [1, 2]
    assert list(again.errors) == [3]
    with pytest.raises(KafkaTimeoutError, match="it hangs"):
        again.complete()
    assert Listing().complete() == []
