"""Groups, and what is left half done with topics, go from one gateway of a store to another."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.assignment.rendezvous import chosen
from kclient.gateway.coordination import CoordinatorType, partition_for
from kclient.gateway.membership import lease_looks
from kclient.gateway.rows.keys import INTENTS, intent_key
from kclient.gateway.rows.topics import IntentRow
from kclient.gateway.topics.names import CONSUMER_OFFSETS
from kclient.gateway.unit import Unit
from kclient.htp import open_store
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

GROUPS = [f"g{number}" for number in range(20)]


def coordinators_of(gateway: Gateway) -> dict[str, int]:
    return {group: gateway.parts.leadership.coordinator_id(CoordinatorType.GROUP, group) for group in GROUPS}


async def member_of(wire: Wire, group: str) -> str:
    """Be the only member of a group, which has got its assignment."""
    protocols = [m.JoinGroupRequestProtocol(name="range", metadata=b"subscribed")]
    request = m.JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
        protocols=protocols,
    )  # fmt: skip
    answer = await wire(request, 9)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    request.member_id = answer.member_id
    answer = await wire(request, 9)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    sync = m.SyncGroupRequest(
        group_id=group, generation_id=1, member_id=answer.member_id, protocol_type="consumer", protocol_name="range",
        assignments=[m.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"everything")],
    )  # fmt: skip
    assert (await wire(sync, 5)).error_code == 0
    member_id: str = answer.member_id
    return member_id


async def heartbeat(wire: Wire, group: str, member_id: str) -> int:
    """What a coordinator says to a member, once it has read the group."""
    with anyio.fail_after(20):
        while True:
            code = (await wire(m.HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id), 4)).error_code
            if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return int(code)
            await anyio.sleep(0.005)


@pytest.mark.slow
async def test_members_and_offsets_stay_where_groups_move(url: str) -> None:
    config = {"group.initial.rebalance.delay.ms": 0}
    async with open_store(url) as store, joined(store, 1, config=config) as (first, wire):
        await wire.create("t")
        members = {group: await member_of(wire, group) for group in GROUPS}
        for number, group in enumerate(GROUPS):
            assert await wire.commit(f"{group}-offsets", "t", number) == 0
        async with joined(store, 2, config=config) as (second, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            now = coordinators_of(first)
            assert now == coordinators_of(second)
            assert set(now.values()) == {1, 2}
            for group, node_id in now.items():
                right, wrong = (wire, other) if node_id == 1 else (other, wire)
                assert await heartbeat(right, group, members[group]) == 0
                assert await heartbeat(wrong, group, members[group]) == ErrorCode.NOT_COORDINATOR
            await until(lambda: not first.parts.groups.table.loading and not second.parts.groups.table.loading)
            for gateway, node_id in ((first, 1), (second, 2)):
                there = {group for group in gateway.parts.groups.table.groups if not group.endswith("-offsets")}
                assert there == {group for group, coordinator in now.items() if coordinator == node_id}
            for number, group in enumerate(GROUPS):
                name = f"{group}-offsets"
                right = {1: wire, 2: other}[first.parts.leadership.coordinator_id(CoordinatorType.GROUP, name)]
                assert await right.committed(name, "t") == number
                assert await right.commit(name, "t", number + 100) == 0
        await until(lambda: len(first.parts.generations.current.newest.members) == 1)
        await until(lambda: not first.parts.groups.table.loading)
        for number, group in enumerate(GROUPS):
            assert await heartbeat(wire, group, members[group]) == 0
            assert await wire.committed(f"{group}-offsets", "t") == number + 100


async def beat(wire: Wire, group: str, epoch: int, owned: list[m.ConsumerGroupHeartbeatRequestTopicPartitions]) -> Any:
    """What a coordinator says to the member `m` of a consumer group, once it has read the group."""
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="m", member_epoch=epoch, rebalance_timeout_ms=30_000, subscribed_topic_names=["t"],
        topic_partitions=owned,
    )  # fmt: skip
    with anyio.fail_after(20):
        while True:
            answer = await wire(request, 1)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer
            await anyio.sleep(0.005)


@pytest.mark.slow
async def test_consumer_groups_move_with_their_epochs(url: str) -> None:
    """Their members go on with what they have, and nobody works out another target."""
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", 2)
        owned: dict[str, list[m.ConsumerGroupHeartbeatRequestTopicPartitions]] = {}
        for group in GROUPS:
            answer = await beat(wire, group, 0, [])
            assert (answer.error_code, answer.member_epoch) == (0, 1)
            owned[group] = [
                m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
                for each in answer.assignment.topic_partitions
            ]
        async with joined(store, 2) as (_, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            now = coordinators_of(first)
            assert set(now.values()) == {1, 2}
            for group, node_id in now.items():
                right, wrong = (wire, other) if node_id == 1 else (other, wire)
                answer = await beat(right, group, 1, owned[group])
                assert (answer.error_code, answer.member_epoch) == (0, 1)
                assert [each.partitions for each in answer.assignment.topic_partitions] == [[0, 1]]
                assert (await beat(wrong, group, 1, owned[group])).error_code == ErrorCode.NOT_COORDINATOR
            assert await other.grow("t", 3) == 0
            for group, node_id in now.items():
                right = wire if node_id == 1 else other
                with anyio.fail_after(20):
                    while (answer := await beat(right, group, 1, owned[group])).member_epoch != 2:
                        await anyio.sleep(0.01)
                assert [each.partitions for each in answer.assignment.topic_partitions] == [[0, 1, 2]]
        await until(lambda: len(first.parts.generations.current.newest.members) == 1)
        for group in GROUPS:
            assert (await beat(wire, group, 2, owned[group])).member_epoch == 2


@pytest.mark.slow
async def test_commits_of_groups_that_stay_meet_other_generations(url: str) -> None:
    """They are made all the same; of one that goes, the coordinator has to be looked for."""
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t")
        offsets = first.parts.topics.internal(CONSUMER_OFFSETS)
        assert offsets is not None
        units = {f"g{number}": Unit(offsets.topic_id, partition_for(f"g{number}", 50)) for number in range(40)}
        staying = [
            group for group, unit in units.items() if all(chosen(unit.fingerprint, [1, other]) == 1 for other in (2, 3))
        ]
        going_on = True

        async def commit(group: str) -> None:
            own, offset = connect(first), 0
            while going_on:
                assert await own.commit(group, "t", offset) == 0
                offset += 1
            await own.aclose()

        async with anyio.create_task_group() as tasks:
            for group in staying:
                tasks.start_soon(commit, group)
            for number in (2, 3):
                async with joined(store, number):
                    await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            going_on = False


@pytest.mark.slow
async def test_what_a_gateway_has_left_is_finished_by_who_evicts_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what one that lives has under way is left alone."""
    monkeypatch.setattr(lease_looks, "LOOK_S", 0.02)
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        second = Gateway(store, listen=None, config={"node.id": 2})
        await second.start()
        run = second.parts.identity.run
        await store.manager.create_domain("half")
        await store.manager.commit({intent_key("half"): IntentRow("domain", bytes(16), run).encode()})
        async with joined(store, 3):
            assert intent_key("half") in await scan_all(store.manager, INTENTS), "its gateway lives"
            second._supervisor.fail(RuntimeError("it has died"))
            await second.close(0.0)
            await until(lambda: 2 not in first.parts.generations.current.newest.members)
            with anyio.fail_after(20):
                while await scan_all(store.manager, INTENTS):
                    await anyio.sleep(0.01)
            assert (await wire.create("half")).error_code == 0
            assert (await wire.produce("half", batch_of(b"a"))).error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.slow
async def test_topics_are_made_and_removed_by_any_gateway(url: str) -> None:
    async with (
        open_store(url) as store,
        joined(store, 1) as (first, wire),
        joined(store, 2) as (second, other),
    ):
        await until(lambda: len(first.parts.generations.current.newest.members) == 2)
        for life in range(3):
            maker, remover = (wire, other) if life % 2 else (other, wire)
            assert (await maker.create("t", 4)).error_code == 0
            await until(lambda: "t" in first.parts.topics and "t" in second.parts.topics)
            partitions = (await wire.metadata("t")).topics[0].partitions
            for row in partitions:
                leader = {1: wire, 2: other}[row.leader_id]
                assert (await leader.produce("t", batch_of(b"%d" % life), row.partition_index)).base_offset == 0
                assert await leader.values("t", 0, row.partition_index) == [b"%d" % life]
            assert await remover.delete("t") == 0
            await until(lambda: "t" not in first.parts.topics and "t" not in second.parts.topics)
