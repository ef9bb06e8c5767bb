"""Partitions that are moved by hand from one gateway to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import ElectionType, NewTopic
from kclient.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    KafkaError,
    NoReassignmentInProgressError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    ReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway import Gateway, cluster_generations
from kclient.gateway.assignment import Generation, Generations, chosen
from kclient.gateway.assignment.generations import MOST_KEPT
from kclient.gateway.rows.assignment import decode_generations, encode_generations
from kclient.gateway.topics.record import TopicRecord
from kclient.htp import open_store
from kclient.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.types import TopicPartition
from tests.gateway_wire import connect
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

COUNT = 24


@asynccontextmanager
async def serving(store: Any, node_id: int) -> AsyncIterator[Gateway]:
    async with Gateway(store, listen="127.0.0.1:0", config={"node.id": node_id}) as gateway:
        yield gateway


@asynccontextmanager
async def two(url: str) -> AsyncIterator[tuple[Any, Gateway, Gateway, kclient.Admin]]:
    """Two gateways that know each other, and an admin client."""
    async with open_store(url) as store, serving(store, 1) as one, serving(store, 2) as other:
        await until(lambda: all(len(members(each)) == 2 for each in (one, other)))
        async with kclient.Admin(bootstrap_servers=one.bootstrap) as admin:
            yield store, one, other, admin


def members(gateway: Gateway) -> Any:
    return gateway.parts.generations.current.newest.members


async def leaders(admin: kclient.Admin, topic: str = "t") -> dict[int, int]:
    found = (await admin.describe_topics([topic]))[topic]
    return {each.partition: each.leader.id for each in found.partitions if each.leader is not None}


async def led_by(admin: kclient.Admin, wanted: dict[int, int], topic: str = "t") -> None:
    """Until all brokers that are asked say so."""
    with anyio.fail_after(20):
        while await leaders(admin, topic) != wanted:
            await anyio.sleep(0.005)


def places(*indexes: int) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in indexes]


def moving(targets: dict[int, int]) -> AlterPartitionReassignmentsRequest:
    rows = [ReassignablePartition(partition_index=index, replicas=[target]) for index, target in targets.items()]
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=rows)])


@pytest.mark.slow
async def test_all_move_to_one_and_nothing_is_lost(url: str) -> None:
    async with two(url) as (_, one, _, admin):
        await admin.create_topic("t", COUNT)
        at_first = await leaders(admin)
        assert set(at_first.values()) == {1, 2}
        async with kclient.Producer(bootstrap_servers=one.bootstrap) as producer:
            for index in range(COUNT):
                await (await producer.send("t", b"a", partition=index))
            for target in (2, 1):
                await admin.alter_partition_reassignments({tp: [target] for tp in places(*range(COUNT))})
                await led_by(admin, dict.fromkeys(range(COUNT), target))
                for index in range(COUNT):
                    await (await producer.send("t", b"b%d" % target, partition=index))
        with anyio.fail_after(20):
            while await admin.list_partition_reassignments():
                await anyio.sleep(0.005)
        async with kclient.Consumer(bootstrap_servers=one.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(places(*range(COUNT)))
            found: dict[int, list[bytes | None]] = {index: [] for index in range(COUNT)}
            while sum(map(len, found.values())) < 3 * COUNT:
                for record in await consumer.poll(timeout=10):
                    found[record.partition].append(record.value)
        assert all(values == [b"a", b"b2", b"b1"] for values in found.values())
        await admin.alter_partition_reassignments({("t", index): [leader] for index, leader in at_first.items()})
        await led_by(admin, at_first)


async def test_what_was_moved_to_where_it_belonged_stays_whoever_joins(url: str) -> None:
    """As on Kafka: `kafka-reassign-partitions --verify` finds it there later, too."""
    async with two(url) as (store, one, other, admin):
        await admin.create_topic("t", COUNT)
        at_first = await leaders(admin)
        epoch = one.parts.leadership.leader(_topic(one), 0).epoch
        await admin.alter_partition_reassignments({("t", index): [leader] for index, leader in at_first.items()})
        assert one.parts.leadership.leader(_topic(one), 0).epoch == epoch, "its leader is the same"
        async with serving(store, 3) as third:
            await until(lambda: len(members(one)) == len(members(other)) == len(members(third)) == 3)
            await until(lambda: third.parts.topics.get("t") is not None)
            await led_by(admin, at_first)
            await admin.create_topic("new", COUNT)
            assert 3 in (await leaders(admin, "new")).values(), "of what nobody has moved it gets its part"
        await led_by(admin, at_first)


def _topic(gateway: Gateway) -> TopicRecord:
    record = gateway.parts.topics.get("t")
    assert record is not None
    return record


async def test_it_holds_whenever_that_gateway_is_there(url: str) -> None:
    async with (
        open_store(url) as store,
        serving(store, 1) as one,
        kclient.Admin(bootstrap_servers=one.bootstrap) as admin,
    ):
        await admin.create_topic("t", COUNT)
        async with serving(store, 2) as other:
            await until(lambda: len(members(one)) == len(members(other)) == 2)
            await admin.alter_partition_reassignments({tp: [2] for tp in places(*range(COUNT))})
            await led_by(admin, dict.fromkeys(range(COUNT), 2))
            elected = await admin.elect_leaders(ElectionType.PREFERRED, places(0, 99))
            assert isinstance(elected[places(0)[0]], ElectionNotNeededError)
            assert isinstance(elected[places(99)[0]], UnknownTopicOrPartitionError)
            assert await admin.elect_leaders(ElectionType.PREFERRED) == {}
        await led_by(admin, dict.fromkeys(range(COUNT), 1))
        moved = one.parts.generations.current.newest.moved
        unavailable = await admin.elect_leaders(ElectionType.PREFERRED)
        assert len(unavailable) == len(moved) == COUNT
        assert all(isinstance(error, PreferredLeaderNotAvailableError) for error in unavailable.values())
        async with serving(store, 3), serving(store, 2) as other:
            await until(lambda: len(members(one)) == len(members(other)) == 3)
            with anyio.fail_after(20):  # the third one may be asked, and hear of it later
                while not {(tp.partition, 2) for tp in unavailable} <= (await leaders(admin)).items():
                    await anyio.sleep(0.005)


async def test_it_holds_when_all_gateways_have_ended(url: str) -> None:
    async with open_store(url) as store:
        async with serving(store, 1) as one, kclient.Admin(bootstrap_servers=one.bootstrap) as admin:
            await admin.create_topic("t", COUNT)
            async with serving(store, 2) as other:
                await until(lambda: len(members(one)) == len(members(other)) == 2)
                await admin.alter_partition_reassignments({tp: [2] for tp in places(*range(COUNT))})
        async with serving(store, 1) as one, serving(store, 2) as other:
            await until(lambda: len(members(one)) == len(members(other)) == 2)
            async with kclient.Admin(bootstrap_servers=one.bootstrap) as admin:
                await led_by(admin, dict.fromkeys(range(COUNT), 2))


async def test_the_last_move_counts_at_whichever_gateway_it_was_asked_for(url: str) -> None:
    async with two(url) as (_, one, other, admin):
        await admin.create_topic("t", 1)
        (there,) = (await leaders(admin)).values()
        at_one, at_other = connect(one), connect(other)
        await until(lambda: other.parts.topics.get("t") is not None)
        for _ in range(5):
            for wire, target in ((at_one, 3 - there), (at_other, there)):  # which may not have heard of the first
                answer = await wire(moving({0: target}), 0)
                assert [row.error_code for topic in answer.responses for row in topic.partitions] == [0]
        await until(
            lambda: all(set(each.parts.generations.current.newest.moved.values()) == {there} for each in (one, other))
        )
        await at_one.aclose()
        await at_other.aclose()


@pytest.mark.slow
async def test_who_is_away_gets_nothing_back_that_was_moved_meanwhile(url: str) -> None:
    async with (
        open_store(url) as store,
        serving(store, 1) as one,
        serving(store, 3) as third,
        kclient.Admin(bootstrap_servers=one.bootstrap) as admin,
    ):
        await admin.create_topic("t", COUNT)
        async with serving(store, 2) as other:
            await until(lambda: len(members(one)) == len(members(other)) == len(members(third)) == 3)
            await admin.alter_partition_reassignments({tp: [2] for tp in places(*range(COUNT // 2))})
        await until(lambda: len(members(one)) == len(members(third)) == 2)
        meanwhile = await leaders(admin)  # also of what belongs to the second one by itself
        await admin.alter_partition_reassignments({("t", index): [at] for index, at in meanwhile.items()})
        async with serving(store, 2) as other:
            await until(lambda: len(members(one)) == len(members(other)) == len(members(third)) == 3)
            await led_by(admin, meanwhile)


@pytest.mark.parametrize(
    ("replicas", "expected", "told"),
    [
        (None, NoReassignmentInProgressError, "by itself"),
        ([], InvalidReplicaAssignmentError, "empty replica list"),
        ([2, 2], InvalidReplicaAssignmentError, "twice"),
        ([7], InvalidReplicaAssignmentError, "includes broker 7"),
        ([1, 2], InvalidReplicaAssignmentError, "one replica"),
    ],
)
async def test_what_cannot_be_is_refused(
    url: str, replicas: list[int] | None, expected: type[KafkaError], told: str
) -> None:
    async with two(url) as (_, one, _, admin):
        await admin.create_topic("t", 1)
        before = one.parts.generations.current
        with pytest.raises(expected, match=told):
            await admin.alter_partition_reassignments({places(0)[0]: replicas})
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.alter_partition_reassignments({("t", 1): [2]})
        with pytest.raises(InvalidReplicationFactorError):
            await admin.alter_partition_reassignments({("t", 0): [1, 2]}, allow_replication_factor_change=False)
        assert one.parts.generations.current is before


async def test_partitions_that_share_a_topic_move_together(url: str) -> None:
    async with open_store(url) as store:
        config = {"node.id": 1}
        async with (
            Gateway(store, listen="127.0.0.1:0", mapping="virtual", config=config) as one,
            serving(store, 2) as other,
            kclient.Admin(bootstrap_servers=one.bootstrap) as admin,
        ):
            await until(lambda: len(members(one)) == len(members(other)) == 2)
            await admin.create_topics([NewTopic("t", 4)])
            (before,) = set((await leaders(admin)).values())
            with pytest.raises(InvalidReplicaAssignmentError, match="virtual"):
                await admin.alter_partition_reassignments({("t", 0): [3 - before], ("t", 1): [before]})
            await led_by(admin, dict.fromkeys(range(4), 3 - before))  # the first one was right


async def test_no_more_are_moved_than_all_can_know(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_generations, "MOST_MOVED", 4)
    async with two(url) as (_, _, _, admin):
        for topic in ("gone", "t"):
            await admin.create_topic(topic, 4 * COUNT)
            away = [index for index, leader in (await leaders(admin, topic)).items() if leader == 1]
            await admin.alter_partition_reassignments({(topic, index): [2] for index in away[:4]})
            if topic == "gone":
                await admin.delete_topics([topic])  # what was moved of it is forgotten
        with pytest.raises(PolicyViolationError, match="moved by hand"):
            await admin.alter_partition_reassignments({("t", away[4]): [2]})
        await admin.alter_partition_reassignments({("t", away[0]): [1]})  # where it belongs by itself
        await admin.alter_partition_reassignments({("t", away[4]): [2]})


@pytest.mark.slow
async def test_no_more_are_begun_while_some_gateway_hands_nothing_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(url) as (_, one, other, admin):
        await admin.create_topic("t", 1)
        goes_on, hand_over = anyio.Event(), other.parts.hand_over
        original = hand_over._hand_over

        async def hangs(number: int) -> None:
            await goes_on.wait()
            await original(number)

        monkeypatch.setattr(hand_over, "_hand_over", hangs)
        with pytest.raises(ReassignmentInProgressError, match=r"node\.id=2"):
            for step in range(MOST_KEPT):
                await admin.alter_partition_reassignments({places(0)[0]: [1 + step % 2]})
        kept = one.parts.generations.current.kept
        assert len(kept) == MOST_KEPT // 2
        goes_on.set()
        with anyio.fail_after(20):
            await hand_over.done()
        for step in range(10):
            await admin.alter_partition_reassignments({places(0)[0]: [1 + step % 2]})
        assert len(one.parts.generations.current.kept) < MOST_KEPT // 2


def test_the_row_says_what_was_moved() -> None:
    both = {1: 1, 2: 1}
    first = Generations([Generation(5, {1: 1})])
    assert b'"format":1' in encode_generations(first).replace(b" ", b"")
    moved = first.followed_by(both).followed_by(both, moved={7: 2, 9: 1}).followed_by(both, moved={9: 2})
    again = decode_generations(encode_generations(moved))
    assert again.kept == moved.kept
    assert [dict(each.moved) for each in again.kept] == [{}, {}, {7: 2, 9: 1}, {9: 2}]


def test_a_unit_that_was_moved_belongs_to_that_gateway_while_it_is_there() -> None:
    members = {1: 1, 2: 1, 3: 1}
    unit = next(each for each in range(100) if chosen(each, members) == 1)
    at_first = Generations([Generation(5, members)])
    moved = at_first.followed_by(members, moved={unit: 3})
    assert moved.leader(unit) == (3, 6)
    assert moved.former(unit) == {(1, 1): 6}
    without = moved.followed_by({1: 1, 2: 1})
    assert without.leader(unit).node_id in (1, 2)
    back = without.followed_by({1: 1, 2: 1, 3: 9})
    assert back.leader(unit) == (3, 8)
