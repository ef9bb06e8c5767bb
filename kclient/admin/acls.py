"""Access control lists: which entries there are, adding and removing them (KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.admin.acl_types import ANY_HOST, AclBinding, AclBindingFilter, as_bindings, as_filter, as_filters
from kclient.admin.answers import as_told, check_code, failure
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.types import raise_failures
from kclient.cluster import Trial, version_for
from kclient.errors import UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AclCreation,
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

_PATTERNS_VERSION = 1
_EVERY_BROKER_KNOWS = frozenset({PatternType.ANY, PatternType.LITERAL})


class AclOperations(AdminBase):
    """The admin client's calls about access control lists."""

    async def describe_acls(
        self, acl_filter: AclBindingFilter | None = None, *, timeout: float | None = None
    ) -> list[AclBinding]:
        """The entries that a filter finds, sorted by resource, principal and operation (KIP-140).

        Args:
            acl_filter: which; None for all.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            SecurityDisabledError: the brokers, or the gateway, have no authorizer (`authorizer.class.name`).
            ClusterAuthorizationError: this user may not describe the cluster.
            UnsupportedVersionError: the brokers have no ACLs, or no such pattern type.
            TypeError: this is no filter.
        """
        wanted = as_filter(acl_filter)
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission_type,
        )
        what = "Describing ACLs"

        async def ask(trial: Trial) -> DescribeAclsResponse:
            def message(connection: Connection) -> DescribeAclsRequest:
                _check_patterns(connection, DescribeAclsRequest, [wanted.pattern_type])
                return request

            response = await self._ask_controller(trial, message, DescribeAclsResponse, timeout)
            check_code(response.error_code, what, response.error_message)
            return response

        response = await self._retrying(ask, timeout, what)
        found = [_binding(resource, acl) for resource in response.resources for acl in resource.acls]
        return _in_order(found)

    async def create_acls(self, acls: Iterable[AclBinding], *, timeout: float | None = None) -> None:
        """Adds entries; one that is there already stays as it is (KIP-140).

        Brokers learn of them a moment later.

        Args:
            acls: the entries.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            SecurityDisabledError: the brokers, or the gateway, have no authorizer (`authorizer.class.name`).
            ClusterAuthorizationError: this user may not alter the cluster.
            InvalidRequestError: an entry cannot be, such as one for another cluster than `kafka-cluster`.
            UnsupportedVersionError: the brokers have no ACLs, or no such pattern type.
            PartialFailureError: several entries were refused; the others were added.
            TypeError, ValueError: these are no entries, or something of one is UNKNOWN.
        """
        wanted = dict.fromkeys(as_bindings(acls))
        what = "Creating ACLs"

        async def ask(trial: Trial, left: Mapping[AclBinding, None]) -> Mapping[AclBinding, Outcome]:
            asked = list(left)

            def message(connection: Connection) -> CreateAclsRequest:
                _check_patterns(connection, CreateAclsRequest, [acl.pattern_type for acl in asked])
                return CreateAclsRequest(creations=[_creation(acl) for acl in asked])

            response = await self._ask_controller(trial, message, CreateAclsResponse, timeout)
            return {
                acl: failure(row.error_code, _name(acl), row.error_message)
                for acl, row in zip(asked, response.results, strict=False)
            }

        raise_failures(what, await self._each(wanted, ask, timeout=timeout, what=what, name=_name))

    async def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout: float | None = None
    ) -> dict[AclBindingFilter, list[AclBinding]]:
        """Removes the entries that filters find (KIP-140).

        Args:
            filters: which; `binding.as_filter()` is for one entry alone.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            What each filter found and is removed. Where an attempt was not answered and another one was made, what the
            first has removed is not in it.

        Raises:
            SecurityDisabledError: the brokers, or the gateway, have no authorizer (`authorizer.class.name`).
            ClusterAuthorizationError: this user may not alter the cluster.
            UnsupportedVersionError: the brokers have no ACLs, or no such pattern type.
            PartialFailureError: what several filters find was not removed, or not all of it.
            TypeError: these are no filters.
        """
        wanted = dict.fromkeys(as_filters(filters))
        deleted: dict[AclBindingFilter, list[AclBinding]] = {each: [] for each in wanted}
        what = "Deleting ACLs"

        async def ask(trial: Trial, left: Mapping[AclBindingFilter, None]) -> Mapping[AclBindingFilter, Outcome]:
            asked = list(left)

            def message(connection: Connection) -> DeleteAclsRequest:
                _check_patterns(connection, DeleteAclsRequest, [each.pattern_type for each in asked])
                return DeleteAclsRequest(filters=[_deletion(each) for each in asked])

            response = await self._ask_controller(trial, message, DeleteAclsResponse, timeout)
            outcomes: dict[AclBindingFilter, Outcome] = {}
            for each, row in zip(asked, response.filter_results, strict=False):
                gone, outcomes[each] = _removed(each, row)
                deleted[each] = _in_order([*deleted[each], *gone])
            return outcomes

        raise_failures(what, await self._each(wanted, ask, timeout=timeout, what=what))
        return deleted


def _removed(asked: AclBindingFilter, row: DeleteAclsFilterResult) -> tuple[list[AclBinding], Outcome]:
    """The entries that are gone, and why others are not."""
    error = failure(row.error_code, f"ACLs of {asked}", row.error_message)
    gone = []
    for acl in row.matching_acls:
        binding = _binding(acl, acl)
        refused = failure(acl.error_code, _name(binding), acl.error_message)
        if refused is None:
            gone.append(binding)
        error = error or refused
    return gone, error


def _binding(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl, acl: AclDescription | DeleteAclsMatchingAcl
) -> AclBinding:
    return as_told(
        AclBinding,
        resource_type=ResourceType(resource.resource_type),
        resource_name=resource.resource_name,
        pattern_type=PatternType(resource.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=AclOperation(acl.operation),
        permission_type=AclPermissionType(acl.permission_type),
    )


def _check_patterns(
    connection: Connection, request: type[DescribeAclsRequest | CreateAclsRequest | DeleteAclsRequest],
    patterns: Sequence[PatternType],
) -> None:  # fmt: skip
    if version_for(connection, request) < _PATTERNS_VERSION and not _EVERY_BROKER_KNOWS.issuperset(patterns):
        raise UnsupportedVersionError(f"{connection.address} knows no patterns of ACLs but LITERAL (Kafka 2.0 does)")


def _creation(acl: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _deletion(wanted: AclBindingFilter) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def _name(acl: AclBinding) -> str:
    """Tells it from every other one."""
    kind = f"{acl.pattern_type.name} " if acl.pattern_type is not PatternType.LITERAL else ""
    host = f" from {acl.host}" if acl.host != ANY_HOST else ""
    what = f"{acl.operation.name} {kind}{acl.resource_type.name} {acl.resource_name}"
    return f"ACL {acl.permission_type.name} {acl.principal}{host} {what}"


def _in_order(acls: Iterable[AclBinding]) -> list[AclBinding]:
    return sorted(
        acls,
        key=lambda acl: (
            acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.operation, acl.permission_type,
            acl.host,
        ),
    )  # fmt: skip
