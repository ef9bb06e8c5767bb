"""Consumer groups (KIP-848) through their handlers: what is stored, restarts, other types, and who is refused."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator
from types import GeneratorType
from typing import Any, cast

import anyio
import pytest

from kclient.errors import (
    CoordinatorLoadInProgressError,
    ErrorCode,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
    UnsupportedAssignorError,
)
from kclient.gateway.contexts import RequestContext
from kclient.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kclient.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from kclient.protocol.registry import ApiKey
from tests.all_rows import scan_all
from tests.unit.gateway_groups.harness import Harness, committed, coordinator, fresh_name, reset

pytestmark = pytest.mark.anyio

Owned = dict[bytes, list[int]]


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def beat(member: str, epoch: int, owned: Owned | None = None, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    if owned is not None:
        fields["topic_partitions"] = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic, partitions=numbers)
            for topic, numbers in owned.items()
        ]
    return ConsumerGroupHeartbeatRequest(**{"group_id": "g", "member_id": member, "member_epoch": epoch, **fields})


def joining(member: str, topics: list[str] | None = None, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    names = ["a"] if topics is None else topics
    return beat(member, 0, {}, **{"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names, **fields})


def assigned(answer: Any) -> Owned | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


async def join(box: Harness, member: str, **fields: Any) -> Any:
    answer = await box.ask(joining(member, **fields))
    assert answer.error_code == 0, answer.error_message
    return answer


async def test_a_member_joins_reads_commits_and_leaves(store: str) -> None:
    async with coordinator(store) as box:
        answer = await join(box, "m1")
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m1", 1, 5000)
        assert assigned(answer) == {b"a" * 16: list(range(10))}
        again = await box.ask(beat("m1", 1))
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)

        def commit(epoch: int, version: int = 9) -> Any:
            row = OffsetCommitRequestPartition(partition_index=3, committed_offset=7)
            topic = OffsetCommitRequestTopic(name="a", topic_id=b"a" * 16, partitions=[row])
            request = OffsetCommitRequest(
                group_id="g", member_id="m1", generation_id_or_member_epoch=epoch, topics=[topic]
            )
            return box.ask(request, version)

        async def code(epoch: int, version: int = 9) -> int:
            answer = await commit(epoch, version)
            return int(answer.topics[0].partitions[0].error_code)

        assert await code(1) == await code(1, 10) == 0
        assert await code(2) == await code(0) == ErrorCode.STALE_MEMBER_EPOCH
        assert await code(1, 8) == ErrorCode.UNSUPPORTED_VERSION
        assert await code(-1) == ErrorCode.STALE_MEMBER_EPOCH

        async def fetch(member: str | None, epoch: int) -> Any:
            topics = [OffsetFetchRequestTopics(name="a", topic_id=b"a" * 16, partition_indexes=[3])]
            group = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=epoch, topics=topics)
            return (await box.ask(OffsetFetchRequest(groups=[group]), 9)).groups[0]

        for member, epoch, error in (
            ("m1", 1, ErrorCode.NONE),
            (None, -1, ErrorCode.NONE),
            ("m1", 2, ErrorCode.STALE_MEMBER_EPOCH),
            ("m2", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            found = await fetch(member, epoch)
            assert found.error_code == error
            assert [each.partitions[0].committed_offset for each in found.topics] == ([] if error else [7])
        left = await box.ask(beat("m1", -1))
        assert (left.error_code, left.member_epoch) == (0, -1)
        assert await scan_all(box.manager, "group-member/") == {}
        assert (await box.ask(DeleteGroupsRequest(groups_names=["g"]))).results[0].error_code == 0
        assert await scan_all(box.manager, "group") == {}


async def test_a_restart_loses_no_epoch(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        await join(box, "m1")
        two = await join(box, "m2", instance_id="two", rack_id="here", server_assignor="range")
        assert (two.member_epoch, assigned(two)) == (2, {})
        one = await box.ask(beat("m1", 1, {b"a" * 16: list(range(10))}))
        assert (one.member_epoch, assigned(one)) == (1, {b"a" * 16: list(range(5, 10))})  # static members come first
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        (group,) = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
        members = {each.member_id: each for each in group.members}
        assert (members["m2"].instance_id, members["m2"].rack_id, members["m2"].member_type) == ("two", "here", 1)
        one = await box.ask(beat("m1", 1, {b"a" * 16: list(range(5, 10))}))
        assert one.member_epoch == 2
        two = await box.ask(beat("m2", 2, {}, instance_id="two"))
        assert assigned(two) == {b"a" * 16: list(range(5))}
        (group,) = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert (group.group_state, group.group_epoch) == ("Stable", 2)


async def test_who_lists_and_describes_it(store: str) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        await box.member("h")
        listed = await box.ask(ListGroupsRequest(types_filter=["Consumer"]))
        (group,) = listed.groups
        assert (group.group_id, group.protocol_type, group.group_state, group.group_type) == (
            "g", "consumer", "Stable", "consumer",
        )  # fmt: skip
        both = await box.ask(ListGroupsRequest(states_filter=["stable"]))
        assert [each.group_id for each in both.groups] == ["g", "h"]
        (described,) = (await box.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described.error_message == "Group g is not a classic group."
        found = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g", "h", "i"]))).groups
        assert [each.error_code for each in found] == [0, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND]
        member = found[0].members[0]
        assert (member.subscribed_topic_names, found[0].assignor_name) == (["a"], "uniform")
        assert [each.topic_name for each in member.target_assignment.topic_partitions] == ["a"]
        assert (await box.ask(DeleteGroupsRequest(groups_names=["g"]))).results[
            0
        ].error_code == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize(
    ("request_", "version", "error"),
    [
        (beat("", 1), 0, InvalidRequestError),
        (joining(""), 1, InvalidRequestError),
        (joining("m", group_id=""), 1, InvalidRequestError),
        (joining("m", instance_id=""), 1, InvalidRequestError),
        (joining("m", rack_id=""), 1, InvalidRequestError),
        (joining("m", rebalance_timeout_ms=-1), 1, InvalidRequestError),
        (joining("m", subscribed_topic_names=None), 1, InvalidRequestError),
        (beat("m", 0, {b"a" * 16: [1]}, rebalance_timeout_ms=1, subscribed_topic_names=["a"]), 1, InvalidRequestError),
        (beat("m", -2), 1, InvalidRequestError),
        (beat("m", -3), 1, InvalidRequestError),
        (joining("m", topics=[f"t{number}" for number in range(10_001)]), 1, InvalidRequestError),
        (joining("m", topics=["t" * 250]), 1, InvalidRequestError),
        (joining("m", server_assignor="none"), 1, UnsupportedAssignorError),
        (joining("m", subscribed_topic_regex="(unclosed"), 1, InvalidRegularExpressionError),
        (beat("m", 1), 1, GroupIdNotFoundError),
        (beat("m", -1), 1, GroupIdNotFoundError),
    ],
)
async def test_what_is_refused(store: str, request_: Any, version: int, error: type[KafkaError]) -> None:
    async with coordinator(store) as box:
        with pytest.raises(error):
            await box.ask(request_, version)
        assert box.groups.table.groups == {}


async def test_old_clients_are_given_an_id(store: str) -> None:
    async with coordinator(store) as box:
        answer = await box.ask(joining(""), 0)
        assert answer.error_code == 0
        assert len(answer.member_id) == 36


async def test_patterns_follow_the_topics(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        answer = await join(box, "m1", topics=[], subscribed_topic_regex="[ab]|x.*")
        assert set(assigned(answer) or ()) == {b"a" * 16, b"b" * 16}
        box.topics.put("x1", b"x" * 16, 2)
        answer = await box.ask(beat("m1", 1, assigned(answer)))
        assert (assigned(answer) or {})[b"x" * 16] == [0, 1]


async def test_an_empty_group_takes_whatever_protocol_comes(store: str) -> None:
    """What was committed stays."""
    async with coordinator(store) as box:
        await committed(box, "g", a=5)
        await join(box, "m1")
        assert (await box.ask(beat("m1", -1))).error_code == 0
        joined = await box.member("g")
        assert box.groups.table.groups["g"].group.type == "classic"
        leave = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequestMember(member_id=joined.member_id)])
        assert (await box.ask(leave)).members[0].error_code == 0
        await join(box, "m2")
        assert box.groups.table.groups["g"].group.type == "consumer"
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert (found := offsets.get("a", 0)) is not None
        assert found.offset == 5
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        assert box.groups.table.groups["g"].group.type == "consumer"
        assert (await box.ask(beat("m2", 1))).error_code == 0


async def test_a_group_of_others_than_consumers_stays_as_it_is(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.join("g", protocol_type="connect")
        assert joined.error_code == 0
        with pytest.raises(GroupIdNotFoundError, match="connect"):
            await box.ask(joining("m1"))
        heartbeat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        assert (await box.ask(heartbeat)).error_code == 0


async def test_an_administrator_removes_members(store: str) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        await join(box, "m2", instance_id="two")
        rows = [
            LeaveGroupRequestMember(member_id="m1"),
            LeaveGroupRequestMember(member_id="", group_instance_id="two"),
            LeaveGroupRequestMember(member_id="m3"),
        ]
        answer = await box.ask(LeaveGroupRequest(group_id="g", members=rows))
        assert [each.error_code for each in answer.members] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert box.groups.table.groups["g"].group.idle


async def test_rows_of_members_whose_group_has_gone_are_removed(store: str) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        await box.manager.commit({"group/g": None}, {}, lease=box.lease.current)
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        with anyio.fail_after(10):
            while await scan_all(box.manager, "group-member/"):
                await anyio.lowlevel.checkpoint()
        assert box.groups.table.groups == {}


async def test_a_member_whose_row_is_damaged_joins_again(store: str, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        await box.manager.commit({"group-member/g/m1": b"damaged"}, {}, lease=box.lease.current)
        await box.groups.aclose()
        box.renew()
        await box.groups.start()
        assert "join again" in caplog.text
        assert (await join(box, "m1")).member_epoch >= 1


MEMBERS, PARTITIONS = 1_000, 1_000


@pytest.mark.slow
async def test_a_thousand_members_on_a_thousand_partitions(store: str) -> None:
    """A heartbeat costs little, and a change is worked out in time, off the loop."""
    async with coordinator(store) as box:
        box.topics.by_name["a"].partitions = PARTITIONS
        epochs: dict[str, int] = {}
        owned: dict[str, Owned] = {}

        async def one(member: str, request: ConsumerGroupHeartbeatRequest) -> None:
            answer = await box.ask(request)
            assert answer.error_code == 0, answer.error_message
            epochs[member] = answer.member_epoch
            told = assigned(answer)
            owned[member] = owned.get(member, {}) if told is None else told

        async def everybody() -> None:
            for member in list(epochs):
                await one(member, beat(member, epochs[member], owned[member]))

        for number in range(MEMBERS):
            await one(f"m{number}", joining(f"m{number}"))
        group = box.groups.table.groups["g"].group
        with anyio.fail_after(60):
            while group.shown_state != "Stable":
                await everybody()
                await anyio.sleep(0.05)
        assert sorted(n for mine in owned.values() for numbers in mine.values() for n in numbers) == list(
            range(PARTITIONS)
        )
        times = []
        for member in list(epochs)[:500]:
            request = beat(member, epochs[member])
            began = time.perf_counter()
            finish = box.begin(request)
            times.append(time.perf_counter() - began)
            await finish()
        assert statistics.median(times) < 0.001  # with both codecs, on whatever machine this is
        snapshot: Any = group.snapshot()
        epoch = snapshot.assignment_epoch
        began = time.perf_counter()
        await box.ask(beat("m0", -1))
        with anyio.fail_after(30):
            while group.snapshot().assignment_epoch == epoch:
                await anyio.sleep(0.01)
        assert time.perf_counter() - began < 5.0  # the interval is one second, and machines are slow at times


async def test_a_topic_that_a_heartbeat_names_in_several_places(store: str) -> None:
    """What is in any of them has not been given up."""
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        await join(box, "m1")
        await join(box, "m2")
        told = assigned(await box.ask(beat("m1", 1, {b"a" * 16: list(range(10))}))) or {}
        assert len(told[b"a" * 16]) == 5
        owned = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=b"a" * 16, partitions=numbers)
            for numbers in (sorted(set(range(10)) - {*told[b"a" * 16]}), told[b"a" * 16])
        ]
        await box.ask(beat("m1", 1, topic_partitions=owned))
        assert assigned(await box.ask(beat("m2", 2, {}))) is None  # m1 still has them all


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (joining("m2", [], subscribed_topic_regex="("), InvalidRegularExpressionError),
        (beat("m2", 5), UnknownMemberIdError),
        (beat("m1", 5), FencedMemberEpochError),
    ],
    ids=["pattern", "stranger", "epoch"],
)
async def test_patterns_are_looked_up_although_the_first_heartbeat_is_refused(
    store: str, refused: Any, error: type[KafkaError]
) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        answer = await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
        assert assigned(answer) == {}
        box.topics.put("x1", b"x" * 16, 2)
        with pytest.raises(error):
            await box.ask(refused)
        answer = await box.ask(beat("m1", 1, {}))
        assert assigned(answer) == {b"x" * 16: [0, 1]}


async def test_a_heartbeat_of_very_many_partitions_is_worked_on_in_steps(store: str) -> None:
    async with coordinator(store) as box:
        await join(box, "m1")
        many = {number.to_bytes(16, "big"): [0] for number in range(1_000)}
        large = {b"a" * 16: list(range(100_000))}
        for owned in (many, large):
            context = RequestContext(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 7, "c", box.connection, cast("Any", None))
            work = box.table.handlers[ApiKey.CONSUMER_GROUP_HEARTBEAT].begin(beat("m1", 1, owned), context)
            assert isinstance(work, GeneratorType)
            assert len(list(zip(range(10), work, strict=False))) == 10


async def test_a_member_that_reads_something_else_again_and_again_stays_within_the_memory(store: str) -> None:
    async with coordinator(store, connections_max_memory_bytes=1 << 24) as box:
        await join(box, "m1")

        def reading(number: int) -> ConsumerGroupHeartbeatRequest:
            names = [f"{number}-{each}-{'x' * 200}" for each in range(2_000)]
            return beat("m1", 1, subscribed_topic_names=names)

        assert (await box.ask(reading(0))).error_code == 0
        with pytest.raises(CoordinatorLoadInProgressError):
            for number in range(1, 18):
                await box.ask(reading(number))
        assert box.groups.table.groups["g"].group.size < 1 << 22
        assert (await box.ask(beat("m1", 1))).error_code == 0
