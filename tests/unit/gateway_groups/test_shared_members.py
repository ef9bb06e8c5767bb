"""Share groups (KIP-932) through their handlers: as Kafka answers, over restarts, and beside groups of other types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kclient.errors import (
    CoordinatorLoadInProgressError,
    ErrorCode,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
)
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.unit.gateway_groups.harness import Harness, coordinator, fresh_name, reset

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def beat(member: str, epoch: int, **fields: Any) -> m.ShareGroupHeartbeatRequest:
    return m.ShareGroupHeartbeatRequest(**{"group_id": "s", "member_id": member, "member_epoch": epoch, **fields})


async def join(box: Harness, member: str, *topics: str, **fields: Any) -> Any:
    answer = await box.ask(beat(member, 0, subscribed_topic_names=list(topics or ("a",)), **fields))
    assert answer.error_code == 0, answer.error_message
    return answer


async def described(box: Harness, group: str = "s") -> Any:
    return (await box.ask(m.ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True))).groups[0]


async def listed(box: Harness, *types: str, state: str | None = None) -> list[tuple[str, str, str, str]]:
    states = [] if state is None else [state]
    answer = await box.ask(m.ListGroupsRequest(types_filter=list(types), states_filter=states), 5)
    return sorted((row.group_id, row.protocol_type, row.group_state, row.group_type) for row in answer.groups)


def alter(offsets: dict[tuple[str, int], int], group: str = "s") -> m.AlterShareGroupOffsetsRequest:
    topics = [
        m.AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[m.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)],
        )
        for (topic, number), start in offsets.items()
    ]
    return m.AlterShareGroupOffsetsRequest(group_id=group, topics=topics)


def forget(*topics: str) -> m.DeleteShareGroupOffsetsRequest:
    names = [m.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return m.DeleteShareGroupOffsetsRequest(group_id="s", topics=names)


async def offsets(box: Harness, wanted: dict[str, list[int]] | None = None) -> dict[tuple[str, int], tuple[int, ...]]:
    """Start, epoch and lag."""
    topics = None
    if wanted is not None:
        topics = [
            m.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in wanted.items()
        ]
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=topics)
    (row,) = (await box.ask(m.DescribeShareGroupOffsetsRequest(groups=[asked]))).groups
    assert row.error_code == 0
    return {
        (topic.topic_name, each.partition_index): (each.start_offset, each.leader_epoch, each.lag)
        for topic in row.topics
        for each in topic.partitions
    }


async def test_a_member_joins_is_shown_and_leaves(store: str) -> None:
    async with coordinator(store) as box:
        answer = await join(box, "m1", "a", "z")
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m1", 1, 5000)
        (topic,) = answer.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (b"a" * 16, list(range(10)))
        again = await box.ask(beat("m1", 1))
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)

        group = await described(box)
        assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
            "Stable", 1, 1, "simple",
        )  # fmt: skip
        assert group.authorized_operations == 3400  # as Kafka tells it
        (member,) = group.members
        assert (member.member_id, member.member_epoch, member.client_id, member.client_host) == (
            "m1", 1, "client", "/127.0.0.1",
        )  # fmt: skip
        assert member.subscribed_topic_names == ["a", "z"]
        assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [
            ("a", list(range(10)))
        ]
        assert await listed(box, "Share", state="stable") == [("s", "share", "Stable", "share")]
        assert await listed(box, "share", state="empty") == await listed(box, "classic", "consumer") == []

        left = await box.ask(beat("m1", -1))
        assert (left.error_code, left.member_id, left.member_epoch) == (0, "m1", -1)
        assert await scan_all(box.manager, "group-member/") == {}
        assert await listed(box) == [("s", "share", "Empty", "share")]
        box.groups.expiry.expire()  # it stays until somebody deletes it
        assert (await described(box)).group_state == "Empty"
        deleted = await box.ask(m.DeleteGroupsRequest(groups_names=["s", "s", "none"]))
        assert [(row.group_id, row.error_code) for row in deleted.results] == [
            ("s", 0), ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ]  # fmt: skip
        assert await scan_all(box.manager, "group") == {}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (beat("", 0, subscribed_topic_names=["a"]), InvalidRequestError),
        (beat("", -1), InvalidRequestError),
        (beat("m", 0), InvalidRequestError),
        (beat("m", 0, subscribed_topic_names=[]), InvalidRequestError),
        (beat("m", 0, subscribed_topic_names=["a"], rack_id=""), InvalidRequestError),
        (beat("m", 0, subscribed_topic_names=["a"], group_id=""), InvalidRequestError),
        (beat("m", -2), InvalidRequestError),
        (beat("m", 0, subscribed_topic_names=["x" * 250]), InvalidRequestError),
        (beat("m", 0, subscribed_topic_names=["a"] * 10_001), InvalidRequestError),
        (beat("m", 3, group_id="none"), GroupIdNotFoundError),
        (beat("m", -1, group_id="none"), GroupIdNotFoundError),
        (beat("nobody", 1), UnknownMemberIdError),
        (beat("nobody", -1), UnknownMemberIdError),
        (beat("m1", 2), FencedMemberEpochError),
    ],
)
async def test_what_is_refused(store: str, request_: m.ShareGroupHeartbeatRequest, error: type[KafkaError]) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        before = await listed(box)
        with pytest.raises(error):
            await box.ask(request_)
        assert await listed(box) == before


async def test_a_group_that_nobody_came_into_is_none(store: str) -> None:
    async with coordinator(store, **{"group.share.max.size": 1, "connections.max.memory.bytes": 50_000_000}) as box:
        held = box.memory.total.held if hasattr(box.memory.total, "held") else None
        filler = box.groups.table._memory._members
        filler.add(filler.limit)
        with pytest.raises(CoordinatorLoadInProgressError):
            await join(box, "m1")
        with pytest.raises(CoordinatorLoadInProgressError):
            box.groups.sharing.establish("s")
        filler.add(-filler.limit)
        assert await listed(box) == []
        assert held is None or box.memory.total.held == held


async def test_other_types_of_groups_do_not_mix_with_it(store: str) -> None:
    """As measured on Kafka 4.3.1, with members and without."""
    async with coordinator(store) as box:
        await join(box, "m1")
        for state in ("Stable", "Empty"):
            (row,) = (await box.ask(m.DescribeGroupsRequest(groups=["s"]), 6)).groups
            assert (row.group_state, row.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
            assert row.error_message == "Group s is not a classic group."
            (row,) = (await box.ask(m.DescribeGroupsRequest(groups=["s"]), 5)).groups
            assert (row.group_state, row.error_code) == ("Dead", 0)
            (row,) = (await box.ask(m.ConsumerGroupDescribeRequest(group_ids=["s"]))).groups
            assert (row.error_code, row.error_message) == (
                ErrorCode.GROUP_ID_NOT_FOUND, "Group s is not a consumer group.",
            )  # fmt: skip
            for epoch in (0, 1):
                with pytest.raises(GroupIdNotFoundError):
                    await box.ask(
                        m.ConsumerGroupHeartbeatRequest(
                            group_id="s", member_id="c", member_epoch=epoch, rebalance_timeout_ms=1000,
                            subscribed_topic_names=["a"], topic_partitions=[],
                        )
                    )  # fmt: skip
            for member in ("", "somebody"):
                joined = await box.join("s", member)
                assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            sync = m.SyncGroupRequest(group_id="s", generation_id=1, member_id="m1")
            assert (await box.ask(sync, 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            heartbeat = m.HeartbeatRequest(group_id="s", generation_id=1, member_id="m1")
            assert (await box.ask(heartbeat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            leave = m.LeaveGroupRequest(group_id="s", members=[m.LeaveGroupRequestMember(member_id="m1")])
            answer = await box.ask(leave)
            assert (answer.error_code, answer.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
            for version, member, epoch in ((8, "", -1), (9, "", -1), (8, "m1", 1), (9, "m1", 1)):
                partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
                commit = m.OffsetCommitRequest(
                    group_id="s", member_id=member, generation_id_or_member_epoch=epoch,
                    topics=[m.OffsetCommitRequestTopic(name="a", partitions=[partition])],
                )  # fmt: skip
                committed = await box.ask(commit, version)
                assert committed.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
            asked = m.OffsetFetchRequestGroup(
                group_id="s", member_id="m1", member_epoch=1,
                topics=[m.OffsetFetchRequestTopics(name="a", partition_indexes=[0])],
            )  # fmt: skip
            (found,) = (await box.ask(m.OffsetFetchRequest(groups=[asked]), 9)).groups
            assert (found.error_code, found.topics[0].partitions[0].committed_offset) == (0, -1)
            delete = m.OffsetDeleteRequest(
                group_id="s",
                topics=[
                    m.OffsetDeleteRequestTopic(name="a", partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
                ],
            )
            assert (await box.ask(delete)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert (await described(box)).group_state == state
            if state == "Stable":
                await box.ask(beat("m1", -1))


async def test_names_of_other_groups_are_taken(store: str) -> None:
    async with coordinator(store) as box:
        await box.member("g")
        assert (await described(box, "g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        for epoch in (0, 1, -1):
            with pytest.raises(GroupIdNotFoundError, match="is not a share group"):
                await box.ask(beat("m1", epoch, group_id="g", subscribed_topic_names=["a"]))
        answer = await box.ask(alter({("a", 0): 1}, "g"))
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a share group.",
        )  # fmt: skip
        assert [row[3] for row in await listed(box)] == ["classic"]


async def test_start_offsets(store: str) -> None:
    async with coordinator(store) as box:
        assert await offsets(box) == {}
        assert await offsets(box, {"a": [0], "none": [2]}) == {("a", 0): (-1, 0, -1), ("none", 2): (-1, 0, -1)}
        gone = await box.ask(forget("a"))
        assert (gone.error_code, gone.responses) == (ErrorCode.GROUP_ID_NOT_FOUND, [])

        # of topics that are not there no group is made
        answer = await box.ask(alter({("none", 0): 5}))
        assert answer.error_code == 0
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await box.ask(alter({}))).error_code == 0
        assert await listed(box) == []

        answer = await box.ask(alter({("a", 0): 5, ("a", 1): -1, ("b", 99): 1, ("b", 3): 40, ("c", 0): -2}))
        assert answer.error_code == 0
        codes = [(row.topic_name, each.error_code) for row in answer.responses for each in row.partitions]
        assert codes == [
            ("a", 0), ("a", 0), ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("b", 0), ("c", ErrorCode.INVALID_REQUEST),
        ]  # fmt: skip
        assert await listed(box) == [("s", "share", "Empty", "share")]
        known = {("a", 0): (5, 0, 95), ("a", 1): (-1, 0, -1), ("b", 3): (40, 0, 60)}
        assert await offsets(box) == known
        assert await offsets(box, {"a": [0, 7]}) == {("a", 0): (5, 0, 95), ("a", 7): (-1, 0, -1)}

        await join(box, "m1")
        for refused in (await box.ask(alter({("a", 0): 7})), await box.ask(forget("a"))):
            assert (refused.error_code, refused.responses) == (ErrorCode.NON_EMPTY_GROUP, [])
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        assert await offsets(box) == known
        assert (await described(box)).group_state == "Stable"
        await box.ask(beat("m1", -1))

        answer = await box.ask(forget("a", "a", "c", "none"))
        assert [(row.topic_name, row.error_code) for row in answer.responses] == [
            ("a", 0), ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]  # fmt: skip
        assert answer.responses[1].error_message == "There is no offset information to delete."
        assert await offsets(box) == {("b", 3): (40, 0, 60)}
        assert await listed(box) == [("s", "share", "Empty", "share")]

        (row,) = (await box.ask(m.DeleteGroupsRequest(groups_names=["s"]))).results
        assert row.error_code == 0
        assert await scan_all(box.manager, "group") == await scan_all(box.manager, "kafka/share/") == {}
        assert await offsets(box) == {}


async def test_a_group_with_members_is_not_deleted(store: str) -> None:
    async with coordinator(store) as box:
        await box.ask(alter({("a", 0): 5}))
        await join(box, "m1")
        (row,) = (await box.ask(m.DeleteGroupsRequest(groups_names=["s"]))).results
        assert row.error_code == ErrorCode.NON_EMPTY_GROUP
        assert await offsets(box) == {("a", 0): (5, 0, 95)}


async def test_a_restart_loses_nothing(store: str) -> None:
    async with coordinator(store, **{"group.share.assignment.interval.ms": 0}) as box:
        await join(box, "m1", rack_id="here")
        await join(box, "m2", "a", "b")
        before = await described(box)
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        assert await described(box) == before
        for member in before.members:
            answer = await box.ask(beat(member.member_id, member.member_epoch))
            assert answer.error_code == 0
        assert (await box.ask(beat("m1", before.group_epoch))).assignment is None
