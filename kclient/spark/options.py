"""The options of the data source: parsed, and checked in full before any task starts.

Names and meanings are those of Spark's built-in `kafka` source, so that a job moves by changing the
format's name. Options of streaming reads are left aside in batch reads with a warning in the log, as that source does;
what nobody knows is refused.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kclient.arguments import brief, check_text, shown
from kclient.errors import ConfigError
from kclient.records.arrow import COLUMN_NAMES
from kclient.spark.cluster import check_settings
from kclient.spark.option_values import (
    OptionReader,
    checked_topic,
    parsed_json,
    partition_of,
    per_partition,
    texts_of,
    time_span,
)
from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.spark")

EARLIEST = -2
LATEST = -1

_SELECTIONS = ("assign", "subscribe", "subscribePattern")
BATCH_OPTIONS = (
    *_SELECTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "includeHeaders",
    "columns",
    "pushFilters",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerTask",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
STREAMING_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroupOffsets")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_LEAST_BYTES = 1 << 20
"""Of `maxBytesPerTask`."""
_FETCHED, _OPENED, _HANDED_ON = 4, 2, 4
"""The parts of it for what is fetched ahead, for a batch that is opened, and for what is handed on to Spark."""
_DELAY_MS = 15 * 60_000
"""Of `maxTriggerDelay`, as Spark's own source has it."""
# The source decides these itself, exactly as Spark's own source does.
_REFUSED_SETTINGS = {
    "auto.offset.reset": "the option startingOffsets says where to begin",
    "key.deserializer": "keys are always bytes; cast the column",
    "value.deserializer": "values are always bytes; cast the column",
    "key.serializer": "the source only reads",
    "value.serializer": "the source only reads",
    "enable.auto.commit": "the source commits no offsets",
    "interceptor.classes": "records go to Spark as columns, past any interceptor",
}


@dataclass(frozen=True)
class Selection:
    """Which topics or partitions to read: exactly one of the first three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()
    whole_names: bool = False
    """Whether a name has to match the pattern as a whole; else, as in Spark's own source, some part of it."""


@dataclass(frozen=True)
class RangeBound:
    """Where a read begins or ends.

    `everywhere` is `EARLIEST` or `LATEST`; the others, where given, replace it: `offsets` per partition (−2
    and −1 as in Kafka), `timestamp` in milliseconds for all, or `timestamps` per partition.
    """

    everywhere: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadOptions:
    """A batch read, fully described; `settings` are the client's, by their Java names."""

    selection: Selection
    starting: RangeBound
    ending: RangeBound
    settings: Mapping[str, str] = field(repr=False)  # some are passwords
    no_offset_strategy: Literal["error", "latest"] = "error"
    columns: tuple[str, ...] = COLUMN_NAMES[:-1]
    """Of the records, unless a schema says others."""
    push_filters: bool = False
    """Whether the filters of the frame's only query may choose what is read, where Spark tells them."""
    fail_on_data_loss: bool = True
    lenience: str = "failOnDataLoss=false"
    """What sets `fail_on_data_loss` to false, as errors and warnings call it."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    piece_bytes: int | None = None
    """Bytes of records, after decompression, behind which a task hands on what it has; None for the client's usual."""
    poll_timeout_ms: int = 120_000
    offset_attempts: int = 1
    """How often the driver asks for offsets; the client itself tries until `default.api.timeout.ms` is over."""
    offset_retry_interval_ms: int = 10


@dataclass(frozen=True)
class StreamOptions:
    """A streaming read: what a batch read has, without an end, and how large a micro-batch may be."""

    read: ReadOptions
    most: int | None = None
    """`maxOffsetsPerTrigger`."""
    least: int | None = None
    """`minOffsetsPerTrigger`."""
    longest_delay_ms: int = _DELAY_MS
    """`maxTriggerDelay`: after so long less than the least is enough."""
    commit_group_offsets: bool = False
    """Whether the group in `kafka.group.id` is told how far the query has come."""


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of `spark.read.format("kclient")`, in any letter case.

    Raises:
        ConfigError: an option is unknown, missing, malformed or contradicts another.
    """
    reader, settings = _given(options)
    _limits(reader)
    _longest_delay_ms(reader)
    for name in STREAMING_OPTIONS:
        if reader.text(name) is not None:
            logger.warning("the option %s has no effect in a batch read", name)
    return _read_options(reader, settings, _starting(reader), _ending(reader))


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of `spark.readStream.format("kclient")`, in any letter case.

    Raises:
        ConfigError: an option is unknown, missing, malformed or contradicts another, or is for batch reads only.
    """
    reader, settings = _given(options)
    for name in _BATCH_ONLY:
        if reader.text(name) is not None:
            raise ConfigError(f"the option {name} is for batch reads: a streaming query has no end")
    if reader.text("pushFilters") is not None:
        raise ConfigError("the option pushFilters is for batch reads: Spark tells streaming ones no filters")
    least, most = _limits(reader)
    commits = reader.boolean("commitGroupOffsets", default=False)
    if commits and "group.id" not in settings:
        raise ConfigError("the option commitGroupOffsets needs kafka.group.id: the group whose offsets are committed")
    return StreamOptions(
        _read_options(reader, settings, _range_bound(reader, "starting", default=LATEST), RangeBound(LATEST)),
        most,
        least,
        _longest_delay_ms(reader),
        commits,
    )


def read_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Which columns there are; all is checked that batch and streaming reads have in common.

    Raises:
        ConfigError: an option is unknown, missing or malformed.
    """
    reader, settings = _given(options)
    _limits(reader)
    _longest_delay_ms(reader)
    starting, ending = (_range_bound(reader, side, default=LATEST) for side in ("starting", "ending"))
    return _read_options(reader, settings, starting, ending).columns


def _given(options: Mapping[str, str]) -> tuple[OptionReader, dict[str, str]]:
    """The options, and the client's settings among them."""
    lowered = texts_of(options)
    settings = {name[6:]: value for name, value in lowered.items() if name.startswith("kafka.")}
    given = {name: value for name, value in lowered.items() if not name.startswith("kafka.")}
    _check_names(given)
    _check_settings(settings)
    reader = OptionReader(given)
    settings = {**_group(reader, settings), "bootstrap.servers": shared_address(settings["bootstrap.servers"])}
    check_settings(settings)
    return reader, settings


def _read_options(
    reader: OptionReader, settings: Mapping[str, str], starting: RangeBound, ending: RangeBound
) -> ReadOptions:
    most = _max_bytes(reader)
    return ReadOptions(
        selection=_selection(reader),
        starting=starting,
        ending=ending,
        settings=settings if most is None else _bounded(settings, most),
        no_offset_strategy=_strategy(reader),
        columns=_columns(reader),
        push_filters=reader.boolean("pushFilters", default=False),
        fail_on_data_loss=reader.boolean("failOnDataLoss", default=True),
        min_partitions=reader.positive("minPartitions"),
        max_records_per_partition=reader.positive("maxRecordsPerPartition"),
        piece_bytes=None if most is None else most // _HANDED_ON,
        poll_timeout_ms=reader.duration("kafkaConsumer.pollTimeoutMs", default=120_000, least=1),
        offset_attempts=reader.positive("fetchOffset.numRetries") or 1,
        offset_retry_interval_ms=reader.duration("fetchOffset.retryIntervalMs", default=10),
    )


def _max_bytes(reader: OptionReader) -> int | None:
    most = reader.positive("maxBytesPerTask")
    if most is not None and most < _LEAST_BYTES:
        raise ConfigError(
            f"the option maxBytesPerTask takes {_LEAST_BYTES} bytes or more, room for a batch of records; not {most}"
        )
    return most


def _bounded(settings: Mapping[str, str], most: int) -> dict[str, str]:
    """The settings with which a task's client holds no more than so many bytes; smaller ones stay."""
    config = check_settings(settings)
    fetched = most // _FETCHED
    return {
        **settings,
        "fetch.max.bytes": str(min(config.fetch_max_bytes, fetched)),
        "max.partition.fetch.bytes": str(min(config.max_partition_fetch_bytes, fetched)),
        "fetch.max.decompressed.bytes": str(min(config.fetch_max_decompressed_bytes, most // _OPENED)),
    }


def _columns(reader: OptionReader) -> tuple[str, ...]:
    """Those that the option `columns` names, else all, with headers where `includeHeaders` is true."""
    headers, value = reader.boolean("includeHeaders", default=False), reader.text("columns")
    if value is None:
        return COLUMN_NAMES if headers else COLUMN_NAMES[:-1]
    known = {name.lower(): name for name in COLUMN_NAMES}
    names = [name.strip() for name in value.split(",")]
    found = tuple(known[name.lower()] for name in names if name.lower() in known)
    if len(found) < len(names) or len(set(found)) < len(found):
        raise ConfigError(
            f"the option columns takes some of {', '.join(COLUMN_NAMES)}, each once, separated by commas, not"
            f" {shown(value)}"
        )
    if headers and "headers" not in found:
        raise ConfigError("the option includeHeaders adds a column that the option columns leaves out: name it there")
    return found


def shared_address(bootstrap: str) -> str:
    """`embedded:DIR` with a path that means the same in the workers, whose current folder is another one."""
    scheme, colon, path = bootstrap.partition(":")
    return f"{scheme}:{os.path.realpath(path)}" if colon and scheme == "embedded" else bootstrap


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*BATCH_OPTIONS, *STREAMING_OPTIONS)}
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown option {shown(name)} for the data source kclient{_suggestion(name, known)}")


def _limits(reader: OptionReader) -> tuple[int | None, int | None]:
    """The least and the most offsets of a micro-batch."""
    least, most = reader.positive("minOffsetsPerTrigger"), reader.positive("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(f"the option minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    return least, most


def _longest_delay_ms(reader: OptionReader) -> int:
    given = reader.text("maxTriggerDelay")
    return _DELAY_MS if given is None else time_span("maxTriggerDelay", given)


def _group(reader: OptionReader, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with the group that `groupIdPrefix` asks for: consumers name it to the brokers and never join it."""
    prefix = reader.text("groupIdPrefix")
    if prefix is None:
        return dict(settings)
    if not prefix:
        raise ConfigError("the option groupIdPrefix is empty")
    if "group.id" in settings:
        logger.warning("the option groupIdPrefix has no effect beside kafka.group.id")
        return dict(settings)
    return {**settings, "group.id": f"{prefix}-{uuid.uuid4()}"}


def _suggestion(name: str, known: Mapping[str, str]) -> str:
    if f"kafka.{name}" in ("kafka.bootstrap.servers", "kafka.group.id"):
        return f"; client settings take the prefix kafka., as in kafka.{name}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else f"; the options are {', '.join(sorted(known.values()))}"


def _check_settings(settings: Mapping[str, str]) -> None:
    for name, reason in _REFUSED_SETTINGS.items():
        if name in settings:
            raise ConfigError(f"the option kafka.{name} cannot be set: {reason}")
    check_address(settings)


def check_address(settings: Mapping[str, str]) -> None:
    """Whether workers can reach the brokers under the address that the settings name.

    Raises:
        ConfigError: there is no address, or it lives in one process.
    """
    if not settings.get("bootstrap.servers"):
        raise ConfigError("the option kafka.bootstrap.servers is missing: the address of the broker, as host:port")
    if settings["bootstrap.servers"].startswith("embedded:"):
        from kclient.inprocess import exists

        if not exists(settings["bootstrap.servers"]):
            raise ConfigError(f"there is no broker's directory at {settings['bootstrap.servers']}")
    if settings["bootstrap.servers"].startswith("memory:"):
        raise ConfigError(
            "memory: addresses live in one process, and Spark works in others; use embedded:DIR or host:port"
        )


def _selection(reader: OptionReader) -> Selection:
    given = [name for name in _SELECTIONS if reader.text(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise ConfigError(f"exactly one of the options assign, subscribe and subscribePattern is needed; found {found}")
    name = given[0]
    value = reader.text(name) or ""
    if not value:
        raise ConfigError(f"the option {name} is empty")
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in value.split(",") if topic.strip()}))
        if not topics:
            raise ConfigError(f"the option subscribe takes topics separated by commas, not {shown(value)}")
        return Selection(topics=tuple(checked_topic(name, topic) for topic in topics))
    if name == "subscribePattern":
        return Selection(pattern=_pattern(value))
    return Selection(partitions=_assigned(value))


def _pattern(value: str) -> str:
    check_text(value, "the option subscribePattern")
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"the option subscribePattern is not a regular expression: {shown(value)}: {brief(str(error))}"
        ) from error
    return value


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    parsed = parsed_json("assign", value, example)
    right = isinstance(parsed, dict) and all(
        isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
        for numbers in parsed.values()
    )
    partitions = (
        tuple(sorted({partition_of("assign", t, number) for t, numbers in parsed.items() for number in numbers}))
        if right
        else ()
    )
    if not partitions:
        raise ConfigError(f"the option assign takes JSON such as {example}, not {shown(value)}")
    return partitions


def _starting(reader: OptionReader) -> RangeBound:
    spec = _range_bound(reader, "starting", default=EARLIEST)
    if spec.everywhere == LATEST or LATEST in spec.offsets.values():
        raise ConfigError("startingOffsets cannot be latest (-1) in a batch read: there would be nothing to read")
    return spec


def _ending(reader: OptionReader) -> RangeBound:
    spec = _range_bound(reader, "ending", default=LATEST)
    if spec.everywhere == EARLIEST or EARLIEST in spec.offsets.values():
        raise ConfigError("endingOffsets cannot be earliest (-2): there would be nothing to read")
    return spec


def _range_bound(reader: OptionReader, side: str, default: int) -> RangeBound:
    """Spark's order: one timestamp for all, then timestamps per partition, then offsets."""
    timestamp = reader.timestamp(f"{side}Timestamp")
    if timestamp is not None:
        return RangeBound(default, timestamp=timestamp)
    timestamps = reader.per_partition(f"{side}OffsetsByTimestamp")
    if timestamps is not None:
        _check_least(f"{side}OffsetsByTimestamp", timestamps, 0, "a time of 1970")
        return RangeBound(default, timestamps=timestamps)
    name = f"{side}Offsets"
    value = reader.text(name)
    if value is None:
        return RangeBound(default)
    if value.lower() in ("earliest", "latest"):
        return RangeBound(EARLIEST if value.lower() == "earliest" else LATEST)
    offsets = per_partition(name, value)
    _check_least(name, offsets, EARLIEST, "earliest")
    return RangeBound(default, offsets=offsets)


def _check_least(name: str, given: Mapping[TopicPartition, int], least: int, meaning: str) -> None:
    wrong = [number for number in given.values() if number < least]
    if wrong:
        raise ConfigError(f"the option {name} holds {shown(wrong[0])}; the least is {least} ({meaning})")


def _strategy(reader: OptionReader) -> Literal["error", "latest"]:
    value = (reader.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if value == "error":
        return "error"
    if value == "latest":
        return "latest"
    raise ConfigError(f"the option startingOffsetsByTimestampStrategy takes error or latest, not {shown(value)}")
