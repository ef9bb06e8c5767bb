"""Writes to topics: each task sends what it is given, as columns, and is through when the brokers have all of it.

At least once: a task that Spark tries again, and a micro-batch that it repeats, are written again. Within a task the
idempotent producer doubles and loses nothing, and keeps the order of each partition.

Exactly once: `sink_tasks` and `sink_driver`, which only the writers here bring together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kclient.spark.cluster import LiveCluster
from kclient.spark.ranges import DataLossError
from kclient.spark.sink_driver import abort_batch, commit_batch
from kclient.spark.sink_records import ExactlyOnceError
from kclient.spark.sink_tasks import TaskOutcome, outcomes_of, write_in_transaction
from kclient.spark.write_options import WriteOptions
from kclient.spark.written_topics import TopicsWritten, replaced, told, topic_ids, topics_in

if TYPE_CHECKING:
    import pyarrow

logger: logging.Logger = logging.getLogger("kclient.spark")


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task has written.

    Attributes:
        rows: how many rows.
        topics: the topics that have them, with their ids.
    """

    rows: int
    topics: Mapping[str, str] = field(default_factory=dict)


class _TaskWriter:
    """What a task of a write does.

    Args:
        options: How.
        columns: Which columns of the rows are written.
    """

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WrittenRows | TaskOutcome:
        """Send a task's rows, and wait until the brokers have them.

        Raises:
            ExactlyOnceError: The batch must not be written again as it is.
            DataLossError: A topic was deleted meanwhile, and rows went with it.
            KafkaError: A row was refused, or could not be delivered within `delivery.timeout.ms`.
        """
        if self._options.exactly_once:
            return write_in_transaction(self._options, self._columns, iterator)
        return write_rows(self._options, self._columns, iterator)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        if self._options.exactly_once:
            outcomes = outcomes_of(messages)
            if len(outcomes) != len(messages):
                raise ExactlyOnceError(f"{len(messages) - len(outcomes)} tasks of batch {batch} have told nothing")
            rows = commit_batch(self._options, batch, outcomes)
            logger.info("batch %d: %d rows of %d tasks were committed", batch, rows, len(messages))
        else:
            check_written(self._options, messages)
            logger.info("%d rows were written by %d tasks", rows_of(messages), len(messages))

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            _warn_of_rest(messages)
            return
        outcomes = outcomes_of(messages)
        sink = self._options.sink or next((outcome.sink for outcome in outcomes), None)
        if sink is not None:
            abort_batch(self._options, sink, outcomes)


class KclientWriter(_TaskWriter, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are through: everything is there, or is committed now."""
        self._commit(messages, self._options.batch or 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed: what the others have written stays, or is aborted."""
        self._abort(messages)


class KclientStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """A streaming write, of one micro-batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks are through: everything is there, or is committed now."""
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Some task failed: what the others have written is aborted, or stays and comes again with the batch."""
        self._abort(messages)


def write_rows(options: WriteOptions, columns: list[str], batches: Iterator[pyarrow.RecordBatch]) -> WrittenRows:
    """Send rows, and wait until the brokers have them; memory is bounded by `buffer.memory`.

    Raises:
        DataLossError: A topic was deleted meanwhile, and rows went with it.
        KafkaError: A row was refused, or could not be delivered.
    """
    from kclient.sync import Producer

    rows = 0
    with (
        LiveCluster(options.settings) as cluster,
        Producer({"client.id": "kclient-spark", **options.settings}) as producer,
    ):
        topics = TopicsWritten(cluster, producer.partitions_for, DataLossError)
        for batch in batches:
            if not batch.num_rows:
                continue
            topics.before(topics_in(options.topic, batch))
            producer.send_arrow(options.topic, batch.select(columns))
            rows += batch.num_rows
        producer.flush()
        return WrittenRows(rows, topics.after())


def check_written(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Whether the topics that tasks have written to are still those, so that their rows are there.

    Raises:
        DataLossError: One was deleted, and rows went with it.
    """
    written = [message.topics for message in messages if isinstance(message, WrittenRows) and message.topics]
    if not written:
        return
    with LiveCluster(options.settings) as cluster:
        now = topic_ids(cluster, {name for topics in written for name in topics})
    gone = {each.name: each for topics in written for each in replaced(topics, now)}
    if gone:
        raise DataLossError(
            f"{told([gone[name] for name in sorted(gone)])} since tasks wrote to it, and their rows are gone with it: "
            "write the batch again (a query that is restarted does); what it has written to other topics is there "
            "twice then"
        )


def rows_of(messages: Sequence[WriterCommitMessage | None]) -> int:
    """How many rows tasks have written; failed ones told nothing."""
    return sum(message.rows for message in messages if isinstance(message, WrittenRows))


def _warn_of_rest(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Say what stays of a write that failed."""
    if rows := rows_of(messages):
        logger.warning("a write failed: %d rows that other tasks have written stay in the topics", rows)
