"""Streaming reads in real Spark, against real Kafka and the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient.sync import Admin, Producer
from tests.spark.archives import create, fill, recreate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from kclient.spark import QueryLag

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PATIENCE_S = 100


class Query:
    """A query that notes the values of each batch; it may be run again on its checkpoint.

    Args:
        spark: The session.
        checkpoint: Where Spark keeps how far it has come.
        options: Of the source.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path, bootstrap: str, **options: str) -> None:
        self.batches: list[list[str]] = []
        self.fails = 0
        """So many batches are read, and then fail."""
        self._spark = spark
        self._checkpoint = str(checkpoint)
        self._options = {"kafka.bootstrap.servers": bootstrap, **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("kclient").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(self._note).option("checkpointLocation", self._checkpoint)
        return writer.trigger(**trigger).start()

    def run(self) -> list[list[str]]:
        """Read all there is; returns the batches of this run."""
        before = len(self.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        return self.batches[before:]

    def _note(self, frame: DataFrame, number: int) -> None:
        del number
        values = sorted(bytes(row.value).decode() for row in frame.select("value").collect())
        if self.fails:
            self.fails -= 1
            raise RuntimeError(f"not yet: {values}")
        self.batches.append(values)


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[..., Query]:
    """A query whose checkpoint is this test's."""

    def made(bootstrap: str, **options: str) -> Query:
        return Query(spark, tmp_path / "checkpoint", bootstrap, **options)

    return made


def flat(batches: list[list[str]]) -> list[str]:
    return sorted(value for batch in batches for value in batch)


def values(*numbers: int) -> list[str]:
    return sorted(str(number) for number in numbers)


def test_everything_is_read_once(make: Callable[..., Query], broker: str, topic: str) -> None:
    create(broker, topic)
    fill(broker, topic, range(10))
    query = make(broker, subscribe=topic, startingOffsets="earliest")
    assert query.run() == [values(*range(10))]
    assert query.run() == []
    fill(broker, topic, range(10, 15))
    assert query.run() == [values(*range(10, 15))]


def test_batches_are_limited(make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(20))
    query = make(gateway, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    found = query.run()
    assert flat(found) == values(*range(20))
    assert [len(batch) for batch in found] == [6, 6, 6, 2]


def test_it_goes_on_where_it_began_by_default(make: Callable[..., Query], gateway: str, topic: str) -> None:
    """At the end, as Spark's own source; what is written while it is stopped is read, even before its first record."""
    create(gateway, topic)
    fill(gateway, topic, range(5))
    query = make(gateway, subscribe=topic)
    assert flat(query.run()) == []
    fill(gateway, topic, range(5, 8))
    assert query.run() == [values(5, 6, 7)]


def test_a_first_batch_that_fails_is_read_again_as_it_was(make: Callable[..., Query], gateway: str, topic: str) -> None:
    """Spark asks for the beginning again then, and another one must not come of it."""
    create(gateway, topic)
    fill(gateway, topic, range(5))
    query = make(gateway, subscribe=topic, startingTimestamp="0", startingOffsetsByTimestampStrategy="latest")
    query.fails = 1
    failed = query.start(availableNow=True)
    with pytest.raises(Exception, match=r"not yet: \['0', '1', '2', '3', '4'\]"):
        failed.awaitTermination(PATIENCE_S)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_records({(topic, 0): 1})
    fill(gateway, topic, range(5, 8))
    with pytest.raises(Exception, match="are gone"):  # what was deleted is missed: the batch begins where it did
        query.run()


def test_what_comes_is_read(spark: SparkSession, make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    query = make(gateway, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    from kclient.spark import LagListener

    told: list[QueryLag] = []
    listener = LagListener(told.append)
    spark.streams.addListener(listener)
    running = query.start(processingTime="0 seconds")
    try:
        for begin in (0, 5, 10):
            fill(gateway, topic, range(begin, begin + 5))
            running.processAllAvailable()
            assert flat(query.batches) == values(*range(begin + 5))
        end = time.monotonic() + PATIENCE_S
        while not told or told[-1].total:
            assert time.monotonic() < end, told
            time.sleep(0.05)
        assert max(lag.total for lag in told) >= 2, "five came, and a batch takes three"
        assert {tp.topic for tp in told[-1].partitions} == {topic}
        assert told[-1].query_id == str(running.id)
    finally:
        running.stop()
        spark.streams.removeListener(listener)


def test_topics_and_partitions_that_come(make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(4))
    query = make(gateway, subscribePattern=f"{topic}.*", startingOffsets="earliest")
    assert query.run() == [values(*range(4))]
    create(gateway, f"{topic}-2")
    fill(gateway, f"{topic}-2", range(4, 8))
    with Admin(bootstrap_servers=gateway) as admin:
        admin.create_partitions({topic: 3})
    with Producer(bootstrap_servers=gateway) as producer:
        producer.send(topic, b"8", partition=2)
    assert query.run() == [values(*range(4, 9))]


def test_a_topic_that_is_created_again(make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(4))
    strict = make(gateway, subscribe=topic, startingOffsets="earliest")
    assert strict.run() == [values(*range(4))]
    recreate(gateway, topic)
    fill(gateway, topic, range(4, 10))
    with pytest.raises(Exception, match="was deleted and created again"):
        strict.run()
    lenient = make(gateway, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert flat(lenient.run()) == values(*range(4, 10))


def test_the_groups_offsets_follow(make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    query = make(
        gateway, subscribe=topic, startingOffsets="earliest", commitGroupOffsets="true", **{"kafka.group.id": topic}
    )
    assert query.run() == [values(*range(10))]
    with Admin(bootstrap_servers=gateway) as admin:
        offsets = admin.list_group_offsets(topic)
    assert sum(offset.offset for offset in offsets.values() if offset is not None) == 10


def test_what_cannot_be_is_said(make: Callable[..., Query], gateway: str, topic: str) -> None:
    create(gateway, topic)
    for options, message in (
        ({"endingOffsets": "latest"}, "the option endingOffsets is for batch reads"),
        ({"commitGroupOffsets": "true"}, "commitGroupOffsets needs kafka.group.id"),
        ({"maxTriggerDelay": "soon"}, "takes a time such as 15m"),
    ):
        with pytest.raises(Exception, match=message):
            make(gateway, subscribe=topic, **options).run()
