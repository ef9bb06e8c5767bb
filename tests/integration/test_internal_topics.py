"""Kafka's own topics as clients see them: real Kafka 4.3 and the gateway, our clients and foreign ones."""

from __future__ import annotations

import re

import anyio.to_thread
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import ErrorCode
from kclient.protocol import messages as m
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.gateway_wire import batch_of, produce_request
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools, KafkaServer
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.anyio

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
TOOL = "org.apache.kafka.tools.TopicCommand"
SERVERS = [pytest.param("kafka", marks=pytest.mark.kafka), "gateway"]


@pytest.fixture(params=SERVERS)
async def bootstrap(request: pytest.FixtureRequest, topic: str) -> str:
    """A server on which a group has committed and a transaction ended, so that Kafka has made both; and a topic."""
    found: KafkaServer | str = request.getfixturevalue(request.param)
    address = found if isinstance(found, str) else found.bootstrap
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await admin.alter_group_offsets(topic, {TopicPartition(topic, 0): OffsetAndMetadata(0)})
        async with kclient.Producer(bootstrap_servers=address, transactional_id=topic) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"x")
    return address


async def test_they_are_told_of_and_refused(bootstrap: str, topic: str) -> None:
    async with wire_session(bootstrap) as wire:
        for name in (OFFSETS, STATE):
            asked = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            (told,) = (await wire(asked, 12)).topics
            assert (told.error_code, told.is_internal, bool(told.partitions)) == (0, True, True)
            answer = await wire(produce_request(name, batch_of(b"x")), 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            where = m.DeleteRecordsPartition(partition_index=0, offset=-1)
            gone = m.DeleteRecordsRequest(topics=[m.DeleteRecordsTopic(name=name, partitions=[where])], timeout_ms=9000)
            (row,) = (await wire(gone, 2)).topics[0].partitions
            assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            new = m.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            (made,) = (await wire(m.CreateTopicsRequest(topics=[new], timeout_ms=9000), 7)).topics
            assert made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            joining = m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=topic, v3_and_below_producer_id=1,
                v3_and_below_topics=[m.AddPartitionsToTxnTopic(name=name, partitions=[0])],
            )  # fmt: skip
            (joined,) = (await wire(joining, 3)).results_by_topic_v3_and_below
            assert joined.results_by_partition[0].partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            who = m.DescribeProducersRequestTopicRequest(name=name, partition_indexes=[0])
            (producers,) = (await wire(m.DescribeProducersRequest(topics=[who]), 0)).topics[0].partitions
            assert producers.error_code == 0
            if name == STATE:  # in the other one are those that have committed offsets in transactions, of other tests
                assert producers.active_producers == []
            settings = m.DescribeConfigsResource(
                resource_type=2, resource_name=name,
                configuration_keys=["cleanup.policy", "compression.type", "segment.bytes", "min.insync.replicas"],
            )  # fmt: skip
            (result,) = (await wire(m.DescribeConfigsRequest(resources=[settings]), 4)).results
            found = {row.name: row.value for row in result.configs}
            compression = "producer" if name == OFFSETS else "uncompressed"
            assert found == {
                "cleanup.policy": "compact", "compression.type": compression, "segment.bytes": "104857600",
                "min.insync.replicas": "1",
            }  # fmt: skip


async def test_our_clients_list_them_when_asked(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert not {OFFSETS, STATE} & {each.name for each in await admin.list_topics()}
        listed = {each.name: each.is_internal for each in await admin.list_topics(include_internal=True)}
        assert (listed[OFFSETS], listed[STATE], listed[topic]) == (True, True, False)


@pytest.mark.foreign
@pytest.mark.kafka
async def test_kafkas_own_command(bootstrap: str, topic: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tools = JavaTools(KAFKA_4, tmp_path_factory.mktemp("tools"))

    async def run(*arguments: str) -> str:
        call = ("--bootstrap-server", bootstrap, *arguments)
        return await anyio.to_thread.run_sync(lambda: tools.run(TOOL, *call))

    assert {OFFSETS, STATE, topic} <= set((await run("--list")).split())
    without = set((await run("--list", "--exclude-internal")).split())
    assert topic in without
    assert not {OFFSETS, STATE} & without
    assert "cleanup.policy=compact" in await run("--describe", "--topic", OFFSETS)


@pytest.mark.foreign
async def test_librdkafka_reads_all_topics(bootstrap: str, topic: str) -> None:
    """Its patterns take Kafka's own in, too: at the gateway they are empty, and hold nothing up."""
    confluent = pytest.importorskip("confluent_kafka")

    def read() -> tuple[set[str], set[str]]:
        client = confluent.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"{topic}-all", "auto.offset.reset": "earliest"}
        )
        errors, seen = set[str](), set[str]()
        names = set(client.list_topics(timeout=20).topics)
        client.subscribe([f"^({topic}|__.*)"])
        while topic not in seen:
            message = client.poll(20)
            assert message is not None
            if message.error() is not None:
                errors.add(str(message.error()))
            seen.add(message.topic())
        client.commit(asynchronous=False)
        client.close()
        assert {OFFSETS, STATE, topic} <= names
        return errors, seen

    errors, seen = await anyio.to_thread.run_sync(read)
    assert not errors
    assert topic in seen


async def test_a_pattern_leaves_them_out(bootstrap: str, topic: str) -> None:
    async with kclient.Consumer(bootstrap_servers=bootstrap, group_id=f"{topic}-ours") as consumer:
        consumer.subscribe(re.compile(f"({topic}|__.*)"))

        async def assigned() -> set[str]:
            await consumer.poll(timeout=0.05)
            return {tp.topic for tp in consumer.assignment()}

        assert await until(assigned, bool) == {topic}
