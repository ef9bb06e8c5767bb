"""The options of writes, and the columns that they take: checked in full before any task starts.

As Spark's built-in sink has them; it ignores a column `timestamp`, which is the record's here.
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

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
from kclient.spark.option_values import OptionReader, checked_topic, texts_of, whole_number
from kclient.spark.options import check_address, shared_address
from kclient.spark.schema import HEADERS

_WRITE_OPTIONS = ("topic", "exactlyOnce", "exactlyOnce.id", "exactlyOnce.batch")
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
    "transactional.id": "the option exactlyOnce writes in transactions, and names them itself",
}
_LONGEST_ID = 200
"""Characters of `exactlyOnce.id`: names of groups and transactions begin with it."""


@dataclass(frozen=True)
class WriteOptions:
    """A write, fully described; `settings` are the producer's, by their Java names."""

    settings: Mapping[str, str] = field(repr=False)  # some are passwords
    topic: str | None = None
    """Of all rows, whatever their column says; None takes that column."""
    exactly_once: bool = False
    sink: str | None = None
    """What names of transactions and groups begin with (`exactlyOnce.id`); None is the query's own id."""
    batch: int | None = None
    """Which batch of the sink it is, where Spark does not number them: of a batch write."""

    unnumbered: bool = False
    """Whether somebody gave the id of a batch write and no number: then the id has one batch."""
    once: bool = False
    """Whether nobody gave the id: then nobody can do the write again, and what was kept for that may go."""

    def with_setting(self, name: str, value: str) -> Self:
        """The same with another setting of the producer."""
        return replace(self, settings={**self.settings, name: value})


def parse_write_options(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """The options of `frame.write.format("kclient")`, or of `frame.writeStream`, in any letter case.

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
    known = {name.lower(): name for name in _WRITE_OPTIONS}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {known[near[0]]}?"
                if near
                else f"the options are {', '.join(_WRITE_OPTIONS)} and kafka.…"
            )
            raise ConfigError(f"unknown option {shown(name)} for writing with kclient; {hint}")
    for name, reason in _REFUSED_SETTINGS.items():
        if name in settings:
            raise ConfigError(f"the option kafka.{name} cannot be set: {reason}")
    check_address(settings)
    settings["bootstrap.servers"] = shared_address(settings["bootstrap.servers"])
    reader = OptionReader(given)
    topic = reader.text("topic")
    exactly_once = reader.boolean("exactlyOnce", default=streaming)
    named, numbered = (reader.text(f"exactlyOnce.{name}") is not None for name in ("id", "batch"))
    transactional = {"transactional.id": "checked"} if exactly_once else {}
    try:
        ProducerConfig.parse({"client.id": "kclient-spark", **settings, **transactional})
    except ConfigError as error:
        if not exactly_once or not _fits(settings):
            raise
        raise ConfigError(f"{error.message}; or write at least once, with the option exactlyOnce=false") from error
    return WriteOptions(
        settings,
        None if topic is None else checked_topic("topic", topic),
        exactly_once,
        *_sink(reader, exactly_once=exactly_once, streaming=streaming),
        unnumbered=not streaming and named and not numbered,
        once=exactly_once and not streaming and not named,
    )


def _fits(settings: Mapping[str, str]) -> bool:
    """Whether a producer without transactions takes these settings."""
    try:
        ProducerConfig.parse({"client.id": "kclient-spark", **settings})
    except ConfigError:
        return False
    return True


def _sink(reader: OptionReader, *, exactly_once: bool, streaming: bool) -> tuple[str | None, int | None]:
    """The sink's id, and which of its batches a write is."""
    sink, batch = reader.text("exactlyOnce.id"), reader.text("exactlyOnce.batch")
    for name, value in (("exactlyOnce.id", sink), ("exactlyOnce.batch", batch)):
        if value is not None and not exactly_once:
            raise ConfigError(f"the option {name} is for exactlyOnce=true, and this write is at least once")
    if sink is not None and not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{_LONGEST_ID}}}", sink, re.ASCII):
        raise ConfigError(
            f"the option exactlyOnce.id takes at most {_LONGEST_ID} letters, digits, dots, underscores and hyphens, "
            f"not {shown(sink)}"
        )
    if batch is not None and streaming:
        raise ConfigError("the option exactlyOnce.batch is for batch writes: Spark numbers the batches of a stream")
    if batch is not None and sink is None:
        raise ConfigError("the option exactlyOnce.batch needs exactlyOnce.id: it says which batch of that sink it is")
    if streaming or not exactly_once:
        return sink, None
    # a write without a name can be done once only, and needs none that anybody knows
    return sink or f"kclient-{uuid.uuid4().hex}", 0 if batch is None else whole_number("exactlyOnce.batch", batch, 0)


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
