"""Kafka's settings of streams groups (KIP-1071) as the gateway knows them: those of the broker, and of a group."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import Number
from kclient.gateway.setting import BrokerSetting
from kclient.records.bounds import INT32_MAX

_MOST, _LEAST = "Most of it that a group may have set for it.", "Least of it that a group may have set for it."

BROKER_SETTINGS_OF_STREAMS: Final = (
    BrokerSetting(
        "group.streams.assignment.interval.ms",
        Number(0),
        "1000",
        "Least time between two targets of a streams group, in milliseconds.",
    ),
    BrokerSetting(
        "group.streams.heartbeat.interval.ms",
        Number(1),
        "5000",
        "How often members of streams groups are to be heard of.",
    ),
    BrokerSetting(
        "group.streams.initial.rebalance.delay.ms",
        Number(0),
        "3000",
        "How long a streams group without members waits for more of them before its first target.",
    ),
    BrokerSetting("group.streams.max.assignment.interval.ms", Number(0), "15000", _MOST),
    BrokerSetting("group.streams.max.heartbeat.interval.ms", Number(1), "15000", _MOST),
    BrokerSetting("group.streams.max.session.timeout.ms", Number(1), "60000", _MOST),
    BrokerSetting("group.streams.max.size", Number(1), str(INT32_MAX), "Most members of a streams group."),
    BrokerSetting(
        "group.streams.max.standby.replicas",
        Number(0),
        "2",
        "Most standby tasks of each task that a group may have set for it.",
    ),
    BrokerSetting("group.streams.min.assignment.interval.ms", Number(0), "0", _LEAST),
    BrokerSetting("group.streams.min.heartbeat.interval.ms", Number(1), "5000", _LEAST),
    BrokerSetting("group.streams.min.session.timeout.ms", Number(1), "45000", _LEAST),
    BrokerSetting(
        "group.streams.num.standby.replicas",
        Number(0),
        "0",
        "How many standby tasks each task with state has: its state is kept there, too, for when somebody fails.",
    ),
    BrokerSetting(
        "group.streams.session.timeout.ms",
        Number(1),
        "45000",
        "How long a member of a streams group may not be heard of before it is removed.",
    ),
)

GROUP_SETTINGS_OF_STREAMS: Final = (
    BrokerSetting(
        "streams.assignment.interval.ms",
        Number(0),
        None,
        "Least time between two targets of the streams group.",
        (("group.streams.assignment.interval.ms", 1),),
    ),
    BrokerSetting(
        "streams.heartbeat.interval.ms",
        Number(1),
        None,
        "How often members of the streams group are to be heard of.",
        (("group.streams.heartbeat.interval.ms", 1),),
    ),
    BrokerSetting(
        "streams.initial.rebalance.delay.ms",
        Number(0),
        None,
        "How long the streams group, without members, waits for more of them before its first target.",
        (("group.streams.initial.rebalance.delay.ms", 1),),
    ),
    BrokerSetting(
        "streams.num.standby.replicas",
        Number(0),
        None,
        "How many standby tasks each task with state of the streams group has.",
        (("group.streams.num.standby.replicas", 1),),
    ),
    BrokerSetting(
        "streams.session.timeout.ms",
        Number(1),
        None,
        "How long a member of the streams group may not be heard of.",
        (("group.streams.session.timeout.ms", 1),),
    ),
)

BOUNDS_OF_STREAMS: Final[dict[str, tuple[str | None, str | None]]] = {
    "group.streams.initial.rebalance.delay.ms": (None, None),
    "group.streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
}
"""The broker settings that bound what a group may set, where their names are not made as usual."""
