"""The metrics of all clients that report to the same place, by the name that they have there."""

from __future__ import annotations

from math import isnan
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.metrics.metric import Metric

__all__ = ["Exported"]


class Exported:
    """What is reported now. Metrics come and go in any thread, and are read in others.

    Args:
        naming: What a metric is called there.
    """

    def __init__(self, naming: Callable[[Metric], str]) -> None:
        self._naming = naming
        self._lock = Lock()
        self._metrics: dict[str, dict[int, Metric]] = {}

    def add(self, metric: Metric) -> str | None:
        """Report a metric; its name there if nothing of that name has been reported before."""
        name = self._naming(metric)
        with self._lock:
            new = name not in self._metrics
            self._metrics.setdefault(name, {})[id(metric)] = metric
        return name if new else None

    def remove(self, metric: Metric) -> None:
        """Report a metric no more."""
        with self._lock:
            self._metrics.get(self._naming(metric), {}).pop(id(metric), None)

    def names(self) -> list[str]:
        """All names."""
        with self._lock:
            return list(self._metrics)

    def values(self, name: str) -> list[tuple[Metric, float]]:
        """The metrics of a name that have a number now, and that."""
        with self._lock:
            metrics = list(self._metrics.get(name, {}).values())
        found = [(metric, metric.value) for metric in metrics]
        return [(metric, float(value)) for metric, value in found if not isinstance(value, str) and not isnan(value)]
