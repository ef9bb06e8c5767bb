"""Topics, settings, metadata and producer ids through a whole gateway in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway.features import Feature, Features
from kclient.gateway.handlers.api_versions import ApiVersionsHandler
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.htp.errors import StorageError
from kclient.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from kclient.protocol.messages.connection import ApiVersionsRequest
from kclient.protocol.messages.fetch import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kclient.protocol.messages.produce import InitProducerIdRequest
from kclient.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kclient.protocol.registry import ApiKey, request_class
from kclient.records import BatchBuilder
from tests.gateway_wire import Wire, batch_of, names, running

pytestmark = pytest.mark.anyio

INTERNAL = ("__consumer_offsets", "__transaction_state")
"""Kafka's own topics, which are always there."""


# ApiVersions


@pytest.mark.parametrize("version", range(5))
async def test_what_is_advertised_can_be_read_and_written(version: int) -> None:
    async with running() as (_, wire):
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
        response = await wire(request, version)
        assert response.error_code == 0
        ranges = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}
        for key, (low, high) in ranges.items():
            assert low in request_class(key).VERSIONS, ApiKey(key).name
            assert high in request_class(key).VERSIONS, ApiKey(key).name
        # Old librdkafka loses features otherwise (KAFKA-18659, KAFKA-19444).
        assert ranges[ApiKey.PRODUCE][0] == 0
        assert ranges[ApiKey.JOIN_GROUP][0] == 0


async def test_an_unknown_version_of_api_versions_is_answered_in_v0() -> None:
    async with running() as (_, wire):
        frame = b"\x00\x12" + b"\x00\x63" + b"\x00\x00\x00\x07" + b"\x00\x04test" + b"\x00" + b"future"
        await wire.stream.send([len(frame).to_bytes(4, "big"), frame])
        answer = await wire.frame()
        assert answer is not None
        assert bytes(answer[:6]) == b"\x00\x00\x00\x07" + b"\x00\x23"
        assert int.from_bytes(answer[6:10], "big") > 20
        assert (await wire.metadata()).topics == []  # the connection goes on


@pytest.mark.parametrize("version", [3, 4])
async def test_the_features_of_a_cluster(version: int) -> None:
    """As Kafka 4 tells them: a feature that begins at level 0 in v4 only (KAFKA-17011)."""
    features = [Feature("transaction.version", 0, 2, level=2), Feature("share.version", 1, 1), Feature("a", 1, 3, 3)]
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    async with running() as (gateway, wire):
        own = await wire(request, version)
        kinds = ["group.version", "share.version", "streams.version"]
        wanted = [*kinds, "transaction.version"] if version > 3 else []
        assert [item.name for item in own.supported_features] == wanted
        levels = [(item.name, item.max_version_level, item.min_version_level) for item in own.finalized_features]
        assert levels == [*((kind, 1, 1) for kind in kinds), ("transaction.version", 2, 2)]
        assert own.finalized_features_epoch == 0
        handlers = gateway.parts.table.handlers
        handlers[ApiKey.API_VERSIONS] = ApiVersionsHandler(gateway.parts.table.versions, Features(features, epoch=7))
        answer = await wire(request, version)
        assert answer.api_keys == own.api_keys
    supported = [(item.name, item.min_version, item.max_version) for item in answer.supported_features]
    assert supported == [("a", 1, 3), ("share.version", 1, 1), ("transaction.version", 0, 2)][: version - 1]
    in_use = [(item.name, item.max_version_level, item.min_version_level) for item in answer.finalized_features]
    assert in_use == [("a", 3, 3), ("transaction.version", 2, 2)]
    assert answer.finalized_features_epoch == 7


@pytest.mark.parametrize(
    "features",
    [lambda: [Feature("a", 2, 1)], lambda: [Feature("a", 1, 2, 3)], lambda: [Feature("a", 1, 1), Feature("a", 1, 2)]],
)
def test_features_that_cannot_be(features: Callable[[], list[Feature]]) -> None:
    with pytest.raises(ValueError, match="a"):
        Features(features())


async def test_a_client_with_an_impossible_name_is_refused() -> None:
    async with running() as (_, wire):
        response = await wire(ApiVersionsRequest(client_software_name=" ", client_software_version="1"), 3)
        assert response.error_code == ErrorCode.INVALID_REQUEST


# Metadata


@pytest.mark.parametrize("version", range(14))
async def test_every_metadata_version(version: int) -> None:
    async with running(config={"node.id": 7}) as (gateway, wire):
        created = await wire.create("t", 3)
        answer = await wire.metadata("t", version=version, create=version < 4)
        assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(7, "test", 0)]
        topic = answer.topics[0]
        assert [(item.partition_index, item.leader_id) for item in topic.partitions] == [(0, 7), (1, 7), (2, 7)]
        if version >= 10:
            assert topic.topic_id == created.topic_id
        if version >= 2:
            assert answer.cluster_id == gateway.parts.identity.cluster_id


async def test_topics_are_created_by_asking_for_them() -> None:
    async with running(config={"num.partitions": 3}) as (_, wire):
        assert len((await wire.metadata("made", create=True)).topics[0].partitions) == 3
        forbidden = (await wire.metadata("other", create=False)).topics[0]
        assert forbidden.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wrong = (await wire.metadata("a b", create=True)).topics[0]
        assert wrong.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        internal = (await wire.metadata("__share_group_state", create=True)).topics[0]
        assert (internal.error_code, internal.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)


async def test_creating_by_asking_can_be_turned_off() -> None:
    async with running(config={"auto.create.topics.enable": False}) as (_, wire):
        topic = (await wire.metadata("made", create=True)).topics[0]
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_all_topics_and_topics_by_id() -> None:
    async with running() as (_, wire):
        created = [await wire.create(name) for name in ("b", "a")]
        everything = await wire(MetadataRequest(topics=None), 12)
        assert [topic.name for topic in everything.topics] == [*INTERNAL, "a", "b"]
        assert [topic.name for topic in (await wire(MetadataRequest(topics=[]), 0)).topics] == [*INTERNAL, "a", "b"]
        wanted = [MetadataRequestTopic(name=None, topic_id=key) for key in (created[0].topic_id, b"x" * 16)]
        found = (await wire(MetadataRequest(topics=wanted), 12)).topics
        assert [(topic.name, topic.error_code) for topic in found] == [("b", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_that_carry_ids_and_have_only_names(version: int) -> None:
    """Kafka refuses the request as a whole; its answer has no null names."""
    async with running() as (_, wire):
        await wire.create("a")
        for odd in (MetadataRequestTopic(name=None), MetadataRequestTopic(name="b", topic_id=b"i" * 16)):
            answer = await wire(MetadataRequest(topics=[MetadataRequestTopic(name="a"), odd]), version)
            assert [(topic.name, topic.topic_id) for topic in answer.topics] == [
                ("a", bytes(16)),
                (odd.name or "", odd.topic_id),
            ]
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}
        assert [topic.name for topic in (await wire(MetadataRequest(topics=None), 12)).topics] == [*INTERNAL, "a"]


async def test_describe_cluster() -> None:
    async with running() as (gateway, wire):
        answer = await wire(DescribeClusterRequest(), 2)
        assert (answer.cluster_id, answer.controller_id) == (gateway.parts.identity.cluster_id, 1)
        assert [(broker.broker_id, broker.host) for broker in answer.brokers] == [(1, "test")]
        for version in (1, 2):
            answer = await wire(DescribeClusterRequest(endpoint_type=2), version)
            assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE, "for controllers"
            answer = await wire(DescribeClusterRequest(endpoint_type=3), version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def test_topics_in_pages() -> None:
    async with running() as (_, wire):
        for name, count in (("a", 3), ("b", 2), ("c", 1)):
            await wire.create(name, count)
        seen: list[tuple[str, int]] = []
        cursor = None
        for _ in range(10):
            request = DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in "abc"],
                response_partition_limit=2,
                cursor=cursor,
            )
            answer = await wire(request, 0)
            seen += [(topic.name, item.partition_index) for topic in answer.topics for item in topic.partitions]
            if answer.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequestCursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]


# Creating, growing, deleting


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_create_topics_version(version: int) -> None:
    async with running() as (_, wire):
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=3)
        row = (await wire(CreateTopicsRequest(topics=[topic]), version)).topics[0]
        assert row.error_code == 0
        if version >= 5:
            assert (row.num_partitions, row.replication_factor) == (2, 3)
            assert {config.name for config in row.configs} == set(TOPIC_SETTINGS)
        assert len((await wire.metadata("t")).topics[0].partitions) == 2
        again = (await wire(CreateTopicsRequest(topics=[topic]), version)).topics[0]
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (CreatableTopic(name="a/b", num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="", num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="x" * 250, num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="t", num_partitions=0, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic(name="t", num_partitions=10**6, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic(name="t", num_partitions=1, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_topics_that_cannot_be(topic: CreatableTopic, error: ErrorCode) -> None:
    async with running() as (_, wire):
        row = (await wire(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
        assert row.error_code == error, row.error_message
        assert row.error_message
        assert error.name not in row.error_message  # that is how kclient prints it; the reply has the code itself


@pytest.mark.parametrize(
    ("name", "value"), [("no.such.thing", "1"), ("retention.ms", "soon"), ("cleanup.policy", "burn")]
)
async def test_wrong_settings_are_refused(name: str, value: str) -> None:
    async with running() as (_, wire):
        row = await wire.create("t", **{name: value})
        assert row.error_code == ErrorCode.INVALID_CONFIG
        assert name in str(row.error_message)


async def test_validating_creates_nothing() -> None:
    async with running() as (_, wire):
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        row = (await wire(CreateTopicsRequest(topics=[topic], validate_only=True), 7)).topics[0]
        assert (row.error_code, row.num_partitions) == (0, 2)
        assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_manual_assignments() -> None:
    async with running() as (_, wire):
        rows = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(3)]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=rows)
        row = (await wire(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
        assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 3, 1)


@pytest.mark.parametrize("brokers", [[99], [1, 99], [1, 1], []])
async def test_assignments_to_brokers_that_there_are_not(brokers: list[int]) -> None:
    async with running() as (_, wire):
        rows = [CreatableReplicaAssignment(partition_index=0, broker_ids=brokers)]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=rows)
        row = (await wire(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
        assert row.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await wire.create("t")
        added = CreatePartitionsTopic(name="t", count=2, assignments=[CreatePartitionsAssignment(broker_ids=brokers)])
        answer = await wire(CreatePartitionsRequest(topics=[added]), 3)
        assert answer.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        added.assignments = [CreatePartitionsAssignment(broker_ids=[1])]
        assert (await wire(CreatePartitionsRequest(topics=[added]), 3)).results[0].error_code == 0


async def test_what_is_not_there_is_told_at_once() -> None:
    """Partitions that are committed or trimmed, of a topic that is there and of another one."""
    async with running() as (_, wire):
        await wire.create("t", 2)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic, partition in (("t", 2), ("t", -1), ("u", 0)):
            assert await wire.commit("g", topic, 1, partition) == unknown
            assert (await wire.delete_records(topic, 0, partition)).error_code == unknown
        assert await wire.commit("g", "t", 1, 1) == 0


@pytest.mark.slow
async def test_topics_of_a_request_are_deleted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is durable before the answer; one after the other, a hundred of them take seconds."""
    async with running() as (gateway, wire):
        topics = [f"t{number}" for number in range(100)]
        for topic in topics:
            await wire.create(topic)
        manager = gateway.parts.manager
        commit = manager.commit
        under_way = most = 0
        many = anyio.Event()

        async def watched(*args: Any, **options: Any) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way > 8:
                many.set()
            try:
                await many.wait()
                return await commit(*args, **options)
            finally:
                under_way -= 1

        monkeypatch.setattr(manager, "commit", watched)
        wanted = ["missing", *topics, "missing as well"]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in wanted], timeout_ms=30_000)
        with anyio.fail_after(60):
            rows = (await wire(request, 6)).responses
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [row.name for row in rows] == wanted
        assert [row.error_code for row in rows] == [unknown, *[0] * 100, unknown]
        assert most <= 32
        assert not under_way
        assert {topic.name for topic in (await wire(MetadataRequest(topics=None), 9)).topics} == {*INTERNAL}


@pytest.mark.parametrize("version", range(1, 7))
async def test_every_delete_topics_version(version: int) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"old"))
        request = DeleteTopicsRequest(topic_names=["t", "u"], topics=[DeleteTopicState(name=name) for name in "tu"])
        if version < 6:
            request.topics = []
        rows = (await wire(request, version)).responses
        assert [row.error_code for row in rows] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await wire.create("t")
        assert await wire.values("t") == []  # nothing of the old topic shows up again


async def test_deleting_by_id() -> None:
    async with running() as (_, wire):
        created = await wire.create("t")
        states = [DeleteTopicState(topic_id=key) for key in (created.topic_id, b"x" * 16)]
        rows = (await wire(DeleteTopicsRequest(topics=states), 6)).responses
        assert [(row.name, row.error_code) for row in rows] == [("t", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]


async def test_deleting_what_is_named_more_than_once() -> None:
    async with running() as (_, wire):
        created = {name: await wire.create(name) for name in ("once", "twice", "again", "both")}
        states = [
            *[DeleteTopicState(name=name) for name in ("once", "twice", "both", "twice")],
            *[DeleteTopicState(topic_id=created[name].topic_id) for name in ("again", "both", "again")],
            DeleteTopicState(),
        ]
        rows = (await wire(DeleteTopicsRequest(topics=states), 6)).responses
        refused = ErrorCode.INVALID_REQUEST
        assert [(row.name, row.error_code) for row in rows] == [
            ("once", 0),
            ("twice", refused),
            ("both", refused),
            (None, refused),
            (None, refused),
            (None, refused),
        ]
        assert {topic.name for topic in (await wire(MetadataRequest(topics=None), 9)).topics} == {
            *INTERNAL,
            "twice",
            "again",
            "both",
        }


async def test_deleting_can_be_turned_off() -> None:
    async with running(config={"delete.topic.enable": "false"}) as (_, wire):
        await wire.create("t")
        rows = (await wire(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)).responses
        assert rows[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


async def test_growing() -> None:
    async with running() as (_, wire):
        await wire.create("t", 2)
        assert await wire.grow("t", 4, validate_only=True) == 0
        assert len((await wire.metadata("t")).topics[0].partitions) == 2
        assert await wire.grow("t", 4) == 0
        assert (await wire.produce("t", batch_of(b"a"), 3)).error_code == 0
        assert await wire.grow("t", 4) == ErrorCode.INVALID_PARTITIONS
        assert await wire.grow("t", 3) == ErrorCode.INVALID_PARTITIONS
        assert await wire.grow("u", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Settings


async def describe(wire: Wire, kind: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    return (await wire(request, 4)).results[0]


async def test_a_topics_settings_show_where_they_come_from() -> None:
    async with running(config={"log.retention.hours": 1}) as (_, wire):
        await wire.create("t", max_message_bytes="5000")
        found = {row.name: row for row in (await describe(wire, 2, "t")).configs}
        assert set(found) == {*TOPIC_SETTINGS, "htp.mapping"}
        assert (found["max.message.bytes"].value, found["max.message.bytes"].config_source) == ("5000", 1)
        assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("3600000", 4)
        assert (found["cleanup.policy"].value, found["cleanup.policy"].config_source) == ("delete", 5)
        synonyms = [(item.name, item.source) for item in found["max.message.bytes"].synonyms]
        assert synonyms == [("max.message.bytes", 1), ("message.max.bytes", 5)]
        assert all(row.documentation for row in found.values())
        only = await describe(wire, 2, "t", ["retention.ms"])
        assert [row.name for row in only.configs] == ["retention.ms"]
        assert (await describe(wire, 2, "u")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_brokers_settings() -> None:
    async with running(config={"num.partitions": 9}) as (_, wire):
        found = {row.name: row for row in (await describe(wire, 4, "1")).configs}
        told = {"htp.lease.age.ms", "htp.checkpoints.behind", "htp.generations"}
        assert set(found) == {*BROKER_SETTINGS, *told}
        assert all(found[name].read_only for name in told)
        assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("9", 4)
        assert found["node.id"].read_only
        assert (await describe(wire, 4, "2")).error_code == ErrorCode.INVALID_REQUEST
        assert (await describe(wire, 99, "x")).error_code == ErrorCode.INVALID_REQUEST


async def alter(wire: Wire, kind: int, resource: str, *changes: tuple[str, int, str | None]) -> int:
    rows = [
        IncrementalAlterConfigsRequestConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=resource, configs=rows)]
    )
    return (await wire(request, 1)).responses[0].error_code


async def test_settings_of_a_topic_are_changed_one_by_one() -> None:
    async with running() as (_, wire):
        await wire.create("t", retention_ms="5")

        async def value(name: str) -> str | None:
            return (await describe(wire, 2, "t", [name])).configs[0].value

        assert await alter(wire, 2, "t", ("max.message.bytes", 0, "100"), ("cleanup.policy", 2, "compact")) == 0
        assert (await value("max.message.bytes"), await value("retention.ms")) == ("100", "5")
        assert await value("cleanup.policy") == "delete,compact"
        assert (await wire.produce("t", batch_of(b"x" * 200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await alter(wire, 2, "t", ("max.message.bytes", 1, None), ("cleanup.policy", 3, "delete")) == 0
        assert await value("cleanup.policy") == "compact"
        assert (await wire.produce("t", batch_of(b"x" * 200, key=b"k"))).error_code == 0
        assert await alter(wire, 2, "t", ("retention.ms", 2, "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(wire, 2, "t", ("no.such", 0, "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(wire, 2, "t", ("retention.ms", 0, "x")) == ErrorCode.INVALID_CONFIG
        assert await alter(wire, 2, "t", ("retention.ms", 0, "1"), ("retention.ms", 0, "2")) != 0
        assert await alter(wire, 2, "u", ("retention.ms", 0, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await value("retention.ms") == "5"


async def test_settings_of_a_topic_are_replaced() -> None:
    async with running() as (_, wire):
        await wire.create("t", retention_ms="5", max_message_bytes="100")
        config = AlterConfigsRequestConfig(name="retention.ms", value="6")
        resource = AlterConfigsRequestResource(resource_type=2, resource_name="t", configs=[config])
        assert (await wire(AlterConfigsRequest(resources=[resource]), 2)).responses[0].error_code == 0
        rows = (await describe(wire, 2, "t", ["retention.ms", "max.message.bytes"])).configs
        assert {row.name: row.value for row in rows} == {"retention.ms": "6", "max.message.bytes": "1048588"}


async def test_settings_of_the_gateway_reach_topics_and_outlive_it() -> None:
    store = f"memory:{next(names)}"
    async with running(store) as (_, wire):
        await wire.create("t")
        assert await alter(wire, 4, "1", ("message.max.bytes", 0, "100")) == 0
        assert (await wire.produce("t", batch_of(b"x" * 200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await alter(wire, 4, "1", ("node.id", 0, "3")) == ErrorCode.INVALID_REQUEST
    async with running(store) as (_, wire):
        assert (await wire.produce("t", batch_of(b"x" * 200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        row = (await describe(wire, 4, "1", ["message.max.bytes"])).configs[0]
        assert (row.value, row.config_source) == ("100", 2)


# Producer ids


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_never_given_twice(version: int) -> None:
    store = f"memory:{next(names)}"
    given: list[int] = []
    for _ in range(2):
        async with running(store) as (_, wire):
            for _ in range(3):
                answer = await wire(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), version)
                assert (answer.error_code, answer.producer_epoch) == (0, 0)
                given.append(answer.producer_id)
    assert len(set(given)) == 6


# Offsets


async def test_offsets_by_time() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", message_timestamp_before_max_ms="9223372036854775807")
        for stamp in (100, 300, 200):
            await wire.produce("t", batch_of(b"a", b"b", timestamp=stamp))
        found = [(row.offset, row.timestamp) for row in [await wire.offset("t", time) for time in (0, 101, 300, 301)]]
        assert found == [(0, 100), (2, 300), (2, 300), (-1, -1)]
        assert (await wire.offset("t", -1)).offset == 6
        assert (await wire.offset("t", -2)).offset == 0
        newest = await wire.offset("t", -3)
        assert (newest.offset, newest.timestamp, newest.leader_epoch) == (2, 300, gateway.parts.identity.leader_epoch)
        assert (await wire.offset("t", -5)).offset == -1
        assert (await wire.offset("t", 0, 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_newest_record_is_one_that_was_not_deleted() -> None:
    async with running() as (_, wire):
        await wire.create("t", message_timestamp_before_max_ms="9223372036854775807")
        for stamp in (500, 100, 300, 200):
            await wire.produce("t", batch_of(b"a", timestamp=stamp))
        assert await delete_records(wire, 1) == (0, 1)
        with anyio.fail_after(10):
            newest = await wire.offset("t", -3)
        assert (newest.offset, newest.timestamp) == (2, 300)


async def test_a_record_that_was_deleted_is_not_found_by_its_time() -> None:
    """Though it is in a batch of which others are there."""
    builder = BatchBuilder(limit=1000)
    for stamp in (500, 100):
        builder.append(stamp, None, b"x")
    async with running() as (_, wire):
        await wire.create("t", message_timestamp_before_max_ms="9223372036854775807")
        await wire.produce("t", bytes(builder.build()))
        await wire.produce("t", batch_of(b"a", timestamp=200))
        assert await delete_records(wire, 1) == (0, 1)
        with anyio.fail_after(10):
            found = [(await wire.offset("t", time)).offset for time in (100, 150, 400)]
        assert found == [1, 2, -1]


async def test_an_empty_log_has_no_times() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        assert [(await wire.offset("t", time)).offset for time in (-3, -2, -1, 0)] == [-1, 0, 0, -1]


async def delete_records(wire: Wire, before: int) -> tuple[int, int]:
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
    row = (await wire(DeleteRecordsRequest(topics=[topic]), 2)).topics[0].partitions[0]
    return row.error_code, row.low_watermark


async def test_deleting_records_moves_the_log_start_even_into_a_batch() -> None:
    store = f"memory:{next(names)}"
    async with running(store) as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a", b"b", b"c"))
        assert await delete_records(wire, 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete_records(wire, 2) == (0, 2)
    async with running(store) as (_, wire):
        assert (await wire.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await wire.values("t", 2) == [b"c"]
        assert (await wire.offset("t", -2)).offset == 2
        assert await delete_records(wire, -1) == (0, 3)
    async with running(store) as (_, wire):
        assert (await wire.produce("t", batch_of(b"d"))).base_offset == 3


async def test_the_ends_of_leader_epochs() -> None:
    store = f"memory:{next(names)}"
    epochs = []
    for _ in range(2):
        async with running(store) as (gateway, wire):
            if not epochs:
                await wire.create("t")
            epochs.append(gateway.parts.identity.leader_epoch)
            await wire.produce("t", batch_of(b"a", b"b"))
    assert epochs[1] > epochs[0]
    async with running(store) as (_, wire):
        ends = []
        for epoch in (*epochs, epochs[1] + 100):
            wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
            request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])])
            row = (await wire(request, 4)).topics[0].partitions[0]
            ends.append((row.leader_epoch, row.end_offset))
        assert ends == [(epochs[0], 2), (epochs[1], 4), (-1, -1)]


@pytest.mark.domains
async def test_topics_of_a_request_are_made_and_grown_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits for another; one that fails takes none along."""
    begun, all_begun = 0, anyio.Event()

    async def making(self: Any, topic: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 4:
            all_begun.set()
        await all_begun.wait()
        if topic.domain == "t2":
            raise StorageError("no space left")
        return await make(self, topic, **options)

    topics = [CreatableTopic(name=f"t{n}", num_partitions=1, replication_factor=1) for n in range(4)]
    grown = [CreatePartitionsTopic(name=f"t{n}", count=2, assignments=None) for n in (0, 1, 3)]
    async with running() as (gateway, wire):
        kind = type(gateway.parts.manager)  # of whichever store these tests run over
        make = kind.create_topic
        with anyio.fail_after(10):
            monkeypatch.setattr(kind, "create_topic", making)
            made = await wire(CreateTopicsRequest(topics=topics), 7)
            assert [row.name for row in made.topics] == ["t0", "t1", "t2", "t3"]
            failed = ErrorCode.KAFKA_STORAGE_ERROR
            assert [row.error_code for row in made.topics] == [0, 0, failed, 0]
            begun, all_begun = 1, anyio.Event()
            results = (await wire(CreatePartitionsRequest(topics=grown), 3)).results
            assert [(row.name, row.error_code) for row in results] == [("t0", 0), ("t1", 0), ("t3", 0)]
