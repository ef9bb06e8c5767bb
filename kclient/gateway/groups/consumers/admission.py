"""Whether there is memory for members that come to a group whose partitions the coordinator assigns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kclient.errors import CoordinatorLoadInProgressError
from kclient.gateway.groups.heartbeats import admit_member

if TYPE_CHECKING:
    from kclient.gateway.groups.consumers.roster import ConsumerRoster
    from kclient.gateway.groups.events import Beat
    from kclient.gateway.groups.memory import GroupMemory

MEMBER: Final = 2_000
"""About how many bytes of memory a new member takes, beside its names."""


def admit_newcomer(memory: GroupMemory, group_id: str, beat: Beat, *, new: bool) -> None:
    """Ask for the memory of a member that joins.

    Args:
        memory: Whether there is room for more members.
        group_id: The group.
        beat: What the member says.
        new: Whether there is no such group yet.

    Raises:
        CoordinatorLoadInProgressError: There is none now, or the store does not keep up: it tries again.
    """
    names = (beat.member_id, beat.instance_id, beat.client_id, beat.client_host, beat.pattern)
    size = MEMBER + sum(sys.getsizeof(name or "") for name in names)
    size += sum(map(sys.getsizeof, beat.topics or ()))
    admit_member(memory, group_id, size, new=new)


def admit_topics(memory: GroupMemory, group_id: str, members: ConsumerRoster, beat: Beat) -> None:
    """Ask for the memory of what a member reads from now on.

    Args:
        memory: Whether there is room for more members.
        group_id: The group.
        members: Those of the group: of one who is none of them nothing is asked here.
        beat: What the member says.

    Raises:
        CoordinatorLoadInProgressError: There is none now: it tries again.
    """
    grows = _more(members, beat)
    if grows and not memory.admits_member(group_id, grows, new=False):
        raise CoordinatorLoadInProgressError("there is no memory for more topics of members: it is tried again")


def _more(members: ConsumerRoster, beat: Beat) -> int:
    """How many bytes of memory more a member may take that is in the group, since it reads something else now."""
    member = members.get(beat.member_id)
    if member is None:
        return 0
    topics, pattern = member.subscription
    size = 0
    if beat.topics is not None and beat.topics != topics:
        size += sum(map(sys.getsizeof, beat.topics))
    if beat.pattern is not None and beat.pattern != pattern:
        size += sys.getsizeof(beat.pattern)
    return size
