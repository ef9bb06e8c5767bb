"""What brokers tell of a group, in the four forms that they have for groups of different types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kclient.admin.types import GroupDescription, MemberDescription, operations_in
from kclient.cluster import version_for
from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerProtocolAssignment,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseTopology,
)
from kclient.types import Node, TopicPartition

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"


@dataclass(frozen=True)
class GroupDescriber:
    """How groups of one type are asked for and described."""

    name: str
    request: Callable[[str, bool], ApiMessage]
    """For a group, with what this user may do with it, or without."""
    response: type[ApiMessage]
    description: Callable[[Any, Node], GroupDescription]
    """From the group in the response, and its coordinator."""


def is_served(connection: Connection, request: type[ApiMessage]) -> bool:
    """Whether a broker takes such a request in a version that kclient knows."""
    try:
        version_for(connection, request)
    except UnsupportedVersionError:
        return False
    return True


def _classic(group: DescribeGroupsResponseDescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _embedded(member.member_assignment) if group.protocol_type == "consumer" else (),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        members,
        coordinator,
        CLASSIC,
        authorized_operations=operations_in(group.authorized_operations),
    )


def _embedded(assignment: bytes) -> tuple[TopicPartition, ...]:
    if not assignment:
        return ()
    try:
        decoded = decode_embedded(ConsumerProtocolAssignment, assignment)
    except ProtocolError:
        return ()  # members of a group may write there what they like
    return tuple(
        TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
    )


def _consumer(group: ConsumerGroupDescribeResponseDescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            member.rack_id,
            member.member_epoch,
            _partitions(member.target_assignment),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        CONSUMER,
        group.assignor_name,
        members,
        coordinator,
        CONSUMER,
        group.group_epoch,
        group.assignment_epoch,
        operations_in(group.authorized_operations),
    )


def _share(group: ShareGroupDescribeResponseDescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            None,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            member.rack_id,
            member.member_epoch,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        SHARE,
        group.assignor_name,
        members,
        coordinator,
        SHARE,
        group.group_epoch,
        group.assignment_epoch,
        operations_in(group.authorized_operations),
    )


def _partitions(
    assignment: ConsumerGroupDescribeResponseAssignment | ShareGroupDescribeResponseAssignment,
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )


def _streams(group: StreamsGroupDescribeResponseDescribedGroup, coordinator: Node) -> GroupDescription:
    sources = _sources(group.topology)
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _tasks(member.assignment, sources),
            member.rack_id,
            member.member_epoch,
            _tasks(member.target_assignment, sources),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        STREAMS,
        "",
        members,
        coordinator,
        STREAMS,
        group.group_epoch,
        group.assignment_epoch,
        operations_in(group.authorized_operations),
    )


def _sources(topology: StreamsGroupDescribeResponseTopology | None) -> dict[str, list[str]]:
    """The topics that each part of a topology reads."""
    if topology is None:
        return {}
    return {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in topology.subtopologies or ()
    }


def _tasks(
    assignment: StreamsGroupDescribeResponseAssignment, sources: dict[str, list[str]]
) -> tuple[TopicPartition, ...]:
    def read() -> Iterable[TopicPartition]:
        for task in assignment.active_tasks:
            for topic in sources.get(task.subtopology_id, ()):
                yield from (TopicPartition(topic, number) for number in task.partitions)

    return tuple(read())


KINDS = (
    GroupDescriber(
        CLASSIC,
        lambda group, operations: DescribeGroupsRequest(groups=[group], include_authorized_operations=operations),
        DescribeGroupsResponse,
        _classic,
    ),
    GroupDescriber(
        CONSUMER,
        lambda group, operations: ConsumerGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=operations
        ),
        ConsumerGroupDescribeResponse,
        _consumer,
    ),
    GroupDescriber(
        SHARE,
        lambda group, operations: ShareGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=operations
        ),
        ShareGroupDescribeResponse,
        _share,
    ),
    GroupDescriber(
        STREAMS,
        lambda group, operations: StreamsGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=operations
        ),
        StreamsGroupDescribeResponse,
        _streams,
    ),
)
"""In the order in which they are asked for; brokers say of a group of another type that it does not exist."""
