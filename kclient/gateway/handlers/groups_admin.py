"""Administration of groups: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.access import CLUSTER_NAME
from kclient.gateway.error_codes import Role, code_of, text_of
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.states import GroupState
from kclient.gateway.groups.writer import Write
from kclient.gateway.handlers._work import FEW, Work, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.protocol.lazy_arrays import lazily
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
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.groups.deletion import GroupDeletion
    from kclient.gateway.groups.group import Group
    from kclient.gateway.groups.members import Member
    from kclient.gateway.groups.sharing.administration import ShareGroupAdministration
    from kclient.gateway.groups.table import GroupTable


_WITH_ERROR_MESSAGE = 6  # DescribeGroups says what went wrong from this version on
_WITH_GROUP_ID_NOT_FOUND = 6  # DescribeGroups: older versions show an unknown group as Dead (KIP-1043)


class ListGroupsHandler(Handler):
    """Lists the groups."""

    API: ClassVar[ApiKey] = ApiKey.LIST_GROUPS
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, table: GroupTable) -> None:
        self._access = access
        self._table = table

    def begin(self, request: ListGroupsRequest, context: RequestContext) -> Begun:
        """List those that pass the filters (their case does not matter)."""
        return cast("Begun", started(self._begin(request, context.connection)))

    def _begin(self, request: ListGroupsRequest, client: ConnectionContext) -> Work:
        if self._table.loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed: list[Group] = []
        access = self._access
        every = access.allows(client, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        for count, managed in enumerate(list(self._table.groups.values())):
            group = managed.group
            wanted = (not types or group.type.lower() in types) and (not states or group.shown_state.lower() in states)
            if wanted and (every or access.allows(client, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)):
                listed.append(group)
            if count % FEW == FEW - 1:
                yield 8 * FEW
        return ListGroupsResponse(groups=lazily(len(listed), map(_listed, listed)))


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.shown_state,
        group_type=group.type,
    )


class DescribeGroupsHandler(Handler):
    """Shows groups and their members."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_GROUPS
    VERSIONS: ClassVar[VersionRange] = (0, 6)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, table: GroupTable) -> None:
        self._access = access
        self._table = table

    def begin(self, request: DescribeGroupsRequest, context: RequestContext) -> Begun:
        """Describe each group that is named."""
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: DescribeGroupsRequest, context: RequestContext) -> Work:
        groups = self._table.groups
        few = request.groups[:FEW]
        found = [groups[name].group for name in few if name in groups]
        members = sum(len(group.members) for group in found if isinstance(group, ClassicGroup))
        if len(request.groups) > FEW or members > FEW:
            yield None
        rows = (self._described(name, request, context) for name in request.groups)
        return DescribeGroupsResponse(groups=lazily(len(request.groups), rows))

    def _described(self, group_id: str, request: DescribeGroupsRequest, context: RequestContext) -> DescribedGroup:
        access, client = self._access, context.connection
        operations = None
        try:
            access.check_group(client, AclOperation.DESCRIBE, group_id)
            if request.include_authorized_operations:
                operations = access.operations(client, ResourceType.GROUP, group_id)
        except KafkaError as error:
            refused = DescribedGroup(group_id=group_id, group_state="", protocol_type="", protocol_data="")
            refused.error_code = code_of(error, self.ROLE)
            if context.api_version >= _WITH_ERROR_MESSAGE:
                refused.error_message = text_of(error.message)
            return refused
        managed = self._table.groups.get(group_id)
        if managed is None:
            return _missing(group_id, f"Group {group_id} not found.", context.api_version)
        if not isinstance(managed.group, ClassicGroup):
            return _missing(group_id, f"Group {group_id} is not a classic group.", context.api_version)
        described = _describe(managed.group)
        if operations is not None:
            described.authorized_operations = operations
        return described


def _missing(group_id: str, message: str, version: int) -> DescribedGroup:
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value, protocol_type="", protocol_data="")
    if version >= _WITH_GROUP_ID_NOT_FOUND:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = text_of(message)
    return described


def _describe(group: ClassicGroup) -> DescribedGroup:
    """Metadata and assignments are shown while they hold: in a stable group."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    members = list(group.members)
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=lazily(len(members), (_describe_member(member, protocol) for member in members)),
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
    VERSIONS: ClassVar[VersionRange] = (0, 2)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, deletion: GroupDeletion, shares: ShareGroupAdministration) -> None:
        self._access = access
        self._deletion = deletion
        self._shares = shares

    def begin(self, request: DeleteGroupsRequest, context: RequestContext) -> Begun:
        """Delete each group that is named."""
        return cast("Begun", started(self._begin(request, context.connection)))

    def _begin(self, request: DeleteGroupsRequest, client: ConnectionContext) -> Work:
        response = DeleteGroupsResponse()
        writes: list[tuple[DeletableGroupResult, Write | None]] = []
        named: set[str] = set()
        for count, group_id in enumerate(request.groups_names):
            if count % FEW == FEW - 1:
                yield 200 * FEW
            if group_id in named:
                continue
            named.add(group_id)
            result = DeletableGroupResult(group_id=group_id)
            response.results.append(result)
            try:
                self._access.check_group(client, AclOperation.DELETE, group_id)
            except KafkaError as error:
                result.error_code = code_of(error, self.ROLE)
                continue
            if self._shares.deletes(group_id):
                writes.append((result, None))
                continue
            deleted = self._deletion.delete(group_id)
            if isinstance(deleted, Write):
                writes.append((result, deleted))
            else:
                result.error_code = deleted
        return partial(self._finish, response, writes) if writes else response

    async def _finish(
        self, response: DeleteGroupsResponse, writes: list[tuple[DeletableGroupResult, Write | None]]
    ) -> DeleteGroupsResponse:
        for result, write in writes:
            if write is not None:
                result.error_code = await write.wait()
                continue
            try:
                result.error_code = await self._shares.delete(result.group_id)
            except KafkaError as error:
                result.error_code = code_of(error, self.ROLE)
        return response
