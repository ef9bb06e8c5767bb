"""Streams groups (KIP-1071) as coordinators see them: alike on Kafka 4.3 and on a gateway, message by message."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import ErrorCode, GroupNotEmptyError, InvalidConfigurationError
from kclient.protocol import messages as m
from kclient.types import TopicPartition
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_tools import KafkaTools, kafka_tools
from tests.wire_session import WireSession, until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
STALE, NO_SOURCES, WRONG_NUMBERS, NO_INTERNALS, SHUT_DOWN, DELAYED = range(6)
"""What a member is told beside its tasks."""


@pytest.fixture(params=["asyncio"])  # what differs on trio is not the group
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def jvm(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with kafka_tools(KAFKA_4, tmp_path_factory.mktemp("tools")) as tools:
        yield tools


@pytest.fixture
def group() -> str:
    return f"streams-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def session(broker: str, topic: str, group: str) -> AsyncIterator[WireSession]:
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.alter_configs(
            {ConfigResource(ConfigResourceType.GROUP, group): {"streams.assignment.interval.ms": "0"}}
        )
    async with wire_session(broker) as found:
        await found.create(topic, 4)
        await until(
            lambda: found(m.FindCoordinatorRequest(coordinator_keys=[group])),
            lambda answer: answer.coordinators[0].error_code == 0,
        )
        loading = (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        await until(lambda: found(beat(group, "m", 1)), lambda answer: answer.error_code not in loading)
        yield found


def part(*sources: str, name: str = "0", **fields: Any) -> m.StreamsGroupHeartbeatRequestSubtopology:
    return m.StreamsGroupHeartbeatRequestSubtopology(subtopology_id=name, source_topics=list(sources), **fields)


def internal(name: str, partitions: int = 0, **configs: str) -> m.StreamsGroupHeartbeatRequestTopicInfo:
    pairs = [m.StreamsGroupHeartbeatRequestKeyValue(key=key, value=value) for key, value in configs.items()]
    return m.StreamsGroupHeartbeatRequestTopicInfo(name=name, partitions=partitions, topic_configs=pairs)


def joining(
    group: str,
    member: str,
    *parts: m.StreamsGroupHeartbeatRequestSubtopology,
    epoch: int = 0,
    process: str | None = None,
    **fields: Any,
) -> m.StreamsGroupHeartbeatRequest:
    topology = m.StreamsGroupHeartbeatRequestTopology(epoch=epoch, subtopologies=list(parts))
    return m.StreamsGroupHeartbeatRequest(
        **{
            "group_id": group, "member_id": member, "member_epoch": 0, "rebalance_timeout_ms": 60_000,
            "process_id": process or member, "topology": topology, "active_tasks": [], "standby_tasks": [],
            "warmup_tasks": [], "client_tags": [], **fields,
        }
    )  # fmt: skip


def beat(group: str, member: str, epoch: int, **fields: Any) -> m.StreamsGroupHeartbeatRequest:
    return m.StreamsGroupHeartbeatRequest(**{"group_id": group, "member_id": member, "member_epoch": epoch, **fields})


Tasks = dict[str, list[int]]


def tasks_of(rows: Iterable[Any]) -> Tasks:
    return {row.subtopology_id: sorted(row.partitions) for row in rows if row.partitions}


def rows_of(tasks: Tasks) -> list[m.StreamsGroupHeartbeatRequestTaskIds]:
    return [
        m.StreamsGroupHeartbeatRequestTaskIds(subtopology_id=name, partitions=numbers)
        for name, numbers in tasks.items()
    ]


def codes(answer: Any) -> list[int]:
    return [status.status_code for status in answer.status or ()]


class Player:
    """A member that does what it is told."""

    def __init__(self, session: WireSession, group: str, name: str) -> None:
        self._session = session
        self._group = group
        self.name = name
        self.epoch = 0
        self.active: Tasks = {}
        self.standby: Tasks = {}

    def _take(self, answer: Any) -> Any:
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.active, self.standby = tasks_of(answer.active_tasks), tasks_of(answer.standby_tasks)
            assert not answer.warmup_tasks
        return answer

    async def join(self, *parts: m.StreamsGroupHeartbeatRequestSubtopology, **fields: Any) -> Any:
        return self._take(await self._session(joining(self._group, self.name, *parts, **fields)))

    async def beat(self, **fields: Any) -> Any:
        owned = {
            "active_tasks": rows_of(self.active), "standby_tasks": rows_of(self.standby), "warmup_tasks": []
        }  # fmt: skip
        return self._take(await self._session(beat(self._group, self.name, self.epoch, **{**owned, **fields})))

    async def leave(self, **fields: Any) -> None:
        answer = await self._session(beat(self._group, self.name, -1, **fields))
        assert (answer.error_code, answer.member_epoch) == (0, -1)


async def in_turns(players: Sequence[Player]) -> list[tuple[str, int, Tasks, Tasks]]:
    """Heartbeats until nothing changes; each step of each."""
    steps: list[tuple[str, int, Tasks, Tasks]] = []
    while True:
        before = len(steps)
        for player in players:
            was = player.epoch, player.active, player.standby
            answer = await player.beat()
            if codes(answer):
                continue
            if was != (player.epoch, player.active, player.standby):
                steps.append((player.name, player.epoch, player.active, player.standby))
        if len(steps) == before:
            return steps


async def listed(session: WireSession, group: str) -> list[tuple[str, ...]]:
    answer = await session(m.ListGroupsRequest(types_filter=["streams"], states_filter=[]))
    return [(row.protocol_type, row.group_state, row.group_type) for row in answer.groups if row.group_id == group]


async def described(session: WireSession, group: str) -> Any:
    request = m.StreamsGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
    return (await session(request)).groups[0]


async def test_members_come_and_go(session: WireSession, topic: str, group: str) -> None:
    one, two = Player(session, group, "m1"), Player(session, group, "m2")
    answer = await one.join(part(topic), client_tags=[m.StreamsGroupHeartbeatRequestKeyValue(key="k", value="v")])
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m1", 2, 500)
    assert (one.active, one.standby, codes(answer)) == ({"0": [0, 1, 2, 3]}, {}, [])
    assert (answer.acceptable_recovery_lag, answer.task_offset_interval_ms) == (0, 0)
    again = await one.beat()
    assert (again.active_tasks, again.standby_tasks, again.warmup_tasks) == (None, None, None)
    await two.join(part(topic))
    assert await in_turns([one, two]) == [
        ("m1", 2, {"0": [0, 1]}, {}), ("m1", 3, {"0": [0, 1]}, {}), ("m2", 3, {"0": [2, 3]}, {}),
    ]  # fmt: skip

    row = await described(session, group)
    assert (row.error_code, row.group_state, row.group_epoch, row.assignment_epoch) == (0, "Stable", 3, 3)
    assert row.topology.epoch == 0
    assert [(each.subtopology_id, each.source_topics) for each in row.topology.subtopologies] == [("0", [topic])]
    members = {member.member_id: member for member in row.members}
    assert members.keys() == {"m1", "m2"}
    assert tasks_of(members["m1"].assignment.active_tasks) == {"0": [0, 1]}
    assert tasks_of(members["m2"].target_assignment.active_tasks) == {"0": [2, 3]}
    assert [(tag.key, tag.value) for tag in members["m1"].client_tags] == [("k", "v")]
    assert (members["m1"].process_id, members["m1"].topology_epoch, members["m1"].is_classic) == ("m1", 0, False)
    assert await listed(session, group) == [("streams", "Stable", "streams")]

    for request in (m.ConsumerGroupDescribeRequest, m.ShareGroupDescribeRequest, m.DescribeGroupsRequest):
        named = {"groups" if request is m.DescribeGroupsRequest else "group_ids": [group]}
        assert (await session(request(**named))).groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    deleted = await session(m.DeleteGroupsRequest(groups_names=[group]))
    assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    await one.leave()
    assert await in_turns([two]) == [("m2", 4, {"0": [0, 1, 2, 3]}, {})]
    await two.leave()
    assert await listed(session, group) == [("streams", "Empty", "streams")]
    assert (await session(m.DeleteGroupsRequest(groups_names=[group]))).results[0].error_code == 0
    assert await listed(session, group) == []


async def test_internal_topics_are_made(session: WireSession, topic: str, group: str, broker: str) -> None:
    one = Player(session, group, "m1")
    topology = (
        part(topic, repartition_sink_topics=[f"{group}-r-repartition"]),
        part(
            name="1",
            repartition_source_topics=[internal(f"{group}-r-repartition")],
            state_changelog_topics=[internal(f"{group}-c-changelog", **{"cleanup.policy": "compact"})],
        ),
    )
    answer = await one.join(*topology)
    assert (answer.member_epoch, codes(answer), one.active) == (2, [NO_INTERNALS], {})
    await until(one.beat, lambda answer: not codes(answer))
    await in_turns([one])
    assert one.active == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    async with Admin(bootstrap_servers=broker) as admin:
        names = [f"{group}-r-repartition", f"{group}-c-changelog"]
        assert {name: len(found.partitions) for name, found in (await admin.describe_topics(names)).items()} == (
            dict.fromkeys(names, 4)
        )
        resource = ConfigResource(ConfigResourceType.TOPIC, names[1])
        configs = (await admin.describe_configs([resource]))[resource]
        assert configs["cleanup.policy"].value == "compact"
    row = await described(session, group)
    changelog = row.topology.subtopologies[1].state_changelog_topics[0]
    assert (changelog.name, changelog.partitions, changelog.replication_factor) == (names[1], 4, 0)
    assert [(pair.key, pair.value) for pair in changelog.topic_configs] == [("cleanup.policy", "compact")]


async def test_standby_tasks(session: WireSession, topic: str, group: str, broker: str) -> None:
    topology = part(topic, state_changelog_topics=[internal(f"{group}-c-changelog")])
    await session.create(f"{group}-c-changelog", 4)
    players = [Player(session, group, f"m{number}") for number in range(3)]
    processes = ["p", "p", "q"]
    for player, process in zip(players, processes, strict=True):
        await player.join(topology, process=process)
    await in_turns(players)
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    async with Admin(bootstrap_servers=broker) as admin:
        with pytest.raises(InvalidConfigurationError):
            await admin.alter_configs({resource: {"streams.num.standby.replicas": "3"}})
        await admin.alter_configs({resource: {"streams.num.standby.replicas": "1"}})
        shown = (await admin.describe_configs([resource]))[resource]
        assert shown["streams.num.standby.replicas"].value == "1"
        assert shown["streams.session.timeout.ms"].value == "6000"

    async def more() -> int:
        await in_turns(players)
        return sum(len(numbers) for player in players for numbers in player.standby.values())

    assert await until(more, lambda count: count == 4) == 4
    for process in (players[:2], players[2:]):
        held = [
            number for player in process for tasks in (player.active, player.standby) for number in tasks.get("0", ())
        ]
        assert sorted(held) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda topic, group: [part(f"{group}-none")], NO_SOURCES),
        (
            lambda topic, group: [
                part(
                    topic,
                    repartition_source_topics=[internal(f"{group}-r", 3)],
                    copartition_groups=[m.CopartitionGroup(source_topics=[0], repartition_source_topics=[0])],
                )
            ],
            WRONG_NUMBERS,
        ),
        (lambda topic, group: [part(topic, state_changelog_topics=[internal("__share_group_state")])], None),
    ],
)
async def test_topologies_that_do_not_fit(
    session: WireSession, topic: str, group: str, wrong: Any, code: int | None
) -> None:
    answer = await session(joining(group, "m1", *wrong(topic, group)))
    if code is None:
        assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        return
    assert (answer.error_code, codes(answer), answer.active_tasks) == (0, [code], [])
    row = await described(session, group)
    assert (row.group_state, len(row.members)) == ("NotReady", 1)


async def test_what_is_refused(session: WireSession, topic: str, group: str) -> None:
    async def code(request: m.StreamsGroupHeartbeatRequest) -> int:
        return int((await session(request)).error_code)

    def other(**fields: Any) -> m.StreamsGroupHeartbeatRequest:
        return joining(group, "m1", part(topic), **fields)

    wrong = ErrorCode.INVALID_REQUEST
    assert await code(beat(group, "m1", 3)) == await code(beat(group, "m1", -1)) == ErrorCode.GROUP_ID_NOT_FOUND
    for fields in (
        {"instance_id": "i"}, {"rack_id": ""}, {"member_id": ""}, {"rebalance_timeout_ms": -1}, {"topology": None},
        {"warmup_tasks": None}, {"task_offsets": []}, {"task_end_offsets": []}, {"member_epoch": -3},
        {"active_tasks": rows_of({"0": [0]})},
        {"topology": m.StreamsGroupHeartbeatRequestTopology(subtopologies=[part(source_topic_regex=["a"])])},
    ):  # fmt: skip
        assert await code(other(**fields)) == wrong, fields
    for name in ("__consumer_offsets", "no/name"):
        assert await code(joining(group, "m1", part(name))) == ErrorCode.STREAMS_INVALID_TOPOLOGY
    invalid = part(topic, state_changelog_topics=[internal(f"{group}-c", 3)])
    assert await code(joining(group, "m1", invalid)) == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert await code(joining(group, "m1", part(topic), epoch=1)) == 0
    assert await code(joining(group, "m2", part(topic, name="other"), epoch=1)) == wrong
    assert await code(joining(group, "m2", part(topic, name="other"), epoch=2)) == wrong
    assert codes(await session(joining(group, "m3", part(topic, name="other")))) == [STALE]
    assert await code(beat(group, "nobody", 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code(beat(group, "m1", 7)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert await code(beat(group, "m1", 2, active_tasks=[])) == wrong
    nothing: dict[str, Any] = {"standby_tasks": [], "warmup_tasks": []}
    for tasks in ({"9": [0]}, {"0": [4]}, {"0": [-1]}):
        assert await code(beat(group, "m1", 2, active_tasks=rows_of(tasks), **nothing)) == wrong
    assert (await described(session, f"{group}-none")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_all_are_told_to_end_and_where_others_are(session: WireSession, topic: str, group: str) -> None:
    one, two = Player(session, group, "m1"), Player(session, group, "m2")
    answer = await one.join(part(topic), user_endpoint=m.StreamsGroupHeartbeatRequestEndpoint(host="h", port=7))
    assert answer.endpoint_information_epoch <= 1  # Kafka tells a group's first member 0
    (found,) = answer.partitions_by_user_endpoint
    assert (found.user_endpoint.host, found.user_endpoint.port) == ("h", 7)
    assert [(each.topic, sorted(each.partitions)) for each in found.active_partitions] == [(topic, [0, 1, 2, 3])]
    assert found.standby_partitions == []
    known = answer.endpoint_information_epoch
    assert (await one.beat(endpoint_information_epoch=known)).partitions_by_user_endpoint is None
    await two.join(part(topic))
    await in_turns([one, two])
    told = await two.beat(endpoint_information_epoch=known)
    assert told.endpoint_information_epoch > known
    (found,) = told.partitions_by_user_endpoint
    assert [(each.topic, sorted(each.partitions)) for each in found.active_partitions] == [(topic, [0, 1])]

    await one.leave(shutdown_application=True)
    assert SHUT_DOWN in codes(await two.beat())


async def test_commits_are_fenced(session: WireSession, topic: str, group: str) -> None:
    one, two = Player(session, group, "m1"), Player(session, group, "m2")
    await one.join(part(topic))
    await two.join(part(topic))
    await in_turns([one, two])

    async def code(epoch: int, number: int, member: str = "m1") -> int:
        row = m.OffsetCommitRequestPartition(partition_index=number, committed_offset=1)
        rows = [m.OffsetCommitRequestTopic(name=topic, partitions=[row])]
        request = m.OffsetCommitRequest(
            group_id=group, member_id=member, generation_id_or_member_epoch=epoch, topics=rows
        )
        return int((await session(request, 9)).topics[0].partitions[0].error_code)

    stale = ErrorCode.STALE_MEMBER_EPOCH
    kept, gone = one.active["0"][0], two.active["0"][0]
    assert await code(one.epoch, kept) == await code(one.epoch - 1, kept) == 0
    assert await code(one.epoch - 2, kept) == await code(one.epoch + 1, kept) == await code(2, gone) == stale
    assert await code(one.epoch, kept, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    asked = m.OffsetFetchRequestGroup(group_id=group, member_id="m1", member_epoch=one.epoch + 1, topics=None)
    assert (await session(m.OffsetFetchRequest(groups=[asked]), 9)).groups[0].error_code == stale


async def test_administrators(session: WireSession, topic: str, group: str, broker: str, jvm: KafkaTools) -> None:
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        for number in range(4):
            await (await producer.send_batch(topic, [b"a", b"b", b"c"], partition=number))
    one = Player(session, group, "m1")
    await one.join(part(topic))
    first = TopicPartition(topic, 0)
    async with Admin(bootstrap_servers=broker) as admin:
        found = (await admin.describe_groups([group]))[group]
        assert (found.type, found.protocol_type, found.state) == ("streams", "streams", "Stable")
        assert {partition.partition for partition in found.members[0].assignment} == {0, 1, 2, 3}
        with pytest.raises(GroupNotEmptyError):
            await admin.delete_groups([group])

        def tool(*arguments: str) -> str:
            return jvm.run(TOOL, "--bootstrap-server", broker, *arguments).out

        assert group in (await anyio.to_thread.run_sync(tool, "--list"))
        assert "Stable" in (await anyio.to_thread.run_sync(tool, "--list", "--state"))
        members = await anyio.to_thread.run_sync(tool, "--describe", "--members", "--verbose", "--group", group)
        assert "m1" in members
        assert "0:[0,1,2,3]" in members.replace(" ", "")
        rows = [m.OffsetCommitRequestPartition(partition_index=number, committed_offset=3) for number in range(4)]
        commit = m.OffsetCommitRequest(
            group_id=group, member_id="m1", generation_id_or_member_epoch=one.epoch,
            topics=[m.OffsetCommitRequestTopic(name=topic, partitions=rows)],
        )  # fmt: skip
        assert {each.error_code for each in (await session(commit, 9)).topics[0].partitions} == {0}
        assert (await admin.group_lag(group))[first].lag == 0
        assert topic in (await anyio.to_thread.run_sync(tool, "--describe", "--group", group))
        await one.leave()
        await anyio.to_thread.run_sync(
            tool, "--reset-offsets", "--to-earliest", "--execute", "--group", group, "--input-topic", topic
        )
        assert (await admin.list_group_offsets(group))[first].offset == 0
        assert (await admin.group_lag(group))[first].lag == 3
        await anyio.to_thread.run_sync(tool, "--delete", "--group", group)
        assert await listed(session, group) == []
