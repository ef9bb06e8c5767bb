"""Answers with a row for each thing that a request names: the rows count as memory before they are made."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from kclient.net.memory_budget import ALLOWANCE
from kclient.protocol.framing import encode_request
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.gateway_wire import connect, running

pytestmark = pytest.mark.anyio

MANY = 150
NAMES = [f"{number:x}" for number in range(MANY)]
NUMBERS = range(MANY)
REQUESTS: dict[str, tuple[ApiMessage, int]] = {
    "DeleteTopics by name": (DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1000), 5),
    "DeleteTopics": (DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES]), 6),
    "CreateTopics": (
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1) for name in NAMES], validate_only=True),
        7,
    ),
    "CreatePartitions": (
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=2) for name in NAMES]),
        3,
    ),
    "DeleteGroups": (DeleteGroupsRequest(groups_names=NAMES), 2),
    "AlterConfigs": (
        AlterConfigsRequest(
            resources=[AlterConfigsRequestResource(resource_type=2, resource_name=name) for name in NAMES]
        ),
        2,
    ),
    "IncrementalAlterConfigs": (
        IncrementalAlterConfigsRequest(
            resources=[IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=name) for name in NAMES]
        ),
        1,
    ),
    "ListOffsets": (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=i, timestamp=-1) for i in NUMBERS]
                )
            ]
        ),
        8,
    ),
    "OffsetForLeaderEpoch": (
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="t", partitions=[OffsetForLeaderPartition(partition=i, leader_epoch=1) for i in NUMBERS]
                )
            ]
        ),
        4,
    ),
    "DeleteRecords": (
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="t", partitions=[DeleteRecordsPartition(partition_index=i, offset=0) for i in NUMBERS]
                )
            ]
        ),
        2,
    ),
    "Produce": (
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=i, records=b"") for i in NUMBERS])
            ],
        ),
        9,
    ),
}


async def eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_rows_are_made_when_there_is_memory_for_them(kind: str) -> None:
    request, version = REQUESTS[kind]
    assert len(b"".join(encode_request(request, version, 1, "test"))) < 4096, "decoding it is not what takes memory"
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (gateway, _):
        server = gateway._running()
        client = connect(gateway)
        await client(DeleteGroupsRequest(groups_names=["x"]), 2)
        budget = server.budget
        await eventually(lambda: not budget.used)
        hog = budget.share(lambda: None)
        hog.keep(budget.limit)
        assert budget.favours(hog)
        kept = ALLOWANCE - 5000
        shares = [connection.share for connection in server.connections]
        for share in shares:
            share.keep(kept)
        await client.send(request, version)
        await eventually(lambda: bool(budget.waiting))
        hog.close()
        with anyio.fail_after(20):
            await client.read(request, version)
        await eventually(lambda: budget.used == kept * len(shares))
        await client.aclose()
