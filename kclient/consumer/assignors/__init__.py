"""How a group spreads partitions over its members: the assignors, and the interface to write your own."""

from __future__ import annotations

from kclient.consumer.assignors._base import Assignor, RebalanceProtocol, Subscription, common_protocol
from kclient.consumer.assignors.cooperative_sticky import CooperativeStickyAssignor
from kclient.consumer.assignors.range import RangeAssignor
from kclient.consumer.assignors.round_robin import RoundRobinAssignor
from kclient.consumer.assignors.sticky import StickyAssignor

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
