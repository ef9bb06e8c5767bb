"""Takes the requests of members of consumer groups: ConsumerGroupHeartbeat, and those of members that are migrated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kclient.concurrency import Completion
from kclient.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    GroupIdNotFoundError,
    ProtocolError,
)
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.consumers.admission import MEMBER, admit_newcomer, admit_topics
from kclient.gateway.groups.consumers.group import AssignedGroup
from kclient.gateway.groups.consumers.member import JOINING
from kclient.gateway.groups.consumers.mixed import MixedGroup
from kclient.gateway.groups.consumers.reading import TOPIC_READ, LookedUp, TopicsRead
from kclient.gateway.groups.events import Beat, BeatResult, GroupSettings, Join, JoinResult, Leave, Sync, SyncResult
from kclient.gateway.groups.table import Parked
from kclient.gateway.patterns import LinearPattern
from kclient.gateway.rows.consumer_groups import CONSUMER

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.consumers.roster import ConsumerRoster
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.answers import Work

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_CONSUMERS: Final = "consumer"
"""The protocol type of classic groups of consumers."""
_NEVER: Final = -1
_RENEW_S: Final = 1.0
"""So long after all topics were looked at anew, because rights had changed, that is not done again."""
_SLICE: Final = 64
"""So many names are compared with a pattern before others have their turn."""


class AssignedMembership:
    """Who is in which consumer group. Its methods never wait; what must wait returns an object to wait on.

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

    @property
    def settings(self) -> GroupSettings:
        """The broker settings for groups, as they are now."""
        return self._table.settings

    def heartbeat(self, group_id: str, beat: Beat, found: Sequence[LookedUp] = ()) -> Parked[BeatResult]:
        """A ConsumerGroupHeartbeat request.

        Args:
            group_id: The group.
            beat: What the member says.
            found: What patterns stand for that `look_up` has looked up.

        Raises:
            KafkaError: The member is refused; see `AssignedGroup.heartbeat`.
            CoordinatorLoadInProgressError: There is no memory for it now: it tries again.
            GroupIdNotFoundError: There is no such group, or it is of another type and has members.
        """
        table = self._table
        if table.closed:
            raise CoordinatorNotAvailableError("the gateway is closing")
        managed = table.groups.get(group_id)
        joins = beat.epoch == JOINING
        group = self._joined(group_id, managed, beat) if joins else _of(group_id, managed)
        if managed is None:
            managed = table.groups[group_id]
        admit_topics(self._memory, group_id, group.members, beat)
        parked: Parked[BeatResult] = Parked()
        try:
            actions = group.heartbeat(beat, parked, self._topics, self._clock.now(), found)
        except Exception:
            if joins:
                table.perform(managed, ())  # a group that nobody came into is none
            raise
        table.perform(managed, actions)
        return parked

    def _joined(self, group_id: str, managed: ManagedGroup | None, beat: Beat) -> AssignedGroup:
        """The group that somebody joins, which may be a new one."""
        table = self._table
        group = None if managed is None else managed.group
        known = isinstance(group, AssignedGroup) and beat.member_id in group.members
        if not known:
            admit_newcomer(self._memory, group_id, beat, new=group is None)
        if managed is None:
            managed = table.create(group_id, kind=CONSUMER)
        elif isinstance(group, ClassicGroup):
            if group.idle:
                table.convert(managed, CONSUMER)
            else:
                self._upgrade(managed, group)
        group = managed.group
        if not isinstance(group, AssignedGroup):
            raise GroupIdNotFoundError(f"the group {group_id[:300]} is of another type: {group.type[:300]}")
        return group

    def _upgrade(self, managed: ManagedGroup, group: ClassicGroup) -> None:
        """A live classic group goes on as a consumer group, with the members that it has."""
        cannot = f"the classic group {group.group_id[:300]} cannot become a consumer group while it has members: "
        if self.settings.group_consumer_migration_policy not in ("upgrade", "bidirectional"):
            raise GroupIdNotFoundError(f"{cannot}group.consumer.migration.policy forbids it")
        if group.protocol_type != _CONSUMERS:
            raise GroupIdNotFoundError(f"{cannot}it is one of {(group.protocol_type or 'nobody')[:300]}")
        if len(group.members) >= self.settings.group_consumer_max_size:
            raise GroupIdNotFoundError(f"{cannot}it has more members than group.consumer.max.size allows")
        now = self._clock.now()
        mixed = MixedGroup(group.group_id, self._table.settings_of(group.group_id))
        try:
            mixed.take_over(group, self._topics, now)
        except (ProtocolError, ValueError) as error:
            raise GroupIdNotFoundError(
                f"{cannot}its assignor does not do as those of Kafka, set one of these first ({error})"
            ) from error
        logger.info("group %s: the classic group becomes a consumer group", group.group_id)
        waiting = group.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        managed.group = mixed
        self._table.remove_left(managed)
        self._table.perform(managed, waiting)

    # Members of the classic protocol, while a group is migrated

    def mixed(self, group_id: str) -> tuple[ManagedGroup, MixedGroup] | None:
        """The consumer group of this name that has members; None if there is none."""
        managed = self._table.groups.get(group_id)
        group = None if managed is None else managed.group
        if managed is None or not isinstance(group, MixedGroup) or group.idle or self._table.closed:
            return None
        return managed, group

    def join(self, managed: ManagedGroup, group: MixedGroup, join: Join) -> Parked[JoinResult]:
        """A JoinGroup request of a member of a consumer group."""
        parked: Parked[JoinResult] = Parked()
        error = ErrorCode.NONE
        if join.member_id not in group.members:
            size = MEMBER + sum(len(name) + len(metadata) for name, metadata in join.protocols)
            room = self._memory.admits_member(group.group_id, size, new=False)
            if not room or not self._memory.admits_write(group.group_id):
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it tries again
        if error:
            parked.set_result(JoinResult(error, join.member_id))
        else:
            self._table.perform(managed, group.join(join, parked, self._topics, self._clock.now()))
        return parked

    def sync(self, managed: ManagedGroup, group: MixedGroup, sync: Sync) -> Parked[SyncResult]:
        """A SyncGroup request of a member of a consumer group."""
        parked: Parked[SyncResult] = Parked()
        self._table.perform(managed, group.sync(sync, parked, self._clock.now()))
        return parked

    def heartbeat_classic(
        self, managed: ManagedGroup, group: MixedGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A Heartbeat request of a member of a consumer group."""
        error = group.heartbeat_classic(member_id, instance_id, generation, self._clock.now())
        self._table.perform(managed, ())
        return error

    def leave(self, managed: ManagedGroup, group: MixedGroup, leaving: Sequence[Leave]) -> list[ErrorCode]:
        """A LeaveGroup request for members of a consumer group, of theirs or of an administrator.

        It ends with the last member of the new protocol where the rest is a classic group from then on.
        """
        errors: list[ErrorCode] = []
        for leave in leaving:
            if managed.group is not group:
                break
            error, actions = group.expel(leave.member_id, leave.instance_id, self._clock.now())
            errors.append(error)
            self._table.perform(managed, actions)
        return errors

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members of a group are to be heard of, in milliseconds."""
        managed = self._table.groups.get(group_id)
        settings = self.settings if managed is None else managed.group.settings
        return settings.group_consumer_heartbeat_interval_ms

    def look_up(
        self,
        group_id: str,
        pattern: str | None,
        allowed: Callable[[Iterable[str]], Iterable[str]],
        *,
        rights: int = 0,
    ) -> Work:
        """Look up what the patterns of a group stand for, as far as topics have changed, and what a new one does.

        Where rights have changed, all topics are looked at again.

        What the group knows of is in force at once. Who comes while another one looks does not do it as well, but
        waits for it where it is not known yet at all.

        Args:
            group_id: The group.
            pattern: The one that a heartbeat brings along.
            allowed: Of some names those of topics that a pattern may stand for.
            rights: Grows whenever more or other topics may be allowed.

        Returns:
            A list of `LookedUp` for `heartbeat`.

        Raises:
            InvalidRegularExpressionError: The pattern is none.
        """
        topics = self._topics
        members = self._members(group_id)
        while members is not None and members.unresolved and members.looking is not None:
            yield members.looking
            members = self._members(group_id)
        if members is not None and members.looking is None and members.patterns:
            now = self._clock.now()
            anew = members.rights != rights and now >= members.renewed + _RENEW_S
            if anew:
                members.rights, members.renewed = rights, now
            behind = [each for each in members.patterns if anew or members.looked_at(each) < topics.changes]
            if behind:
                yield from self._follow(members, behind, allowed, anew=anew)
        if not pattern or (members is not None and members.looked_at(pattern) >= 0):
            return ()
        return ((yield from _look_up(pattern, _NEVER, topics, allowed)),)

    def _follow(
        self,
        members: ConsumerRoster,
        patterns: Sequence[str],
        allowed: Callable[[Iterable[str]], Iterable[str]],
        *,
        anew: bool,
    ) -> Work:
        """Look up patterns of members; who waits for that goes on then, or if it fails looks itself."""
        looking = members.looking = Completion()
        try:
            for each in patterns:
                since = _NEVER if anew else members.looked_at(each)
                found = yield from _look_up(each, since, self._topics, allowed)
                members.learn(found, self._topics)
        finally:
            members.looking = None
            looking.set_result(None)

    def _members(self, group_id: str) -> ConsumerRoster | None:
        managed = self._table.groups.get(group_id)
        group = None if managed is None else managed.group
        return group.members if isinstance(group, AssignedGroup) else None


def _look_up(
    text: str, since: int, topics: TopicTable, allowed: Callable[[Iterable[str]], Iterable[str]]
) -> Generator[int | None, None, LookedUp]:
    """Look up what a pattern stands for, in steps; of one that was, which of the topics changed since."""
    pattern, at = LinearPattern(text), topics.changes
    changed = None if since < 0 else topics.changed_since(since)
    matching: list[str] = []
    if changed is not None:
        for count, name in enumerate(changed, 1):
            if (yield from pattern.steps(name)):
                matching.append(name)
            if count % _SLICE == 0:
                yield None
        there = set(allowed(matching))
        return LookedUp(text, since, at, None, {name: name in there for name in changed})
    whole = TopicsRead()
    for count, record in enumerate(topics, 1):
        if (yield from pattern.steps(record.name)):
            matching.append(record.name)
        if count % _SLICE == 0:
            whole.update(allowed(matching), topics, at)
            yield TOPIC_READ * len(matching)
            matching.clear()
    whole.update(allowed(matching), topics, at)
    return LookedUp(text, _NEVER, at, whole, {})


def _of(group_id: str, managed: ManagedGroup | None) -> AssignedGroup:
    """The group of a member."""
    group = None if managed is None else managed.group
    if isinstance(group, AssignedGroup):
        return group
    if group is None:
        raise GroupIdNotFoundError(f"there is no group {group_id[:300]}")
    raise GroupIdNotFoundError(f"the group {group_id[:300]} is not a consumer group")
