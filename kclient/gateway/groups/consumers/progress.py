"""How a consumer group goes on: what its next target is made of, and where each member is with it.

This half of the state machine knows the members (what all groups with epochs have in common is in `groups.progress`);
the other half, `group`, takes the requests. Share groups have this half, too, and another one for their requests
(`sharing.group`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from kclient.gateway.groups.assignors.model import NONE, PartitionAssignor, Partitions
from kclient.gateway.groups.assignors.table import ASSIGNORS
from kclient.gateway.groups.consumers.member import (
    AWAY,
    NOTHING,
    ClassicSide,
    ConsumerMember,
    MemberSubscription,
    Owned,
)
from kclient.gateway.groups.consumers.reading import Picture
from kclient.gateway.groups.consumers.reconciling import reconcile
from kclient.gateway.groups.consumers.roster import ConsumerRoster
from kclient.gateway.groups.consumers.states import (
    CONSUMER_GROUP_TABLE,
    LEADS_TO,
    ConsumerGroupEvent,
    ConsumerGroupState,
    ReconcilingState,
)
from kclient.gateway.groups.consumers.storing import consumer_rows
from kclient.gateway.groups.events import Action, GroupSettings
from kclient.gateway.groups.progress import REVOCATION, SESSION, GroupLife, GroupProgress, NextTarget
from kclient.gateway.rows.consumer_groups import CONSUMER, ConsumerGroupSnapshot, ConsumerMemberSnapshot

JOIN: Final = "join"
"""The deadline of a member of the classic protocol that is to join again."""
SYNC: Final = "sync"
"""The same of one that is to ask for its assignment."""

_LIFE: Final = GroupLife(
    CONSUMER_GROUP_TABLE,
    LEADS_TO,
    ConsumerGroupEvent.REMOVED,
    empty=ConsumerGroupState.EMPTY,
    assigning=ConsumerGroupState.ASSIGNING,
    reconciling=ConsumerGroupState.RECONCILING,
    stable=ConsumerGroupState.STABLE,
    dead=ConsumerGroupState.DEAD,
)


class ConsumerProgress(GroupProgress[ConsumerGroupState, ConsumerMember, ConsumerRoster, Partitions]):
    """The epochs of a group whose members read topics, and its deadlines.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    type: str = CONSUMER
    _LATE: ClassVar[Mapping[str, str]] = {
        SESSION: "has not been heard of",
        REVOCATION: "has not given its partitions up",
        JOIN: "has not joined again",
        SYNC: "has not asked for its assignment",
    }

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        members = self._empty_roster()
        super().__init__(group_id, settings, _LIFE, epoch=0, members=members, form=consumer_rows(members), nothing=NONE)
        self._seen = -1
        """The changes of topics that have been looked at; -1 before anybody has, as after a restart."""
        self._version = 0
        """The version of what members read that has been looked at."""

    @property
    def untouched(self) -> bool:
        """Whether nobody has ever been in it, so that nothing of it is stored."""
        return not self.group_epoch and self.state is ConsumerGroupState.EMPTY

    # In what types of groups differ

    def _empty_roster(self) -> ConsumerRoster:
        return ConsumerRoster()

    @property
    def _session_timeout_ms(self) -> int:
        """How long a member may not be heard of."""
        return self.settings.group_consumer_session_timeout_ms

    @property
    def _assignment_interval_ms(self) -> int:
        """The least time between two targets."""
        return self.settings.group_consumer_assignment_interval_ms

    @property
    def _assign(self) -> PartitionAssignor:
        """Works out a target."""
        return ASSIGNORS[self.members.assignor]

    @property
    def _limits_targets(self) -> bool:
        """A member that learns only now what its pattern stands for need not wait."""
        return self.members.partitions > 0

    @property
    def _may_assign(self) -> bool:
        return self._seen >= 0

    def _next(self) -> NextTarget[Partitions]:
        members = self.members
        return NextTarget(partial(_assigned, self._assign, members.picture()), len(members) + members.partitions)

    # Members

    def _heard(self, member: ConsumerMember, now: float) -> None:
        timeout_ms = self._session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._timers.schedule((SESSION, member.member_id), now + timeout_ms / 1000)

    def _advance_member(self, member: ConsumerMember, owned: Owned | None, now: float) -> None:
        members = self.members
        if member.member_id not in members.lagging and member.checked == members.version:
            return
        if members.unresolved:
            return  # who reads by a pattern would give everything up
        held = member.assigned, member.revoking
        reads = members.reads(member.subscription)
        changed = reconcile(member, self.assignment_epoch, reads, members.owners, owned)
        member.checked = members.version
        if changed:
            members.hold(member, held)
            self._rows.change(member.member_id)
            if member.state is ReconcilingState.UNREVOKED_PARTITIONS and member.classic is None:
                self._limit_revocation(member, now)
            else:
                self._timers.cancel((REVOCATION, member.member_id))
        self._note_lag(member)

    def _is_revoking(self, member: ConsumerMember) -> bool:
        there = member.epoch != AWAY and member.classic is None
        return there and member.state is ReconcilingState.UNREVOKED_PARTITIONS

    def _note_lag(self, member: ConsumerMember) -> None:
        if member.state is ReconcilingState.STABLE and member.epoch == self.assignment_epoch:
            self.members.lagging.discard(member.member_id)
        else:
            self.members.lagging.add(member.member_id)

    def _remove(self, member: ConsumerMember, now: float) -> list[Action]:
        self._drop(member)
        converted = self._converted(now)
        if converted:
            return converted
        self._bump(f"{member.member_id} has gone")
        return self._want_target(now)

    def _converted(self, now: float) -> list[Action]:
        """What makes a group of another type of it, if that is due."""
        return []

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member has come back under another id."""
        new = old.successor(member_id)
        self._drop(old)
        self.members.add(new)
        self.members.lagging.add(member_id)
        self._rows.change(member_id)
        if self._job is not None:
            self._job.renamed[member_id] = self._job.renamed.pop(old.member_id, old.member_id)
        return new

    def _leave_for_now(self, member: ConsumerMember) -> None:
        """A static member will be back: what it has is kept for it."""
        held = member.assigned, member.revoking
        member.epoch, member.revoking = AWAY, NOTHING
        self.members.hold(member, held)
        self.members.lagging.add(member.member_id)
        self._timers.cancel((REVOCATION, member.member_id))
        self._rows.change(member.member_id)

    # What is stored

    def snapshot(self) -> ConsumerGroupSnapshot:
        """The group as it is stored, without its members."""
        return ConsumerGroupSnapshot(
            self.group_id, self.group_epoch, self.assignment_epoch, self.members.digest, self.type
        )

    def restore(self, snapshot: ConsumerGroupSnapshot, now: float) -> Sequence[Action]:
        """Be what was stored; `restore_member` brings the members, and `restored` is called after them."""
        self._be_at(snapshot.group_epoch, snapshot.assignment_epoch)
        self.members.digest = snapshot.digest
        return ()

    def restore_member(self, snapshot: ConsumerMemberSnapshot) -> None:
        """A member that was stored. Raises `ValueError` if its row makes no sense."""
        if snapshot.member_id in self.members:
            return  # the rows are read once more
        member = ConsumerMember(snapshot.member_id, snapshot.instance_id)
        member.rack_id, member.rebalance_timeout_ms = snapshot.rack_id, snapshot.rebalance_timeout_ms
        member.client_id, member.client_host = snapshot.client_id, snapshot.client_host
        member.subscription = MemberSubscription(snapshot.topics, snapshot.pattern)
        member.assignor = snapshot.assignor
        member.epoch, member.previous_epoch = snapshot.epoch, snapshot.previous_epoch
        member.state = ReconcilingState(snapshot.state)
        member.assigned, member.revoking, member.target = snapshot.assigned, snapshot.revoking, snapshot.target
        if snapshot.session_timeout_ms is not None:
            member.classic = ClassicSide(snapshot.session_timeout_ms, snapshot.protocols)
        self.members.add(member)


def _assigned(assign: PartitionAssignor, picture: Picture) -> dict[str, Partitions]:
    return assign(picture.view())
