"""How a consumer group goes on: its epochs, its deadlines, its next target, and where each member is with it.

This half of the state machine knows the members; the other half, `group`, takes the requests. Share groups have this
half, too, and another one for their requests (`sharing.group`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kclient.errors import ErrorCode
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
from kclient.gateway.groups.consumers.storing import ChangedRows, consumer_rows
from kclient.gateway.groups.events import (
    Action,
    GroupSettings,
    Reply,
    RowsStored,
    Ticket,
    WorkOut,
)
from kclient.gateway.groups.timers import Timers
from kclient.gateway.rows.consumer_groups import CONSUMER, ConsumerGroupSnapshot, ConsumerMemberSnapshot
from kclient.gateway.rows.keys import parse_member_key
from kclient.state_tables import next_state

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_SESSION: Final = "session"
_REVOCATION: Final = "revocation"
JOIN: Final = "join"
"""The deadline of a member of the classic protocol that is to join again."""
SYNC: Final = "sync"
"""The same of one that is to ask for its assignment."""
_LATE: Final = {
    _SESSION: "has not been heard of",
    _REVOCATION: "has not given its partitions up",
    JOIN: "has not joined again",
    SYNC: "has not asked for its assignment",
}
"""The deadlines of a member, and what it has not done when they pass."""
_TARGET: Final = "target"
_STORE: Final = "store"
_AGAIN_S: Final = 1.0
"""Seconds until something that failed is tried again."""


class WaitingMember(NamedTuple):
    """A request of a member that waits for a target."""

    member_id: str
    respond: Callable[[ConsumerMember, float], list[Action]]
    """Answers it, given the member and the time."""
    refuse: Callable[[ErrorCode, str | None], Reply]
    """Answers it with an error, and what is wrong."""


class _Job:
    """A target that is being worked out."""

    __slots__ = ("epoch", "renamed", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.renamed: dict[str, str] = {}
        """Static members that came back meanwhile: the old ids by the new ones."""
        self.waiting: list[WaitingMember] = []


class GroupProgress:
    """The epochs of a group, and its deadlines.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    type: str = CONSUMER

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id: str = group_id
        self.settings: GroupSettings = settings
        self.state: ConsumerGroupState = ConsumerGroupState.EMPTY
        self.group_epoch: int = 0
        self.assignment_epoch: int = 0
        self.members: ConsumerRoster = self._empty_roster()
        self._rows = ChangedRows(group_id, self.members, self.snapshot, consumer_rows(self.members))
        self._timers: Timers[tuple[str, str]] = Timers()
        self._job: _Job | None = None
        self._next_target = float("-inf")
        """When the next target may be worked out."""
        self._emptied = False
        self._seen = -1
        """The changes of topics that have been looked at; -1 before anybody has, as after a restart."""
        self._version = 0
        """The version of what members read that has been looked at."""

    @property
    def untouched(self) -> bool:
        """Whether nobody has ever been in it, so that nothing of it is stored."""
        return not self.group_epoch and self.state is ConsumerGroupState.EMPTY

    @property
    def size(self) -> int:
        """About how many bytes of memory its members take."""
        return self.members.size

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

    # Time

    def next_deadline(self) -> float | None:
        """When `advance` has to be called, or None."""
        return self._timers.next_deadline()

    def advance(self, now: float) -> list[Action]:
        """Do everything whose time has come."""
        actions: list[Action] = []
        while (due := self._timers.pop_due(now)) is not None:
            kind, member_id = due
            member = self.members.get(member_id)
            if kind == _TARGET:
                actions += self._want_target(now)
            elif kind in _LATE and member is not None:
                logger.info("group %s: %s %s in time and is removed", self.group_id, member_id, _LATE[kind])
                actions += self._remove(member, now)
        return actions + self._settle()

    def _heard(self, member: ConsumerMember, now: float) -> None:
        timeout_ms = self._session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._timers.schedule((_SESSION, member.member_id), now + timeout_ms / 1000)

    def _forget(self, member_id: str) -> None:
        for kind in _LATE:
            self._timers.cancel((kind, member_id))

    def _settle(self) -> list[Action]:
        """After everything that happened: be in the state that follows from it, and have stored what has changed."""
        if self.state is ConsumerGroupState.DEAD:
            return []
        following = self._following()
        if following is not self.state:
            self._emptied = self._emptied or following is ConsumerGroupState.EMPTY
            self._go(LEADS_TO[following])
        actions: list[Action] = [*self._rows.store(emptied=self._emptied)]
        if actions:
            self._emptied = False
        return actions

    def _following(self) -> ConsumerGroupState:
        if not len(self.members):
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.RECONCILING if self.members.lagging else ConsumerGroupState.STABLE

    def _go(self, event: ConsumerGroupEvent) -> None:
        self.state = next_state(CONSUMER_GROUP_TABLE, self.state, event, self)

    def __str__(self) -> str:
        return f"group {self.group_id!r}"

    # Epochs and targets

    def _begin_at(self, epoch: int) -> None:
        """Have an epoch, and a target that its members have reached."""
        self.group_epoch = self.assignment_epoch = epoch

    def _bump(self, reason: str) -> None:
        """Something has changed that asks for another target."""
        self.group_epoch += 1
        self._rows.change_group()
        logger.info("group %s: epoch %d (%s)", self.group_id, self.group_epoch, reason)

    def rebalance(self, reason: str, now: float) -> list[Action]:
        """Work out another target, although nothing has changed."""
        self._bump(reason)
        return self._want_target(now) + self._settle()

    def _want_target(self, now: float) -> list[Action]:
        """Have the next target worked out, if there has to be one and it is time for it.

        While nobody has looked at the topics, there is none to work out: the first heartbeat does so, and asks again.
        """
        if self.group_epoch <= self.assignment_epoch or self._job is not None or not len(self.members):
            return []
        if self._seen < 0:
            return []
        if now < self._next_target:
            self._timers.schedule((_TARGET, ""), self._next_target)
            return []
        job = self._job = _Job(self.group_epoch)
        members = self.members
        work = partial(_assigned, self._assign, members.picture())
        return [WorkOut(work, len(members) + members.partitions, partial(self._worked_out, job))]

    def _worked_out(self, job: _Job, targets: Mapping[str, Partitions] | None, now: float) -> Sequence[Action]:
        """A target is there; None if it could not be worked out."""
        if job is not self._job:
            return ()
        self._job = None
        if self.members.partitions:  # a member that learns only now what its pattern stands for need not wait
            self._next_target = now + self._assignment_interval_ms / 1000
        if targets is None:
            self._next_target = now + _AGAIN_S
            self._timers.schedule((_TARGET, ""), self._next_target)
            why = "the assignor failed: the log of the gateway tells why"
            return [each.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, why) for each in job.waiting]
        renamed = {new: targets.get(old, NONE) for new, old in job.renamed.items()}
        for member in self.members.retarget({**targets, **renamed}, NONE):
            self._rows.change(member.member_id)
        self.assignment_epoch = job.epoch
        self._rows.change_group()
        actions: list[Action] = []
        for waiting in job.waiting:
            found = self.members.get(waiting.member_id)
            if found is None:
                actions.append(waiting.refuse(ErrorCode.UNKNOWN_MEMBER_ID, None))
            else:
                actions += waiting.respond(found, now)
        return [*actions, *self._want_target(now), *self._settle()]

    # Members

    def _respond_or_wait(self, waiting: WaitingMember, member: ConsumerMember, now: float) -> list[Action]:
        """Have the next target worked out if there has to be one, and answer a member: who asks for it waits for it."""
        actions = self._want_target(now)
        if self._job is not None and (actions or not self.assignment_epoch):
            self._job.waiting.append(waiting)
        else:
            actions += waiting.respond(member, now)
        return actions

    def _when_stored(self, member: ConsumerMember, reply: Reply) -> list[Action]:
        """Answer a member when what it is told is stored."""
        if self._rows.is_stored(member.member_id):
            return [reply]
        self._rows.answer(reply)
        return []

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
                deadline = now + max(member.rebalance_timeout_ms, 0) / 1000
                self._timers.schedule((_REVOCATION, member.member_id), deadline)
            else:
                self._timers.cancel((_REVOCATION, member.member_id))
        self._note_lag(member)

    def _note_lag(self, member: ConsumerMember) -> None:
        if member.state is ReconcilingState.STABLE and member.epoch == self.assignment_epoch:
            self.members.lagging.discard(member.member_id)
        else:
            self.members.lagging.add(member.member_id)

    def _remove(self, member: ConsumerMember, now: float) -> list[Action]:
        """A member is in the group no more: the others get what it had."""
        self.members.remove(member)
        self._forget(member.member_id)
        self._rows.change(member.member_id)
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
        self.members.remove(old)
        self._forget(old.member_id)
        self._rows.change(old.member_id)
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
        self._timers.cancel((_REVOCATION, member.member_id))
        self._rows.change(member.member_id)

    # The store, and the end

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        """Rows were stored, or were not."""
        if not isinstance(ticket, RowsStored):
            return ()
        actions: list[Action] = [*self._rows.stored(ticket, error)]
        if self.state is ConsumerGroupState.DEAD:
            return actions
        if error:
            for member_id in ticket.taken:
                member = self.members.get(member_id)
                if member is not None:
                    member.untold = True
            self._timers.schedule((_STORE, ""), now + _AGAIN_S)  # `advance` stores what has not been
            return actions
        return [*actions, *self._settle()]

    def delete(self) -> ErrorCode:
        """Remove the group if it has no members; returns NONE, NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        if self.state is ConsumerGroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not ConsumerGroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self.unload()
        return ErrorCode.NONE

    @property
    def other_rows(self) -> Sequence[str]:
        """The keys of rows beside the group's own that the store may still have, of members that have gone."""
        return list(self._rows.keys)

    def remove_rows(self, keys: Sequence[str]) -> bool:
        """Remove rows of members that there were; those who are members again have their own stored."""
        for key in keys:
            self._rows.change(parse_member_key(key)[1])
        return True

    @property
    def settled(self) -> bool:
        """Whether the store has all of it."""
        return self._rows.settled

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Action]:
        """This coordinator lets go of the group: whoever waits is answered with `error`."""
        actions: list[Action] = [*self._rows.unload(error)]
        job, self._job = self._job, None
        if job is not None:
            actions += [each.refuse(error, None) for each in job.waiting]
        self._timers.clear()
        self._go(ConsumerGroupEvent.REMOVED)
        return actions

    def snapshot(self) -> ConsumerGroupSnapshot:
        """The group as it is stored, without its members."""
        return ConsumerGroupSnapshot(
            self.group_id, self.group_epoch, self.assignment_epoch, self.members.digest, self.type
        )

    def restore(self, snapshot: ConsumerGroupSnapshot, now: float) -> Sequence[Action]:
        """Be what was stored; `restore_member` brings the members, and `restored` is called after them."""
        self.group_epoch, self.assignment_epoch = snapshot.group_epoch, snapshot.assignment_epoch
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

    def restored(self, now: float) -> list[Action]:
        """All members are there: they have one session to be heard of."""
        for member in self.members:
            self._heard(member, now)
            self._note_lag(member)
            revokes = member.state is ReconcilingState.UNREVOKED_PARTITIONS and member.epoch != AWAY
            if revokes and member.classic is None:
                deadline = now + max(member.rebalance_timeout_ms, 0) / 1000
                self._timers.schedule((_REVOCATION, member.member_id), deadline)
        self._rows.restored()
        return [*self._settle()]


def _assigned(assign: PartitionAssignor, picture: Picture) -> dict[str, Partitions]:
    return assign(picture.view())
