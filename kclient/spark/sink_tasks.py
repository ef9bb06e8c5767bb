"""What a task of an exactly-once write does: its rows in a transaction of its own, which it leaves open.

The driver ends it (`sink_driver`). Where an earlier attempt at the batch has committed the task's rows already, they
are only looked at, and compared with those.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kclient.errors import (
    AuthorizationError,
    KafkaError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)
from kclient.spark.cluster import LiveCluster
from kclient.spark.fingerprint import RowsSeen
from kclient.spark.sink_records import (
    Decision,
    ExactlyOnceError,
    SinkNames,
    TaskRecord,
    TaskRows,
    check_anchor,
    check_batch,
    check_task,
    check_topics,
    newest,
)
from kclient.spark.written_topics import TopicsWritten, topic_ids, topics_in
from kclient.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from kclient.spark.write_options import WriteOptions
    from kclient.sync import Admin, Producer
    from kclient.sync.open_transactions import OpenTransaction

logger: logging.Logger = logging.getLogger("kclient.spark")

CLIENT = {"client.id": "kclient-spark"}
_OTHER_WAY = "exactlyOnce=false writes at least once"


@dataclass
class TaskOutcome(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        sink: the sink's id.
        index: the task's place among those of the batch, from 0 on.
        written: its rows.
        topics: the topics that they went to, with their ids.
        number: which attempt it is: the end of its transactional id.
        transaction: what it has left open; None where there are no rows, or where they are committed already.
        skipped: whether they are.
        began: when the transaction began, in seconds since 1970.
    """

    sink: str
    index: int
    written: TaskRows
    topics: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    transaction: OpenTransaction | None = None
    skipped: bool = False
    began: float = 0.0

    @property
    def rows(self) -> int:
        """How many."""
        return self.written.rows


class Task(Protocol):
    """What is needed of Spark's `TaskContext`."""

    def partitionId(self) -> int: ...

    def attemptNumber(self) -> int: ...

    def getLocalProperty(self, key: str) -> str | None: ...


def write_in_transaction(
    options: WriteOptions, columns: Sequence[str], batches: Iterator[pyarrow.RecordBatch], task: Task | None = None
) -> TaskOutcome:
    """Write a task's rows and leave their transaction open. A task without rows asks nothing of any broker.

    Args:
        options: Of the write.
        columns: Which columns are written.
        batches: The rows.
        task: Which task of Spark's it is; None for the present one.

    Raises:
        ExactlyOnceError: The batch, or the task, must not be written so.
        KafkaError: A row was refused or could not be delivered; the transaction is aborted.
    """
    context: Task | None = task or TaskContext.get()
    if context is None:
        raise ExactlyOnceError("an exactly-once write is done by Spark's tasks only")
    if options.unnumbered and context.getLocalProperty("streaming.sql.batchId") is not None:
        raise ExactlyOnceError(
            "in foreachBatch the option exactlyOnce.id needs exactlyOnce.batch, the number that Spark gives the "
            "function: else all batches are the same one, and the second is taken for the first done again"
        )
    sink = options.sink or _query(context)
    batch = options.batch if options.batch is not None else int(_property(context, "streaming.sql.batchId"))
    rows = _Rows(options.topic, columns, batches)
    first = rows.next()
    names, index = SinkNames(sink), context.partitionId()
    if first is None:
        return TaskOutcome(sink, index, rows.written)
    with LiveCluster(options.settings) as cluster:
        with telling_rights(names):
            record = _recorded(cluster.admin, names, index, batch)
            if record is not None:
                rows.look_at_the_rest()
                check_task(names, index, record, rows.written)
                topics = topic_ids(cluster, rows.topics)
                check_topics(names, index, record, topics)
                logger.info("task %d of batch %d is committed already: %d rows are skipped", index, batch, rows.seen)
                return TaskOutcome(sink, index, rows.written, topics, skipped=True)
            number = _free_number(cluster.admin, names, index, context.attemptNumber())
        began = time.time()
        transaction, topics = _write(options, names, names.task_id(index, number), rows, first, cluster)
    return TaskOutcome(sink, index, rows.written, topics, number, transaction, began=began)


class _Rows:
    """The rows of a task, and what is known of those that were taken."""

    def __init__(self, topic: str | None, columns: Sequence[str], batches: Iterator[pyarrow.RecordBatch]) -> None:
        self._columns = list(columns)
        self._batches = batches
        self._rows = RowsSeen(topic)
        self._topics: set[str] = set()
        self._topic = topic

    @property
    def seen(self) -> int:
        return self._rows.rows

    @property
    def written(self) -> TaskRows:
        return TaskRows(self._rows.rows, self._rows.fingerprint)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._topics))

    def next(self) -> pyarrow.RecordBatch | None:
        """The columns to be written of the next batch that has rows."""
        for batch in self._batches:
            if not batch.num_rows:
                continue
            taken = batch.select(self._columns)
            self._rows.add(taken)
            self._topics.update(topics_in(self._topic, taken))
            return taken
        return None

    def look_at_the_rest(self) -> None:
        while self.next() is not None:
            pass


def _write(
    options: WriteOptions,
    names: SinkNames,
    transactional_id: str,
    rows: _Rows,
    first: pyarrow.RecordBatch,
    cluster: LiveCluster,
) -> tuple[OpenTransaction, dict[str, str]]:
    """The transaction, and the topics that it has rows in, with their ids."""
    from kclient.sync import Producer
    from kclient.sync.open_transactions import hand_over

    settings = {**CLIENT, **options.settings, "transactional.id": transactional_id}
    with Producer(settings) as producer:
        with telling_rights(names):
            begin(producer)
        topics = TopicsWritten(cluster, producer.partitions_for, ExactlyOnceError)
        batch: pyarrow.RecordBatch | None = first
        while batch is not None:
            topics.before(rows.topics)
            producer.send_arrow(options.topic, batch)
            batch = rows.next()
        producer.flush()
        written = topics.after()
        transaction = hand_over(producer)
    if transaction is None:
        raise ExactlyOnceError(f"the coordinator has heard nothing of the transaction of {transactional_id}: a bug")
    return transaction, written


@contextmanager
def telling_rights(names: SinkNames) -> Iterator[None]:
    """Where the brokers refuse something to this user, say all that it needs.

    Raises:
        ExactlyOnceError: They do.
    """
    try:
        yield
    except AuthorizationError as error:
        raise ExactlyOnceError(
            f"the brokers do not allow what exactly once needs ({error}): grant this user WRITE on transactional ids "
            f"and READ on groups that begin with {names.sink}-, and READ and WRITE on the topics; {_OTHER_WAY}"
        ) from error


def begin(producer: Producer) -> None:
    """Get the id, and begin a transaction.

    Raises:
        ExactlyOnceError: The brokers do not allow it.
    """
    try:
        producer.init_transactions()
    except UnsupportedVersionError as error:
        raise ExactlyOnceError(
            f"the brokers have not the transactions that exactly once needs ({error}): use newer ones; {_OTHER_WAY}"
        ) from error
    producer.begin_transaction()


def decisions(
    admin: Admin, names: SinkNames, candidates: Sequence[str] = (), *, stable: bool = False
) -> list[Decision]:
    """What was decided of a sink, by topic.

    Args:
        admin: Asks.
        names: Of the sink.
        candidates: Topics where something may be about to be decided.
        stable: Whether that is waited for.
    """
    group = names.decisions
    found = admin.list_group_offsets(group)
    if stable:
        wanted = {TopicPartition(topic, 0) for topic in candidates} | set(found)
        found = admin.list_group_offsets(group, wanted, require_stable=True)
    return [Decision.read(group, tp.topic, offset) for tp, offset in found.items()]


def _recorded(admin: Admin, names: SinkNames, index: int, batch: int) -> TaskRecord | None:
    """What is committed of this task of this batch, as far as it can be seen; the driver looks again."""
    try:
        decision = newest(decisions(admin, names))
        check_batch(names, decision, batch)
        if decision is None or decision.batch != batch:
            return None
        check_anchor(names, decision)
        group, tp = names.records(index, decision.anchor)
        offset = admin.list_group_offsets(group).get(tp)
    except KafkaError as error:
        if isinstance(error, ExactlyOnceError | AuthorizationError):
            raise
        raise ExactlyOnceError(
            f"the offsets of the exactly-once sink cannot be read ({error}); {_OTHER_WAY}"
        ) from error
    if offset is None or offset.offset != batch:
        return None
    return TaskRecord.read(group, offset)


def _free_number(admin: Admin, names: SinkNames, index: int, attempt: int) -> int:
    """The first number from the attempt's on whose transactional id nobody has a transaction open with.

    Numbers of attempts begin anew with each attempt at a stage, so one that has written its rows and waits for the
    driver may have the same number: to begin with its id would abort what it has written.
    """
    number = attempt
    while True:
        name = names.task_id(index, number)
        try:
            if admin.describe_transactions([name])[name].state != "Ongoing":
                return number
        except (TransactionalIdNotFoundError, UnsupportedVersionError):  # Kafka before 3.0 does not tell
            return number
        number += 1


def _query(context: Task) -> str:
    return f"kclient-{_property(context, 'sql.streaming.queryId')}"


def _property(context: Task, name: str) -> str:
    found: str | None = context.getLocalProperty(name)
    if found is None:
        raise ExactlyOnceError(f"Spark does not tell this task {name}, which exactly once needs; {_OTHER_WAY}")
    return found


def outcomes_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskOutcome]:
    """What tasks have told, in the order of their indexes; those that failed told nothing."""
    found: Mapping[int, TaskOutcome] = {one.index: one for one in messages if isinstance(one, TaskOutcome)}
    return [found[index] for index in sorted(found)]
