"""The admin client against real Kafka and the gateway: the same calls, the same answers."""

from __future__ import annotations

import contextlib

import anyio
import pytest

import kclient
from kclient.admin import (
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    OffsetSpec,
    PartialFailureError,
)
from kclient.errors import (
    ClosedError,
    ConfigError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio


async def partition_count(admin: kclient.Admin, topic: str, expected: int) -> int:
    """The topic's number of partitions, asked for until it is the expected one: brokers learn of changes by and by."""
    count = -1
    with anyio.move_on_after(60):
        while count != expected:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                count = len((await admin.describe_topics([topic]))[topic].partitions)
    return count


async def fill(broker: str, topic: str, count: int) -> None:
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        for number in range(count):
            await producer.send(topic, str(number).encode(), partition=0, timestamp=1_700_000_000_000 + number)


async def test_topics_from_creation_to_deletion(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, partitions=3, configs={"retention.ms": "12345"})
        assert await partition_count(admin, topic, 3) == 3
        description = (await admin.describe_topics([topic]))[topic]
        assert [info.partition for info in description.partitions] == [0, 1, 2]
        assert all(info.leader is not None for info in description.partitions)
        assert len(description.topic_id) == 22
        assert topic in {listed.name for listed in await admin.list_topics()}

        with pytest.raises(TopicExistsError, match=topic):
            await admin.create_topic(topic)
        await admin.create_partitions({topic: 5})
        assert await partition_count(admin, topic, 5) == 5
        with pytest.raises(InvalidPartitionsError):
            await admin.create_partitions({topic: 2})

        await admin.delete_topic(topic)
        with anyio.fail_after(60), pytest.raises(UnknownTopicOrPartitionError, match=topic):
            while True:
                await admin.describe_topics([topic])
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.delete_topic(topic)


async def test_topics_in_many_pages(broker: str, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(name, 5) for name in names])
        for name in names:
            assert await partition_count(admin, name, 5) == 5
        whole = await admin.describe_topics(names)
        assert await admin.describe_topics(names, partition_size_limit_per_response=2) == whole
        assert list(whole) == names
        assert all([info.partition for info in topic.partitions] == [0, 1, 2, 3, 4] for topic in whole.values())
        with pytest.raises(PartialFailureError) as caught:
            await admin.describe_topics([*names, f"{topic}-x", f"{topic}-0"], partition_size_limit_per_response=3)
        assert set(caught.value.failures) == {f"{topic}-x", f"{topic}-0"}
        assert await admin.describe_topics([], partition_size_limit_per_response=1) == {}
        await admin.delete_topics(names)


async def test_several_failures_are_told_together(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        topics = [NewTopic(topic, 1), NewTopic("not/a name", 1), NewTopic("", 1)]
        with pytest.raises(PartialFailureError) as caught:
            await admin.create_topics(topics)
        assert set(caught.value.failures) == {"not/a name", ""}
        assert isinstance(caught.value.failures["not/a name"], InvalidTopicError)
        assert await partition_count(admin, topic, 1) == 1


async def test_validation_creates_nothing(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(topic, 1)], validate_only=True)
        assert topic not in {listed.name for listed in await admin.list_topics()}
        with pytest.raises(InvalidConfigurationError):
            await admin.create_topics([NewTopic(topic, 1, configs={"no.such.config": "1"})], validate_only=True)


async def configs_when(admin: kclient.Admin, resource: ConfigResource, name: str, value: str) -> dict[str, ConfigEntry]:
    """The settings once one has a value: Kafka's controller answers before its brokers have followed."""
    with anyio.fail_after(60):
        while True:
            found = (await admin.describe_configs([resource]))[resource]
            if found[name].value == value:
                return found


async def test_configs(broker: str, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
        assert await partition_count(admin, topic, 1) == 1
        before = (await admin.describe_configs([resource]))[resource]
        assert before["retention.ms"].value == "604800000"
        assert before["retention.ms"].is_default
        assert before["cleanup.policy"].value == "delete"

        await admin.alter_configs({resource: {"retention.ms": "1000", "max.message.bytes": "2000"}})
        after = await configs_when(admin, resource, "retention.ms", "1000")
        assert after["max.message.bytes"].value == "2000"
        assert not after["retention.ms"].is_default

        await admin.alter_configs({resource: {"retention.ms": None}})
        again = await configs_when(admin, resource, "retention.ms", "604800000")
        assert again["max.message.bytes"].value == "2000"

        await admin.alter_configs(
            {resource: {"cleanup.policy": (ConfigOperation.APPEND, "compact")}}, validate_only=True
        )
        with pytest.raises(InvalidConfigurationError):
            await admin.alter_configs({resource: {"retention.ms": "soon"}})
        missing = ConfigResource(ConfigResourceType.TOPIC, topic + "-missing")
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_configs([missing])


async def test_broker_configs(broker: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        cluster = await admin.describe_cluster()
        resource = ConfigResource(ConfigResourceType.BROKER, str(cluster.nodes[0].id))
        described = (await admin.describe_configs([resource]))[resource]
        assert described["num.partitions"].value == "4"


async def test_the_cluster(broker: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        cluster = await admin.describe_cluster()
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker]
    assert cluster.controller == cluster.nodes[0]


async def test_offsets_of_places(broker: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1, configs={"retention.ms": "-1"})
        await fill(broker, topic, 10)

        async def offset(place: OffsetSpec | int) -> int | None:
            found = (await admin.list_offsets({tp: place}))[tp]
            return None if found is None else found.offset

        assert await offset(OffsetSpec.EARLIEST) == 0
        assert await offset(OffsetSpec.LATEST) == 10
        assert await offset(OffsetSpec.MAX_TIMESTAMP) == 9
        assert await offset(1_700_000_000_004) == 4
        assert await offset(1_800_000_000_000) is None

        assert await admin.delete_records({tp: 6}) == {tp: 6}
        assert await offset(OffsetSpec.EARLIEST) == 6
        with pytest.raises(UnknownTopicOrPartitionError, match=f"{topic}-7"):
            await admin.list_offsets({TopicPartition(topic, 7): OffsetSpec.LATEST}, timeout=10)


async def test_group_offsets_without_members(broker: str, topic: str) -> None:
    group, tp = f"g-{topic}", TopicPartition(topic, 0)
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1, configs={"retention.ms": "-1"})
        await fill(broker, topic, 10)
        await admin.alter_group_offsets(group, {tp: OffsetAndMetadata(4, "note")})
        committed = (await admin.list_group_offsets(group))[tp]
        assert (committed.offset, committed.metadata) == (4, "note")
        lag = (await admin.group_lag(group))[tp]
        assert (lag.committed, lag.end, lag.lag, lag.member) == (4, 10, 6, None)
        assert group in {listed.group_id for listed in await admin.list_groups()}

        planned = await admin.reset_group_offsets(group, OffsetSpec.EARLIEST, dry_run=True)
        assert (planned[tp].before, planned[tp].after) == (4, 0)
        assert (await admin.list_group_offsets(group))[tp].offset == 4
        await admin.reset_group_offsets(group, 1_700_000_000_007)
        assert (await admin.list_group_offsets(group))[tp].offset == 7
        await admin.reset_group_offsets(group, 1_900_000_000_000)
        assert (await admin.list_group_offsets(group))[tp].offset == 10

        await admin.delete_group_offsets(group, [tp])
        assert await admin.list_group_offsets(group) == {}


async def test_a_group_with_members(broker: str, topic: str) -> None:
    group, tp = f"g-{topic}", TopicPartition(topic, 0)
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
        async with kclient.Consumer(topic, group_id=group, bootstrap_servers=broker, client_id="reader") as consumer:
            while not consumer.assignment():
                await consumer.poll(timeout=0.1)
            described = (await admin.describe_groups([group]))[group]
            assert (described.state, described.protocol_type) == ("Stable", "consumer")
            (member,) = described.members
            assert (member.client_id, member.assignment) == ("reader", (tp,))
            with pytest.raises(GroupNotEmptyError):
                await admin.delete_groups([group])
            with pytest.raises(GroupNotEmptyError, match="stop them first"):
                await admin.reset_group_offsets(group, OffsetSpec.EARLIEST)
        assert (await admin.describe_groups([group]))[group].members == ()
        await admin.delete_groups([group])
        with pytest.raises(GroupIdNotFoundError):
            await admin.describe_groups([group])


async def test_a_closed_client_says_so(gateway: str) -> None:
    async with kclient.Admin(bootstrap_servers=gateway) as admin:
        pass
    await admin.close()
    with pytest.raises(ClosedError):
        await admin.list_topics()


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        kclient.Admin(bootstrap_server="localhost:9092")
