"""Groups whose members agree among themselves (the classic protocol), and finding coordinators."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, BYTES, INT8, INT16, INT32, STRING

__all__ = [
    "Coordinator",
    "DeletableGroupResult",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeGroupsResponseDescribedGroup",
    "DescribedGroupMember",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupRequest",
    "JoinGroupRequestProtocol",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaveGroupRequest",
    "LeaveGroupRequestMember",
    "LeaveGroupResponse",
    "LeaveGroupResponseMember",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "SyncGroupRequest",
    "SyncGroupRequestAssignment",
    "SyncGroupResponse",
]


class FindCoordinatorRequest(ApiMessage, api_key=10, versions="0-6", flexible="3+"):
    """Asks which broker coordinates a group (key type 0), a transactional id (1) or a share partition
    (2).

    v1 adds the key type, v4 asks for many keys at once (KIP-699), v6 knows share partitions (KIP-932).
    """

    key: str = field(STRING, "0-3")
    key_type: int = field(INT8, "1+")
    coordinator_keys: list[str] = field(ArrayOf(STRING), "4+")


class Coordinator(Message):
    """One of the `coordinators` of a `FindCoordinatorResponse`."""

    key: str = field(STRING)
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="4+", ignorable=True)


class FindCoordinatorResponse(ApiMessage, api_key=10, versions="0-6", flexible="3+"):
    """The coordinator: one in v0 to v3, one for each key from v4 on."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0-3")
    error_message: str | None = field(STRING, "1-3", nullable="1-3", ignorable=True)
    node_id: int = field(INT32, "0-3")
    host: str = field(STRING, "0-3")
    port: int = field(INT32, "0-3")
    coordinators: list[Coordinator] = field(ArrayOf(Coordinator), "4+")


class JoinGroupRequestProtocol(Message):
    """One of the `protocols` of a `JoinGroupRequest`."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class JoinGroupRequest(ApiMessage, api_key=11, versions="0-9", flexible="6+"):
    """Joins a group, or joins it again for a rebalance; the answer comes when all members have joined.

    v1 adds the time that members have to rejoin; from v4 a new member first gets its id and joins again
    with it (KIP-394); v5 adds static membership (KIP-345), v8 the reason why the member joins (KIP-800).
    """

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    protocols: list[JoinGroupRequestProtocol] = field(ArrayOf(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Message):
    """One of the `members` of a `JoinGroupResponse`."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(BYTES)


class JoinGroupResponse(ApiMessage, api_key=11, versions="0-9", flexible="6+"):
    """The generation, the chosen protocol and the leader; the leader also gets all members with their
    metadata.

    v9 tells a leader when it need not compute the assignment (KIP-814).
    """

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, "9+")
    member_id: str = field(STRING)
    members: list[JoinGroupResponseMember] = field(ArrayOf(JoinGroupResponseMember))


class SyncGroupRequestAssignment(Message):
    """One of the `assignments` of a `SyncGroupRequest`."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


class SyncGroupRequest(ApiMessage, api_key=14, versions="0-5", flexible="4+"):
    """Asks for the member's assignment; the leader hands in everybody's.

    v3 adds static membership, v5 repeats protocol type and name for a check.
    """

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field(ArrayOf(SyncGroupRequestAssignment))


class SyncGroupResponse(ApiMessage, api_key=14, versions="0-5", flexible="4+"):
    """The member's assignment, opaque to the broker."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(BYTES)


class HeartbeatRequest(ApiMessage, api_key=12, versions="0-4", flexible="4+"):
    """Tells the coordinator that the member lives. v3 adds static membership."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)


class HeartbeatResponse(ApiMessage, api_key=12, versions="0-4", flexible="4+"):
    """Whether the member is still in the group; REBALANCE_IN_PROGRESS asks it to join again."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)


class LeaveGroupRequestMember(Message):
    """One of the `members` of a `LeaveGroupRequest`."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, nullable="3+", default=None)
    reason: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(ApiMessage, api_key=13, versions="0-5", flexible="4+"):
    """Leaves a group.

    v3 removes many members at once, static ones by their instance id (KIP-345); v5 says why (KIP-800).
    """

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2")
    members: list[LeaveGroupRequestMember] = field(ArrayOf(LeaveGroupRequestMember), "3+")


class LeaveGroupResponseMember(Message):
    """One of the `members` of a `LeaveGroupResponse`."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, nullable="3+")
    error_code: int = field(INT16)


class LeaveGroupResponse(ApiMessage, api_key=13, versions="0-5", flexible="4+"):
    """Whether it worked, from v3 on for each member."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    members: list[LeaveGroupResponseMember] = field(ArrayOf(LeaveGroupResponseMember), "3+")


class ListGroupsRequest(ApiMessage, api_key=16, versions="0-5", flexible="3+"):
    """Lists the groups that this broker coordinates.

    v4 can filter by state (KIP-518), v5 by type (KIP-848).
    """

    states_filter: list[str] = field(ArrayOf(STRING), "4+")
    types_filter: list[str] = field(ArrayOf(STRING), "5+")


class ListedGroup(Message):
    """One of the `groups` of a `ListGroupsResponse`."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", ignorable=True)
    group_type: str = field(STRING, "5+", ignorable=True)


class ListGroupsResponse(ApiMessage, api_key=16, versions="0-5", flexible="3+"):
    """The groups; v4 adds their states, v5 their types."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    groups: list[ListedGroup] = field(ArrayOf(ListedGroup))


class DescribeGroupsRequest(ApiMessage, api_key=15, versions="0-6", flexible="5+"):
    """Asks for state and members of classic groups. v3 can ask for the allowed operations."""

    groups: list[str] = field(ArrayOf(STRING))
    include_authorized_operations: bool = field(BOOL, "3+")


class DescribedGroupMember(Message):
    """One of the `members` of a `DescribeGroupsResponseDescribedGroup`."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


class DescribeGroupsResponseDescribedGroup(Message):
    """One of the `groups` of a `DescribeGroupsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: list[DescribedGroupMember] = field(ArrayOf(DescribedGroupMember))
    authorized_operations: int = field(INT32, "3+", default=-2147483648)


class DescribeGroupsResponse(ApiMessage, api_key=15, versions="0-6", flexible="5+"):
    """State, protocol and members of classic groups.

    v4 adds instance ids. From v6 a group that does not exist is GROUP_ID_NOT_FOUND (KIP-1043); before, it
    is reported as dead.
    """

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    groups: list[DescribeGroupsResponseDescribedGroup] = field(ArrayOf(DescribeGroupsResponseDescribedGroup))


class DeleteGroupsRequest(ApiMessage, api_key=42, versions="0-2", flexible="2+"):
    """Deletes groups that have no members, with their offsets."""

    groups_names: list[str] = field(ArrayOf(STRING))


class DeletableGroupResult(Message):
    """One of the `results` of a `DeleteGroupsResponse`."""

    group_id: str = field(STRING)
    error_code: int = field(INT16)


class DeleteGroupsResponse(ApiMessage, api_key=42, versions="0-2", flexible="2+"):
    """Whether it worked, for each group."""

    throttle_time_ms: int = field(INT32)
    results: list[DeletableGroupResult] = field(ArrayOf(DeletableGroupResult))
