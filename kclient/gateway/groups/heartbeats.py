"""Takes the heartbeats of members who go on by epochs, of share and of streams groups alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from kclient.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, GroupIdNotFoundError
from kclient.gateway.groups.table import Parked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.events import Action, Token
    from kclient.gateway.groups.group import Group, ManagedGroup
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable

_JOINING: Final = 0
"""The epoch of a member that joins."""


class _Beat(Protocol):
    """What is asked of a heartbeat, of whatever type its group is."""

    @property
    def epoch(self) -> int:
        """The member's epoch."""
        ...


GroupT = TypeVar("GroupT", bound="Group")
BeatT = TypeVar("BeatT", bound=_Beat)
ResultT = TypeVar("ResultT")


class BeatMembership(Generic[GroupT, BeatT, ResultT]):
    """Who is in which group of a type. Its methods never wait; what must wait returns an object to wait on.

    Args:
        table: All groups.
        topics: All topics.
        memory: Whether there is room for more members.
        clock: What time it is.
    """

    def __init__(self, table: GroupTable, topics: TopicTable, memory: GroupMemory, clock: Clock) -> None:
        self._table = table
        self._topics = topics
        self._memory = memory
        self._clock = clock

    def heartbeat(self, group_id: str, beat: BeatT) -> Parked[ResultT]:
        """A heartbeat.

        Args:
            group_id: The group.
            beat: What the member says.

        Raises:
            KafkaError: The member is refused; see `heartbeat` of its group.
            CoordinatorLoadInProgressError: There is no memory for it now: it tries again.
            GroupIdNotFoundError: There is no such group, or it is of another type.
        """
        table = self._table
        if table.closed:
            raise CoordinatorNotAvailableError("the gateway is closing")
        joins = beat.epoch == _JOINING
        managed, group = self._joined(group_id, beat) if joins else self._known(group_id)
        parked: Parked[ResultT] = Parked()
        try:
            self._admit_more(group_id, group, beat)
            actions = self._take(group, beat, parked)
        except Exception:
            if joins:
                table.perform(managed, ())  # a group that nobody came into is none
            raise
        table.perform(managed, actions)
        return parked

    # In what types of groups differ

    def _known(self, group_id: str) -> tuple[ManagedGroup, GroupT]:
        """The group of this name; raises `GroupIdNotFoundError` if there is none of this type."""
        raise NotImplementedError

    def _joined(self, group_id: str, beat: BeatT) -> tuple[ManagedGroup, GroupT]:
        """The group that somebody joins, which may be a new one."""
        raise NotImplementedError

    def _admit_more(self, group_id: str, group: GroupT, beat: BeatT) -> None:
        """Ask for the memory of what a member, who is in the group, says more of itself than before."""
        raise NotImplementedError

    def _take(self, group: GroupT, beat: BeatT, token: Token) -> Sequence[Action]:
        """Have the group take a heartbeat."""
        raise NotImplementedError


def admit_member(memory: GroupMemory, group_id: str, size: int, *, new: bool) -> None:
    """Ask for the memory of a member that joins.

    Args:
        memory: Whether there is room for more members.
        group_id: The group.
        size: About how many bytes the member takes.
        new: Whether there is no such group yet.

    Raises:
        CoordinatorLoadInProgressError: There is none now, or the store does not keep up: it tries again.
    """
    if not memory.admits_member(group_id, size, new=new):
        raise CoordinatorLoadInProgressError("there is no memory for more members of groups: it is tried again")
    if not memory.admits_write(group_id):
        raise CoordinatorLoadInProgressError("the store does not keep up with groups: it is tried again")


def group_of_type(table: GroupTable, group_id: str, kind: type[GroupT], name: str) -> tuple[ManagedGroup, GroupT]:
    """The group of this name and type.

    Args:
        table: All groups.
        group_id: Its name.
        kind: What its state machine is.
        name: The name of the type, for the error.

    Raises:
        GroupIdNotFoundError: There is none, or a group of another type has the name.
    """
    managed = table.groups.get(group_id)
    if managed is None:
        raise GroupIdNotFoundError(f"Group {group_id[:300]} not found.")
    if not isinstance(managed.group, kind):
        raise GroupIdNotFoundError(f"Group {group_id[:300]} is not a {name} group.")
    return managed, managed.group
