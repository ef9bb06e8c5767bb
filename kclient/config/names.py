"""Names that are not settings of a client: what the user may have meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kclient.arguments import brief
from kclient.config.nearest import nearest

__all__ = ["LIBRDKAFKA", "OTHER_CLIENTS", "explain_unknown"]

LIBRDKAFKA = {
    "api.version.fallback.ms": "",
    "api.version.request": "",
    "api.version.request.timeout.ms": "request.timeout.ms",
    "auto.commit.enable": "enable.auto.commit",
    "background_event_cb": "",
    "batch.num.messages": "batch.size",
    "broker.address.family": "",
    "broker.address.ttl": "",
    "broker.version.fallback": "",
    "builtin.features": "",
    "compression.codec": "compression.type",
    "compression.level": "compression.zstd.level, compression.gzip.level or compression.lz4.level",
    "connect_cb": "",
    "consume.callback.max.messages": "max.poll.records",
    "consume_cb": "",
    "coordinator.query.interval.ms": "",
    "debug": "",
    "default_topic_conf": "",
    "delivery.report.only.error": "",
    "dr_cb": "",
    "dr_msg_cb": "",
    "enable.gapless.guarantee": "",
    "enable.random.seed": "",
    "enable.ssl.certificate.verification": "",
    "enable.sasl.oauthbearer.unsecure.jwt": "",
    "error_cb": "",
    "fetch.error.backoff.ms": "retry.backoff.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.queue.backoff.ms": "",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "group.protocol.type": "",
    "https.ca.location": "",
    "internal.termination.signal": "",
    "log.connection.close": "",
    "log.queue": "",
    "log.thread.name": "",
    "log_cb": "",
    "log_level": "",
    "logger": "",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.copy.max.bytes": "",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "metadata.request.timeout.ms": "request.timeout.ms",
    "msg_order_cmp": "",
    "oauth_cb": "sasl.login.callback.handler.class",
    "oauthbearer_token_refresh_cb": "sasl.login.callback.handler.class",
    "offset.store.method": "",
    "offset.store.path": "",
    "offset.store.sync.interval.ms": "",
    "offset_commit_cb": "",
    "on_commit": "",
    "on_delivery": "",
    "opaque": "",
    "partitioner": "partitioner.class",
    "plugin.library.paths": "",
    "produce.offset.report": "",
    "queue.buffering.backpressure.threshold": "",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.messages": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "queued.max.messages.kbytes": "fetch.max.bytes",
    "queued.min.messages": "max.poll.records",
    "rebalance_cb": "",
    "receive.message.max.bytes": "fetch.max.bytes",
    "reconnect.backoff.jitter.ms": "reconnect.backoff.ms",
    "request.required.acks": "acks",
    "resolve_cb": "",
    "retries.max": "retries",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config": "sasl.jaas.config",
    "sasl.oauthbearer.extensions": "sasl.jaas.config",
    "sasl.oauthbearer.method": "",
    "socket.blocking.max.ms": "",
    "socket.keepalive.enable": "",
    "socket.max.fails": "",
    "socket.nagle.disable": "",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.crl.location": "",
    "ssl.curves.list": "",
    "ssl.engine.id": "",
    "ssl.engine.location": "",
    "ssl.key.location": "ssl.keystore.location",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.providers": "",
    "ssl.sigalgs.list": "",
    "ssl_engine_callback_data": "",
    "statistics.interval.ms": "",
    "stats_cb": "",
    "sticky.partitioning.linger.ms": "partitioner.class",
    "test.mock.num.brokers": "",
    "throttle_cb": "",
    "topic.blacklist": "",
    "topic.metadata.propagation.max.ms": "metadata.max.age.ms",
    "topic.metadata.refresh.fast.interval.ms": "retry.backoff.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "topic.metadata.refresh.sparse": "",
}
"""librdkafka's names (and confluent-kafka's) that are not the Java client's, and the Java name that comes nearest."""

OTHER_CLIENTS = {
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "sasl_oauth_token_provider": "sasl_login_callback_handler_class",
    "sasl_kerberos_name": "sasl_kerberos_service_name",
}
"""Names of kafka-python and aiokafka, and ours."""

_OTHER_CLIENTS = {
    "ssl.cafile": "Kafka's is ssl.truststore.location (a PEM file)",
    "ssl.cadata": "Kafka's is ssl.truststore.certificates (PEM)",
    "ssl.certfile": "Kafka's is ssl.keystore.location (a PEM file with the key and the certificates)",
    "ssl.keyfile": "Kafka's is ssl.keystore.location (a PEM file with the key and the certificates)",
    "ssl.password": "Kafka's is ssl.key.password",
    "ssl.check.hostname": "Kafka's is ssl.endpoint.identification.algorithm (`https`, or empty for no check)",
    "ssl.ciphers": "Kafka's is ssl.cipher.suites",
    "loop": "a client runs in the loop that starts it, leave it out",
    "api.version": "versions are always asked for, leave it out",
    "api.version.auto.timeout.ms": "versions are always asked for, leave it out",
    "ssl.crlfile": "load it into an ssl.SSLContext and pass that as ssl_context",
}
"""Names of kafka-python and aiokafka, and what they are called here."""

_CONTEXT = "make an ssl.SSLContext that does it, and pass it as ssl_context"
_HINTS = {
    "enable.ssl.certificate.verification": "an ssl.SSLContext that verifies nothing may be passed as ssl_context; to "
    "leave out the check of the host name only, set ssl.endpoint.identification.algorithm to empty",
    "ssl.crl.location": _CONTEXT,
    "ssl.curves.list": _CONTEXT,
    "ssl.engine.id": _CONTEXT,
    "ssl.engine.location": _CONTEXT,
    "ssl.providers": _CONTEXT,
    "ssl.sigalgs.list": _CONTEXT,
    "sasl.oauthbearer.method": "set sasl.oauthbearer.token.endpoint.url, or sasl.login.callback.handler.class",
    "enable.sasl.oauthbearer.unsecure.jwt": "put unsecuredLoginStringClaim_sub into sasl.jaas.config",
    "broker.address.family": "every address that the name resolves to is tried, IPv6 and IPv4; to use one family only, "
    "give an address of it in bootstrap.servers",
    "statistics.interval.ms": "call metrics() when you want figures",
    "stats_cb": "call metrics() when you want figures",
    "on_delivery": "pass on_delivery to send()",
    "dr_cb": "pass on_delivery to send()",
    "dr_msg_cb": "pass on_delivery to send()",
    "delivery.report.only.error": "await the delivery that send() returns, or pass on_delivery to it",
    "error_cb": "errors are raised by the next call",
    "logger": "logs go to Python's logging, under the name kclient",
    "log_cb": "logs go to Python's logging, under the name kclient",
    "log_level": "logs go to Python's logging, under the name kclient",
    "debug": "logs go to Python's logging, under the name kclient",
    "rebalance_cb": "pass a listener to subscribe()",
    "on_commit": "pass a callback to commit_async()",
    "offset_commit_cb": "pass a callback to commit_async()",
    "test.mock.num.brokers": 'use bootstrap_servers="memory:NAME" for a broker inside the process',
    "socket.keepalive.enable": "keep-alive is always on",
    "socket.nagle.disable": "Nagle's algorithm is always off",
    "api.version.request": "versions are always asked for",
    "broker.version.fallback": "versions are always asked for",
}


def explain_unknown(given: str, client: str, settings: Mapping[str, Collection[str]]) -> str:
    """The text of the error about an unknown setting.

    Args:
        given: Its name.
        client: The client that it was given to, as people call it.
        settings: The names of the settings of each client.
    """
    name = given.replace("_", ".") if given not in LIBRDKAFKA else given
    start = f"{brief(given)} is not a setting of the {client}"
    if name.startswith("spring."):
        return f"{start}: it is Spring's name; Kafka's is what follows spring.kafka. (and producer. or consumer.)"
    if name in LIBRDKAFKA:
        return f"{start}: it is librdkafka's name; {_librdkafka_hint(name)}"
    if given in OTHER_CLIENTS:
        return f"{start}: it is a name of kafka-python and aiokafka; here it is {OTHER_CLIENTS[given]}"
    if name in _OTHER_CLIENTS:
        return f"{start}: {_OTHER_CLIENTS[name]}"
    others = [other for other, names in settings.items() if other != client and name in names]
    if "consumer" in others:  # which has most of the share consumer's
        others = [other for other in others if other != "share consumer"]
    if others:
        return f"{start}: it belongs to the {' and the '.join(others)}"
    near = nearest(name, tuple(settings[client]))
    return f"{start}; did you mean {near}?" if near else f"{start}: kclient has Kafka's names, see the reference"


def _librdkafka_hint(name: str) -> str:
    counterpart = LIBRDKAFKA[name]
    if counterpart and counterpart != name:
        return f"Kafka's is {counterpart}"
    return _HINTS.get(name, "kclient needs no such setting, leave it out")
