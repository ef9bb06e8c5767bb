"""Share groups go from one gateway of a store to another, with their members and start offsets (KIP-932)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.coordination import CoordinatorType
from kclient.htp import open_store
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage
from tests.gateway_wire import Wire, batch_of
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

GROUPS = [f"s{number}" for number in range(12)]
PARTITIONS = 6


def coordinators_of(gateway: Gateway) -> dict[str, int]:
    return {group: gateway.parts.leadership.coordinator_id(CoordinatorType.GROUP, group) for group in GROUPS}


async def ask(wire: Wire, request: ApiMessage, version: int) -> Any:
    """What a coordinator says, once it has read the group."""
    with anyio.fail_after(20):
        while True:
            answer = await wire(request, version)
            row = answer.groups[0] if isinstance(request, m.DescribeShareGroupOffsetsRequest) else answer
            if row.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return row
            await anyio.sleep(0.005)


async def beat(wire: Wire, group: str, epoch: int) -> Any:
    request = m.ShareGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=epoch)
    if not epoch:
        request.subscribed_topic_names = ["t"]
    return await ask(wire, request, 1)


async def start_at(wire: Wire, group: str, offset: int) -> int:
    rows = [
        m.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
        for number in range(PARTITIONS)
    ]
    topic = m.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=rows)
    answer = await ask(wire, m.AlterShareGroupOffsetsRequest(group_id=group, topics=[topic]), 0)
    return int(answer.error_code or max(each.error_code for row in answer.responses for each in row.partitions))


async def offsets(wire: Wire, group: str) -> dict[int, tuple[int, int]]:
    """Start offset and lag of each partition."""
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    row = await ask(wire, m.DescribeShareGroupOffsetsRequest(groups=[asked]), 1)
    assert row.error_code == 0
    return {each.partition_index: (each.start_offset, each.lag) for topic in row.topics for each in topic.partitions}


@pytest.mark.slow
async def test_share_groups_move_with_members_and_offsets(url: str) -> None:
    async with open_store(url) as store, joined(store, 1, listen="127.0.0.1:0") as (first, wire):
        await wire.create("t", PARTITIONS)
        assert (await wire.produce("t", batch_of(b"a", b"b", b"c"))).error_code == 0  # to partition 0
        for number, group in enumerate(GROUPS):
            assert await start_at(wire, group, 1) == 0
            answer = await beat(wire, group, 0)
            assert (answer.error_code, answer.member_epoch) == (0, 2), number
        async with joined(store, 2, listen="127.0.0.1:0") as (second, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            now = coordinators_of(first)
            assert now == coordinators_of(second)
            assert set(now.values()) == {1, 2}
            for group, node_id in now.items():
                right, wrong = (wire, other) if node_id == 1 else (other, wire)
                answer = await beat(right, group, 2)
                assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 2, None)
                assert (await beat(wrong, group, 2)).error_code == ErrorCode.NOT_COORDINATOR
                assert await start_at(right, group, 2) == ErrorCode.NON_EMPTY_GROUP
                # whoever leads them
                assert await offsets(right, group) == {0: (1, 2), **dict.fromkeys(range(1, PARTITIONS), (1, -1))}
            assert await other.grow("t", PARTITIONS + 1) == 0
            for group, node_id in now.items():
                right = wire if node_id == 1 else other
                with anyio.fail_after(20):
                    while (answer := await beat(right, group, 2)).member_epoch != 3:
                        await anyio.sleep(0.01)
                (topic,) = answer.assignment.topic_partitions
                assert topic.partitions == list(range(PARTITIONS + 1))
        await until(lambda: len(first.parts.generations.current.newest.members) == 1)
        for group in GROUPS:
            assert (await beat(wire, group, 3)).member_epoch == 3
            assert (await beat(wire, group, -1)).error_code == 0
            assert await start_at(wire, group, 2) == 0
            assert (await offsets(wire, group))[0] == (2, 1)
