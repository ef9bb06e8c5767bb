"""DescribeCluster, and DescribeTopicPartitions: topics in pages, for those with very many partitions (KIP-966)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import ClassVar, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    ErrorCode,
    KafkaError,
    MismatchedEndpointTypeError,
    UnknownTopicOrPartitionError,
    UnsupportedEndpointTypeError,
)
from kclient.gateway.access import Access
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.handlers._work import FEW, Work, rows_for, sorted_in_steps, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.topics.names import INTERNAL, check_name
from kclient.gateway.topics.record import TopicRecord
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kclient.protocol.registry import ApiKey

_BROKERS, _CONTROLLERS = 1, 2
_PER_TOPIC = 250
_PER_NAME = 100
"""About how many bytes of memory a topic's row takes, and a name among those that are asked for."""
_MOST_PARTITIONS = 2000
"""Most partitions per answer, as Kafka's `max.request.partition.size.limit`."""


class DescribeClusterHandler(Handler):
    """Answers DescribeCluster."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def __init__(self, cluster_id: str, leadership: Leadership, access: Access) -> None:
        self._cluster_id = cluster_id
        self._leadership = leadership
        self._access = access

    def begin(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        """The cluster's id and its brokers: the gateways."""
        if request.endpoint_type == _CONTROLLERS:
            raise MismatchedEndpointTypeError("this is a broker endpoint, the request is for a controller's")
        if request.endpoint_type != _BROKERS:
            raise UnsupportedEndpointTypeError(f"there are no endpoints of type {request.endpoint_type}")
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=self._leadership.controller_id,
            brokers=[
                DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
                for node in self._leadership.nodes(context.connection.advertised)
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = self._access.cluster_operations(context.connection)
        return response


class DescribeTopicPartitionsHandler(Handler):
    """Answers DescribeTopicPartitions."""

    ONLY_READS: ClassVar[bool] = True
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    VERSIONS: ClassVar[VersionRange] = (0, 0)

    def __init__(self, leadership: Leadership, access: Access) -> None:
        self._leadership = leadership
        self._access = access

    def begin(self, request: DescribeTopicPartitionsRequest, context: RequestContext) -> Begun:
        """The topics from the cursor on, in the order of their names, as many partitions as are allowed."""
        return cast("Begun", started(self._begin(request, context.connection)))

    def _begin(self, request: DescribeTopicPartitionsRequest, client: ConnectionContext) -> Work:
        first, skip = "", 0
        if request.cursor is not None:
            first, skip = request.cursor.topic_name, max(request.cursor.partition_index, 0)
        names: Iterator[str] = yield from self._names(request, first, client)
        left = min(max(request.response_partition_limit, 1), _MOST_PARTITIONS)
        response = DescribeTopicPartitionsResponse()
        for name in names:
            if not left:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
                break
            begun = skip if name == first else 0
            answer, count = self._topic(name, begun, left, client)
            response.topics.append(answer)
            left -= len(answer.partitions)
            begun += len(answer.partitions)
            if begun < count:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=begun)
                break
            yield _PER_TOPIC
        return response

    def _names(self, request: DescribeTopicPartitionsRequest, first: str, client: ConnectionContext) -> Work:
        """Those that are asked for, from the first on, each once and in order."""
        if not request.topics:
            names = self._access.names(client, AclOperation.DESCRIBE)
            return islice(names, bisect_left(names, first), None)
        asked: set[str] = set()
        for count, topic in enumerate(request.topics):
            if topic.name >= first:
                asked.add(topic.name)
            if count % FEW == FEW - 1:
                yield FEW * _PER_NAME
        return (yield from sorted_in_steps(asked))

    def fail(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext, error: KafkaError
    ) -> DescribeTopicPartitionsResponse:
        """The same error for every topic."""

        def answered(topic: DescribeTopicPartitionsRequestTopicRequest) -> DescribeTopicPartitionsResponseTopic:
            return DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

        return DescribeTopicPartitionsResponse(topics=rows_for(request.topics, answered))

    def _topic(
        self, name: str, skip: int, left: int, client: ConnectionContext
    ) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
        answer = DescribeTopicPartitionsResponseTopic(name=name, is_internal=name in INTERNAL)
        try:
            check_name(name)
            record = self._access.described(client, AclOperation.DESCRIBE, name)
        except KafkaError as error:
            answer.error_code = code_of(error)
            if isinstance(error, UnknownTopicOrPartitionError):
                with suppress(KafkaError):  # of a topic that is not there, too
                    answer.topic_authorized_operations = self._access.operations(client, ResourceType.TOPIC, name)
            return answer, 0
        answer.topic_id = record.topic_id
        answer.topic_authorized_operations = self._access.operations(client, ResourceType.TOPIC, name)
        wanted = range(skip, max(skip, min(record.partitions, skip + left)))
        answer.partitions = lazily(len(wanted), self._rows(record, wanted))
        return answer, record.partitions

    def _rows(self, record: TopicRecord, wanted: range) -> Iterator[DescribeTopicPartitionsResponsePartition]:
        for index in wanted:
            node_id, epoch = self._leadership.leader(record, index)
            nodes = [node_id]
            yield DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=node_id,
                leader_epoch=epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
