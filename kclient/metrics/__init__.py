"""The clients' metrics: what they are called, how they are computed over windows of time, and who is told of them.

This room does no I/O and reads no clock but the one that it is given:

      MetricWindows, MetricTally   numbers since the start and for the last windows (`windows`)
      MetricName, Metric, Metrics  what `metrics()` gives (`metric`)
      MetricsRegistry    what a client's parts define (`registry`)
      MetricsReporter    what `metric.reporters` names (`reporter`)
      Traffic            requests and connections, by broker (`traffic`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.metrics.metric import Metric as Metric
    from kclient.metrics.metric import MetricKind as MetricKind
    from kclient.metrics.metric import MetricName as MetricName
    from kclient.metrics.metric import Metrics as Metrics
    from kclient.metrics.otel import OpenTelemetryReporter as OpenTelemetryReporter
    from kclient.metrics.prometheus import PrometheusReporter as PrometheusReporter
    from kclient.metrics.reporter import MetricsReporter as MetricsReporter

_EXPORTS = {
    "Metric": "kclient.metrics.metric",
    "MetricKind": "kclient.metrics.metric",
    "MetricName": "kclient.metrics.metric",
    "Metrics": "kclient.metrics.metric",
    "MetricsReporter": "kclient.metrics.reporter",
    "OpenTelemetryReporter": "kclient.metrics.otel",
    "PrometheusReporter": "kclient.metrics.prometheus",
}

__all__ = [
    "Metric",
    "MetricKind",
    "MetricName",
    "Metrics",
    "MetricsReporter",
    "OpenTelemetryReporter",
    "PrometheusReporter",
]

if not TYPE_CHECKING:
    from kclient.lazy_exports import lazily

    __getattr__, __dir__ = lazily(__name__, _EXPORTS)
