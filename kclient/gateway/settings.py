"""Kafka's broker settings as the gateway knows them: a table of names, types, defaults and limits.

Each subject that has many has them in a file of its own, `settings_of_….py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kclient.config.setting import Boolean, Choice, List, Number, Text
from kclient.gateway.setting import (
    INT_MAX,
    LONG_MAX,
    AuthorizerClass,
    BrokerSetting,
    GzipLevel,
    HostLimits,
    Principals,
    settings_by_name,
)
from kclient.gateway.settings_of_groups import BROKER_SETTINGS_OF_GROUPS
from kclient.gateway.settings_of_logins import (
    BROKER_SETTINGS_OF_OAUTH,
    BROKER_SETTINGS_OF_TOKENS,
)
from kclient.gateway.settings_of_quotas import BROKER_SETTINGS_OF_QUOTAS
from kclient.gateway.settings_of_telemetry import BROKER_SETTINGS_OF_TELEMETRY
from kclient.gateway.settings_of_tls import BROKER_SETTINGS_OF_TLS
from kclient.gateway.settings_of_topics import BROKER_SETTINGS_OF_LOGS, CODECS
from kclient.net.sasl.scram import SCRAM_MECHANISMS
from kclient.records.bounds import INT16_MAX

MOST_PARTITIONS: Final = 10_000
"""Most partitions of one topic: as Kafka's controller refuses to make more in one request."""

_B, _S, _L, _LI = Boolean(), Text(), Number(high=LONG_MAX), List()


BROKER_SETTINGS: Final[Mapping[str, BrokerSetting]] = settings_by_name(
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
    BrokerSetting("compression.type", Choice(CODECS, exact=True), "producer", "Default of the topic setting."),
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
    *BROKER_SETTINGS_OF_GROUPS,
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
    *BROKER_SETTINGS_OF_LOGS,
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
