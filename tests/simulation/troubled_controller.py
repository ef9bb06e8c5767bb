"""Who answers administrators in the troubled cluster: a controller that moves, and brokers that lead logs."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import anyio

from kclient.errors import ErrorCode
from kclient.protocol.messages import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsResponse,
    DescribeClusterBroker,
    DescribeClusterResponse,
    ListedGroup,
    ListGroupsResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker
from tests.simulation.troubled_kafka import TroubledKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS

_PASSING = (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.REQUEST_TIMED_OUT)


class Controller:
    """Makes, grows and deletes topics, and remembers what it did.

    Args:
        kafka: The cluster.
        dice: Decides whether brokers ask the controller for the client (KRaft), and what goes wrong on that way.
    """

    def __init__(self, kafka: TroubledKafka, dice: Random) -> None:
        self.kafka = kafka
        self.dice = dice
        self.kraft = dice.random() < 0.5
        self.calm = False
        """Whether nothing goes wrong any more."""
        self.created: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        kafka.versions |= {**VERSIONS, ApiKey.DELETE_RECORDS: (0, 2), **(KRAFT if self.kraft else {})}
        for key, change in {
            ApiKey.CREATE_TOPICS: self._create,
            ApiKey.DELETE_TOPICS: self._delete,
            ApiKey.CREATE_PARTITIONS: self._grow,
        }.items():
            kafka.scripts[key] = lambda broker, request, change=change: self._change(broker, request, change)
        kafka.scripts[ApiKey.DELETE_RECORDS] = self._trim
        kafka.scripts[ApiKey.DESCRIBE_CLUSTER] = self._describe
        kafka.scripts[ApiKey.LIST_GROUPS] = self._list_groups

    async def _change(self, broker: FakeBroker, request: Any, change: Any) -> Any:
        """A change, by the controller or on the way to it."""
        if not self.kraft and broker.node_id != self.kafka.controller:
            return change(request, ErrorCode.NOT_CONTROLLER, False)
        fate = 1.0 if self.calm else self.dice.random()
        if fate < 0.1:
            return change(request, self.dice.choice(_PASSING), False)
        answer = change(request, ErrorCode.REQUEST_TIMED_OUT if fate < 0.2 else ErrorCode.NONE, True)
        if fate < 0.3:  # it is done, and the answer takes its time
            await anyio.sleep(self.dice.choice([1.0, 10.0, 40.0]) * self.dice.random())
        return answer

    def _create(self, request: Any, code: int, done: bool) -> CreateTopicsResponse:
        results = []
        for topic in request.topics:
            found = code
            if done and topic.name in self.kafka.ids:
                found = ErrorCode.TOPIC_ALREADY_EXISTS
            elif done:
                self.kafka.create(topic.name, topic.num_partitions)
                self.created[topic.name] += 1
            results.append(CreatableTopicResult(name=topic.name, error_code=found))
        return CreateTopicsResponse(topics=results)

    def _delete(self, request: Any, code: int, done: bool) -> DeleteTopicsResponse:
        results = []
        for name in request.topic_names or [topic.name for topic in request.topics]:
            found = code
            if done and name not in self.kafka.ids:
                found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif done:
                self.kafka.delete(name)
                self.deleted[name] += 1
            results.append(DeletableTopicResult(name=name, error_code=found))
        return DeleteTopicsResponse(responses=results)

    def _grow(self, request: Any, code: int, done: bool) -> CreatePartitionsResponse:
        results = []
        for topic in request.topics:
            found = code
            if done and topic.name not in self.kafka.ids:
                found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif done and self.partitions(topic.name) >= topic.count:
                found = ErrorCode.INVALID_PARTITIONS
            elif done:
                self.kafka.grow(topic.name, topic.count)
            results.append(CreatePartitionsTopicResult(name=topic.name, error_code=found))
        return CreatePartitionsResponse(results=results)

    def partitions(self, name: str) -> int:
        """How many a topic has."""
        return sum(tp.topic == name for tp in self.kafka.partitions)

    def _trim(self, broker: FakeBroker, request: Any) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            results = []
            for item in topic.partitions:
                tp = TopicPartition(topic.name, item.partition_index)
                code = self.kafka.refusal(broker, tp, -1)
                if not code:
                    self.kafka.starts[tp] = max(self.kafka.starts[tp], item.offset)
                low = -1 if code else self.kafka.starts[tp]
                results.append(
                    DeleteRecordsPartitionResult(partition_index=tp.partition, low_watermark=low, error_code=code)
                )
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        return DeleteRecordsResponse(topics=topics)

    def _describe(self, broker: FakeBroker, request: Any) -> DescribeClusterResponse:
        brokers = [
            DescribeClusterBroker(broker_id=number, host=other.host, port=0)
            for number, other in self.kafka.brokers.items()
            if other.listed and not other.down
        ]
        return DescribeClusterResponse(cluster_id="c", controller_id=self.kafka.controller, brokers=brokers)

    def _list_groups(self, broker: FakeBroker, request: Any) -> ListGroupsResponse:
        if broker.node_id != self.kafka.coordinator:
            return ListGroupsResponse()
        group = ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic")
        return ListGroupsResponse(groups=[group])
