"""Kafka's settings of groups as the gateway knows them: those of the broker, and of single groups."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import Choice, Number
from kclient.gateway.setting import INT_MAX, BrokerSetting, settings_by_name
from kclient.gateway.settings_of_shares import BROKER_SETTINGS_OF_SHARES, GROUP_SETTINGS_OF_SHARES
from kclient.gateway.settings_of_streams import BOUNDS_OF_STREAMS, BROKER_SETTINGS_OF_STREAMS, GROUP_SETTINGS_OF_STREAMS

_I: Final = Number(-INT_MAX - 1)

BROKER_SETTINGS_OF_GROUPS: Final = (
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
)
"""Of groups of all types."""

GROUP_SETTINGS: Final = settings_by_name(
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
