"""Kafka's own topics: told of as Kafka tells them, empty for who reads, refused to who would change or write them."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import kclient
from kclient.acls import AclOperation, ResourceType
from kclient.admin import Admin, ConfigResource, ConfigResourceType, OffsetSpec
from kclient.errors import ConfigError, ErrorCode, InvalidTopicError, TopicExistsError
from kclient.gateway import Gateway, assembly
from kclient.gateway.coordination import partition_for
from kclient.gateway.rows.keys import INTERNAL_TOPICS
from kclient.htp import open_store
from kclient.protocol import messages as m
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request, running
from tests.unit.gateway.test_gateway_access import Rules
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import WireSession, until, wire_session

pytestmark = pytest.mark.anyio

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION


async def leaders(wire: Wire | WireSession, name: str) -> list[int]:
    return [row.leader_id for row in (await described(wire, name)).partitions]


async def spread(wires: Sequence[Wire | WireSession], name: str) -> None:
    """Wait until two gateways know of each other."""
    for wire in wires:
        await until(lambda wire=wire: leaders(wire, name), lambda found: set(found) == {1, 2})


async def described(wire: Wire | WireSession, name: str) -> Any:
    asked = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)])
    return (await wire(asked, 12)).topics[0]


@pytest.mark.parametrize("name", [OFFSETS, STATE])
async def test_metadata_tell_of_them(name: str) -> None:
    async with running(config={"node.id": 7}) as (_, wire):
        everything = await wire(m.MetadataRequest(topics=None), 12)
        assert [(topic.name, topic.is_internal) for topic in everything.topics] == [(OFFSETS, True), (STATE, True)]
        topic = await described(wire, name)
        assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 50)
        assert {(row.leader_id, *row.replica_nodes, *row.isr_nodes) for row in topic.partitions} == {(7, 7, 7)}
        by_id = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=None, topic_id=topic.topic_id)])
        (found,) = (await wire(by_id, 12)).topics
        assert (found.name, found.is_internal, len(found.partitions)) == (name, True, 50)
        rows = (await wire(m.DescribeTopicPartitionsRequest(), 0)).topics
        assert [(row.name, row.is_internal, len(row.partitions)) for row in rows] == [
            (OFFSETS, True, 50),
            (STATE, True, 50),
        ]
        await wire.create("t")
        assert not (await described(wire, "t")).is_internal


async def test_how_many_partitions_they_have_is_a_setting() -> None:
    config = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 4}
    async with running(config=config) as (_, wire):
        assert len((await described(wire, OFFSETS)).partitions) == 3
        assert len((await described(wire, STATE)).partitions) == 4
        for name in config:  # a client may have begun to read them
            assert await wire.alter(4, "1", (name, 0, "5")) == ErrorCode.INVALID_REQUEST
    with pytest.raises(ConfigError, match=r"offsets\.topic\.num\.partitions"):
        Gateway(f"memory:{next(names)}", listen=None, config={"offsets.topic.num.partitions": 0})


async def test_they_are_the_same_at_all_gateways_and_after_a_restart(url: str) -> None:
    async with open_store(url) as store:
        async with joined(store, 1) as (_, first), joined(store, 2) as (_, second):
            for name in (OFFSETS, STATE):
                await spread([first, second], name)
                there, here = await described(first, name), await described(second, name)
                assert there.topic_id == here.topic_id != bytes(16)
                assert await leaders(first, name) == await leaders(second, name)
            ids = {name: (await described(first, name)).topic_id for name in (OFFSETS, STATE)}
        async with joined(store, 1) as (_, wire):
            assert {name: (await described(wire, name)).topic_id for name in ids} == ids
        assert len(set(ids.values())) == 2
        assert not [key for key in await scan_all(store.manager, "") if "__" in key], "nothing is stored of them"


async def test_their_leaders_coordinate_and_they_are_moved(url: str) -> None:
    """As on Kafka: whoever leads the partition of a group, or transactional id, is its coordinator."""
    names = [f"x{number}" for number in range(30)]
    listen = "127.0.0.1:0"  # else clients of one cannot be told where the other is
    async with (
        open_store(url) as store,
        joined(store, 1, listen=listen) as (one, _),
        joined(store, 2, listen=listen) as (other, _),
        wire_session(one.bootstrap) as first,
        wire_session(other.bootstrap) as second,
    ):

        async def agree(wires: list[WireSession]) -> set[int]:
            found = set[int]()
            for key_type, topic in enumerate((OFFSETS, STATE)):
                for wire in wires:
                    led = await leaders(wire, topic)
                    request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=names)
                    told = [row.node_id for row in (await wire(request, 4)).coordinators]
                    assert told == [led[partition_for(name, 50)] for name in names]
                    found.update(told)
            return found

        for topic in (OFFSETS, STATE):
            await spread([first, second], topic)
        assert await agree([first, second]) == {1, 2}
        for topic in (OFFSETS, STATE):
            rows = [m.ReassignablePartition(partition_index=each, replicas=[2]) for each in range(50)]
            answer = await first(
                m.AlterPartitionReassignmentsRequest(topics=[m.ReassignableTopic(name=topic, partitions=rows)]), 1
            )
            assert {row.error_code for row in answer.responses[0].partitions} == {0}
            for wire in (first, second):
                await until(lambda wire=wire, topic=topic: leaders(wire, topic), lambda found: set(found) == {2})
        assert await agree([first, second]) == {2}
        moving = m.ListPartitionReassignmentsRequest(topics=None)
        await until(lambda: first(moving, 0), lambda found: not found.topics)


def test_partitions_are_those_of_kafka() -> None:
    """By Java's `String.hashCode()`, here as Java itself tells it."""
    for key, code in (
        ("", 0), ("hello", 99_162_322), ("group-1", 293_427_299), ("polygenelubricants", -(1 << 31)),
        ("é𝄞 gruppe", 361_695_208), ("x" * 5000, 1_328_282_624),
    ):  # fmt: skip
        kept_in = 0 if code == -(1 << 31) else abs(code)  # Java has no absolute value of the least number
        assert partition_for(key, 1 << 31) == kept_in
        assert partition_for(key, 50) == kept_in % 50


async def test_the_first_gateway_decides_how_many_there_are(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Else two would take themselves for the coordinator of one group."""
    config = {"offsets.topic.num.partitions": 3}
    async with open_store(url) as store, joined(store, 1, config=config) as (_, first):
        async with joined(store, 2) as (_, second):
            assert "offsets.topic.num.partitions=50 does not hold" in caplog.text
            for wire in (first, second):
                assert len((await described(wire, OFFSETS)).partitions) == 3
        found = (await store.manager.get([INTERNAL_TOPICS]))[INTERNAL_TOPICS]
        await store.manager.commit({INTERNAL_TOPICS: found.value[:-1] + b"?"}, {INTERNAL_TOPICS: found.version})
        async with joined(store, 3, config=config) as (_, third):
            assert "is damaged, and written anew" in caplog.text
            assert len((await described(third, OFFSETS)).partitions) == 3


async def test_nobody_writes_to_them() -> None:
    async with running() as (_, wire):
        for version in (3, 9):
            answer = await wire(produce_request(OFFSETS, batch_of(b"x")), version)
            assert answer.responses[0].partition_responses[0].error_code == INVALID
        request = produce_request("", batch_of(b"x"))
        request.topic_data[0].topic_id = (await described(wire, STATE)).topic_id
        (row,) = (await wire(request, 13)).responses[0].partition_responses
        assert row.error_code == INVALID
        assert (await wire.delete_records(STATE, -1)).error_code == INVALID


async def test_nobody_changes_them() -> None:
    async with running() as (_, wire):
        created = await wire.create(OFFSETS)
        assert created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await wire.delete(OFFSETS) == INVALID
        by_id = m.DeleteTopicState(name=None, topic_id=(await described(wire, STATE)).topic_id)
        (row,) = (await wire(m.DeleteTopicsRequest(topics=[by_id], timeout_ms=1000), 6)).responses
        assert (row.error_code, "internal" in row.error_message) == (INVALID, True)
        for dry in (False, True):
            assert await wire.grow(OFFSETS, 60, validate_only=dry) == INVALID
        assert await wire.alter(2, OFFSETS, ("retention.ms", 0, "5")) == INVALID
        assert await wire.alter(2, OFFSETS, ("cleanup.policy", 1, None)) == INVALID
        assert await wire.alter(2, OFFSETS, ("leader.replication.throttled.replicas", 1, None)) == 0, (
            "nothing is changed"
        )
        assert await wire.alter_all(2, STATE, {"retention.ms": "5"}) == INVALID
        assert len((await described(wire, OFFSETS)).partitions) == 50


async def test_they_join_no_transaction() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = await wire(
            m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=9000, producer_id=-1), 4
        )
        answer = await wire(
            m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[m.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", OFFSETS)],
            ),
            3,
        )
        codes = {
            row.name: row.results_by_partition[0].partition_error_code for row in answer.results_by_topic_v3_and_below
        }
        assert codes == {
            "t": ErrorCode.OPERATION_NOT_ATTEMPTED,
            OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,  # as Kafka
        }


async def test_they_are_read_as_empty_logs() -> None:
    async with running() as (_, wire):
        topic = await described(wire, OFFSETS)
        epoch = topic.partitions[3].leader_epoch
        for timestamp, offset in ((-1, 0), (-2, 0), (-4, 0), (-3, -1), (-5, -1), (12345, -1)):
            found = await wire.offset(OFFSETS, timestamp, 3)
            assert (found.error_code, found.offset, found.timestamp) == (0, offset, -1)
            assert found.leader_epoch == (epoch if offset == 0 else -1)
        assert (await wire.offset(OFFSETS, -1, 50)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for version in (4, 11, 12):
            answer = await wire(fetch_request(OFFSETS, 0, 3), version)
            (row,) = answer.responses[0].partitions
            assert (row.error_code, row.high_watermark, bytes(row.records or b"")) == (0, 0, b"")
        by_id = fetch_request("", 0, 3, leader_epoch=epoch)
        by_id.topics[0].topic_id = topic.topic_id
        (row,) = (await wire(by_id, 17)).responses[0].partitions
        assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 0, 0)
        for request, code in (
            (fetch_request(OFFSETS, 1, 3), ErrorCode.OFFSET_OUT_OF_RANGE),
            (fetch_request(OFFSETS, 0, 50), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (fetch_request(OFFSETS, 0, 3, leader_epoch=epoch + 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            (row,) = (await wire(request, 12)).responses[0].partitions
            assert (row.error_code, row.high_watermark) == (code, -1)
        ends = m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderTopic(
                    topic=OFFSETS,
                    partitions=[
                        m.OffsetForLeaderPartition(partition=3, leader_epoch=each)
                        for each in (epoch, epoch - 1, epoch + 1)
                    ],
                )
            ]
        )
        rows = (await wire(ends, 4)).topics[0].partitions
        assert [(row.error_code, row.leader_epoch, row.end_offset) for row in rows] == [
            (0, epoch, 0), (0, epoch - 1, 0), (0, -1, -1),
        ]  # fmt: skip
        who = m.DescribeProducersRequestTopicRequest(name=OFFSETS, partition_indexes=[3])
        (row,) = (await wire(m.DescribeProducersRequest(topics=[who]), 0)).topics[0].partitions
        assert (row.error_code, row.active_producers) == (0, [])


async def test_who_fetches_them_waits_beside_others() -> None:
    """Else a consumer of all topics would ask without a rest; and what comes to the others wakes it."""
    async with running() as (gateway, wire):
        await wire.create("t")
        request = fetch_request(OFFSETS, 0, max_wait_ms=200)
        begun = time.monotonic()
        await wire(request, 12)
        assert time.monotonic() - begun >= 0.19
        both = fetch_request(OFFSETS, 0, max_wait_ms=30_000)
        both.topics += fetch_request("t", 0).topics
        begun = time.monotonic()
        await wire.send(both, 12)
        other = connect(gateway)
        await other.produce("t", batch_of(b"x"))
        await other.aclose()
        answer = await wire.read(both, 12)
        assert time.monotonic() - begun < 20
        assert {topic.topic: bool(topic.partitions[0].records) for topic in answer.responses} == {
            OFFSETS: False,
            "t": True,
        }


async def test_a_fetch_session_has_them_too() -> None:
    async with running() as (_, wire):
        request = fetch_request(OFFSETS, 0)
        request.session_id, request.session_epoch = 0, 0
        first = await wire(request, 12)
        assert first.session_id
        assert first.responses[0].partitions[0].error_code == 0
        again = m.FetchRequest(session_id=first.session_id, session_epoch=1, max_bytes=1000)
        assert (await wire(again, 12)).responses == []


async def test_another_gateway_that_leads_one_is_told(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (_, first), joined(store, 2):
        await spread([first], OFFSETS)
        topic = await described(first, OFFSETS)
        row = next(row for row in topic.partitions if row.leader_id == 2)
        request = fetch_request("", 0, row.partition_index)
        request.topics[0].topic_id = topic.topic_id
        (told,) = (await first(request, 17)).responses[0].partitions
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert told.current_leader.leader_id == 2
        offset = await first.offset(OFFSETS, -1, row.partition_index)
        assert offset.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_their_settings_are_kafkas_and_only_told() -> None:
    request = m.DescribeConfigsRequest(
        resources=[m.DescribeConfigsResource(resource_type=2, resource_name=name) for name in (OFFSETS, STATE)]
    )
    async with running() as (_, wire):
        for result in (await wire(request, 4)).results:
            found = {row.name: (row.value, row.config_source, row.read_only) for row in result.configs}
            assert found["cleanup.policy"] == ("compact", 1, True)
            assert found["segment.bytes"] == ("104857600", 1, True)
            assert all(read_only for _, _, read_only in found.values())
            assert "htp.mapping" not in found


async def test_positions_in_them_are_committed_and_outlive_the_gateway(url: str) -> None:
    """As consumers do that read all topics there are."""
    async with running(url) as (_, wire):
        assert await wire.commit("g", OFFSETS, 0, 49) == 0
        assert await wire.commit("g", OFFSETS, 0, 50) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with running(url) as (_, wire):
        assert await wire.committed("g", OFFSETS, 49) == 0
        assert await wire.committed("g", OFFSETS, 1) == -1
        gone = m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                m.OffsetDeleteRequestTopic(
                    name=OFFSETS, partitions=[m.OffsetDeleteRequestPartition(partition_index=49)]
                )
            ],
        )
        assert (await wire(gone, 0)).topics[0].partitions[0].error_code == 0
        assert await wire.committed("g", OFFSETS, 49) == -1


async def test_one_that_an_earlier_release_has_made_hides_it_until_it_is_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(assembly, "internal_records", lambda *_: [])
        async with running(url) as (_, wire):
            created = await wire.create(OFFSETS, 2)
            assert (await wire.produce(OFFSETS, batch_of(b"old"))).error_code == 0
    async with running(url) as (_, wire):
        topic = await described(wire, OFFSETS)
        assert (topic.topic_id, len(topic.partitions), topic.is_internal) == (created.topic_id, 2, True)
        assert await wire.values(OFFSETS) == [b"old"]
        assert [row.name for row in (await wire(m.MetadataRequest(topics=None), 12)).topics] == [OFFSETS, STATE]
        assert await wire.delete(OFFSETS) == 0
        topic = await described(wire, OFFSETS)
        assert len(topic.partitions) == 50
        assert topic.topic_id != created.topic_id
        assert await wire.delete(OFFSETS) == INVALID


async def test_only_who_may_see_them_does() -> None:
    async with running() as (gateway, wire):
        topic_id = (await described(wire, OFFSETS)).topic_id
        rules = gateway.parts.access.authorizer = Rules((AclOperation.DESCRIBE, ResourceType.TOPIC, STATE))
        everything = await wire(m.MetadataRequest(topics=None), 12)
        assert [topic.name for topic in everything.topics] == [STATE]
        assert (await described(wire, OFFSETS)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        by_id = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=None, topic_id=topic_id)])
        assert (await wire(by_id, 12)).topics[0].name is None
        answer = await wire(produce_request(OFFSETS, batch_of(b"x")), 9)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rules.granted.add((AclOperation.WRITE, ResourceType.TOPIC, OFFSETS))
        answer = await wire(produce_request(OFFSETS, batch_of(b"x")), 9)
        assert answer.responses[0].partition_responses[0].error_code == INVALID


async def refused(call: Callable[[], Awaitable[object]], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await call()


async def test_our_clients_leave_them_out_unless_asked() -> None:
    address = f"memory:{next(names)}"
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("t")
        assert [topic.name for topic in await admin.list_topics()] == ["t"]
        listed = await admin.list_topics(include_internal=True)
        assert [(topic.name, topic.is_internal) for topic in listed] == [(OFFSETS, True), (STATE, True), ("t", False)]
        assert (await admin.describe_topics([OFFSETS]))[OFFSETS].is_internal
        resource = ConfigResource(ConfigResourceType.TOPIC, OFFSETS)
        assert (await admin.describe_configs([resource]))[resource]["cleanup.policy"].value == "compact"
        await refused(lambda: admin.delete_topic(OFFSETS), InvalidTopicError, "internal")
        await refused(lambda: admin.create_partitions({STATE: 60}), InvalidTopicError, "internal")
        await refused(lambda: admin.create_topic(OFFSETS), TopicExistsError, "exists")
        ends = await admin.list_offsets({TopicPartition(OFFSETS, 1): OffsetSpec.LATEST})
        assert {found.offset for found in ends.values() if found is not None} == {0}
        assert await admin.find_hanging_transactions() == []
        async with kclient.Producer(bootstrap_servers=address) as producer:
            with pytest.raises(InvalidTopicError):
                await (await producer.send(OFFSETS, b"x", partition=0))
        for settings, seen in (({}, {"t"}), ({"exclude_internal_topics": False}, {"t", OFFSETS, STATE})):
            async with kclient.Consumer(
                bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", **settings
            ) as consumer:
                consumer.subscribe(re.compile(".*"))
                while not consumer.assignment():
                    await consumer.poll(timeout=0.05)
                assert {tp.topic for tp in consumer.assignment()} == seen
                await consumer.poll(timeout=0.05)
                await consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0) for topic in seen})
        assert {tp.topic for tp in await admin.list_group_offsets("g")} == {"t", OFFSETS, STATE}
