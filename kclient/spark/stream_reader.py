"""Streaming reads: what Spark asks a streaming source, answered by a planner and, in tasks, by the range reader.

Spark's ways around a Python source that this has to do with: the start of the first batch is not kept (see
`stream_offsets`); `commit` comes a batch late and never for the last, so that the group's offsets are committed from
what the next batch starts with; `stop` is not called when a query ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kclient.errors import KafkaError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import StreamOptions
from kclient.spark.ranges import split_ranges
from kclient.spark.reading import RangePartition, read_partition
from kclient.spark.stream_offsets import StreamOffsets
from kclient.spark.stream_planning import StreamPlanner

if TYPE_CHECKING:
    import pyarrow

logger: logging.Logger = logging.getLogger("kclient.spark")


class KclientStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver's process, where it lives as long as the query, and reads ranges in tasks."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._cluster: LiveCluster | None = None
        self._planner: StreamPlanner | None = None
        self._committed: StreamOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        # tasks get a copy, which plans nothing
        return {**self.__dict__, "_cluster": None, "_planner": None, "_committed": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: as `startingOffsets` and its relatives say.

        Raises:
            KafkaError: No broker answers, a topic does not exist, or the offsets do not fit.
        """
        return self._plans().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger` or `minOffsetsPerTrigger`; with both, the other one is looked at beside it."""
        if self._options.most is not None:
            return ReadMaxRows(self._options.most)
        if self._options.least is not None:
            return ReadMinRows(self._options.least)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is written from now on is not read by this query."""
        self._plans().stop_at_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself where there is none yet.

        Raises:
            DataLossError: Records that it ought to read are gone, and `failOnDataLoss` is true.
            ConfigError: The checkpoint is another source's, or a newer kclient's.
            KafkaError: No broker answers.
        """
        begin = StreamOffsets.from_json(start)
        self._commit_group(begin)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        least = None if isinstance(limit, ReadAllAvailable) else self._options.least
        found = self._plans().latest(begin, most, least)
        return start if found is None else found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of all partitions when they were looked at last, for the query's progress."""
        newest = self._plans().newest
        return None if newest is None else newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The batch's ranges, cut into a share for each task.

        Raises:
            ConfigError: The checkpoint is another source's, or a newer kclient's.
        """
        ranges = StreamOffsets.from_json(end).ranges_from(StreamOffsets.from_json(start))
        read = self._options.read
        return [
            RangePartition(piece) for piece in split_ranges(ranges, read.min_partitions, read.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """A share's records, in the schema that was asked for.

        Raises:
            KafkaError: The broker fails, or records are gone and `failOnDataLoss` is on.
        """
        return read_partition(self._options.read, self._schema, partition)

    def stop(self) -> None:
        """Close the connections."""
        cluster, self._cluster, self._planner = self._cluster, None, None
        if cluster is not None:
            cluster.close()

    def _plans(self) -> StreamPlanner:
        if self._planner is None or self._cluster is None:
            self._cluster = LiveCluster(self._options.read.settings)
            self._planner = StreamPlanner(self._cluster, self._options)
        return self._planner

    def _commit_group(self, done: StreamOffsets) -> None:
        """Tell the group what is done; that it does not know is no reason to end the query."""
        if not self._options.commit_group_offsets or done.initial or done == self._committed:
            return
        self._plans()
        assert self._cluster is not None
        group = self._options.read.settings["group.id"]
        try:
            self._cluster.admin.alter_group_offsets(group, dict(done.places))
        except KafkaError as error:
            logger.warning("the offsets of the group %s were not committed, the next ones will be: %s", group, error)
        else:
            self._committed = done
