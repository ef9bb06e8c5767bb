"""Kafka's topic and broker settings as the gateway knows them: tables of names, types, defaults and limits.

A topic setting without a value of its own follows its broker synonyms in order, then its default, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kclient.config.setting import Boolean, Choice, Decimal, List, Number, Text
from kclient.gateway.setting import (
    INT_MAX,
    LONG_MAX,
    AuthorizerClass,
    BrokerSetting,
    GzipLevel,
    HostLimits,
    Principals,
    RetentionTime,
)
from kclient.gateway.settings_of_logins import (
    BROKER_SETTINGS_OF_OAUTH,
    BROKER_SETTINGS_OF_TOKENS,
)
from kclient.gateway.settings_of_quotas import BROKER_SETTINGS_OF_QUOTAS
from kclient.gateway.settings_of_shares import BROKER_SETTINGS_OF_SHARES, GROUP_SETTINGS_OF_SHARES
from kclient.gateway.settings_of_streams import BOUNDS_OF_STREAMS, BROKER_SETTINGS_OF_STREAMS, GROUP_SETTINGS_OF_STREAMS
from kclient.gateway.settings_of_telemetry import BROKER_SETTINGS_OF_TELEMETRY
from kclient.gateway.settings_of_tls import BROKER_SETTINGS_OF_TLS
from kclient.net.sasl.scram import SCRAM_MECHANISMS
from kclient.records.bounds import INT16_MAX

MOST_PARTITIONS: Final = 10_000
"""Most partitions of one topic: as Kafka's controller refuses to make more in one request."""

_B, _S, _I, _L, _D, _LI = Boolean(), Text(), Number(-INT_MAX - 1), Number(high=LONG_MAX), Decimal(), List()
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_STAMPS = ("CreateTime", "LogAppendTime")
_HOUR: Final = 3_600_000


def _same(name: str) -> tuple[tuple[str, int], ...]:
    return ((name, 1),)


def _table(*settings: BrokerSetting) -> dict[str, BrokerSetting]:
    return {setting.name: setting for setting in settings}


TOPIC_SETTINGS: Final[Mapping[str, BrokerSetting]] = _table(
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
        Choice(_CODECS, exact=True),
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

BROKER_SETTINGS: Final[Mapping[str, BrokerSetting]] = _table(
    BrokerSetting(
        "advertised.listeners",
        _LI,
        None,
        "What clients of `listeners` are told, as `NAME://HOST:PORT`; where one is left out, the address itself.",
    ),
    BrokerSetting(
        "allow.everyone.if.no.acl.found",
        _B,
        "false",
        "Whether everybody may do everything with a resource that no entry of the access control lists is about.",
    ),
    BrokerSetting("auto.create.topics.enable", _B, "true", "Create a topic when metadata of it is asked for."),
    BrokerSetting(
        "authorizer.class.name",
        AuthorizerClass(),
        "",
        "Who decides what clients may do: access control lists, or where it is empty nobody, so that they may do "
        "everything.",
    ),
    BrokerSetting("broker.id", Number(-1), "-1", "The same as node.id."),
    BrokerSetting("broker.rack", _S, None, "The rack that Metadata tells."),
    BrokerSetting("compression.gzip.level", GzipLevel(), "-1", "Default of the topic setting."),
    BrokerSetting("compression.lz4.level", Number(1, 17), "9", "Default of the topic setting."),
    BrokerSetting("compression.type", Choice(_CODECS, exact=True), "producer", "Default of the topic setting."),
    BrokerSetting("compression.zstd.level", Number(-131072, 22), "3", "Default of the topic setting."),
    BrokerSetting(
        "connection.failed.authentication.delay.ms",
        Number(0),
        "100",
        "How long a client that could not log in waits for the refusal.",
    ),
    BrokerSetting("connections.max.idle.ms", _L, "600000", "Idle connections are closed after this time."),
    BrokerSetting(
        "connections.max.memory.bytes",
        Number(16 << 20, LONG_MAX),
        str(512 << 20),
        "Most memory that is kept for clients and for what is stored, all together: requests, what is made of them, "
        "replies, fetch sessions, connections, groups, committed offsets, topics, open partitions, producers, caches, "
        "but not the messages of a memory: store. Gateways in one process share the largest of theirs. Connections "
        "have what the rest leaves and are read when there is room; one may hold a quarter. A stored batch that is "
        "larger is fetched all the same, one at a time, unless it is larger than all of it. Fetch sessions may take "
        "an eighth: consumers beyond that fetch without sessions. Members of groups, committed offsets and topics may "
        "take a quarter each, and three eighths together: a member, or an offset of another partition, is told to try "
        "again beyond that (COORDINATOR_LOAD_IN_PROGRESS), and a topic is refused (POLICY_VIOLATION). Batches that "
        "pile up before a store that hangs are refused beyond an eighth (KAFKA_STORAGE_ERROR), and so are commits "
        "and joins of groups (COORDINATOR_LOAD_IN_PROGRESS). Connections wait that "
        "would take more than half of it, at 10 kB each. Not a setting of Kafka's.",
    ),
    BrokerSetting(
        "connections.max.reauth.ms",
        Number(0, LONG_MAX),
        "0",
        "How long a login counts before the client has to log in again (KIP-368); 0: as long as the connection. "
        "`listener.name.NAME.connections.max.reauth.ms` is that of one listener.",
    ),
    BrokerSetting(
        "controller.listener.names",
        _LI,
        None,
        "Listeners that are for controllers, which gateways do not have: those of `listeners` that are named here are "
        "left out, and so are their settings.",
    ),
    BrokerSetting(
        "default.replication.factor", Number(1, INT16_MAX), "1", "The replication factor that auto-created topics show."
    ),
    *BROKER_SETTINGS_OF_TOKENS,
    BrokerSetting("delete.topic.enable", _B, "true", "Whether DeleteTopics is allowed."),
    BrokerSetting("fetch.max.bytes", Number(1024), "57671680", "Most bytes one Fetch response carries."),
    BrokerSetting(
        "group.consumer.assignment.interval.ms",
        Number(0),
        "1000",
        "Least time between two targets of a consumer group (KIP-848), in milliseconds.",
    ),
    BrokerSetting(
        "group.consumer.heartbeat.interval.ms",
        Number(1),
        "5000",
        "How often members of consumer groups are to be heard of.",
    ),
    BrokerSetting(
        "group.consumer.max.assignment.interval.ms", Number(0), "15000", "Most of it that a group may have set for it."
    ),
    BrokerSetting(
        "group.consumer.max.heartbeat.interval.ms", Number(1), "15000", "Most of it that a group may have set for it."
    ),
    BrokerSetting(
        "group.consumer.max.session.timeout.ms", Number(1), "60000", "Most of it that a group may have set for it."
    ),
    BrokerSetting("group.consumer.max.size", Number(1), str(INT_MAX), "Most members of a consumer group."),
    BrokerSetting(
        "group.consumer.migration.policy",
        Choice(("disabled", "downgrade", "upgrade", "bidirectional")),
        "bidirectional",
        "Whether groups with members go over from the classic protocol to that of consumer groups (`upgrade`), back, "
        "or both. Empty groups always do.",
    ),
    BrokerSetting(
        "group.consumer.min.assignment.interval.ms", Number(0), "0", "Least of it that a group may have set for it."
    ),
    BrokerSetting(
        "group.consumer.min.heartbeat.interval.ms", Number(1), "5000", "Least of it that a group may have set for it."
    ),
    BrokerSetting(
        "group.consumer.min.session.timeout.ms", Number(1), "45000", "Least of it that a group may have set for it."
    ),
    BrokerSetting(
        "group.consumer.session.timeout.ms",
        Number(1),
        "45000",
        "How long a member of a consumer group may not be heard of before it is removed.",
    ),
    BrokerSetting(
        "group.initial.rebalance.delay.ms", Number(0), "3000", "How long a new group waits for more members."
    ),
    BrokerSetting(
        "group.max.metadata.bytes",
        Number(1),
        "8388608",
        "Most bytes of metadata of a group's members together, and of "
        "its assignments. Not a setting of Kafka's, where the log of groups has a largest message.",
    ),
    BrokerSetting("group.max.session.timeout.ms", _I, "1800000", "Longest session timeout a member may ask for."),
    BrokerSetting("group.max.size", Number(1), str(INT_MAX), "Most members of a group."),
    BrokerSetting("group.min.session.timeout.ms", _I, "6000", "Shortest session timeout a member may ask for."),
    *BROKER_SETTINGS_OF_SHARES,
    *BROKER_SETTINGS_OF_STREAMS,
    BrokerSetting(
        "listener.security.protocol.map",
        _S,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "How clients come in by each of `listeners`, as `NAME:PROTOCOL`.",
    ),
    BrokerSetting(
        "listeners",
        _LI,
        "PLAINTEXT://:9092",
        "Where clients are accepted, as `NAME://HOST:PORT`; in place of the address given as listen (--listen).",
    ),
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
    BrokerSetting("max.connections", Number(1), str(INT_MAX), "Most connections at a time; more wait until one ends."),
    BrokerSetting(
        "max.connections.per.ip", Number(0), str(INT_MAX), "Most connections from one address; more are closed."
    ),
    BrokerSetting(
        "max.connections.per.ip.overrides",
        HostLimits(),
        "",
        "Limits of single addresses in place of that: `host:count,127.0.0.1:count`.",
    ),
    BrokerSetting("max.incremental.fetch.session.cache.slots", Number(0), "1000", "Most fetch sessions kept."),
    BrokerSetting("message.max.bytes", Number(0), "1048588", "Default of max.message.bytes."),
    BrokerSetting(
        "message.max.decompressed.bytes",
        Number(1, LONG_MAX),
        str(256 << 20),
        "Largest size of a batch's records after "
        "decompression, where the gateway has to look into them: another compression.type, searches by "
        "time. Not a setting of Kafka's.",
    ),
    BrokerSetting(
        "metrics.partitions.enable",
        _B,
        "true",
        "Whether metrics are served of each partition, topic and group, under the names of kafka_exporter, beside "
        "those of the gateway. Not a setting of Kafka's.",
    ),
    BrokerSetting("min.insync.replicas", Number(1), "1", "Default of the topic setting."),
    BrokerSetting("node.id", Number(-1), "1", "The number of this gateway in Metadata; -1: the store allots one."),
    BrokerSetting(
        "num.partitions", Number(1, MOST_PARTITIONS), "1", "Partitions of a topic created without saying how many."
    ),
    BrokerSetting(
        "offsets.retention.check.interval.ms",
        Number(1, LONG_MAX),
        "600000",
        "How often expired offsets are looked for.",
    ),
    BrokerSetting("offsets.retention.minutes", Number(1), "10080", "How long offsets of an empty group are kept."),
    BrokerSetting(
        "offsets.topic.num.partitions",
        Number(1, MOST_PARTITIONS),
        "50",
        "How many partitions the topic __consumer_offsets has, each of which stands for some groups: whoever leads it "
        "coordinates these. The first gateway of a store decides it.",
    ),
    BrokerSetting("offset.metadata.max.bytes", Number(0), "4096", "Longest metadata of a committed offset."),
    BrokerSetting(
        "producer.id.cache.size",
        Number(16),
        "100000",
        "Idempotent producers that all partitions together remember, and "
        "each a twentieth of it; beyond that the longest silent ones are forgotten. Not a setting of Kafka's.",
    ),
    BrokerSetting(
        "producer.id.expiration.ms", Number(1), "86400000", "An idle producer id is forgotten after this time."
    ),
    BrokerSetting(
        "queued.max.request.bytes",
        Number(-1, LONG_MAX),
        "-1",
        "Bytes of requests that may be waiting before no more are read; -1 "
        "for no limit but that of connections.max.memory.bytes.",
    ),
    BrokerSetting(
        "queued.max.requests",
        Number(1),
        "500",
        "Most requests of one connection in work at a time; at most 64 of them wait for something.",
    ),
    *BROKER_SETTINGS_OF_QUOTAS,
    BrokerSetting(
        "sasl.enabled.mechanisms",
        _LI,
        ",".join(SCRAM_MECHANISMS),
        "The mechanisms that clients may log in with, of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; Kafka's "
        "default is GSSAPI, which gateways do not have. `listener.name.NAME.sasl.enabled.mechanisms` is that of one "
        "listener.",
    ),
    *BROKER_SETTINGS_OF_OAUTH,
    BrokerSetting(
        "sasl.server.max.receive.size",
        Number(1),
        "524288",
        "Longest request of a client that has not logged in, in bytes.",
    ),
    BrokerSetting(
        "socket.request.max.bytes",
        Number(1),
        "104857600",
        "Longest request accepted, in bytes: at most a quarter of "
        "connections.max.memory.bytes. More is refused at the start; the default is lowered to it.",
    ),
    *BROKER_SETTINGS_OF_TLS,
    BrokerSetting(
        "super.users",
        Principals(),
        "",
        "Who may do everything, whatever the access control lists say: principals with semicolons between them.",
    ),
    *BROKER_SETTINGS_OF_TELEMETRY,
    BrokerSetting(
        "transaction.max.timeout.ms",
        Number(1),
        "900000",
        "The longest transaction.timeout.ms that a producer may ask for.",
    ),
    BrokerSetting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Number(1),
        "3600000",
        "How often transactional ids that have expired are looked for.",
    ),
    BrokerSetting(
        "transactional.id.expiration.ms",
        Number(1),
        "604800000",
        "An idle transactional id is forgotten after this time.",
    ),
    BrokerSetting(
        "transaction.state.log.num.partitions",
        Number(1, MOST_PARTITIONS),
        "50",
        "How many partitions the topic __transaction_state has, each of which stands for some transactional ids: "
        "whoever leads it coordinates these. The first gateway of a store decides it.",
    ),
    BrokerSetting("unclean.leader.election.enable", _B, "false", "Default of the topic setting."),
)
"""The broker settings that the gateway obeys or reports."""

HTP_MAPPING: Final = BrokerSetting(
    "htp.mapping",
    _S,
    None,
    "How the topic's partitions lie in HTP: what the gateway's option `mapping` was when the topic was created.",
)
"""What a topic tells of itself beside its settings; it cannot be set."""

HTP_MIRROR: Final = BrokerSetting(
    "htp.mirror",
    _S,
    None,
    "Where the topic is moved in from, with its id there: `following CLUSTER/ID` while it takes records from there "
    "only, `taken over from CLUSTER/ID` since it takes producers' records. Topics that were made here do not have it.",
)
"""Another; only `kclient migrate` makes it."""

HTP_LEASE_AGE: Final = BrokerSetting(
    "htp.lease.age.ms",
    _S,
    None,
    "Milliseconds since the gateway asked for its lease to be renewed the last time that it was.",
)
HTP_CHECKPOINTS_BEHIND: Final = BrokerSetting(
    "htp.checkpoints.behind",
    _S,
    None,
    "Open partitions of which more is stored than their last checkpoint says, which is read again after a crash.",
)
HTP_GENERATIONS: Final = BrokerSetting(
    "htp.generations",
    _S,
    None,
    "Why the last generations of gateways began, each with its number, which is the leader epoch of the partitions "
    "that it has moved: `12 joined 2, 15 by hand, 16 crashed 1`.",
)
"""What a gateway tells of itself and of its cluster beside its settings, as it is at this moment; it cannot be set."""

ONLY_TOLD: Final = (HTP_MAPPING, HTP_MIRROR, HTP_LEASE_AGE, HTP_CHECKPOINTS_BEHIND, HTP_GENERATIONS)
"""What DescribeConfigs tells beside settings."""

GROUP_SETTINGS: Final[dict[str, BrokerSetting]] = {
    setting.name: setting
    for setting in (
        BrokerSetting(
            "consumer.assignment.interval.ms",
            Number(0),
            None,
            "Least time between two targets of the group (KIP-848).",
            (("group.consumer.assignment.interval.ms", 1),),
        ),
        BrokerSetting(
            "consumer.heartbeat.interval.ms",
            Number(1),
            None,
            "How often members of the group are to be heard of (KIP-848).",
            (("group.consumer.heartbeat.interval.ms", 1),),
        ),
        BrokerSetting(
            "consumer.session.timeout.ms",
            Number(1),
            None,
            "How long a member of the group may not be heard of (KIP-848).",
            (("group.consumer.session.timeout.ms", 1),),
        ),
        *GROUP_SETTINGS_OF_SHARES,
        *GROUP_SETTINGS_OF_STREAMS,
    )
}
"""Of single groups."""
GROUP_TYPES_WITH_SETTINGS: Final = ("consumer", "share", "streams")
"""The types of groups that have settings of their own; their names begin with the type."""


def bounds_of(name: str) -> tuple[str | None, str | None]:
    """The broker settings that bound what a group may set.

    Args:
        name: The broker setting that holds for groups which set nothing, such as `group.share.session.timeout.ms`.

    Returns:
        Of the least and of the most, such as `group.share.min.session.timeout.ms`; None where there is none.
    """
    if name in BOUNDS_OF_STREAMS:
        return BOUNDS_OF_STREAMS[name]
    _, kind, part = name.split(".", 2)
    return f"group.{kind}.min.{part}", f"group.{kind}.max.{part}"
