"""Streams groups (KIP-1071) through their handlers: as Kafka answers, over restarts, beside groups of other types."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode, InvalidRequestError, KafkaError, PolicyViolationError, StreamsInvalidTopologyError
from kclient.gateway.clock import Clock
from kclient.gateway.groups.streaming.creating import StreamsTopics
from kclient.gateway.rows.streams_topology import StreamsTopic
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.unit.gateway_groups.harness import Harness, coordinator, fresh_name, reset

pytestmark = pytest.mark.anyio
SETTINGS = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0}


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def part(*sources: str, **fields: Any) -> m.StreamsGroupHeartbeatRequestSubtopology:
    return m.StreamsGroupHeartbeatRequestSubtopology(
        **{"subtopology_id": "0", "source_topics": list(sources or ("a",)), **fields}
    )


def internal(name: str, partitions: int = 0, **configs: str) -> m.StreamsGroupHeartbeatRequestTopicInfo:
    pairs = [m.StreamsGroupHeartbeatRequestKeyValue(key=key, value=value) for key, value in configs.items()]
    return m.StreamsGroupHeartbeatRequestTopicInfo(name=name, partitions=partitions, topic_configs=pairs)


def with_replicas(name: str, factor: int) -> m.StreamsGroupHeartbeatRequestTopicInfo:
    return m.StreamsGroupHeartbeatRequestTopicInfo(name=name, replication_factor=factor)


def ids(subtopology: str, *numbers: int) -> m.StreamsGroupHeartbeatRequestTaskIds:
    return m.StreamsGroupHeartbeatRequestTaskIds(subtopology_id=subtopology, partitions=list(numbers))


def joining(member: str, *parts: m.StreamsGroupHeartbeatRequestSubtopology, **fields: Any) -> Any:
    topology = m.StreamsGroupHeartbeatRequestTopology(subtopologies=list(parts or (part(),)))
    values: dict[str, Any] = {
        "group_id": "s", "member_id": member, "member_epoch": 0, "rebalance_timeout_ms": 60_000, "process_id": member,
        "topology": topology, "active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "client_tags": [],
    }  # fmt: skip
    return m.StreamsGroupHeartbeatRequest(**{**values, **fields})


def beat(member: str, epoch: int, **fields: Any) -> m.StreamsGroupHeartbeatRequest:
    return m.StreamsGroupHeartbeatRequest(**{"group_id": "s", "member_id": member, "member_epoch": epoch, **fields})


async def join(box: Harness, member: str, *parts: m.StreamsGroupHeartbeatRequestSubtopology, **fields: Any) -> Any:
    answer = await box.ask(joining(member, *parts, **fields))
    assert answer.error_code == 0, answer.error_message
    return answer


def tasks(rows: Any) -> dict[str, list[int]]:
    return {row.subtopology_id: row.partitions for row in rows}


async def described(box: Harness, group: str = "s") -> Any:
    request = m.StreamsGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
    return (await box.ask(request)).groups[0]


async def test_a_member_joins_works_and_leaves(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        answer = await join(box, "m1")
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m1", 2, 5_000)
        assert tasks(answer.active_tasks) == {"0": list(range(10))}
        assert (answer.standby_tasks, answer.warmup_tasks, answer.status) == ([], [], [])
        row = await described(box)
        assert (row.error_code, row.group_state, row.group_epoch, row.assignment_epoch) == (0, "Stable", 2, 2)
        assert [each.source_topics for each in row.topology.subtopologies] == [["a"]]
        (member,) = row.members
        assert (member.member_id, member.process_id, member.topology_epoch) == ("m1", "m1", 0)
        assert tasks(member.assignment.active_tasks) == tasks(member.target_assignment.active_tasks)
        left = await box.ask(beat("m1", -1))
        assert (left.error_code, left.member_epoch, left.status) == (0, -1, [])
        assert (await described(box)).group_state == "Empty"
        deleted = await box.ask(m.DeleteGroupsRequest(groups_names=["s"]))
        assert deleted.results[0].error_code == 0
        assert await scan_all(box.manager, "group") == {}


async def test_internal_topics_are_made(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        topology = (
            part("a", repartition_sink_topics=["s-r-repartition"]),
            m.StreamsGroupHeartbeatRequestSubtopology(
                subtopology_id="1",
                repartition_source_topics=[internal("s-r-repartition", 4)],
                state_changelog_topics=[internal("s-c-changelog", **{"cleanup.policy": "compact"})],
            ),
        )
        answer = await join(box, "m1", *topology)
        assert [status.status_code for status in answer.status] == [3]
        with anyio.fail_after(5):
            while answer.status:
                answer = await box.ask(
                    beat("m1", answer.member_epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[])
                )
                await anyio.sleep(0)
        assert box.topics.made == {"s-r-repartition": (4, {}), "s-c-changelog": (4, {"cleanup.policy": "compact"})}
        assert tasks(answer.active_tasks) == {"0": list(range(10)), "1": list(range(4))}
        row = await described(box)
        assert row.topology.subtopologies[1].state_changelog_topics[0].partitions == 4


async def test_why_a_topic_is_not_made_is_told(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        box.topics.refused["s-c-changelog"] = PolicyViolationError("so it is")
        topology = part("a", state_changelog_topics=[internal("s-c-changelog")])
        answer = await join(box, "m1", topology)
        with anyio.fail_after(5):
            while "so it is" not in answer.status[0].status_detail:
                answer = await box.ask(beat("m1", answer.member_epoch))
                await anyio.sleep(0)
        assert (await described(box)).group_state == "NotReady"


async def test_no_internal_topic_waits_for_another() -> None:
    made: list[str] = []

    class Maker:
        async def create(self, name: str, *_: Any) -> None:
            made.append(name)
            if name == "slow":
                await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        topics = StreamsTopics(Maker(), lambda make, *args, name: tasks.start_soon(make, *args), Clock())
        with anyio.fail_after(5):
            for name in ("slow", "fast", "slow"):
                topics.make(f"of {name}", [StreamsTopic(name, 1, 0)], 1.0)
            while "fast" not in made:
                await anyio.sleep(0)
        tasks.cancel_scope.cancel()
    assert sorted(made) == ["fast", "slow"]


async def test_no_group_waits_until_all_topics_of_another_are_made() -> None:
    made: list[str] = []

    class Maker:
        async def create(self, name: str, *_: Any) -> None:
            await anyio.sleep(0)
            made.append(name)

    async with anyio.create_task_group() as tasks:
        topics = StreamsTopics(Maker(), lambda make, *args, name: tasks.start_soon(make, *args), Clock())
        many = [StreamsTopic(f"many-{number}", 1, 0) for number in range(2_000)]
        topics.make("large", many, 1.0)
        topics.make("small", [StreamsTopic("one", 1, 0)], 1.0)
    assert made.index("one") < 100
    assert len(set(made)) == len(made) == 2_001


async def test_what_cannot_be_made_is_not_tried_by_each_heartbeat() -> None:
    tried: list[str] = []

    class Maker:
        async def create(self, name: str, *_: Any) -> None:
            tried.append(name)
            raise PolicyViolationError("no")

    now = 0.0
    async with anyio.create_task_group() as tasks:
        clock = Clock(lambda: now)
        topics = StreamsTopics(Maker(), lambda make, *args, name: tasks.start_soon(make, *args), clock)
        for _ in range(1_000):  # a hundred members, for ten seconds
            topics.make("s", [StreamsTopic("c", 1, 0)], 10.0)
            await anyio.sleep(0)
            await anyio.sleep(0)
            now += 0.01
        assert topics.failures(["c"])
    assert 8 <= len(tried) <= 12


async def test_what_a_group_was_told_outlives_a_restart(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        first = await join(box, "m1")
        await join(box, "m2")
        row = await described(box)
    async with coordinator(store, **SETTINGS) as box:
        assert await described(box) == row
        again = await box.ask(beat("m1", first.member_epoch))
        assert again.error_code == 0
        assert len(tasks(again.active_tasks)["0"]) == 5


INVALID: list[tuple[Any, type[KafkaError]]] = [
    (joining("m1", instance_id="i"), InvalidRequestError),
    (joining("m1", rebalance_timeout_ms=-1), InvalidRequestError),
    (joining(""), InvalidRequestError),
    (joining("m1", rack_id=""), InvalidRequestError),
    (joining("m1", topology=None), InvalidRequestError),
    (joining("m1", warmup_tasks=None), InvalidRequestError),
    (joining("m1", task_offsets=[]), InvalidRequestError),
    (joining("m1", part(), part()), InvalidRequestError),
    (joining("m1", part(source_topic_regex=["a.*"])), InvalidRequestError),
    (joining("m1", part(state_changelog_topics=[internal("c", 3)])), StreamsInvalidTopologyError),
    (joining("m1", part("__consumer_offsets")), StreamsInvalidTopologyError),
    (joining("m1", part("not/legal")), StreamsInvalidTopologyError),
    (joining("m1", part(source_topics=[])), StreamsInvalidTopologyError),
    (joining("m1", part(repartition_source_topics=[internal("r")])), StreamsInvalidTopologyError),
    (joining("m1", part(copartition_groups=[m.CopartitionGroup(source_topics=[7])])), StreamsInvalidTopologyError),
    (joining("m1", part(repartition_source_topics=[internal("r", -1)])), StreamsInvalidTopologyError),
    (joining("m1", part(repartition_source_topics=[internal("r", -5)])), StreamsInvalidTopologyError),
    (joining("m1", part(state_changelog_topics=[with_replicas("c", -2)])), StreamsInvalidTopologyError),
    (joining("m1", active_tasks=None, standby_tasks=None, warmup_tasks=None), InvalidRequestError),
    (beat("m1", -3), InvalidRequestError),
    (beat("m1", 1, topology=m.StreamsGroupHeartbeatRequestTopology()), InvalidRequestError),
    (beat("m1", 1, active_tasks=[]), InvalidRequestError),
    (beat("m1", 1, active_tasks=[ids("0", *range(20_001))], standby_tasks=[], warmup_tasks=[]), InvalidRequestError),
    (beat("m1", 1, active_tasks=[ids("0")] * 20_001, standby_tasks=[], warmup_tasks=[]), InvalidRequestError),
]


@pytest.mark.parametrize(("request_", "error"), INVALID)
async def test_what_is_refused(store: str, request_: Any, error: type[KafkaError]) -> None:
    async with coordinator(store, **SETTINGS) as box:
        with pytest.raises(error):
            await box.ask(request_)
        assert "s" not in box.groups.table.groups
        assert await scan_all(box.manager, "group") == {}


async def test_groups_of_other_types_stay_what_they_are(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        await join(box, "m1")
        joined = await box.join("s")
        assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        for request in (m.ConsumerGroupDescribeRequest, m.ShareGroupDescribeRequest):
            assert (await box.ask(request(group_ids=["s"]))).groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = await box.ask(m.ListGroupsRequest(types_filter=["streams"], states_filter=["stable"]), 5)
        assert [(row.group_id, row.protocol_type, row.group_type) for row in listed.groups] == [
            ("s", "streams", "streams")
        ]
        left = await box.ask(m.LeaveGroupRequest(group_id="s", members=[m.LeaveGroupRequestMember(member_id="m1")]), 5)
        assert left.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await box.ask(m.DeleteGroupsRequest(groups_names=["s"]))).results[0].error_code == (
            ErrorCode.NON_EMPTY_GROUP
        )
        await box.ask(beat("m1", -1))
        assert (await box.join("s")).error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
        assert box.groups.table.groups["s"].group.type == "classic"


async def test_who_is_refused_leaves_a_classic_group_as_it_is(store: str) -> None:
    async with coordinator(store, **SETTINGS) as box:
        row = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        topic = m.OffsetCommitRequestTopic(name="a", partitions=[row])
        await box.ask(m.OffsetCommitRequest(group_id="s", topics=[topic]), 9)
        with pytest.raises(StreamsInvalidTopologyError):
            await box.ask(joining("m1", part(repartition_source_topics=[internal("r")])))
        assert box.groups.table.groups["s"].group.type == "classic"
        await join(box, "m1")
        assert box.groups.table.groups["s"].group.type == "streams"


@pytest.mark.slow
async def test_a_group_that_is_named_many_times_is_described_bit_by_bit(store: str) -> None:
    parts = [part(subtopology_id=str(number), repartition_sink_topics=["r"] * 10) for number in range(500)]
    readers = part(subtopology_id="x", repartition_source_topics=[internal("r", 3)])
    async with coordinator(store, **SETTINGS) as box:
        await join(box, "m1", *parts, readers)
        request = m.StreamsGroupDescribeRequest(group_ids=["s"] * 50)
        await box.ask(request)  # what is imported and compiled by the first of them does not count
        tracemalloc.start()
        try:
            finish = box.begin(request)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        rows = (await finish()).groups
        assert [len(row.topology.subtopologies) for row in rows] == [501] * 50


async def test_commits_are_fenced_by_the_epochs_of_tasks(store: str) -> None:
    def committing(epoch: int, member: str = "m1", partition: int = 0) -> m.OffsetCommitRequest:
        row = m.OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)
        topic = m.OffsetCommitRequestTopic(name="a", partitions=[row])
        return m.OffsetCommitRequest(
            group_id="s", member_id=member, generation_id_or_member_epoch=epoch, topics=[topic]
        )

    async def code(request: m.OffsetCommitRequest) -> int:
        return int((await box.ask(request, 9)).topics[0].partitions[0].error_code)

    async with coordinator(store, **SETTINGS) as box:
        assert (await join(box, "m1")).member_epoch == 2
        await join(box, "m2")
        told = await box.ask(beat("m1", 2))
        kept, (gone, *_) = tasks(told.active_tasks)["0"], sorted(set(range(10)) - {*tasks(told.active_tasks)["0"]})
        owned = [m.StreamsGroupHeartbeatRequestTaskIds(subtopology_id="0", partitions=kept)]
        done = await box.ask(beat("m1", 2, active_tasks=owned, standby_tasks=[], warmup_tasks=[]))
        assert done.member_epoch == 3
        assert await code(committing(3, partition=kept[0])) == 0
        assert await code(committing(2, partition=kept[0])) == 0
        for epoch, number in ((1, kept[0]), (4, kept[0]), (2, gone)):
            assert await code(committing(epoch, partition=number)) == ErrorCode.STALE_MEMBER_EPOCH
        assert await code(committing(3, "nobody")) == ErrorCode.UNKNOWN_MEMBER_ID
        asked = m.OffsetFetchRequestGroup(group_id="s", member_id="m1", member_epoch=2, topics=None)
        fetched = await box.ask(m.OffsetFetchRequest(groups=[asked]), 9)
        assert fetched.groups[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
