"""Kafka's settings of share groups (KIP-932) as the gateway knows them: those of the broker, and of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kclient.config.durations import duration_ms
from kclient.config.setting import Boolean, Choice, Kind, Number
from kclient.gateway.setting import BrokerSetting

EARLIEST, LATEST = "earliest", "latest"
BY_DURATION: Final = "by_duration"
"""The kind of `share.auto.offset.reset` that goes back from now."""
READ_COMMITTED: Final = "read_committed"
"""The `share.isolation.level` with which aborted transactions are left out."""
_MOST, _LEAST = "Most of it that a group may have set for it.", "Least of it that a group may have set for it."


def back_ms(text: str) -> int | None:
    """How far back from now `share.auto.offset.reset` goes, in milliseconds; None if it does not."""
    kind, _, duration = text.partition(":")
    return duration_ms(duration) if kind == BY_DURATION else None


@dataclass(frozen=True)
class ShareStart(Kind):
    """Where a share group begins: `earliest`, `latest`, or `by_duration:PT1H`, in lower case as on Kafka."""

    @property
    def text(self) -> str:
        return f"one of `earliest`, `latest`, or `{BY_DURATION}:` with an ISO-8601 duration such as PT1H"

    def parse(self, value: Any) -> str:
        text = str(value)
        if text in (EARLIEST, LATEST) or back_ms(text) is not None:
            return text
        raise ValueError(self.text)


BROKER_SETTINGS_OF_SHARES: Final = (
    BrokerSetting(
        "group.share.assignment.interval.ms",
        Number(0),
        "1000",
        "Least time between two targets of a share group, in milliseconds.",
    ),
    BrokerSetting(
        "group.share.delivery.count.limit",
        Number(2, 10),
        "5",
        "How often a record is delivered to a share group at most; then it is archived.",
    ),
    BrokerSetting(
        "group.share.heartbeat.interval.ms", Number(1), "5000", "How often members of share groups are to be heard of."
    ),
    BrokerSetting("group.share.max.assignment.interval.ms", Number(0), "15000", _MOST),
    BrokerSetting("group.share.max.delivery.count.limit", Number(5, 25), "10", _MOST),
    BrokerSetting("group.share.max.heartbeat.interval.ms", Number(1), "15000", _MOST),
    BrokerSetting("group.share.max.partition.max.record.locks", Number(2000, 10_000), "4000", _MOST),
    BrokerSetting("group.share.max.record.lock.duration.ms", Number(30_000, 3_600_000), "60000", _MOST),
    BrokerSetting("group.share.max.session.timeout.ms", Number(1), "60000", _MOST),
    BrokerSetting(
        "group.share.max.share.sessions", Number(1), "2000", "Most sessions of members of share groups at a gateway."
    ),
    BrokerSetting("group.share.max.size", Number(1, 1000), "200", "Most members of a share group."),
    BrokerSetting("group.share.min.assignment.interval.ms", Number(0), "0", _LEAST),
    BrokerSetting("group.share.min.delivery.count.limit", Number(2, 5), "2", _LEAST),
    BrokerSetting("group.share.min.heartbeat.interval.ms", Number(1), "5000", _LEAST),
    BrokerSetting("group.share.min.partition.max.record.locks", Number(100, 2000), "100", _LEAST),
    BrokerSetting("group.share.min.record.lock.duration.ms", Number(1000, 30_000), "15000", _LEAST),
    BrokerSetting("group.share.min.session.timeout.ms", Number(1), "45000", _LEAST),
    BrokerSetting(
        "group.share.partition.max.record.locks",
        Number(100, 10_000),
        "2000",
        "Most records of a partition that members of a share group have at a time.",
    ),
    BrokerSetting(
        "group.share.record.lock.duration.ms",
        Number(1000, 3_600_000),
        "30000",
        "How long a member of a share group has a record for itself, in milliseconds.",
    ),
    BrokerSetting(
        "group.share.session.timeout.ms",
        Number(1),
        "45000",
        "How long a member of a share group may not be heard of before it is removed.",
    ),
)

GROUP_SETTINGS_OF_SHARES: Final = (
    BrokerSetting(
        "share.assignment.interval.ms",
        Number(0),
        None,
        "Least time between two targets of the share group.",
        (("group.share.assignment.interval.ms", 1),),
    ),
    BrokerSetting(
        "share.auto.offset.reset",
        ShareStart(),
        LATEST,
        "Where a share group begins to read a partition: at the `earliest` or `latest` record, or at the first that is "
        "not older than a duration (`by_duration:PT1H`).",
    ),
    BrokerSetting(
        "share.delivery.count.limit",
        Number(2),
        None,
        "How often a record is delivered to the share group at most.",
        (("group.share.delivery.count.limit", 1),),
    ),
    BrokerSetting(
        "share.heartbeat.interval.ms",
        Number(1),
        None,
        "How often members of the share group are to be heard of.",
        (("group.share.heartbeat.interval.ms", 1),),
    ),
    BrokerSetting(
        "share.isolation.level",
        Choice((READ_COMMITTED, "read_uncommitted"), exact=True),
        "read_uncommitted",
        "Whether the share group gets records of aborted transactions.",
    ),
    BrokerSetting(
        "share.partition.max.record.locks",
        Number(100),
        None,
        "Most records of a partition that members of the share group have at a time.",
        (("group.share.partition.max.record.locks", 1),),
    ),
    BrokerSetting(
        "share.record.lock.duration.ms",
        Number(1000),
        None,
        "How long a member of the share group has a record for itself, in milliseconds.",
        (("group.share.record.lock.duration.ms", 1),),
    ),
    BrokerSetting(
        "share.renew.acknowledge.enable",
        Boolean(),
        "true",
        "Whether members of the share group may keep a record for longer (KIP-1222).",
    ),
    BrokerSetting(
        "share.session.timeout.ms",
        Number(1),
        None,
        "How long a member of the share group may not be heard of.",
        (("group.share.session.timeout.ms", 1),),
    ),
)
