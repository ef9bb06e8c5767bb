"""Membership of groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The decisions are those of `kclient.gateway.groups`; here requests are turned into events and results into answers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import CoordinatorNotAvailableError, ErrorCode, InvalidRequestError, KafkaError
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.error_codes import Role, code_of, put_error
from kclient.gateway.groups.events import Join, JoinResult, Leave, Sync, SyncResult
from kclient.gateway.groups.replies import Answer, when_done
from kclient.gateway.handlers._work import FEW, Work, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.groups.membership import ClassicMembership
    from kclient.gateway.groups.table import Parked
    from kclient.gateway.leadership import Leadership


_MOST_PROTOCOLS: Final = 100
"""Protocols that a member may name: each is compared with those of the others."""
_LEAVE_AT_ONCE: Final = 512
"""Members that leave in one rebalance."""
_KINDS: Final = {  # by the key types of FindCoordinator
    0: (CoordinatorType.GROUP, ResourceType.GROUP),
    1: (CoordinatorType.TRANSACTION, ResourceType.TRANSACTIONAL_ID),
}
_FIRST_WITH_NULL_PROTOCOL = 7  # JoinGroup: the protocol name may be null from this version on


class FindCoordinatorHandler(Handler):
    """Answers with the gateway that coordinates a group."""

    API: ClassVar[ApiKey] = ApiKey.FIND_COORDINATOR
    VERSIONS: ClassVar[VersionRange] = (0, 6)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, leadership: Leadership, access: Access) -> None:
        self._leadership = leadership
        self._access = access

    def begin(self, request: FindCoordinatorRequest, context: RequestContext) -> Begun:
        """Name the coordinator of one key, or (version 4 on) of several."""
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: FindCoordinatorRequest, context: RequestContext) -> Work:
        if context.api_version < 4:
            found = self._find(request.key, request.key_type, context)
            return FindCoordinatorResponse(
                error_code=found.error_code,
                error_message=found.error_message,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
            )
        keys = request.coordinator_keys
        if len(keys) > FEW:
            yield None
        rows = (self._find(key, request.key_type, context) for key in keys)
        return FindCoordinatorResponse(coordinators=lazily(len(keys), rows))

    def _find(self, key: str, key_type: int, context: RequestContext) -> Coordinator:
        try:
            if key_type not in _KINDS:
                raise InvalidRequestError(f"there is no coordinator for keys of type {key_type}")
            kind, resource = _KINDS[key_type]
            self._access.check(context.connection, AclOperation.DESCRIBE, resource, key)
        except KafkaError as error:
            refused = Coordinator(key=key, node_id=-1, host="", port=-1)
            put_error(refused, error, self.ROLE)
            return refused
        wanted = self._leadership.coordinator_id(kind, key)
        for node in self._leadership.nodes(context.connection.advertised):
            if node.node_id == wanted:
                return Coordinator(key=key, node_id=wanted, host=node.host, port=node.port)
        refused = Coordinator(key=key, node_id=-1, host="", port=-1)
        put_error(refused, CoordinatorNotAvailableError(f"the gateway with node.id={wanted} is not there"), self.ROLE)
        return refused


class JoinGroupHandler(Handler):
    """Takes members into groups."""

    API: ClassVar[ApiKey] = ApiKey.JOIN_GROUP
    VERSIONS: ClassVar[VersionRange] = (0, 9)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: ClassicMembership) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: JoinGroupRequest, context: RequestContext) -> Begun:
        """Enter the group; the answer waits until the generation begins."""
        version = context.api_version
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        if len(request.protocols) > _MOST_PROTOCOLS:
            return _join_response(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id), version)
        if sum(len(item.metadata) for item in request.protocols) > self._groups.settings.group_max_metadata_bytes:
            # before anything is copied
            return _join_response(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id), version)
        if self._groups.reads_by_patterns(request.group_id):
            return cast("Begun", started(self._look_up(request, context)))
        return self._join(request, context)

    def _look_up(self, request: JoinGroupRequest, context: RequestContext) -> Work:
        """First see what the patterns of members of the other protocol stand for."""
        allowed = partial(self._access.allowed, context.connection, AclOperation.DESCRIBE, ResourceType.TOPIC)
        yield from self._groups.look_up(request.group_id, allowed, rights=self._access.changes)
        return self._join(request, context)

    def _join(self, request: JoinGroupRequest, context: RequestContext) -> Answer[JoinGroupResponse]:
        version = context.api_version
        parked = self._groups.join(request.group_id, _join_of(request, context))
        _forsake_with(context, self._groups, request.group_id, parked)
        return when_done(parked, lambda result: _join_response(result, version))

    def fail(self, request: JoinGroupRequest, context: RequestContext, error: KafkaError) -> JoinGroupResponse:
        """The answer to a JoinGroup that failed as a whole."""
        return _join_response(JoinResult(ErrorCode(code_of(error, self.ROLE)), request.member_id), context.api_version)


def _forsake_with(context: RequestContext, groups: ClassicMembership, group_id: str, parked: Parked[Any]) -> None:
    """What is parked ends when its client is gone, and until then waits for other clients."""
    if parked.done:
        return
    context.place.parked = True
    connection = context.connection
    forsake = partial(groups.forsake, group_id, parked)
    connection.when_gone(forsake)
    parked.on_done(lambda _: connection.unless_gone(forsake))


def _join_of(request: JoinGroupRequest, context: RequestContext) -> Join:
    version = context.api_version
    return Join(
        request.member_id,
        request.group_instance_id,
        context.client_id or "",
        context.connection.client_host,
        request.session_timeout_ms,
        # version 0 has one timeout for both
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms,
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        require_member_id=version >= 4 and request.group_instance_id is None,
        can_skip_assignment=version >= 9,
        reason=request.reason,
    )


def _join_response(result: JoinResult, version: int) -> JoinGroupResponse:
    protocol_name = result.protocol_name
    if protocol_name is None and version < _FIRST_WITH_NULL_PROTOCOL:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=lazily(
            len(result.members),
            (
                JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
                for member_id, instance_id, metadata in result.members
            ),
        ),
    )


class SyncGroupHandler(Handler):
    """Hands out assignments."""

    API: ClassVar[ApiKey] = ApiKey.SYNC_GROUP
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: ClassicMembership) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: SyncGroupRequest, context: RequestContext) -> Begun:
        """Take the leader's assignment, or wait for it."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: SyncGroupRequest, context: RequestContext) -> Work:
        assignments: dict[str, bytes] = {}
        for count, item in enumerate(request.assignments):
            assignments[item.member_id] = item.assignment
            if count % FEW == FEW - 1:
                yield None
        sync = Sync(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            assignments,
            request.protocol_type,
            request.protocol_name,
        )
        parked = self._groups.sync(request.group_id, sync)
        _forsake_with(context, self._groups, request.group_id, parked)
        return when_done(parked, _sync_response)


def _sync_response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


class HeartbeatHandler(Handler):
    """Keeps members in their groups, and tells them of rebalances."""

    API: ClassVar[ApiKey] = ApiKey.HEARTBEAT
    VERSIONS: ClassVar[VersionRange] = (0, 4)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: ClassicMembership) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        """Note that the member lives."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        error = self._groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return HeartbeatResponse(error_code=error)


class LeaveGroupHandler(Handler):
    """Lets members go."""

    API: ClassVar[ApiKey] = ApiKey.LEAVE_GROUP
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: ClassicMembership) -> None:
        self._access = access
        self._groups = groups

    def begin(self, request: LeaveGroupRequest, context: RequestContext) -> Begun:
        """Remove one member, or (version 3 on) several at once."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        if context.api_version < 3:
            error, errors = self._groups.leave(request.group_id, [Leave(request.member_id)])
            return LeaveGroupResponse(error_code=error or errors[0])
        return cast("Begun", started(self._begin(request)))

    def _begin(self, request: LeaveGroupRequest) -> Work:
        response = LeaveGroupResponse()
        for start in range(0, max(len(request.members), 1), _LEAVE_AT_ONCE):
            leaving = [
                Leave(member.member_id, member.group_instance_id, member.reason)
                for member in request.members[start : start + _LEAVE_AT_ONCE]
            ]
            response.error_code, errors = self._groups.leave(request.group_id, leaving)
            if response.error_code:
                break
            response.members += [
                LeaveGroupResponseMember(
                    member_id=leave.member_id, group_instance_id=leave.instance_id, error_code=code
                )
                for leave, code in zip(leaving, errors, strict=True)
            ]
            if len(request.members) > _LEAVE_AT_ONCE:
                yield 250 * len(leaving)
        return response
