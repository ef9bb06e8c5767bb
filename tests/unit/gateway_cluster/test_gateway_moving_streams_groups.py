"""Streams groups go from one gateway of a store to another, with their topology, members and tasks (KIP-1071)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.coordination import CoordinatorType
from kclient.htp import open_store
from kclient.protocol import messages as m
from tests.gateway_wire import Wire
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

GROUPS = [f"s{number}" for number in range(12)]
SETTINGS = {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"}


def coordinators_of(gateway: Gateway) -> dict[str, int]:
    return {group: gateway.parts.leadership.coordinator_id(CoordinatorType.GROUP, group) for group in GROUPS}


async def beat(wire: Wire, group: str, epoch: int) -> Any:
    """A heartbeat, answered once the coordinator has read the group."""
    request = m.StreamsGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=epoch)
    if not epoch:
        changelog = m.StreamsGroupHeartbeatRequestTopicInfo(name=f"{group}-c-changelog")
        part = m.StreamsGroupHeartbeatRequestSubtopology(
            subtopology_id="0", source_topics=["t"], state_changelog_topics=[changelog]
        )
        request.topology = m.StreamsGroupHeartbeatRequestTopology(subtopologies=[part])
        request.rebalance_timeout_ms, request.process_id = 60_000, "p"
        request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
    with anyio.fail_after(20):
        while (answer := await wire(request, 0)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await anyio.sleep(0.005)
    return answer


@pytest.mark.slow
async def test_streams_groups_move_with_members_and_tasks(url: str) -> None:
    started = {"listen": "127.0.0.1:0", "config": SETTINGS}
    async with open_store(url) as store, joined(store, 1, **started) as (first, wire):
        await wire.create("t", 3)
        epochs: dict[str, int] = {}
        for group in GROUPS:
            answer = await beat(wire, group, 0)
            with anyio.fail_after(20):
                while answer.status:  # until the changelog has been made
                    assert answer.error_code == 0
                    answer = await beat(wire, group, answer.member_epoch)
                    await anyio.sleep(0.002)
            epochs[group] = answer.member_epoch
            assert [each.partitions for each in answer.active_tasks] == [[0, 1, 2]]
        async with joined(store, 2, **started) as (second, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            now = coordinators_of(first)
            assert now == coordinators_of(second)
            assert set(now.values()) == {1, 2}
            for group, node_id in now.items():
                right, wrong = (wire, other) if node_id == 1 else (other, wire)
                answer = await beat(right, group, epochs[group])
                assert (answer.error_code, answer.member_epoch) == (0, epochs[group])
                assert (answer.active_tasks, answer.status) == (None, [])
                assert (await beat(wrong, group, epochs[group])).error_code == ErrorCode.NOT_COORDINATOR
                (row,) = (await right(m.StreamsGroupDescribeRequest(group_ids=[group]), 0)).groups
                assert (row.group_state, len(row.members)) == ("Stable", 1)
        await until(lambda: len(first.parts.generations.current.newest.members) == 1)
        for group in GROUPS:
            assert (await beat(wire, group, epochs[group])).member_epoch == epochs[group]
            assert (await beat(wire, group, -1)).error_code == 0
