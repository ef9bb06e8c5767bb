"""What the driver of an exactly-once write does: it decides which transactions of its tasks count, and ends them.

`docs/internals/spark-sink.md` proves the order of the steps by cases.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.config import ProducerConfig
from kclient.errors import ConfigError, KafkaError, ProducerFencedError, UnsupportedVersionError
from kclient.spark.cluster import LiveCluster, open_admin
from kclient.spark.sink_records import (
    Anchor,
    Decision,
    ExactlyOnceError,
    SinkNames,
    TaskRecord,
    check_anchor,
    check_batch,
    check_replay,
    check_topics,
    fingerprint_of,
    mark_of,
    newest,
)
from kclient.spark.sink_tasks import CLIENT, TaskOutcome, begin, decisions, telling_rights
from kclient.spark.written_topics import replaced, told, topic_ids
from kclient.types import ConsumerGroupMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.spark.write_options import WriteOptions
    from kclient.sync import Admin, Producer
    from kclient.sync.open_transactions import OpenTransaction

logger: logging.Logger = logging.getLogger("kclient.spark")

_DECIDING_MS = 60_000
"""How long a transaction of the driver's own, of a single offset, may take."""


@dataclass(frozen=True)
class _Plan:
    """What is to be done about a batch.

    Attributes:
        decision: what is decided.
        topics: the topics of all rows.
        committed: the tasks whose transactions are to be committed.
        aborted: transactions of tasks whose rows are committed already.
    """

    decision: Decision
    topics: Sequence[str]
    committed: Sequence[TaskOutcome]
    aborted: Sequence[OpenTransaction]


def commit_batch(options: WriteOptions, batch: int, outcomes: Sequence[TaskOutcome]) -> int:
    """Commit a batch of which every task is through: each task's rows, unless they are already.

    Args:
        options: Of the write.
        batch: The batch's id.
        outcomes: What each task told, in order.

    Returns:
        How many rows this has committed.

    Raises:
        ExactlyOnceError: Another driver has taken over, the rows are not those of which a part is committed, or
            transactions were aborted before: then the batch has to be done again. Or a topic of the rows was deleted.
        KafkaError: A coordinator has not answered in time; the batch has to be done again.
    """
    if [outcome.index for outcome in outcomes] != list(range(len(outcomes))):
        raise ExactlyOnceError(
            f"batch {batch} has messages of tasks {[outcome.index for outcome in outcomes]} only: Spark has to give "
            "those of all tasks; nothing of it was committed"
        )
    names = SinkNames(outcomes[0].sink)
    if not any(outcome.rows for outcome in outcomes) and not _decided(options, names, batch):
        return 0
    with telling_rights(names), _deciding(options, names) as producer, LiveCluster(options.settings) as cluster:
        admin = cluster.admin
        _check_topics(cluster, batch, outcomes, _NOTHING)
        begin(producer)  # from here on no older driver can decide
        plan = _plan(producer, admin, names, batch, outcomes)
        if plan.committed:
            try:
                _decide(producer, names, plan)
                _commit(options, producer, names, plan)
            except KafkaError:
                _check_topics(cluster, batch, outcomes, _AMID)  # without its topic nothing of this goes on
                raise
        else:
            producer.abort_transaction()
        _check_topics(cluster, batch, outcomes, _AMID)
        if plan.aborted:
            from kclient.sync.open_transactions import abort_open

            abort_open(producer, plan.aborted, timeout=patience(options))
        if options.once:
            _forget(admin, names, plan)
    rows = sum(outcome.rows for outcome in plan.committed)
    skipped = sum(outcome.rows for outcome in outcomes) - rows
    if skipped:
        logger.warning("batch %d: %d rows were committed before, and are skipped; %d now", batch, skipped, rows)
    _warn_of_time(options, plan.committed)
    return rows


_NOTHING = (
    "Nothing of this batch was committed: do it again (a query that is restarted does), and it is written as a whole"
)
_AMID = (
    "What was committed of this batch to other topics is there. Do the batch again (a query that is restarted does): "
    "it is written as a whole if all of its topics are new ones; else it is refused, and the option exactlyOnce.id "
    "says how to go on"
)


def _check_topics(cluster: LiveCluster, batch: int, outcomes: Iterable[TaskOutcome], remedy: str) -> None:
    """Whether the topics that tasks have written to are still those: rows go with a topic, and commits tell nothing.

    Raises:
        ExactlyOnceError: One is not.
    """
    written = [outcome.topics for outcome in outcomes]
    now = topic_ids(cluster, {name for topics in written for name in topics})
    gone = {each.name: each for topics in written for each in replaced(topics, now)}
    if gone:
        raise ExactlyOnceError(
            f"{told([gone[name] for name in sorted(gone)])} since tasks of batch {batch} wrote to it, and their rows "
            f"are gone with it. {remedy}"
        )


def _decided(options: WriteOptions, names: SinkNames, batch: int) -> bool:
    """Whether a batch that is without rows now was decided about before: then it had some."""
    if options.once:
        return False
    with telling_rights(names), open_admin(options.settings) as admin:
        before = newest(decisions(admin, names))
    check_batch(names, before, batch)
    return before is not None and before.batch == batch


def abort_batch(options: WriteOptions, sink: str, outcomes: Iterable[TaskOutcome]) -> None:
    """Abort what is open of a batch that failed. What is committed of it stays, and is skipped when it is done again.

    It raises nothing: the batch has failed already, and what cannot be reached is aborted by its time-out.
    """
    from kclient.sync import Producer
    from kclient.sync.open_transactions import abort_open

    names = SinkNames(sink)
    try:
        with Producer({**CLIENT, **options.settings}) as producer, open_admin(options.settings) as admin:
            known = [outcome.transaction for outcome in outcomes if outcome.transaction is not None]
            abort_open(producer, known, timeout=patience(options))
            _fence(admin, _open_ids(admin, names))
    except KafkaError as error:
        logger.warning(
            "transactions of a batch that failed may be open until transaction.timeout.ms is over, which readers of "
            "what is committed wait for: %s", error,
        )  # fmt: skip


def _deciding(options: WriteOptions, names: SinkNames) -> Producer:
    from kclient.sync import Producer

    told = options.settings.get("transaction.timeout.ms")
    longest = _DECIDING_MS if told is None else min(_DECIDING_MS, int(told))  # brokers may allow no more than told
    own = {"transactional.id": names.driver_id, "transaction.timeout.ms": str(longest)}
    return Producer({**CLIENT, **options.settings, **own})


def patience(options: WriteOptions) -> float:
    """Seconds for which a coordinator is asked again."""
    return ProducerConfig.parse({**CLIENT, **options.settings}).max_block_ms / 1000


# ------------------------------------------------------------------ what is to be done


def _plan(producer: Producer, admin: Admin, names: SinkNames, batch: int, outcomes: Sequence[TaskOutcome]) -> _Plan:
    topics = sorted({topic for outcome in outcomes for topic in outcome.topics})
    before = newest(decisions(admin, names, topics, stable=True))
    check_batch(names, before, batch)
    again = before is not None and before.batch == batch
    ours = {outcome.transaction.transactional_id for outcome in outcomes if outcome.transaction is not None}
    others = set(_open_ids(admin, names))
    if before is not None and again:
        check_anchor(names, before)
        # known without any list: whatever was decided to be committed has one of these ids
        others |= {
            names.task_id(index, number) for index in range(before.tasks) for number in range(before.numbers + 1)
        }
    _fence(admin, others - ours)
    recorded = _recorded(admin, names, before) if before is not None and again else {}
    if before is not None and again:
        check_replay(names, before, recorded, [outcome.written for outcome in outcomes])
        for index, record in sorted(recorded.items()):
            check_topics(names, index, record, outcomes[index].topics)
        anchor = before.anchor
    else:
        anchor = Anchor(topics[0], len(producer.partitions_for(topics[0])))
    committed = [each for each in outcomes if each.transaction is not None and each.index not in recorded]
    missing = [each.index for each in outcomes if each.skipped and each.index not in recorded]
    if missing:
        raise ExactlyOnceError(
            f"tasks {missing} of batch {batch} found their rows committed, and the driver does not: the offsets of the "
            f"groups {names.sink}-… were deleted amid the batch; do it again"
        )
    numbers = max((each.number for each in committed), default=0)
    decision = Decision(batch, anchor, len(outcomes), fingerprint_of([each.written for each in outcomes]), numbers)
    aborted = [each.transaction for each in outcomes if each.transaction is not None and each.index in recorded]
    return _Plan(decision, topics, committed, aborted)


def _recorded(admin: Admin, names: SinkNames, decision: Decision) -> dict[int, TaskRecord]:
    """What is committed of a batch that is done again; the transactions that could change it are ended."""
    wanted: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for index in range(decision.tasks):
        group, tp = names.records(index, decision.anchor)
        wanted[group][tp] = index
    found = {}
    for group, indexes in wanted.items():
        for tp, offset in admin.list_group_offsets(group, indexes, require_stable=True).items():
            if offset.offset == decision.batch:
                found[indexes[tp]] = TaskRecord.read(group, offset)
    return found


def _open_ids(admin: Admin, names: SinkNames) -> list[str]:
    """The ids of the sink's tasks that have a transaction open, as far as the brokers tell."""
    try:
        listed = admin.list_transactions(states=["Ongoing"]).complete()
    except UnsupportedVersionError:  # Kafka before 3.0: what nobody knows of is aborted by its time-out
        return []
    return [row.transactional_id for row in listed if names.is_task(row.transactional_id)]


def _fence(admin: Admin, transactional_ids: Collection[str]) -> None:
    """Abort what is open with these ids. What was to be committed already is, before this returns."""
    if transactional_ids:
        logger.info("other attempts are fenced: %s", ", ".join(sorted(transactional_ids)))
        admin.fence_producers(sorted(transactional_ids))


# ------------------------------------------------------------------ doing it


def _decide(producer: Producer, names: SinkNames, plan: _Plan) -> None:
    """Make the decision known, by a transaction that an older driver cannot commit any more."""
    offsets = plan.decision.offsets(plan.topics)
    try:
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(names.decisions))
        producer.commit_transaction()
    except ProducerFencedError as error:
        raise ExactlyOnceError(
            f"another driver writes to the exactly-once sink {names.sink}: the query runs elsewhere, or another one "
            "has the same option exactlyOnce.id; nothing of this batch was committed here"
        ) from error


def _commit(options: WriteOptions, producer: Producer, names: SinkNames, plan: _Plan) -> None:
    from kclient.sync.open_transactions import TransactionOffsets, commit_open

    ends = []
    for outcome in plan.committed:
        assert outcome.transaction is not None
        group, tp = names.records(outcome.index, plan.decision.anchor)
        record = TaskRecord(plan.decision.batch, plan.decision.tasks, outcome.written, mark_of(outcome.topics))
        ends.append((outcome.transaction, TransactionOffsets(group, {tp: record.offset()})))
    failed = commit_open(producer, ends, timeout=patience(options))
    if failed:
        raise _not_committed(options, plan, failed)


def _not_committed(options: WriteOptions, plan: _Plan, failed: Mapping[str, KafkaError]) -> ExactlyOnceError:
    count, name = len(failed), min(failed)
    waited = time.time() - min(outcome.began for outcome in plan.committed)
    error = ExactlyOnceError(
        f"{count} of {len(plan.committed)} transactions of batch {plan.decision.batch} cannot be committed, the first "
        f"of them {name}: {failed[name]} The oldest was open for {waited:.0f} s, and the brokers abort them after "
        f"kafka.transaction.timeout.ms ({options.settings.get('transaction.timeout.ms')}). Nothing is lost: do the "
        "batch again (a query that is restarted does), and what is committed of it is skipped; raise "
        "kafka.transaction.timeout.ms if it took too long"
    )
    error.__cause__ = failed[name]
    return error


def _forget(admin: Admin, names: SinkNames, plan: _Plan) -> None:
    """Delete the offsets of a sink that no other write can belong to; else brokers do, when they expire."""
    wanted: dict[str, set[TopicPartition]] = defaultdict(set)
    wanted[names.decisions].update(plan.decision.offsets(plan.topics))
    for index in range(plan.decision.tasks):
        group, tp = names.records(index, plan.decision.anchor)
        wanted[group].add(tp)
    try:
        for group, partitions in wanted.items():  # what is decided may be about to be there, and would come back
            admin.list_group_offsets(group, partitions, require_stable=True)
        admin.delete_groups(sorted(wanted))
    except KafkaError as error:
        logger.debug("the groups of a write that is through stay until their offsets expire: %s", error)


def _warn_of_time(options: WriteOptions, committed: Sequence[TaskOutcome]) -> None:
    """Tell early that batches come near what their transactions may take."""
    longest = options.settings.get("transaction.timeout.ms")
    if not committed or longest is None:
        return
    took = time.time() - min(outcome.began for outcome in committed)
    if took > int(longest) / 2000:
        logger.warning(
            "the transactions of a batch were open for %.0f s, and the brokers abort them after %.0f s: raise "
            "kafka.transaction.timeout.ms, or make batches smaller", took, int(longest) / 1000,
        )  # fmt: skip


# ------------------------------------------------------------------ beforehand

_LONGEST_MS = 900_000
"""`transaction.max.timeout.ms` of brokers that do not tell."""
_told: dict[frozenset[tuple[str, str]], int | None] = {}


def with_timeout(options: WriteOptions) -> WriteOptions:
    """The options with the time-out of the tasks' transactions: what was asked for, or the most that brokers allow.

    A transaction is open from its task's first row until the driver ends all of the batch, so the most is best; what
    nobody ends is aborted by the driver of the next batch.

    Raises:
        ConfigError: What was asked for is more than brokers allow.
    """
    longest = _allowed_ms(options)
    wanted = options.settings.get("transaction.timeout.ms")
    if wanted is None:
        return options.with_setting("transaction.timeout.ms", str(min(longest or _LONGEST_MS, _LONGEST_MS)))
    if longest is not None and int(wanted) > longest:
        raise ConfigError(
            f"the option kafka.transaction.timeout.ms={wanted} is more than the brokers allow (their "
            f"transaction.max.timeout.ms is {longest}): lower it, or raise theirs. A batch has to be written and "
            "committed within that time; with exactlyOnce=false it need not"
        )
    return options


def _allowed_ms(options: WriteOptions) -> int | None:
    """`transaction.max.timeout.ms`; None where this user is not told. A process asks once."""
    from kclient import ConfigResource, ConfigResourceType

    key = frozenset(options.settings.items())
    if key not in _told:
        with open_admin(options.settings) as admin:
            broker = ConfigResource(ConfigResourceType.BROKER, str(admin.describe_cluster().nodes[0].id))
            try:
                entry = admin.describe_configs([broker])[broker].get("transaction.max.timeout.ms")
            except KafkaError as error:
                if error.retriable:
                    raise
                logger.info("the brokers' transaction.max.timeout.ms is not told: %s", error)
                entry = None
        _told[key] = None if entry is None or entry.value is None else int(entry.value)
    return _told[key]
