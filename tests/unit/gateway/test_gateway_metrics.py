"""What a gateway tells of itself, and how that is served to Prometheus, whoever asks."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from prometheus_client.parser import text_string_to_metric_families

from kclient.errors import ConfigError, IllegalStateError, MissingExtraError
from kclient.gateway import Gateway, GatewayMetric, MetricType
from kclient.gateway import metrics_server as server_module
from kclient.gateway.metrics import MetricRegistry
from kclient.gateway.metrics_server import Page, PageServer
from kclient.htp.embedded.files import Files
from kclient.net.address import Address
from kclient.sync import Gateway as BlockingGateway
from tests.gateway_wire import batch_of, names, running

pytestmark = [pytest.mark.anyio, pytest.mark.own_places]

PREFIX = "kclient_gateway_"


def values(metrics: list[GatewayMetric]) -> dict[str, Any]:
    """The value of each, without the prefix; of those with a label, by its values."""
    found: dict[str, Any] = {}
    for metric in metrics:
        assert metric.name.startswith(PREFIX)
        assert metric.help.endswith(".")
        labelled = {next(iter(sample.labels.values())): sample.value for sample in metric.samples if sample.labels}
        plain = [sample.value for sample in metric.samples if not sample.labels]
        found[metric.name.removeprefix(PREFIX)] = labelled or (plain[0] if plain else {})
    return found


def test_a_registry() -> None:
    registry = MetricRegistry()
    registry.gauge("a", "One.", lambda: 1.5)
    registry.counter("b_total", "Two.", lambda: [(("x", "y"), 2), (("z", ""), 3)], labels=("k", "l"))
    registry.gauge("c_bytes", "None.", lambda: None, unit="bytes")
    assert registry.collect() == [
        GatewayMetric("a", MetricType.GAUGE, "", "One.", (({}, 1.5),)),  # type: ignore[arg-type]
        GatewayMetric("b_total", MetricType.COUNTER, "", "Two.", (({"k": "x", "l": "y"}, 2), ({"k": "z", "l": ""}, 3))),  # type: ignore[arg-type]
        GatewayMetric("c_bytes", MetricType.GAUGE, "bytes", "None.", ()),
    ]
    with pytest.raises(IllegalStateError):
        registry.gauge("a", "Again.", lambda: 1)
    for name, unit in (("a-b", ""), ("d", "bytes"), ("", "")):
        with pytest.raises(ValueError, match="is not the name of a metric"):
            registry.gauge(name, "Wrong.", lambda: 1, unit=unit)
    with pytest.raises(ValueError, match="ends with _total"):
        registry.counter("d", "Wrong.", lambda: 1)
    assert len(registry.collect()) == 3


async def test_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "free_bytes", lambda _files, _directory: 5_000_000)
    config = {"log.dir.min.free.bytes": "4000000", "connections.max.memory.bytes": str(32 << 20)}
    async with running(f"embedded:{tmp_path / 'data'}", config=config) as (gateway, wire):
        before = values(gateway.metrics())
        await wire.create("t", partitions=3)
        await wire.produce("t", batch_of(b"x"))
        await wire.commit("g", "t", 1)
        found = values(gateway.metrics())
    assert {name: found[name] for name in ("topics", "partitions", "groups", "connections")} == {
        "topics": 1, "partitions": 3, "groups": 1, "connections": 1,
    }  # fmt: skip
    assert found["requests_total"] >= before["requests_total"] + 3
    assert found["memory_limit_bytes"] == 32 << 20
    assert found["memory_held_bytes"]["topics"] > 1000
    assert found["memory_held_bytes"]["committed offsets"] > 100
    assert found["memory_held_bytes"]["connections"] >= 0
    assert (found["disk_free_bytes"], found["disk_low_watermark_bytes"]) == (5_000_000, 4_000_000)
    assert found["disk_appends_refused"] == 0
    assert found["shared_topic_retained_bytes"] == {}


@pytest.mark.slow
async def test_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "free_bytes", lambda _files, _directory: 5_000)
    config = {"log.dir.min.free.bytes": "4000000"}
    async with running(f"embedded:{tmp_path / 'data'}", config=config) as (gateway, _):
        found = values(gateway.metrics())
        assert (found["disk_free_bytes"], found["disk_appends_refused"]) == (5_000, 1)
    monkeypatch.setattr(Files, "free_bytes", lambda _files, _directory: sys.maxsize)
    async with running(f"embedded:{tmp_path / 'data'}") as (gateway, _):
        found = values(gateway.metrics())
        assert (found["disk_free_bytes"], found["disk_low_watermark_bytes"]) == ({}, 0), "nobody can tell"


async def test_a_store_without_a_disk() -> None:
    async with running(f"memory:{next(names)}") as (gateway, _):
        assert not [name for name in values(gateway.metrics()) if name.startswith("disk")]


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_the_slowest_partition_and_what_it_keeps(kind: str, tmp_path: Path) -> None:
    htp = f"embedded:{tmp_path / 'data'}" if kind == "embedded" else f"memory:{next(names)}"
    async with running(htp, mapping="virtual") as (gateway, wire):
        await wire.create("t", partitions=3)
        for number in (2, 0, 1, 0, 1, 0, 1):
            await wire.produce("t", batch_of(bytes(1000)), partition=number)
        found = values(gateway.metrics())
        assert found["shared_topic_retained_bytes"] == {"t": 0}
        assert found["shared_topic_slowest_partition"] == {"t": 2}
        size = len(batch_of(bytes(1000)))
        for number in (0, 1):
            await wire.delete_records("t", -1, partition=number)
        found = values(gateway.metrics())
        assert 6 * size <= found["shared_topic_retained_bytes"]["t"] <= 6 * (size + 24)
        assert found["shared_topic_slowest_partition"] == {"t": 2}
        await wire.produce("t", batch_of(b"x"), partition=1)
        await wire.delete_records("t", -1, partition=2)
        found = values(gateway.metrics())
        assert found["shared_topic_slowest_partition"] == {"t": 1}


async def test_shared_topics_that_are_deleted_while_they_are_looked_at() -> None:
    async with running(f"memory:{next(names)}", mapping="virtual") as (gateway, wire):
        for name in ("a", "b", "c"):
            await wire.create(name)
            await wire.produce(name, batch_of(b"x"))
        standings = gateway.parts.shared.standings()
        assert next(standings)[0] == "a"
        await wire.delete("b")
        assert [name for name, _ in standings] == ["c"]


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_a_shared_topic_whose_store_does_not_answer(kind: str, tmp_path: Path) -> None:
    htp = f"embedded:{tmp_path / 'data'}" if kind == "embedded" else f"memory:{next(names)}"
    async with running(htp, mapping="virtual") as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        (place,) = {each.place for record in gateway.parts.topics for each in record.logs.values()}
        await gateway.parts.broker.delete([place], epoch=gateway.parts.lease.current.epoch)
        assert values(gateway.metrics())["shared_topic_slowest_partition"] == {"t": 0}


# Over HTTP


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Gateway, Address]]:
    async with running(f"memory:{next(names)}") as (gateway, wire):
        await wire.create("t", partitions=2)
        yield gateway, await gateway.serve_metrics("127.0.0.1:0")


async def connected(address: Address) -> SocketStream:
    return await anyio.connect_tcp(address.host, address.port)


async def rest_of(stream: SocketStream) -> bytes:
    found = b""
    with anyio.fail_after(20):
        async for some in stream:
            found += some
    return found


async def asked(address: Address, request: bytes) -> tuple[str, bytes]:
    """The status line and headers, and the body."""
    async with await connected(address) as stream:
        await stream.send(request)
        head, body = (await rest_of(stream)).split(b"\r\n\r\n", 1)
    return head.decode(), body


SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_prometheus_reads_it() -> None:
    async with serving() as (gateway, address):
        head, body = await asked(address, SCRAPE)
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "Content-Type: text/plain; version=" in head
        assert f"Content-Length: {len(body)}\r\n" in head + "\r\n"
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        told = {metric.name.removesuffix("_total"): metric for metric in gateway.metrics()}
        assert {name for name in families if name.startswith(PREFIX)} == set(told)
        for name, metric in told.items():
            assert (families[name].type, families[name].documentation) == (metric.type.value, metric.help)
        assert families[f"{PREFIX}partitions"].samples[0].value == 2
        assert any(each.labels == {"purpose": "topics"} for each in families[f"{PREFIX}memory_held_bytes"].samples)
        head, body = await asked(address, b"HEAD /metrics?x=1 HTTP/1.0\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert body == b""


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", "404 Not Found"),
    ],
)
async def test_what_is_no_scrape(request_head: bytes, status: str) -> None:
    async with serving() as (_, address):
        head, body = await asked(address, request_head)
        assert head.startswith(f"HTTP/1.1 {status}\r\n")
        assert body
        assert (await asked(address, SCRAPE))[0].startswith("HTTP/1.1 200")


async def test_a_request_without_end_is_refused() -> None:
    async with serving() as (_, address), await connected(address) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 8192)
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 400")


async def test_who_says_nothing_makes_room_for_others() -> None:
    async with serving() as (_, address), AsyncExitStack() as open_ones:
        silent = [await open_ones.enter_async_context(await connected(address)) for _ in range(40)]
        assert (await asked(address, SCRAPE))[0].startswith("HTTP/1.1 200")
        assert await rest_of(silent[0]) == b"", "the oldest is closed"


async def test_who_is_slow_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SECONDS", 0.2)
    async with serving() as (_, address), await connected(address) as stream:
        await stream.send(b"GET /metrics")
        assert await rest_of(stream) == b""


@pytest.mark.slow
async def test_who_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def long(_: list[GatewayMetric]) -> tuple[str, bytes]:
        nonlocal made
        made += 1
        return "text/plain", b"#" * (16 << 20)

    monkeypatch.setattr(server_module, "exposition", long)
    monkeypatch.setattr(server_module, "_FRESH_S", 3600.0)
    async with serving() as (_, address), AsyncExitStack() as unread:
        streams = [await unread.enter_async_context(await connected(address)) for _ in range(3)]
        for stream in streams:
            await stream.send(SCRAPE)
        for stream in streams:
            assert (await stream.receive(9)) == b"HTTP/1.1 "
        _, body = await asked(address, SCRAPE)
        assert len(body) >= 16 << 20
        assert made == 1, "what was made a moment ago is sent again"


async def test_what_fails_is_told_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: list[GatewayMetric]) -> tuple[str, bytes]:
        raise RuntimeError("in this test")

    async with serving() as (gateway, address):
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "exposition", failing)
            async with await connected(address) as stream:
                await stream.send(SCRAPE)
                assert await rest_of(stream) == b""
        assert "metrics cannot be told" in caplog.text
        assert (await asked(address, SCRAPE))[0].startswith("HTTP/1.1 200")
        assert gateway.failure is None


async def test_where_it_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (gateway, address):
        with pytest.raises(OSError, match="another process listens there"):
            await gateway.serve_metrics(str(address))
        for wrong in ("unix:/tmp/x", "embedded:x", "localhost", "[::1]"):
            with pytest.raises(ConfigError):
                await gateway.serve_metrics(wrong)
    async with running(f"memory:{next(names)}") as (gateway, _):
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'htp-kclient\[prometheus\]'"):
            await gateway.serve_metrics("127.0.0.1:0")
        assert gateway.metrics(), "they can be had all the same"


async def test_nothing_is_served_any_more_when_it_is_closed() -> None:
    async with serving() as (_, address):
        stream = await connected(address)
    assert await rest_of(stream) == b""
    await stream.aclose()
    with pytest.raises(OSError):
        await connected(address)


def test_the_blocking_face() -> None:
    with BlockingGateway(f"memory:{next(names)}", listen=None) as gateway:
        assert values(gateway.metrics())["topics"] == 0
        assert gateway.serve_metrics("127.0.0.1:0").port


async def test_who_does_not_read_shares_the_page_with_others() -> None:
    size = 8 << 20

    async def page() -> Page:
        return Page("200 OK", "text/plain", shared)

    async with serving() as (gateway, _):
        shared = [bytes(size)]
        server = PageServer({"/big": page}, gateway._supervisor.spawn)
        address = await server.listen(Address("127.0.0.1", 0))
        streams = []
        tracemalloc.start()
        try:
            for _ in range(10):
                streams.append(await connected(address))
                await streams[-1].send(b"GET /big HTTP/1.1\r\n\r\n")
                assert (await streams[-1].receive(4)) == b"HTTP"
            assert tracemalloc.get_traced_memory()[1] < size
        finally:
            tracemalloc.stop()
            for stream in streams:
                await stream.aclose()
