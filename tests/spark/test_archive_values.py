"""What an archive holds reads back as it was: names that look like numbers, times at the ends, no aborted records."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient.spark import archive
from kclient.sync import Producer
from tests.spark.archives import archived, create, expected, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def read_with_spark(spark: SparkSession, folder: Path) -> list[tuple[Any, Any]]:
    frame = spark.read.parquet(str(folder))
    return [(row.topic, str(row.date)) for row in frame.select("topic", "date").distinct().collect()]


def read_with_arrow(spark: SparkSession, folder: Path) -> list[tuple[Any, Any]]:
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(str(folder), partitioning="hive").to_table()
    return list(zip(table["topic"].to_pylist(), map(str, table["date"].to_pylist()), strict=True))


def read_with_polars(spark: SparkSession, folder: Path) -> list[tuple[Any, Any]]:
    import polars

    frame = polars.read_parquet(str(folder / "topic=*/**/*.parquet"), hive_partitioning=True)
    return [(topic, str(date)) for topic, date in frame.select("topic", "date").rows()]


READERS = [read_with_spark, read_with_arrow, read_with_polars]


@pytest.mark.parametrize("name", ["007", "1e5", "2024-01-01", "-1", ".5", "NaN"])
def test_a_topic_that_looks_like_a_number_reads_back_as_its_name(
    spark: SparkSession, gateway: str, tmp_path: Path, name: str
) -> None:
    create(gateway, name)
    fill(gateway, name, range(1))
    archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[name])
    for read in READERS:
        assert read(spark, tmp_path / "out") == [(name, "2024-05-17")], read.__name__


def test_an_ordinary_archive_holds_nothing_but_its_topics(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(1))
    archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_kclient", f"topic={topic}"]


YEAR_10000 = 253_402_300_800_000
TIMES = {
    0: "1970-01-01",
    1_700_000_000_123: "2023-11-14",
    YEAR_10000 - 1: "9999-12-31",
    YEAR_10000: "9999-12-31",
    2**63 // 1000: "9999-12-31",
    2**63 - 1: "9999-12-31",
}


def test_times_read_back_as_they_were(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    with Producer(bootstrap_servers=broker) as producer:
        for timestamp in TIMES:
            producer.send(topic, str(timestamp).encode(), partition=0, timestamp=timestamp)
    archive(spark, tmp_path / "out", {"bootstrap.servers": broker}, topics=[topic])
    frame = spark.read.parquet(str(tmp_path / "out"))
    rows = frame.selectExpr("cast(value as string) as sent", "unix_micros(timestamp) as found", "date").collect()
    assert {int(row.sent): str(row.date) for row in rows} == TIMES
    # what 64 bits of microseconds cannot tell is the last that they can
    assert {int(row.sent): row.found for row in rows} == {each: min(each * 1000, 2**63 - 1) for each in TIMES}


DAY = 86_400_000
YEAR_1 = -62_135_596_800_000
EARLY_TIMES = {
    -1: "1969-12-31",
    -2: "1969-12-31",
    -DAY: "1969-12-31",
    -DAY - 1: "1969-12-30",
    YEAR_1: "0001-01-01",
    YEAR_1 - 1: "0001-01-01",
    -(2**63) // 1000: "0001-01-01",
    -(2**63): "0001-01-01",
}


@pytest.mark.foreign
def test_times_before_1970_read_back_as_they_were(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    """Other clients send them, and brokers take them."""
    import confluent_kafka

    # Kafka takes the very first for one that lies ahead
    create(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = confluent_kafka.Producer({"bootstrap.servers": broker})
    for timestamp in EARLY_TIMES:
        producer.produce(topic, str(timestamp).encode(), partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0
    assert archive(spark, tmp_path / "out", {"bootstrap.servers": broker}, topics=[topic]).records == len(EARLY_TIMES)
    frame = spark.read.parquet(str(tmp_path / "out"))
    columns = ("cast(value as string) as sent", "unix_micros(timestamp) as found", "cast(date as string) as date")
    rows = frame.selectExpr(*columns).collect()
    assert {int(row.sent): row.date for row in rows} == EARLY_TIMES
    assert {int(row.sent): row.found for row in rows} == {each: max(each * 1000, -(2**63)) for each in EARLY_TIMES}
    for read in READERS:
        assert {date for _, date in read(spark, tmp_path / "out")} == set(EARLY_TIMES.values()), read.__name__


def test_an_archive_goes_on_beside_files_with_the_timestamps_of_old(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    """The first releases had Spark write INT96, and a manifest without the run's name."""
    moment = datetime.datetime(2024, 5, 17, 22, tzinfo=datetime.UTC)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        columns = (
            "key binary, value binary, partition int, offset long, timestamp timestamp, timestampType int, topic string"
        )
        columns += ", date string, headers array<struct<key: string, value: binary>>"
        rows = [(None, b"1000", 0, 0, moment, 0, topic, "2024-05-17", None)]
        spark.createDataFrame(rows, columns).write.partitionBy("topic", "date").parquet(str(tmp_path / "out"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    create(gateway, topic)
    fill(gateway, topic, range(1))
    archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic])
    found = spark.read.parquet(str(tmp_path / "out")).select("value", "timestamp").collect()
    assert sorted((int(row.value), row.timestamp.timestamp()) for row in found) == [
        (0, moment.timestamp()),
        (1000, moment.timestamp()),
    ]


def send_in_transactions(bootstrap: str, topic: str) -> Callable[[], None]:
    """Numbers 0 to 9 committed, 10 to 19 aborted, 20 to 29 in a transaction that stays open; returns its commit."""
    import confluent_kafka

    def producer(name: str) -> confluent_kafka.Producer:
        made = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}"})
        made.init_transactions(30)
        return made

    def send(by: confluent_kafka.Producer, numbers: range) -> None:
        by.begin_transaction()
        for number in numbers:
            by.produce(
                topic, str(number).encode(), partition=number % 2, timestamp=1_715_983_200_000 + 3_600_000 * number
            )
        by.flush(30)

    ends, stays = producer("ends"), producer("stays")
    send(ends, range(10))
    ends.commit_transaction(30)
    send(ends, range(10, 20))
    ends.abort_transaction(30)
    send(stays, range(20, 30))
    return lambda: stays.commit_transaction(30)


@pytest.mark.kafka
@pytest.mark.foreign
def test_aborted_records_are_not_archived_and_open_ones_come_later(
    spark: SparkSession, kafka: KafkaServer, topic: str, tmp_path: Path
) -> None:
    create(kafka.bootstrap, topic)
    commit = send_in_transactions(kafka.bootstrap, topic)
    settings = {"bootstrap.servers": kafka.bootstrap}
    out = tmp_path / "out"
    assert archive(spark, out, settings, topics=[topic]).records == 10
    assert archive(spark, out, settings, topics=[topic]).manifest is None
    commit()
    assert archive(spark, out, settings, topics=[topic]).records == 10
    assert archived(out) == expected(topic, range(10)) + expected(topic, range(20, 30))

    # everything, for those who ask for it; going on with read_committed below it is no loss
    send_in_transactions(kafka.bootstrap, topic)
    everything = {**settings, "isolation_level": "read_uncommitted"}
    assert archive(spark, tmp_path / "all", everything, topics=[topic]).records == 60
    assert archive(spark, tmp_path / "all", settings, topics=[topic]).manifest is None


@pytest.mark.kafka
@pytest.mark.foreign
def test_the_data_source_takes_the_isolation_level(spark: SparkSession, kafka: KafkaServer, topic: str) -> None:
    create(kafka.bootstrap, topic)
    send_in_transactions(kafka.bootstrap, topic)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    reader = spark.read.format("kclient").options(**options)
    assert reader.load().count() == 30
    assert reader.option("kafka.isolation.level", "read_committed").load().count() == 10
