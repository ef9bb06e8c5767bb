"""A gateway with thousands of partitions: deleting them, and starting with them, takes no time that anybody notices.

Five times what is promised is allowed: other tests run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.protocol.messages.fetch import FetchResponse
from kclient.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import batch_of, fetch_request, produce_request
from tests.neighbour_probe import PlainClient

pytestmark = pytest.mark.slow

LENIENCE = 5
HOT = 50


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    yield gateway
    gateway.stop(kill=True)


def create(client: PlainClient, topics: int, partitions: int) -> list[str]:
    names = [f"crowd-{number}" for number in range(topics)]
    wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    answer = client.call(CreateTopicsRequest(topics=wanted, timeout_ms=60_000), 7)
    assert isinstance(answer, CreateTopicsResponse)
    assert not any(row.error_code for row in answer.topics)
    return names


def produce(client: PlainClient, topic: str, partition: int, value: bytes) -> int:
    """The offset."""
    answer = client.call(produce_request(topic, batch_of(value), partition), 9)
    row = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
    assert not row.error_code, row
    return int(row.base_offset)


@pytest.mark.parametrize("topics", [2, 200])
def test_two_thousand_partitions_are_deleted_at_once(gateway: GatewayProcess, topics: int) -> None:
    with PlainClient(gateway.port) as client:
        names = create(client, topics, 2000 // topics)
        for name in names[:50]:
            produce(client, name, 1, b"x")
        began = time.monotonic()
        wanted = [DeleteTopicState(name=name) for name in names]
        answer = client.call(DeleteTopicsRequest(topics=wanted, timeout_ms=30_000), 6)
        seconds = time.monotonic() - began
        assert isinstance(answer, DeleteTopicsResponse)
        assert not any(row.error_code for row in answer.responses)
        assert seconds < 0.5 * LENIENCE
        create(client, topics, 2000 // topics)
        assert produce(client, names[0], 1, b"x") == 0


@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_a_start_with_five_thousand_partitions_serves_the_hot_ones_at_once(gateway: GatewayProcess, kill: bool) -> None:
    with PlainClient(gateway.port) as client:
        names = create(client, 50, 100)
        for name in names[:HOT]:
            assert produce(client, name, 7, name.encode()) == 0
    gateway.stop(kill=kill)
    gateway.start()
    assert gateway.startup_seconds < 1.0 * LENIENCE
    began = time.monotonic()
    with PlainClient(gateway.port) as client:
        for name in names[:HOT]:
            answer = client.call(fetch_request(name, 0, 7), 11)
            assert isinstance(answer, FetchResponse)
            assert name.encode() in bytes(answer.responses[0].partitions[0].records or b"")
            assert produce(client, name, 7, b"more") == 1
    assert time.monotonic() - began < 1.0 * LENIENCE
