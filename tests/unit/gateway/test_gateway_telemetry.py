"""Metrics that clients push to a gateway (KIP-714): subscriptions, who may push when, what Prometheus is told."""

from __future__ import annotations

import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from prometheus_client.parser import text_string_to_metric_families

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import ErrorCode, IllegalStateError
from kclient.gateway import Gateway
from kclient.gateway.handlers import telemetry as telemetry_handlers
from kclient.gateway.rows.broker import encode_settings
from kclient.gateway.rows.keys import CLIENT_METRICS
from kclient.gateway.telemetry.instances import told_id
from kclient.gateway.telemetry.otlp import read_points
from kclient.htp.port import Change
from kclient.metrics.otlp import Point, Temporality, encode_metrics
from kclient.net.address import Address
from kclient.protocol import messages as m
from kclient.protocol.registry import ApiKey
from kclient.records import CompressionType
from kclient.records.compression import compress
from tests.gateway_wire import Wire, connect, names, running

pytestmark = pytest.mark.anyio

METRICS = 16
SET, DELETE, APPEND, SUBTRACT = range(4)
ZERO = bytes(16)
ME = uuid.UUID("12345678-1234-4234-8234-123456789abc").bytes
HOUR = "3600000"
APIS = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


async def subscribe(wire: Wire, name: str, **settings: str) -> int:
    changes = ((setting.replace("_", "."), SET, value) for setting, value in settings.items())
    return await wire.alter(METRICS, name, *changes)


async def ask(wire: Wire, instance_id: bytes = ME) -> Any:
    return await wire(m.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


async def push(wire: Wire, told: Any, data: bytes, kind: int = 0, *, last: bool = False, number: int = 0) -> int:
    request = m.PushTelemetryRequest(
        client_instance_id=told.client_instance_id,
        subscription_id=told.subscription_id + number,
        terminating=last,
        compression_type=kind,
        metrics=data,
    )
    return int((await wire(request, 0)).error_code)


def pushed(*points: Point, **resource: str) -> bytes:
    return encode_metrics(points, resource)


def counter(name: str, value: float, **attributes: str) -> Point:
    return Point(name, attributes, value, 1, Temporality.DELTA, 1)


def gauge(name: str, value: float, **attributes: str) -> Point:
    return Point(name, attributes, value, 1)


async def served(wire: Wire) -> set[int]:
    request = m.ApiVersionsRequest(client_software_name="x-y", client_software_version="1.2")
    return {each.api_key for each in (await wire(request, 4)).api_keys}


async def scraped(address: Address) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples by name and labels."""
    async with await anyio.connect_tcp(address.host, address.port) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = b"".join([some async for some in stream])
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.partition(b"\r\n\r\n")[2].decode()):
        for sample in family.samples:
            rows = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in rows, f"{sample.name}{labels} comes twice"
            rows[labels] = sample.value
    return found


async def test_clients_are_told_only_where_somebody_reads_it() -> None:
    async with running() as (gateway, wire):
        assert not await served(wire) & APIS
        told = await ask(wire)
        assert await push(wire, told, b"what nobody reads") == 0, "as a broker of Kafka without a plugin"
        await gateway.serve_metrics("127.0.0.1:0")
        assert await served(wire) >= APIS
    gateway = Gateway(f"memory:{next(names)}", listen=None)
    gateway.expect_metrics()
    async with gateway:
        wire = connect(gateway)
        assert await served(wire) >= APIS
        with pytest.raises(IllegalStateError):
            gateway.expect_metrics()
        await wire.aclose()


async def test_subscriptions_are_resources(url: str) -> None:
    async with running(url) as (gateway, wire):
        assert await subscribe(wire, "one", metrics="a.b., c", interval_ms="1000", match="client_id=x.*") == 0
        for operation in (APPEND, SUBTRACT):
            assert await wire.alter(METRICS, "one", ("metrics", operation, "d")) == ErrorCode.INVALID_CONFIG
        assert await wire.alter_all(METRICS, "two", {"interval.ms": "200"}) == 0
        set_here = 7
        assert await wire.configs(METRICS, "one") == {
            "interval.ms": ("1000", set_here), "match": ("client_id=x.*", set_here), "metrics": ("a.b.,c", set_here),
        }  # fmt: skip
        assert await wire.configs(METRICS, "nobody made it") == {
            "interval.ms": ("300000", 5), "match": ("", 5), "metrics": ("", 5),
        }  # fmt: skip
        for version, asked in ((0, []), (1, [METRICS])):
            rows = (await wire(m.ListConfigResourcesRequest(resource_types=asked), version)).config_resources
            assert {(row.resource_type, row.resource_name) for row in rows} == {(METRICS, "one"), (METRICS, "two")}
        everything = (await wire(m.ListConfigResourcesRequest(resource_types=[]), 1)).config_resources
        assert {row.resource_name for row in everything} >= {"one", "two", str(gateway.parts.identity.node_id)}
    if url.startswith("embedded"):
        async with running(url) as (_, wire):
            assert (await wire.configs(METRICS, "one"))["metrics"][0] == "a.b.,c"
            assert await wire.alter(METRICS, "two", ("interval.ms", DELETE, None)) == 0
            rows = (await wire(m.ListConfigResourcesRequest(), 0)).config_resources
            assert [row.resource_name for row in rows] == ["one"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"interval.ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval.ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ({"interval.ms": "often"}, ErrorCode.INVALID_CONFIG),
        ({"retention.ms": "1"}, ErrorCode.INVALID_REQUEST),
        ({"metrics": "a,,b"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id="}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG),
        ({"match": "principal=a"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
        ({"match": r"client_id=(a)\1"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=" + "|" * 4_087}, ErrorCode.INVALID_CONFIG),
        ({"match": ",".join(["client_id=" + "|" * 1_500] * 3)}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_what_is_no_subscription_is_refused(settings: dict[str, str], code: ErrorCode) -> None:
    async with running() as (_, wire):
        assert await wire.alter(METRICS, "s", *((name, SET, value) for name, value in settings.items())) == code
        assert await wire.alter_all(METRICS, "s", settings) == code
        assert await wire.alter_all(METRICS, "", {"interval.ms": "1000"}) == ErrorCode.INVALID_REQUEST
        assert not (await wire(m.ListConfigResourcesRequest(), 0)).config_resources


async def test_who_is_asked_for_what() -> None:
    async with running() as (_, wire):
        await served(wire)  # it has told its software
        told = await ask(wire, ZERO)
        assert told.client_instance_id != ZERO
        assert (told.error_code, told.requested_metrics, told.push_interval_ms) == (0, [], 300_000)
        assert told.accepted_compression_types == [4, 3, 1, 2]
        assert (told.telemetry_max_bytes, told.delta_temporality) == (1 << 20, True)
        matching = {
            "id": "client_instance_id=" + told_id(ME), "client": "client_id=t.*t",
            "software": "client_software_name=x-.,client_software_version=1\\.2", "address": "client_source_address=.*",
        }  # fmt: skip
        for name, match in matching.items():
            assert await subscribe(wire, name, metrics=name, match=match) == 0
        for name, match in {"other": "client_id=es", "port": "client_source_port=.*"}.items():
            assert await subscribe(wire, name, metrics=name, match=match) == 0
        told = await ask(wire)
        assert sorted(told.requested_metrics) == sorted(matching)
        assert await subscribe(wire, "everybody", metrics="x,*,y", interval_ms="12345") == 0
        again = await ask(wire)
        assert (again.requested_metrics, again.push_interval_ms) == (["*"], 12345), "at once, since it has changed"
        assert again.subscription_id != told.subscription_id
        assert (await ask(wire)).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def subscribe_many(wire: Wire, number: int, **settings: str) -> None:
    rows = [
        m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=SET, value=value)
        for name, value in settings.items()
    ]
    resources = [
        m.IncrementalAlterConfigsRequestResource(resource_type=METRICS, resource_name=f"s{each}", configs=rows)
        for each in range(number)
    ]
    answer = await wire(m.IncrementalAlterConfigsRequest(resources=resources), 1)
    assert {each.error_code for each in answer.responses} == {0}


async def test_many_subscriptions_keep_nobody_waiting() -> None:
    """They are looked at in steps, once for each client and change, and what comes of them counts."""
    async with running() as (gateway, wire):
        configs = gateway.parts.telemetry.configs
        metrics = ",".join(f"m{number}" for number in range(2_000))
        before = configs._memory.held
        await subscribe_many(wire, 200, match="client_id=t.*", metrics="a,b")
        assert await subscribe(wire, "long", metrics=metrics) == 0
        assert configs._memory.held - before > 200_000 + 100 * 2_000
        steps = configs.wanted({"client_id": "test"})
        for number in range(20):
            next(steps)
            assert await subscribe(wire, "changes", metrics="c", interval_ms=f"{1000 + number}") == 0
        left = 0
        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
                left += 1
        assert left > 20
        told = end.value.value
        assert len(told.metrics) == 2_002
        assert told.version < configs.version, "it is looked at again the next time, and not for ever"
        assert len((await ask(wire)).requested_metrics) == 2_003
        configs._subscriptions.clear()  # a client that is known is not compared with them again
        assert (await ask(wire)).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def test_to_read_a_match_takes_no_longer_than_a_match_may_be() -> None:
    async with running() as (_, wire):
        began = time.process_time()
        assert await subscribe(wire, "s", match="client_id=" + "(|)" * 10_000) == ErrorCode.INVALID_CONFIG
        assert time.process_time() - began < 0.05, "it is not compiled first"
        assert await subscribe(wire, "s", match="client_id=" + "a|" * 1_500) == 0


async def test_rows_that_others_have_changed_are_taken_in_steps() -> None:
    async with running() as (gateway, wire):
        await subscribe_many(wire, 50, match="client_id=" + "abcd" * 20)
        configs = gateway.parts.telemetry.configs
        changes = [Change(f"{CLIENT_METRICS}s{number}", None, 1) for number in range(50)]
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        for take in (partial(configs.apply, changes), configs.read_all):
            turns = 0
            async with anyio.create_task_group() as group:
                group.start_soon(others)
                await take()
                group.cancel_scope.cancel()
            assert turns >= 40, "one for each row, or nearly"


@pytest.mark.slow
async def test_pushes_wait_for_nobody_s_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pushes what takes long, on however many connections, holds up no other client, nor what follows there."""
    over = False

    def read(data: bytes) -> Any:
        while len(data) > 100_000 and not over:
            yield None
        yield from read_points(data)

    monkeypatch.setattr(telemetry_handlers, "read_points", read)
    async with running() as (gateway, wire):
        await gateway.serve_metrics("127.0.0.1:0")
        large = compress(CompressionType.GZIP, b"\x0a\x00" * 60_000)
        for _ in range(8):
            told = await ask(wire, uuid.uuid4().bytes)
            request = m.PushTelemetryRequest(
                client_instance_id=told.client_instance_id, subscription_id=told.subscription_id,
                compression_type=CompressionType.GZIP, metrics=large,
            )  # fmt: skip
            one = connect(gateway)
            await one.send(request, 0)
        other = connect(gateway)
        small = pushed(gauge("x", 1.0))
        with anyio.fail_after(5):
            for kind in (CompressionType.NONE, CompressionType.GZIP):
                told = await ask(other, uuid.uuid4().bytes)
                sent = small if kind is CompressionType.NONE else compress(kind, small)
                assert await push(other, told, sent, kind) == 0
        over = True


async def test_nobody_writes_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kclient.gateway.config")
    async with running() as (gateway, wire):
        name = "s\nCRITICAL all is lost\n" + "n" * 5_000
        assert await subscribe(wire, name, metrics="m\x1b[2J\nCRITICAL as well" + "m" * 9_000) == 0
        assert await wire.alter(32, "g\nh", ("consumer.session.timeout.ms", SET, "50000")) == 0
        row = encode_settings({"interval.ms": "1\nCRITICAL row"})
        await gateway.parts.telemetry.configs._manager.commit({f"{CLIENT_METRICS}x%0Ay": row}, {}, lease=None)
        await gateway.parts.telemetry.configs.read_all()
    assert len(caplog.messages) >= 3
    for line in caplog.messages:
        assert line.isprintable(), line
        assert len(line) < 2_000
    assert any("CRITICAL row" in line or "x\\ny" in line for line in caplog.messages)


async def test_names_of_software_are_kept_as_far_as_they_are_sensible() -> None:
    """Every connection has some before it logs in."""
    async with running() as (gateway, wire):
        await gateway.serve_metrics("127.0.0.1:0")
        request = m.ApiVersionsRequest(client_software_name="s" * 32_000, client_software_version="1" * 32_000)
        assert (await wire(request, 4)).error_code == 0
        assert await subscribe(wire, "s", metrics="x", match="client_software_name=s{255}") == 0
        assert (await ask(wire)).requested_metrics == ["x"]


async def test_who_may_push_when() -> None:
    async with running() as (gateway, wire):
        await gateway.serve_metrics("127.0.0.1:0")
        assert await subscribe(wire, "s", metrics="*", interval_ms=HOUR) == 0
        data = pushed(gauge("org.apache.kafka.x", 1))
        told = await ask(wire)
        assert await push(wire, told, data, number=1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        told = await ask(wire)
        assert told.error_code == 0, "it may ask at once"
        assert await push(wire, told, data) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await push(wire, told, data, last=True) == 0, "the last ones are taken at once"
        assert await push(wire, told, data, last=True) == ErrorCode.INVALID_REQUEST
        for wrong in (ZERO, bytes(15) + b"\x01"):
            assert await push(wire, m.GetTelemetrySubscriptionsResponse(client_instance_id=wrong), data) == 42
        other = await ask(wire, uuid.uuid4().bytes)
        assert await push(wire, other, data, 9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await ask(wire, other.client_instance_id)).error_code == 0
        another = await ask(wire, uuid.uuid4().bytes)
        assert await push(wire, another, bytes((1 << 20) + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
        wire_of_another = connect(gateway)
        reconnected = await ask(wire_of_another)
        assert reconnected.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await wire_of_another.aclose()


@pytest.mark.parametrize("kind", CompressionType)
async def test_bombs_and_garbage(kind: CompressionType) -> None:
    async with running(config={"telemetry.max.bytes": "100000"}) as (gateway, wire):
        await gateway.serve_metrics("127.0.0.1:0")
        bomb = bytes(50_000_000)
        for data, code in (
            (b"\xff" * 20, ErrorCode.INVALID_RECORD),
            (b"\x0a\x05a", ErrorCode.INVALID_RECORD),
            (bomb, ErrorCode.TELEMETRY_TOO_LARGE),
            (pushed(gauge("x", 1.0)), ErrorCode.NONE),
        ):
            told = await ask(wire, uuid.uuid4().bytes)
            sent = data if kind is CompressionType.NONE else compress(kind, data)
            if len(sent) > 100_000:  # snappy leaves a twentieth
                sent = sent[:100_001]
            assert await push(wire, told, sent, kind) == code
        if kind is not CompressionType.NONE:
            told = await ask(wire, uuid.uuid4().bytes)
            assert await push(wire, told, b"not compressed", kind) == ErrorCode.INVALID_RECORD
        assert gateway.parts.telemetry.pushed.clients >= 1


async def test_prometheus_reads_what_is_pushed() -> None:
    async with running() as (gateway, wire):
        address = await gateway.serve_metrics("127.0.0.1:0")
        await served(wire)
        assert await subscribe(wire, "s", metrics="*", interval_ms="100") == 0
        told = await ask(wire)
        name = "org.apache.kafka.producer.record.send"
        first = pushed(counter(f"{name}.total", 5, topic="t"), gauge(f"{name}.rate", 1.5), client_rack='r"1\n')
        assert await push(wire, told, first) == 0
        more = compress(CompressionType.ZSTD, pushed(counter(f"{name}.total", 2, topic="t"), gauge("own-x.y", -1)))
        assert await push(wire, told, more, CompressionType.ZSTD, last=True) == 0
        found = await scraped(address)
        me = (("client_id", "test"), ("client_instance_id", told_id(ME)))
        assert found["org_apache_kafka_producer_record_send_total"] == {(*me, ("topic", "t")): 7}
        assert found["org_apache_kafka_producer_record_send_rate"] == {me: 1.5}
        assert found["client_own_x_y"] == {me: -1}
        ((labels, one),) = found["kclient_gateway_client_info"].items()
        assert one == 1
        assert dict(labels)["client_software_name"] == "x-y"
        assert "client_rack" not in dict(labels), "the last push has not said it"
        assert found["kclient_gateway_telemetry_pushes_total"] == {(): 2}
        assert found["kclient_gateway_telemetry_series"] == {(): 4}


async def test_there_are_no_more_values_than_a_setting_says() -> None:
    async with running(config={"telemetry.max.series": "10"}) as (gateway, wire):
        address = await gateway.serve_metrics("127.0.0.1:0")
        for _ in range(3):
            told = await ask(wire, uuid.uuid4().bytes)
            assert await push(wire, told, pushed(*(gauge(f"m{number}", 1) for number in range(6)))) == 0
        found = await scraped(address)
        assert (
            sum(len(rows) for name, rows in found.items() if name.startswith(("client_", "kclient_gateway_client_")))
            == 10
        )
        assert found["kclient_gateway_telemetry_left_out_total"][("reason", "series"),] == 18 + 2 - 10


async def test_two_gateways_want_the_same(tmp_path: Path) -> None:
    """What is changed at one holds at the other, whose clients are asked for it; each serves what it was pushed."""
    shared = f"embedded:{tmp_path / 'data'}"
    async with (
        running(shared, config={"node.id": 1}) as (one, wire),
        running(shared, config={"node.id": 2}) as (other, theirs),
    ):
        address = await other.serve_metrics("127.0.0.1:0")
        await one.serve_metrics("127.0.0.1:0")
        assert await subscribe(wire, "s", metrics="x.,y.", interval_ms="100") == 0
        with anyio.fail_after(20):
            while not (there := await ask(theirs, uuid.uuid4().bytes)).requested_metrics:
                await anyio.sleep(0.02)
        here = await ask(wire, there.client_instance_id)
        assert (here.subscription_id, here.requested_metrics) == (there.subscription_id, there.requested_metrics)
        assert await push(theirs, here, pushed(gauge("x.a", 1))) == 0, "a client may go from one to the other"
        assert "client_x_a" in await scraped(address)
        assert one.parts.telemetry.pushed.clients == 0
        assert await wire.alter(METRICS, "s", ("metrics", DELETE, None), ("interval.ms", DELETE, None)) == 0
        with anyio.fail_after(20):
            while (await ask(theirs, uuid.uuid4().bytes)).requested_metrics:
                await anyio.sleep(0.02)


async def test_a_client_of_ours_pushes() -> None:
    store = f"memory:{next(names)}"
    async with Gateway(store, listen="127.0.0.1:0") as gateway:
        address = await gateway.serve_metrics("127.0.0.1:0")
        async with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            await admin.alter_configs(
                {ConfigResource(ConfigResourceType.CLIENT_METRICS, "all"): {"metrics": "*", "interval.ms": "100"}}
            )
        async with kclient.Producer(bootstrap_servers=gateway.bootstrap, client_id="ours") as producer:
            me = await producer.client_instance_id(30)
            await (await producer.send("t", value=b"x"))
        found = await scraped(address)
        ((labels, sent),) = found["org_apache_kafka_producer_topic_record_send_total"].items()
        assert sent == 1, "the last push tells it"
        name = told_id(me.bytes)
        assert dict(labels) == {"client_id": "ours", "client_instance_id": name, "topic": "t"}
