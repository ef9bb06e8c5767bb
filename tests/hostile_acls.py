"""As `hostile_clients`: what one client can do with access control lists that it may change."""

from __future__ import annotations

from collections.abc import Iterable

from kclient.protocol.messages import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    MetadataRequest,
)
from kclient.protocol.messages import fetch as fetch_
from kclient.protocol.messages import metadata as metadata_
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import framed

MOST = 10_000
"""Entries that one request may add, or remove."""


def _create(names: Iterable[str], principal: str = "User:alice", permission: int = 3) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=2, resource_name=name, resource_pattern_type=3 + number % 2, principal=principal,
                host="*", operation=3, permission_type=permission,
            )
            for number, name in enumerate(names)
        ]
    )  # fmt: skip


def _everything(principal: str | None = None) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=principal,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


@attack("CreateAcls of 10k, and DeleteAcls", authorizer_class_name="acls", super_users="User:ANONYMOUS")
def come_and_go(site: Site) -> Course:
    request = _create(numbered("topic-", site.many(MOST)))
    for number, each in enumerate(request.creations):
        each.principal = f"User:{number % 4}"
    frames = [framed(request, 3)]
    for number in range(4):  # what is removed at once is one commit, which a store in memory makes in one go
        frames.append(framed(DeleteAclsRequest(filters=[_everything(f"User:{number}")]), 3))
    yield
    site.repeat(*frames)


@attack("DescribeAcls of 100k, and filters of every kind", authorizer_class_name="acls", super_users="User:ANONYMOUS")
def described(site: Site) -> Course:
    for start in range(10):
        names = numbered(f"topic-{start}-", site.many(MOST))
        site.call(_create(names, f"User:{start}"), 3)
    everything = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    searches = [_everything() for _ in range(20)]
    for number, each in enumerate(searches):
        each.host_filter = f"10.0.0.{number}"
    named = [_everything(f"User:{number % 10}") for number in range(site.many(900))]
    for each in named:
        each.resource_type_filter, each.resource_name_filter, each.pattern_type_filter = 3, "topic", 2
    yield
    site.repeat(framed(everything, 3), framed(DeleteAclsRequest(filters=[*searches, *named]), 3))


@attack(
    "metadata of 500k names, by access control lists",
    authorizer_class_name="acls", allow_everyone_if_no_acl_found="true",
)  # fmt: skip
def asked_for(site: Site) -> Course:
    topics = [metadata_.MetadataRequestTopic(name=name) for name in numbered("no-", site.many(500_000))]
    frame = framed(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    yield
    site.repeat(frame)


def _denied(site: Site, resource_type: int, operation: int) -> None:
    """Whoever asks may not do something with names that begin with `no-`."""
    denied = AclCreation(
        resource_type=resource_type, resource_name="no-", resource_pattern_type=4, principal="User:*", host="*",
        operation=operation, permission_type=2,
    )  # fmt: skip
    site.call(CreateAclsRequest(creations=[denied]), 3)


@attack(
    "fetch of 200k topics, which the client may not read",
    authorizer_class_name="acls", allow_everyone_if_no_acl_found="true",
)  # fmt: skip
def fetched(site: Site) -> Course:
    _denied(site, 2, 3)
    partitions = [fetch_.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
    topics = [
        fetch_.FetchRequestTopic(topic=name, partitions=partitions) for name in numbered("no-", site.many(200_000))
    ]
    frame = framed(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
    yield
    site.repeat(frame)


@attack(
    "DescribeTransactions of 500k ids, which the client may not describe",
    authorizer_class_name="acls", allow_everyone_if_no_acl_found="true",
)  # fmt: skip
def described_transactions(site: Site) -> Course:
    _denied(site, 5, 8)
    frame = framed(DescribeTransactionsRequest(transactional_ids=numbered("no-", site.many(500_000))), 0)
    yield
    site.repeat(frame)
