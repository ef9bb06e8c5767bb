"""The data source `kclient` in real Spark, against real Kafka and the gateway."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from kclient.sync import Admin, Producer
from tests.spark.archives import create, fill, recreate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = int(datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC).timestamp() * 1000)


@pytest.fixture
def filled(broker: str, topic: str) -> str:
    fill_by_the_minute(broker, topic)
    return topic


def fill_by_the_minute(broker: str, topic: str) -> None:
    """A topic of two partitions: ten records in 0, five in 1, every minute one."""
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    with Producer(bootstrap_servers=broker) as producer:
        for number in range(10):
            producer.send(topic, f"a{number}".encode(), partition=0, timestamp=NOON + 60_000 * number)
        for number in range(5):
            producer.send(
                topic,
                None if number == 4 else f"b{number}".encode(),
                key=f"k{number}".encode(),
                partition=1,
                timestamp=NOON + 60_000 * number,
                headers=[("h", b"x"), ("empty", None)],
            )


def load(spark: SparkSession, broker: str, **options: str) -> DataFrame:
    return spark.read.format("kclient").options(**{"kafka.bootstrap.servers": broker, **options}).load()


def values(frame: DataFrame) -> list[str | None]:
    rows = frame.orderBy("partition", "offset").collect()
    return [None if row.value is None else bytes(row.value).decode() for row in rows]


def test_every_column_of_every_record(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(spark, broker, subscribe=filled, includeHeaders="true")
    rows = frame.orderBy("partition", "offset").collect()
    assert len(rows) == 15
    first, last = rows[0], rows[-1]
    assert (first.key, bytes(first.value), first.topic, first.partition, first.offset) == (None, b"a0", filled, 0, 0)
    assert first.timestamp.timestamp() * 1000 == NOON
    assert first.timestampType == 0
    assert not first.headers
    assert (bytes(last.key), last.value, last.partition, last.offset) == (b"k4", None, 1, 4)
    assert [(h.key, h.value and bytes(h.value)) for h in last.headers] == [("h", b"x"), ("empty", None)]


def test_the_schema_is_that_of_the_built_in_source(spark: SparkSession, broker: str, filled: str) -> None:
    assert load(spark, broker, subscribe=filled).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )


def test_offsets_choose_what_is_read(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(
        spark,
        broker,
        assign=f'{{"{filled}":[0]}}',
        startingOffsets=f'{{"{filled}":{{"0":3}}}}',
        endingOffsets=f'{{"{filled}":{{"0":6}}}}',
    )
    assert values(frame) == ["a3", "a4", "a5"]


def test_timestamps_choose_what_is_read(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(
        spark, broker, subscribe=filled, startingTimestamp=str(NOON + 60_000), endingTimestamp=str(NOON + 180_000)
    )
    assert values(frame) == ["a1", "a2", "b1", "b2"]


def test_a_pattern(spark: SparkSession, broker: str, filled: str) -> None:
    assert load(spark, broker, subscribePattern=f"{filled[:-1]}.").count() == 15


def test_ranges_are_split_for_more_tasks(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(spark, broker, subscribe=filled, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    assert values(frame) == [f"a{n}" for n in range(10)] + ["b0", "b1", "b2", "b3", None]
    frame = load(spark, broker, subscribe=filled, maxRecordsPerPartition="2")
    assert frame.rdd.getNumPartitions() == 8
    assert frame.count() == 15


def test_an_option_for_fewer_columns(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(spark, broker, subscribe=filled, columns="headers, value")
    assert frame.columns == ["headers", "value"]
    assert sum(row.headers is not None for row in frame.collect()) == 5
    part = load(
        spark, broker, assign=f'{{"{filled}":[0]}}', columns="partition", endingOffsets=f'{{"{filled}":{{"0":6}}}}'
    )
    assert part.columns == ["partition"]
    assert part.count() == 6


def test_a_schema_may_ask_for_headers(spark: SparkSession, broker: str, filled: str) -> None:
    frame = (
        spark.read.format("kclient")
        .schema("headers array<struct<key:string,value:binary>>, timestamp timestamp")
        .options(**{"kafka.bootstrap.servers": broker, "subscribe": filled, "columns": "key"})
        .load()
    )
    assert frame.columns == ["headers", "timestamp"]
    assert sum(row.headers is not None for row in frame.collect()) == 5


def test_a_schema_of_fewer_columns(spark: SparkSession, broker: str, filled: str) -> None:
    frame = (
        spark.read.format("kclient")
        .schema("offset long, value binary")
        .options(**{"kafka.bootstrap.servers": broker, "subscribe": filled})
        .load()
    )
    assert frame.columns == ["offset", "value"]
    assert frame.count() == 15


def test_an_empty_topic_gives_no_rows(spark: SparkSession, broker: str, topic: str) -> None:
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=1)
    assert load(spark, broker, subscribe=topic).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "x", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({}, "exactly one of the options assign, subscribe and subscribePattern"),
        ({"subscribe": "there-is-no-such-topic"}, "no such topic: there-is-no-such-topic"),
        ({"subscribe": "x", "kafka.no.such.setting": "1"}, "no.such.setting"),
    ],
)
def test_wrong_options_fail_before_any_task(
    spark: SparkSession, gateway: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, gateway, **options).count()


def test_what_the_built_in_source_takes_in_a_batch_read_is_taken(spark: SparkSession, broker: str, filled: str) -> None:
    frame = load(
        spark,
        broker,
        subscribe=filled,
        groupIdPrefix="team",
        maxOffsetsPerTrigger="3",
        minOffsetsPerTrigger="1",
        maxTriggerDelay="15m",
        **{"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "100", "kafka.client.id": "mine"},
    )
    assert frame.count() == 15
    assert load(spark, broker, subscribe=filled, **{"kafka.group.id": "mine"}).count() == 15
    with Admin(bootstrap_servers=broker) as admin:
        assert not [group for group in admin.list_groups() if group.group_id.startswith(("team", "mine"))]


def test_a_topic_that_was_deleted_after_planning(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    strict, lenient = (load(spark, gateway, subscribe=topic, failOnDataLoss=each).rdd for each in ("true", "false"))
    assert [strict.getNumPartitions(), lenient.getNumPartitions()] == [2, 2]
    recreate(gateway, topic)
    with pytest.raises(Exception, match=rf"{topic}-\d: the topic was deleted and created again"):
        strict.count()
    assert lenient.count() == 0


def pushed(spark: SparkSession, frame: DataFrame, condition: str) -> tuple[int, list[str | None]]:
    """How many tasks read what is left of a frame when filters are pushed down, and the values."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = frame.where(condition)
        return found.rdd.getNumPartitions(), values(found)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("condition", "tasks", "expected"),
    [
        ("partition = 1 AND offset >= 2 AND offset < 4", 1, ["b2", "b3"]),
        ("timestamp >= timestamp_millis({noon} + 420000)", 1, ["a7", "a8", "a9"]),
        ("topic = 'another'", 1, []),
        ("NOT partition = 0 AND offset <= 0", 2, ["b0"]),
        pytest.param("partition IN (0, 7) AND offset > 8", 1, ["a9"], marks=pytest.mark.long),
        pytest.param("timestamp = timestamp_millis({noon} + 180000)", 2, ["a3", "b3"], marks=pytest.mark.long),
        pytest.param("timestamp < timestamp_millis({noon} + 60000)", 2, ["a0", "b0"], marks=pytest.mark.long),
        pytest.param("topic = '{topic}' AND value = X'6231'", 2, ["b1"], marks=pytest.mark.long),
        pytest.param("offset > 3 AND offset < 3", 1, [], marks=pytest.mark.long),
    ],
)
def test_filters_make_ranges_smaller(
    spark: SparkSession, gateway: str, topic: str, condition: str, tasks: int, expected: list[str]
) -> None:
    fill_by_the_minute(gateway, topic)
    text = condition.format(noon=NOON, topic=topic)
    assert pushed(spark, load(spark, gateway, subscribe=topic, pushFilters="true"), text) == (tasks, expected)
    frame = load(spark, gateway, subscribe=topic, pushFilters="true")
    assert values(frame.where(text)) == expected  # Spark's default, which refuses a source that has the method


def test_queries_of_one_frame_do_not_mix_their_filters(spark: SparkSession, gateway: str, topic: str) -> None:
    """Spark would read in all of them what the filters of the last one left; so they choose only where asked to."""
    fill_by_the_minute(gateway, topic)
    frame = load(spark, gateway, subscribe=topic)
    everything = values(frame)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert values(frame.where("partition = 0 AND offset < 2")) == ["a0", "a1"]
        assert values(frame) == everything
        first, second = frame.where("partition = 0 AND offset = 1"), frame.where("partition = 1 AND offset = 2")
        assert values(first.union(second)) == ["a1", "b2"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
