"""What the tasks of a replay or a mirror do: records in order, in transactions that hold the position behind them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kclient.errors import (
    DeliveryError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from kclient.spark.cluster import LiveCluster, TopicView
from kclient.spark.pipelines.archive_reader import PartitionReader, is_sorted, offsets_of
from kclient.spark.pipelines.archive_view import ArchivedPartition
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.pipelines.offset_points import OffsetPoint, with_point
from kclient.spark.pipelines.rate_limiter import Rate, RateLimiter
from kclient.spark.pipelines.replay_records import REPLAY, Claim, Position, ReplayNames, Work, check_target
from kclient.spark.written_topics import replaced, told, topic_ids
from kclient.types import ConsumerGroupMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from kclient import Delivery
    from kclient.sync import Admin, Producer

RECEIPT = "receipt string"
CLIENT = {"client.id": "kclient-replay"}
_COLUMNS = ("key", "value", "headers", "offset", "timestamp")
_TRANSACTION_S = 5.0
_TRANSACTION_BYTES = 64 << 20
"""A transaction is committed after so many seconds or bytes: readers of what is committed see them then."""


class SourcePartition(Protocol):
    """A partition that records come from."""

    @property
    def topic(self) -> str:
        """Its topic."""
        ...

    @property
    def topic_id(self) -> str:
        """Which topic of that name."""
        ...

    @property
    def partition(self) -> int:
        """Its number."""
        ...


class Records(Protocol):
    """The records of one partition, from one offset to before another one."""

    lost: int
    """How many offsets were gone, and were gone past since that was allowed."""

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Them, with their offsets, which only grow."""
        ...

    def check(self) -> None:
        """Called before what was given is committed: raises where it may not be."""
        ...


class ReplaySource(Protocol):
    """What records come from; it goes to the tasks."""

    def records(self, partition: SourcePartition, start: int, end: int) -> Records:
        """Those of a partition."""
        ...


@dataclass(frozen=True)
class ArchiveRecords:
    """An archive as a source.

    Attributes:
        folder: its folder.
    """

    folder: Path

    def records(self, partition: SourcePartition, start: int, end: int) -> Records:
        assert isinstance(partition, ArchivedPartition)
        return _Archived(self.folder, partition, start, end)


class _Archived:
    lost = 0

    def __init__(self, folder: Path, partition: ArchivedPartition, start: int, end: int) -> None:
        self._reader = PartitionReader(folder, partition, start, end, _COLUMNS)
        self._place = TopicPartition(partition.topic, partition.partition)
        self._reached = start

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        for batch in self._reader.batches():
            _check_order(batch, self._reached, self._place)
            self._reached = offsets_of(batch)[-1] + 1
            yield batch

    def check(self) -> None:
        """An archive's records stay what they are."""


@dataclass(frozen=True)
class Replayed:
    """One source partition, and what becomes of it.

    Attributes:
        source: where its records are.
        target: the topic that they go to.
        start: the first offset, where the replay begins.
        end: the offset behind the last one.
        anchors: how many partitions of the target hold positions.
        target_id: the target's id when it was claimed.
    """

    source: SourcePartition
    target: str
    start: int
    end: int
    anchors: int
    target_id: str = ""

    @property
    def place(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.source.topic, self.source.partition)


@dataclass(frozen=True)
class ReplayJob:
    """What all tasks of a run share.

    Attributes:
        replay: the replay's id.
        run: the run's own name.
        source: where the records are.
        manifest: the number of the archive's newest manifest; 0 of a mirror.
        settings: the producer's.
        times: from when to before when, in microseconds; None is from the first, or to the last.
        keep_partitions: whether a record goes to the partition of its source's number.
        rate: of all tasks together.
        work: what it is.
        notes_points: whether positions tell which offsets of the target belong to which of the source.
    """

    replay: str
    run: str
    source: ReplaySource
    manifest: int
    settings: Mapping[str, str] = field(repr=False)  # some are passwords
    times: tuple[int | None, int | None] = (None, None)
    keep_partitions: bool = True
    rate: Rate = field(default_factory=Rate)
    work: Work = REPLAY
    notes_points: bool = False


@dataclass(frozen=True)
class PartitionReceipt:
    """What a task did about one source partition.

    Attributes:
        topic: the source topic.
        partition: the source partition.
        target: the target topic.
        start: the offset of the source that it began at.
        end: the one where the next run goes on.
        records: how many were written.
        size: the bytes of their keys, values and headers.
        total: how many records this and all earlier runs have written.
        lost: how many offsets were gone.
    """

    topic: str
    partition: int
    target: str
    start: int
    end: int
    records: int
    size: int
    total: int
    lost: int = 0


class Replaying:
    """The tasks: each gets the number of its share, and gives a receipt for each partition in it.

    Args:
        job: What they share.
        shares: The partitions of each task, which does one after the other; and its part of the rate, from 0 to 1.
    """

    def __init__(self, job: ReplayJob, shares: Sequence[tuple[Sequence[Replayed], float]]) -> None:
        self._job = job
        self._shares = tuple(shares)

    def run(self, numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `id long` to `RECEIPT`."""
        import pyarrow

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                partitions, part = self._shares[number]
                throttle = RateLimiter(self._job.rate.share(part), time.monotonic())
                rate = self._job.rate.share(part)
                texts = [json.dumps(asdict(_replay(self._job, each, rate, throttle))) for each in partitions]
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array(texts, pyarrow.string())], names=["receipt"])


def receipt_of(text: str) -> PartitionReceipt:
    """A receipt as a task gave it."""
    return PartitionReceipt(**json.loads(text))


def _replay(job: ReplayJob, todo: Replayed, rate: Rate, throttle: RateLimiter) -> PartitionReceipt:
    """One partition, from its position on.

    Raises:
        PipelineError: another run goes on with the work, or what it has to know is not there any more.
        ArchiveError: files are damaged, or hold an offset twice.
        KafkaError: the target refuses a record, or cannot be reached.
    """
    from kclient.sync import Producer

    names = ReplayNames(job.replay, todo.source.topic)
    settings = {**CLIENT, **job.settings, "transactional.id": names.transactional_id(todo.source.partition)}
    try:
        with Producer(settings) as producer, LiveCluster(settings) as cluster:
            producer.init_transactions()  # what an earlier attempt left open is ended, and it cannot commit any more
            before = _position(cluster.admin, job, names, todo)
            # brokers may keep a former topic's positions for a while
            check_targets(cluster, job.replay, {todo.target: todo.target_id}, job.work)
            receipt = _Partition(job, todo, producer, rate, throttle, before).replay()
            check_targets(cluster, job.replay, {todo.target: todo.target_id}, job.work)
            return receipt
    except (ProducerFencedError, InvalidProducerEpochError) as error:
        raise _ended(job, todo, settings) from error
    except TransactionAbortableError as error:  # what made it one is what people can do something about
        if isinstance(error.__cause__, InvalidProducerEpochError):
            raise _ended(job, todo, settings) from error
        raise _told(job, todo, error.__cause__ or error) from None
    except DeliveryError as error:
        raise _told(job, todo, error.failures[0].error if error.failures else error) from None


def _told(job: ReplayJob, todo: Replayed, error: BaseException) -> BaseException:
    """What the target has refused a record for, and what can be done where its text does not say."""
    if isinstance(error, InvalidTimestampError):
        return job.work.failure(
            f"{todo.target} takes no record with a timestamp that a record of {todo.place} has ({error}): raise its"
            " message.timestamp.before.max.ms or message.timestamp.after.max.ms, which by Kafka 4's default is an hour"
        )
    return error


def _ended(job: ReplayJob, todo: Replayed, settings: Mapping[str, str]) -> KafkaError:
    """Why the brokers have ended this attempt's transactions: another run has begun, or one was open for too long."""
    noun, failure = job.work
    names, anchor = ReplayNames(job.replay, todo.source.topic), TopicPartition(todo.target, 0)
    with LiveCluster(settings) as cluster:
        claim = cluster.admin.list_group_offsets(names.claims, [anchor]).get(anchor)
    if claim is not None and Claim.read(names.claims, claim, job.work).run == job.run:
        longest = settings.get("transaction.timeout.ms", "60000")
        return KafkaTimeoutError(
            f"{todo.place}: a transaction was ended before it was committed: a side did not answer for so long that it"
            f" took more than {longest} ms (transaction.timeout.ms), or Spark has tried the task again; run again, it"
            " goes on"
        )
    return failure(f"another attempt at {todo.place} has begun and goes on with it: the {noun} {job.replay} runs twice")


def _position(admin: Admin, job: ReplayJob, names: ReplayNames, todo: Replayed) -> Position:
    """Where the partition is, once this attempt is the only one that can change that."""
    noun, failure = job.work
    claims = admin.list_group_offsets(names.claims, [(todo.target, 0)], require_stable=True)
    claim = claims.get(TopicPartition(todo.target, 0))
    if claim is None:
        raise failure(
            f"the target {todo.target} was deleted or created again since this run of {job.replay} began, or somebody"
            f" has deleted the group {names.claims}; run again, into a target without records"
        )
    claimed = Claim.read(names.claims, claim, job.work)
    if claimed.run != job.run:
        raise failure(f"another run goes on with the {noun} {job.replay}, and this one is over")
    check_target(names, todo.target, claimed, todo.target_id, job.work)
    group, anchor = names.position(todo.source.partition, todo.target, todo.anchors)
    found = admin.list_group_offsets(group, [anchor], require_stable=True).get(anchor)
    if found is None:
        raise failure(
            f"the position of {todo.place} in the {noun} {job.replay} is gone: committed offsets expire after"
            " offsets.retention.minutes of the brokers, or somebody has deleted the group"
            f" {group}; begin again with another id and a target without records"
        )
    position = Position.read(group, found, job.work)
    check_target(names, todo.target, position, todo.target_id, job.work)
    return position


def check_targets(cluster: TopicView, replay: str, claimed: Mapping[str, str], work: Work = REPLAY) -> None:
    """Whether targets are still the topics that were claimed; else records went with the former ones.

    Args:
        cluster: Is asked for their ids.
        replay: The replay's id, or the mirror's.
        claimed: By target, the id that it had.
        work: Which of them it is.

    Raises:
        PipelineError: One is gone, or another one; of the kind that the work raises.
    """
    gone = replaced(claimed, topic_ids(cluster, claimed))
    if gone:
        raise work.failure(
            f"{told(gone)} while the {work.noun} {replay} wrote to it: what was written to it is gone; run again, into"
            " a target without records, and it begins anew"
        )


class _Partition:
    """Replays one partition: transactions, each of some records and the position behind them."""

    def __init__(
        self, job: ReplayJob, todo: Replayed, producer: Producer, rate: Rate, throttle: RateLimiter, before: Position
    ) -> None:
        self._job = job
        self._todo = todo
        self._producer = producer
        self._rate = rate
        self._throttle = throttle
        self._before = before
        self._records = 0
        self._size = 0
        self._reached = before.offset
        self._pending = 0
        self._began: float | None = None
        self._points = before.points
        self._first: tuple[int, int, Delivery] | None = None
        self._source = job.source.records(todo.source, before.offset, max(todo.end, before.offset))

    def replay(self) -> PartitionReceipt:
        todo, start = self._todo, self._before.offset
        end = max(todo.end, start)
        for batch in self._source.batches():
            offsets = offsets_of(batch)
            for rows in self._pieces(batch):
                self._send(_within(batch.slice(rows.start, len(rows)), self._job.times))
                self._reached = offsets[rows.stop - 1] + 1
                if self._pending >= _TRANSACTION_BYTES or self._open_for() >= _TRANSACTION_S:
                    self._commit()
        self._reached = end
        self._commit()  # also where nothing was left: it says that the position still counts, so that none expires
        source = todo.source
        return PartitionReceipt(
            source.topic, source.partition, todo.target, start, end, self._records, self._size,
            self._before.records + self._records, self._source.lost,
        )  # fmt: skip

    def _pieces(self, batch: pyarrow.RecordBatch) -> Iterator[range]:
        step = self._rate.rows_at_once(batch.num_rows, content_size(batch))
        for first in range(0, batch.num_rows, step):
            yield range(first, min(first + step, batch.num_rows))

    def _send(self, piece: pyarrow.RecordBatch) -> None:
        if not piece.num_rows:
            return
        size = content_size(piece)
        pause = self._throttle.wait(time.monotonic(), piece.num_rows, size)
        if pause:
            if self._open_for() + pause >= _TRANSACTION_S:  # brokers abort one that is open for long
                self._commit()
            time.sleep(pause)
        self._begin()
        number = self._todo.source.partition if self._job.keep_partitions else None
        sent = self._producer.send_arrow(self._todo.target, _as_sent(piece, number))
        if self._job.notes_points and self._first is None:
            self._first = offsets_of(piece)[0], self._before.records + self._records, sent[0]
        self._records += piece.num_rows
        self._size += size
        self._pending += size

    def _open_for(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _begin(self) -> None:
        if self._began is None:
            self._producer.begin_transaction()
            self._began = time.monotonic()

    def _commit(self) -> None:
        self._source.check()
        self._begin()
        self._note_point()
        todo, before = self._todo, self._before
        names = ReplayNames(self._job.replay, todo.source.topic)
        group, anchor = names.position(todo.source.partition, todo.target, todo.anchors)
        reached = Position(
            self._reached, before.records + self._records, self._job.manifest, todo.target_id, self._points
        )
        self._producer.send_offsets_to_transaction({anchor: reached.committed()}, ConsumerGroupMetadata(group))
        self._producer.commit_transaction()
        self._began, self._pending = None, 0

    def _note_point(self) -> None:
        """Where this transaction's first record has come to lie; the position that is committed with it tells it."""
        if self._first is None:
            return
        source, records, delivery = self._first
        self._producer.flush()
        self._points = with_point(self._points, OffsetPoint(source, delivery.result().offset, records))
        self._first = None


def _check_order(batch: pyarrow.RecordBatch, reached: int, place: TopicPartition) -> None:
    """Raises `ArchiveError` where an offset is there twice, in the batch or before it."""
    from pyarrow import compute

    column = batch.column("offset")
    offsets = offsets_of(batch)
    twice = len(column) - compute.count_distinct(column).as_py()
    if twice or offsets[0] < reached or not is_sorted(column):
        raise ArchiveError(
            f"the archive holds offsets of {place} twice, from {offsets[0]} to {offsets[-1]}: kclient pipeline"
            " audit says which; nothing of them was replayed"
        )


def _within(piece: pyarrow.RecordBatch, times: tuple[int | None, int | None]) -> pyarrow.RecordBatch:
    """The records of these times."""
    import pyarrow
    from pyarrow import compute

    start, end = times
    stamps = piece.column("timestamp").view(pyarrow.int64())
    if start is not None:
        kept = compute.greater_equal(stamps, start)
        piece, stamps = piece.filter(kept), stamps.filter(kept)
    if end is not None:
        piece = piece.filter(compute.less(stamps, end))
    return piece


def content_size(batch: pyarrow.RecordBatch) -> int:
    """The bytes of keys, values and headers; not those that Arrow needs to keep them."""
    from pyarrow import compute

    pairs = batch.column("headers").flatten()
    contents = (batch.column("key"), batch.column("value"), pairs.field("key"), pairs.field("value"))
    return sum(compute.sum(compute.binary_length(each)).as_py() or 0 for each in contents)


def _as_sent(piece: pyarrow.RecordBatch, partition: int | None) -> pyarrow.RecordBatch:
    """The columns of `send_arrow`. A record that had no timestamp gets the present one: brokers take none without."""
    import pyarrow
    from pyarrow import compute

    stamps = piece.column("timestamp").view(pyarrow.int64())
    known = compute.if_else(compute.less(stamps, 0), pyarrow.scalar(None, pyarrow.int64()), stamps)
    columns = {
        "key": piece.column("key"),
        "value": piece.column("value"),
        "headers": piece.column("headers"),
        "timestamp": known.view(pyarrow.timestamp("us", "UTC")),
    }
    if partition is not None:
        columns["partition"] = pyarrow.repeat(pyarrow.scalar(partition, pyarrow.int32()), piece.num_rows)
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
