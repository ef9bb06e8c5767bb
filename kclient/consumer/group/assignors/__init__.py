"""How a group spreads partitions over its members: the assignors, and the interface to write your own."""

from __future__ import annotations

from kclient.consumer.group.assignors._base import Assignor, RebalanceProtocol, Subscription, common_protocol
from kclient.consumer.group.assignors.cooperative_sticky import CooperativeStickyAssignor
from kclient.consumer.group.assignors.range import RangeAssignor
from kclient.consumer.group.assignors.round_robin import RoundRobinAssignor
from kclient.consumer.group.assignors.sticky import StickyAssignor

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "common_protocol",
]
