"""Options and columns of writes, without Spark's Java."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from kclient.errors import ConfigError
from kclient.spark.schema import HEADERS
from kclient.spark.write_options import WriteOptions, parse_write_options, written_columns

BASE = {"kafka.bootstrap.servers": "x:1"}
ALL = StructType(
    [
        StructField("offset", LongType()),
        StructField("headers", HEADERS),
        StructField("timestamp", TimestampType()),
        StructField("topic", StringType()),
        StructField("value", BinaryType()),
        StructField("key", StringType()),
        StructField("partition", LongType()),
    ]
)


def test_settings_and_the_topic() -> None:
    options = parse_write_options(
        {**BASE, "Topic": " t ", "kafka.ACKS": "1", "checkpointLocation": "/x", "queryName": "y"}
    )
    assert options == WriteOptions({"bootstrap.servers": "x:1", "acks": "1"}, "t")
    assert "x:1" not in repr(options)


def test_columns_in_their_order() -> None:
    assert written_columns(ALL, WriteOptions({})) == ["headers", "timestamp", "topic", "value", "key", "partition"]
    assert written_columns(ALL, WriteOptions({}, "t")) == ["headers", "timestamp", "value", "key", "partition"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**BASE, "tpoic": "t"}, "did you mean topic"),
        ({**BASE, "exactlyOnce": "true"}, "unknown option 'exactlyonce'"),
        ({**BASE, "topic": "\ud800"}, "the option topic"),
        ({**BASE, "kafka.value.serializer": "x"}, "kafka.value.serializer cannot be set"),
        ({**BASE, "kafka.linger.ms": "soon"}, "linger.ms"),
        ({"kafka.bootstrap.servers": "memory:x"}, "memory: addresses live in one process"),
        ({**BASE, "topic": 5}, "options are text"),
        ({**BASE, "path": "/x"}, "a write to topics has no path"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_write_options(options)


def test_schemas_that_are_none() -> None:
    with pytest.raises(TypeError, match="a schema is a"):
        written_columns("value binary", WriteOptions({}, "t"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there are no columns"):
        written_columns(StructType([]), WriteOptions({}, "t"))
