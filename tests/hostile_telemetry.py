"""As `hostile_clients`: what one client can do with metrics that clients push, and with subscriptions to them."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kclient.metrics.otlp import Point, encode_metrics
from kclient.protocol.messages import (
    DescribeConfigsRequest,
    GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    PushTelemetryRequest,
)
from kclient.protocol.messages import configs as configs_
from kclient.records import CompressionType
from kclient.records.compression import compress
from tests.hostile_clients import Course, Site, attack, numbered, side_by_side
from tests.hostile_scrapers import scrape
from tests.neighbour_probe import PlainClient, framed

CLIENT_METRICS = 16
MOST_BYTES = 1 << 20
"""What a client may push at a time: `telemetry.max.bytes`."""
MOST_CHARACTERS = 4_096
"""What `match` may have."""


def _subscribing(settings: dict[str, dict[str, str]]) -> IncrementalAlterConfigsRequest:
    """Subscriptions by name."""
    return IncrementalAlterConfigsRequest(
        resources=[
            configs_.IncrementalAlterConfigsRequestResource(
                resource_type=CLIENT_METRICS,
                resource_name=name,
                configs=[
                    configs_.IncrementalAlterConfigsRequestConfig(name=setting, config_operation=0, value=value)
                    for setting, value in values.items()
                ],
            )
            for name, values in settings.items()
        ]
    )


def _subscribe(site: Site, settings: dict[str, dict[str, str]]) -> None:
    answer = site.call(_subscribing(settings), 1)
    assert not any(each.error_code for each in answer.responses), answer


def _asking(instance_id: bytes) -> bytes:
    return framed(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def _push(client: PlainClient, data: bytes, compression: CompressionType) -> int:
    """Push as somebody new, who is never too early; returns the code of the answer."""
    me = uuid.uuid4().bytes
    told: Any = client.call(GetTelemetrySubscriptionsRequest(client_instance_id=me), 0)
    request = PushTelemetryRequest(
        client_instance_id=me, subscription_id=told.subscription_id, compression_type=compression, metrics=data
    )
    answer: Any = client.call(request, 0)
    return int(answer.error_code)


def _pushers(site: Site, data: bytes, compression: CompressionType, connections: int) -> Callable[[], None]:
    """Push the same again and again, on several connections."""

    def push() -> None:
        while not site.over:
            try:
                client = site.client()
                while not site.over:
                    _push(client, data, compression)
                    site.answered += 1
            except OSError:
                site.refused += not site.over

    return partial(side_by_side, *[push] * connections)


def _metrics(count: int, name: str = "m") -> bytes:
    """Values with all different labels, and no more of them than go into a push."""
    points = [Point(f"org.apache.kafka.{name}", {"partition": str(number)}, 1.0, 1) for number in range(count)]
    return encode_metrics(points, {"client_rack": "r"})


@attack("PushTelemetry of 1 MB with 15,000 values, by ever new clients", pages=True)
def large_pushes(site: Site) -> Course:
    _subscribe(site, {"all": {"metrics": "*", "interval.ms": "100"}})
    data = _metrics(site.many(15_000))
    assert len(data) < MOST_BYTES
    yield
    _pushers(site, data, CompressionType.NONE, 4)()


@attack("PushTelemetry of nothing but empty fields, 1 MB zipped to 1 kB", pages=True)
def zipped_nothing(site: Site) -> Course:
    _subscribe(site, {"all": {"metrics": "*", "interval.ms": "100"}})
    data = compress(CompressionType.ZSTD, b"\x0a\x00" * (site.many(MOST_BYTES) // 2))
    yield
    _pushers(site, bytes(data), CompressionType.ZSTD, 8)()


@attack("PushTelemetry of bombs of every codec, on 40 connections", pages=True)
def bombs(site: Site) -> Course:
    _subscribe(site, {"all": {"metrics": "*", "interval.ms": "100"}})
    zeros = bytes(site.many(200 << 20))
    works = []
    for codec in (CompressionType.ZSTD, CompressionType.GZIP, CompressionType.LZ4, CompressionType.SNAPPY):
        bomb = bytes(compress(codec, zeros if codec is not CompressionType.SNAPPY else zeros[: 16 << 20]))
        if len(bomb) > MOST_BYTES:
            bomb = bomb[:MOST_BYTES]
        works.append(_pushers(site, bomb, codec, 10))
    yield
    side_by_side(*works)


@attack("metrics of 500 clients with 400 values, scraped all the time", pages=True)
def scraped(site: Site) -> Course:
    _subscribe(site, {"all": {"metrics": "*", "interval.ms": "3600000"}})
    data = _metrics(400)
    with site.client() as client:
        for _ in range(site.many(500)):
            assert _push(client, data, CompressionType.NONE) == 0
    yield
    side_by_side(*[partial(scrape, site, "/metrics")] * 16)


@attack("GetTelemetrySubscriptions by ever new clients", pages=True)
def new_clients(site: Site) -> Course:
    subscriptions = {
        f"s{number}": {"metrics": f"org.apache.kafka.{number}.", "match": f"client_id=x{number}.*"}
        for number in range(site.many(200))
    }
    _subscribe(site, subscriptions)

    def frames() -> Iterator[bytes]:
        while True:
            yield _asking(uuid.uuid4().bytes)

    yield
    side_by_side(*[lambda: site.stream(frames())] * 4)


def _slow_patterns() -> Iterator[str]:
    """Patterns that take long to read, each another one; every other one is none in the end."""
    pieces = "(a?|b*|[c-x]+|\\w+)", "(a|b|c|d|e|f|g|h)?", "((((a)*b)*c)*d)*"
    for number in itertools.count():
        head, piece = f"client_id={number:08d}", pieces[number % len(pieces)]
        yield head + piece * ((MOST_CHARACTERS - len(head) - 1) // len(piece)) + "(" * (number % 2)


@attack("subscriptions whose patterns are as long as may be, ever new ones", pages=True)
def long_patterns(site: Site) -> Course:
    patterns = _slow_patterns()
    lock = threading.Lock()

    def frames() -> Iterator[bytes]:
        while True:
            with lock:
                pattern = next(patterns)
            yield framed(_subscribing({"slow": {"metrics": "*", "match": pattern}}), 1)

    yield
    side_by_side(*[lambda: site.stream(frames())] * 2)


@attack("20 subscriptions whose patterns take longest, and client ids of 30 kB", pages=True)
def slow_matches(site: Site) -> Course:
    pattern = "client_id=" + "(x|xx|[a-z])?" * 60 + "(x?y?z?)*" * 30 + "(\\w*x)*.*"
    _subscribe(site, {f"s{number}": {"metrics": "*", "match": f"{pattern}{number}"} for number in range(20)})

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            request = GetTelemetrySubscriptionsRequest(client_instance_id=uuid.uuid4().bytes)
            yield framed(request, 0, f"{number}".rjust(site.many(30_000), "xyz"[number % 3]))

    yield
    side_by_side(*[lambda: site.stream(frames())] * 2)


@attack("900 subscriptions of many metrics, described, listed and changed", pages=True)
def many_subscriptions(site: Site) -> Course:
    metrics = ",".join(numbered("org.apache.kafka.producer.", 100))
    names = numbered("subscription-", site.many(900))
    for start in range(0, len(names), 50):
        _subscribe(site, {name: {"metrics": metrics} for name in names[start : start + 50]})
    resources = [configs_.DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name=name) for name in names]
    described = framed(DescribeConfigsRequest(resources=resources, include_synonyms=True), 4)
    listed = framed(ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1)

    def asked() -> Iterator[bytes]:
        while True:
            yield _asking(uuid.uuid4().bytes)

    def changed() -> Iterator[bytes]:
        for number in itertools.count():
            few = {name: {"interval.ms": str(1_000 + number % 1_000)} for name in names[:200]}
            yield framed(_subscribing(few), 1)

    yield
    side_by_side(partial(site.repeat, described, listed), lambda: site.stream(asked()), lambda: site.stream(changed()))
