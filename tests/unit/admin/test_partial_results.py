"""What an answer tells of things that did not fail is not lost because others did."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import kclient
from kclient import ConfigResource, ConfigResourceType, sync
from kclient.admin import OffsetSpec, PartialFailureError
from kclient.errors import (
    BrokerIdNotRegisteredError,
    GroupIdNotFoundError,
    KafkaError,
    KafkaTimeoutError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from kclient.protocol.messages import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

pytestmark = pytest.mark.anyio


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", 2)
            admin.alter_group_offsets("g", {("t", 0): 1})
        with sync.Producer(bootstrap_servers=found, transactional_id="x") as producer:
            producer.init_transactions()
        yield found


async def test_descriptions(address: str) -> None:
    async with kclient.Admin(bootstrap_servers=address) as admin:
        with pytest.raises(UnknownTopicOrPartitionError) as topics:
            await admin.describe_topics(["t", "none"])
        assert topics.value.results == await admin.describe_topics(["t"])
        with pytest.raises(PartialFailureError) as several:
            await admin.describe_topics(["none", "t", "nothing"])
        assert set(several.value.failures) == {"none", "nothing"}
        assert list(several.value.results) == ["t"]
        with pytest.raises(GroupIdNotFoundError) as groups:
            await admin.describe_groups(["none", "g"])
        assert groups.value.results == await admin.describe_groups(["g"])
        with pytest.raises(TransactionalIdNotFoundError) as transactions:
            await admin.describe_transactions(["none", "x"])
        assert list(transactions.value.results) == ["x"]
        of_topic = ConfigResource(ConfigResourceType.TOPIC, "t")
        with pytest.raises(UnknownTopicOrPartitionError) as configs:
            await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "none"), of_topic])
        assert configs.value.results == await admin.describe_configs([of_topic])


async def test_an_error_without_any_has_none_and_can_be_pickled(address: str) -> None:
    async with kclient.Admin(bootstrap_servers=address) as admin:
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await admin.describe_topics(["none"])
        assert not caught.value.results
        with pytest.raises(UnknownTopicOrPartitionError) as told:
            await admin.describe_topics(["none", "t"])
        assert pickle.loads(pickle.dumps(told.value)).results == told.value.results
        assert not KafkaError("any").results


async def test_offsets_of_a_topic_that_is_not_there(address: str) -> None:
    async with kclient.Admin(bootstrap_servers=address, default_api_timeout_ms=2000) as admin:
        places = {TopicPartition("t", 0): OffsetSpec.LATEST, TopicPartition("none", 0): OffsetSpec.LATEST}
        with pytest.raises(UnknownTopicOrPartitionError, match="none-0") as caught:
            await admin.list_offsets(places)
        assert {tp: found.offset for tp, found in caught.value.results.items()} == {TopicPartition("t", 0): 0}


async def test_settings_of_brokers_of_which_one_is_gone_and_one_hangs() -> None:
    def described(broker: Any, request: Any) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(resource_type=each.resource_type, resource_name=each.resource_name, configs=[])
                for each in request.resources
            ]
        )

    async def hangs(broker: Any, request: Any) -> DescribeConfigsResponse:
        if broker.node_id == 2:
            await anyio.sleep_forever()
        return described(broker, request)

    of_broker = [ConfigResource(ConfigResourceType.BROKER, str(number)) for number in (1, 2, 9)]
    of_topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    versions = {**VERSIONS, ApiKey.DESCRIBE_CONFIGS: (1, 4)}
    async with (
        FakeKafka({"t": 1}, brokers=2, versions=versions) as kafka,
        administering(kafka, default_api_timeout_ms=1500) as admin,
    ):
        kafka.scripts[ApiKey.DESCRIBE_CONFIGS] = hangs
        with pytest.raises(PartialFailureError) as caught:
            await admin.describe_configs([*of_broker, of_topic])
        failures = caught.value.failures
        assert {name: type(error) for name, error in failures.items() if "'2'" in name or "'9'" in name} == {
            "Broker '2'": KafkaTimeoutError,
            "Broker '9'": BrokerIdNotRegisteredError,
        }
        assert of_broker[0] in caught.value.results
        with pytest.raises(BrokerIdNotRegisteredError):
            await admin.describe_configs(of_broker[2:])


async def test_offsets_of_leaders_of_which_one_hangs() -> None:
    async def told(broker: Any, request: Any) -> ListOffsetsResponse:
        if broker.node_id == 2:
            await anyio.sleep_forever()
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=part.partition_index, offset=5)
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    wanted = {TopicPartition("t", number): OffsetSpec.LATEST for number in range(4)}
    async with (
        FakeKafka({"t": 4}, brokers=2, versions=VERSIONS) as kafka,
        administering(kafka, default_api_timeout_ms=1500) as admin,
    ):
        kafka.scripts[ApiKey.LIST_OFFSETS] = told
        with (
            anyio.fail_after(10),
            pytest.raises(KafkaTimeoutError, match="Listing offsets did not") as caught,
        ):
            await admin.list_offsets(wanted)
        assert len(caught.value.results) == 2
        assert caught.value.results.keys() < wanted.keys()
