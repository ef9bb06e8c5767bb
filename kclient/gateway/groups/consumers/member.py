"""A member of a consumer group."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeAlias

from kclient.gateway.groups.assignors.model import NONE, Partitions
from kclient.gateway.groups.consumers.states import ReconcilingState

Held: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions of a member, by topic id and number, each with the member's epoch when it got it. Never changed."""
Owned: TypeAlias = Mapping[bytes, AbstractSet[int]]
"""Partitions that a member says it has, by topic id: there need not be such."""

NOTHING: Final[Held] = {}
JOINING: Final = 0
"""The epoch of a member that joins."""
LEAVING: Final = -1
"""The epoch that a member sends when it leaves for good."""
AWAY: Final = -2
"""The epoch of a static member that has left and will be back."""

_MEMBER: Final = 1_500
"""About how many bytes of memory a member takes, beside its names and partitions."""
_TOPIC, _PARTITION = 500, 100
"""The same of each topic, and of each partition, that it has or is to have."""


class MemberSubscription(NamedTuple):
    """What a member reads. Members that read the same share one object."""

    topics: tuple[str, ...] = ()
    """Names of topics, sorted."""
    pattern: str = ""
    """An RE2 pattern of more names; empty for none."""


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol has beside the others, while a group is migrated."""

    session_timeout_ms: int
    """How long it may not be heard of, in milliseconds."""
    protocols: tuple[tuple[str, bytes], ...]
    """Its protocols in its order of preference, with the metadata."""


class ConsumerMember:
    """A member.

    Args:
        member_id: Its id.
        instance_id: The `group.instance.id` of a static member.
    """

    __slots__ = (
        "assigned", "assignor", "checked", "classic", "client_host", "client_id", "epoch", "instance_id", "member_id",
        "previous_epoch", "rack_id", "rebalance_timeout_ms", "revoking", "state", "subscription", "target", "untold",
    )  # fmt: skip

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id: str = member_id
        self.instance_id: str | None = instance_id
        self.rack_id: str | None = None
        self.client_id: str = ""
        self.client_host: str = ""
        self.rebalance_timeout_ms: int = -1
        """How long it may take to give partitions up, in milliseconds."""
        self.subscription: MemberSubscription = MemberSubscription()
        self.assignor: str | None = None
        """The assignor that it wants."""
        self.epoch: int = JOINING
        self.previous_epoch: int = JOINING
        """The one before: a request with it is taken if the answer with the present one was lost."""
        self.state: ReconcilingState = ReconcilingState.STABLE
        self.assigned: Held = NOTHING
        """What it may read."""
        self.revoking: Held = NOTHING
        """What it was told to give up."""
        self.target: Partitions = NONE
        """What it is to have in the end."""
        self.classic: ClassicSide | None = None
        """Of a member that speaks the classic protocol."""
        self.untold: bool = False
        """Whether what it has may be another than it knows, since an answer could not be given."""
        self.checked: int = -1
        """The version of what its group reads when it was last compared with that."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        names = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host, self.assignor)
        count = sum(map(len, self.assigned.values())) + sum(map(len, self.revoking.values()))
        count += sum(map(len, self.target.values()))
        topics = len(self.assigned) + len(self.revoking) + len(self.target)
        if self.classic is not None:
            count += sum(len(name) + len(each) for name, each in self.classic.protocols) // _PARTITION
        return _MEMBER + sum(sys.getsizeof(name or "") for name in names) + _TOPIC * topics + _PARTITION * count

    def moved_to(self, epoch: int) -> None:
        """It is at another epoch, or again at the same."""
        self.previous_epoch, self.epoch = self.epoch, epoch

    def successor(self, member_id: str) -> ConsumerMember:
        """Who comes back under its `group.instance.id`: with everything of it, but the epoch."""
        new = ConsumerMember(member_id, self.instance_id)
        new.rack_id, new.rebalance_timeout_ms, new.assignor = self.rack_id, self.rebalance_timeout_ms, self.assignor
        new.client_id, new.client_host, new.classic = self.client_id, self.client_host, self.classic
        new.subscription, new.state = self.subscription, self.state
        new.assigned, new.revoking, new.target = self.assigned, self.revoking, self.target
        return new
