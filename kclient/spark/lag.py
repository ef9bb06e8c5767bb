"""How far a streaming query is behind its topics, from the progress that Spark tells of each micro-batch.

```python
from kclient.spark import LagListener

listener = LagListener()                       # or LagListener(lambda lag: print(lag.to_json()))
spark.streams.addListener(listener)
```
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kclient.arguments import check_plain_callback
from kclient.spark.stream_offsets import StreamOffsets
from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.spark")


@dataclass(frozen=True)
class QueryLag:
    """How far a query was behind at the end of a micro-batch."""

    query_id: str
    """Stays the same over restarts from one checkpoint."""
    query_name: str | None
    batch_id: int
    partitions: Mapping[TopicPartition, int] = field(repr=False)
    """Offsets of each partition that had not been read when the batch was planned."""
    input_rows_per_second: float
    """Rate of what came since the batch before; 0 where Spark tells none."""
    processed_rows_per_second: float
    """Rate at which the batch was processed; 0 where Spark tells none."""

    @property
    def total(self) -> int:
        """Of all partitions together."""
        return sum(self.partitions.values())

    @property
    def greatest(self) -> int:
        """Of the partition that is furthest behind."""
        return max(self.partitions.values(), default=0)

    @property
    def average(self) -> float:
        """Of a partition."""
        return self.total / len(self.partitions) if self.partitions else 0.0

    def to_json(self) -> str:
        """One line of JSON, for logs and other programs."""
        return json.dumps(
            {
                "query": self.query_id,
                "name": self.query_name,
                "batch": self.batch_id,
                "lag": {"total": self.total, "max": self.greatest, "average": round(self.average, 1)},
                "partitions": {str(tp): behind for tp, behind in sorted(self.partitions.items())},
                "inputRowsPerSecond": self.input_rows_per_second,
                "processedRowsPerSecond": self.processed_rows_per_second,
            }
        )


class LagListener(StreamingQueryListener):
    """Tells after each micro-batch how far behind queries are that read with kclient; other queries are left aside.

    Args:
        report: Is called with each, in a thread of Spark's; None logs it at level INFO. What it raises is logged.

    Raises:
        TypeError: `report` cannot be called.
    """

    def __init__(self, report: Callable[[QueryLag], object] | None = None) -> None:
        self.latest: dict[str, QueryLag] = {}
        """The newest of each query that runs, by its id."""
        check_plain_callback(report, "report")
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended."""
        lag = lag_of(json.loads(event.progress.json))
        if lag is None:
            return
        self.latest[lag.query_id] = lag
        try:
            if self._report is None:
                logger.info("%s", lag.to_json())
            else:
                self._report(lag)
        except Exception:  # the query goes on: its lag is not worth ending it
            logger.exception("the lag of the query %s could not be reported", lag.query_id)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The query has ended."""
        self.latest.pop(str(event.id), None)


def lag_of(progress: Mapping[str, Any]) -> QueryLag | None:
    """The lag that a progress tells (`StreamingQuery.lastProgress`, as JSON); None if no source of it is kclient's."""
    behind: dict[TopicPartition, int] = {}
    ours = False
    for source in progress.get("sources", ()):
        end, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None or newest is None:
            continue
        ours = True
        for tp, offset in newest.places.items():
            begin = end.places.get(tp, 0) if end.topic_ids.get(tp.topic) == newest.topic_ids.get(tp.topic) else 0
            behind[tp] = behind.get(tp, 0) + max(offset - begin, 0)
    if not ours:
        return None
    return QueryLag(
        query_id=str(progress["id"]),
        query_name=progress.get("name"),
        batch_id=int(progress["batchId"]),
        partitions=behind,
        input_rows_per_second=float(progress.get("inputRowsPerSecond") or 0.0),
        processed_rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
    )


def _offsets(found: Any) -> StreamOffsets | None:
    """Offsets as a source tells them; None where they are another source's."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None
    if not isinstance(found, dict) or "format" not in found or "topics" not in found:
        return None
    return StreamOffsets.from_json(found)
