"""Topics that are deleted amid a write, and created again or not: no row is lost in silence."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from kclient import OffsetSpec
from kclient.spark.ranges import DataLossError
from kclient.spark.sink import KclientWriter, WrittenRows, write_rows
from kclient.spark.sink_records import ExactlyOnceError
from kclient.spark.sink_tasks import TaskOutcome, write_in_transaction
from kclient.sync import Gateway
from kclient.types import TopicPartition
from tests.sink_deaths import FakeTask
from tests.unit.spark.test_sink_driver import Sink, between


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    address = f"memory:{uuid.uuid4().hex}"
    with Gateway(htp=address, listen=None):
        yield address


@pytest.fixture
def sink(address: str, topic: str) -> Iterator[Sink]:
    found = Sink(address, topic)
    with found.admin:
        found.admin.create_topic(topic, partitions=2)
        yield found


def recreate(sink: Sink, topic: str | None = None) -> None:
    sink.admin.delete_topic(topic or sink.topic)
    sink.admin.create_topic(topic or sink.topic, partitions=2)


def rows_of(*rows: tuple[str, str]) -> pa.RecordBatch:
    """Rows of a topic and a value each."""
    topics, values = zip(*rows, strict=True)
    return pa.record_batch([pa.array(topics, pa.string()), pa.array(values, pa.string())], ["topic", "value"])


def task_by_column(sink: Sink, index: int, *rows: tuple[str, str]) -> TaskOutcome:
    return write_in_transaction(
        replace(sink.options, topic=None), ["topic", "value"], iter([rows_of(*rows)]), FakeTask(index, 0, 0)
    )


def elsewhere(sink: Sink, topic: str) -> list[str]:
    other = Sink(sink.options.settings["bootstrap.servers"], topic)
    with other.admin:
        return other.committed()


def test_created_again_before_the_commit(sink: Sink) -> None:
    outcomes = sink.tasks(["a"], ["b"])
    recreate(sink)
    with pytest.raises(
        ExactlyOnceError, match=rf"{sink.topic} was deleted and created again .* since tasks of batch 0 .* Nothing of"
    ):
        sink.commit(outcomes)
    assert sink.committed() == []
    assert sink.commit(sink.tasks(["a"], ["b"])) == 2
    assert sink.committed() == ["a", "b"]


def test_deleted_before_the_commit(sink: Sink) -> None:
    """It is told at once, and nobody creates the topic by asking for it."""
    outcomes = sink.tasks(["a"])
    sink.admin.delete_topic(sink.topic)
    with pytest.raises(ExactlyOnceError, match=rf"{sink.topic} was deleted \(its id was .*Nothing of this batch"):
        sink.commit(outcomes)
    assert sink.topic not in {listed.name for listed in sink.admin.list_topics()}


def test_created_again_between_two_tasks(sink: Sink) -> None:
    first = sink.task(0, ["a"])
    recreate(sink)
    with pytest.raises(ExactlyOnceError, match="was deleted and created again"):
        sink.commit([first, sink.task(1, ["b"])])
    assert sink.committed() == []
    assert sink.commit(sink.tasks(["a"], ["b"])) == 2
    assert sink.committed() == ["a", "b"]


def test_created_again_amid_the_commits(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are gone with it, so the batch is written as a whole."""
    between(monkeypatch, lambda: recreate(sink))
    with pytest.raises(ExactlyOnceError, match=r"was deleted and created again .* written as a whole if all"):
        sink.commit(sink.tasks(["a"], ["b"]))
    monkeypatch.undo()
    assert sink.commit(sink.tasks(["a"], ["b"])) == 2
    assert sink.committed() == ["a", "b"]


def test_deleted_amid_the_commits(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.options = sink.options.with_setting("max.block.ms", "500")
    between(monkeypatch, lambda: sink.admin.delete_topic(sink.topic))
    with pytest.raises(ExactlyOnceError, match=rf"{sink.topic} was deleted \(its id was"):
        sink.commit(sink.tasks(["a"], ["b"]))


def amid(batches: Sequence[pa.RecordBatch], work: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Rows, and what happens when the first of them are taken."""
    first, *others = batches
    yield first
    work()
    yield from others


@pytest.mark.parametrize("again", [True, False], ids=["created again", "deleted"])
def test_gone_amid_a_task(sink: Sink, again: bool) -> None:
    rows = [pa.record_batch([pa.array(["a"] * 10, pa.string())], ["value"])]
    places = {TopicPartition(sink.topic, number): OffsetSpec.LATEST for number in range(2)}

    def work() -> None:
        while sum(place.offset for place in sink.admin.list_offsets(places).values()) < 10:
            pass  # they are on their way
        sink.admin.delete_topic(sink.topic)
        if again:
            sink.admin.create_topic(sink.topic, partitions=2)

    what = "was deleted and created again" if again else r"was deleted \(its id was"
    with pytest.raises(ExactlyOnceError, match=f"{what}.* while a task wrote to it"):
        write_in_transaction(sink.options, ["value"], amid(rows, work), FakeTask(0, 0, 0))
    if not again:
        sink.admin.create_topic(sink.topic, partitions=2)
    with pytest.raises(DataLossError, match=f"{what}.* while a task wrote to it"):
        write_rows(sink.options, ["value"], amid(rows, work))


@pytest.mark.slow
def test_topics_that_the_write_creates(sink: Sink) -> None:
    """They are written to as others are, and may be created again as others may."""
    new = f"{sink.topic}-new"
    outcome = task_by_column(sink, 0, (sink.topic, "a"), (new, "b"))
    assert sink.admin.describe_topics([new])[new].topic_id == outcome.topics[new]
    sink.admin.delete_topic(new)
    with pytest.raises(ExactlyOnceError, match=rf"{new} was deleted"):
        sink.commit([outcome])
    assert sink.commit([task_by_column(sink, 0, (sink.topic, "a"), (new, "b"))]) == 2
    assert sink.committed() == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["-1", "-2"], ids=["which holds the records", "another one"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "driver died"])
def test_one_topic_of_several(sink: Sink, monkeypatch: pytest.MonkeyPatch, suffix: str, told: bool) -> None:
    """Rows in the other one are there: to write all again would double them, to skip all would lose what is gone."""
    one, two = f"{sink.topic}-1", f"{sink.topic}-2"
    for name in (one, two):
        sink.admin.create_topic(name, partitions=2)

    def tasks() -> list[TaskOutcome]:
        return [task_by_column(sink, index, (one, f"a{index}"), (two, f"b{index}")) for index in range(2)]

    if told:
        between(monkeypatch, lambda: recreate(sink, f"{sink.topic}{suffix}"))
        with pytest.raises(ExactlyOnceError, match=rf"{sink.topic}{suffix} was deleted and created again"):
            sink.commit(tasks())
        monkeypatch.undo()
    else:
        sink.commit(tasks())  # Spark has not noted it
        recreate(sink, f"{sink.topic}{suffix}")
    with pytest.raises(ExactlyOnceError, match=r"(went to it is gone|nobody knows which).* a new name: then"):
        sink.commit(tasks())
    sink.options = replace(sink.options, sink=f"{sink.topic}-anew")
    assert sink.commit(tasks()) == 4
    assert {"a0", "a1"} <= set(elsewhere(sink, one))
    assert {"b0", "b1"} <= set(elsewhere(sink, two))


def test_at_least_once(sink: Sink) -> None:
    options = replace(sink.options, exactly_once=False, sink=None)
    writer = KclientWriter(options, ["value"])
    rows = pa.record_batch([pa.array(["a"], pa.string())], ["value"])
    written = [write_rows(options, ["value"], iter([rows])), WrittenRows(0)]
    writer.commit(written)
    recreate(sink)
    with pytest.raises(DataLossError, match=rf"{sink.topic} was deleted and created again .* write the batch again"):
        writer.commit(written)
    sink.admin.delete_topic(sink.topic)
    with pytest.raises(DataLossError, match=rf"{sink.topic} was deleted \(its id was"):
        writer.commit(written)


def test_a_task_without_rows_asks_nobody(sink: Sink) -> None:
    nowhere = replace(sink.options, settings={"bootstrap.servers": "127.0.0.1:1"}, exactly_once=False)
    rows = pa.record_batch([pa.array([], pa.string())], ["value"])
    KclientWriter(nowhere, ["value"]).commit([write_rows(nowhere, ["value"], iter([rows])), WrittenRows(0)])
