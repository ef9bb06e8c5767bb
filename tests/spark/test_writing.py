"""Writing in real Spark, to real Kafka and the gateway, read back without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient import ConsumerRecord
from kclient.sync import Consumer
from kclient.types import TopicPartition
from tests.spark.archives import create, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOON = datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC)
EVERYTHING = (
    "key binary, value string, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>, note string"
)


def records(broker: str, topic: str, partitions: int = 2) -> list[ConsumerRecord]:
    """What is in a topic."""
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += consumer.poll(timeout=1.0)
    return found


def save(frame: DataFrame, broker: str, mode: str = "append", **options: str) -> None:
    frame.write.format("kclient").options(**{"kafka.bootstrap.servers": broker, **options}).mode(mode).save()


def rows(spark: SparkSession, *values: Sequence[Any]) -> DataFrame:
    return spark.createDataFrame([tuple(each) for each in values], EVERYTHING)


def test_every_column(spark: SparkSession, broker: str, topic: str) -> None:
    create(broker, topic)
    other = f"{topic}-other"
    create(broker, other)
    frame = rows(
        spark,
        (b"k", "one", topic, 1, NOON, [("h", b"x"), ("empty", None)], "left aside"),
        (None, None, topic, 0, NOON, None, ""),
        (b"", "elsewhere", other, None, NOON, [], None),
    )
    save(frame, broker)
    tombstone, first = sorted(records(broker, topic), key=lambda record: record.partition)
    assert (first.key, first.value, first.partition, first.timestamp) == (b"k", b"one", 1, NOON.timestamp() * 1000)
    assert list(first.headers) == [("h", b"x"), ("empty", None)]
    assert (tombstone.key, tombstone.value, tombstone.partition) == (None, None, 0)
    (elsewhere,) = records(broker, other)
    assert (elsewhere.key, elsewhere.value) == (b"", b"elsewhere")
    save(frame, broker, topic=other)  # the option is stronger than the column
    assert len(records(broker, other)) == 4


def test_many_rows_keep_the_order_of_each_task(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    frame = spark.range(0, 50_000, numPartitions=2).selectExpr(
        "cast(id as string) as value", "cast(spark_partition_id() as int) as partition"
    )
    save(frame, gateway, topic=topic, **{"kafka.compression.type": "zstd"})
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for record in records(gateway, topic):
        by_partition[record.partition].append(int(record.value))
    assert by_partition == {0: list(range(25_000)), 1: list(range(25_000, 50_000))}


def test_what_was_read_is_written_as_it_was(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    target = f"{topic}-copy"
    create(gateway, target)
    source = {"kafka.bootstrap.servers": gateway, "subscribe": topic, "includeHeaders": "true"}
    save(spark.read.format("kclient").options(**source).load(), gateway, topic=target)

    def seen(name: str) -> list[tuple[int, int, int, bytes]]:
        return sorted((each.partition, each.offset, each.timestamp, each.value) for each in records(gateway, name))

    assert seen(target) == seen(topic)


def test_a_stream_is_written(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    target = f"{topic}-copy"
    create(gateway, target)
    for begin in (0, 10):
        fill(gateway, topic, range(begin, begin + 10))
        frame = (
            spark.readStream.format("kclient")
            .options(
                **{"kafka.bootstrap.servers": gateway, "subscribe": topic, "startingOffsets": "earliest"},
                maxOffsetsPerTrigger="4",
            )
            .load()
        )
        query = (
            frame.writeStream.format("kclient")
            .options(**{"kafka.bootstrap.servers": gateway, "topic": target})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
    assert sorted(int(each.value) for each in records(gateway, target)) == list(range(20))


def test_rows_that_cannot_be_written(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    nowhere = rows(spark, (None, "x", None, None, NOON, None, None))
    with pytest.raises(Exception, match="row 0 has no topic"):
        save(nowhere, gateway)
    large = spark.range(1).selectExpr("cast(repeat('x', 3000000) as binary) as value")
    with pytest.raises(Exception, match=r"RecordTooLarge|max.request.size"):
        save(large, gateway, topic=topic)
    absent = rows(spark, (None, "x", topic, 7, NOON, None, None))
    with pytest.raises(Exception, match="7"):
        save(absent, gateway, **{"kafka.max.block.ms": "1000"})
    assert records(gateway, topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'x' as text", {"topic": "t"}, "needs a column value; there are text"),
        ("'x' as value", {}, "needs a column topic, or the option topic"),
        ("1 as value", {"topic": "t"}, "the column value is of type binary or string, not int"),
        ("'x' as value; 'y' as partition", {"topic": "t"}, "the column partition is of type int"),
        ("'x' as value; map('a', 'b') as headers", {"topic": "t"}, "the column headers is of type array"),
        ("'x' as value", {"topics": "t"}, "did you mean topic"),
        ("'x' as value", {"topic": "t", "kafka.acks": "7"}, "acks"),
        ("'x' as value", {"topic": "t", "kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set"),
    ],
)
def test_wrong_writes_fail_before_any_task(
    spark: SparkSession, gateway: str, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        save(spark.range(1).selectExpr(*columns.split(";")), gateway, **options)


def test_topics_are_only_appended_to(spark: SparkSession, gateway: str) -> None:
    with pytest.raises(Exception, match="the mode overwrite is not possible"):
        save(spark.range(1).selectExpr("'x' as value"), gateway, mode="overwrite", topic="t")
