"""Speaks Kafka's protocol to a gateway by messages: what the tests of the gateway send and read."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.net.address import Address
from kclient.net.frames import FrameAssembler
from kclient.net.streams import ByteStream, memory_pair
from kclient.protocol.framing import decode_response, encode_request
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from kclient.protocol.messages.fetch import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kclient.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kclient.protocol.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kclient.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kclient.protocol.registry import response_class
from kclient.records import BatchBuilder, CompressionType, decode_records

M = TypeVar("M", bound=ApiMessage)
names = (f"store-{number}" for number in itertools.count())


class Wire:
    """One connection: `await wire(request, version)` sends and reads; `send` and `read` do it apart."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._ids = itertools.count(1)
        self._assembler = FrameAssembler(1 << 30)
        self._frames: list[memoryview] = []

    async def __call__(self, request: ApiMessage, version: int) -> Any:
        await self.send(request, version)
        return await self.read(request, version)

    async def send(self, request: ApiMessage, version: int) -> None:
        await self.stream.send(encode_request(request, version, next(self._ids), "test"))

    async def read(self, request: ApiMessage, version: int) -> Any:
        assert request.API_KEY is not None
        frame = await self.frame()
        assert frame is not None, "the gateway closed the connection"
        return decode_response(response_class(request.API_KEY), frame, version)[1]

    async def frame(self) -> memoryview | None:
        """The next frame; None when the gateway closed the connection."""
        while not self._frames:
            data = await self.stream.receive()
            if not data:
                return None
            self._assembler.feed(data)
            self._frames.extend(self._assembler.take())
        return self._frames.pop(0)

    async def aclose(self) -> None:
        await self.stream.aclose()

    # What many tests do

    async def create(
        self, name: str, partitions: int = 1, *, timeout_ms: int = 60_000, **configs: str
    ) -> CreatableTopicResult:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        response = await self(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 7)
        return response.topics[0]

    async def metadata(self, *topics: str, create: bool = False, version: int = 12) -> MetadataResponse:
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        return await self(MetadataRequest(topics=wanted, allow_auto_topic_creation=create), version)

    async def produce(
        self, topic: str, batch: bytes | bytearray, partition: int = 0, *, acks: int = -1, version: int = 9
    ) -> PartitionProduceResponse:
        response = await self(produce_request(topic, batch, partition, acks=acks), version)
        return response.responses[0].partition_responses[0]

    async def fetch(
        self, topic: str, offset: int, partition: int = 0, *, version: int = 11, **limits: int
    ) -> FetchResponsePartitionData:
        response: FetchResponse = await self(fetch_request(topic, offset, partition, **limits), version)
        assert not response.error_code
        return response.responses[0].partitions[0]

    async def values(self, topic: str, offset: int = 0, partition: int = 0) -> list[bytes]:
        """All values from an offset to the end."""
        found: list[bytes] = []
        while True:
            answer = await self.fetch(topic, offset, partition)
            if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR:  # a busy disk has not opened it yet
                answer = await self.fetch(topic, offset, partition, max_wait_ms=5000)
            assert not answer.error_code, answer
            records = decode_records(answer.records or b"", topic, partition, start_offset=offset)
            if not records:
                return found
            found += [record.value for record in records]
            offset = records[-1].offset + 1

    async def offset(
        self,
        topic: str,
        timestamp: int,
        partition: int = 0,
        *,
        isolation_level: int = 0,
        current_leader_epoch: int = -1,
    ) -> ListOffsetsPartitionResponse:
        wanted = ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=current_leader_epoch
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        )
        response = await self(request, 8)
        return response.topics[0].partitions[0]

    # What administrators do; the error codes are returned

    async def delete(self, *topics: str, timeout_ms: int = 30_000) -> int:
        """Delete topics; the first error, 0 if there is none."""
        wanted = [DeleteTopicState(name=name) for name in topics]
        response = await self(DeleteTopicsRequest(topics=wanted, timeout_ms=timeout_ms), 6)
        return max((row.error_code for row in response.responses), key=bool)

    async def grow(self, topic: str, partitions: int, *, validate_only: bool = False) -> int:
        """Give a topic more partitions; the error code."""
        wanted = CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
        response = await self(CreatePartitionsRequest(topics=[wanted], validate_only=validate_only), 3)
        return response.results[0].error_code

    async def delete_records(self, topic: str, before: int, partition: int = 0) -> DeleteRecordsPartitionResult:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=30_000)
        return (await self(request, 2)).topics[0].partitions[0]

    async def alter(self, kind: int, resource: str, *changes: tuple[str, int, str | None]) -> int:
        """Name, operation and value of each change; `kind` is 2 for a topic, 4 for a broker."""
        rows = [
            IncrementalAlterConfigsRequestConfig(name=name, config_operation=operation, value=value)
            for name, operation, value in changes
        ]
        wanted = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=resource, configs=rows)
        response = await self(IncrementalAlterConfigsRequest(resources=[wanted]), 1)
        return int(response.responses[0].error_code)

    async def alter_all(self, kind: int, resource: str, settings: dict[str, str]) -> int:
        """Replace all settings that were made, as AlterConfigs does."""
        rows = [AlterConfigsRequestConfig(name=name, value=value) for name, value in settings.items()]
        wanted = AlterConfigsRequestResource(resource_type=kind, resource_name=resource, configs=rows)
        response = await self(AlterConfigsRequest(resources=[wanted]), 1)
        return int(response.responses[0].error_code)

    async def configs(self, kind: int, resource: str) -> dict[str, tuple[str | None, int]]:
        """Value and source of every setting."""
        wanted = DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=None)
        response = await self(DescribeConfigsRequest(resources=[wanted]), 4)
        assert not response.results[0].error_code
        return {row.name: (row.value, row.config_source) for row in response.results[0].configs}

    async def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> int:
        """Commit an offset as a consumer without membership."""
        wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        )
        return int((await self(request, 8)).topics[0].partitions[0].error_code)

    async def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The committed offset, -1 if there is none."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
        row = (await self(request, 8)).groups[0].topics[0].partitions[0]
        assert not row.error_code
        return int(row.committed_offset)

    async def producer_id(self) -> int:
        """A producer id; -1 if there was an error."""
        response = await self(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        return -1 if response.error_code else int(response.producer_id)


def batch_of(
    *values: bytes,
    timestamp: int | None = None,
    compression: CompressionType = CompressionType.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    key: bytes | None = None,
) -> bytearray:
    """A record batch as a producer would make it."""
    builder = BatchBuilder(limit=1 << 30, compression=compression, is_transactional=transactional)
    stamp = int(time.time() * 1000) if timestamp is None else timestamp
    for value in values:
        builder.append(stamp, key, value)
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)


def produce_request(
    topic: str, batch: bytes | bytearray, partition: int = 0, *, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        transactional_id=transactional_id,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_request(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 10 << 20,
    leader_epoch: int = -1,
    isolation_level: int = 0,
) -> FetchRequest:
    wanted = FetchRequestPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=leader_epoch,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[FetchRequestTopic(topic=topic, partitions=[wanted])],
    )


def connect(gateway: Gateway) -> Wire:
    """A connection in memory to a running gateway."""
    client, server = memory_pair("gateway", "client")
    gateway.connect_stream(server, advertise=Address("test", 0))
    return Wire(client)


@asynccontextmanager
async def running(htp: str | None = None, **options: Any) -> AsyncIterator[tuple[Gateway, Wire]]:
    """A gateway without a port, on a fresh memory store unless told otherwise, and a connection to it."""
    async with Gateway(htp or f"memory:{next(names)}", listen=None, **options) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire
        finally:
            await wire.aclose()
