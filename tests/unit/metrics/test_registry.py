"""What `metrics()` gives, and what reporters are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.metrics import Metric, MetricKind, MetricName, MetricsReporter
from kclient.metrics.registry import MetricsRegistry
from kclient.metrics.resolve import resolve_reporters
from kclient.metrics.telemetry_names import attributes, telemetry_name
from kclient.metrics.windows import MetricWindows


class Noting(MetricsReporter):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, metrics: Sequence[Metric]) -> None:
        self.calls.append(("init", [metric.name.name for metric in metrics]))

    def metric_change(self, metric: Metric) -> None:
        self.calls.append(("new", dict(metric.name.tags)))

    def metric_removal(self, metric: Metric) -> None:
        self.calls.append(("gone", dict(metric.name.tags)))

    def close(self) -> None:
        self.calls.append(("close", None))


class Failing(MetricsReporter):
    def init(self, metrics: Sequence[Metric]) -> None:
        raise RuntimeError("no")


def registry(*reporters: MetricsReporter) -> tuple[MetricsRegistry, list[str]]:
    made = MetricsRegistry("me", MetricWindows(lambda: 0.0), reporters=reporters)
    topics: list[str] = []

    def of_client() -> Iterator[Metric]:
        yield made.group("producer-metrics").gauge("size", "A size", lambda: 7)
        yield made.group("producer-metrics").gauge("name", "A name", lambda: "x")
        yield made.group("other-metrics").gauge("twice", "One", lambda: 1)
        yield made.group("producer-metrics").counter("twice", "Two", lambda: 2)

    made.define(of_client)
    made.family(lambda: topics, lambda topic: [made.group("t-metrics", topic=topic).gauge("size", "", lambda: 8)])
    return made, topics


def test_metrics_are_found_by_name_group_and_tags() -> None:
    made, topics = registry()
    topics.append("a")
    metrics = made.metrics()
    assert metrics.value("size") == 7
    assert metrics.value("size", topic="a") == 8
    assert metrics.value("twice", "other-metrics") == 1
    assert metrics.find("twice", "producer-metrics").kind is MetricKind.COUNTER
    name = MetricName("size", "t-metrics", tags={"topic": "a", "client-id": "me"})
    assert metrics[name].value == 8
    assert metrics[name].name.tags == {"client-id": "me", "topic": "a"}
    with pytest.raises(LookupError, match="several metrics 'twice': name the group, one of other-metrics, producer"):
        metrics.value("twice")
    with pytest.raises(LookupError, match="no metric 'size' with the tags"):
        metrics.value("size", topic="b")
    with pytest.raises(LookupError, match="no metric 'nothing' without tags"):
        metrics.find("nothing")
    with pytest.raises(TypeError, match="is text"):
        metrics.value("name")
    assert metrics.find("name").value == "x"
    assert metrics.value("count", "kafka-metrics-count") == len(metrics)


def test_what_was_given_does_not_change() -> None:
    made, topics = registry()
    before = made.metrics()
    topics.append("a")
    assert len(made.metrics()) == len(before) + 1
    topics.clear()
    assert made.metrics().keys() == before.keys()


def test_reporters_are_told_of_what_comes_and_goes() -> None:
    noting = Noting()
    made, topics = registry(Failing(), noting)
    made.report()
    assert [call for call, _ in noting.calls] == ["init"]
    assert "size" in noting.calls.pop()[1]
    topics.append("a")
    made.report()
    made.report()
    topics.clear()
    made.report()
    made.close()
    made.close()
    made.report()
    tags = {"client-id": "me", "topic": "a"}
    assert noting.calls == [("new", tags), ("gone", tags), ("close", None)]


def test_a_reporter_is_any_object_with_the_methods() -> None:
    class Plain:
        def init(self, metrics: object) -> None: ...
        def metric_change(self, metric: object) -> None: ...
        def metric_removal(self, metric: object) -> None: ...
        def close(self) -> None: ...

    plain = Plain()
    found: list[object] = list(resolve_reporters([plain, Noting]))
    assert found[0] is plain
    assert isinstance(found[1], Noting)
    with pytest.raises(ConfigError, match="has no init"):
        resolve_reporters([object()])


def test_a_class_that_needs_arguments_is_no_reporter() -> None:
    class Needs(Noting):
        def __init__(self, place: str) -> None:
            super().__init__()
            self.place = place

    with pytest.raises(ConfigError, match="give an object instead"):
        resolve_reporters([Needs])


def test_names_outside_the_client_are_those_of_kip_714() -> None:
    name = MetricName("record-send-rate", "producer-topic-metrics", tags={"client-id": "me", "node-id": "node-1"})
    assert telemetry_name(name) == "org.apache.kafka.producer.topic.record.send.rate"
    assert attributes(name) == {"client_id": "me", "node_id": "node-1"}
    assert attributes(name, client_id=False) == {"node_id": "node-1"}


def test_what_has_come_back_is_told_anew() -> None:
    """A partition that was revoked and assigned again within a second has other numbers under the same name."""
    noting = Noting()
    made, _ = registry(noting)
    states: list[list[float]] = [[1.0]]
    group = made.group("p-metrics", topic="a")
    made.family(lambda: map(id, states), lambda _: [group.gauge("lag", "", partial(states[0].__getitem__, 0))])
    made.report()
    old = states.pop()
    states.append([2.0])
    noting.calls.clear()
    made.report()
    tags = {"client-id": "me", "topic": "a"}
    assert noting.calls == [("gone", tags), ("new", tags)]
    assert made.metrics().value("lag", topic="a") == 2.0
    assert old == [1.0]


def test_nothing_is_put_together_where_nothing_has_changed() -> None:
    made, topics = registry()
    topics.append("a")
    before = made.metrics().find("size", topic="a")
    names = iter(made.metrics())
    made.metrics()
    assert len(list(names)) == len(made.metrics())
    topics.append("b")
    assert made.metrics().find("size", topic="a") is before
    assert made.metrics().value("size", topic="b") == 8
    assert made.metrics().value("count", "kafka-metrics-count") == len(made.metrics())
