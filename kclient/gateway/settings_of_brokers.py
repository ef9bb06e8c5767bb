"""Settings of Kafka's brokers that gateways do not obey: those that change nothing here, and those that are refused.

With `BROKER_SETTINGS` these are all that a broker of Kafka 4.3 has, and some that earlier ones had. Whether a setting
is refused depends on what it would change: who asked for something that clients or data would notice is told so,
rather than served otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kclient.config.setting import Boolean

_NO_REPLICAS: Final = "a gateway has no replicas: the store keeps the messages"
_NO_CONTROLLERS: Final = "a gateway has no KRaft controllers: the store keeps what they would"
_THREADS: Final = "a gateway chooses its threads and buffers itself"
_OWN_STATE: Final = "groups and transactions are kept in rows of the store, and not in topics"
_NOT_CALLING: Final = "gateways do not log in anywhere, nor call one another by their listeners"
_STORE: Final = "the store cuts, writes and removes its files itself"
_NO_TIERS: Final = "there is no tiered storage"
_ASKS_FOR_TOKENS: Final = "it is for those who ask for tokens of OAUTHBEARER; a gateway checks them"
_NO_KERBEROS: Final = "gateways offer no GSSAPI"
_METRICS: Final = "metrics are served over HTTP (--metrics), and none are sampled for Java's reporters"
_OLD: Final = "Kafka 4 does not have it any more"
PLUGINS: Final = "it is that of a plug-in of Kafka's brokers, and gateways have none"
ONLY_INSIDE: Final = frozenset({_NO_REPLICAS, _NO_CONTROLLERS, _THREADS, _OWN_STATE, _NOT_CALLING, _STORE, _OLD})
"""The reasons for which nobody misses a setting: they are told of to those who want to know."""
_JAVA_TLS: Final = "it chooses among Java's implementations, and OpenSSL does their work here"

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    _NO_REPLICAS: (
        "alter.log.dirs.replication.quota.window.num", "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.leader.rebalance.enable", "controlled.shutdown.enable", "follower.fetch.last.tiered.offset.enable",
        "leader.imbalance.check.interval.seconds",
        "num.replica.alter.log.dirs.threads", "num.replica.fetchers", "replica.fetch.backoff.ms",
        "replica.fetch.max.bytes", "replica.fetch.min.bytes", "replica.fetch.response.max.bytes",
        "replica.fetch.wait.max.ms", "replica.high.watermark.checkpoint.interval.ms", "replica.lag.time.max.ms",
        "replica.selector.class", "replica.socket.receive.buffer.bytes", "replica.socket.timeout.ms",
        "replication.quota.window.num", "replication.quota.window.size.seconds",
        "unclean.leader.election.interval.ms",
    ),
    _NO_CONTROLLERS: (
        "broker.heartbeat.interval.ms", "broker.session.timeout.ms",
        "controller.performance.always.log.threshold.ms", "controller.performance.sample.period.ms",
        "controller.quorum.append.linger.ms", "controller.quorum.auto.join.enable",
        "controller.quorum.bootstrap.servers", "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms", "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes", "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms", "controller.quorum.retry.backoff.ms", "controller.quorum.voters",
        "controller.socket.timeout.ms", "initial.broker.registration.timeout.ms",
        "internal.metadata.delete.delay.millis", "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes", "metadata.log.dir",
        "metadata.log.max.record.bytes.between.snapshots", "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes", "metadata.log.segment.ms", "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes", "metadata.max.retention.ms", "server.max.startup.time.ms",
    ),
    _THREADS: (
        "background.threads", "delete.records.purgatory.purge.interval.requests", "early.start.listeners",
        "fetch.purgatory.purge.interval.requests", "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads", "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.threads", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size",
        "log.cleaner.threads", "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir",
        "producer.id.expiration.check.interval.ms", "producer.purgatory.purge.interval.requests",
        "share.coordinator.append.linger.ms", "share.coordinator.cached.buffer.max.bytes",
        "share.coordinator.threads", "share.fetch.purgatory.purge.interval.requests", "socket.listen.backlog.size",
        "socket.receive.buffer.bytes", "socket.send.buffer.bytes",
    ),
    _OWN_STATE: (
        "add.partitions.to.txn.retry.backoff.max.ms", "add.partitions.to.txn.retry.backoff.ms",
        "group.share.initialize.retry.interval.ms", "group.share.persister.class.name", "offsets.commit.timeout.ms",
        "offsets.load.buffer.size", "offsets.topic.compression.codec", "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes", "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.load.buffer.size", "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.compression.codec", "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.num.partitions", "share.coordinator.state.topic.prune.interval.ms",
        "share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.write.timeout.ms", "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.partition.verification.enable", "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr", "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
    ),
    _NOT_CALLING: (
        "inter.broker.listener.name", "request.timeout.ms", "sasl.client.callback.handler.class",
        "sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.login.class", "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms", "sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol",
        "security.inter.broker.protocol", "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ),
    _STORE: (
        "cordoned.log.dirs", "log.dir.failure.timeout.ms", "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms", "log.initial.task.delay.ms",
    ),
    _NO_TIERS: (
        "remote.fetch.max.wait.ms", "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes", "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.copier.thread.pool.size", "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num", "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size", "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num", "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.follower.thread.pool.size", "remote.log.manager.task.interval.ms",
        "remote.log.manager.task.retry.backoff.max.ms", "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter", "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes", "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path", "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name", "remote.log.reader.max.pending.tasks",
        "remote.log.reader.threads", "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path", "remote.log.storage.manager.impl.prefix",
    ),
    _ASKS_FOR_TOKENS: (
        "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include", "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub", "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
    ),
    _NO_KERBEROS: (
        "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules", "sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
    ),
    _METRICS: (
        "kafka.metrics.polling.interval.secs", "kafka.metrics.reporters", "metric.reporters", "metrics.num.samples",
        "metrics.recording.level", "metrics.sample.window.ms",
    ),
    _JAVA_TLS: (
        "ssl.keymanager.algorithm", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
    ),
    "names are for clients to look at, and gateways are none of one another": (
        "ssl.endpoint.identification.algorithm",
    ),
    "whoever may write the key store's file may change the names in it": (
        "ssl.allow.dn.changes", "ssl.allow.san.changes",
    ),
    "patterns of consumer groups are looked at again whenever a topic comes or goes": (
        "group.consumer.regex.refresh.interval.ms",
    ),
    _OLD: (
        "broker.id.generation.enable", "control.plane.listener.name", "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms", "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.downconversion.enable", "log.message.format.version", "reserved.broker.max.id",
        "zookeeper.connect", "zookeeper.connection.timeout.ms", "zookeeper.max.in.flight.requests",
        "zookeeper.metadata.migration.enable", "zookeeper.session.timeout.ms", "zookeeper.set.acl",
    ),
}  # fmt: skip

WITHOUT_EFFECT: Final[Mapping[str, str]] = {name: reason for reason, names in _GROUPS.items() for name in names}
"""Settings that mean nothing here, and why: accepted, and told of in the log."""


class Refusal(NamedTuple):
    """Why a setting is refused, and which of its values are not."""

    reason: str
    """Why, and what to do instead."""
    harmless: Callable[[str], bool] = lambda _text: False
    """Whether a text asks for nothing but what a gateway does: it is accepted, and has no effect."""


def _says(value: object) -> Callable[[str], bool]:
    """Whether a text says this: a truth value, or a text without regard to case."""

    def says(text: str) -> bool:
        if not isinstance(value, bool):
            return text.strip().lower() == str(value).lower()
        try:
            return bool(Boolean().parse(text)) is value
        except ValueError:
            return False

    return says


def _has_all(*words: str) -> Callable[[str], bool]:
    """Whether a list names all of these."""
    return lambda text: set(words) <= {each.strip().lower() for each in text.split(",")}


def _is_empty(text: str) -> bool:
    return not text.strip()


_JAVA: Final = "it is a class of Java's, and gateways load none"

REFUSED: Final[Mapping[str, Refusal]] = {
    "log.dir": Refusal(
        "give the gateway a directory of its own as htp='embedded:DIR' (--data); it reads no Kafka logs"
    ),
    "log.dirs": Refusal(
        "give the gateway a directory of its own as htp='embedded:DIR' (--data); it reads no Kafka logs"
    ),
    "alter.config.policy.class.name": Refusal(
        f"{_JAVA}: leave it out, and see to it who may alter settings", _is_empty
    ),
    "create.topic.policy.class.name": Refusal(f"{_JAVA}: leave it out, and see to it who may create topics", _is_empty),
    "client.quota.callback.class": Refusal(f"{_JAVA}: quotas are those of AlterClientQuotas", _is_empty),
    "sasl.server.callback.handler.class": Refusal(
        f"{_JAVA}: users of PLAIN are given in the listener's sasl.jaas.config, those of SCRAM by kclient users; for "
        "OAUTHBEARER give it as listener.name.NAME.oauthbearer.sasl.server.callback.handler.class",
        _is_empty,
    ),
    "sasl.oauthbearer.jwt.validator.class": Refusal(
        "it is a class of Java's; the other settings of sasl.oauthbearer. say how tokens are checked", _is_empty
    ),
    "principal.builder.class": Refusal(
        "it is a class of Java's; ssl.principal.mapping.rules says who a certificate stands for",
        _says("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
    ),
    "ssl.engine.factory.class": Refusal(
        "it is a class of Java's; give keys and certificates by the other ssl. settings", _is_empty
    ),
    "ssl.provider": Refusal("it is a provider of Java's, and OpenSSL does its work here: leave it out", _is_empty),
    "security.providers": Refusal("they are Java's, and OpenSSL does their work here: leave it out", _is_empty),
    "remote.log.storage.system.enable": Refusal(f"{_NO_TIERS}: everything is kept in the store", _says(False)),
    "transaction.two.phase.commit.enable": Refusal(
        "transactions that their coordinator never ends (KIP-939) are not served", _says(False)
    ),
    "unstable.api.versions.enable": Refusal("only released versions of requests are served", _says(False)),
    "unstable.feature.versions.enable": Refusal("only released levels of features are served", _says(False)),
    "max.request.partition.size.limit": Refusal(
        "DescribeTopicPartitions tells of 2000 partitions at most, as on Kafka by default", _says(2000)
    ),
    "group.coordinator.rebalance.protocols": Refusal(
        "groups of all types are served; KIP-848 goes by what clients ask for with group.protocol",
        _has_all("classic", "consumer"),
    ),
    "group.consumer.assignors": Refusal(
        "gateways have the assignors uniform, which is the default, and range, and load no classes",
        lambda text: [each.strip() for each in text.split(",")] in (["uniform", "range"], ["uniform"]),
    ),
    "group.share.assignors": Refusal("gateways have the assignor simple, and load no classes", _says("simple")),
    "process.roles": Refusal(
        "a gateway is a broker; it has no controllers, so there is nothing to be served by a controller alone",
        _has_all("broker"),
    ),
    "log.message.timestamp.difference.max.ms": Refusal(
        "Kafka 4 does not have it any more: set log.message.timestamp.before.max.ms and "
        "log.message.timestamp.after.max.ms"
    ),
}
"""Settings that would change what clients, administrators or attackers see, and what to do instead."""

_NAMES_OF_OTHERS: Final = ("confluent.", "metrics.jmx.", "rlmm.config.", "rsm.config.")
"""What the names of settings begin with that are those of a broker's plug-ins."""


def is_of_plugin(name: str) -> bool:
    """Whether a setting is that of a plug-in of Kafka's brokers, of which a gateway has none."""
    return name.startswith(_NAMES_OF_OTHERS)
