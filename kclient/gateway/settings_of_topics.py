"""Kafka's settings of topics as the gateway knows them, and the broker's for their logs, which stand in for them.

A topic setting without a value of its own follows its broker synonyms in order, then its default, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kclient.config.setting import Boolean, Choice, Decimal, List, Number
from kclient.gateway.setting import INT_MAX, LONG_MAX, BrokerSetting, GzipLevel, RetentionTime, settings_by_name

_B, _L, _LI = Boolean(), Number(high=LONG_MAX), List()
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
"""What `compression.type` may be."""
_STAMPS = ("CreateTime", "LogAppendTime")
_HOUR: Final = 3_600_000


def _same(name: str) -> tuple[tuple[str, int], ...]:
    return ((name, 1),)


TOPIC_SETTINGS: Final[Mapping[str, BrokerSetting]] = settings_by_name(
    BrokerSetting(
        "cleanup.policy",
        List(("compact", "delete")),
        "delete",
        "What happens to old data: delete, compact (of each key the last record stays) or both. Topics whose store "
        "cannot rewrite what it has keep every record.",
        synonyms=_same("log.cleanup.policy"),
    ),
    BrokerSetting(
        "compression.gzip.level",
        GzipLevel(),
        "-1",
        "Level of gzip when compression.type is gzip.",
        synonyms=_same("compression.gzip.level"),
    ),
    BrokerSetting(
        "compression.lz4.level",
        Number(1, 17),
        "9",
        "Level of lz4 when compression.type is lz4.",
        synonyms=_same("compression.lz4.level"),
    ),
    BrokerSetting(
        "compression.type",
        Choice(CODECS, exact=True),
        "producer",
        "Codec batches are kept in; `producer` keeps the producer's.",
        synonyms=_same("compression.type"),
    ),
    BrokerSetting(
        "compression.zstd.level",
        Number(-131072, 22),
        "3",
        "Level of zstd when compression.type is zstd.",
        synonyms=_same("compression.zstd.level"),
    ),
    BrokerSetting(
        "delete.retention.ms",
        Number(0, LONG_MAX),
        "86400000",
        "How long records without a value, and markers of transactions, stay in a compacted topic, in milliseconds "
        "since a compaction has come to them.",
        synonyms=_same("log.cleaner.delete.retention.ms"),
    ),
    BrokerSetting(
        "file.delete.delay.ms",
        Number(0, LONG_MAX),
        "60000",
        "Without effect: HTP removes trimmed data itself.",
        synonyms=_same("log.segment.delete.delay.ms"),
    ),
    BrokerSetting(
        "flush.messages",
        Number(1, LONG_MAX),
        str(LONG_MAX),
        "Without effect: the gateway's durability decides.",
        synonyms=_same("log.flush.interval.messages"),
    ),
    BrokerSetting(
        "flush.ms",
        Number(0, LONG_MAX),
        str(LONG_MAX),
        "Without effect: the gateway's durability decides.",
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    BrokerSetting("follower.replication.throttled.replicas", _LI, "", "Without effect: there are no followers."),
    BrokerSetting(
        "index.interval.bytes",
        Number(0),
        "4096",
        "Without effect: HTP indexes in its own way.",
        synonyms=_same("log.index.interval.bytes"),
    ),
    BrokerSetting("leader.replication.throttled.replicas", _LI, "", "Without effect: there are no followers."),
    BrokerSetting(
        "local.retention.bytes",
        Number(-2, LONG_MAX),
        "-2",
        "Without effect: there is no tiered storage.",
        synonyms=_same("log.local.retention.bytes"),
    ),
    BrokerSetting(
        "local.retention.ms",
        Number(-2, LONG_MAX),
        "-2",
        "Without effect: there is no tiered storage.",
        synonyms=_same("log.local.retention.ms"),
    ),
    BrokerSetting(
        "max.compaction.lag.ms",
        Number(1, LONG_MAX),
        str(LONG_MAX),
        "After this time in milliseconds a compacted log is cleaned, however little of it is dirty.",
        synonyms=_same("log.cleaner.max.compaction.lag.ms"),
    ),
    BrokerSetting(
        "max.message.bytes",
        Number(0),
        "1048588",
        "Largest record batch accepted, after compression, in bytes.",
        synonyms=_same("message.max.bytes"),
    ),
    BrokerSetting(
        "message.timestamp.after.max.ms",
        Number(0, LONG_MAX),
        str(_HOUR),
        "How far record timestamps may be ahead.",
        synonyms=_same("log.message.timestamp.after.max.ms"),
    ),
    BrokerSetting(
        "message.timestamp.before.max.ms",
        Number(0, LONG_MAX),
        str(LONG_MAX),
        "How far record timestamps may be behind.",
        synonyms=_same("log.message.timestamp.before.max.ms"),
    ),
    BrokerSetting(
        "message.timestamp.type",
        Choice(_STAMPS, exact=True),
        "CreateTime",
        "CreateTime keeps the producer's timestamps, LogAppendTime stamps batches on arrival.",
        synonyms=_same("log.message.timestamp.type"),
    ),
    BrokerSetting(
        "min.cleanable.dirty.ratio",
        Decimal(0, 1),
        "0.5",
        "A compacted log is cleaned when more of its bytes than this part have come since the last time.",
        synonyms=_same("log.cleaner.min.cleanable.ratio"),
    ),
    BrokerSetting(
        "min.compaction.lag.ms",
        Number(0, LONG_MAX),
        "0",
        "Shortest time in milliseconds that a record stays, though a later one of its key has come.",
        synonyms=_same("log.cleaner.min.compaction.lag.ms"),
    ),
    BrokerSetting(
        "min.insync.replicas",
        Number(1),
        "1",
        "Without effect: HTP's durability stands for replication.",
        synonyms=_same("min.insync.replicas"),
    ),
    BrokerSetting("preallocate", _B, "false", "Without effect.", synonyms=_same("log.preallocate")),
    BrokerSetting("remote.log.copy.disable", _B, "false", "Without effect: there is no tiered storage."),
    BrokerSetting("remote.log.delete.on.disable", _B, "false", "Without effect: there is no tiered storage."),
    BrokerSetting("remote.storage.enable", _B, "false", "Without effect: there is no tiered storage."),
    BrokerSetting(
        "retention.bytes",
        _L,
        "-1",
        "Largest size of a partition in bytes before old data goes; -1: none.",
        synonyms=_same("log.retention.bytes"),
    ),
    BrokerSetting(
        "retention.ms",
        Number(-1, LONG_MAX),
        "604800000",
        "Age in milliseconds after which data goes; -1: never.",
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", _HOUR)),
        below=-1,
    ),
    BrokerSetting(
        "segment.bytes",
        Number(1048576),
        "1073741824",
        "Size in bytes at which a segment is closed: retention by size drops whole segments.",
        synonyms=_same("log.segment.bytes"),
    ),
    BrokerSetting(
        "segment.index.bytes",
        Number(4),
        "10485760",
        "Without effect: HTP indexes in its own way.",
        synonyms=_same("log.index.size.max.bytes"),
    ),
    BrokerSetting(
        "segment.jitter.ms",
        Number(0, LONG_MAX),
        "0",
        "Without effect.",
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR)),
    ),
    BrokerSetting(
        "segment.ms",
        Number(1, LONG_MAX),
        "604800000",
        "Age in milliseconds after which a segment is closed at the next append; retention drops whole segments.",
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", _HOUR)),
    ),
    BrokerSetting(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Without effect: there are no followers.",
        synonyms=_same("unclean.leader.election.enable"),
    ),
)
"""Kafka 4.3's topic settings."""

BROKER_SETTINGS_OF_LOGS: Final = (
    BrokerSetting(
        "log.cleaner.backoff.ms",
        Number(0, LONG_MAX),
        "15000",
        "How often the gateway looks which compacted logs are dirty, in milliseconds.",
    ),
    BrokerSetting(
        "log.cleaner.dedupe.buffer.size",
        Number(1048576, LONG_MAX),
        "134217728",
        "Memory in bytes for the keys of a log while it is cleaned, 24 for each; more keys take several passes.",
    ),
    BrokerSetting(
        "log.cleaner.delete.retention.ms", Number(0, LONG_MAX), "86400000", "Default of delete.retention.ms."
    ),
    BrokerSetting("log.cleaner.enable", _B, "true", "Whether compacted topics are compacted."),
    BrokerSetting(
        "log.cleaner.io.max.bytes.per.second",
        Decimal(1),
        "1.7976931348623157E308",
        "How many bytes of logs are read in a second for compaction, at most.",
    ),
    BrokerSetting(
        "log.cleaner.max.compaction.lag.ms", Number(1, LONG_MAX), str(LONG_MAX), "Default of the topic setting."
    ),
    BrokerSetting("log.cleaner.min.cleanable.ratio", Decimal(0, 1), "0.5", "Default of min.cleanable.dirty.ratio."),
    BrokerSetting("log.cleaner.min.compaction.lag.ms", Number(0, LONG_MAX), "0", "Default of the topic setting."),
    BrokerSetting("log.cleanup.policy", List(("compact", "delete")), "delete", "Default of cleanup.policy."),
    BrokerSetting(
        "log.dir.min.free.bytes",
        Number(0, LONG_MAX),
        "0",
        "With less space left on the file system of the data directory, producers are refused (KAFKA_STORAGE_ERROR, "
        "which they try again), while commits, deletions and retention go on; the log warns when less than twice that "
        "is left. 0: they are refused when there is no space any more. Only for embedded: stores. Not a setting of "
        "Kafka's.",
    ),
    BrokerSetting("log.dirs", _LI, None, "Where HTP keeps its data (`htp`)."),
    BrokerSetting("log.flush.interval.messages", Number(1, LONG_MAX), str(LONG_MAX), "Default of flush.messages."),
    BrokerSetting("log.flush.interval.ms", Number(0, LONG_MAX), None, "Default of flush.ms."),
    BrokerSetting("log.flush.scheduler.interval.ms", Number(0, LONG_MAX), str(LONG_MAX), "Default of flush.ms."),
    BrokerSetting("log.index.interval.bytes", Number(0), "4096", "Default of index.interval.bytes."),
    BrokerSetting("log.index.size.max.bytes", Number(4), "10485760", "Default of segment.index.bytes."),
    BrokerSetting("log.local.retention.bytes", Number(-2, LONG_MAX), "-2", "Default of local.retention.bytes."),
    BrokerSetting("log.local.retention.ms", Number(-2, LONG_MAX), "-2", "Default of local.retention.ms."),
    BrokerSetting(
        "log.message.timestamp.after.max.ms", Number(0, LONG_MAX), str(_HOUR), "Default of the topic setting."
    ),
    BrokerSetting(
        "log.message.timestamp.before.max.ms", Number(0, LONG_MAX), str(LONG_MAX), "Default of the topic setting."
    ),
    BrokerSetting(
        "log.message.timestamp.type", Choice(_STAMPS, exact=True), "CreateTime", "Default of the topic setting."
    ),
    BrokerSetting("log.preallocate", _B, "false", "Default of preallocate."),
    BrokerSetting("log.retention.bytes", _L, "-1", "Default of retention.bytes."),
    BrokerSetting("log.retention.check.interval.ms", Number(1, LONG_MAX), "300000", "How often retention is applied."),
    BrokerSetting(
        "log.retention.hours", RetentionTime(-INT_MAX - 1), "168", "Default of retention.ms, in hours; below 0: never."
    ),
    BrokerSetting(
        "log.retention.minutes",
        RetentionTime(-INT_MAX - 1),
        None,
        "Default of retention.ms, in minutes; below 0: never.",
    ),
    BrokerSetting("log.retention.ms", RetentionTime(high=LONG_MAX), None, "Default of retention.ms; below 0: never."),
    BrokerSetting("log.roll.hours", Number(1), "168", "Default of segment.ms, in hours."),
    BrokerSetting("log.roll.jitter.hours", Number(0), "0", "Default of segment.jitter.ms, in hours."),
    BrokerSetting("log.roll.jitter.ms", Number(0, LONG_MAX), None, "Default of segment.jitter.ms."),
    BrokerSetting("log.roll.ms", Number(1, LONG_MAX), None, "Default of segment.ms."),
    BrokerSetting("log.segment.bytes", Number(1048576), "1073741824", "Default of segment.bytes."),
    BrokerSetting("log.segment.delete.delay.ms", Number(0, LONG_MAX), "60000", "Default of file.delete.delay.ms."),
)
"""Defaults of topics' settings, and what is done with logs."""
