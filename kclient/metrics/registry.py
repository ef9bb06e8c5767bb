"""The metrics of one client: defined by its parts, made when somebody asks, and told to reporters.

A part says which metrics it has, as a function: it is called when the metrics are asked for, or reported, and not
before. Families come and go, with topics, partitions and brokers; they are looked through at the same time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from kclient.arguments import shown
from kclient.metrics.metric import CLIENT_ID, Metric, MetricKind, MetricName, Metrics
from kclient.metrics.resolve import resolve_reporters
from kclient.metrics.windows import MetricTally, MetricWindows, Percentiles, highest_of, mean_of, percentile_of, rate_of
from kclient.version import __version__

if TYPE_CHECKING:
    from kclient.metrics.metric import Value
    from kclient.metrics.reporter import MetricsReporter

__all__ = ["MetricGroup", "MetricsConfig", "MetricsRegistry", "registry_for"]

logger: logging.Logger = logging.getLogger("kclient.metrics")

_LEVELS: Final = ("INFO", "DEBUG", "TRACE")
_PERCENTILES: Final = (50, 95, 99)
_HOUR: Final = 3600.0

_Tallies = Callable[[], Sequence[MetricTally]]
"""Which numbers a metric sums up."""


class MetricsConfig(Protocol):
    """The settings of metrics; every client's configuration has them."""

    @property
    def client_id(self) -> str:
        """Name of the client."""
        ...

    @property
    def metric_reporters(self) -> Sequence[Any]:
        """Who is told of metrics."""
        ...

    @property
    def metrics_num_samples(self) -> int:
        """How many windows count."""
        ...

    @property
    def metrics_sample_window_ms(self) -> int:
        """How long one is."""
        ...

    @property
    def metrics_recording_level(self) -> str:
        """`INFO`, `DEBUG` or `TRACE`."""
        ...


class MetricGroup:
    """Makes the metrics of one group and the same tags.

    Args:
        windows: What they are computed over.
        group: Its name.
        tags: Of each of them.
    """

    def __init__(self, windows: MetricWindows, group: str, tags: Mapping[str, str]) -> None:
        self._windows = windows
        self._group = group
        self._tags = tags

    def gauge(self, name: str, text: str, measure: Callable[[], Value]) -> Metric:
        """A value that goes up and down."""
        return self._made(name, text, measure, MetricKind.GAUGE)

    def counter(self, name: str, text: str, measure: Callable[[], Value]) -> Metric:
        """A number that only grows."""
        return self._made(name, text, measure, MetricKind.COUNTER)

    def meter(
        self, name: str, text: str, tallies: _Tallies, *, by_count: bool = False, hourly: bool = False
    ) -> Iterator[Metric]:
        """A rate and a total.

        Args:
            name: The beginning of both names.
            text: What is counted, in the plural.
            tallies: The numbers.
            by_count: Whether values are counted, instead of summed up.
            hourly: Whether the rate is one per hour, instead of per second.
        """
        seconds, suffix = (_HOUR, "rate-per-hour") if hourly else (1.0, "rate")
        yield self.gauge(
            f"{name}-{suffix}",
            f"The average number of {text} per {'hour' if hourly else 'second'}",
            lambda: rate_of(self._windows, *tallies(), by_count=by_count, seconds=seconds),
        )
        yield self.total(f"{name}-total", f"The total number of {text}", tallies, by_count=by_count)

    def total(self, name: str, text: str, tallies: _Tallies, *, by_count: bool = False) -> Metric:
        """How much or how often since the start."""

        def measure() -> float:
            return float(sum(tally.count if by_count else tally.total for tally in tallies()))

        return self.counter(name, text, measure)

    def average(self, name: str, text: str, tallies: _Tallies) -> Metric:
        """The average of the windows that count."""
        return self.gauge(name, f"The average {text}", lambda: mean_of(*tallies()))

    def maximum(self, name: str, text: str, tallies: _Tallies) -> Metric:
        """The greatest of the windows that count."""
        return self.gauge(name, f"The maximum {text}", lambda: highest_of(*tallies()))

    def extent(self, name: str, text: str, tallies: _Tallies) -> Iterator[Metric]:
        """An average and a maximum."""
        yield self.average(f"{name}-avg", text, tallies)
        yield self.maximum(f"{name}-max", text, tallies)

    def percentiles(self, name: str, text: str, tallies: Callable[[], Sequence[Percentiles]]) -> Iterator[Metric]:
        """The 50th, 95th and 99th percentile; the Java client has none."""
        for percent in _PERCENTILES:
            yield self._percentile(f"{name}-p{percent}", f"The {percent}th percentile of the {text}", tallies, percent)

    def _percentile(self, name: str, text: str, tallies: Callable[[], Sequence[Percentiles]], percent: int) -> Metric:
        return self.gauge(name, text, lambda: percentile_of(percent / 100, *tallies()))

    def _made(self, name: str, text: str, measure: Callable[[], Value], kind: MetricKind) -> Metric:
        def looked() -> Value:
            self._windows.look()
            return measure()

        return Metric(MetricName(name, self._group, text, self._tags), looked, kind)


class _Family:
    """Metrics that come and go with what they are of."""

    def __init__(self, keys: Callable[[], Iterable[Any]], make: Callable[[Any], Iterable[Metric]]) -> None:
        self.keys = keys
        self.make = make
        self.made: dict[Hashable, list[Metric]] = {}

    def now(self) -> dict[Hashable, list[Metric]]:
        """The metrics of what there is now; the same object as before where nothing has come or gone."""
        before, keys = self.made, dict.fromkeys(self.keys())
        if keys.keys() != before.keys():
            self.made = before = {key: before.get(key) or list(self.make(key)) for key in keys}
        return before


class MetricsRegistry:
    """The metrics of one client.

    Args:
        client_id: The client's name (`client.id`), a tag of all of them.
        windows: What they are computed over.
        level: `metrics.recording.level`.
        reporters: Are told of metrics that are new, and of those that are gone.
    """

    def __init__(
        self, client_id: str, windows: MetricWindows, *, level: str = "INFO", reporters: Sequence[MetricsReporter] = ()
    ) -> None:
        self.windows: MetricWindows = windows
        self.reporters: Sequence[MetricsReporter] = reporters
        self.subscribed: dict[MetricName, Metric] = {}
        """Metrics of the application, which are pushed with the client's own (KIP-1076)."""
        self._tags = {CLIENT_ID: client_id}
        self._level = _LEVELS.index(level)
        self._definitions: list[Callable[[], Iterable[Metric]]] = [self._own]
        self._families: list[_Family] = []
        self._defined: dict[MetricName, Metric] | None = None
        self._found: tuple[list[dict[Hashable, list[Metric]]], dict[MetricName, Metric]] | None = None
        """What there was, and of which families that was put together."""
        self._count = 0
        self._told: dict[MetricName, Metric] | None = None
        """What reporters know of; None before they were told of anything."""
        self._closed = False
        self._started_ms = int(time.time() * 1000)
        self._pid = os.getpid()

    @property
    def debug(self) -> bool:
        """Whether `metrics.recording.level` asks for more than the usual metrics."""
        return self._level > 0

    def group(self, name: str, **tags: str) -> MetricGroup:
        """Makes metrics of a group.

        Args:
            name: The group.
            tags: Beside `client-id`, with `_` for `-`.
        """
        own = {tag.replace("_", "-"): value for tag, value in tags.items()}
        return MetricGroup(self.windows, name, self._tags | own)

    def define(self, definition: Callable[[], Iterable[Metric]]) -> None:
        """Metrics that are there as long as the client; made when they are first asked for."""
        self._definitions.append(definition)

    def family(self, keys: Callable[[], Iterable[Any]], make: Callable[[Any], Iterable[Metric]]) -> None:
        """Metrics that come and go.

        Args:
            keys: What there is now.
            make: Makes the metrics of one of them.
        """
        self._families.append(_Family(keys, make))

    def metrics(self) -> Metrics:
        """All metrics that there are now."""
        return Metrics(self._refreshed())

    def subscribe(self, metric: Metric) -> None:
        """Push a metric of the application, too, unless the client has one of that name.

        Raises:
            TypeError: It is no metric.
        """
        if not isinstance(metric, Metric):
            raise TypeError(f"metric is a kclient.metrics.Metric, not {shown(metric)}")
        if metric.name not in self._refreshed():
            self.subscribed = {**self.subscribed, metric.name: metric}

    def unsubscribe(self, metric: Metric) -> None:
        """Push it no more.

        Raises:
            TypeError: It is no metric.
        """
        if not isinstance(metric, Metric):
            raise TypeError(f"metric is a kclient.metrics.Metric, not {shown(metric)}")
        self.subscribed = {name: kept for name, kept in self.subscribed.items() if name != metric.name}

    def report(self) -> None:
        """Tell reporters what has changed. Only one thread may do so at a time."""
        if not self.reporters or self._closed:
            return
        now = self._refreshed()
        if self._told is None:
            self._tell("init", tuple(now.values()))
        elif now is not self._told:
            # a partition that has come back, or a broker at another address, has other metrics of the same names
            for name, metric in self._told.items():
                if now.get(name) is not metric:
                    self._tell("metric_removal", metric)
            for name, metric in now.items():
                if self._told.get(name) is not metric:
                    self._tell("metric_change", metric)
        self._told = now

    def close(self) -> None:
        """Tell reporters, once, that it is over."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._tell("close")

    def _tell(self, method: str, *arguments: object) -> None:
        for reporter in self.reporters:
            try:
                getattr(reporter, method)(*arguments)
            except Exception:  # the user's code: the client goes on, and the others are told all the same
                logger.exception("%s.%s raised", type(reporter).__name__, method)

    def _refreshed(self) -> dict[MetricName, Metric]:
        """What there is now. Of several threads that ask at once each makes what it lacks; the last one wins."""
        if self._defined is None:
            self._defined = {metric.name: metric for definition in self._definitions for metric in definition()}
        made, known = [family.now() for family in self._families], self._found
        if known is not None and all(before is now for before, now in zip(known[0], made, strict=False)):
            return known[1]  # nothing has come or gone: there may be metrics of thousands of partitions
        found = dict(self._defined)
        for family in made:
            found.update((metric.name, metric) for metrics in family.values() for metric in metrics)
        self._count = len(found)
        self._found = made, found
        return found

    def _own(self) -> Iterator[Metric]:
        group = self.group("app-info")
        yield group.gauge("version", "The version of kclient", lambda: __version__)
        yield group.gauge("start-time-ms", "When the client was made, in ms since 1970", lambda: self._started_ms)
        count = self.group("kafka-metrics-count")
        yield count.gauge("count", "The number of metrics", lambda: float(self._count))


def registry_for(config: MetricsConfig, clock: Callable[[], float]) -> MetricsRegistry:
    """The registry of a client.

    Args:
        config: Its settings.
        clock: Monotonic time in seconds.

    Raises:
        ConfigError: `metric.reporters` names what is no reporter.
        MissingExtraError: What a reporter needs is not installed.
    """
    windows = MetricWindows(clock, samples=config.metrics_num_samples, seconds=config.metrics_sample_window_ms / 1000)
    return MetricsRegistry(
        config.client_id,
        windows,
        level=config.metrics_recording_level,
        reporters=resolve_reporters(config.metric_reporters),
    )
