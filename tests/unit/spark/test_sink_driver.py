"""The exactly-once sink without Spark, at a gateway in memory: drivers that come late, twice, or with other rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kclient.acls import AclOperation, ResourceType
from kclient.admin import Listing
from kclient.errors import ConfigError, KafkaTimeoutError
from kclient.spark.sink import KclientStreamWriter
from kclient.spark.sink_driver import abort_batch, commit_batch, with_timeout
from kclient.spark.sink_records import ExactlyOnceError
from kclient.spark.sink_tasks import TaskOutcome, write_in_transaction
from kclient.spark.write_options import WriteOptions
from kclient.sync import Admin, Consumer, Gateway, Producer, open_transactions
from kclient.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.sink_deaths import FakeTask


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    address = f"memory:{uuid.uuid4().hex}"
    with Gateway(htp=address, listen=None):
        yield address


class Sink:
    """A sink of a test's own: a topic of two partitions, that it is called like."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.options = WriteOptions(
            {"bootstrap.servers": address, "transaction.timeout.ms": "600000", "linger.ms": "0"},
            topic,
            exactly_once=True,
            sink=topic,
        )
        self.admin = Admin(bootstrap_servers=address)
        self._address = address

    def task(
        self, index: int, values: Sequence[str], *, batch: int = 0, attempt: int = 0, **settings: str
    ) -> TaskOutcome:
        options = self.options
        for name, value in settings.items():
            options = options.with_setting(name.replace("_", "."), value)
        rows = pa.record_batch([pa.array(values, pa.string())], ["value"])
        return write_in_transaction(options, ["value"], iter([rows]), FakeTask(index, attempt, batch))

    def tasks(self, *values: Sequence[str], batch: int = 0) -> list[TaskOutcome]:
        return [self.task(index, each, batch=batch) for index, each in enumerate(values)]

    def commit(self, outcomes: Sequence[TaskOutcome], batch: int = 0) -> int:
        return commit_batch(self.options, batch, outcomes)

    def committed(self) -> list[str]:
        """What is committed; readers would wait for anything that is open."""
        found: list[str] = []
        with Consumer(
            bootstrap_servers=self._address,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer:
            assigned = [TopicPartition(self.topic, number) for number in range(2)]
            consumer.assign(assigned)
            ends = consumer.end_offsets(assigned)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                found += [record.value.decode() for record in consumer.poll(timeout=1.0)]
        return sorted(found)

    def open_ids(self) -> list[str]:
        listed = self.admin.list_transactions(states=["Ongoing"])
        return [row.transactional_id for row in listed if row.transactional_id.startswith(self.topic)]

    def wait_for_time_out(self, index: int) -> None:
        name = f"{self.topic}-{index}-0"
        while self.admin.describe_transactions([name])[name].state != "CompleteAbort":
            pass


@pytest.fixture
def sink(address: str, topic: str) -> Iterator[Sink]:
    found = Sink(address, topic)
    with found.admin:
        found.admin.create_topic(topic, partitions=2)
        yield found


@pytest.mark.slow
def test_batches_one_after_the_other(sink: Sink) -> None:
    for batch in range(3):
        assert sink.commit(sink.tasks([f"{batch}a"], [f"{batch}b"], [f"{batch}c"], [], batch=batch), batch) == 3
    assert sink.committed() == ["0a", "0b", "0c", "1a", "1b", "1c", "2a", "2b", "2c"]
    assert sink.open_ids() == []


def test_nothing_is_seen_before_the_driver_commits(sink: Sink) -> None:
    outcomes = sink.tasks(["a"], ["b"])
    assert sink.committed() == []
    sink.commit(outcomes)
    assert sink.committed() == ["a", "b"]


def test_a_batch_without_rows(sink: Sink) -> None:
    """Its tasks ask nobody, and where it cannot be done again neither does the driver."""
    nowhere = replace(sink.options, settings={"bootstrap.servers": "127.0.0.1:1"})
    rows = pa.record_batch([pa.array([], pa.string())], ["value"])
    outcome = write_in_transaction(nowhere, ["value"], iter([rows]), FakeTask(0, 0, 0))
    assert commit_batch(replace(nowhere, once=True), 0, [outcome]) == 0
    assert sink.commit([outcome]) == 0
    sink.commit(sink.tasks(["a"], batch=1), 1)
    with pytest.raises(ExactlyOnceError, match="batch 1 was written already"):
        sink.commit([outcome], 0)


def test_it_is_done_again(sink: Sink) -> None:
    """Spark has not noted that the batch is through: tasks skip, and so does the driver."""
    sink.commit(sink.tasks(["a"], ["b"], ["c"]))
    again = sink.tasks(["a"], ["b"], ["c"])
    assert [outcome.skipped for outcome in again] == [True, True, True]
    assert sink.commit(again) == 0
    assert sink.committed() == ["a", "b", "c"]


def test_a_number_is_missed_in_foreach_batch(sink: Sink) -> None:
    sink.options = replace(sink.options, batch=0, unnumbered=True)
    with pytest.raises(ExactlyOnceError, match=r"in foreachBatch the option exactlyOnce\.id needs exactlyOnce\.batch"):
        sink.task(0, ["a"])


def test_a_task_that_told_nothing(sink: Sink) -> None:
    outcomes = sink.tasks(["a"], ["b"], ["c"])
    with pytest.raises(ExactlyOnceError, match=r"messages of tasks \[0, 2\] only"):
        sink.commit([outcomes[0], outcomes[2]])
    writer = KclientStreamWriter(sink.options, ["value"])
    with pytest.raises(ExactlyOnceError, match="1 tasks of batch 0 have told nothing"):
        writer.commit([*outcomes[:2], None], 0)
    assert sink.committed() == []
    writer.abort([*outcomes[:2], None], 0)
    assert sink.open_ids() == []


def test_losers_are_fenced(sink: Sink) -> None:
    """Both attempts at a task have written all; the driver hears of one."""
    sink.task(0, ["a"])
    winner = sink.task(0, ["a"], attempt=1)
    sink.commit([winner])
    assert sink.committed() == ["a"]
    assert sink.open_ids() == []


def test_a_stage_that_is_tried_again_aborts_no_winner(sink: Sink) -> None:
    """The numbers of its attempts begin anew, and a late one has the winner's."""
    winner = sink.task(0, ["a"])
    late = sink.task(0, ["a"])
    assert late.number == winner.number + 1
    sink.commit([winner])
    assert sink.committed() == ["a"]
    assert sink.open_ids() == []


@pytest.mark.slow
def test_transactions_that_took_too_long(sink: Sink) -> None:
    """What was aborted makes the batch fail as a whole, as nobody may do one without a name again."""
    late = sink.task(0, ["a"], transaction_timeout_ms="100")
    outcomes = [late, sink.task(1, ["b"]), sink.task(2, ["c"])]
    sink.wait_for_time_out(0)
    with pytest.raises(
        ExactlyOnceError, match=r"1 of 3 transactions of batch 0 cannot be committed.*do the batch again"
    ) as told:
        sink.commit(outcomes)
    assert "raise kafka.transaction.timeout.ms" in str(told.value)
    abort_batch(sink.options, sink.topic, outcomes)
    assert sink.committed() == []
    again = sink.tasks(["a"], ["b"], ["c"])
    assert sink.commit(again) == 3
    assert sink.committed() == ["a", "b", "c"]


def test_an_abort_undoes_nothing(sink: Sink) -> None:
    outcomes = partly_committed(sink)
    abort_batch(sink.options, sink.topic, outcomes)
    assert sink.committed() == ["a"]
    again = sink.tasks(["a"], ["b"])
    assert [outcome.skipped for outcome in again] == [True, False]
    assert sink.commit(again) == 1
    assert sink.committed() == ["a", "b"]


def partly_committed(sink: Sink) -> list[TaskOutcome]:
    """Task 0 of batch 0 is committed; the driver died before it came to task 1."""
    outcomes = sink.tasks(["a"], ["b"])
    commit_open = open_transactions.commit_open

    def commit_one(producer: Any, transactions: Any, *, timeout: float) -> Mapping[str, Any]:
        assert commit_open(producer, transactions[:1], timeout=timeout) == {}
        raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(open_transactions, "commit_open", commit_one)
        sink.commit(outcomes)
    return outcomes


class Died(Exception):
    """What a driver that is killed cannot do."""


def test_other_rows_in_a_task_that_is_committed(sink: Sink) -> None:
    partly_committed(sink)
    with pytest.raises(ExactlyOnceError, match=r"task 0 of batch 0 .* is done again with other rows: 1 rows"):
        sink.task(0, ["x"])
    assert sink.committed() == ["a"]


@pytest.mark.slow
def test_other_rows_in_a_task_that_is_not_committed(sink: Sink) -> None:
    partly_committed(sink)
    with pytest.raises(ExactlyOnceError, match="with other rows than before in tasks that are not committed yet"):
        sink.commit(sink.tasks(["a"], ["x"]))
    assert sink.committed() == ["a"]
    assert sink.open_ids() == [f"{sink.topic}-1-1"]
    assert sink.commit(sink.tasks(["a"], ["b"])) == 1
    assert sink.committed() == ["a", "b"]
    assert sink.open_ids() == []


@pytest.mark.slow
def test_another_number_of_tasks(sink: Sink) -> None:
    partly_committed(sink)
    with pytest.raises(ExactlyOnceError, match=r"with 3 tasks, and it had 2, of which 1 are committed"):
        sink.commit(sink.tasks(["a"], ["b"], []))
    assert sink.committed() == ["a"]


@pytest.mark.slow
def test_no_rows_any_more(sink: Sink) -> None:
    """A part of the batch is committed, and when it is done again it has no rows at all."""
    partly_committed(sink)
    with pytest.raises(ExactlyOnceError, match=r"task 0 of batch 0 .* is done again with other rows: 1 rows .* are 0"):
        sink.commit(sink.tasks([], []))
    assert sink.commit(sink.tasks(["a"], ["b"])) == 1
    assert sink.committed() == ["a", "b"]


def test_the_same_rows_to_another_topic(sink: Sink) -> None:
    """They are not there: two writes have one id, or the option topic was changed amid a batch."""
    other = f"{sink.topic}-other"
    sink.admin.create_topic(other, partitions=2)
    sink.commit(sink.tasks(["a"], ["b"]))
    sink.options = replace(sink.options, topic=other)
    with pytest.raises(ExactlyOnceError, match=r"other rows.* or another topic.* Two writes cannot share"):
        sink.commit(sink.tasks(["a"], ["b"]))
    assert sink.open_ids() == []


def test_brokers_that_allow_short_transactions_only(topic: str) -> None:
    address = f"memory:{uuid.uuid4().hex}"
    with Gateway(htp=address, listen=None, config={"transaction.max.timeout.ms": "30000"}):
        sink = Sink(address, topic)
        with sink.admin:
            sink.admin.create_topic(topic, partitions=2)
            settings = {"bootstrap.servers": address, "linger.ms": "0"}
            sink.options = with_timeout(replace(sink.options, settings=settings))
            sink.task(0, ["a"])
            assert sink.commit([sink.task(0, ["a"], attempt=1)]) == 1
            assert sink.committed() == ["a"]


class Rights:
    """Allows everything but one thing."""

    def __init__(self, *refused: object) -> None:
        self.refused = refused

    def allows(self, client: object, operation: object, kind: object, name: str) -> bool:
        return (operation, kind) != self.refused

    def allows_any(self, client: object, operation: object, kind: object) -> bool:
        return True


@pytest.mark.parametrize(
    "refused",
    [
        (AclOperation.DESCRIBE, ResourceType.GROUP),
        (AclOperation.READ, ResourceType.GROUP),
        (AclOperation.READ, ResourceType.TOPIC),
        (AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
    ],
    ids=lambda refused: " ".join(each.name for each in refused),
)
def test_rights_that_are_missing(topic: str, refused: tuple[AclOperation, ResourceType]) -> None:
    """All are named at once, whichever the brokers miss first."""
    address = f"memory:{uuid.uuid4().hex}"
    with Gateway(htp=address, listen=None) as gateway:
        sink = Sink(address, topic)
        with sink.admin:
            sink.admin.create_topic(topic, partitions=2)
            gateway._gateway.parts.access.authorizer = Rights(*refused)
            with pytest.raises(
                ExactlyOnceError,
                match=rf"grant this user WRITE on transactional ids and READ on groups that begin with {topic}-, and",
            ):
                sink.commit([sink.task(0, ["a"])])


@pytest.mark.slow
def test_other_rows_where_nothing_is_committed(sink: Sink) -> None:
    """The batch was decided about, and that is all: it may be another one."""
    outcomes = [sink.task(0, ["a"], transaction_timeout_ms="100")]
    sink.wait_for_time_out(0)
    with pytest.raises(ExactlyOnceError):
        sink.commit(outcomes)
    assert sink.commit(sink.tasks(["x"], ["y"])) == 2
    assert sink.committed() == ["x", "y"]


@pytest.mark.slow
def test_an_older_batch(sink: Sink) -> None:
    sink.commit(sink.tasks(["a"], batch=5), 5)
    with pytest.raises(ExactlyOnceError, match=r"batch 4 .* cannot be written: batch 5 was written already"):
        sink.task(0, ["b"], batch=4)
    sink.commit(sink.tasks(["b"], batch=6), 6)
    with pytest.raises(ExactlyOnceError, match="restore the checkpoint"):
        sink.commit([replace_batch(sink)], 5)
    assert sink.committed() == ["a", "b"]


def replace_batch(sink: Sink) -> TaskOutcome:
    """A task that began before a later batch was decided about."""
    return sink.task(0, ["c"], batch=7)


def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Have something happen once, when a driver has decided and has not ended anything yet."""
    commit_open = open_transactions.commit_open
    left = [work]

    def commit(producer: Any, transactions: Any, *, timeout: float) -> Mapping[str, Any]:
        if left:
            left.pop()()
        return commit_open(producer, transactions, timeout=timeout)

    monkeypatch.setattr(open_transactions, "commit_open", commit)


@pytest.mark.slow
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
def test_a_driver_that_only_seemed_dead(sink: Sink, monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    """It has decided, then another one does the batch; what it goes on with is refused.

    A list of what is open may miss transactions (a coordinator that moves is asked too early and too late), so that
    nothing may depend on it.
    """
    if not listed:
        monkeypatch.setattr(Admin, "list_transactions", lambda *_, **__: Listing())
    between(monkeypatch, lambda: sink.commit(sink.tasks(["a"], ["b"], ["c"])))
    with pytest.raises(ExactlyOnceError, match="3 of 3 transactions of batch 0 cannot be committed"):
        sink.commit(sink.tasks(["a"], ["b"], ["c"]))
    monkeypatch.undo()
    assert sink.committed() == ["a", "b", "c"]
    assert sink.open_ids() == []


@pytest.mark.slow
def test_a_driver_that_was_fenced_before_it_decided(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = sink.tasks(["a"], ["b"])
    partitions_for = Producer.partitions_for
    left = [sink]

    def asked(producer: Producer, topic: str) -> Any:
        if left:
            left.pop()
            sink.commit(sink.tasks(["a"], ["b"]))
        return partitions_for(producer, topic)

    monkeypatch.setattr(Producer, "partitions_for", asked)
    with pytest.raises(ExactlyOnceError, match="another driver writes to the exactly-once sink"):
        sink.commit(outcomes)
    assert sink.committed() == ["a", "b"]


def test_abort_leaves_nothing_open(sink: Sink) -> None:
    """Neither what the driver has heard of nor what it has not."""
    sink.task(1, ["lost"])
    abort_batch(sink.options, sink.topic, [sink.task(0, ["a"])])
    assert sink.open_ids() == []
    assert sink.committed() == []


def test_abort_raises_nothing(sink: Sink) -> None:
    nowhere = sink.options.with_setting("bootstrap.servers", "127.0.0.1:1")
    for name in ("max.block.ms", "default.api.timeout.ms", "request.timeout.ms"):
        nowhere = nowhere.with_setting(name, "100")
    abort_batch(nowhere.with_setting("delivery.timeout.ms", "200"), sink.topic, [sink.task(0, ["a"])])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("", "that no exactly-once sink has committed"),
        ("[1]", "that no exactly-once sink has committed"),
        ('{"format":1}', "that no exactly-once sink has committed"),
        ('{"format":3}', r"written by a newer kclient \(format 3, and this one knows 2\)"),
    ],
)
def test_groups_of_others(sink: Sink, metadata: str, message: str) -> None:
    tp = TopicPartition(sink.topic, 0)
    sink.admin.alter_group_offsets(f"{sink.topic}-driver", {tp: OffsetAndMetadata(0, metadata)})
    with pytest.raises(ExactlyOnceError, match=message):
        sink.task(0, ["a"])


def test_offsets_that_are_about_to_be_committed_are_waited_for(sink: Sink) -> None:
    """`list_group_offsets(require_stable=True)`: with the partition named, also where it has none yet."""
    tp = TopicPartition(sink.topic, 0)
    with Producer(
        bootstrap_servers=sink.options.settings["bootstrap.servers"], transactional_id=sink.topic
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: 3}, ConsumerGroupMetadata(sink.topic))
        assert sink.admin.list_group_offsets(sink.topic, [tp]) == {}
        with pytest.raises(KafkaTimeoutError, match="offset cannot be read"):
            sink.admin.list_group_offsets(sink.topic, [tp], require_stable=True, timeout=0.2)
        producer.commit_transaction()
    assert sink.admin.list_group_offsets(sink.topic, [tp], require_stable=True) == {tp: OffsetAndMetadata(3)}


def test_the_time_out_is_what_brokers_allow(sink: Sink) -> None:
    settings = {name: value for name, value in sink.options.settings.items() if name != "transaction.timeout.ms"}
    given = replace(sink.options, settings=settings)
    assert with_timeout(given).settings["transaction.timeout.ms"] == "900000"
    shorter = given.with_setting("transaction.timeout.ms", "5000")
    assert with_timeout(shorter) == shorter
    with pytest.raises(ConfigError, match=r"kafka\.transaction\.timeout\.ms=900001 is more than the brokers allow"):
        with_timeout(given.with_setting("transaction.timeout.ms", "900001"))
