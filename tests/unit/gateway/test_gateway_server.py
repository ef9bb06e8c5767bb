"""Connections that send what they should not: they are closed with a word in the log, the others are served."""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio
import pytest

from kclient.htp.errors import StorageError, StorageFullError
from kclient.htp.memory.topic import MemoryTopic
from kclient.protocol.framing import encode_request
from kclient.protocol.messages.metadata import MetadataRequest
from kclient.protocol.registry import ApiKey
from tests.gateway_wire import batch_of, connect, fetch_request, names, produce_request, running

pytestmark = pytest.mark.anyio


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


METADATA = b"".join(encode_request(MetadataRequest(topics=[]), 9, 1, "x"))[4:]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x7f\xff\xff\xff" + b"\x00" * 100, "2147483647"),
        (framed(b"\x00\x03\x00\x09\x00\x00\x00\x01"), "header"),
        (framed(METADATA[:-3]), ""),
        (framed(b"\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff"), "999"),
        (framed(b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff\x00"), "version 99 of 3 (Metadata)"),
    ],
)
async def test_garbage_closes_its_connection_only(sent: bytes, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (gateway, wire):
        bad = connect(gateway)
        with caplog.at_level(logging.WARNING):
            await bad.stream.send([sent])
            with anyio.fail_after(5):
                assert await bad.frame() is None
        assert said in caplog.text
        assert not any(record.exc_info for record in caplog.records)
        assert (await wire.metadata()).brokers


@pytest.mark.parametrize("refusal", ["acks=0", "key", "version", "size"])
async def test_what_was_acknowledged_before_a_refusal_arrives(refusal: str) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        good = b"".join(encode_request(produce_request("t", batch_of(b"a")), 9, 5, "x"))
        torn = bytearray(batch_of(b"b"))
        torn[-1] ^= 1
        bad = {
            "acks=0": b"".join(encode_request(produce_request("t", torn, acks=0), 9, 6, "x")),
            "key": framed(b"\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff"),
            "version": framed(b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff\x00"),
            "size": b"\x7f\xff\xff\xff",
        }[refusal]
        await wire.stream.send([good * 3 + bad + good])
        with anyio.fail_after(10):
            for offset in range(3):
                answer = await wire.read(produce_request("t", b""), 9)
                assert answer.responses[0].partition_responses[0].base_offset == offset
            assert await wire.frame() is None


async def test_bytes_behind_a_request_are_ignored() -> None:
    async with running() as (_, wire):  # librdkafka sends some, and Kafka takes them
        await wire.stream.send([framed(METADATA + b"more")])
        assert await wire.frame() is not None
        assert (await wire.metadata()).brokers


async def test_a_request_that_is_cut_off_disturbs_nobody() -> None:
    async with running() as (gateway, wire):
        bad = connect(gateway)
        await bad.stream.send([framed(METADATA)[:20]])
        await bad.aclose()
        assert (await wire.metadata()).brokers


async def test_replies_come_in_the_order_of_requests() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        slow, quick = fetch_request("t", 0, max_wait_ms=50), MetadataRequest(topics=[])
        for request, version in ((slow, 11), (quick, 9), (slow, 11), (quick, 9)):
            await wire.send(request, version)
        for request, version in ((slow, 11), (quick, 9), (slow, 11), (quick, 9)):
            await wire.read(request, version)


async def test_produce_keeps_its_order_while_the_partition_opens() -> None:
    store = f"memory:{next(names)}"
    async with running(store) as (_, wire):
        await wire.create("t")
    async with running(store) as (_, wire):
        for number in range(20):
            await wire.send(produce_request("t", batch_of(b"%d" % number)), 9)
        for number in range(20):
            answer = await wire.read(produce_request("t", b""), 9)
            assert answer.responses[0].partition_responses[0].base_offset == number
        assert await wire.values("t") == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("error", [StorageFullError("no space left"), StorageError("broken")])
async def test_a_full_disk_is_an_error_that_passes(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        batch = bytes(batch_of(b"b", producer_id=3, producer_epoch=0, sequence=0))

        def refuse(*args: object, **options: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(MemoryTopic, "send_nowait", refuse)
            row = await wire.produce("t", batch)
            assert row.error_code == 56  # KAFKA_STORAGE_ERROR
            assert str(error) in str(row.error_message)
            assert await wire.values("t") == [b"a"]
        assert (await wire.produce("t", batch)).base_offset == 1
        assert await wire.values("t") == [b"a", b"b"]


async def test_a_gateway_without_its_lease_answers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (gateway, wire):
        lease = gateway.parts.lease
        lease.current = replace(lease.current, expires=gateway.parts.clock.now() - 1)
        await wire.send(MetadataRequest(topics=[]), 9)
        assert await wire.frame() is None
        assert "lease" in caplog.text


async def test_a_handler_for_everything_that_is_advertised() -> None:
    async with running() as (gateway, _):
        table = gateway.parts.table
        assert set(table.versions) == set(table.handlers)
        assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT} <= set(table.handlers)
