"""The share consumer's settings in the form that its parts want: units converted, plugins made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cluster import Backoff
from kclient.consumer.group.model import MemberSettings
from kclient.consumer.settings import as_decoded
from kclient.consumer.share.model import ShareFetchSettings
from kclient.errors import ConfigError
from kclient.serialization import resolve_deserializer
from kclient.tracing.resolve import resolve_tracing

if TYPE_CHECKING:
    from kclient.config import ShareConsumerConfig
    from kclient.serialization import Deserializer
    from kclient.tracing.spans import ClientTracing


@dataclass(frozen=True, slots=True)
class ShareConsumerSettings:
    """What a `ShareConsumerConfig` comes down to; times in seconds."""

    member: MemberSettings
    fetch: ShareFetchSettings
    explicit: bool
    """Whether users acknowledge each record."""
    default_timeout: float
    decode_options: dict[str, Any]
    """Arguments for `records.decode_records`."""
    deserializers: tuple[Deserializer[Any], ...]
    tracing: ClientTracing | None
    """Makes spans; None where nobody wants them."""

    @classmethod
    def of(cls, config: ShareConsumerConfig) -> ShareConsumerSettings:
        """Read a configuration.

        Raises:
            ConfigError: A deserializer is none, or `group.id` is missing.
        """
        if config.group_id is None:
            raise ConfigError("group.id is missing: a share consumer is a member of a group (group_id=...)")
        key = resolve_deserializer(config.key_deserializer, "key.deserializer")
        value = resolve_deserializer(config.value_deserializer, "value.deserializer")
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        return cls(
            member=MemberSettings(
                group_id=config.group_id,
                max_poll_interval=config.max_poll_interval_ms / 1000,
                retry_backoff=backoff,
                request_timeout=config.request_timeout_ms / 1000,
                client_rack=config.client_rack or None,
            ),
            fetch=ShareFetchSettings(
                group_id=config.group_id,
                max_wait_ms=config.fetch_max_wait_ms,
                min_bytes=config.fetch_min_bytes,
                max_bytes=config.fetch_max_bytes,
                max_records=config.max_poll_records,
                record_limit=config.share_acquire_mode == "record_limit",
                retry_backoff=backoff,
            ),
            explicit=config.share_acknowledgement_mode == "explicit",
            default_timeout=config.default_api_timeout_ms / 1000,
            decode_options=as_decoded(config, key, value),
            deserializers=tuple(found for found in (key, value) if found is not None),
            tracing=resolve_tracing(config.tracing, config.client_id, config.group_id),
        )
