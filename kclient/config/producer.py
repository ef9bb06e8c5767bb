"""The settings of the producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kclient.config.common import LONG, TRACING, ClientConfig
from kclient.config.java import PARTITIONERS, SERIALIZERS
from kclient.config.setting import Boolean, Choice, Classes, Number, PythonObject, Text, setting
from kclient.errors import ConfigError

__all__ = ["ProducerConfig"]

_SERIALIZER = PythonObject("a serializer, its class, or a function from a value to bytes", SERIALIZERS, strict=False)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The settings of the producer; made by `parse`. Times are in milliseconds, sizes in bytes."""

    CLIENT: ClassVar[str] = "producer"

    acks: int = setting(
        Choice(("all", "-1", "0", "1"), {"all": -1, "-1": -1, "0": 0, "1": 1}),
        -1,
        """When a record counts as sent: when all in-sync replicas have it (`all`), when the leader has it (1), or at
        once (0).""",
    )
    batch_size: int = setting(
        Number(0), 16_384, "Size up to which records of one partition are put into one batch; 0 sends each by itself."
    )
    buffer_memory: int = setting(
        Number(0, LONG), 33_554_432, "Memory for records that wait to be sent; `send` waits when it is used up."
    )
    compression_type: str = setting(
        Choice(("none", "gzip", "snappy", "lz4", "zstd")), "none", "How batches are compressed."
    )
    compression_gzip_level: int = setting(Number(1, 9, -1), -1, "Level of gzip; -1 is its own default.")
    compression_lz4_level: int = setting(Number(1, 17), 9, "Level of lz4.")
    compression_zstd_level: int = setting(Number(-131_072, 22), 3, "Level of zstd.")
    delivery_timeout_ms: int = setting(
        Number(0),
        120_000,
        """Time within which a record is delivered or reported as failed, retries included. At least `linger.ms` +
        `request.timeout.ms`.""",
    )
    enable_idempotence: bool = setting(
        Boolean(),
        True,
        """Whether retries can neither duplicate nor reorder records. Needs `acks=all`, `retries` above 0 and at most 5
        requests in flight; where these are set otherwise it is off unless it is asked for.""",
    )
    interceptor_classes: tuple[Any, ...] = setting(
        Classes(PythonObject("a producer interceptor or its class")), (), "Called with each record before it is sent."
    )
    key_serializer: Any = setting(_SERIALIZER, None, "Turns keys into bytes; without it keys are bytes.")
    value_serializer: Any = setting(_SERIALIZER, None, "Turns values into bytes; without it values are bytes.")
    linger_ms: int = setting(Number(0, LONG), 5, "How long a batch that is not full waits for more records.")
    max_block_ms: int = setting(
        Number(0, LONG), 60_000, "How long `send` and `partitions_for` wait for buffer space and metadata."
    )
    max_in_flight_requests_per_connection: int = setting(
        Number(1), 5, "Requests sent to one broker before the first is answered; their order is kept."
    )
    max_request_size: int = setting(
        Number(0), 1_048_576, "Largest request, and so the largest record before compression."
    )
    metadata_max_idle_ms: int = setting(
        Number(5000, LONG), 300_000, "Topics that nothing was sent to for so long are forgotten."
    )
    partitioner_class: Any = setting(
        PythonObject("a partitioner or its class", PARTITIONERS),
        None,
        """Chooses partitions. Without it, records with a key go where Java sends them (murmur2), those without to one
        partition until its batch is full. The names with `_random`, `consistent`, `fnv1a`, `murmur2` and `random` are
        librdkafka's (its setting `partitioner`), and send keys where it does; its default is `consistent_random`.""",
    )
    partitioner_ignore_keys: bool = setting(
        Boolean(), False, "Whether records with a key are spread like those without."
    )
    partitioner_adaptive_partitioning_enable: bool = setting(
        Boolean(), True, "Whether brokers that are faster get more of the records without a key (KIP-794)."
    )
    partitioner_availability_timeout_ms: int = setting(
        Number(0, LONG), 0, "Avoid partitions whose broker took no request for so long; 0 never does (KIP-794)."
    )
    receive_buffer_bytes: int = setting(
        Number(-1),
        -1,
        "Size of the sockets' receive buffers; -1 leaves it to the system, which adapts it to the traffic.",
        java_default=32_768,
    )
    retries: int = setting(
        Number(0), 2**31 - 1, "How often a request is tried again; better bound the time by `delivery.timeout.ms`."
    )
    transactional_id: str | None = setting(
        Text(empty=False, sent=True),
        None,
        """Name under which transactions survive a restart, see `init_transactions`: a producer that has it fences those
        that had it before. Needs idempotence.""",
    )
    tracing: Any = setting(
        TRACING,
        None,
        """Has spans made by OpenTelemetry's conventions for messaging, and the trace context put into the headers of
        records: by this tracer provider, or with `otel` by the global one. Needs the extra `otel`. Off by default,
        when it costs nothing.""",
        own=True,
    )
    transaction_timeout_ms: int = setting(
        Number(),
        60_000,
        """Time after which the brokers abort a transaction that is open; then the producer has to abort it too, or,
        with `transaction.version` 1, is fenced. At most `transaction.max.timeout.ms` of the brokers.""",
    )
    transaction_two_phase_commit_enable: bool = setting(
        Boolean(),
        False,
        """Whether an outer two-phase commit decides transactions (KIP-939). Kafka's protocol has no stable version for
        it yet (InitProducerId v6).""",
        served=False,
    )

    @property
    def default_api_timeout_ms(self) -> int:
        """How long a whole operation may take; Kafka's producer calls it `max.block.ms`."""
        return self.max_block_ms

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        _reconcile_idempotence(values)
        _reconcile_delivery_timeout(values)


def _reconcile_idempotence(values: dict[str, Any]) -> None:
    conflicts = []
    if values.get("acks", -1) != -1:
        conflicts.append(f"acks={values['acks']} (it needs all)")
    if values.get("retries", 1) == 0:
        conflicts.append("retries=0 (it needs more)")
    if values.get("max.in.flight.requests.per.connection", 5) > 5:
        conflicts.append("max.in.flight.requests.per.connection above 5")
    if values.get("transactional.id") is not None:
        if values.get("enable.idempotence") is False:
            conflicts.append("enable.idempotence=false")
        if conflicts:
            raise ConfigError(f"transactional.id needs idempotence, which {' and '.join(conflicts)} contradicts")
    if not conflicts:
        return
    if values.get("enable.idempotence"):
        raise ConfigError(f"enable.idempotence=true contradicts {' and '.join(conflicts)}")
    values["enable.idempotence"] = False


def _reconcile_delivery_timeout(values: dict[str, Any]) -> None:
    known = ProducerConfig.settings()
    linger = values.get("linger.ms", known["linger.ms"].default)
    request = values.get("request.timeout.ms", known["request.timeout.ms"].default)
    needed = min(linger + request, 2**31 - 1)
    if values.get("delivery.timeout.ms", known["delivery.timeout.ms"].default) >= needed:
        return
    if "delivery.timeout.ms" in values:
        raise ConfigError(
            f"delivery.timeout.ms = {values['delivery.timeout.ms']} is less than linger.ms + request.timeout.ms "
            f"= {needed}: raise it, or lower those"
        )
    values["delivery.timeout.ms"] = needed
