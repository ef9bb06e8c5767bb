"""Access control lists."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import INT8, INT16, INT32, STRING

__all__ = [
    "AclCreation",
    "AclCreationResult",
    "AclDescription",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "DeleteAclsFilter",
    "DeleteAclsFilterResult",
    "DeleteAclsMatchingAcl",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResource",
    "DescribeAclsResponse",
]


class DescribeAclsRequest(ApiMessage, api_key=29, versions="0-3", flexible="2+"):
    """Finds access control entries that match a filter.

    v1 adds pattern types (literal or prefixed, KIP-290), v3 user resources.
    """

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class AclDescription(Message):
    """One of the `acls` of a `DescribeAclsResource`."""

    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DescribeAclsResource(Message):
    """One of the `resources` of a `DescribeAclsResponse`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    acls: list[AclDescription] = field(ArrayOf(AclDescription))


class DescribeAclsResponse(ApiMessage, api_key=29, versions="0-3", flexible="2+"):
    """The matching entries by resource."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resources: list[DescribeAclsResource] = field(ArrayOf(DescribeAclsResource))


class AclCreation(Message):
    """One of the `creations` of a `CreateAclsRequest`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    resource_pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class CreateAclsRequest(ApiMessage, api_key=30, versions="0-3", flexible="2+"):
    """Adds access control entries. v1 adds pattern types, v3 user resources."""

    creations: list[AclCreation] = field(ArrayOf(AclCreation))


class AclCreationResult(Message):
    """One of the `results` of a `CreateAclsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class CreateAclsResponse(ApiMessage, api_key=30, versions="0-3", flexible="2+"):
    """Whether it worked, for each entry."""

    throttle_time_ms: int = field(INT32)
    results: list[AclCreationResult] = field(ArrayOf(AclCreationResult))


class DeleteAclsFilter(Message):
    """One of the `filters` of a `DeleteAclsRequest`."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DeleteAclsRequest(ApiMessage, api_key=31, versions="0-3", flexible="2+"):
    """Deletes all access control entries that match filters. v1 adds pattern types."""

    filters: list[DeleteAclsFilter] = field(ArrayOf(DeleteAclsFilter))


class DeleteAclsMatchingAcl(Message):
    """One of the `matching_acls` of a `DeleteAclsFilterResult`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DeleteAclsFilterResult(Message):
    """One of the `filter_results` of a `DeleteAclsResponse`."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field(ArrayOf(DeleteAclsMatchingAcl))


class DeleteAclsResponse(ApiMessage, api_key=31, versions="0-3", flexible="2+"):
    """The entries that each filter matched, and whether they were deleted."""

    throttle_time_ms: int = field(INT32)
    filter_results: list[DeleteAclsFilterResult] = field(ArrayOf(DeleteAclsFilterResult))
