"""Live groups that go over from the classic protocol to that of consumer groups and back (KIP-848)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode, GroupIdNotFoundError
from kclient.htp.errors import StorageFullError
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kclient.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kclient.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscriptionTopicPartition,
)
from tests.unit.gateway_groups.harness import Harness, coordinator, fresh_name, reset
from tests.unit.gateway_groups.test_assigned_members import assigned, beat, joining

pytestmark = pytest.mark.anyio

ALL = list(range(10))


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def metadata(owned: list[int]) -> bytes:
    partitions = [ConsumerProtocolSubscriptionTopicPartition(topic="a", partitions=owned)] if owned else []
    return encode_embedded(ConsumerProtocolSubscription(topics=["a"], owned_partitions=partitions), 3)


def assignment(*numbers: int, user_data: bytes | None = None) -> bytes:
    partitions = [ConsumerProtocolAssignmentTopicPartition(topic="a", partitions=list(numbers))]
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=partitions, user_data=user_data), 1)


class Old:
    """A client of the classic protocol that does as it is told."""

    def __init__(self, box: Harness) -> None:
        self.box = box
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []

    async def join(self, **fields: Any) -> Any:
        protocols = [JoinGroupRequestProtocol(name="cooperative-sticky", metadata=metadata(self.owned))]
        fields = {"session_timeout_ms": 60_000, "protocols": protocols, **fields}
        joined = await self.box.join(member_id=self.member_id, version=7, **fields)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return await self.join(**fields)
        if not joined.error_code:
            self.member_id, self.generation = joined.member_id, joined.generation_id
        return joined

    async def sync(self, **fields: Any) -> int:
        request = SyncGroupRequest(
            group_id="g",
            member_id=self.member_id,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            **fields,
        )
        answer = await self.box.ask(request, 5)
        if not answer.error_code:
            told = decode_embedded(ConsumerProtocolAssignment, answer.assignment)
            self.owned = sorted(n for each in told.assigned_partitions for n in each.partitions)
        return int(answer.error_code)

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id="g", member_id=self.member_id, generation_id=self.generation)
        return int((await self.box.ask(request)).error_code)

    async def catch_up(self) -> None:
        """Join as often as heartbeats ask for it."""
        while await self.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS:
            assert (await self.join()).error_code == 0
            assert await self.sync() in (0, ErrorCode.REBALANCE_IN_PROGRESS)


async def alone(box: Harness, *numbers: int, **told: Any) -> Old:
    """A classic group with one member, to which its leader, itself, has assigned these."""
    old = Old(box)
    joined = await old.join()
    assert joined.leader == joined.member_id
    mine = SyncGroupRequestAssignment(member_id=old.member_id, assignment=assignment(*numbers, **told))
    assert await old.sync(assignments=[mine]) == 0
    return old


async def kind(box: Harness) -> tuple[str, str]:
    group = box.groups.table.groups["g"].group
    return group.type, group.shown_state


async def test_there_and_back(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        old = await alone(box, *ALL)
        assert old.owned == ALL
        new = await box.ask(joining("new"))
        assert (new.error_code, new.member_epoch, assigned(new)) == (0, old.generation + 1, {})
        assert await kind(box) == ("consumer", "Reconciling")
        assert await old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert (await old.join()).generation_id == 1  # it has to give some up first
        assert await old.sync() == 0
        assert old.owned == [0, 1, 2, 3, 4]
        await old.catch_up()
        assert old.generation == 2
        answer = await box.ask(beat("new", 2, {}))
        assert assigned(answer) == {b"a" * 16: [5, 6, 7, 8, 9]}
        assert await kind(box) == ("consumer", "Stable")
        (group,) = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert {each.member_id: each.member_type for each in group.members} == {old.member_id: 0, "new": 1}

        async def commit(generation: int) -> int:
            row = OffsetCommitRequestPartition(partition_index=1, committed_offset=7)
            topic = OffsetCommitRequestTopic(name="a", partitions=[row])
            request = OffsetCommitRequest(
                group_id="g", member_id=old.member_id, generation_id_or_member_epoch=generation, topics=[topic]
            )
            return int((await box.ask(request, 8)).topics[0].partitions[0].error_code)

        assert await commit(old.generation) == 0
        assert await commit(old.generation + 1) == ErrorCode.ILLEGAL_GENERATION

        await box.groups.aclose()  # and a restart in the middle of it
        box.renew()
        await box.groups.start()
        assert await kind(box) == ("consumer", "Stable")
        assert await old.heartbeat() == 0
        assert (await box.ask(beat("new", 2))).error_code == 0

        assert (await box.ask(beat("new", -1))).error_code == 0
        assert await kind(box) == ("classic", "PreparingRebalance")
        assert await old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await old.join()
        assert (joined.error_code, joined.leader) == (0, old.member_id)
        assert joined.generation_id > 2
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        assert (await kind(box))[0] == "classic"


async def test_classic_members_join_a_consumer_group(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        await box.ask(joining("new"))
        old = Old(box)
        assert (await old.join()).generation_id == 2
        assert await old.sync() == 0
        assert old.owned == []
        one = await box.ask(beat("new", 1, {b"a" * 16: ALL}))
        assert assigned(one) == {b"a" * 16: [0, 1, 2, 3, 4]}
        assert (await box.ask(beat("new", 1, {b"a" * 16: [0, 1, 2, 3, 4]}))).member_epoch == 2
        await old.catch_up()
        assert old.owned == [5, 6, 7, 8, 9]
        wrong = await box.join(protocol_type="connect")
        assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        garbage = [JoinGroupRequestProtocol(name="cooperative-sticky", metadata=b"\0")]
        assert (await box.join(protocols=garbage)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        stranger = Old(box)
        stranger.member_id, stranger.generation = "nobody", 2
        assert await stranger.heartbeat() == await stranger.sync() == ErrorCode.UNKNOWN_MEMBER_ID
        leave = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequestMember(member_id=old.member_id)])
        assert (await box.ask(leave)).members[0].error_code == 0
        assert await kind(box) == ("consumer", "Reconciling")


async def test_who_does_not_join_again_is_removed(store: str) -> None:
    """Its session goes on, but the others wait for its partitions."""
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        old = await alone(box, *ALL)
        await box.ask(joining("new"))
        assert await old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        group = box.groups.table.groups["g"].group
        now = box.clock.now()
        for seconds in range(1, 30, 2):
            box.groups.table.advance("g", now + seconds)
            assert await old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        box.groups.table.advance("g", now + 31)
        assert group.shown_state in ("Reconciling", "Assigning")
        assert await old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
async def test_no_group_goes_over_where_that_is_forbidden(store: str, policy: str) -> None:
    async with coordinator(store, group_consumer_migration_policy=policy) as box:
        old = await alone(box, *ALL)
        with pytest.raises(GroupIdNotFoundError, match=r"migration\.policy"):
            await box.ask(joining("new"))
        assert await old.heartbeat() == 0
        assert (await kind(box))[0] == "classic"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
async def test_no_group_goes_back_where_that_is_forbidden(store: str, policy: str) -> None:
    settings = {"group_consumer_migration_policy": policy, "group_consumer_assignment_interval_ms": 0}
    async with coordinator(store, **settings) as box:
        await box.ask(joining("new"))
        joined = await Old(box).join()
        assert joined.error_code == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if policy == "disabled" else 0)
        await box.ask(beat("new", -1))
        assert (await kind(box))[0] == "consumer"


async def test_an_assignor_that_tells_more_than_partitions_stays(store: str) -> None:
    async with coordinator(store) as box:
        old = await alone(box, *ALL, user_data=b"secret")
        with pytest.raises(GroupIdNotFoundError, match="assignor"):
            await box.ask(joining("new"))
        assert await old.heartbeat() == 0


async def test_static_members_change_over_one_by_one(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        old = Old(box)
        joined = await old.join(group_instance_id="one")
        assert joined.error_code == 0
        mine = SyncGroupRequestAssignment(member_id=old.member_id, assignment=assignment(*ALL))
        assert await old.sync(assignments=[mine], group_instance_id="one") == 0
        new = await box.ask(joining("new", instance_id="one"))
        assert new.error_code == 0
        group: Any = box.groups.table.groups["g"].group
        assert [each.member_id for each in group.members] == ["new"]
        assert assigned(new) == {b"a" * 16: ALL}
        assert await old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_leader_has_given_a_partition_to_several_members(store: str) -> None:
    """One of them has it; in the end each partition is somebody's."""
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        first, second = Old(box), Old(box)
        leader = (await first.join()).leader
        assert leader == first.member_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.join)
            while await first.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
                await anyio.lowlevel.checkpoint()
            await first.join()
        same = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=assignment(0, 1, 2))
            for each in (first, second)
        ]
        assert await first.sync(assignments=same) == await second.sync() == 0
        assert first.owned == second.owned == [0, 1, 2]
        answer = await box.ask(joining("new"))
        owned = (assigned(answer) or {}).get(b"a" * 16, [])
        for _ in range(4):
            await first.catch_up()
            await second.catch_up()
            answer = await box.ask(beat("new", answer.member_epoch, {b"a" * 16: owned}))
            owned = (assigned(answer) or {b"a" * 16: owned}).get(b"a" * 16, [])
        assert sorted([*first.owned, *second.owned, *owned]) == ALL


async def test_an_assignment_that_is_asked_for_right_after_a_restart(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        await box.ask(joining("new"))
        old = Old(box)
        assert (await old.join()).error_code == 0
        assert await old.sync() == 0
        await box.ask(beat("new", 1, {b"a" * 16: [0, 1, 2, 3, 4]}))
        await box.ask(beat("new", 1, {b"a" * 16: [0, 1, 2, 3, 4]}))
        assert await old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert (await old.join()).error_code == 0
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        if await old.sync() == ErrorCode.REBALANCE_IN_PROGRESS:
            await old.join()
            assert await old.sync() == 0
        await old.catch_up()
        assert old.owned == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("together", [False, True])
async def test_an_administrator_removes_the_last_member_of_the_new_protocol_and_others(
    store: str, together: bool
) -> None:
    """With the first one the group becomes a classic one, from which the next one is removed."""
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        await box.ask(joining("new"))
        old = Old(box)
        assert (await old.join()).error_code == 0
        for names in [["new", old.member_id]] if together else [["new"], [old.member_id]]:
            members = [LeaveGroupRequestMember(member_id=each) for each in names]
            answer = await box.ask(LeaveGroupRequest(group_id="g", members=members))
            assert [each.error_code for each in answer.members] == [0] * len(names)
        assert await kind(box) == ("classic", "Empty")


async def test_members_whose_rows_could_not_be_removed_do_not_come_back(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is a classic one, and then a consumer group again: who left in between is in neither."""

    async def fails(*_args: object, **_options: object) -> None:
        raise StorageFullError("the disk is full")

    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        old = await alone(box, *ALL)
        assert (await box.ask(joining("new"))).error_code == 0
        with monkeypatch.context() as patch:
            patch.setattr(box.manager, "commit", fails)
            assert (await box.ask(beat("new", -1))).error_code == 0
            await box.groups.table._writer.drain()
        assert (await kind(box))[0] == "classic"
        assert (await old.join()).error_code == 0
        mine = SyncGroupRequestAssignment(member_id=old.member_id, assignment=assignment(*ALL))
        assert await old.sync(assignments=[mine]) == 0
        assert (await box.ask(joining("other"))).error_code == 0
        assert await kind(box) == ("consumer", "Reconciling")
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        (group,) = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert {each.member_id for each in group.members} == {old.member_id, "other"}
