"""Takes the requests of members of share groups: ShareGroupHeartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, GroupIdNotFoundError
from kclient.gateway.groups.consumers.admission import admit_newcomer, admit_topics
from kclient.gateway.groups.consumers.member import JOINING
from kclient.gateway.groups.events import Beat, BeatResult
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.table import Parked
from kclient.gateway.rows.consumer_groups import SHARE

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable


class SharedMembership:
    """Who is in which share group. Its methods never wait; what must wait returns an object to wait on.

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

    def heartbeat(self, group_id: str, beat: Beat) -> Parked[BeatResult]:
        """A ShareGroupHeartbeat request.

        Args:
            group_id: The group.
            beat: What the member says.

        Raises:
            KafkaError: The member is refused; see `SharedGroup.heartbeat`.
            CoordinatorLoadInProgressError: There is no memory for it now: it tries again.
            GroupIdNotFoundError: There is no such group, or it is of another type.
        """
        table = self._table
        if table.closed:
            raise CoordinatorNotAvailableError("the gateway is closing")
        joins = beat.epoch == JOINING
        managed, group = self._joined(group_id, beat) if joins else shared_group(table, group_id)
        parked: Parked[BeatResult] = Parked()
        try:
            admit_topics(self._memory, group_id, group.members, beat)
            actions = group.heartbeat(beat, parked, self._topics, self._clock.now())
        except Exception:
            if joins:
                table.perform(managed, ())  # a group that nobody came into is none
            raise
        table.perform(managed, actions)
        return parked

    def _joined(self, group_id: str, beat: Beat) -> tuple[ManagedGroup, SharedGroup]:
        """The group that somebody joins, which may be a new one."""
        table = self._table
        new = group_id not in table.groups
        if new or beat.member_id not in shared_group(table, group_id)[1].members:
            admit_newcomer(self._memory, group_id, beat, new=new)
        if new:
            table.create(group_id, kind=SHARE)
        return shared_group(table, group_id)

    def establish(self, group_id: str) -> Parked[BeatResult]:
        """Have a share group, which has no members if it is new; the result comes when it is stored.

        Args:
            group_id: The group.

        Raises:
            CoordinatorLoadInProgressError: There is no memory for it now, or the store does not keep up.
            GroupIdNotFoundError: A group of another type has the name.
        """
        table = self._table
        if group_id not in table.groups:
            if not self._memory.admits_member(group_id, 0, new=True) or not self._memory.admits_write(group_id):
                raise CoordinatorLoadInProgressError("there is no memory for more groups: it is tried again")
            table.create(group_id, kind=SHARE)
        managed, group = shared_group(table, group_id)
        parked: Parked[BeatResult] = Parked()
        table.perform(managed, group.establish(parked))
        return parked

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members of a group are to be heard of, in milliseconds."""
        return self._table.settings_of(group_id).group_share_heartbeat_interval_ms


def shared_group(table: GroupTable, group_id: str) -> tuple[ManagedGroup, SharedGroup]:
    """The share group of this name.

    Args:
        table: All groups.
        group_id: The name.

    Raises:
        GroupIdNotFoundError: There is none, or a group of another type has the name.
    """
    managed = table.groups.get(group_id)
    if managed is None:
        raise GroupIdNotFoundError(f"Group {group_id[:300]} not found.")
    if not isinstance(managed.group, SharedGroup):
        raise GroupIdNotFoundError(f"Group {group_id[:300]} is not a share group.")
    return managed, managed.group
