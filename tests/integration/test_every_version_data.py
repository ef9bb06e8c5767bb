"""ApiVersions, Metadata, CreateTopics, Produce, Fetch and ListOffsets in every version that a broker advertises.

The brokers are Kafka 3.9.1 (the last that takes the versions of before 1.0), Kafka 4.3.1 and the gateway. Each version
makes a round trip whose result is checked, and what one API did is looked at through the others.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kclient import __version__
from kclient.errors import BrokerConnectionError, ErrorCode
from kclient.protocol import ZERO_UUID, ApiKey
from kclient.protocol.messages import (
    ApiVersionsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kclient.records import BatchBuilder, decode_records
from tests.kafka_server import KafkaServer
from tests.message_sets import OldMessage, read_message_set, write_message_set
from tests.proved import Proved
from tests.wire_session import ON_EACH_SERVER, WireSession, until, wire_session

pytestmark = pytest.mark.anyio

NOW = int(time.time() * 1000)  # retention deletes what is older than a week
NOTHING_ASKED = -(2**31)  # the authorized operations where nobody asked for them
BY_TOPIC_ID = {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13}
RECORDS: list[tuple[bytes | None, bytes | None]] = [(b"a", b"first"), (None, b"second"), (b"c", None)]

Check = Callable[[WireSession, int], Awaitable[None]]


def batch(records: list[tuple[bytes | None, bytes | None]] = RECORDS) -> bytes:
    builder = BatchBuilder(limit=1 << 16)
    for number, (key, value) in enumerate(records):
        builder.append(NOW + number, key, value)
    return bytes(builder.build())


def produce_request(topic: MetadataResponseTopic, version: int, records: bytes, acks: int = -1) -> ProduceRequest:
    by_id = version >= BY_TOPIC_ID[ApiKey.PRODUCE]
    data = TopicProduceData(
        name="" if by_id else topic.name or "",
        topic_id=topic.topic_id if by_id else ZERO_UUID,
        partition_data=[PartitionProduceData(index=0, records=records)],
    )
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])


async def produce(session: WireSession, topic: MetadataResponseTopic, records: bytes) -> PartitionProduceResponse:
    version = session.version(ApiKey.PRODUCE)
    answer = await session(produce_request(topic, version, records))
    found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    return found


def fetch_request(
    topic: MetadataResponseTopic, version: int, offset: int, session_id: int = 0, epoch: int = -1
) -> FetchRequest:
    by_id = version >= BY_TOPIC_ID[ApiKey.FETCH]
    wanted = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    data = FetchRequestTopic(
        topic="" if by_id else topic.name or "", topic_id=topic.topic_id if by_id else ZERO_UUID, partitions=[wanted]
    )
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[data], session_id=session_id, session_epoch=epoch)


async def fetch(session: WireSession, topic: MetadataResponseTopic, offset: int = 0) -> FetchResponsePartitionData:
    version = session.version(ApiKey.FETCH)
    answer: FetchResponse = await session(fetch_request(topic, version, offset))
    assert answer.error_code == 0
    assert (answer.responses[0].topic_id == topic.topic_id) or version < BY_TOPIC_ID[ApiKey.FETCH]
    return answer.responses[0].partitions[0]


async def fetch_old(session: WireSession, topic: MetadataResponseTopic, offset: int, end: int) -> list[OldMessage]:
    """Message sets up to an offset: converted down they may need more bytes than was room for, and be cut off."""
    messages: list[OldMessage] = []
    while offset < end:
        data = await fetch(session, topic, offset)
        more = [found for found in read_message_set(bytes(data.records or b"")) if found.offset >= offset]
        assert more, "at least one whole message"
        ours = decode_records(data.records or b"", topic.name or "", 0, start_offset=offset)
        assert [(item.offset, item.key, item.value) for item in ours] == [
            (found.offset, found.key, found.value) for found in more
        ]
        messages += more
        offset = more[-1].offset + 1
    return messages


def keys_and_values(data: FetchResponsePartitionData, start: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    records = decode_records(data.records or b"", "topic", 0, start_offset=start)
    assert [record.offset for record in records] == list(range(start, start + len(records)))
    return [(record.key, record.value) for record in records]


async def every_version(
    server: tuple[str, str], proved: Proved, api: ApiKey, check: Check, first: int = 0
) -> list[int]:
    """Run the check in each advertised version from the first one on; gives the versions below it."""
    name, bootstrap = server
    async with wire_session(bootstrap) as session:
        for version in session.versions(api):
            if version < first:
                continue
            session.pinned = {api: version}
            await check(session, version)
            proved[name].add((api, version))
        return [version for version in session.versions(api) if version < first]


@ON_EACH_SERVER
async def test_api_versions(server: tuple[str, str], proved: Proved) -> None:
    async def check(session: WireSession, version: int) -> None:
        answer = await session(ApiVersionsRequest(client_software_name="kclient", client_software_version=__version__))
        assert answer.error_code == 0
        ranges = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
        assert ranges == session.connection.api_versions, "as negotiated"
        if version >= 3 and server[0] != "gateway":  # which has no features that a cluster finalizes
            assert "metadata.version" in {item.name for item in answer.supported_features}

    await every_version(server, proved, ApiKey.API_VERSIONS, check)


@ON_EACH_SERVER
async def test_metadata(server: tuple[str, str], proved: Proved, topic: str) -> None:
    async def check(session: WireSession, version: int) -> None:
        asked = [MetadataRequestTopic(name=created.name), MetadataRequestTopic(name=f"{topic}-no")]
        request = MetadataRequest(topics=asked)
        if version >= 4:
            request.allow_auto_topic_creation = False
        else:
            asked.pop()  # it would be created
        if version >= 8:
            request.include_topic_authorized_operations = True
        if version in range(8, 11):
            request.include_cluster_authorized_operations = True
        answer = await session(request)
        host, port = server[1].split(":")
        broker = answer.brokers[0]
        assert (broker.host, broker.port) == (host, int(port))
        assert answer.error_code == 0
        if version >= 1:
            assert answer.controller_id == broker.node_id
        if version >= 2:
            assert answer.cluster_id
        if version in range(8, 11) and kafka:
            assert answer.cluster_authorized_operations not in {0, NOTHING_ASKED}
        found = {item.name: item for item in answer.topics}
        ours = found[topic]
        assert ours.error_code == 0
        assert not ours.is_internal
        assert [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in ours.partitions] == [
            (broker.node_id, [broker.node_id], [broker.node_id])
        ] * 3
        assert {p.partition_index for p in ours.partitions} == {0, 1, 2}
        assert all(p.leader_epoch >= 0 for p in ours.partitions) or version < 7
        assert ours.topic_id == (created.topic_id if version >= 10 else ZERO_UUID)
        assert version < 8 or not kafka or ours.topic_authorized_operations not in {0, NOTHING_ASKED}
        if version >= 4:
            assert found[f"{topic}-no"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        everything = await session(MetadataRequest(topics=None if version else []))
        assert topic in {item.name for item in everything.topics}
        if version >= 1:
            assert (await session(MetadataRequest(topics=[]))).topics == []
        if version >= 12:
            by_id = [MetadataRequestTopic(name=None, topic_id=created.topic_id)]
            assert (await session(MetadataRequest(topics=by_id))).topics[0].name == topic

    kafka = server[0] != "gateway"  # which does not tell who may do what in Metadata
    async with wire_session(server[1]) as session:
        created = await session.create(topic, 3)
        assert created.topic_id != ZERO_UUID
    await every_version(server, proved, ApiKey.METADATA, check)


@ON_EACH_SERVER
async def test_create_topics(server: tuple[str, str], proved: Proved, topic: str) -> None:
    async def check(session: WireSession, version: int) -> None:
        name = f"{topic}-{version}"
        wanted = CreatableTopic(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="123456")],
        )
        if version >= 1:
            tried = (await session(CreateTopicsRequest(topics=[wanted], validate_only=True))).topics[0]
            assert (tried.name, tried.error_code) == (name, 0)
        result = (await session(CreateTopicsRequest(topics=[wanted]))).topics[0]
        assert (result.name, result.error_code) == (name, 0), "validating did not create it"
        described = await session.ready(name)
        assert len(described.partitions) == 2
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 1)
            assert "123456" in {item.value for item in result.configs if item.name == "retention.ms"}
        if version >= 7:
            assert result.topic_id == described.topic_id
        again = (await session(CreateTopicsRequest(topics=[wanted]))).topics[0]
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert again.error_message or version < 1
        if version >= 4:
            defaults = CreatableTopic(name=f"{name}-d", num_partitions=-1, replication_factor=-1)
            assert (await session(CreateTopicsRequest(topics=[defaults]))).topics[0].error_code == 0
            assert len((await session.ready(f"{name}-d")).partitions) == 4
        broker = described.partitions[0].leader_id
        manual = CreatableTopic(name=f"{name}-m", num_partitions=-1, replication_factor=-1)
        manual.assignments = [CreatableReplicaAssignment(partition_index=n, broker_ids=[broker]) for n in range(3)]
        assert (await session(CreateTopicsRequest(topics=[manual]))).topics[0].error_code == 0
        assert len((await session.ready(f"{name}-m")).partitions) == 3

    await every_version(server, proved, ApiKey.CREATE_TOPICS, check)


@ON_EACH_SERVER
async def test_produce(server: tuple[str, str], proved: Proved, topic: str) -> None:
    async def check(session: WireSession, version: int) -> None:
        created = await session.create(f"{topic}-{version}")
        for base in (0, 3):
            answer = await produce(session, created, batch())
            assert (answer.error_code, answer.base_offset) == (0, base)
            assert answer.log_append_time_ms == -1
            assert answer.log_start_offset == (0 if version >= 5 else -1)
        await session.send_only(produce_request(created, version, batch(), acks=0))
        data = await until(lambda: fetch(session, created), lambda found: found.high_watermark == 9)
        assert keys_and_values(data) == RECORDS * 3
        unknown = MetadataResponseTopic(name=f"{topic}-no", topic_id=uuid.uuid4().bytes)
        answer = await produce(session, unknown, batch())
        by_id = version >= BY_TOPIC_ID[ApiKey.PRODUCE]
        assert answer.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    below = await every_version(server, proved, ApiKey.PRODUCE, check, first=3)
    assert below == [0, 1, 2]


@pytest.mark.kafka
async def test_produce_refusals_name_the_record(kafka: KafkaServer, topic: str) -> None:
    async with wire_session(kafka.bootstrap) as session:
        created = await session.create(topic, cleanup_policy="compact")
        for version in session.versions(ApiKey.PRODUCE)[3:]:
            session.pinned = {ApiKey.PRODUCE: version}
            answer = await produce(session, created, batch())  # the second record has no key
            assert answer.error_code == ErrorCode.INVALID_RECORD
            if version >= 8:
                assert [item.batch_index for item in answer.record_errors] == [1]
                assert answer.error_message


@pytest.mark.parametrize(
    "server", [pytest.param("kafka3", marks=pytest.mark.kafka), pytest.param("gateway")], indirect=True
)
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_produce_message_sets(server: tuple[str, str], proved: Proved, topic: str, version: int) -> None:
    """Message sets made by hand go in, and come out of every version of Fetch in that version's format."""
    async with wire_session(server[1]) as session:
        created = await session.create(topic)
        session.pinned = {ApiKey.PRODUCE: version}
        magic = 1 if version == 2 else 0
        timestamp = NOW if magic else -1
        for base in (0, 3):
            answer = await produce(session, created, write_message_set(magic, RECORDS, timestamp))
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, base, -1)
        await session.send_only(produce_request(created, version, write_message_set(magic, RECORDS, timestamp), 0))
        data = await until(lambda: fetch(session, created), lambda found: found.high_watermark == 9)
        assert keys_and_values(data) == RECORDS * 3
        for fetch_version in (0, 1, 2, 3):
            session.pinned[ApiKey.FETCH] = fetch_version
            messages = await fetch_old(session, created, 0, 9)
            assert [(message.key, message.value) for message in messages] == RECORDS * 3
            assert [message.offset for message in messages] == list(range(9))
            assert {message.timestamp for message in messages} == {timestamp if fetch_version >= 2 else -1}
        proved[server[0]].add((ApiKey.PRODUCE, version))


@pytest.mark.kafka
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_kafka_4_refuses_old_produce(kafka: KafkaServer, topic: str, version: int) -> None:
    """It advertises these only for old librdkafka."""
    async with wire_session(kafka.bootstrap) as session:
        created = await session.create(topic)
        request = produce_request(created, version, write_message_set(1 if version == 2 else 0, RECORDS))
        try:
            answer = await session(request, version)
        except BrokerConnectionError:
            pass
        else:
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNSUPPORTED_VERSION
    async with wire_session(kafka.bootstrap) as session:
        assert (await fetch(session, created)).high_watermark == 0, "nothing was stored"


@ON_EACH_SERVER
async def test_fetch(server: tuple[str, str], proved: Proved, topic: str) -> None:
    async def check(session: WireSession, version: int) -> None:
        for start in (0, 3):
            data = await fetch(session, created, start)
            assert (data.error_code, data.high_watermark) == (0, 6)
            assert data.last_stable_offset == (6 if version >= 4 else -1)
            assert data.log_start_offset == (0 if version >= 5 else -1)
            if version >= 4:
                assert keys_and_values(data, start) == (RECORDS * 2)[start:]
            else:
                messages = await fetch_old(session, created, start, 6)
                assert [(message.key, message.value) for message in messages] == (RECORDS * 2)[start:]
                assert {message.magic for message in messages} == {0 if version < 2 else 1}
                assert [message.offset for message in messages] == list(range(start, 6))
        assert (await fetch(session, created, 99)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        if version >= 7:
            await in_a_session(session, version)

    async def in_a_session(session: WireSession, version: int) -> None:
        """KIP-227: after the first request only what is new is asked for and told."""
        own = await session.create(f"{topic}-{version}")
        opening = fetch_request(own, version, 0, epoch=0)
        opening.max_wait_ms = 0
        first: FetchResponse = await session(opening)
        assert first.error_code == 0
        assert first.session_id != 0
        assert (await produce(session, own, batch())).error_code == 0
        request = FetchRequest(max_wait_ms=5000, min_bytes=1, session_id=first.session_id, session_epoch=1)
        second: FetchResponse = await session(request)
        assert (second.error_code, second.session_id) == (0, first.session_id)
        assert keys_and_values(second.responses[0].partitions[0]) == RECORDS
        wrong = FetchRequest(max_wait_ms=0, session_id=first.session_id, session_epoch=9)
        assert (await session(wrong)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    async with wire_session(server[1]) as session:
        created = await session.create(topic)
        for _ in range(2):
            assert (await produce(session, created, batch())).error_code == 0
    await every_version(server, proved, ApiKey.FETCH, check)


@ON_EACH_SERVER
async def test_list_offsets(server: tuple[str, str], proved: Proved, topic: str) -> None:
    async def check(session: WireSession, version: int) -> None:
        async def ask(timestamp: int) -> ListOffsetsPartitionResponse:
            wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            asked = ListOffsetsTopic(name=topic, partitions=[wanted])
            answer = await session(ListOffsetsRequest(replica_id=-1, topics=[asked]))
            found: ListOffsetsPartitionResponse = answer.topics[0].partitions[0]
            assert found.error_code == 0, (timestamp, found)
            return found

        if version == 0:
            assert [(await ask(special)).old_style_offsets for special in (-1, -2)] == [[6], [0]]
            return
        expected = {-1: (6, -1), -2: (0, -1), NOW + 1: (1, NOW + 1), NOW + 3: (-1, -1)}
        if version >= 7:
            expected[-3] = (2, NOW + 2)
        if version >= 8:
            expected[-4] = (0, -1)
        if version >= 9:
            expected[-5] = (-1, -1)  # without a remote tier there is no such offset
        for timestamp, found in expected.items():
            answer = await ask(timestamp)
            assert (answer.offset, answer.timestamp) == found, (version, timestamp)
            assert (answer.leader_epoch >= 0) == (version >= 4 and answer.offset >= 0)

    async with wire_session(server[1]) as session:
        created = await session.create(topic)
        for _ in range(2):
            assert (await produce(session, created, batch())).error_code == 0
    await every_version(server, proved, ApiKey.LIST_OFFSETS, check)
