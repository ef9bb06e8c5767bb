"""One task's work: the records of a range as Arrow batches, of the topic that was planned and of no namesake."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kclient.errors import KafkaError, KafkaTimeoutError, LogTruncationError, OffsetOutOfRangeError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions
from kclient.spark.ranges import DataLossError, OffsetRange
from kclient.spark.schema import select_columns

if TYPE_CHECKING:
    import pyarrow

logger: logging.Logger = logging.getLogger("kclient.spark")

_LOOK_S = 1.0
"""After so many seconds without a record the topic is looked at: it may be gone."""
_LOOKS = 2
"""So often a topic must be missing before it counts as deleted: a broker that has just started knows little."""


class RangePartition(InputPartition):
    """One task's share: a range of one partition's offsets."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(offsets)
        self.offsets = offsets


def read_partition(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pyarrow.RecordBatch]:
    """A task's share, in this schema.

    Raises:
        KafkaError: the broker fails, or records are gone and `failOnDataLoss` is on.
    """
    # Spark turns an empty list of partitions into one partition without a value.
    if isinstance(partition, RangePartition):
        wanted = to_arrow_schema(schema, timezone="UTC")
        for batch in RangeReader(replace(options, columns=tuple(schema.names)), partition.offsets).batches():
            yield select_columns(batch, wanted)


class Fate(Enum):
    """What became of the topic that was planned."""

    THERE = "there"
    DELETED = "deleted"
    RECREATED = "deleted and created again"


class RangeReader:
    """Reads one range; iterate over `batches`.

    Args:
        options: How to read.
        wanted: What to read.
        reached: Called with the position after each batch.
    """

    def __init__(
        self, options: ReadOptions, wanted: OffsetRange, reached: Callable[[int], None] = lambda position: None
    ) -> None:
        self.lost: list[tuple[int, int]] = []
        """Offsets, from and to before, that were gone and that `failOnDataLoss=false` went past."""
        self.fate: Fate = Fate.THERE
        """What had become of the topic when it was looked at last; it is looked at last when all was read."""
        self._options = options
        self._wanted = wanted
        self._partition = wanted.topic_partition
        self._reached = reached
        self._missing = 0

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The records, in the columns of the options and `offset`; none is left out and none is given twice.

        Raises:
            DataLossError: records are gone, and `failOnDataLoss` is true; or the topic became another one meanwhile.
            KafkaTimeoutError: nothing arrived for `kafkaConsumer.pollTimeoutMs`.
        """
        with LiveCluster(self._options.settings) as cluster:
            position = self._wanted.start if self._is_there(cluster) else self._skip_rest(self._wanted.start)
            yield from self._read(cluster, position)
            self._reached(self._wanted.end)
            if self.fate is not Fate.RECREATED:
                self.fate = self._look(cluster)
                self._check_identity()

    def _read(self, cluster: LiveCluster, position: int) -> Iterator[pyarrow.RecordBatch]:
        end, consumer = self._wanted.end, cluster.consumer
        columns = self._options.columns
        if "offset" not in columns:
            columns = (*columns, "offset")  # it tells where the range ends
        patience = self._options.poll_timeout_ms / 1000
        look_every = min(_LOOK_S, patience)
        consumer.assign([self._partition])
        consumer.seek(self._partition, position)
        moved = looked = time.monotonic()
        while position < end:
            try:
                batch = consumer.poll_arrow(timeout=look_every, columns=columns, max_bytes=self._options.piece_bytes)
                reached = consumer.position(self._partition)
            except (OffsetOutOfRangeError, LogTruncationError) as error:
                position = self._after_gap(cluster, position, error)
                continue
            now = time.monotonic()
            if batch.num_rows:
                if not self._is_still_there(cluster):
                    position = self._skip_rest(position)
                    continue
                yield _before(batch, end) if reached > end else batch
            if reached > position:
                moved, position = now, reached
            elif now - max(moved, looked) >= look_every:
                looked = now
                position = self._stalled(cluster, position, now - moved >= patience)
            self._reached(min(position, end))

    def _is_still_there(self, cluster: LiveCluster) -> bool:
        """Whether what has just been fetched is of the topic that was planned.

        With `failOnDataLoss` a look at the end suffices, since the job fails then. Without it the job goes on, so that
        nothing of a namesake may get into it. A topic that is gone was no other before: ids never come again.
        """
        if self._options.fail_on_data_loss:
            return True
        self.fate = self._look(cluster)
        return self.fate is not Fate.RECREATED

    def _check_identity(self) -> None:
        if self.fate is Fate.RECREATED:
            raise DataLossError(
                f"{self._partition}: the topic was {self.fate.value} while it was read; what was read may be of both,"
                " so nothing of it counts"
            )

    def _is_there(self, cluster: LiveCluster) -> bool:
        self.fate = self._look(cluster)
        while self.fate is Fate.DELETED and self._missing < _LOOKS:
            time.sleep(_LOOK_S)
            self.fate = self._look(cluster)
        return self.fate is Fate.THERE

    def _look(self, cluster: LiveCluster) -> Fate:
        """What has become of the topic; planned without an id it is taken to be the same."""
        known = cluster.topics([self._wanted.topic])
        if self._wanted.topic not in known:
            self._missing += 1
            return Fate.DELETED
        self._missing = 0
        now = known[self._wanted.topic].topic_id
        return Fate.THERE if self._wanted.topic_id in ("", now) else Fate.RECREATED

    def _stalled(self, cluster: LiveCluster, position: int, too_long: bool) -> int:
        """Why nothing comes; returns the position to go on at."""
        self.fate = self._look(cluster)
        if self.fate is Fate.RECREATED or (self.fate is Fate.DELETED and self._missing >= _LOOKS):
            return self._skip_rest(position)
        if self.fate is Fate.THERE:
            found = cluster.end_offsets([self._partition])[self._partition]
            if found <= position:
                return self._skip_rest(position, f"the log was cut back and ends at {found} now")
        if too_long:
            raise KafkaTimeoutError(
                f"{self._partition}: nothing arrived for {self._options.poll_timeout_ms} ms at offset {position} of"
                f" {self._wanted.end}; the topic is there, so is the broker overloaded? kafkaConsumer.pollTimeoutMs"
                " says how long to wait"
            )
        return position

    def _after_gap(self, cluster: LiveCluster, position: int, error: KafkaError) -> int:
        """The position is not in the log, or other records stand below it now; returns where to go on."""
        if not self._is_there(cluster):
            return self._skip_rest(position, cause=error)
        if isinstance(error, LogTruncationError):
            self._after_truncation(position, error)
            cluster.consumer.seek(self._partition, position)
            return position
        beginning = cluster.beginning_offsets([self._partition])[self._partition]
        if beginning <= position:
            found = cluster.end_offsets([self._partition])[self._partition]
            if found > position:  # gone and back: another replica answered
                cluster.consumer.seek(self._partition, position)
                return position
            return self._skip_rest(position, f"the log was cut back and ends at {found} now", error)
        if beginning >= self._wanted.end:
            return self._skip_rest(position, f"the log begins at {beginning} now", error)
        self._skip(position, beginning, f"the log begins at {beginning} now", error)
        cluster.consumer.seek(self._partition, beginning)
        return beginning

    def _after_truncation(self, position: int, error: KafkaError) -> None:
        """What stands below the position is not what was read: an unclean leader election put other records there."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{error}; go on with what is there by {self._options.lenience}") from error
        logger.warning("%s; going on at offset %d, because of %s", error, position, self._options.lenience)

    def _skip_rest(self, position: int, why: str = "", cause: KafkaError | None = None) -> int:
        self._skip(position, self._wanted.end, why or f"the topic was {self.fate.value}", cause)
        return self._wanted.end

    def _skip(self, start: int, end: int, why: str, cause: KafkaError | None) -> None:
        """Records are gone: an error, or a warning where that was asked for."""
        text = f"{self._partition}: {why}, and the records from offset {start} to before {end} are gone"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; go on with what is there by {self._options.lenience}") from cause
        logger.warning("%s; going on, because of %s", text, self._options.lenience)
        self.lost.append((start, end))


def _before(batch: pyarrow.RecordBatch, end: int) -> pyarrow.RecordBatch:
    """The rows before the range's end: offsets only grow within a batch, so it is a slice."""
    column = batch.column("offset")
    offsets = memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]
    return batch.slice(0, bisect_left(offsets, end))
