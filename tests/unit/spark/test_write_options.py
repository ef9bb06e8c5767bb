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


def test_what_is_exactly_once() -> None:
    """A stream by default, a batch where it is asked for; one without a name can be done once only."""
    assert not parse_write_options(BASE).exactly_once
    stream = parse_write_options(BASE, streaming=True)
    assert (stream.exactly_once, stream.sink, stream.batch, stream.once) == (True, None, None, False)
    assert not parse_write_options({**BASE, "exactlyOnce": "false"}, streaming=True).exactly_once
    named = parse_write_options({**BASE, "exactlyOnce": "true", "exactlyOnce.id": "Job.1", "exactlyOnce.batch": "7"})
    assert (named.exactly_once, named.sink, named.batch, named.once) == (True, "Job.1", 7, False)
    some, other = (parse_write_options({**BASE, "exactlyOnce": "true"}) for _ in range(2))
    assert (some.once, some.batch, some.sink == other.sink) == (True, 0, False)
    with pytest.raises(ConfigError, match="Spark numbers the batches"):
        parse_write_options({**BASE, "exactlyOnce.id": "x", "exactlyOnce.batch": "7"}, streaming=True)


def test_columns_in_their_order() -> None:
    assert written_columns(ALL, WriteOptions({})) == ["headers", "timestamp", "topic", "value", "key", "partition"]
    assert written_columns(ALL, WriteOptions({}, "t")) == ["headers", "timestamp", "value", "key", "partition"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**BASE, "tpoic": "t"}, "did you mean topic"),
        ({**BASE, "exactlyOnce.ib": "true"}, r"did you mean exactlyOnce\.id\?"),
        ({**BASE, "exactlyOnce": "yes"}, "the option exactlyOnce takes true or false"),
        ({**BASE, "exactlyOnce.id": "x"}, r"exactlyOnce\.id is for exactlyOnce=true"),
        ({**BASE, "exactlyOnce": "true", "exactlyOnce.id": "a b"}, r"exactlyOnce\.id takes at most 200 letters"),
        ({**BASE, "exactlyOnce": "true", "exactlyOnce.batch": "1"}, r"exactlyOnce\.batch needs exactlyOnce\.id"),
        ({**BASE, "exactlyOnce": "true", "exactlyOnce.id": "x", "exactlyOnce.batch": "-1"}, "must be at least 0"),
        ({**BASE, "exactlyOnce": "true", "kafka.acks": "1"}, "with the option exactlyOnce=false"),
        ({**BASE, "exactlyOnce": "true", "kafka.linger.ms": "soon"}, "linger.ms"),
        ({**BASE, "kafka.transactional.id": "x"}, "the option exactlyOnce writes in transactions"),
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
