"""Filters of a query that make ranges smaller: by topic, partition, offset, and the time from which on."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

if TYPE_CHECKING:
    from kclient.spark.cluster import TopicView
    from kclient.spark.ranges import OffsetRange

_FARTHEST = 2**63 - 1


@dataclass(frozen=True)
class Pruning:
    """What a query's filters leave of a read; several are all true of what it reads."""

    topics: frozenset[str] | None = None
    """None for all."""
    partitions: frozenset[int] | None = None
    """None for all."""
    start: int = 0
    """The first offset."""
    end: int = _FARTHEST
    """The offset before which it ends."""
    since_ms: int | None = None
    """No record before this is wanted; older ones that stand behind a younger one are read all the same."""

    def with_filter(self, found: Any) -> tuple[Pruning, bool]:
        """This and a filter of Spark's, and whether Spark need not look at the rows for it any more."""
        attribute: tuple[str, ...] = getattr(found, "attribute", ())
        if len(attribute) != 1 or isinstance(found, datasource.Not):
            return self, False
        if isinstance(found, datasource.IsNotNull):
            return self, attribute[0] in ("topic", "partition", "offset", "timestamp")
        value = getattr(found, "value", None)
        match attribute[0]:
            case "topic":
                return self._with_topics(found, value)
            case "partition":
                return self._with_partitions(found, value)
            case "offset":
                return self._with_offsets(found, value)
            case "timestamp":
                return self._with_time(found, value), False
        return self, False

    def _with_topics(self, found: Any, value: Any) -> tuple[Pruning, bool]:
        wanted = _listed(found, value, str)
        if wanted is None:
            return self, False
        return replace(self, topics=wanted if self.topics is None else self.topics & wanted), True

    def _with_partitions(self, found: Any, value: Any) -> tuple[Pruning, bool]:
        wanted = _listed(found, value, int)
        if wanted is None:
            return self, False
        return replace(self, partitions=wanted if self.partitions is None else self.partitions & wanted), True

    def _with_offsets(self, found: Any, value: Any) -> tuple[Pruning, bool]:
        if not isinstance(value, int):
            return self, False
        start, end = 0, _FARTHEST
        if isinstance(found, datasource.EqualTo):
            start, end = value, value + 1
        elif isinstance(found, datasource.GreaterThan):
            start = value + 1
        elif isinstance(found, datasource.GreaterThanOrEqual):
            start = value
        elif isinstance(found, datasource.LessThan):
            end = value
        elif isinstance(found, datasource.LessThanOrEqual):
            end = value + 1
        else:
            return self, False
        return replace(self, start=max(self.start, start), end=min(self.end, end)), True

    def _with_time(self, found: Any, value: Any) -> Pruning:
        begins = datasource.EqualTo | datasource.GreaterThan | datasource.GreaterThanOrEqual
        if not isinstance(found, begins) or not isinstance(value, datetime.datetime) or value.tzinfo is None:
            return self
        since = math.floor(value.timestamp() * 1000)
        if since < 0:  # Kafka finds no time before 1970, and records without one have -1
            return self
        return replace(self, since_ms=max(since, self.since_ms or 0))

    def narrowed(self, cluster: TopicView, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What is left of the ranges, without empty ones.

        Raises:
            KafkaError: no broker tells where the time begins.
        """
        left = [
            replace(whole, start=max(whole.start, self.start), end=min(whole.end, self.end))
            for whole in ranges
            if (self.topics is None or whole.topic in self.topics)
            and (self.partitions is None or whole.partition in self.partitions)
        ]
        left = [piece for piece in left if piece.start < piece.end]
        if self.since_ms is None or not left:
            return left
        found = cluster.offsets_for_times({piece.topic_partition: self.since_ms for piece in left})
        begun = []
        for piece in left:
            first = found.get(piece.topic_partition)
            if first is not None and first.offset < piece.end:
                begun.append(replace(piece, start=max(piece.start, first.offset)))
        return begun


class PushedFilters:
    """`pushFilters` of a reader that may be asked for it and need not.

    Spark refuses a reader that has the method while pushdown is off, which is the default; whether it has is read off
    the method's `__func__`.

    Args:
        push: Takes the filters, and gives those that Spark has to look at still.
    """

    def __init__(self, push: Callable[[list[Any]], Iterable[Any]]) -> None:
        self.__func__: Any = getattr(datasource.DataSourceReader, "pushFilters", None)
        self._push = push

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._push(filters)


def _listed(found: Any, value: Any, kind: type) -> frozenset[Any] | None:
    """The values of which one is wanted; None where a filter says something else."""
    if isinstance(found, datasource.EqualTo) and isinstance(value, kind):
        return frozenset({value})
    if isinstance(found, datasource.In) and all(isinstance(each, kind) for each in value):
        return frozenset(value)
    return None
