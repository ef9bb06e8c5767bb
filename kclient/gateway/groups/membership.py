"""Takes the requests of members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode
from kclient.gateway.groups.classic import MEMBER, ClassicGroup
from kclient.gateway.groups.consumers.group import AssignedGroup
from kclient.gateway.groups.events import (
    UNKNOWN_MEMBER,
    GroupSettings,
    Join,
    JoinResult,
    Leave,
    Sync,
    SyncResult,
    Token,
)
from kclient.gateway.groups.group import CLASSIC
from kclient.gateway.groups.members import memory_of_names, memory_of_protocols, size_of
from kclient.gateway.groups.streaming.group import StreamsGroup
from kclient.gateway.groups.table import Parked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.consumers.membership import AssignedMembership
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.members import Member
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.table import GroupTable
    from kclient.net.answers import Work

_ID: Final = "-" + "0" * 36
"""As long as what follows the prefix in a member's id."""

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")


class ClassicMembership:
    """Who is in which classic group. Its methods never wait; what must wait returns an object to wait on.

    Args:
        table: All groups.
        assigned: Takes the requests of members of consumer groups, which may speak the classic protocol as well.
        memory: Whether there is room for more members.
        clock: What time it is.
    """

    def __init__(self, table: GroupTable, assigned: AssignedMembership, memory: GroupMemory, clock: Clock) -> None:
        self._table = table
        self._assigned = assigned
        self._memory = memory
        self._clock = clock

    @property
    def settings(self) -> GroupSettings:
        """The broker settings for groups, as they are now."""
        return self._table.settings

    def reads_by_patterns(self, group_id: str) -> bool:
        """Whether members of a group that is migrated read by patterns, which are looked up before somebody joins."""
        mixed = self._assigned.mixed(group_id)
        return mixed is not None and bool(mixed[1].members.patterns)

    def look_up(self, group_id: str, allowed: Callable[[Iterable[str]], Iterable[str]], *, rights: int = 0) -> Work:
        """Look up what these stand for: see `AssignedMembership.look_up`."""
        return self._assigned.look_up(group_id, None, allowed, rights=rights)

    def join(self, group_id: str, join: Join) -> Parked[JoinResult]:
        """A JoinGroup request."""
        table = self._table
        parked: Parked[JoinResult] = Parked()
        managed = table.groups.get(group_id)
        group = None if managed is None else managed.group
        error = self._check_join(group_id, managed, join)
        mixed = None if error else self._assigned.mixed(group_id)
        if mixed is not None:
            return self._assigned.join(*mixed, join)
        left = isinstance(group, AssignedGroup) or (isinstance(group, StreamsGroup) and group.idle)
        if not error and managed is not None and left:
            assert isinstance(group, AssignedGroup | StreamsGroup)
            if not group.settled:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # what is left of it is about to be stored
            else:
                table.convert(managed, CLASSIC)
                group = managed.group
        if not error and group is not None and not isinstance(group, ClassicGroup):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # as from Kafka: the name is that of a group of another type
        if not error:
            error = self._check_room(group_id, group if isinstance(group, ClassicGroup) else None, join)
        if error:
            parked.set_result(JoinResult(error, join.member_id))
            return parked
        if managed is None:
            managed = table.create(group_id)
        group = managed.group
        assert isinstance(group, ClassicGroup)
        table.perform(managed, group.join(join, parked, self._clock.now()))
        return parked

    def _check_join(self, group_id: str, managed: ManagedGroup | None, join: Join) -> ErrorCode:
        settings = self.settings
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if self._table.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not least <= join.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if managed is None and join.member_id != UNKNOWN_MEMBER:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _check_room(self, group_id: str, group: ClassicGroup | None, join: Join) -> ErrorCode:
        """Whether there is memory for what a member brings along."""
        members = None if group is None else group.members
        known = None if members is None else members.place_of(join.member_id, join.instance_id)
        size = size_of(join.protocols) - (0 if known is None else size_of(known.protocols))
        if size + (0 if members is None else members.size) > self.settings.group_max_metadata_bytes:
            logger.warning("group %s: a member with %d bytes of metadata is refused", group_id[:300], size)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        more = memory_of_protocols(join.protocols) - (0 if known is None else memory_of_protocols(known.protocols))
        if not self._memory.admits_member(group_id, more + _more_names(known, join), new=group is None):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it tries again
        if not self._memory.admits_write(group_id):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # what comes of it has to be stored
        return ErrorCode.NONE

    def sync(self, group_id: str, sync: Sync) -> Parked[SyncResult]:
        """A SyncGroup request."""
        mixed = self._assigned.mixed(group_id)
        if mixed is not None:
            return self._assigned.sync(*mixed, sync)
        parked: Parked[SyncResult] = Parked()
        error, managed, group = self._find(group_id)
        if group is not None and self._too_large(group, sync):
            # as from Kafka, whose log of groups has a limit too
            error, group = ErrorCode.UNKNOWN_SERVER_ERROR, None
        elif group is not None and not self._memory.admits_assignments(group_id, _more(group, sync)):
            error, group = ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # it looks for it, and joins again
        elif group is not None and group.awaits(sync) and not self._memory.admits_write(group_id):
            error, group = ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # likewise
        if managed is None or group is None:
            parked.set_result(SyncResult(error))
        else:
            self._table.perform(managed, group.sync(sync, parked, self._clock.now()))
        return parked

    def _too_large(self, group: ClassicGroup, sync: Sync) -> bool:
        size = sum(map(len, sync.assignments.values()))
        if size <= self.settings.group_max_metadata_bytes:
            return False
        logger.warning("group %s: assignments of %d bytes are refused", group.group_id, size)
        return True

    def forsake(self, group_id: str, token: Token) -> None:
        """The client of a parked request has gone."""
        managed = self._table.groups.get(group_id)
        if managed is not None and isinstance(managed.group, ClassicGroup):
            self._table.perform(managed, managed.group.forsake(token, self._clock.now()))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        mixed = self._assigned.mixed(group_id)
        if mixed is not None:
            return self._assigned.heartbeat_classic(*mixed, member_id, instance_id, generation)
        error, _, group = self._find(group_id)
        if group is None:
            return error
        return group.heartbeat(member_id, instance_id, generation, self._clock.now())

    def leave(self, group_id: str, leaving: list[Leave]) -> tuple[ErrorCode, list[ErrorCode]]:
        """A LeaveGroup request: the error of the whole, and one per member."""
        error, managed, group = self._find(group_id)
        mixed = self._assigned.mixed(group_id)
        if mixed is not None:
            left = self._assigned.leave(*mixed, leaving)
            if len(left) == len(leaving):
                return ErrorCode.NONE, left
            error, more = self.leave(group_id, leaving[len(left) :])  # of the classic group that it is by now
            return error, [*left, *more]
        if managed is None or group is None:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                return ErrorCode.NONE, [error] * len(leaving)
            return error, []
        errors, actions = group.leave(leaving, self._clock.now())
        self._table.perform(managed, actions)
        return ErrorCode.NONE, errors

    def _find(self, group_id: str) -> tuple[ErrorCode, ManagedGroup | None, ClassicGroup | None]:
        """A classic group, or why its member cannot use it: of a group of another type nobody is a member here."""
        error, managed = self._table.find(group_id)
        group = None if managed is None else managed.group
        return error, managed, group if isinstance(group, ClassicGroup) else None


def _more_names(known: Member | None, join: Join) -> int:
    """By how many bytes the ids of a group grow, with what a new member takes itself."""
    if known is not None and join.member_id != UNKNOWN_MEMBER:
        return 0  # it keeps those that it has
    prefix = join.instance_id or join.client_id
    names = memory_of_names(prefix + _ID, join.instance_id, join.client_id, join.client_host)
    return names + MEMBER if known is None else names - known.named


def _more(group: ClassicGroup, sync: Sync) -> int:
    """By how many bytes the assignments of a group grow."""
    return sum(map(len, sync.assignments.values())) - group.members.assigned
