"""Descriptions of groups of Kafka Streams instances (KIP-1071): StreamsGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.acls import AclOperation, ResourceType
from kclient.errors import TopicAuthorizationError
from kclient.gateway.groups.assignors.tasks import TaskSets
from kclient.gateway.groups.streaming.group import StreamsGroup
from kclient.gateway.groups.streaming.membership import streams_group
from kclient.gateway.handlers._describing import GroupDescribeHandler
from kclient.gateway.handlers._work import FEW, Work, rows_for
from kclient.gateway.handlers.handler import VersionRange
from kclient.gateway.handlers.streams_groups import check_streams_are_on
from kclient.gateway.rows.streams_topology import StreamsTopic, Subtopology
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.streams import (
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseEndpoint,
    StreamsGroupDescribeResponseKeyValue,
    StreamsGroupDescribeResponseMember,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTaskIds,
    StreamsGroupDescribeResponseTopicInfo,
    StreamsGroupDescribeResponseTopology,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.features import Features
    from kclient.gateway.groups.streaming.member import StreamsMember
    from kclient.gateway.groups.table import GroupTable

_PER_TOPIC: Final = 500
"""About how many bytes of memory a topic takes that the client is asked for."""


class StreamsGroupDescribeHandler(GroupDescribeHandler[StreamsGroupDescribeResponseDescribedGroup, StreamsGroup]):
    """Shows streams groups: their epochs and topology, and which tasks each member has and is to have."""

    API: ClassVar[ApiKey] = ApiKey.STREAMS_GROUP_DESCRIBE
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    _ROW = StreamsGroupDescribeResponseDescribedGroup
    _RESPONSE = StreamsGroupDescribeResponse

    def __init__(self, access: Access, table: GroupTable, features: Features) -> None:
        super().__init__(access)
        self._table = table
        self._features = features

    def _check(self) -> None:
        check_streams_are_on(self._features)

    def _find(self, group_id: str) -> StreamsGroup:
        return streams_group(self._table, group_id)[1]

    def _describe(
        self, group: StreamsGroup, row: StreamsGroupDescribeResponseDescribedGroup, client: ConnectionContext
    ) -> Work:
        """Its topology is described while the response is encoded, too: a request may name a group many times."""
        topology, configured = group.topology, group.configured
        for count, name in enumerate(() if topology is None else sorted(topology.named), 1):
            if not self._access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
                raise TopicAuthorizationError(f"the group uses topics that {client.principal} may not DESCRIBE")
            if count % FEW == 0:
                yield _PER_TOPIC * FEW
        self._put_state(group, row)
        if topology is not None:
            parts = configured.subtopologies if configured is not None and configured.ready else topology.subtopologies
            row.topology = StreamsGroupDescribeResponseTopology(
                epoch=topology.epoch, subtopologies=lazily(len(parts), _described_parts(parts))
            )
        members = list(group.members)
        row.members = lazily(len(members), map(_described, members))


def _described_parts(parts: Mapping[str, Subtopology]) -> Iterator[StreamsGroupDescribeResponseSubtopology]:
    for name in sorted(parts):
        yield _described_part(parts[name])


def _described_part(part: Subtopology) -> StreamsGroupDescribeResponseSubtopology:
    return StreamsGroupDescribeResponseSubtopology(
        subtopology_id=part.subtopology_id,
        source_topics=sorted(part.sources),
        repartition_sink_topics=sorted(part.sinks),
        state_changelog_topics=[_described_topic(topic) for topic in sorted(part.changelogs)],
        repartition_source_topics=[_described_topic(topic) for topic in sorted(part.repartitions)],
    )


def _described_topic(topic: StreamsTopic) -> StreamsGroupDescribeResponseTopicInfo:
    return StreamsGroupDescribeResponseTopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=_pairs(topic.configs),
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[StreamsGroupDescribeResponseKeyValue]:
    return [StreamsGroupDescribeResponseKeyValue(key=key, value=value) for key, value in pairs]


def _described(member: StreamsMember) -> StreamsGroupDescribeResponseMember:
    endpoint = None
    if member.endpoint is not None:
        endpoint = StreamsGroupDescribeResponseEndpoint(host=member.endpoint.host, port=member.endpoint.port)
    return StreamsGroupDescribeResponseMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint,
        client_tags=_pairs(member.tags),
        assignment=_assignment(member.assigned.sets),
        target_assignment=_assignment(member.target),
    )


def _assignment(tasks: TaskSets) -> StreamsGroupDescribeResponseAssignment:
    active, standby, warmup = (
        rows_for(
            sorted(each.items()),
            lambda row: StreamsGroupDescribeResponseTaskIds(subtopology_id=row[0], partitions=sorted(row[1])),
        )
        for each in tasks
    )
    return StreamsGroupDescribeResponseAssignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)
