"""The consumer's settings in the form that its parts want: units converted, plugins made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.arguments import check_text, shown
from kclient.cluster import Backoff
from kclient.consumer.fetch.fetcher import FetchSettings
from kclient.consumer.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    common_protocol,
)
from kclient.consumer.group.model import MemberSettings
from kclient.consumer.interfaces import ConsumerInterceptor
from kclient.consumer.reset import ResetPolicy
from kclient.errors import ConfigError
from kclient.serialization import resolve_deserializer
from kclient.tracing.resolve import resolve_tracing

if TYPE_CHECKING:
    from kclient.config import ConsumerConfig, ShareConsumerConfig
    from kclient.records import Deserialize
    from kclient.serialization import Deserializer
    from kclient.tracing.spans import ClientTracing

_ASSIGNORS: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a `ConsumerConfig` comes down to; times in seconds."""

    member: MemberSettings | None
    """None without a `group.id`."""
    remote: bool
    """Whether the broker assigns the partitions (`group.protocol=consumer`)."""
    assignors: tuple[Assignor, ...]
    fetch: FetchSettings
    policy: ResetPolicy
    auto_commit_interval: float | None
    """None if positions are not committed by themselves."""
    store_by_hand: bool
    """Whether the user says up to where he is through (`enable.auto.offset.store=false`)."""
    max_poll_records: int
    default_timeout: float
    retry_backoff: Backoff
    decode_options: dict[str, Any]
    """Arguments for `records.decode_records`."""
    deserializers: tuple[Deserializer[Any], ...]
    interceptors: tuple[ConsumerInterceptor, ...]
    tracing: ClientTracing | None
    """Makes spans; None where nobody wants them."""

    @classmethod
    def of(cls, config: ConsumerConfig) -> ConsumerSettings:
        """Read a configuration.

        Raises:
            ConfigError: A plugin is not of the kind that its setting needs.
        """
        key = resolve_deserializer(config.key_deserializer, "key.deserializer")
        value = resolve_deserializer(config.value_deserializer, "value.deserializer")
        assignors = tuple(_assignor(given) for given in config.partition_assignment_strategy)
        _check_assignors(assignors)
        return cls(
            member=_member(config),
            remote=config.group_protocol == "consumer",
            assignors=assignors,
            fetch=_fetch(config),
            policy=ResetPolicy.parse(config.auto_offset_reset),
            auto_commit_interval=config.auto_commit_interval_ms / 1000 if config.enable_auto_commit else None,
            store_by_hand=not config.enable_auto_offset_store,
            max_poll_records=config.max_poll_records,
            default_timeout=config.default_api_timeout_ms / 1000,
            retry_backoff=_backoff(config),
            decode_options=as_decoded(config, key, value),
            deserializers=tuple(found for found in (key, value) if found is not None),
            interceptors=tuple(_interceptor(given) for given in config.interceptor_classes),
            tracing=resolve_tracing(config.tracing, config.client_id, config.group_id),
        )


def _member(config: ConsumerConfig) -> MemberSettings | None:
    if config.group_id is None:
        return None
    return MemberSettings(
        group_id=config.group_id,
        group_instance_id=config.group_instance_id,
        session_timeout=config.session_timeout_ms / 1000,
        heartbeat_interval=config.heartbeat_interval_ms / 1000,
        max_poll_interval=config.max_poll_interval_ms / 1000,
        retry_backoff=_backoff(config),
        request_timeout=config.request_timeout_ms / 1000,
        client_rack=config.client_rack or None,
        remote_assignor=config.group_remote_assignor or None,
    )


def _backoff(config: ConsumerConfig) -> Backoff:
    return Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)


def _fetch(config: ConsumerConfig) -> FetchSettings:
    return FetchSettings(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        max_partition_bytes=config.max_partition_fetch_bytes,
        read_committed=config.isolation_level == "read_committed",
        client_rack=config.client_rack,
        tell_ends=config.enable_partition_eof,
        retry_backoff=_backoff(config),
        preferred_replica_age=config.metadata_max_age_ms / 1000,
    )


def as_decoded(
    config: ConsumerConfig | ShareConsumerConfig, key: Deserializer[Any] | None, value: Deserializer[Any] | None
) -> dict[str, Any]:
    """Arguments for `records.decode_records`.

    Args:
        config: Says what is checked.
        key: The deserializer of keys; None leaves them as bytes.
        value: That of values.
    """
    return {
        "check_crcs": config.check_crcs,
        "max_decompressed": config.fetch_max_decompressed_bytes,
        "key_deserializer": _function(key),
        "value_deserializer": _function(value),
    }


def _function(deserializer: Deserializer[Any] | None) -> Deserialize | None:
    """The deserializer in the form in which the decoder calls it."""
    if deserializer is None:
        return None
    deserialize = deserializer.deserialize
    return lambda topic, headers, data: deserialize(topic, data, headers)


def _assignor(given: Any) -> Assignor:
    kind = _ASSIGNORS.get(given) if isinstance(given, str) else given
    made = kind() if isinstance(kind, type) else kind
    if not isinstance(made, Assignor):
        raise ConfigError(
            f"partition.assignment.strategy: expected a kclient.consumer.Assignor or one of {', '.join(_ASSIGNORS)}, "
            f"got {shown(given)}"
        )
    return made


def _check_assignors(assignors: tuple[Assignor, ...]) -> None:
    names = [assignor.name for assignor in assignors]
    for name in names:
        try:
            check_text(name, "the name of an assignor")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"partition.assignment.strategy: {error}") from None
    if len(set(names)) < len(names):
        raise ConfigError(f"partition.assignment.strategy has two assignors of the same name: {', '.join(names)}")
    try:
        common_protocol(assignors)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _interceptor(given: Any) -> ConsumerInterceptor:
    made = given() if isinstance(given, type) else given
    if not isinstance(made, ConsumerInterceptor):
        raise ConfigError(f"interceptor.classes: expected a kclient.consumer.ConsumerInterceptor, got {shown(given)}")
    return made
