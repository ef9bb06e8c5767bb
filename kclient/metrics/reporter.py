"""Whom metrics are reported to (`metric.reporters`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.metrics.metric import Metric

__all__ = ["MetricsReporter"]


class MetricsReporter:
    """Is told which metrics a client has, and reads their values when it wants (`metric.reporters`).

    Any object with these four methods will do. They run in the client's event loop and must not block; an exception is
    logged and ignored. A metric's `value` may be read at any time, in any thread. Each client needs an object of its
    own, which a class gives it: `close` is not told whose end it is.
    """

    def init(self, metrics: Sequence[Metric]) -> None:
        """The client has started, and has these metrics."""

    def metric_change(self, metric: Metric) -> None:
        """There is another metric, of a topic, a partition or a broker; at most a second after it has come."""

    def metric_removal(self, metric: Metric) -> None:
        """A metric is gone, with what it was of."""

    def close(self) -> None:
        """The client is closed: nothing is told any more."""
