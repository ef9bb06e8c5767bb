"""A metric, its name, and all metrics of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from kclient.arguments import check_text, shown

__all__ = ["Metric", "MetricKind", "MetricName", "Metrics"]

Value = float | int | str
"""What a metric may be: a number, or text such as a version."""

CLIENT_ID: Final = "client-id"
"""The tag that all metrics of a client have."""


class MetricKind(Enum):
    """How a metric changes."""

    GAUGE = "gauge"
    """Up and down."""
    COUNTER = "counter"
    """Only up, from 0 when the client was made."""


class MetricName:
    """What tells a metric from others, as in the Java client: name, group and tags.

    Args:
        name: Such as `record-send-rate`.
        group: What it belongs to, such as `producer-metrics`.
        description: What it measures, and in which unit.
        tags: What tells metrics of the same name apart: `client-id`, and `node-id`, `topic` or `partition`.

    Raises:
        TypeError: One of these is no text, or `tags` no mapping of texts.
        ValueError: A text cannot be sent.
    """

    __slots__ = ("_key", "description", "group", "name", "tags")

    def __init__(self, name: str, group: str, description: str = "", tags: Mapping[str, str] | None = None) -> None:
        check_text(name, "the name of a metric")
        check_text(group, "the group of a metric")
        check_text(description, "the description of a metric")
        if tags is not None and not isinstance(tags, Mapping):
            raise TypeError(f"the tags of a metric are a mapping of texts, not {shown(tags)}")
        for tag, value in (tags or {}).items():
            check_text(tag, "the name of a metric's tag")
            check_text(value, "the value of a metric's tag")
        self.name: str = name
        self.group: str = group
        self.description: str = description
        self.tags: Mapping[str, str] = MappingProxyType(dict(tags or {}))
        self._key = (name, group, tuple(sorted(self.tags.items())))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, MetricName) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"MetricName({self.name!r}, {self.group!r}, tags={dict(self.tags)!r})"


class Metric:
    """A metric: what it is called, and how it is found out.

    Args:
        name: Its name.
        measure: Finds its value out, at any time and in any thread.
        kind: How it changes.

    Raises:
        TypeError: One of these is something else.
    """

    __slots__ = ("_measure", "kind", "name")

    def __init__(self, name: MetricName, measure: Callable[[], Value], kind: MetricKind = MetricKind.GAUGE) -> None:
        if not isinstance(name, MetricName):
            raise TypeError(f"the name of a metric is a kclient.metrics.MetricName, not {shown(name)}")
        if not callable(measure):
            raise TypeError(f"measure is a function that gives the metric's value, not {shown(measure)}")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"the kind of a metric is a kclient.metrics.MetricKind, not {shown(kind)}")
        self.name: MetricName = name
        self.kind: MetricKind = kind
        self._measure = measure

    @property
    def value(self) -> Value:
        """The value now; `nan` for an average or an extreme of nothing.

        Times are in milliseconds, but for names that say another unit (`txn-commit-time-ns-total`), sizes in bytes.
        """
        return self._measure()

    def __repr__(self) -> str:
        return f"Metric({self.name!r}, {self.value!r})"


class Metrics(Mapping[MetricName, Metric]):
    """The metrics that a client has now; their values are those of the moment in which they are looked at."""

    def __init__(self, metrics: Mapping[MetricName, Metric]) -> None:
        self._metrics = metrics

    def __getitem__(self, name: MetricName) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[MetricName]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"<Metrics, {len(self)} of them>"

    def find(self, name: str, group: str | None = None, **tags: object) -> Metric:
        """The metric of a name.

        Args:
            name: Such as `record-send-rate`.
            group: Such as `producer-topic-metrics`; None where the name and the tags say enough.
            tags: All its tags but `client-id`, with `_` for `-`: `topic="flights"`, `partition=0`, `node_id="node-1"`.

        Raises:
            LookupError: There is none, or there are several, in different groups.
        """
        wanted = {tag.replace("_", "-"): str(value) for tag, value in tags.items()}
        found = [
            metric
            for key, metric in self._metrics.items()
            if key.name == name
            and group in (None, key.group)
            and {tag: value for tag, value in key.tags.items() if tag != CLIENT_ID} == wanted
        ]
        if len(found) == 1:
            return found[0]
        what = f"{name!r}{f' in the group {group!r}' if group is not None else ''}"
        if found:
            groups = ", ".join(sorted(metric.name.group for metric in found))
            raise LookupError(f"There are several metrics {what}: name the group, one of {groups}")
        with_tags = f" with the tags {wanted}" if wanted else " without tags beside client-id"
        raise LookupError(f"There is no metric {what}{with_tags} (yet)")

    def value(self, name: str, group: str | None = None, **tags: object) -> float:
        """The value of a metric that is a number; the arguments are those of `find`.

        Raises:
            LookupError: There is none, or there are several, in different groups.
            TypeError: It is text.
        """
        found = self.find(name, group, **tags).value
        if isinstance(found, str):
            raise TypeError(f"The metric {name!r} is text, {found!r}: use find(...).value")
        return found
