"""What the exactly-once sink keeps in committed offsets, and what follows from it; no I/O here.

Three kinds of names and two kinds of offsets, all beginning with the sink's id: `docs/internals/spark-sink.md` says why
these suffice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kclient.arguments import shown
from kclient.errors import KafkaError
from kclient.spark.told_offsets import told_with
from kclient.types import OffsetAndMetadata, TopicPartition

FORMAT = 2
"""Of the offsets' metadata; a newer one is refused. 2 tells of topics: the anchor, and those that were written to."""
_WITNESSES = 64
"""In so many topics of a batch the decision is told, beside the anchor: one may be deleted, and its offsets with it."""
_OTHER_WRITE = (
    "Two writes cannot share an exactlyOnce.id (two of one foreachBatch neither), and each batch of one has its own "
    "exactlyOnce.batch."
)
_GO_ON = (
    "Give the option exactlyOnce.id a new name: then this batch is written as a whole, and what is in other topics of "
    "it is there twice"
)


class ExactlyOnceError(KafkaError):
    """An exactly-once write cannot go on without putting it at risk; the message says what to do."""


class SinkNames(NamedTuple):
    """The names that belong to a sink.

    Attributes:
        sink: its id.
    """

    sink: str

    @property
    def driver_id(self) -> str:
        """The `transactional.id` of whoever decides: a newer driver fences an older one."""
        return f"{self.sink}-driver"

    @property
    def decisions(self) -> str:
        """The group whose offset is the last batch that was decided about."""
        return f"{self.sink}-driver"

    def task_id(self, index: int, number: int) -> str:
        """The `transactional.id` of an attempt at a task: the task's index, then the number of the attempt."""
        return f"{self.sink}-{index}-{number}"

    def records(self, index: int, anchor: Anchor) -> tuple[str, TopicPartition]:
        """The group and the partition whose offset is the last batch of which a task's rows are committed.

        A partition has to exist, so that more tasks than partitions need several groups.
        """
        return f"{self.sink}-{index // anchor.partitions}", TopicPartition(anchor.topic, index % anchor.partitions)

    def is_task(self, transactional_id: str) -> bool:
        """Whether it is an id of a task of this sink."""
        return re.fullmatch(rf"{re.escape(self.sink)}-\d+-\d+", transactional_id, re.ASCII) is not None


class Anchor(NamedTuple):
    """Where offsets of a batch are committed: offsets need a topic, and one with so many partitions.

    Attributes:
        topic: the topic.
        partitions: how many of its partitions are used: those that it had when the batch was first decided about.
    """

    topic: str
    partitions: int


class TaskRows(NamedTuple):
    """The rows that a task was given.

    Attributes:
        rows: how many.
        fingerprint: of them (`fingerprint.RowsSeen`).
    """

    rows: int
    fingerprint: str


@dataclass(frozen=True)
class Decision:
    """What a driver has decided before it ends any transaction of a batch.

    Attributes:
        batch: the batch's id.
        anchor: where its offsets are.
        tasks: how many tasks it has.
        fingerprint: of the rows of all tasks.
        numbers: the greatest number of an attempt among those that are to be committed.
        told_by: the topic whose offset told it; empty where it is being made.
    """

    batch: int
    anchor: Anchor
    tasks: int
    fingerprint: str
    numbers: int
    told_by: str = ""

    def offsets(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetAndMetadata]:
        """As it is committed: at the anchor, and at other topics of the batch, which may outlive that.

        Args:
            topics: Those that the batch is written to.
        """
        places = sorted({self.anchor.topic, *sorted(topics)[:_WITNESSES]})
        return {TopicPartition(topic, 0): self._offset() for topic in places}

    def _offset(self) -> OffsetAndMetadata:
        told = {
            "format": FORMAT,
            "tasks": self.tasks,
            "rows": self.fingerprint,
            "numbers": self.numbers,
            "partitions": self.anchor.partitions,
            "anchor": self.anchor.topic,
        }
        return OffsetAndMetadata(self.batch, json.dumps(told, separators=(",", ":")))

    @classmethod
    def read(cls, group: str, topic: str, offset: OffsetAndMetadata) -> Decision:
        """As it was committed.

        Raises:
            ExactlyOnceError: It was not, or by a newer kclient.
        """
        told = told_with(group, offset, FORMAT, ExactlyOnceError, _foreign)
        try:
            anchor = Anchor(str(told.get("anchor", topic)), int(told["partitions"]))
            return cls(offset.offset, anchor, int(told["tasks"]), str(told["rows"]), int(told["numbers"]), topic)
        except (KeyError, TypeError, ValueError):
            raise _foreign(group, offset) from None


@dataclass(frozen=True)
class TaskRecord:
    """That a task's rows of a batch are committed: in the same transaction as the rows themselves.

    Attributes:
        batch: the batch's id.
        tasks: how many tasks it has.
        written: the rows.
        topics: the mark of the topics that have them (`mark_of`); empty where an older kclient has committed it.
    """

    batch: int
    tasks: int
    written: TaskRows
    topics: str

    def offset(self) -> OffsetAndMetadata:
        """As it is committed."""
        told = {
            "format": FORMAT,
            "tasks": self.tasks,
            "count": self.written.rows,
            "rows": self.written.fingerprint,
            "topics": self.topics,
        }
        return OffsetAndMetadata(self.batch, json.dumps(told, separators=(",", ":")))

    @classmethod
    def read(cls, group: str, offset: OffsetAndMetadata) -> TaskRecord:
        """As it was committed.

        Raises:
            ExactlyOnceError: It was not, or by a newer kclient.
        """
        told = told_with(group, offset, FORMAT, ExactlyOnceError, _foreign)
        try:
            written = TaskRows(int(told["count"]), str(told["rows"]))
            return cls(offset.offset, int(told["tasks"]), written, str(told.get("topics", "")))
        except (KeyError, TypeError, ValueError):
            raise _foreign(group, offset) from None


def _foreign(group: str, offset: OffsetAndMetadata) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"the group {group} has an offset that no exactly-once sink has committed ({shown(offset.metadata)}): give "
        "the option exactlyOnce.id a name that no other group has"
    )


def newest(decisions: Iterable[Decision]) -> Decision | None:
    """The one that counts: there is one for each topic that was written to; the anchor's own comes first."""
    return max(decisions, key=lambda one: (one.batch, one.told_by == one.anchor.topic), default=None)


def mark_of(topics: Mapping[str, str]) -> str:
    """What a record keeps of the topics that its rows went to, by their ids: metadata of offsets are short."""
    return hashlib.sha256(json.dumps(sorted(topics.items())).encode()).hexdigest()[:16]


def fingerprint_of(tasks: Sequence[TaskRows]) -> str:
    """Of the rows of a whole batch, whose tasks are in order."""
    told = json.dumps([[task.rows, task.fingerprint] for task in tasks])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def check_batch(names: SinkNames, decision: Decision | None, batch: int) -> None:
    """Refuse a batch that is older than what was decided last.

    Raises:
        ExactlyOnceError: It is.
    """
    if decision is not None and decision.batch > batch:
        raise ExactlyOnceError(
            f"batch {batch} of the exactly-once sink {names.sink} cannot be written: batch {decision.batch} was "
            "written already. The checkpoint was restored from a backup or made anew, or two queries share the id: "
            "give the option exactlyOnce.id a new name, and what lies between is written again; or restore the "
            "checkpoint"
        )


def check_replay(
    names: SinkNames, decision: Decision, recorded: Mapping[int, TaskRecord], tasks: Sequence[TaskRows]
) -> None:
    """Refuse a batch that is done again with other rows than those of which a part is committed.

    Args:
        names: Of the sink.
        decision: What was decided when it was done before.
        recorded: By index of the task, what is committed of it.
        tasks: What the tasks have now.

    Raises:
        ExactlyOnceError: They differ.
    """
    if not recorded:
        return
    about = f"batch {decision.batch} of the exactly-once sink {names.sink}"
    remedy = (
        "Rows that depend on the time, on chance or on a table that has changed, another topic, or other settings "
        "(minPartitions, spark.sql.shuffle.partitions, adaptive execution) make such a difference: run it once more "
        f"as it was before. {_OTHER_WRITE} "
        "If that cannot be, give the option exactlyOnce.id a new name: then this batch is written as a whole, and what "
        "was committed of it before is there twice"
    )
    if decision.tasks != len(tasks):
        raise ExactlyOnceError(
            f"{about} is done again with {len(tasks)} tasks, and it had {decision.tasks}, of which {len(recorded)} are "
            f"committed already. {remedy}"
        )
    for index, record in sorted(recorded.items()):
        check_task(names, index, record, tasks[index])
    if decision.fingerprint != fingerprint_of(tasks):
        raise ExactlyOnceError(
            f"{about} is done again with other rows than before in tasks that are not committed yet, while "
            f"{len(recorded)} of {len(tasks)} are. {remedy}"
        )


def check_anchor(names: SinkNames, decision: Decision) -> None:
    """Refuse to do a batch again whose records went with the topic that held them, while other topics are left.

    Raises:
        ExactlyOnceError: They did.
    """
    if decision.told_by != decision.anchor.topic:
        raise ExactlyOnceError(
            f"batch {decision.batch} of the exactly-once sink {names.sink} was decided about, and the topic "
            f"{decision.anchor.topic}, which held the records of what is committed of it, was deleted since (or its "
            f"offsets in the group {names.decisions} were): nobody knows which of the rows in other topics are there. "
            f"{_GO_ON}"
        )


def check_topics(names: SinkNames, index: int, record: TaskRecord, topics: Mapping[str, str]) -> None:
    """Refuse to skip a task whose rows went with a topic.

    Args:
        names: Of the sink.
        index: The task's.
        record: That its rows are committed.
        topics: The topics of its rows as they are now, with their ids.

    Raises:
        ExactlyOnceError: They are not those that the rows were committed to.
    """
    if record.topics and record.topics != mark_of(topics):
        raise ExactlyOnceError(
            f"the rows of task {index} of batch {record.batch} of the exactly-once sink {names.sink} were committed, "
            f"and a topic of them ({', '.join(sorted(topics)) or 'all are missing'}) was deleted since, or created "
            f"again: what went to it is gone. {_GO_ON}"
        )


def check_task(names: SinkNames, index: int, record: TaskRecord, now: TaskRows) -> None:
    """Refuse a task that is done again with other rows than those that are committed.

    Raises:
        ExactlyOnceError: It is.
    """
    if record.written != now:
        raise ExactlyOnceError(
            f"task {index} of batch {record.batch} of the exactly-once sink {names.sink} is done again with other "
            f"rows: {record.written.rows} rows are committed (fingerprint {record.written.fingerprint}), and now there "
            f"are {now.rows} ({now.fingerprint}). Rows that depend on the time, on chance or on a table that has "
            "changed, or another topic, make such a difference: run it once more as it was before. "
            f"{_OTHER_WRITE} If it cannot be run as before, give the option exactlyOnce.id a new name: then this batch "
            "is written as a whole, and what was committed of it before is there twice"
        )
