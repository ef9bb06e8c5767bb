"""When metrics are pushed, and which, without any broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from kclient.errors import ErrorCode
from kclient.metrics import Metric, MetricKind, MetricName
from kclient.metrics.otlp import Temporality
from kclient.metrics.telemetry import (
    DEFAULT_INTERVAL,
    Telemetry,
    TelemetryPoints,
    TelemetryState,
    TelemetrySubscription,
)

ID = bytes(range(16))


def subscription(*wanted: str, interval: float = 10.0, delta: bool = True) -> TelemetrySubscription:
    return TelemetrySubscription(ID, 7, [], interval, 1000, delta, wanted)


def subscribed(*wanted: str, chance: float = 0.5) -> Telemetry:
    telemetry = Telemetry(lambda: chance)
    telemetry.sent()
    telemetry.subscribed(subscription(*wanted), 100.0)
    return telemetry


@pytest.mark.parametrize(("chance", "due"), [(0.0, 105.0), (0.5, 110.0), (1.0, 115.0)])
def test_the_first_push_comes_at_a_time_of_its_own(chance: float, due: float) -> None:
    telemetry = Telemetry(lambda: chance)
    assert telemetry.due < 0
    telemetry.sent()
    telemetry.subscribed(subscription("*"), 100.0)
    assert telemetry.pushes
    assert telemetry.due == due
    telemetry.sent()
    telemetry.pushed(120.0)
    assert telemetry.due == 130.0


def test_who_wants_nothing_is_asked_again() -> None:
    telemetry = subscribed()
    assert telemetry.state is TelemetryState.SUBSCRIPTION_NEEDED
    assert telemetry.due == 110.0
    telemetry.sent()
    telemetry.failed(111.0)
    assert telemetry.due == 111.0 + DEFAULT_INTERVAL
    telemetry.sent()
    telemetry.subscribed(subscription(interval=0.0), 500.0)
    assert telemetry.due == 500.0 + DEFAULT_INTERVAL


@pytest.mark.parametrize(
    ("code", "due"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 120.0),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 120.0),
        (ErrorCode.TELEMETRY_TOO_LARGE, 130.0),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 130.0),
    ],
)
def test_a_push_that_was_refused_for_now(code: int, due: float) -> None:
    telemetry = subscribed("*")
    telemetry.sent()
    telemetry.refused(code, 120.0)
    assert telemetry.state is TelemetryState.SUBSCRIPTION_NEEDED
    assert telemetry.due == due


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION])
def test_a_push_that_was_refused_for_good(code: int) -> None:
    telemetry = subscribed("*")
    telemetry.sent()
    telemetry.refused(code, 120.0)
    assert telemetry.over
    telemetry.close()
    assert telemetry.over


def test_asking_in_vain_is_not_repeated_at_once() -> None:
    telemetry = Telemetry()
    telemetry.sent()
    telemetry.refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 100.0)
    assert telemetry.due == 100.0 + DEFAULT_INTERVAL


def test_a_client_that_closes_pushes_once_more() -> None:
    waiting, amid = subscribed("*"), subscribed("*")
    amid.sent()
    for telemetry in (waiting, amid):
        telemetry.close()
        assert telemetry.terminating
        assert telemetry.pushes
        telemetry.sent()
        telemetry.close()
        assert telemetry.over
    unasked = Telemetry()
    unasked.close()
    assert unasked.over


Given: TypeAlias = tuple[str, MetricKind, float | str]


def metrics(*values: Given) -> dict[MetricName, Metric]:
    def made(name: str, kind: MetricKind, value: float | str) -> Metric:
        return Metric(MetricName(name, "producer-metrics"), lambda: value, kind)

    return {metric.name: metric for metric in (made(*value) for value in values)}


def told(points: TelemetryPoints, wanted: TelemetrySubscription, at: int, *values: Given) -> list[object]:
    return [
        (point.name.removeprefix("org.apache.kafka."), point.value, point.temporality, point.start_ns)
        for point in points.of(metrics(*values), wanted, at)
    ]


def test_sums_are_counted_from_the_push_before_or_from_the_beginning() -> None:
    points = TelemetryPoints(5)
    count, size = ("send-total", MetricKind.COUNTER), ("size", MetricKind.GAUGE)
    delta, whole = subscription("*"), subscription("*", delta=False)
    gauge = ("producer.size", 1.0, None, 0)
    assert told(points, delta, 10, (*count, 3.0), (*size, 1.0)) == [
        ("producer.send.total", 3.0, Temporality.DELTA, 5),
        gauge,
    ]
    assert told(points, delta, 20, (*count, 7.0)) == [("producer.send.total", 4.0, Temporality.DELTA, 10)]
    assert told(points, whole, 30, (*count, 8.0)) == [("producer.send.total", 8.0, Temporality.CUMULATIVE, 5)]
    assert told(points, delta, 40, (*count, 9.0)) == [("producer.send.total", 9.0, Temporality.DELTA, 5)]


def test_only_what_is_wanted_and_known_is_told() -> None:
    known: list[Given] = [("a-b", MetricKind.GAUGE, 1.0), ("c", MetricKind.GAUGE, 2.0)]
    values: list[Given] = [*known, ("text", MetricKind.GAUGE, "x"), ("nothing", MetricKind.GAUGE, float("nan"))]
    for wanted, names in {
        ("*",): ["producer.a.b", "producer.c"],
        ("",): ["producer.a.b", "producer.c"],
        ("org.apache.kafka.producer.a",): ["producer.a.b"],
        ("org.apache.kafka.consumer.",): [],
    }.items():
        found = TelemetryPoints(0).of(metrics(*values), replace(subscription(), wanted=wanted), 1)
        assert [point.name.removeprefix("org.apache.kafka.") for point in found] == names


def test_a_metric_of_the_application_that_fails_is_left_out() -> None:
    def broken() -> float:
        raise RuntimeError("no")

    found: dict[MetricName, Metric] = metrics(("fine", MetricKind.GAUGE, 1.0))
    odd: list[Callable[[], float | str]] = [broken, lambda: 10**400, lambda: "x"]
    for number, measure in enumerate(odd):
        name = MetricName(f"odd-{number}", "app")
        found[name] = Metric(name, measure)
    points = TelemetryPoints(0).of(found, subscription("*"), 1)
    assert [point.name for point in points] == ["org.apache.kafka.producer.fine"]


def test_a_sum_that_began_anew_is_no_negative_one() -> None:
    points, wanted = TelemetryPoints(5), subscription("*")
    told(points, wanted, 10, ("send-total", MetricKind.COUNTER, 9.0))
    found = told(points, wanted, 20, ("send-total", MetricKind.COUNTER, 2.0))
    assert found == [("producer.send.total", 2.0, Temporality.DELTA, 10)]
