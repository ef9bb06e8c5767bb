"""CreateAcls, DescribeAcls and DeleteAcls: the access control lists (KIP-140, KIP-290)."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.errors import InvalidRequestError, KafkaError, PolicyViolationError, SecurityDisabledError
from kclient.gateway.access import CLUSTER_NAME
from kclient.gateway.acl_entries import AclEntry, AclFilter
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.security.acls import MOST
from kclient.net.answers import CloseConnectionError
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.security.acls import Acls

_MOST_FILTERS: Final = 1000
"""Filters of one request."""
_MOST_SEARCHES: Final = 20
"""Those of them that look through all entries, and not through those of a resource or a principal."""
_VERSIONS: Final = (0, 3)
_NONE: Final = "No Authorizer is configured"

E = TypeVar("E", bound=IntEnum)


class DescribeAclsHandler(Handler):
    """Answers DescribeAcls."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS
    VERSIONS: ClassVar[VersionRange] = _VERSIONS
    ROLE: ClassVar[Role] = Role.CONTROLLER
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, acls: Acls | None) -> None:
        self._access = access
        self._acls = acls

    def begin(self, request: DescribeAclsRequest, context: RequestContext) -> Finish:
        """Finding what other gateways have added waits for the manager."""
        _check_known(request)
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE)
        if self._acls is None:
            raise SecurityDisabledError(f"{_NONE} on the broker")
        return partial(self._finish, self._acls, _filter(request), context.connection)

    async def _finish(self, acls: Acls, wanted: AclFilter, client: ConnectionContext) -> DescribeAclsResponse:
        pace = Pace(client.flow)
        resources: dict[tuple[ResourceType, PatternType, str], DescribeAclsResource] = {}
        for entry in await acls.find(wanted):
            key = entry.kind, entry.pattern, entry.name
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(
                    resource_type=entry.kind, resource_name=entry.name, pattern_type=entry.pattern
                )
            resource.acls.append(
                AclDescription(
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
            )
            await pace.pause()
        return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


class CreateAclsHandler(Handler):
    """Answers CreateAcls."""

    API: ClassVar[ApiKey] = ApiKey.CREATE_ACLS
    VERSIONS: ClassVar[VersionRange] = _VERSIONS
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, acls: Acls | None) -> None:
        self._access = access
        self._acls = acls

    def begin(self, request: CreateAclsRequest, context: RequestContext) -> Finish:
        """Adding waits for the manager."""
        for each in request.creations if len(request.creations) <= MOST else ():
            if not (each.resource_type and each.resource_pattern_type and each.operation and each.permission_type):
                raise CloseConnectionError("an entry to be created has something UNKNOWN")
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        if self._acls is None:
            raise SecurityDisabledError(f"{_NONE}.")
        if len(request.creations) > MOST:
            raise PolicyViolationError(f"{len(request.creations)} entries are more than one request may add: {MOST}")
        return partial(self._finish, self._acls, request, context.connection)

    async def _finish(self, acls: Acls, request: CreateAclsRequest, client: ConnectionContext) -> CreateAclsResponse:
        pace = Pace(client.flow)
        asked: list[AclEntry | KafkaError] = []
        for each in request.creations:
            try:
                asked.append(_entry(each))
            except InvalidRequestError as error:
                asked.append(error)
            await pace.pause()
        refused = await acls.create(each for each in asked if isinstance(each, AclEntry))
        results = []
        for one in asked:
            results.append(self._result(refused.get(one) if isinstance(one, AclEntry) else one))
            await pace.pause()
        return CreateAclsResponse(results=results)

    def _result(self, error: KafkaError | None) -> AclCreationResult:
        row = AclCreationResult(error_message="")
        if error is not None:
            put_error(row, error, self.ROLE)
        return row

    def fail(self, request: CreateAclsRequest, context: RequestContext, error: KafkaError) -> CreateAclsResponse:
        """The error for each entry."""
        return CreateAclsResponse(results=[self._result(error)] * len(request.creations))


class DeleteAclsHandler(Handler):
    """Answers DeleteAcls."""

    API: ClassVar[ApiKey] = ApiKey.DELETE_ACLS
    VERSIONS: ClassVar[VersionRange] = _VERSIONS
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, acls: Acls | None) -> None:
        self._access = access
        self._acls = acls

    def begin(self, request: DeleteAclsRequest, context: RequestContext) -> Finish:
        """Removing waits for the manager."""
        for each in request.filters if len(request.filters) <= _MOST_FILTERS else ():
            _check_known(each)
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        if self._acls is None:
            raise SecurityDisabledError(f"{_NONE}.")
        if len(request.filters) > _MOST_FILTERS:
            raise PolicyViolationError(
                f"{len(request.filters)} filters are more than one request may have: {_MOST_FILTERS}"
            )
        return partial(self._finish, self._acls, request, context.connection)

    async def _finish(self, acls: Acls, request: DeleteAclsRequest, client: ConnectionContext) -> DeleteAclsResponse:
        pace = Pace(client.flow)
        asked = [_filter(each) for each in request.filters]
        searches = len({each for each in asked if each.looks_through_all})
        if searches > _MOST_SEARCHES:
            raise PolicyViolationError(
                f"{searches} filters are without a resource's name and without a principal: one request may have "
                f"{_MOST_SEARCHES} of them"
            )
        wrong = [_wrong(each) for each in asked]
        found = iter(await acls.delete([each for each, error in zip(asked, wrong, strict=True) if error is None]))
        results = []
        for error in wrong:
            result = self._refused(error) if error is not None else DeleteAclsFilterResult(error_message=None)
            for entry in next(found) if error is None else ():
                result.matching_acls.append(_matching(entry))
                await pace.pause()
            results.append(result)
        return DeleteAclsResponse(filter_results=results)

    def _refused(self, error: KafkaError) -> DeleteAclsFilterResult:
        row = DeleteAclsFilterResult()
        put_error(row, error, self.ROLE)
        return row

    def fail(self, request: DeleteAclsRequest, context: RequestContext, error: KafkaError) -> DeleteAclsResponse:
        """The error for each filter."""
        return DeleteAclsResponse(filter_results=[self._refused(error)] * len(request.filters))


def _check_known(request: DescribeAclsRequest | DeleteAclsFilter) -> None:
    """Kafka ends the connection of who asks for something UNKNOWN."""
    if not (
        request.resource_type_filter and request.pattern_type_filter and request.operation and request.permission_type
    ):
        raise CloseConnectionError("a filter of access control lists has something UNKNOWN")


def _numbered(kind: type[E], number: int) -> E:
    """What a number stands for; UNKNOWN for those that are not known."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _filter(request: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        _numbered(ResourceType, request.resource_type_filter),
        _numbered(PatternType, request.pattern_type_filter),
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        _numbered(AclOperation, request.operation),
        _numbered(AclPermissionType, request.permission_type),
    )


def _wrong(wanted: AclFilter) -> KafkaError | None:
    """Why a filter removes nothing."""
    if not (wanted.kind and wanted.pattern):
        return InvalidRequestError("Unknown patternFilter.")
    if not (wanted.operation and wanted.permission):
        return InvalidRequestError("Unknown entryFilter.")
    return None


def _entry(asked: AclCreation) -> AclEntry:
    """What is to be added. Raises `InvalidRequestError` where it is no entry."""
    entry = AclEntry(
        _numbered(ResourceType, asked.resource_type),
        _numbered(PatternType, asked.resource_pattern_type),
        asked.resource_name,
        asked.principal,
        asked.host,
        _numbered(AclOperation, asked.operation),
        _numbered(AclPermissionType, asked.permission_type),
    )
    if entry.kind is ResourceType.CLUSTER and entry.name != CLUSTER_NAME:
        raise InvalidRequestError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not entry.name:
        raise InvalidRequestError("Invalid empty resource name")
    for what, value in (
        ("resourceType", entry.kind),
        ("patternType", entry.pattern),
        ("operation", entry.operation),
        ("permissionType", entry.permission),
    ):
        if value not in type(value).known():
            raise InvalidRequestError(f"Invalid {what} {value.name}")
    if ":" not in entry.principal:
        raise InvalidRequestError(f"a principal has a type and a name, as User:alice, unlike {entry.principal[:300]}")
    return entry


def _matching(entry: AclEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=entry.kind,
        resource_name=entry.name,
        pattern_type=entry.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
