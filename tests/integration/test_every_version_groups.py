"""The APIs of groups in every version that a broker advertises: lives of groups, one API's version pinned in each.

A member finds its coordinator, joins, gets its assignment, says that it lives, commits, is described and listed,
reads its offsets, leaves; then the group's offsets and the group are deleted. Every other request goes in its newest
version, so old and new versions of different APIs meet in one group. The brokers are those of `server`.
"""

from __future__ import annotations

import uuid
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.protocol import ZERO_UUID, ApiKey
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponseDescribedGroup,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    MetadataResponseTopic,
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
from tests.proved import Proved
from tests.wire_session import ON_EACH_SERVER, WireSession, until, wire_session

pytestmark = pytest.mark.anyio

NOTHING_ASKED = -(2**31)
PARTITIONS = 2
STATIC_SINCE = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
    ApiKey.DESCRIBE_GROUPS: 4,
}
"""From which version on an API knows static members (KIP-345)."""
IN_ZOOKEEPER = {ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH}
"""Their version 0 is about offsets in ZooKeeper."""


class Group:
    """One group with one member on one connection."""

    def __init__(self, session: WireSession, topic: MetadataResponseTopic, instance: str | None = None) -> None:
        self.session = session
        self.topic = topic
        self.name = f"g-{uuid.uuid4().hex[:12]}"
        self.instance = instance
        self.member = ""
        self.generation = -1
        self.subscription = encode_embedded(ConsumerProtocolSubscription(topics=[topic.name or ""]))
        self.assignment = assignment(topic, [0, 1])

    def of_member(self) -> dict[str, Any]:
        """What requests of a member have in common."""
        named = {} if self.instance is None else {"group_instance_id": self.instance}
        return {"group_id": self.name, "member_id": self.member, **named}

    async def find(self) -> None:
        version = self.session.version(ApiKey.FIND_COORDINATOR)
        request = FindCoordinatorRequest(key=self.name)
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=[self.name, f"{self.name}-2"])

        async def ask() -> Any:
            answer = await self.session(request)
            if version < 4:
                return [answer]
            assert [item.key for item in answer.coordinators] == request.coordinator_keys
            return answer.coordinators

        # the first question makes the broker create its topic of offsets
        found = await until(ask, lambda items: all(item.error_code == 0 for item in items))
        address = str(self.session.connection.address).split(":")
        assert all([item.host, str(item.port)] == address for item in found)

    async def join(self) -> JoinGroupResponse:
        version = self.session.version(ApiKey.JOIN_GROUP)
        request = JoinGroupRequest(
            **self.of_member(),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self.subscription)],
        )
        loading = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
        first: JoinGroupResponse = await until(
            lambda: self.session(request), lambda answer: answer.error_code not in loading
        )
        if version >= 4 and not self.member and self.instance is None:
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
            request.member_id = first.member_id
            first = await self.session(request)
        assert first.error_code == 0
        assert first.protocol_name == "range"
        assert first.protocol_type == ("consumer" if version >= 7 else None)
        assert first.member_id
        self.member, self.generation = first.member_id, first.generation_id
        return first

    async def sync(self, assignments: dict[str, bytes]) -> bytes:
        request = SyncGroupRequest(
            **self.of_member(),
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in assignments.items()],
        )
        answer = await self.session(request)
        assert answer.error_code == 0
        with_protocol = self.session.version(ApiKey.SYNC_GROUP) >= 5
        assert (answer.protocol_type, answer.protocol_name) == (
            ("consumer", "range") if with_protocol else (None, None)
        )
        return bytes(answer.assignment)

    async def heartbeat(self, generation: int | None = None) -> int:
        answer = await self.session(
            HeartbeatRequest(**self.of_member(), generation_id=self.generation if generation is None else generation)
        )
        return int(answer.error_code)

    async def commit(self, offsets: dict[int, int]) -> list[int]:
        version = self.session.version(ApiKey.OFFSET_COMMIT)
        request = OffsetCommitRequest(
            **(self.of_member() if version else {"group_id": self.name}),
            generation_id_or_member_epoch=self.generation,
            topics=[
                OffsetCommitRequestTopic(
                    **self.topic_named(version),
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offset,
                            committed_leader_epoch=0,
                            committed_metadata=f"at {offset}",
                        )
                        for number, offset in offsets.items()
                    ],
                )
            ],
        )
        answer = await self.session(request)
        assert (answer.topics[0].name or None, answer.topics[0].topic_id) == (
            (None, self.topic.topic_id) if version >= 10 else (self.topic.name, ZERO_UUID)
        )
        return [item.error_code for item in answer.topics[0].partitions]

    def topic_named(self, version: int) -> dict[str, Any]:
        """The topic by its name, from v10 of OffsetCommit and OffsetFetch on by its id."""
        return {"topic_id": self.topic.topic_id} if version >= 10 else {"name": self.topic.name}

    async def committed(self, everything: bool = False) -> dict[int, tuple[int, str | None, int]]:
        """Offset, metadata and leader epoch by partition."""
        version = self.session.version(ApiKey.OFFSET_FETCH)
        numbers = list(range(PARTITIONS))
        topics: Any = None
        if version >= 8:
            if not everything:
                topics = [OffsetFetchRequestTopics(**self.topic_named(version), partition_indexes=numbers)]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name, topics=topics)])
        else:
            if not everything:
                topics = [OffsetFetchRequestTopic(name=self.topic.name or "", partition_indexes=numbers)]
            request = OffsetFetchRequest(group_id=self.name, topics=topics)
        request.require_stable = version >= 7
        answer = await self.session(request)
        found = answer.groups[0] if version >= 8 else answer
        assert found.error_code == 0
        assert len(found.topics) == 1
        return {
            item.partition_index: (item.committed_offset, item.metadata, item.committed_leader_epoch)
            for item in found.topics[0].partitions
        }

    async def describe(self) -> DescribeGroupsResponseDescribedGroup:
        wanted = self.session.version(ApiKey.DESCRIBE_GROUPS) >= 3
        answer = await self.session(DescribeGroupsRequest(groups=[self.name], include_authorized_operations=wanted))
        found: DescribeGroupsResponseDescribedGroup = answer.groups[0]
        if found.error_code == 0 and found.group_state != "Dead":
            assert (found.authorized_operations not in {0, NOTHING_ASKED}) == wanted
        return found

    async def listed(self, **filters: list[str]) -> Any:
        answer = await self.session(ListGroupsRequest(**filters))
        assert answer.error_code == 0
        return next((item for item in answer.groups if item.group_id == self.name), None)

    async def leave(self) -> int:
        if self.session.version(ApiKey.LEAVE_GROUP) < 3:
            answer = await self.session(LeaveGroupRequest(group_id=self.name, member_id=self.member))
            return int(answer.error_code)
        # a static member may be named by its instance id alone
        leaving = LeaveGroupRequestMember(
            member_id=self.member if self.instance is None else "", group_instance_id=self.instance
        )
        answer = await self.session(LeaveGroupRequest(group_id=self.name, members=[leaving]))
        assert answer.error_code == 0
        assert answer.members[0].group_instance_id == self.instance
        return int(answer.members[0].error_code)

    async def delete_offset(self, partition: int) -> tuple[int, int]:
        asked = OffsetDeleteRequestTopic(
            name=self.topic.name or "", partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
        )
        answer = await self.session(OffsetDeleteRequest(group_id=self.name, topics=[asked]))
        return answer.error_code, answer.topics[0].partitions[0].error_code

    async def delete(self) -> int:
        answer = await self.session(DeleteGroupsRequest(groups_names=[self.name]))
        assert answer.results[0].group_id == self.name
        return int(answer.results[0].error_code)


def assignment(topic: MetadataResponseTopic, partitions: list[int]) -> bytes:
    given = ConsumerProtocolAssignmentTopicPartition(topic=topic.name or "", partitions=partitions)
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=[given]))


async def live(group: Group) -> None:
    """The life of a group."""
    session = group.session
    await group.find()
    joined = await group.join()
    assert (joined.leader, joined.generation_id) == (group.member, 1)
    assert [(item.member_id, bytes(item.metadata)) for item in joined.members] == [(group.member, group.subscription)]
    if session.version(ApiKey.JOIN_GROUP) >= 5:
        assert joined.members[0].group_instance_id == group.instance
    received = await group.sync({group.member: group.assignment})
    assert received == group.assignment
    assert decode_embedded(ConsumerProtocolAssignment, received).assigned_partitions[0].partitions == [0, 1]
    assert await group.heartbeat() == 0
    assert await group.heartbeat(generation=7) == ErrorCode.ILLEGAL_GENERATION
    assert await group.commit({0: 42, 1: 43}) == [0, 0]
    await check_committed(group)
    await check_described(group)
    assert await group.delete_offset(0) == (0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    assert await group.delete() == ErrorCode.NON_EMPTY_GROUP
    assert await group.leave() == 0
    assert await group.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await group.describe()).group_state == "Empty"
    assert await group.delete_offset(0) == (0, 0)
    assert {number: found[0] for number, found in (await group.committed()).items()} == {0: -1, 1: 43}
    assert await group.delete() == 0
    assert await group.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    gone = await group.describe()
    assert gone.group_state == "Dead"
    assert gone.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if session.version(ApiKey.DESCRIBE_GROUPS) >= 6 else 0)
    assert await group.listed() is None


async def check_committed(group: Group) -> None:
    version = group.session.version(ApiKey.OFFSET_FETCH)
    with_epoch = version >= 5 and group.session.version(ApiKey.OFFSET_COMMIT) >= 6
    epoch = 0 if with_epoch else -1
    expected = {0: (42, "at 42", epoch), 1: (43, "at 43", epoch)}
    assert await group.committed() == expected
    if version >= 2:
        assert await group.committed(everything=True) == expected


async def check_described(group: Group) -> None:
    found = await group.describe()
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    member = found.members[0]
    assert (member.member_id, member.client_id, member.client_host.lstrip("/")) == (group.member, "", "127.0.0.1")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (group.subscription, group.assignment)
    if group.session.version(ApiKey.DESCRIBE_GROUPS) >= 4:
        assert member.group_instance_id == group.instance
    version = group.session.version(ApiKey.LIST_GROUPS)
    listed = await group.listed()
    assert listed.protocol_type == "consumer"
    assert listed.group_state == ("Stable" if version >= 4 else "")
    assert listed.group_type == ("classic" if version >= 5 else "")
    if version >= 4:
        assert await group.listed(states_filter=["Stable"]) is not None
        assert await group.listed(states_filter=["Empty"]) is None
    if version >= 5:
        assert await group.listed(types_filter=["classic"]) is not None
        assert await group.listed(types_filter=["consumer"]) is None


async def refuse_zookeeper(group: Group, api: ApiKey) -> None:
    """Offsets of v0 lived in ZooKeeper: a broker without one takes and finds none, and says so in the old format."""
    await group.find()
    joined = await group.join()
    await group.sync({joined.member_id: group.assignment})
    if api is ApiKey.OFFSET_COMMIT:
        assert await group.commit({0: 42, 1: 43}) == [ErrorCode.UNSUPPORTED_VERSION] * 2
    assert await group.committed() == {0: (-1, "", -1), 1: (-1, "", -1)}
    assert await group.leave() == 0


async def keep_as_zookeeper(group: Group) -> None:
    """The gateway keeps them with all others: a group without members is whoever commits for it."""
    await group.find()
    assert await group.commit({0: 42, 1: 43}) == [0, 0]
    assert await group.committed() == {0: (42, "at 42", -1), 1: (43, "at 43", -1)}


@ON_EACH_SERVER
@pytest.mark.parametrize(
    "api",
    [
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    ],
    ids=lambda api: api.name.lower(),
)
async def test_life_of_a_group(server: tuple[str, str], proved: Proved, topic: str, api: ApiKey) -> None:
    """A life for each version; another of a static member where the version knows such members."""
    name, bootstrap = server
    async with wire_session(bootstrap) as session:
        created = await session.create(topic, PARTITIONS)
        for version in session.versions(api):
            session.pinned = {api: version}
            if version == 0 and api in IN_ZOOKEEPER and name == "gateway":
                await keep_as_zookeeper(Group(session, created))
            elif version == 0 and api in IN_ZOOKEEPER:
                await refuse_zookeeper(Group(session, created), api)
            else:
                await live(Group(session, created))
            if version >= STATIC_SINCE.get(api, 99):
                await live(Group(session, created, instance="instance-1"))
            proved[name].add((api, version))


@ON_EACH_SERVER
async def test_two_members(server: tuple[str, str], topic: str) -> None:
    """A rebalance: who is there learns of it by its heartbeat, the leader gives both their parts."""
    async with wire_session(server[1]) as first, wire_session(server[1]) as second:
        created = await first.create(topic, PARTITIONS)
        for api in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT):
            for version in first.versions(api):
                first.pinned = second.pinned = {api: version}
                await rebalance(Group(first, created), Group(second, created))


async def rebalance(leader: Group, follower: Group) -> None:
    follower.name = leader.name
    await leader.find()
    await leader.join()
    await leader.sync({leader.member: leader.assignment})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.join)
        await until(leader.heartbeat, lambda error: error == ErrorCode.REBALANCE_IN_PROGRESS)
        joined = await leader.join()
    assert (joined.leader, joined.generation_id) == (leader.member, 2)
    assert {item.member_id for item in joined.members} == {leader.member, follower.member}
    assert follower.generation == 2
    received: list[bytes] = []

    async def follow() -> None:
        received.append(await follower.sync({}))

    parts = {leader.member: assignment(leader.topic, [0]), follower.member: assignment(leader.topic, [1])}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        assert await leader.sync(parts) == parts[leader.member]
    assert received == [parts[follower.member]]
    assert [await member.heartbeat() for member in (leader, follower)] == [0, 0]
    assert [await member.leave() for member in (leader, follower)] == [0, 0]
