"""Calls that all clients have about metrics of the application (KIP-1076)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.metrics.metric import Metric
    from kclient.metrics.registry import MetricsRegistry


class OwnMetrics:
    """The part of a client that takes metrics of the application."""

    def _metrics_registry(self) -> MetricsRegistry:
        raise NotImplementedError

    def register_metric_for_subscription(self, metric: Metric) -> None:
        """Have a metric of the application sent to the cluster with the client's own, where that wants it (KIP-1076).

        It is named `org.apache.kafka.GROUP.NAME` there, with dots for `-` and without `-metrics`. A metric whose name,
        group and tags are those of one of the client's own is left out. `metrics` does not tell of it.

        Args:
            metric: The metric; its value is asked for when metrics are sent, in another thread.

        Raises:
            TypeError: It is no `kclient.metrics.Metric`.
        """
        self._metrics_registry().subscribe(metric)

    def unregister_metric_from_subscription(self, metric: Metric) -> None:
        """Have a metric of the application sent no more; one that was not registered changes nothing.

        Args:
            metric: The metric, or another one of the same name.

        Raises:
            TypeError: It is no `kclient.metrics.Metric`.
        """
        self._metrics_registry().unsubscribe(metric)
