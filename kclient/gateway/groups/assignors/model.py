"""What an assignor is told of a group, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Some partitions: numbers by the ids of topics; no topic without numbers. Never changed."""

NONE: Partitions = {}
"""No partitions."""


class MemberView(NamedTuple):
    """A member, as an assignor sees it."""

    topics: tuple[bytes, ...]
    """The ids of the topics that it reads and that are there, in the order of their names."""
    instance_id: str | None
    """Of a static member."""
    target: Partitions
    """What it was to have so far."""


class GroupView(NamedTuple):
    """A group, as an assignor sees it."""

    members: Mapping[str, MemberView]
    """By their ids, in the order in which they joined."""
    counts: Mapping[bytes, int]
    """How many partitions each topic has that a member reads."""

    @property
    def alike(self) -> bool:
        """Whether all members read the same topics."""
        several = {id(member.topics): member.topics for member in self.members.values()}  # mostly one that all share
        return len({frozenset(topics) for topics in several.values()}) <= 1


PartitionAssignor: TypeAlias = Callable[[GroupView], dict[str, Partitions]]
"""What each member is to have, by its id: of a group with members."""
