"""Metrics for Prometheus, by its own client library (the extra `prometheus`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kclient.errors import MissingExtraError
from kclient.metrics.exported import Exported
from kclient.metrics.metric import MetricKind
from kclient.metrics.reporter import MetricsReporter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kclient.metrics.metric import Metric, MetricName

__all__ = ["PrometheusReporter", "prometheus_name"]

_MOST_PARTICULAR: Final = ("partition", "topic", "node-id")
_shared: WeakKeyDictionary[Any, Exported] = WeakKeyDictionary()
"""One collector for each registry: what several clients have under the same name is one family."""


def prometheus_name(name: MetricName) -> str:
    """`kafka_producer_topic_record_send_total`: group and name, and what it is of where the group does not say that."""
    words = [word for word in name.group.split("-") if word != "metrics"]
    of = next((tag.removesuffix("-id") for tag in _MOST_PARTICULAR if tag in name.tags), None)
    if of is not None and of not in words:
        words.append(of)
    return "_".join(("kafka", *words, *name.name.split("-")))


class PrometheusReporter(MetricsReporter):
    """Has a client's metrics collected by a registry of `prometheus_client` (`metric.reporters=prometheus`).

    Serve that registry as you like, `prometheus_client.start_http_server(9400)` does it. Metrics are named
    `kafka_producer_topic_record_send_total`: group and name; the tags are labels, with `_` for `-`. What has no value
    yet, and text, is left out. Several clients may report to the same registry: their `client_id` tells them apart.

    Args:
        registry: A `prometheus_client.CollectorRegistry`; the library's default one if None.

    Raises:
        MissingExtraError: `prometheus_client` is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingExtraError("prometheus_client", "prometheus", "metric.reporters=prometheus") from None
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._metrics: dict[MetricName, Metric] = {}

    def init(self, metrics: Sequence[Metric]) -> None:
        for metric in metrics:
            self.metric_change(metric)

    def metric_change(self, metric: Metric) -> None:
        self._metrics[metric.name] = metric
        _exported_to(self._registry).add(metric)

    def metric_removal(self, metric: Metric) -> None:
        found = self._metrics.pop(metric.name, None)
        if found is not None:
            _exported_to(self._registry).remove(found)

    def close(self) -> None:
        for metric in list(self._metrics.values()):
            self.metric_removal(metric)


def _exported_to(registry: Any) -> Exported:
    found = _shared.get(registry)
    if found is None:
        found = _shared[registry] = Exported(lambda metric: prometheus_name(metric.name))
        registry.register(_collector(found))
    return found


def _collector(exported: Exported) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class _Collected(Collector):
        def describe(self) -> list[Any]:
            return []  # what there is may be anything later: nothing is computed to register it

        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for name in exported.names():
                values = exported.values(name)
                if not values:
                    continue
                first = values[0][0]
                labels = [tag.replace("-", "_") for tag in first.name.tags]
                kind = CounterMetricFamily if first.kind is MetricKind.COUNTER else GaugeMetricFamily
                family = kind(name, first.name.description, labels=labels)
                for metric, value in values:
                    family.add_metric(list(metric.name.tags.values()), value)
                yield family

    return _Collected()
