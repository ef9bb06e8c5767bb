"""Whatever clients do at once, a gateway's resident memory stays near its setting: the figures of accounts are true."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kclient.errors import ErrorCode
from kclient.protocol.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    ProduceRequest,
)
from kclient.protocol.messages import produce as produce_
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import batch_of, fetch_request, produce_request
from tests.neighbour_probe import PlainClient, framed
from tests.neighbourhood import peak_of, reset_peak

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="measures in /proc")]

MB = 1 << 20
TOTAL = 64 * MB
BEYOND = 1.25
"""What the allocator keeps of what was freed, and what is counted too low."""
ASIDE = 24 * MB
"""What a gateway takes once it has done everything for the first time, and what is small enough not to be asked for."""
WIDE = 1000


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    config = {"connections.max.memory.bytes": str(TOTAL), "group.max.session.timeout.ms": "1800000"}
    gateway = GatewayProcess(tmp_path / "data", config=config, durability="written")
    gateway.start()
    yield gateway
    gateway.stop(kill=True)


def create(client: PlainClient, name: str, partitions: int) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer: Any = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    return int(answer.topics[0].error_code)


def commit_until_refused(client: PlainClient) -> int:
    rows = [OffsetCommitRequestPartition(partition_index=number, committed_offset=1) for number in range(WIDE)]
    topics = [OffsetCommitRequestTopic(name="wide", partitions=rows)]
    for group in range(10_000):
        request = OffsetCommitRequest(group_id=f"g{group}", generation_id_or_member_epoch=-1, topics=topics)
        answer: Any = client.call(request, 8)
        if answer.topics[0].partitions[0].error_code:
            assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return group * WIDE
    raise AssertionError("no commit is refused")


def join_until_refused(client: PlainClient) -> int:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(100))]
    for number in range(100_000):
        request = JoinGroupRequest(
            group_id=f"group-{number}", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000,
            protocol_type="consumer", protocols=protocols,
        )  # fmt: skip
        answer: Any = client.call(request, 3)
        if answer.error_code:
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return number
    raise AssertionError("no join is refused")


def create_until_refused(client: PlainClient) -> int:
    for number in range(1000):
        code = create(client, f"much-{number}", WIDE)
        if code:
            assert code == ErrorCode.POLICY_VIOLATION
            return number * WIDE
    raise AssertionError("no topic is refused")


def produce_as_many(client: PlainClient, producers: int) -> None:
    """Each of them one batch, to some of the partitions."""
    for first in range(0, producers, 100):
        data = [
            produce_.PartitionProduceData(
                index=number % 10, records=batch_of(b"x", producer_id=number, producer_epoch=0, sequence=0)
            )
            for number in range(first, first + 100)
        ]
        topic = produce_.TopicProduceData(name="wide", partition_data=data)
        answer: Any = client.call(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic]), 9)
        assert not answer.responses[0].partition_responses[0].error_code


def fill_large(client: PlainClient) -> None:
    assert not create(client, "large", 1)
    for _ in range(60):
        client.call(produce_request("large", batch_of(*[b"x" * 1000] * 900)), 9)


def hog(port: int, kept: ExitStack) -> None:
    """Connections that read nothing of much, and such that send a part of a large request."""
    frame = framed(fetch_request("large", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), 11)
    for _ in range(20):
        reader = kept.enter_context(PlainClient(port, receive_buffer=4096))
        with suppress(OSError):
            reader.send(frame * 3)
    for _ in range(20):
        sender = kept.enter_context(PlainClient(port, timeout=1.0))
        with suppress(OSError):
            sender.send((10 * MB).to_bytes(4, "big") + bytes(9 * MB))


@pytest.mark.long  # a minute, and hostile clients that make a busy machine later still
def test_it_stays_within_the_setting(gateway: GatewayProcess) -> None:
    figures: list[str] = []
    reached = 0

    def note(what: str, most: int) -> None:
        """What was done, and how many bytes it may have taken."""
        nonlocal reached
        peak = peak_of(gateway.pid) - before
        figures.append(f"{what}: {(peak - reached) // MB} MB more, {peak // MB} MB in all")
        assert peak - reached < most * BEYOND + ASIDE // 4, figures
        assert peak < TOTAL * BEYOND + ASIDE, figures
        reached = peak

    with PlainClient(gateway.port) as client, ExitStack() as kept:
        assert not create(client, "wide", WIDE)
        fill_large(client)
        before = psutil.Process(gateway.pid).memory_info().rss
        reset_peak(gateway.pid)
        note(f"{commit_until_refused(client)} offsets", TOTAL // 4)
        note(f"{join_until_refused(client)} groups", TOTAL // 4)
        note(f"{create_until_refused(client)} partitions", TOTAL // 4)
        produce_as_many(client, 10_000)
        note("10,000 producers", 10_000 * 850)
        for _ in range(1000):
            kept.enter_context(PlainClient(gateway.port))
        note("1,000 connections", 1_000 * 10_000)
        hog(gateway.port, kept)
        for _ in range(5):
            client.call(produce_request("wide", batch_of(bytes(500_000))), 9)
        note("slow readers and half requests", TOTAL)
        with PlainClient(gateway.port) as quiet:
            answer: Any = quiet.call(produce_request("wide", batch_of(b"x"), 5), 9)
            assert not answer.responses[0].partition_responses[0].error_code
    print("\n".join(figures))
    assert not [line for line in gateway.stderr if "Traceback" in line or "ERROR" in line]


def test_connections_alone_stay_within_the_setting(gateway: GatewayProcess) -> None:
    with PlainClient(gateway.port) as client, ExitStack() as kept:
        assert not create(client, "wide", 1)
        fill_large(client)
        before = psutil.Process(gateway.pid).memory_info().rss
        reset_peak(gateway.pid)
        hog(gateway.port, kept)
        answer: Any = client.call(produce_request("wide", batch_of(bytes(500_000))), 9)
        assert not answer.responses[0].partition_responses[0].error_code
        peak = peak_of(gateway.pid) - before
        assert TOTAL // 4 < peak < TOTAL * BEYOND + ASIDE
