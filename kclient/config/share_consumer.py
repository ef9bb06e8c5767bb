"""The settings of the share consumer (KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kclient.config.common import ClientConfig
from kclient.config.consumer import ConsumerConfig
from kclient.config.setting import Choice, Number, Text, same_setting, setting
from kclient.errors import ConfigError

__all__ = ["ShareConsumerConfig"]


@dataclass(frozen=True, kw_only=True)
class ShareConsumerConfig(ClientConfig):
    """The settings of the share consumer; made by `parse`. Times are in milliseconds, sizes in bytes."""

    CLIENT: ClassVar[str] = "share consumer"

    allow_auto_create_topics: bool = same_setting(ConsumerConfig, "allow_auto_create_topics")
    check_crcs: bool = same_setting(ConsumerConfig, "check_crcs")
    client_rack: str = setting(Text(sent=True), "", "Where the client is; the group's coordinator is told.")
    default_api_timeout_ms: int = same_setting(ConsumerConfig, "default_api_timeout_ms")
    fetch_max_bytes: int = setting(
        Number(0), 52_428_800, "Most bytes that one answer of a broker brings; a larger first batch comes all the same."
    )
    fetch_max_decompressed_bytes: int = same_setting(ConsumerConfig, "fetch_max_decompressed_bytes")
    fetch_max_wait_ms: int = same_setting(ConsumerConfig, "fetch_max_wait_ms")
    fetch_min_bytes: int = same_setting(ConsumerConfig, "fetch_min_bytes")
    group_id: str | None = setting(
        Text(empty=False, sent=True), None, "The share group whose members share the records; needed."
    )
    key_deserializer: Any = same_setting(ConsumerConfig, "key_deserializer")
    value_deserializer: Any = same_setting(ConsumerConfig, "value_deserializer")
    max_poll_interval_ms: int = same_setting(ConsumerConfig, "max_poll_interval_ms")
    max_poll_records: int = setting(
        Number(1),
        500,
        """Most records returned by one poll, and most that a broker is asked for at once; with `share.acquire.mode`
        `batch_optimized` it may acquire the rest of a batch as well, which the next poll returns.""",
    )
    share_acknowledgement_mode: str = setting(
        Choice(("implicit", "explicit")),
        "implicit",
        """Who says what became of a record: the next `poll` or commit, that all were accepted (`implicit`); or
        `acknowledge`, for each record before the next poll (`explicit`).""",
    )
    share_acquire_mode: str = setting(
        Choice(("batch_optimized", "record_limit")),
        "batch_optimized",
        """Whether brokers acquire whole batches, which costs them least (`batch_optimized`), or at most
        `max.poll.records` records (`record_limit`, KIP-1206), of one broker at a time; another one is asked as well
        where that does not answer for a while, so that more may be acquired then.""",
    )
    tracing: Any = same_setting(ConsumerConfig, "tracing")

    @classmethod
    def _named(cls, source: Mapping[str, Any]) -> dict[str, Any]:
        for given, value in source.items():
            name = given.replace("_", ".") if isinstance(given, str) else given
            if name in _REFUSED and value is not None:
                raise ConfigError(f"{name} cannot be set for a share consumer: {_REFUSED[name]}")
        return super()._named(source)


_ACKNOWLEDGED = "records are acknowledged one by one, see share.acknowledgement.mode"
_BY_BROKER = "the group's coordinator says how often it wants to hear of its members, see the group's settings share.{}"
_REFUSED = {
    "auto.commit.interval.ms": _ACKNOWLEDGED,
    "auto.offset.reset": "where a share group begins is a setting of the group, share.auto.offset.reset; set it with "
    "Admin.alter_configs",
    "enable.auto.commit": _ACKNOWLEDGED,
    "exclude.internal.topics": "topics are subscribed to by their names",
    "group.instance.id": "share groups have no static members",
    "group.protocol": "share groups have a protocol of their own",
    "group.remote.assignor": "the brokers' setting group.share.assignors says how share groups assign partitions",
    "heartbeat.interval.ms": _BY_BROKER.format("heartbeat.interval.ms"),
    "interceptor.classes": "share consumers call no interceptors",
    "isolation.level": "which records are delivered is a setting of the group, share.isolation.level; set it with "
    "Admin.alter_configs",
    "max.partition.fetch.bytes": "a share consumer bounds what is fetched by fetch.max.bytes and max.poll.records",
    "partition.assignment.strategy": "the broker assigns the partitions of share groups",
    "session.timeout.ms": _BY_BROKER.format("session.timeout.ms"),
}
"""Settings of the consumer that make no sense in a share group, and what there is instead."""
