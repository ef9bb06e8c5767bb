"""Writes to topics: each task sends what it is given, as columns, and is through when the brokers have all of it.

At least once: a task that Spark tries again, and a micro-batch that it repeats, are written again. Within a task the
idempotent producer doubles and loses nothing, and keeps the order of each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kclient.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow

logger: logging.Logger = logging.getLogger("kclient.spark")


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task has written."""

    rows: int


class _TaskWriter:
    """What a task of a write does.

    Args:
        options: How.
        columns: Which columns of the rows are written.
    """

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WrittenRows:
        """Send a task's rows, and wait until the brokers have them.

        Raises:
            KafkaError: A row was refused, or could not be delivered within `delivery.timeout.ms`.
        """
        return write_rows(self._options, self._columns, iterator)


class KclientWriter(_TaskWriter, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are through: everything is there already."""
        logger.info("%d rows were written by %d tasks", rows_of(messages), len(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed: what the others have written stays."""
        warn_of_rest(messages)


class KclientStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """A streaming write, of one micro-batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks are through: everything is there already."""
        logger.debug("%d rows of batch %d were written", rows_of(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Some task failed: what the others have written stays, and comes again with the batch."""
        warn_of_rest(messages)


def write_rows(options: WriteOptions, columns: list[str], batches: Iterator[pyarrow.RecordBatch]) -> WrittenRows:
    """Send rows, and wait until the brokers have them; memory is bounded by `buffer.memory`."""
    from kclient.sync import Producer

    rows = 0
    with Producer({"client.id": "kclient-spark", **options.settings}) as producer:
        for batch in batches:
            producer.send_arrow(options.topic, batch.select(columns))
            rows += batch.num_rows
        producer.flush()
    return WrittenRows(rows)


def rows_of(messages: Sequence[WriterCommitMessage | None]) -> int:
    """How many rows tasks have written; failed ones told nothing."""
    return sum(message.rows for message in messages if isinstance(message, WrittenRows))


def warn_of_rest(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Say what stays of a write that failed."""
    if rows := rows_of(messages):
        logger.warning("a write failed: %d rows that other tasks have written stay in the topics", rows)
