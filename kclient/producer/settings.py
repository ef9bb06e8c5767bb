"""The producer's settings in the form that its parts want: units converted, plugins made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.producer.hash_partitioners import BY_NAME
from kclient.producer.interfaces import ProducerInterceptor
from kclient.producer.partitioner import Partitioner, RoundRobinPartitioner
from kclient.records import CompressionType
from kclient.serialization import resolve_serializer
from kclient.tracing.resolve import resolve_tracing

if TYPE_CHECKING:
    from kclient.config import ProducerConfig
    from kclient.serialization import Serializer
    from kclient.tracing.spans import ClientTracing

GROWTH = 262144
"""Size up to which a batch grows while it waits for its turn, if `batch.size` is smaller."""


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    """Kafka's producer settings that concern gathering; times in seconds, sizes in bytes."""

    batch_size: int = 16384
    linger: float = 0.005
    buffer_memory: int = 33554432
    max_request_size: int = 1048576
    delivery_timeout: float = 120.0
    compression: CompressionType = CompressionType.NONE
    compression_level: int | None = None
    growth: int = 262144
    """Size up to which a ready batch may grow while it waits for its turn; at least `batch_size`."""
    adaptive: bool = True
    availability_timeout: float = 0.0
    """Seconds after which a broker that takes nothing gets no records without a key; 0 for never."""
    ignore_keys: bool = False
    transactional: bool = False
    """Whether batches belong to transactions."""


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Kafka's producer settings that concern sending; times in seconds."""

    acks: int = -1
    retries: int = 2147483647
    max_in_flight: int = 5
    delivery_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What a `ProducerConfig` comes down to."""

    accumulator: AccumulatorSettings
    sender: SenderSettings
    idempotent: bool
    key_serializer: Serializer[Any] | None
    value_serializer: Serializer[Any] | None
    partitioner: Partitioner | None
    """None: murmur2 of the key, or sticky."""
    interceptors: tuple[ProducerInterceptor, ...]
    tracing: ClientTracing | None
    """Makes spans; None where nobody wants them."""

    @classmethod
    def of(cls, config: ProducerConfig) -> ProducerSettings:
        """Read a configuration.

        Raises:
            ConfigError: A plugin is not of the kind that its setting needs.
        """
        return cls(
            accumulator=_accumulator(config),
            sender=SenderSettings(
                acks=config.acks,
                retries=config.retries,
                max_in_flight=config.max_in_flight_requests_per_connection,
                delivery_timeout=config.delivery_timeout_ms / 1000,
            ),
            idempotent=config.enable_idempotence,
            key_serializer=resolve_serializer(config.key_serializer, "key.serializer"),
            value_serializer=resolve_serializer(config.value_serializer, "value.serializer"),
            partitioner=_partitioner(config.partitioner_class),
            interceptors=tuple(_interceptor(given) for given in config.interceptor_classes),
            tracing=resolve_tracing(config.tracing, config.client_id),
        )


def _accumulator(config: ProducerConfig) -> AccumulatorSettings:
    compression = CompressionType[config.compression_type.upper()]
    levels = {
        CompressionType.GZIP: config.compression_gzip_level,
        CompressionType.LZ4: config.compression_lz4_level,
        CompressionType.ZSTD: config.compression_zstd_level,
    }
    # a small `max.request.size` bounds the batches too
    batch_size = min(config.batch_size, config.max_request_size)
    growth = min(max(batch_size, GROWTH), config.max_request_size)
    return AccumulatorSettings(
        batch_size=batch_size,
        linger=config.linger_ms / 1000,
        buffer_memory=config.buffer_memory,
        max_request_size=config.max_request_size,
        delivery_timeout=config.delivery_timeout_ms / 1000,
        compression=compression,
        compression_level=levels.get(compression),
        growth=growth,
        adaptive=config.partitioner_adaptive_partitioning_enable,
        availability_timeout=config.partitioner_availability_timeout_ms / 1000,
        ignore_keys=config.partitioner_ignore_keys,
        transactional=config.transactional_id is not None,
    )


def _partitioner(given: Any) -> Partitioner | None:
    """The partitioner that a setting names: an instance, a class, or a name."""
    if given is None or given in ("default", "murmur2_random"):
        return None
    if given == "roundrobin":
        return RoundRobinPartitioner()
    if isinstance(given, str):
        return BY_NAME[given]()
    made = given() if isinstance(given, type) else given
    if not isinstance(made, Partitioner):
        raise ConfigError(
            "partitioner.class: expected a kclient.producer.Partitioner (None is Java's default partitioner), "
            f"got {shown(given)}"
        )
    return made


def _interceptor(given: Any) -> ProducerInterceptor:
    made = given() if isinstance(given, type) else given
    if not isinstance(made, ProducerInterceptor):
        raise ConfigError(f"interceptor.classes: expected a kclient.producer.ProducerInterceptor, got {shown(given)}")
    return made
