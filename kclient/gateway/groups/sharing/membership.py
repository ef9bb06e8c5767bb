"""Takes the requests of members of share groups: ShareGroupHeartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import CoordinatorLoadInProgressError
from kclient.gateway.groups.consumers.admission import admit_newcomer, admit_topics
from kclient.gateway.groups.events import Beat, BeatResult
from kclient.gateway.groups.heartbeats import BeatMembership, group_of_type
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.table import Parked
from kclient.gateway.rows.consumer_groups import SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.gateway.groups.events import Action, Token
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.table import GroupTable


class SharedMembership(BeatMembership[SharedGroup, Beat, BeatResult]):
    """Who is in which share group."""

    def _known(self, group_id: str) -> tuple[ManagedGroup, SharedGroup]:
        return shared_group(self._table, group_id)

    def _admit_more(self, group_id: str, group: SharedGroup, beat: Beat) -> None:
        admit_topics(self._memory, group_id, group.members, beat)

    def _take(self, group: SharedGroup, beat: Beat, token: Token) -> Sequence[Action]:
        return group.heartbeat(beat, token, self._topics, self._clock.now())

    def _joined(self, group_id: str, beat: Beat) -> tuple[ManagedGroup, SharedGroup]:
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
    return group_of_type(table, group_id, SharedGroup, SHARE)
