"""Members and start offsets of share groups at a gateway that is killed: what was answered holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kclient.admin import Admin, SharePartitionOffset
from kclient.errors import ErrorCode, GroupIdNotFoundError
from kclient.protocol import messages as m
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.wire_session import until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MEMBERS = 5


@pytest.fixture(params=["asyncio"])  # what differs on trio is not the group
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[GatewayProcess]:
    found = GatewayProcess(tmp_path / "data")
    found.start()
    try:
        yield found
    finally:
        found.stop(kill=True)


def beat(member: str, epoch: int) -> m.ShareGroupHeartbeatRequest:
    names = None if epoch else ["t"]
    return m.ShareGroupHeartbeatRequest(
        group_id="g", member_id=member, member_epoch=epoch, subscribed_topic_names=names
    )


async def test_members_and_offsets_outlive_it(process: GatewayProcess) -> None:
    epochs: dict[str, int] = {}
    async with Admin(bootstrap_servers=process.bootstrap) as admin:
        await admin.create_topic("t", 4)
        await admin.alter_share_group_offsets("g", {("t", 0): 0, ("t", 3): 7})
    for number in range(MEMBERS):
        async with wire_session(process.bootstrap) as session:
            joined = await session(beat(f"m{number}", 0))
            assert joined.error_code == 0
            epochs[f"m{number}"] = joined.member_epoch
        process.stop(kill=True)
        process.start()
        async with wire_session(process.bootstrap) as session:
            for member, epoch in epochs.items():
                answer = await until(
                    partial(session, beat(member, epoch)),
                    lambda answer: answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
                assert answer.error_code == 0
                epochs[member] = answer.member_epoch
            (group,) = (await session(m.ShareGroupDescribeRequest(group_ids=["g"]))).groups
            assert {each.member_id: each.member_epoch for each in group.members} == epochs
    async with Admin(bootstrap_servers=process.bootstrap) as admin:
        offsets = await admin.list_share_group_offsets("g")
        assert offsets[TopicPartition("t", 0)] == SharePartitionOffset(0, 0, 0)
        assert offsets[TopicPartition("t", 3)].start_offset == 7
        async with wire_session(process.bootstrap) as session:
            for member in epochs:
                assert (await session(beat(member, -1))).error_code == 0
        await admin.delete_groups(["g"])
        process.stop(kill=True)
        process.start()
    async with Admin(bootstrap_servers=process.bootstrap) as admin:
        assert await admin.list_share_group_offsets("g") == {}
        with pytest.raises(GroupIdNotFoundError):
            await admin.delete_share_group_offsets("g", ["t"])
