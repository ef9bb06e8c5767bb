"""The handlers of groups: requests and answers in every version that is advertised."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kclient.protocol.registry import ApiKey
from tests.unit.gateway_groups.harness import Harness, coordinator, fresh_name, reset, subscription

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def commit_request(version: int, group: str = "g", **fields: object) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="note"),
        OffsetCommitRequestPartition(partition_index=1, committed_offset=6, committed_metadata=None),
    ]
    topic = OffsetCommitRequestTopic(name="a", partitions=partitions)
    if version >= 10:
        topic = OffsetCommitRequestTopic(topic_id=b"a" * 16, partitions=partitions)
    return OffsetCommitRequest(group_id=group, topics=[topic], **fields)  # type: ignore[arg-type]


# ---- FindCoordinator -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator(store: str, version: int) -> None:
    async with coordinator(store) as box:
        if version < 4:
            found = await box.ask(FindCoordinatorRequest(key="g"), version)
            assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "gateway", 9092)
            return
        answer = await box.ask(FindCoordinatorRequest(coordinator_keys=["g", "h"]), version)
        assert [each.key for each in answer.coordinators] == ["g", "h"]
        for each in answer.coordinators:
            assert (each.error_code, each.node_id, each.host, each.port) == (0, 1, "gateway", 9092)


async def test_find_coordinator_of_an_unknown_type(store: str) -> None:
    async with coordinator(store) as box:
        answer = await box.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"]), 6)
        assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


# ---- membership ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_join_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"meta")],
        )
        if version >= 4:
            asked = await box.ask(request, version)
            assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
            request.member_id = asked.member_id
        joined = await box.ask(request, version)
        assert joined.error_code == 0
        assert (joined.generation_id, joined.protocol_name, joined.leader) == (1, "range", joined.member_id)
        assert [(member.member_id, bytes(member.metadata)) for member in joined.members] == [
            (joined.member_id, b"meta")
        ]
        assert joined.member_id.startswith("client-")
        if version >= 7:
            assert joined.protocol_type == "consumer"
        member = next(iter(box.groups.table.groups["g"].group.members))
        assert member.rebalance_timeout_ms == (30_000 if version >= 1 else 10_000)
        assert member.client_host == "/127.0.0.1"


async def test_a_new_member_whose_client_goes_while_it_waits_is_none(store: str) -> None:
    async with coordinator(store) as box:
        first = await box.member()
        box.begin(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"meta")],
            ),
            3,
        )
        members = box.groups.table.groups["g"].group.members
        assert len(members) == 2
        box.connection.end()
        assert [member.member_id for member in members] == [first.member_id]


@pytest.mark.parametrize("version", range(10))
async def test_join_errors_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        for fields, code in (
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"session_timeout_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ):
            values = {"group_id": "g", "session_timeout_ms": 10_000, "protocol_type": "consumer"}
            values["protocols"] = [JoinGroupRequestProtocol(name="range")]  # type: ignore[assignment]
            answer = await box.ask(JoinGroupRequest(**(values | fields)), version)  # type: ignore[arg-type]
            assert answer.error_code == code
            assert (answer.generation_id, answer.leader) == (-1, "")
            assert answer.protocol_name == (None if version >= 7 else "")


async def test_client_without_an_id(store: str) -> None:
    async with coordinator(store) as box:
        box.client_id = None
        assert (await box.join()).error_code == 0


@pytest.mark.parametrize("version", range(6))
async def test_sync_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        joined = await box.join()
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        )
        if version >= 5:
            request.protocol_type, request.protocol_name = "consumer", "range"
        synced = await box.ask(request, version)
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"mine")
        if version >= 5:
            assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


async def test_sync_errors(store: str) -> None:
    async with coordinator(store) as box:
        unknown = await box.ask(SyncGroupRequest(group_id="g", generation_id=1, member_id="x"), 3)
        assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        invalid = await box.ask(SyncGroupRequest(group_id="", generation_id=1, member_id="x"), 3)
        assert invalid.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert (await box.ask(request, version)).error_code == 0
        request.generation_id = 0
        assert (await box.ask(request, version)).error_code == ErrorCode.ILLEGAL_GENERATION
        request.group_id = "nobody's"
        assert (await box.ask(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3))
async def test_leave_alone(store: str, version: int) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
        assert (await box.ask(request, version)).error_code == 0
        assert (await box.ask(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        request.group_id = "nobody's"
        assert (await box.ask(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        request.group_id = ""
        assert (await box.ask(request, version)).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(3, 6))
async def test_leave_together(store: str, version: int) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        members = [LeaveGroupRequestMember(member_id=each) for each in (joined.member_id, "stranger")]
        answer = await box.ask(LeaveGroupRequest(group_id="g", members=members), version)
        assert answer.error_code == 0
        assert [member.error_code for member in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        answer = await box.ask(LeaveGroupRequest(group_id="nobody's", members=members), version)
        assert [member.error_code for member in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        answer = await box.ask(LeaveGroupRequest(group_id="", members=members), version)
        assert (answer.error_code, answer.members) == (ErrorCode.INVALID_GROUP_ID, [])


async def test_other_protocol_types_pass_through_opaque(store: str) -> None:
    async with coordinator(store) as box:
        metadata = bytes(range(256))
        joined = await box.join(
            protocol_type="connect", protocols=[JoinGroupRequestProtocol(name="sessioned", metadata=metadata)]
        )
        assert bytes(joined.members[0].metadata) == metadata
        assert bytes((await box.sync(joined, assignment=metadata)).assignment) == metadata
        described = (await box.ask(DescribeGroupsRequest(groups=["g"]))).groups[0]
        assert (described.protocol_type, described.protocol_data) == ("connect", "sessioned")
        assert bytes(described.members[0].member_assignment) == metadata
        deleted = await box.ask(delete_offsets_request("a"))
        assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP


async def test_two_members_are_served_at_the_same_time(store: str) -> None:
    async with coordinator(store, group_initial_rebalance_delay_ms=50) as box:
        synced: list[bytes] = []

        async def member() -> None:
            joined = await box.join()
            synced.append(bytes((await box.sync(joined, assignment=b"half")).assignment))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member)
                tasks.start_soon(member)
        assert synced == [b"half", b"half"]


# ---- OffsetCommit and OffsetFetch ------------------------------------------------------------------------


async def fetched(box: Harness, version: int, group: str = "g") -> list[tuple[int, int, str | None, int]]:
    """What OffsetFetch says of partitions 0 to 2 of topic a: partition, offset, metadata, error."""
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1, 2])]
        answer = await box.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
        assert answer.error_code == 0
        found = answer.topics[0]
        assert found.name == "a"
    else:
        wanted = OffsetFetchRequestTopics(name="a", partition_indexes=[0, 1, 2])
        if version >= 10:
            wanted = OffsetFetchRequestTopics(topic_id=b"a" * 16, partition_indexes=[0, 1, 2])
        groups = [OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
        answer = await box.ask(OffsetFetchRequest(groups=groups), version)
        assert answer.groups[0].error_code == 0
        found = answer.groups[0].topics[0]
        assert (found.topic_id == b"a" * 16) if version >= 10 else (found.name == "a")
    return [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in found.partitions]


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_and_fetch_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        answer = await box.ask(commit_request(version), version)
        codes = [partition.error_code for partition in answer.topics[0].partitions]
        assert codes == [0, 0]
        for fetch_version in range(1, 11):
            assert await fetched(box, fetch_version) == [(0, 5, "note", 0), (1, 6, "", 0), (2, -1, "", 0)]
            assert await fetched(box, fetch_version, "nobody's") == [(0, -1, "", 0), (1, -1, "", 0), (2, -1, "", 0)]


@pytest.mark.parametrize("version", range(2, 8))
async def test_fetch_all(store: str, version: int) -> None:
    async with coordinator(store) as box:
        await box.ask(commit_request(9), 9)
        answer = await box.ask(OffsetFetchRequest(group_id="g", topics=None), version)
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics] == [("a", [0, 1])]
        assert (await box.ask(OffsetFetchRequest(group_id="nobody's", topics=None), version)).topics == []


@pytest.mark.parametrize("version", range(8, 11))
async def test_fetch_all_of_several_groups(store: str, version: int) -> None:
    async with coordinator(store) as box:
        await box.ask(commit_request(9), 9)
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "nobody's")]
        answer = await box.ask(OffsetFetchRequest(groups=groups, require_stable=True), version)
        assert [group.group_id for group in answer.groups] == ["g", "nobody's"]
        assert [len(group.topics) for group in answer.groups] == [1, 0]
        assert [p.committed_offset for p in answer.groups[0].topics[0].partitions] == [5, 6]


async def test_commit_of_a_member(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        for member_id, generation, code in (
            (joined.member_id, 1, ErrorCode.NONE),
            (joined.member_id, 0, ErrorCode.ILLEGAL_GENERATION),
            ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            request = commit_request(7, member_id=member_id, generation_id_or_member_epoch=generation)
            answer = await box.ask(request, 7)
            assert [partition.error_code for partition in answer.topics[0].partitions] == [code, code]


async def test_commit_in_a_group_that_is_not_there(store: str) -> None:
    async with coordinator(store) as box:
        for version, code in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
            request = commit_request(version, member_id="m", generation_id_or_member_epoch=3)
            answer = await box.ask(request, version)
            assert [partition.error_code for partition in answer.topics[0].partitions] == [code, code]
        assert not box.groups.table.groups


async def test_metadata_that_is_too_long_refuses_only_its_partition(store: str) -> None:
    async with coordinator(store, offset_metadata_max_bytes=10) as box:
        request = commit_request(8)
        request.topics[0].partitions[0].committed_metadata = "x" * 11
        answer = await box.ask(request, 8)
        codes = [partition.error_code for partition in answer.topics[0].partitions]
        assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]
        assert [offset for _, offset, _, _ in await fetched(box, 5)] == [-1, 6, -1]


async def test_unknown_topics(store: str) -> None:
    async with coordinator(store) as box:
        request = commit_request(9)
        request.topics[0].name = "unknown"
        answer = await box.ask(request, 9)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = commit_request(10)
        request.topics[0].topic_id = b"?" * 16
        answer = await box.ask(request, 10)
        assert answer.topics[0].topic_id == b"?" * 16
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        topics = [OffsetFetchRequestTopics(topic_id=b"?" * 16, partition_indexes=[0])]
        found = await box.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)]), 10)
        partition = found.groups[0].topics[0].partitions[0]
        assert (partition.committed_offset, partition.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_leader_epoch_round_trips(store: str) -> None:
    async with coordinator(store) as box:
        request = commit_request(6)
        request.topics[0].partitions[0].committed_leader_epoch = 12
        await box.ask(request, 6)
        topics = [OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1])]
        answer = await box.ask(OffsetFetchRequest(group_id="g", topics=topics), 5)
        assert [partition.committed_leader_epoch for partition in answer.topics[0].partitions] == [12, -1]
        for version in range(1, 5):  # which do not know it
            answer = await box.ask(OffsetFetchRequest(group_id="g", topics=topics), version)
            assert [partition.committed_offset for partition in answer.topics[0].partitions] == [5, 6]


# ---- OffsetDelete ----------------------------------------------------------------------------------------


def delete_offsets_request(*topics: str, group: str = "g") -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    wanted = [OffsetDeleteRequestTopic(name=topic, partitions=partitions) for topic in topics]
    return OffsetDeleteRequest(group_id=group, topics=wanted)


async def test_offset_delete(store: str) -> None:
    async with coordinator(store) as box:
        missing = await box.ask(delete_offsets_request("a"))
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await box.ask(commit_request(8), 8)
        answer = await box.ask(delete_offsets_request("a", "unknown"))
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [offset for _, offset, _, _ in await fetched(box, 5)] == [-1, 6, -1]
        request = delete_offsets_request("a")
        request.topics[0].partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in (-1, 0, 99)]
        codes = [row.error_code for row in (await box.ask(request)).topics[0].partitions]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [unknown, 0, unknown], "of one that is there nothing needs to be committed"


async def test_offset_delete_spares_topics_that_are_read(store: str) -> None:
    async with coordinator(store) as box:
        await box.member()
        answer = await box.ask(delete_offsets_request("a", "b"))
        assert answer.error_code == 0
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]


@pytest.mark.slow
async def test_of_a_subscription_to_many_topics_only_those_asked_about_are_kept(store: str) -> None:
    async with coordinator(store) as box:
        metadata = subscription(*(f"{number:05x}" for number in range(40_000)), "a")
        joined = await box.join(protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)])
        assert (await box.sync(joined)).error_code == 0
        await box.ask(delete_offsets_request("b"))  # compiles what there is to compile
        tracemalloc.start()
        try:
            answer = await box.ask(delete_offsets_request("a", "b"))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]
        assert most < 1 << 20, "all of their names take 4 MiB"


async def test_offset_delete_with_metadata_that_cannot_be_read(store: str) -> None:
    async with coordinator(store) as box:
        await box.ask(commit_request(8), 8)
        joined = await box.join(protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01\xff")])
        await box.sync(joined)
        answer = await box.ask(delete_offsets_request("a", "b"))
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]


# ---- administration --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_list_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        await box.member("stable")
        await box.ask(commit_request(8, "simple"), 8)
        answer = await box.ask(ListGroupsRequest(), version)
        listed = [(group.group_id, group.protocol_type) for group in answer.groups]
        assert listed == [("stable", "consumer"), ("simple", "")]
        if version >= 4:
            assert [group.group_state for group in answer.groups] == ["Stable", "Empty"]
            some = await box.ask(ListGroupsRequest(states_filter=["EMPTY", "Dead"]), version)
            assert [group.group_id for group in some.groups] == ["simple"]
        if version >= 5:
            assert {group.group_type for group in answer.groups} == {"classic"}
            assert len((await box.ask(ListGroupsRequest(types_filter=["Classic"]), 5)).groups) == 2
            assert (await box.ask(ListGroupsRequest(types_filter=["share"]), 5)).groups == []


@pytest.mark.parametrize("version", range(7))
async def test_describe_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        request = DescribeGroupsRequest(groups=["g", "nobody's"], include_authorized_operations=version >= 3)
        group, missing = (await box.ask(request, version)).groups
        assert (group.error_code, group.group_state) == (0, "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        member = group.members[0]
        assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "client", "/127.0.0.1")
        assert bytes(member.member_metadata) == subscription("a")
        assert bytes(member.member_assignment) == b"mine"
        if version >= 3:
            assert group.authorized_operations == 3400
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


async def test_describe_hides_what_does_not_hold_yet(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.join()
        group = (await box.ask(DescribeGroupsRequest(groups=["g"]))).groups[0]
        assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
        assert group.members[0].member_id == joined.member_id
        assert bytes(group.members[0].member_metadata) == b""


@pytest.mark.parametrize("version", range(3))
async def test_delete_in_every_version(store: str, version: int) -> None:
    async with coordinator(store) as box:
        await box.member("stable")
        await box.ask(commit_request(8, "simple"), 8)
        request = DeleteGroupsRequest(groups_names=["stable", "simple", "nobody's", "simple"])
        results = (await box.ask(request, version)).results
        assert [(result.group_id, result.error_code) for result in results] == [
            ("stable", ErrorCode.NON_EMPTY_GROUP),
            ("simple", 0),
            ("nobody's", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        assert list(box.groups.table.groups) == ["stable"]
    async with coordinator(store) as box:
        assert list(box.groups.table.groups) == ["stable"]


# ---- what is advertised is served ------------------------------------------------------------------------


async def test_every_advertised_version_can_be_declared(store: str) -> None:
    from kclient.protocol.registry import request_class

    async with coordinator(store) as box:
        assert len(box.table.versions) == 21  # with ApiVersions, which is in every table
        for key, (oldest, newest) in box.table.versions.items():
            declared = request_class(ApiKey(key)).VERSIONS
            assert declared[0] <= oldest <= newest <= declared[1]


# ---- groups of other protocol types -----------------------------------------------------------------------


async def test_a_group_of_connect_workers(store: str) -> None:
    """What Connect's workers tell each other is opaque: no consumer's subscription could be read from these bytes."""
    metadata = [b"\x00\x01\x00\xffhttp://worker-%d:8083/\xfe" % number for number in range(2)]
    assignments = [bytes(range(256)) * (number + 1) for number in range(2)]
    async with coordinator(store) as box:

        def request(number: int, member_id: str = "") -> JoinGroupRequest:
            return JoinGroupRequest(
                group_id="connect",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                protocol_type="connect",
                protocols=[
                    JoinGroupRequestProtocol(name="sessioned", metadata=metadata[number]),
                    JoinGroupRequestProtocol(name="compatible", metadata=b"other"),
                ],
            )

        ids = [(await box.ask(request(number), 9)).member_id for number in range(2)]
        begun = [box.begin(request(number, member_id), 9) for number, member_id in enumerate(ids)]
        joined = [await finish() for finish in begun]
        if joined[0].generation_id != joined[1].generation_id:  # the first was alone: it joins the second's generation
            joined[0] = await box.ask(request(0, ids[0]), 9)
        assert [(answer.error_code, answer.protocol_type, answer.protocol_name) for answer in joined] == [
            (0, "connect", "sessioned")
        ] * 2
        leader = next(answer for answer in joined if answer.leader == answer.member_id)
        assert {member.member_id: bytes(member.metadata) for member in leader.members} == dict(
            zip(ids, metadata, strict=True)
        )
        plan = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in zip(ids, assignments, strict=True)
        ]
        syncs = [
            box.begin(
                SyncGroupRequest(
                    group_id="connect",
                    generation_id=leader.generation_id,
                    member_id=answer.member_id,
                    protocol_type="connect",
                    protocol_name="sessioned",
                    assignments=plan if answer is leader else [],
                ),
                5,
            )
            for answer in joined
        ]
        synced = [await finish() for finish in syncs]
        assert [(answer.error_code, answer.protocol_type) for answer in synced] == [(0, "connect")] * 2
        assert [bytes(answer.assignment) for answer in synced] == assignments
        (described,) = (await box.ask(DescribeGroupsRequest(groups=["connect"]), 5)).groups
        assert (described.error_code, described.group_state) == (0, "Stable")
        assert (described.protocol_type, described.protocol_data) == ("connect", "sessioned")
        assert {
            member.member_id: (bytes(member.member_metadata), bytes(member.member_assignment))
            for member in described.members
        } == dict(zip(ids, zip(metadata, assignments, strict=True), strict=True))
        (listed,) = (await box.ask(ListGroupsRequest(), 5)).groups
        assert (listed.group_id, listed.protocol_type) == ("connect", "connect")
