"""Administration of groups: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kclient.errors import ErrorCode
from kclient.gateway.groups.states import GroupState
from kclient.gateway.groups.writer import Write
from kclient.gateway.handlers import Finish, Handler
from kclient.protocol.messages import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kclient.protocol.messages import DescribeGroupsResponseDescribedGroup as DescribedGroup
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.core import RequestContext
    from kclient.gateway.groups.classic import ClassicGroup
    from kclient.gateway.groups.members import Member

API_VERSIONS = {
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.DELETE_GROUPS: (0, 2),
}

_CLASSIC = "classic"
_WITH_GROUP_ID_NOT_FOUND = 6  # DescribeGroups: older versions show an unknown group as Dead (KIP-1043)

# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS by AclOperation's codes: without ACLs all are allowed
_ALL_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))


class ListGroupsHandler(Handler):
    """Lists the groups."""

    API: ClassVar[ApiKey] = ApiKey.LIST_GROUPS

    def begin(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        """List those that pass the filters (their case does not matter)."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        if types and _CLASSIC not in types:
            return ListGroupsResponse()
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=group_id,
                    protocol_type=managed.group.protocol_type or "",
                    group_state=managed.group.state.value,
                    group_type=_CLASSIC,
                )
                for group_id, managed in self.core.groups.groups.items()
                if not states or managed.group.state.value.lower() in states
            ]
        )


class DescribeGroupsHandler(Handler):
    """Shows groups and their members."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_GROUPS

    def begin(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        """Describe each group that is named."""
        response = DescribeGroupsResponse()
        for group_id in request.groups:
            managed = self.core.groups.groups.get(group_id)
            if managed is None:
                described = _missing(group_id, context.api_version)
            else:
                described = _describe(managed.group)
                if request.include_authorized_operations:
                    described.authorized_operations = _ALL_OPERATIONS
            response.groups.append(described)
        return response


def _missing(group_id: str, version: int) -> DescribedGroup:
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value, protocol_type="", protocol_data="")
    if version >= _WITH_GROUP_ID_NOT_FOUND:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = f"Group {group_id} not found."
    return described


def _describe(group: ClassicGroup) -> DescribedGroup:
    """Metadata and assignments are shown while they hold: in a stable group."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_describe_member(member, protocol) for member in group.members],
    )


def _describe_member(member: Member, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.metadata(protocol),
        member_assignment=b"" if protocol is None else member.assignment,
    )


class DeleteGroupsHandler(Handler):
    """Deletes groups without members, and their offsets."""

    API: ClassVar[ApiKey] = ApiKey.DELETE_GROUPS

    def begin(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse | Finish:
        """Delete each group that is named."""
        response = DeleteGroupsResponse()
        writes: list[tuple[DeletableGroupResult, Write]] = []
        for group_id in dict.fromkeys(request.groups_names):
            deleted = self.core.groups.delete(group_id)
            result = DeletableGroupResult(group_id=group_id)
            response.results.append(result)
            if isinstance(deleted, Write):
                writes.append((result, deleted))
            else:
                result.error_code = deleted
        return partial(self._finish, response, writes) if writes else response

    async def _finish(
        self, response: DeleteGroupsResponse, writes: list[tuple[DeletableGroupResult, Write]]
    ) -> DeleteGroupsResponse:
        for result, write in writes:
            result.error_code = await write.wait()
        return response


HANDLERS: dict[ApiKey, type[Handler]] = {
    ApiKey.LIST_GROUPS: ListGroupsHandler,
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsHandler,
    ApiKey.DELETE_GROUPS: DeleteGroupsHandler,
}
