"""Kafka's topic and broker settings as the gateway knows them: tables of names, types, defaults and limits.

A topic setting without a value of its own follows its broker synonyms in order, then its default, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from functools import lru_cache
from typing import Final

from kclient.errors import ConfigError
from kclient.records.bounds import INT16_MAX

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
MOST_PARTITIONS: Final = 10_000
"""Most partitions of one topic: as Kafka's controller refuses to make more in one request."""

Value = bool | int | float | str | tuple[str, ...] | None


class SettingType(IntEnum):
    """The types of settings, numbered as DescribeConfigs numbers them (`ConfigEntry.ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, type, default, limits, and the broker settings a topic setting falls back on."""

    name: str
    type: SettingType
    default: str | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, int], ...] = ()
    """Broker settings that stand in, in order, each with the factor to this setting's unit."""
    check: Callable[[str], object] | None = None
    """Raises `ValueError` for a text that is not of the setting's form."""
    form: str = ""
    """What `check` wants, for messages."""

    def parse(self, text: str | None) -> Value:
        """The value of `text`; `ConfigError` when it is no value of this setting."""
        if text is None:
            return None
        text = text.strip()
        try:
            value = _PARSERS[self.type](text)
            if self.check is not None:
                self.check(text)
        except ValueError:
            raise ConfigError(
                f"Invalid value {text!r} for configuration {self.name}: Not a {self.form or self.type.name.lower()}"
            ) from None
        self._check(text, value)
        return value

    def _check(self, text: str, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.minimum if self.minimum is not None else value
            high = self.maximum if self.maximum is not None else _LARGEST.get(self.type, value)
            if not low <= value <= high:
                raise ConfigError(
                    f"Invalid value {text} for configuration {self.name}: Value must be between {low} and {high}"
                )
        if self.choices:
            given = value if isinstance(value, tuple) else (value,)
            for item in given:
                if item not in self.choices:
                    raise ConfigError(
                        f"Invalid value {text!r} for configuration {self.name}: "
                        f"must be one of {', '.join(self.choices)}"
                    )


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


_PARSERS: Final[dict[SettingType, Callable[[str], Value]]] = {
    SettingType.BOOLEAN: _boolean,
    SettingType.STRING: str,
    SettingType.INT: int,
    SettingType.SHORT: int,
    SettingType.LONG: int,
    SettingType.DOUBLE: float,
    SettingType.LIST: _list,
    SettingType.CLASS: str,
    SettingType.PASSWORD: str,
}
_LARGEST: Final = {SettingType.INT: INT_MAX, SettingType.SHORT: 2**15 - 1, SettingType.LONG: LONG_MAX}


def connection_overrides(text: str) -> dict[str, int]:
    """The hosts of `max.connections.per.ip.overrides` and their limits. Raises `ValueError`."""
    found = {}
    for item in _list(text):
        host, colon, most = item.rpartition(":")
        if not (host and colon) or int(most) < 0:
            raise ValueError(item)
        found[host.strip().strip("[]")] = int(most)
    return found


_B, _S, _I, _L, _D, _LI = (
    SettingType.BOOLEAN,
    SettingType.STRING,
    SettingType.INT,
    SettingType.LONG,
    SettingType.DOUBLE,
    SettingType.LIST,
)
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_STAMPS = ("CreateTime", "LogAppendTime")
_HOUR: Final = 3_600_000


def _same(name: str) -> tuple[tuple[str, int], ...]:
    return ((name, 1),)


def _table(*settings: Setting) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = _table(
    Setting("cleanup.policy", _LI, "delete", "What happens to old data: delete, compact or both. Compaction "
            "is recorded and comes later; until then a compacted topic keeps every record.",
            choices=("compact", "delete"), synonyms=_same("log.cleanup.policy")),
    Setting("compression.gzip.level", _I, "-1", "Level of gzip when compression.type is gzip.", -1, 9,
            synonyms=_same("compression.gzip.level")),
    Setting("compression.lz4.level", _I, "9", "Level of lz4 when compression.type is lz4.", 1, 17,
            synonyms=_same("compression.lz4.level")),
    Setting("compression.type", _S, "producer", "Codec batches are kept in; `producer` keeps the producer's.",
            choices=_CODECS, synonyms=_same("compression.type")),
    Setting("compression.zstd.level", _I, "3", "Level of zstd when compression.type is zstd.", -131072, 22,
            synonyms=_same("compression.zstd.level")),
    Setting("delete.retention.ms", _L, "86400000", "Without effect until compaction is there: how long tombstones "
            "stay in compacted topics.", 0,
            synonyms=_same("log.cleaner.delete.retention.ms")),
    Setting("file.delete.delay.ms", _L, "60000", "Without effect: HTP removes trimmed data itself.", 0,
            synonyms=_same("log.segment.delete.delay.ms")),
    Setting("flush.messages", _L, str(LONG_MAX), "Without effect: the gateway's durability decides.", 1,
            synonyms=_same("log.flush.interval.messages")),
    Setting("flush.ms", _L, str(LONG_MAX), "Without effect: the gateway's durability decides.", 0,
            synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))),
    Setting("follower.replication.throttled.replicas", _LI, "", "Without effect: there are no followers."),
    Setting("index.interval.bytes", _I, "4096", "Without effect: HTP indexes in its own way.", 0,
            synonyms=_same("log.index.interval.bytes")),
    Setting("leader.replication.throttled.replicas", _LI, "", "Without effect: there are no followers."),
    Setting("local.retention.bytes", _L, "-2", "Without effect: there is no tiered storage.", -2,
            synonyms=_same("log.local.retention.bytes")),
    Setting("local.retention.ms", _L, "-2", "Without effect: there is no tiered storage.", -2,
            synonyms=_same("log.local.retention.ms")),
    Setting("max.compaction.lag.ms", _L, str(LONG_MAX), "Without effect until compaction is there: longest time a "
            "record stays uncompacted.", 1,
            synonyms=_same("log.cleaner.max.compaction.lag.ms")),
    Setting("max.message.bytes", _I, "1048588", "Largest record batch accepted, after compression, in bytes.", 0,
            synonyms=_same("message.max.bytes")),
    Setting("message.timestamp.after.max.ms", _L, str(_HOUR), "How far record timestamps may be ahead.", 0,
            synonyms=_same("log.message.timestamp.after.max.ms")),
    Setting("message.timestamp.before.max.ms", _L, str(LONG_MAX), "How far record timestamps may be behind.", 0,
            synonyms=_same("log.message.timestamp.before.max.ms")),
    Setting("message.timestamp.type", _S, "CreateTime", "CreateTime keeps the producer's timestamps, "
            "LogAppendTime stamps batches on arrival.", choices=_STAMPS,
            synonyms=_same("log.message.timestamp.type")),
    Setting("min.cleanable.dirty.ratio", _D, "0.5", "Without effect until compaction is there: how much of a "
            "compacted log may be dirty.", 0, 1,
            synonyms=_same("log.cleaner.min.cleanable.ratio")),
    Setting("min.compaction.lag.ms", _L, "0", "Without effect until compaction is there: shortest time a record stays "
            "uncompacted.", 0,
            synonyms=_same("log.cleaner.min.compaction.lag.ms")),
    Setting("min.insync.replicas", _I, "1", "Without effect: HTP's durability stands for replication.", 1,
            synonyms=_same("min.insync.replicas")),
    Setting("preallocate", _B, "false", "Without effect.", synonyms=_same("log.preallocate")),
    Setting("remote.log.copy.disable", _B, "false", "Without effect: there is no tiered storage."),
    Setting("remote.log.delete.on.disable", _B, "false", "Without effect: there is no tiered storage."),
    Setting("remote.storage.enable", _B, "false", "Without effect: there is no tiered storage."),
    Setting("retention.bytes", _L, "-1", "Largest size of a partition in bytes before old data goes; -1: none.",
            synonyms=_same("log.retention.bytes")),
    Setting("retention.ms", _L, "604800000", "Age in milliseconds after which data goes; -1: never.", -1,
            synonyms=(("log.retention.ms", 1), ("log.retention.minutes", 60_000),
                      ("log.retention.hours", _HOUR))),
    Setting("segment.bytes", _I, "1073741824", "Size in bytes at which a segment is closed: retention by size drops "
            "whole segments.", 1048576, synonyms=_same("log.segment.bytes")),
    Setting("segment.index.bytes", _I, "10485760", "Without effect: HTP indexes in its own way.", 4,
            synonyms=_same("log.index.size.max.bytes")),
    Setting("segment.jitter.ms", _L, "0", "Without effect.", 0,
            synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR))),
    Setting("segment.ms", _L, "604800000", "Age in milliseconds after which a segment is closed at the next append; "
            "retention drops whole segments.", 1,
            synonyms=(("log.roll.ms", 1), ("log.roll.hours", _HOUR))),
    Setting("unclean.leader.election.enable", _B, "false", "Without effect: there are no followers.",
            synonyms=_same("unclean.leader.election.enable")),
)  # fmt: skip
"""Kafka 4.3's topic settings."""

BROKER_SETTINGS: Final[Mapping[str, Setting]] = _table(
    Setting("advertised.listeners", _LI, None, "The address clients are told (`advertise`)."),
    Setting("auto.create.topics.enable", _B, "true", "Create a topic when metadata of it is asked for."),
    Setting("broker.id", _I, "-1", "The same as node.id.", -1),
    Setting("broker.rack", _S, None, "The rack that Metadata tells."),
    Setting("compression.gzip.level", _I, "-1", "Default of the topic setting.", -1, 9),
    Setting("compression.lz4.level", _I, "9", "Default of the topic setting.", 1, 17),
    Setting("compression.type", _S, "producer", "Default of the topic setting.", choices=_CODECS),
    Setting("compression.zstd.level", _I, "3", "Default of the topic setting.", -131072, 22),
    Setting("connections.max.idle.ms", _L, "600000", "Idle connections are closed after this time."),
    Setting("connections.max.memory.bytes", _L, str(512 << 20), "Most memory that is kept for all clients together: "
            "requests, what is made of them, replies, fetch sessions. One connection may take a quarter; a stored "
            "batch that is larger is fetched all the same, one at a time, unless it is larger than all of it. When it "
            "is used up, connections are read when there is room again. Fetch sessions may take an eighth: consumers "
            "beyond that fetch without sessions. Beside it, the members of all groups may take as much as a quarter: "
            "who joins beyond that is told to try again (COORDINATOR_LOAD_IN_PROGRESS), and the log says so. Not a "
            "setting of Kafka's.", 16 << 20),
    Setting("default.replication.factor", _I, "1", "The replication factor that auto-created topics show.", 1,
            INT16_MAX),
    Setting("delete.topic.enable", _B, "true", "Whether DeleteTopics is allowed."),
    Setting("fetch.max.bytes", _I, "57671680", "Most bytes one Fetch response carries.", 1024),
    Setting("group.initial.rebalance.delay.ms", _I, "3000", "How long a new group waits for more members.", 0),
    Setting("group.max.metadata.bytes", _I, "8388608", "Most bytes of metadata of a group's members together, and of "
            "its assignments. Not a setting of Kafka's, where the log of groups has a largest message.", 1),
    Setting("group.max.session.timeout.ms", _I, "1800000", "Longest session timeout a member may ask for."),
    Setting("group.max.size", _I, str(INT_MAX), "Most members of a group.", 1),
    Setting("group.min.session.timeout.ms", _I, "6000", "Shortest session timeout a member may ask for."),
    Setting("listeners", _LI, "PLAINTEXT://:9092", "The address listened on (`listen`)."),
    Setting("log.cleaner.delete.retention.ms", _L, "86400000", "Default of delete.retention.ms.", 0),
    Setting("log.cleaner.max.compaction.lag.ms", _L, str(LONG_MAX), "Default of the topic setting.", 1),
    Setting("log.cleaner.min.cleanable.ratio", _D, "0.5", "Default of min.cleanable.dirty.ratio.", 0, 1),
    Setting("log.cleaner.min.compaction.lag.ms", _L, "0", "Default of the topic setting.", 0),
    Setting("log.cleanup.policy", _LI, "delete", "Default of cleanup.policy.", choices=("compact", "delete")),
    Setting("log.dirs", _LI, None, "Where HTP keeps its data (`htp`)."),
    Setting("log.flush.interval.messages", _L, str(LONG_MAX), "Default of flush.messages.", 1),
    Setting("log.flush.interval.ms", _L, None, "Default of flush.ms."),
    Setting("log.flush.scheduler.interval.ms", _L, str(LONG_MAX), "Default of flush.ms."),
    Setting("log.index.interval.bytes", _I, "4096", "Default of index.interval.bytes.", 0),
    Setting("log.index.size.max.bytes", _I, "10485760", "Default of segment.index.bytes.", 4),
    Setting("log.local.retention.bytes", _L, "-2", "Default of local.retention.bytes.", -2),
    Setting("log.local.retention.ms", _L, "-2", "Default of local.retention.ms.", -2),
    Setting("log.message.timestamp.after.max.ms", _L, str(_HOUR), "Default of the topic setting.", 0),
    Setting("log.message.timestamp.before.max.ms", _L, str(LONG_MAX), "Default of the topic setting.", 0),
    Setting("log.message.timestamp.type", _S, "CreateTime", "Default of the topic setting.", choices=_STAMPS),
    Setting("log.preallocate", _B, "false", "Default of preallocate."),
    Setting("log.retention.bytes", _L, "-1", "Default of retention.bytes."),
    Setting("log.retention.check.interval.ms", _L, "300000", "How often retention is applied.", 1),
    Setting("log.retention.hours", _I, "168", "Default of retention.ms, in hours."),
    Setting("log.retention.minutes", _I, None, "Default of retention.ms, in minutes."),
    Setting("log.retention.ms", _L, None, "Default of retention.ms."),
    Setting("log.roll.hours", _I, "168", "Default of segment.ms, in hours.", 1),
    Setting("log.roll.jitter.hours", _I, "0", "Default of segment.jitter.ms, in hours.", 0),
    Setting("log.roll.jitter.ms", _L, None, "Default of segment.jitter.ms."),
    Setting("log.roll.ms", _L, None, "Default of segment.ms."),
    Setting("log.segment.bytes", _I, "1073741824", "Default of segment.bytes.", 1048576),
    Setting("log.segment.delete.delay.ms", _L, "60000", "Default of file.delete.delay.ms.", 0),
    Setting("max.connections", _I, str(INT_MAX), "Most connections at a time; more wait until one ends.", 1),
    Setting("max.connections.per.ip", _I, str(INT_MAX), "Most connections from one address; more are closed.", 0),
    Setting("max.connections.per.ip.overrides", _S, "", "Limits of single addresses in place of that: "
            "`host:count,127.0.0.1:count`.", check=connection_overrides, form="list of host:count"),
    Setting("max.incremental.fetch.session.cache.slots", _I, "1000", "Most fetch sessions kept.", 0),
    Setting("message.max.bytes", _I, "1048588", "Default of max.message.bytes.", 0),
    Setting("message.max.decompressed.bytes", _L, str(256 << 20), "Largest size of a batch's records after "
            "decompression, where the gateway has to look into them: another compression.type, searches by "
            "time. Not a setting of Kafka's.", 1),
    Setting("min.insync.replicas", _I, "1", "Default of the topic setting.", 1),
    Setting("node.id", _I, "1", "The number of this gateway in Metadata.", 0),
    Setting("num.partitions", _I, "1", "Partitions of a topic created without saying how many.", 1,
            MOST_PARTITIONS),
    Setting("offsets.retention.check.interval.ms", _L, "600000", "How often expired offsets are looked for.", 1),
    Setting("offsets.retention.minutes", _I, "10080", "How long offsets of an empty group are kept.", 1),
    Setting("offset.metadata.max.bytes", _I, "4096", "Longest metadata of a committed offset.", 0),
    Setting("producer.id.cache.size", _I, "100000", "Idempotent producers that all partitions together remember, and "
            "each a twentieth of it; beyond that the longest silent ones are forgotten. Not a setting of Kafka's.", 16),
    Setting("producer.id.expiration.ms", _I, "86400000", "An idle producer id is forgotten after this time.", 1),
    Setting("queued.max.request.bytes", _L, "-1", "Bytes of requests that may be waiting before no more are read; -1 "
            "for no limit but that of connections.max.memory.bytes.", -1),
    Setting("queued.max.requests", _I, "500", "Most requests of one connection in work at a time; at most 64 of them "
            "wait for something.", 1),
    Setting("socket.request.max.bytes", _I, "104857600", "Longest request accepted, in bytes: at most a quarter of "
            "connections.max.memory.bytes. More is refused at the start; the default is lowered to it.", 1),
    Setting("unclean.leader.election.enable", _B, "false", "Default of the topic setting."),
)  # fmt: skip
"""The broker settings that the gateway obeys or reports."""

WITHOUT_EFFECT: Final = (
    "auto.leader.rebalance.enable", "background.threads", "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms", "controlled.shutdown.enable",
    "controller.listener.names", "controller.quorum.bootstrap.servers", "controller.quorum.voters",
    "group.coordinator.threads", "inter.broker.listener.name", "listener.security.protocol.map", "log.cleaner.enable",
    "log.cleaner.threads", "log.dir", "num.io.threads", "num.network.threads",
    "num.recovery.threads.per.data.dir", "num.replica.fetchers", "offsets.topic.num.partitions",
    "offsets.topic.replication.factor", "process.roles", "replica.fetch.max.bytes", "replica.lag.time.max.ms",
    "share.coordinator.state.topic.min.isr", "share.coordinator.state.topic.replication.factor",
    "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions", "transaction.state.log.replication.factor",
)  # fmt: skip
"""Settings of a Kafka broker that people paste along: accepted with a log line, without effect here."""


ELSEWHERE: Final[Mapping[str, str]] = {
    "advertised.listeners": "give the address as advertise (--advertise)",
    "listeners": "give the address as listen (--listen)",
    "log.dirs": "give the directory as htp='embedded:DIR' (--data)",
}
"""Broker settings that the gateway reports and takes from elsewhere, and what to do instead."""


_LONGEST_NAME: Final = 100
"""A name longer than that is no misspelt one, and comparing it takes long."""


def nearest(name: str, table: Mapping[str, Setting]) -> str:
    """The end of an error message that suggests the setting most like `name`; empty without one."""
    if len(name) > _LONGEST_NAME:
        return ""
    close = _nearest(name, tuple(table))
    return f"; did you mean {close}?" if close else ""


@lru_cache(maxsize=256)
def _nearest(name: str, names: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(name, names, n=1)), None)
