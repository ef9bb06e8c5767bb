"""What a cluster has beside topics and committed offsets: it is listed, not moved, and has to be made anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kclient.admin.answers import check_code
from kclient.errors import (
    AuthorizationError,
    KafkaError,
    SecurityDisabledError,
    UnsupportedVersionError,
)
from kclient.migration.source import SourceCluster
from kclient.protocol.messages import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kclient.types import TopicPartition

_ANY: Final = 1
_NO_CREDENTIALS: Final = 91
"""RESOURCE_NOT_FOUND: what a user without credentials is answered with."""
_RESOURCES: Final = {2: "topic", 3: "group", 4: "cluster", 5: "transactional id", 6: "delegation token", 7: "user"}
_OPERATIONS: Final = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster action",
    10: "describe configs", 11: "alter configs", 12: "idempotent write", 13: "create tokens", 14: "describe tokens",
    15: "two phase commit",
}  # fmt: skip
_PERMISSIONS: Final = {2: "deny", 3: "allow"}
_PREFIXED: Final = 4
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


@dataclass(slots=True)
class Others:
    """What is not moved."""

    acls: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    """Users and the mechanisms of their SCRAM credentials."""
    quotas: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """What the brokers do not tell, and why."""


async def find_others(source: SourceCluster) -> Others:
    """List ACLs, SCRAM credentials and client quotas, as far as the brokers tell them.

    Raises:
        KafkaError: The source does not answer.
    """
    found = Others()
    for name, find in (("ACLs", _acls), ("credentials", _credentials), ("quotas", _quotas)):
        try:
            rows = await find(source)
        except (AuthorizationError, UnsupportedVersionError) as error:
            found.unknown.append(f"{name}: {error.message}")
            continue
        setattr(found, name.lower(), rows)
    return found


async def _acls(source: SourceCluster) -> list[str]:
    request = DescribeAclsRequest(
        resource_type_filter=_ANY, resource_name_filter=None, pattern_type_filter=_ANY, principal_filter=None,
        host_filter=None, operation=_ANY, permission_type=_ANY,
    )  # fmt: skip
    try:
        response = await source.ask(
            request,
            DescribeAclsResponse,
            what="Listing ACLs",
            check=lambda answer: check_code(answer.error_code, "ACLs", answer.error_message),
        )
    except SecurityDisabledError:  # no authorizer: nobody is refused anything
        return []
    return sorted(
        f"{acl.principal} from {acl.host}: {_PERMISSIONS.get(acl.permission_type, '?')} "
        f"{_OPERATIONS.get(acl.operation, '?')} of {_RESOURCES.get(resource.resource_type, '?')} "
        f"{resource.resource_name}{'*' if resource.pattern_type == _PREFIXED else ''}"
        for resource in response.resources
        for acl in resource.acls
    )


async def _credentials(source: SourceCluster) -> list[str]:
    response = await source.ask(
        DescribeUserScramCredentialsRequest(users=None),
        DescribeUserScramCredentialsResponse,
        what="Listing credentials",
        check=lambda answer: check_code(answer.error_code, "Credentials", answer.error_message),
    )
    return sorted(
        f"{result.user}: {_MECHANISMS.get(each.mechanism, 'another mechanism')}"
        for result in response.results
        if result.error_code != _NO_CREDENTIALS
        for each in result.credential_infos
    )


async def _quotas(source: SourceCluster) -> list[str]:
    response = await source.ask(
        DescribeClientQuotasRequest(components=[], strict=False),
        DescribeClientQuotasResponse,
        what="Listing quotas",
        check=lambda answer: check_code(answer.error_code, "Quotas", answer.error_message),
    )
    rows: list[str] = []
    for entry in response.entries or ():
        whose = " and ".join(f"{part.entity_type} {part.entity_name or '(default)'}" for part in entry.entity)
        rows += [f"{whose}: {value.key}={value.value:g}" for value in entry.values]
    return sorted(rows)


async def sizes(source: SourceCluster) -> dict[TopicPartition, int]:
    """The bytes of each partition at its leader or largest replica, as far as the brokers tell them."""
    found: dict[TopicPartition, int] = {}
    for node_id in source.snapshot.nodes:
        try:
            response: DescribeLogDirsResponse = await source.ask_node(
                node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, what="Listing log directories"
            )
        except KafkaError as error:
            if isinstance(error, AuthorizationError | UnsupportedVersionError):
                return {}
            raise
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    if not partition.is_future_key:
                        found[tp] = max(found.get(tp, 0), partition.partition_size)
    return found
