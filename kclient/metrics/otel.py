"""Metrics for OpenTelemetry, by its own API (the extra `otel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kclient.errors import MissingExtraError
from kclient.metrics.exported import Exported
from kclient.metrics.metric import MetricKind
from kclient.metrics.reporter import MetricsReporter
from kclient.metrics.telemetry_names import attributes, telemetry_name
from kclient.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kclient.metrics.metric import Metric, MetricName

__all__ = ["OpenTelemetryReporter"]


class _Instruments:
    """What one meter provider observes, of all clients that report to it."""

    def __init__(self, meter: Any, observation: Callable[..., Any]) -> None:
        self._meter = meter
        self._observation = observation
        self._exported = Exported(lambda metric: telemetry_name(metric.name))

    def add(self, metric: Metric) -> None:
        if isinstance(metric.value, str):
            return
        new = self._exported.add(metric)
        if new is not None:
            counts = metric.kind is MetricKind.COUNTER
            make = self._meter.create_observable_counter if counts else self._meter.create_observable_gauge
            make(new, callbacks=[lambda _: self._observe(new)], description=metric.name.description)

    def remove(self, metric: Metric) -> None:
        self._exported.remove(metric)

    def _observe(self, name: str) -> Iterable[Any]:
        return [self._observation(value, attributes(metric.name)) for metric, value in self._exported.values(name)]


_shared: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


class OpenTelemetryReporter(MetricsReporter):
    """Has a client's metrics observed by a meter provider of OpenTelemetry (`metric.reporters=otel`).

    They have the names of KIP-714, such as `org.apache.kafka.producer.record.send.total`, and their tags as
    attributes, with `_` for `-`; what only grows is an observable counter, all else an observable gauge. What has no
    value yet, and text, is left out.

    Args:
        meter_provider: An `opentelemetry.metrics.MeterProvider`; the global one if None.

    Raises:
        MissingExtraError: `opentelemetry-api` is not installed.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError:
            raise MissingExtraError("opentelemetry-api", "otel", "metric.reporters=otel") from None
        self._provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
        self._observation = metrics.Observation
        self._metrics: dict[MetricName, Metric] = {}

    def init(self, metrics: Sequence[Metric]) -> None:
        for metric in metrics:
            self.metric_change(metric)

    def metric_change(self, metric: Metric) -> None:
        self._metrics[metric.name] = metric
        self._instruments().add(metric)

    def metric_removal(self, metric: Metric) -> None:
        found = self._metrics.pop(metric.name, None)
        if found is not None:
            self._instruments().remove(found)

    def close(self) -> None:
        for metric in list(self._metrics.values()):
            self.metric_removal(metric)

    def _instruments(self) -> _Instruments:
        found = _shared.get(self._provider)
        if found is None:
            meter = self._provider.get_meter("kclient", __version__)
            found = _shared[self._provider] = _Instruments(meter, self._observation)
        return found
