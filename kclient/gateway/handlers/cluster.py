"""DescribeCluster, and DescribeTopicPartitions: topics in pages, for those with very many partitions (KIP-966)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kclient.errors import ErrorCode, KafkaError, UnknownTopicOrPartitionError, UnsupportedEndpointTypeError
from kclient.gateway.core import RequestContext
from kclient.gateway.handlers import Handler
from kclient.gateway.handlers._errors import code_of
from kclient.gateway.topics import check_name
from kclient.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kclient.protocol.registry import ApiKey

API_VERSIONS: dict[ApiKey, tuple[int, int]] = {
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
_BROKERS = 1
_MOST_PARTITIONS = 2000
"""Most partitions per answer, as Kafka's `max.request.partition.size.limit`."""


class DescribeClusterHandler(Handler):
    """Answers DescribeCluster."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER

    def begin(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        """The cluster's id and its one broker: this gateway."""
        if request.endpoint_type != _BROKERS:
            raise UnsupportedEndpointTypeError("a gateway has broker endpoints only, no controllers")
        core, advertised = self.core, context.connection.advertised
        rack = core.config.get("broker.rack")
        broker = DescribeClusterBroker(
            broker_id=core.node_id,
            host=advertised.host,
            port=advertised.port,
            rack=str(rack) if rack is not None else None,
        )
        return DescribeClusterResponse(cluster_id=core.cluster_id, controller_id=core.node_id, brokers=[broker])


class DescribeTopicPartitionsHandler(Handler):
    """Answers DescribeTopicPartitions."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS

    def begin(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        """The topics from the cursor on, in the order of their names, as many partitions as are allowed."""
        names = sorted({topic.name for topic in request.topics}) or list(self.core.topics.names())
        first, skip = "", 0
        if request.cursor is not None:
            first, skip = request.cursor.topic_name, request.cursor.partition_index
        left = min(max(request.response_partition_limit, 1), _MOST_PARTITIONS)
        response = DescribeTopicPartitionsResponse()
        for name in self._from(names, first):
            answer, count = self._topic(name, skip if name == first else 0, left)
            response.topics.append(answer)
            left -= len(answer.partitions)
            begun = (skip if name == first else 0) + len(answer.partitions)
            if begun < count:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=begun)
                break
            following = next(self._from(names, name, after=True), None)
            if not left and following is not None:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=following, partition_index=0)
                break
        return response

    def fail(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext, error: KafkaError
    ) -> DescribeTopicPartitionsResponse:
        """The same error for every topic."""
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
                for topic in request.topics
            ]
        )

    @staticmethod
    def _from(names: list[str], first: str, *, after: bool = False) -> Iterator[str]:
        return (name for name in names if name > first or (name == first and not after))

    def _topic(self, name: str, skip: int, left: int) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
        answer = DescribeTopicPartitionsResponseTopic(name=name)
        try:
            check_name(name)
            record = self.core.topics.get(name)
            if record is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name}")
        except KafkaError as error:
            answer.error_code = code_of(error)
            return answer, 0
        answer.topic_id = record.topic_id
        nodes = [self.core.node_id]
        for index in range(skip, min(record.partitions, skip + left)):
            answer.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    partition_index=index,
                    leader_id=self.core.node_id,
                    leader_epoch=self.core.leader_epoch,
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
            )
        return answer, record.partitions


HANDLERS: dict[ApiKey, type[Handler]] = {
    ApiKey.DESCRIBE_CLUSTER: DescribeClusterHandler,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsHandler,
}
