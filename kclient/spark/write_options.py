"""The options of writes, and the columns that they take: checked in full before any task starts.

As Spark's built-in sink has them; it ignores a column `timestamp`, which is the record's here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from kclient.arguments import shown
from kclient.config import ProducerConfig
from kclient.errors import ConfigError
from kclient.spark.option_values import OptionReader, checked_topic, texts_of
from kclient.spark.options import check_address, shared_address
from kclient.spark.schema import HEADERS

WRITE_OPTIONS = ("topic",)
_BYTES = (BinaryType, StringType)
_COLUMNS: Mapping[str, tuple[type[DataType], ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType, LongType, ShortType, ByteType),
    "timestamp": (TimestampType,),
}
_REFUSED_SETTINGS = {
    "key.serializer": "keys are bytes or text already",
    "value.serializer": "values are bytes or text already",
    "interceptor.classes": "records go to the brokers as columns, past any interceptor",
    "transactional.id": "what a task writes is seen at once",
}


@dataclass(frozen=True)
class WriteOptions:
    """A write, fully described; `settings` are the producer's, by their Java names."""

    settings: Mapping[str, str] = field(repr=False)  # some are passwords
    topic: str | None = None
    """Of all rows, whatever their column says; None takes that column."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of `frame.write.format("kclient")` and of `frame.writeStream`, in any letter case.

    Raises:
        ConfigError: an option is unknown, missing or malformed.
    """
    lowered = texts_of(options)
    settings = {name[6:]: value for name, value in lowered.items() if name.startswith("kafka.")}
    given = {name: value for name, value in lowered.items() if not name.startswith("kafka.")}
    # Spark's own, which it gives to every writer
    given = {name: value for name, value in given.items() if name not in ("checkpointlocation", "queryname")}
    if "path" in given:
        raise ConfigError("a write to topics has no path: save() and start() take none, the option topic names a topic")
    for name in given:
        if name not in WRITE_OPTIONS:
            near = difflib.get_close_matches(name, WRITE_OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(WRITE_OPTIONS)} and kafka.…"
            raise ConfigError(f"unknown option {shown(name)} for writing with kclient; {hint}")
    for name, reason in _REFUSED_SETTINGS.items():
        if name in settings:
            raise ConfigError(f"the option kafka.{name} cannot be set: {reason}")
    check_address(settings)
    settings["bootstrap.servers"] = shared_address(settings["bootstrap.servers"])
    ProducerConfig.parse({"client.id": "kclient-spark", **settings})
    topic = OptionReader(given).text("topic")
    return WriteOptions(settings, None if topic is None else checked_topic("topic", topic))


def written_columns(schema: StructType, options: WriteOptions) -> list[str]:
    """Which columns are written, in their order; others are left aside, as Spark's own sink does.

    Raises:
        TypeError: it is not a schema.
        ConfigError: a column is missing, or of a wrong type.
    """
    if not isinstance(schema, StructType):
        raise TypeError(f"a schema is a pyspark.sql.types.StructType, not {shown(schema)}")
    types = {each.name: each.dataType for each in schema}
    if "value" not in types:
        raise ConfigError(f"a write needs a column value; there are {', '.join(types) or 'no columns'}")
    if options.topic is None and "topic" not in types:
        raise ConfigError("a write needs a column topic, or the option topic for all rows")
    found = [name for name in types if name in _COLUMNS or name == "headers"]
    if options.topic is not None and "topic" in found:
        found.remove("topic")
    for name in found:
        if name == "headers":
            _check_headers(types[name])
        elif not isinstance(types[name], _COLUMNS[name]):
            wanted = " or ".join(each().simpleString() for each in _COLUMNS[name])
            raise ConfigError(f"the column {name} is of type {wanted}, not {types[name].simpleString()}; cast it")
    return found


def _check_headers(found: DataType) -> None:
    if found.simpleString() != HEADERS.simpleString():
        raise ConfigError(
            f"the column headers is of type {HEADERS.simpleString()}, not {found.simpleString()}; cast it"
        )
