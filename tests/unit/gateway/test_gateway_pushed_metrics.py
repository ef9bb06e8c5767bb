"""What clients push is read as OpenTelemetry's own package writes it, and kept for as long as they are there."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from prometheus_client.parser import text_string_to_metric_families

from kclient.errors import CorruptRecordError, ErrorCode, KafkaError
from kclient.gateway.telemetry import ClientInstances, PushedMetrics, PushingClient
from kclient.gateway.telemetry.instances import ZERO_ID, ClientInstance, subscription_id_of, told_id
from kclient.gateway.telemetry.java_order import java_hash, java_order
from kclient.gateway.telemetry.otlp import PointKind, PushedPoint, PushedResource, read_points
from kclient.gateway.telemetry.subscriptions import WantedMetrics
from kclient.memory_ledger import LimitedAccount, MemoryLedger

CLIENT = PushingClient("c", "soft", "1.0", "10.0.0.1", "4321")
WANTED = WantedMetrics(("*",), 30_000, 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
KINDS = {
    (False, 0): PointKind.GAUGE,
    (True, 1): PointKind.COUNTER_DELTA,
    (True, 2): PointKind.COUNTER,
    (False, 1): PointKind.SUM_DELTA,
    (False, 2): PointKind.SUM,
}


def account(total: int = 1 << 30) -> LimitedAccount:
    return MemoryLedger().part(total).limited("metrics", 1)


def me(number: int) -> bytes:
    return number.to_bytes(16, "big")


def message(field: int, data: bytes) -> bytes:
    """A field of a message that is itself one."""
    length, found = len(data), b""
    while length > 0x7F:
        found, length = found + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([field << 3 | 2]) + found + bytes([length]) + data


# What is read


@given(
    st.lists(
        st.tuples(
            TEXTS,
            st.sampled_from([*KINDS]),
            st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
            st.dictionaries(TEXTS, TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        ),
        max_size=4,
    ),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)
def test_points_are_read(points: list[tuple[str, tuple[bool, int], Any, dict[str, Any]]], resource: Any) -> None:
    data = MetricsData()
    described = data.resource_metrics.add()
    scope = described.scope_metrics.add()
    scope.scope.name = "what nobody looks at"
    for key, value in resource.items():
        described.resource.attributes.add(key=key).value.string_value = value
    for name, (monotonic, temporality), value, attributes in points:
        metric = scope.metrics.add(name=name, description="d", unit="u")
        if temporality:
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = monotonic, temporality
        point = (metric.sum if temporality else metric.gauge).data_points.add(time_unix_nano=7)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        for key, told in attributes.items():
            field = "bool_value" if isinstance(told, bool) else "int_value" if isinstance(told, int) else "string_value"
            setattr(point.attributes.add(key=key).value, field, told)
    found = [each for each in read_points(data.SerializeToString()) if each is not None]
    assert found[0] == PushedResource(tuple(resource.items()))
    assert found[1:] == [
        PushedPoint(name, KINDS[kind], tuple((key, shown(told)) for key, told in attributes.items()), value)
        for name, kind, value, attributes in points
    ]


def shown(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_what_has_no_single_value_is_counted() -> None:
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="h").histogram.data_points.add(count=3)
    metrics.add(name="e").exponential_histogram.data_points.add(count=3)
    metrics.add(name="s").summary.data_points.add(count=3)
    metrics.add(name="none").gauge.data_points.add(flags=1)
    pushed = PushedMetrics(lambda: 100, account())
    list(pushed.take(me(1), CLIENT, 1000, read_points(data.SerializeToString()), 0.0))
    assert pushed.left_out == {"series": 0, "labels": 0, "distribution": 3}


@pytest.mark.slow
def test_nobody_is_kept_waiting_by_what_says_nothing() -> None:
    """Whatever the bytes are, a step of reading them is short."""
    size = 200_000
    many = b"\x0a\x00" * (size // 2)

    for data in (
        many,
        message(1, many),
        message(1, b"\x12\x00" * (size // 2)),
        message(1, message(2, many)),
        message(1, message(2, b"\x12\x00" * (size // 2))),
        message(1, message(2, message(2, many))),
        message(1, message(2, message(2, b"\x2a\x00" * (size // 2)))),
        message(1, message(2, message(2, message(7, many)))),
        message(1, message(2, message(2, message(9, many)))),
        message(1, message(2, message(2, b"\x08\x01" * (size // 2)))),
    ):
        assert sum(1 for _ in read_points(data)) > size // 2 // 300
    for data in (message(1, message(1, many)), message(1, message(2, message(2, message(5, message(1, many)))))):
        with pytest.raises(CorruptRecordError, match="256 fields and more"):
            list(read_points(data))


@pytest.mark.slow
def test_what_is_within_labels_keeps_nobody_waiting() -> None:
    """A point, or what is said of a resource, is read at once: it has no more fields within its fields than it may."""
    value = message(2, b"\x28\x00" * 7)
    label = message(7, value * 200)
    point = message(1, message(2, message(2, message(5, message(1, b"\x21" + bytes(8) + label * 200)))))
    resource = message(1, message(1, message(1, value * 200) * 200))
    for data in (point, resource):
        with pytest.raises(CorruptRecordError, match="2048 fields within"):
            list(read_points(data))
    empty = message(1, message(1, b"\x28\x00" * 250) * 250)
    assert sum(each is None for each in read_points(empty)) > 100, "what is said of a resource in very many pieces"
    many = message(1, b"\x21" + bytes(8) + message(7, message(1, b"k") + message(2, message(1, b"v"))) * 250)
    points = message(1, message(2, message(2, message(1, b"n") + message(5, many * 50))))
    assert sum(each is None for each in read_points(points)) >= 50
    assert sum(isinstance(each, PushedPoint) for each in read_points(points)) == 50


@given(st.binary(max_size=300), st.integers(0, 299), st.integers(0, 255))
def test_damage_is_told_as_such(garbage: bytes, at: int, byte: int) -> None:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="n")
    metric.gauge.data_points.add(as_double=1.5).attributes.add(key="k").value.string_value = "v"
    whole = bytearray(data.SerializeToString())
    whole[at % len(whole)] = byte
    for each in (garbage, bytes(whole), bytes(whole[: at % len(whole)])):
        with contextlib.suppress(CorruptRecordError):
            list(read_points(each))


# What is kept


def texts(pushed: PushedMetrics, now: float) -> dict[str, Any]:
    families = text_string_to_metric_families(pushed.exposition(now)().decode())
    return {family.name: (family.type, [sample.value for sample in family.samples]) for family in families}


def take(pushed: PushedMetrics, number: int, points: Iterable[Any], now: float) -> None:
    for _ in pushed.take(me(number), CLIENT, 30_000, points, now):
        pass


def points(kind: PointKind, *values: float) -> list[PushedPoint]:
    return [PushedPoint("x.y", kind, (), value) for value in values]


@pytest.mark.parametrize(
    ("kind", "last", "told"),
    [
        (PointKind.GAUGE, 3, ("gauge", "client_x_y")),
        (PointKind.SUM, 3, ("gauge", "client_x_y")),
        (PointKind.SUM_DELTA, 6, ("gauge", "client_x_y")),
        (PointKind.COUNTER, 3, ("counter", "client_x_y")),
        (PointKind.COUNTER_DELTA, 6, ("counter", "client_x_y")),
    ],
)
def test_sums_add_up(kind: PointKind, last: float, told: tuple[str, str]) -> None:
    pushed = PushedMetrics(lambda: 100, account())
    for value in (1.0, 2.0, 3.0):
        take(pushed, 1, points(kind, value), 0.0)
    assert texts(pushed, 0.0)[told[1]] == (told[0], [last])


def test_values_go_with_their_client_and_those_that_are_not_pushed_any_more() -> None:
    pushed, memory = PushedMetrics(lambda: 100, held := account()), held
    both = [*points(PointKind.GAUGE, 1.0), PushedPoint("z", PointKind.GAUGE, (("topic", "t"),), 1.0)]
    take(pushed, 1, [PushedResource((("group.id", "g"),)), *both], 0.0)
    take(pushed, 2, both, 50.0)
    assert (pushed.clients, pushed.series) == (2, 6)
    take(pushed, 1, points(PointKind.GAUGE, 1.0), 89.0)
    assert len(texts(pushed, 90.0)["client_z"][1]) == 2, "until the client's next push"
    take(pushed, 1, points(PointKind.GAUGE, 1.0), 100.0)
    assert len(texts(pushed, 100.0)["client_z"][1]) == 1
    assert len(texts(pushed, 140.0)["client_x_y"][1]) == 1, "one has not been heard of for 90 s"
    assert texts(pushed, 190.0) == {}
    assert (pushed.clients, pushed.series, memory.held) == (0, 0, 0)


def test_no_client_can_spoil_the_page() -> None:
    pushed = PushedMetrics(lambda: 1000, account())
    hostile = [
        PushedPoint("kclient_gateway_topics", PointKind.GAUGE, (), 1.0),
        PushedPoint("", PointKind.GAUGE, (("", "x"), ("1", "x"), ("__name__", "x"), ("client_id", "other")), math.nan),
        PushedPoint('a"{}\n# TYPE b counter', PointKind.COUNTER, (('l"\n', 'v"\\\n'),), math.inf),
        PushedPoint("same.total", PointKind.GAUGE, (), -math.inf),
        PushedPoint("same", PointKind.COUNTER, (("k", "v"),), 1.0),
        PushedPoint("long", PointKind.GAUGE, (("k", "v" * 5000),), 1.0),
    ]
    take(pushed, 1, [PushedResource((("r" * 5000, "x"), ("client_id", "other"))), *hostile], 0.0)
    text = pushed.exposition(0.0)().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families.keys() == {
        "kclient_gateway_client_info", "client_kclient_gateway_topics", "client_", "client_a______TYPE_b_counter",
        "client_same_total",
    }  # fmt: skip
    assert families["client_same_total"].type in ("untyped", "unknown")
    (sample,) = families["client_"].samples
    assert sample.labels == {
        "client_id": "c", "client_instance_id": told_id(me(1)), "a": "x", "a1": "x", "a__name__": "x",
        "exported_client_id": "other",
    }  # fmt: skip
    (sample,) = families["client_a______TYPE_b_counter"].samples
    assert sample.labels["l__"] == 'v"\\\n'
    assert pushed.left_out["labels"] == 2


def test_memory_bounds_it() -> None:
    held = account(64 << 10)
    pushed = PushedMetrics(lambda: 10**9, held)
    for number in range(100):
        rows = [PushedPoint(f"m{row}", PointKind.GAUGE, (("topic", "t" * 100),), 1.0) for row in range(100)]
        take(pushed, number, rows, 0.0)
    assert held.held <= 64 << 10
    assert pushed.left_out["series"] > 9_000


def test_a_push_costs_what_it_is_long() -> None:
    """A long name is read once for all points, and nothing is made of what is too long to be kept."""
    pushed = PushedMetrics(lambda: 100, account())
    name = "\xe9" * 400_000
    rows = [PushedPoint(name, PointKind.GAUGE, (), 1.0)] * 5_000
    began = time.process_time()
    take(pushed, 1, rows, 0.0)
    take(pushed, 1, [PushedPoint("x", PointKind.GAUGE, ((name, name),), 1.0)] * 5_000, 0.0)
    assert time.process_time() - began < 2, "and not minutes"
    assert pushed.left_out["labels"] == 10_000
    long = "x." * 2_000
    began = time.process_time()
    take(pushed, 1, [PushedPoint(long, PointKind.GAUGE, (), 1.0)] * 50_000, 0.0)
    assert time.process_time() - began < 2
    assert pushed.series == 2


def test_few_values_are_pushed_at_a_small_cost() -> None:
    pushed = PushedMetrics(lambda: 10**6, account())
    take(pushed, 1, [PushedPoint(f"m{row}", PointKind.GAUGE, (), 1.0) for row in range(20_000)], 0.0)
    steps = pushed.take(me(1), CLIENT, 30_000, points(PointKind.GAUGE, 1.0), 5.0)
    assert list(steps) == [], "what it pushes no more is not looked for each time"
    assert sum(1 for _ in pushed.take(me(1), CLIENT, 30_000, points(PointKind.GAUGE, 1.0), 94.0)) > 300
    assert pushed.series == 2


def test_the_texts_of_a_client_count_and_are_bounded() -> None:
    held = account(64 << 20)
    pushed = PushedMetrics(lambda: 10**9, held)
    wordy = PushingClient("c", "s" * 30_000, "1" * 30_000, "10.0.0.1", None)
    for number in range(100):
        for _ in pushed.take(me(number), wordy, 30_000, [PushedResource((("r", "x"),))], 0.0):
            pass
    page = pushed.exposition(0.0)().decode()
    assert len(page) < 20_000
    assert page.count('r="x"') == 100, "what it says of itself is told all the same"
    assert pushed.left_out["labels"] == 100
    long_id = PushingClient("\u20ac" * 3_000, "s", "1", "10.0.0.1", None)
    rows = [PushedPoint(f"m{row}", PointKind.GAUGE, (("k", "v" * 900),), 1.0) for row in range(10_000)]
    for _ in pushed.take(me(200), long_id, 30_000, [PushedResource((("r" * 2_000, "x"),)), *rows], 0.0):
        pass
    assert len(pushed.exposition(0.0)()) <= held.held <= 64 << 20
    assert pushed.left_out["series"] > 1_000
    assert pushed.exposition(1e6)() == b""
    assert held.held == 0
    another = PushingClient("c" * 4_000, "s", "1", "10.0.0.1", None)
    for _ in pushed.take(me(201), another, 30_000, [PushedPoint("m", PointKind.GAUGE, (("k", "v" * 90),), 1.0)], 1e6):
        pass
    assert pushed.left_out["labels"] == 102, "the name and all labels are 4,096 characters at most"


def test_there_is_no_memory_for_what_clients_say_of_themselves_without_end() -> None:
    held = account(64 << 10)
    pushed = PushedMetrics(lambda: 10**9, held)
    for number in range(100):
        take(pushed, number, [PushedResource((("r", "x" * 3_000),))], 0.0)
    assert held.held <= (64 << 10) * 3 / 8, "which is all that may be refused"


def test_values_leave_room_for_clients() -> None:
    held = account(1 << 20)
    pushed, instances = PushedMetrics(lambda: 10**9, held), ClientInstances(held)
    for number in range(50):
        take(pushed, number, [PushedPoint(f"m{row}", PointKind.GAUGE, (), 1.0) for row in range(100)], 0.0)
    assert pushed.left_out["series"]
    for number in range(1, 51):
        heard(instances, number, 0.0)
    assert len(instances) == 50


# Who may do what when


def heard(instances: ClientInstances, number: int, now: float, wanted: WantedMetrics = WANTED) -> ClientInstance:
    return instances.heard(me(number), CLIENT, wanted, now)


def code_of(call: Any) -> int:
    try:
        call()
    except KafkaError as error:
        return int(error.code or 0)
    return 0


def test_a_client_asks_and_pushes_at_its_pace() -> None:
    one = heard(ClientInstances(account()), 1, 100.0)

    def push(now: float, *, last: bool = False) -> int:
        return code_of(lambda: one.push(now, one.subscription_id, 0, 1, 10, terminating=last))

    def ask(now: float) -> int:
        return code_of(lambda: one.ask(now))

    throttled = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert ask(100.0) == 0
    assert ask(129.9) == throttled
    assert push(115.0) == 0, "the first push after a question may come at any time"
    assert push(144.9) == throttled
    assert ask(144.9) == throttled
    assert push(145.0) == 0
    assert push(150.0, last=True) == 0
    assert push(300.0) == ErrorCode.INVALID_REQUEST
    assert push(300.0) == 0, "as with Kafka, where only the request before counts"


def test_who_is_not_heard_of_is_forgotten() -> None:
    held = account()
    instances = ClientInstances(held)
    one = heard(instances, 1, 0.0)
    assert heard(instances, 1, 89.0) is one
    assert heard(instances, 1, 170.0, WANTED._replace(version=2)) is not one, "something else is wanted"
    heard(instances, 2, 170.0)
    assert len(instances) == 2
    heard(instances, 2, 250.0)
    heard(instances, 3, 270.0)
    assert len(instances) == 2
    for number in (2, 3, 4):
        instances.forget(me(number))
    assert (len(instances), held.held) == (0, 0)


def test_there_are_no_more_clients_than_there_is_room_for() -> None:
    held = account(20_000)
    instances = ClientInstances(held)
    for number in range(1, 100):
        heard(instances, number, 0.0)
    assert 0 < len(instances) < 30
    assert held.held <= 20_000
    some = iter([me(99), me(99), me(100)])
    known = ClientInstances(account(), lambda: next(some))
    known.heard(me(99), CLIENT, WANTED, 0.0)
    assert known.id_of(ZERO_ID) == me(100)
    assert known.id_of(me(5)) == me(5)


def test_the_order_and_the_number_are_java_s() -> None:
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == 1 << 31
    assert java_hash("\U0001f600") == 1772899
    assert java_order(["zebra", "apple", "mango", "zebra"]) == ["zebra", "apple", "mango"]
    assert java_order(["Aa", "BB"]) == ["Aa", "BB"], "of the same hash: in the order in which they came"
    first = subscription_id_of(WANTED, me(1))
    assert -(2**31) <= first < 2**31
    assert first ^ subscription_id_of(WANTED, me(2)) == 3
