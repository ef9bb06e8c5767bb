"""A gateway that is started again on its store finds its logs, producers, topics and offsets."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from tests.domains import domains_among
from tests.gateway_wire import batch_of, names, running

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'data'}"
    return f"memory:{next(names)}"


@pytest.mark.slow
async def test_everything_is_there_again(store: str) -> None:
    async with running(store) as (gateway, wire):
        created = await wire.create("t", 2, retention_ms="-1")
        await wire.produce("t", batch_of(b"a", b"b"))
        await wire.produce("t", batch_of(b"c"), 1)
        cluster, epoch = gateway.parts.identity.cluster_id, gateway.parts.identity.leader_epoch
    async with running(store) as (gateway, wire):
        assert gateway.parts.identity.cluster_id == cluster
        assert gateway.parts.identity.leader_epoch > epoch
        topic = (await wire.metadata("t")).topics[0]
        assert (topic.topic_id, len(topic.partitions)) == (created.topic_id, 2)
        assert await wire.values("t") == [b"a", b"b"]
        assert await wire.values("t", partition=1) == [b"c"]
        assert (await wire.produce("t", batch_of(b"d"))).base_offset == 2


@pytest.mark.parametrize("checkpointed", [True, False])
async def test_producers_are_known_again(store: str, checkpointed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [bytes(batch_of(b"x", producer_id=5, producer_epoch=2, sequence=number)) for number in range(7)]
    async with running(store) as (gateway, wire):
        await wire.create("t")
        for batch in batches:
            await wire.produce("t", batch)
        if not checkpointed:  # as after a crash: the log is read from its beginning
            for partition in gateway.parts.partitions.opened():
                partition.checkpoints.dirty = False
    async with running(store) as (_, wire):
        assert (await wire.produce("t", batches[6])).base_offset == 6
        assert (await wire.produce("t", batches[2])).base_offset == 2
        assert (await wire.produce("t", batches[0])).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = batch_of(b"x", producer_id=5, producer_epoch=2, sequence=7)
        assert (await wire.produce("t", following)).base_offset == 7
        old = batch_of(b"x", producer_id=5, producer_epoch=1, sequence=0)
        assert (await wire.produce("t", old)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.domains
async def test_a_creation_that_was_cut_off_leaves_nothing(store: str) -> None:
    async with running(store) as (gateway, wire):
        parts = gateway.parts
        await parts.manager.commit({"kafka/intent/half": b"domain"})
        await parts.manager.create_domain("half")
        await wire.create("whole")
    async with running(store) as (gateway, wire):
        assert await domains_among(gateway.parts.manager, ["half", "whole"]) == ["whole"]
        assert (await wire.metadata("half")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await wire.create("half")).error_code == 0
        assert (await wire.produce("half", batch_of(b"a"))).base_offset == 0


@pytest.mark.domains
async def test_a_domain_of_others_is_left_alone(store: str) -> None:
    async with running(store) as (gateway, wire):
        await gateway.parts.manager.create_domain("theirs")
        row = await wire.create("theirs")
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await domains_among(gateway.parts.manager, ["theirs"])


async def test_wrong_settings_fail_at_once() -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        Gateway("memory:x", listen=None, config={"num.partition": 3})
    with pytest.raises(ConfigError, match="unknown mapping strategy"):
        Gateway("memory:x", listen=None, mapping="other")


async def test_listening_beyond_this_machine_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kclient.gateway"):
        async with Gateway(f"memory:{next(names)}", "127.0.0.1:0") as gateway:
            assert not caplog.records
            assert gateway.bootstrap.startswith("127.0.0.1:")
        async with Gateway(f"memory:{next(names)}", "0.0.0.0:0", "localhost:0") as gateway:
            assert gateway.bootstrap.startswith("localhost:")
            assert gateway.bootstrap != "localhost:0"
        async with Gateway(f"memory:{next(names)}", "0.0.0.0:0") as gateway:
            assert gateway.bootstrap.startswith(f"{socket.gethostname()}:")
    assert "without authentication" in caplog.text
