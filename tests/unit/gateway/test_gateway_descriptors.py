"""A gateway that may have few files and sockets open: partitions, connections and SQLite get along."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kclient.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kclient.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import batch_of, produce_request
from tests.neighbour_probe import PlainClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits"),
]

FEW = 256
PARTITIONS = 400


def create(client: PlainClient, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer: Any = client.call(CreateTopicsRequest(topics=[topic]), 7)
    assert not answer.topics[0].error_code, answer


def to_all(client: PlainClient, acks: int) -> list[int]:
    """The error codes of one request to all partitions."""
    data = [PartitionProduceData(index=number, records=batch_of(b"x")) for number in range(PARTITIONS)]
    topics = [TopicProduceData(name="wide", partition_data=data)]
    answer: Any = client.call(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics), 9)
    return [row.error_code for row in answer.responses[0].partition_responses]


@pytest.mark.parametrize("durability", ["synced", "written"])
def test_more_partitions_than_files(tmp_path: Path, durability: str) -> None:
    """One request to more partitions than files may be open, again and again: none fails."""
    gateway = GatewayProcess(tmp_path / "data", durability=durability, open_files=FEW)
    gateway.start()
    try:
        with PlainClient(gateway.port) as client:
            create(client, "wide", PARTITIONS)
            for acks in (-1, 1, -1):
                assert to_all(client, acks) == [0] * PARTITIONS
            links = list(Path(f"/proc/{gateway.pid}/fd").iterdir()) if sys.platform == "linux" else []
            assert len(links) <= FEW - 32
    finally:
        assert gateway.stop() == 0


def test_a_flood_of_connections_leaves_files_to_partitions(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "data", open_files=FEW)
    gateway.start()
    try:
        with PlainClient(gateway.port) as client, ExitStack() as flood:
            create(client, "wide", PARTITIONS)
            for _ in range(FEW + 20):
                flood.enter_context(closing(socket.create_connection(("127.0.0.1", gateway.port))))
            assert to_all(client, -1) == [0] * PARTITIONS
            create(client, "new", 1)
            answer: Any = client.call(produce_request("new", batch_of(b"x")), 9)
            assert not answer.responses[0].partition_responses[0].error_code
        with PlainClient(gateway.port) as client:  # the flood is over
            assert to_all(client, -1) == [0] * PARTITIONS
    finally:
        assert gateway.stop() == 0
    assert not [line for line in gateway.stderr if "rror" in line]
