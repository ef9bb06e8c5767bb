"""Share groups (KIP-932) as their coordinator sees them: the same on Kafka 4.3 and on a gateway, message by message."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import pytest

from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import ErrorCode, InvalidConfigurationError
from kclient.protocol import messages as m
from tests.kafka_server import KafkaServer
from tests.wire_session import WireSession, until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


@pytest.fixture(params=["asyncio"])  # what differs on trio is not the group
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group() -> str:
    return f"share-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def session(broker: str, topic: str, group: str) -> AsyncIterator[WireSession]:
    async with wire_session(broker) as found:
        await found.create(topic, 3)
        await until(
            lambda: found(m.FindCoordinatorRequest(coordinator_keys=[group])),
            lambda answer: answer.coordinators[0].error_code == 0,
        )
        asked = m.ShareGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=1)
        loading = (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        await until(lambda: found(asked), lambda answer: answer.error_code not in loading)
        yield found


def beat(group: str, member: str, epoch: int, **fields: Any) -> m.ShareGroupHeartbeatRequest:
    return m.ShareGroupHeartbeatRequest(**{"group_id": group, "member_id": member, "member_epoch": epoch, **fields})


async def assigned(session: WireSession, group: str, member: str, joined: Any, count: int) -> tuple[int, list[int]]:
    """Epoch and partitions of a member, once it has so many of the topic; Kafka makes their state first."""
    last = joined

    async def go_on() -> Any:
        nonlocal last
        answer = await session(beat(group, member, last.member_epoch))
        assert answer.error_code == 0, answer
        if answer.assignment is None:
            answer.assignment = last.assignment
        last = answer
        return answer

    def numbers(answer: Any) -> list[int]:
        return sorted(number for each in answer.assignment.topic_partitions for number in each.partitions)

    if len(numbers(joined)) != count:
        await until(go_on, lambda answer: len(numbers(answer)) == count)
    return int(last.member_epoch), numbers(last)


async def listed(session: WireSession, group: str, *types: str, states: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    answer = await session(m.ListGroupsRequest(types_filter=list(types), states_filter=list(states)))
    rows = [row for row in answer.groups if row.group_id == group]
    return [(row.protocol_type, row.group_state, row.group_type) for row in rows]


async def test_members_come_and_go(session: WireSession, topic: str, group: str) -> None:
    join = await session(beat(group, "m1", 0, subscribed_topic_names=[topic], rack_id="here"))
    assert (join.error_code, join.member_id, join.heartbeat_interval_ms) == (0, "m1", 500)
    epoch, numbers = await assigned(session, group, "m1", join, 3)
    assert numbers == [0, 1, 2]
    again = await session(beat(group, "m1", epoch))
    assert (again.error_code, again.member_epoch, again.assignment) == (0, epoch, None)
    for wrong in (epoch + 1, epoch - 3):
        assert (await session(beat(group, "m1", wrong))).error_code in (
            ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.INVALID_REQUEST,
        )  # fmt: skip

    (described,) = (
        await session(m.ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True))
    ).groups
    assert (described.error_code, described.group_state, described.assignor_name) == (0, "Stable", "simple")
    assert described.group_epoch == described.assignment_epoch == epoch
    assert described.authorized_operations == 3400
    (member,) = described.members
    assert (member.member_id, member.member_epoch, member.rack_id) == ("m1", epoch, "here")
    assert member.subscribed_topic_names == [topic]
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [(topic, [0, 1, 2])]
    assert await listed(session, group, "share", states=("Stable",)) == [("share", "Stable", "share")]
    assert await listed(session, group, "classic", "consumer") == []
    assert await listed(session, group, "share", states=("Empty",)) == []

    assert (await session(m.DeleteGroupsRequest(groups_names=[group]))).results[0].error_code == (
        ErrorCode.NON_EMPTY_GROUP
    )
    left = await session(beat(group, "m1", -1))
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "m1", -1)
    assert await listed(session, group) == [("share", "Empty", "share")]
    assert (await session(m.DeleteGroupsRequest(groups_names=[group]))).results[0].error_code == 0
    assert await listed(session, group) == []


async def test_two_members_share_all_partitions(session: WireSession, topic: str, group: str) -> None:
    one = await session(beat(group, "m1", 0, subscribed_topic_names=[topic]))
    await assigned(session, group, "m1", one, 3)
    two = await session(beat(group, "m2", 0, subscribed_topic_names=[topic]))
    _, more = await assigned(session, group, "m2", two, 1)
    one = await session(beat(group, "m1", 0, subscribed_topic_names=[topic]))  # tells all
    _, numbers = await assigned(session, group, "m1", one, 2)
    assert sorted(numbers + more) == [0, 1, 2]
    for member in ("m1", "m2"):
        assert (await session(beat(group, member, -1))).error_code == 0


async def test_what_is_refused(session: WireSession, topic: str, group: str) -> None:
    async def code(member: str, epoch: int, **fields: Any) -> int:
        return int((await session(beat(group, member, epoch, **fields))).error_code)

    wrong = ErrorCode.INVALID_REQUEST
    assert await code("m", 3) == await code("m", -1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert await code("m", 0) == await code("m", 0, subscribed_topic_names=[]) == wrong
    assert await code("m", -2, subscribed_topic_names=[topic]) == wrong
    assert await code("", 0, subscribed_topic_names=[topic]) == await code("", -1) == wrong
    assert await code("m", 0, subscribed_topic_names=[topic], rack_id="") == wrong
    assert (await session(beat("", "m", 0, subscribed_topic_names=[topic]))).error_code == wrong
    (row,) = (await session(m.ShareGroupDescribeRequest(group_ids=[group]))).groups
    assert (row.error_code, row.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    assert await listed(session, group) == []

    assert await code("m", 0, subscribed_topic_names=[topic]) == 0
    assert await code("nobody", 1) == await code("nobody", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code("m", -1) == 0


async def test_beside_groups_of_other_types(session: WireSession, topic: str, group: str) -> None:
    topic_id = (await session.ready(topic)).topic_id
    assert (await session(beat(group, "m1", 0, subscribed_topic_names=[topic]))).error_code == 0
    for state in ("Stable", "Empty"):
        (row,) = (await session(m.DescribeGroupsRequest(groups=[group]))).groups
        assert (row.error_code, row.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        assert row.error_message == f"Group {group} is not a classic group."
        (found,) = (await session(m.ConsumerGroupDescribeRequest(group_ids=[group]))).groups
        assert (found.error_code, found.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.",
        )  # fmt: skip
        consumer = m.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="c", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=[topic],
            topic_partitions=[],
        )  # fmt: skip
        assert (await session(consumer)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        join = m.JoinGroupRequest(
            group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
            protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        assert (await session(join)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        heartbeat = m.HeartbeatRequest(group_id=group, generation_id=1, member_id="m1")
        assert (await session(heartbeat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        leave = m.LeaveGroupRequest(group_id=group, members=[m.LeaveGroupRequestMember(member_id="m1")])
        assert (await session(leave)).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for version in (8, 9, 10):
            partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            row = m.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[partition])
            committed = await session(m.OffsetCommitRequest(group_id=group, topics=[row]), version)
            assert committed.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        asked = m.OffsetFetchRequestGroup(
            group_id=group, member_id="m1", member_epoch=1,
            topics=[m.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
        )  # fmt: skip
        (fetched,) = (await session(m.OffsetFetchRequest(groups=[asked]), 9)).groups
        assert (fetched.error_code, fetched.topics[0].partitions[0].committed_offset) == (0, -1)
        (row,) = (await session(m.ShareGroupDescribeRequest(group_ids=[group]))).groups
        assert row.group_state == state
        if state == "Stable":
            assert (await session(beat(group, "m1", -1))).error_code == 0


async def test_settings_of_a_group(broker: str, group: str) -> None:
    """Names, defaults and bounds are Kafka's."""
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    async with Admin(bootstrap_servers=broker) as admin:
        found = (await admin.describe_configs([resource]))[resource]
        assert {name: entry.value for name, entry in found.items() if name.startswith("share.")} == {
            "share.assignment.interval.ms": "1000",
            "share.auto.offset.reset": "latest",
            "share.delivery.count.limit": "5",
            "share.heartbeat.interval.ms": "500",
            "share.isolation.level": "read_uncommitted",
            "share.partition.max.record.locks": "2000",
            "share.record.lock.duration.ms": "30000",
            "share.renew.acknowledge.enable": "true",
            "share.session.timeout.ms": "45000",
        }
        for name, text in (
            ("share.auto.offset.reset", "Earliest"),
            ("share.auto.offset.reset", "by_duration:-PT1H"),
            ("share.isolation.level", "READ_COMMITTED"),
            ("share.session.timeout.ms", "44999"),
            ("share.heartbeat.interval.ms", "15001"),
            ("share.record.lock.duration.ms", "14999"),
            ("share.delivery.count.limit", "11"),
            ("share.partition.max.record.locks", "99"),
        ):
            with pytest.raises(InvalidConfigurationError):
                await admin.alter_configs({resource: {name: text}})
        await admin.alter_configs({resource: {"share.auto.offset.reset": "by_duration:PT1H"}})
        await until(
            lambda: admin.describe_configs([resource]),
            lambda told: told[resource]["share.auto.offset.reset"].value == "by_duration:PT1H",
        )


@pytest.mark.kafka
async def test_the_tool_of_kafka(kafka: KafkaServer, broker: str, session: WireSession, topic: str, group: str) -> None:
    """`kafka-share-groups.sh` lists, resets, describes, and deletes offsets and groups."""

    async def tool(*arguments: str) -> str:
        return await anyio.to_thread.run_sync(
            lambda: kafka.run_tool(TOOL, "--bootstrap-server", broker, *arguments, timeout=60)
        )

    name = ("--group", group, "--topic", topic)
    await tool("--reset-offsets", "--to-earliest", "--execute", *name)
    rows = [line.split() for line in (await tool("--list", "--state")).splitlines()]
    assert [group, "Empty"] in rows
    rows = [line.split() for line in (await tool("--describe", "--offsets", "--group", group)).splitlines()]
    starts = [row[:4] for row in rows if row[:1] == [group]]
    assert sorted(starts) == [[group, topic, str(number), "0"] for number in range(3)]
    await tool("--delete-offsets", *name)
    assert topic not in await tool("--describe", "--offsets", "--group", group)
    await tool("--delete", "--group", group)
    assert await listed(session, group) == []
