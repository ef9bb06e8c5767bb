"""How a group goes on whose members have epochs: its own, its deadlines, its next target, and what is stored of it.

So do consumer and share groups (`consumers.progress`) and streams groups (`streaming.progress`): these say what a
target is made of, and how a member goes there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from kclient.errors import ErrorCode
from kclient.gateway.groups.changed_rows import ChangedRows, RowFormat, StoredGroup
from kclient.gateway.groups.events import Action, GroupSettings, Reply, RowsStored, Ticket, WorkOut
from kclient.gateway.groups.timers import Timers
from kclient.gateway.rows.keys import parse_member_key
from kclient.state_tables import PlainEnum, StateTable, next_state

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

SESSION: Final = "session"
"""The deadline of a member that is to be heard of."""
REVOCATION: Final = "revocation"
"""The same of one that is to give something up."""
FIRST: Final = "first target"
"""The deadline of a group that waits for more members."""
_TARGET: Final = "target"
_STORE: Final = "store"
_AGAIN_S: Final = 1.0
"""Seconds until something that failed is tried again."""


class ProgressingMember(Protocol):
    """What is asked of a member, of whatever type its group is."""

    untold: bool
    """Whether what it has may be another than it knows, since an answer could not be given."""
    rebalance_timeout_ms: int
    """How long it may take to give something up, in milliseconds."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...


StateT = TypeVar("StateT", bound=PlainEnum)
EventT = TypeVar("EventT", bound=PlainEnum)
MemberT = TypeVar("MemberT", bound=ProgressingMember)
TargetT = TypeVar("TargetT")
_TargetT = TypeVar("_TargetT", contravariant=True)


class ProgressingRoster(Protocol[MemberT, _TargetT]):
    """The members of a group."""

    lagging: set[str]
    """Those that have not reached their target."""

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[MemberT]: ...

    def __contains__(self, member_id: str) -> bool: ...

    def get(self, member_id: str) -> MemberT | None:
        """The member with this id."""
        ...

    def remove(self, member: MemberT) -> None:
        """A member is in the group no more."""
        ...

    def retarget(self, targets: Mapping[str, _TargetT], nothing: _TargetT) -> list[MemberT]:
        """There is a new target; the members for which it is another than before."""
        ...


RosterT = TypeVar("RosterT", bound=ProgressingRoster[Any, Any])


@dataclass(frozen=True, slots=True)
class GroupLife(Generic[StateT, EventT]):
    """The states of a type of groups, as far as all types have them."""

    table: StateTable[StateT, EventT]
    leads_to: Mapping[StateT, EventT]
    """The event that leads to a state, from whatever state."""
    removed: EventT
    empty: StateT
    assigning: StateT
    reconciling: StateT
    stable: StateT
    dead: StateT


class WaitingMember(NamedTuple, Generic[MemberT]):
    """A request of a member that waits for a target."""

    member_id: str
    respond: Callable[[MemberT, float], list[Action]]
    """Answers it, given the member and the time."""
    refuse: Callable[[ErrorCode, str | None], Reply]
    """Answers it with an error, and what is wrong."""


class NextTarget(NamedTuple, Generic[TargetT]):
    """A target that is to be worked out."""

    work: Callable[[], Mapping[str, TargetT]]
    """Makes it: what each member is to have, by id."""
    size: int
    """About how much there is to do: members and what they are to have."""


class _Job(Generic[MemberT]):
    """A target that is being worked out."""

    __slots__ = ("epoch", "renamed", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.renamed: dict[str, str] = {}
        """Static members that came back meanwhile: the old ids by the new ones."""
        self.waiting: list[WaitingMember[MemberT]] = []


class GroupProgress(Generic[StateT, MemberT, RosterT, TargetT]):
    """The epochs of a group, and its deadlines.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
        life: The states of its type.
        epoch: That it begins with.
        members: Its members, of whom there are none yet.
        form: How its rows are made.
        nothing: The target of a member that is to have nothing.
    """

    _LATE: ClassVar[Mapping[str, str]]
    """The deadlines of a member, and what it has not done when they pass."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        life: GroupLife[StateT, Any],
        *,
        epoch: int,
        members: RosterT,
        form: RowFormat,
        nothing: TargetT,
    ) -> None:
        self.group_id: str = group_id
        self.settings: GroupSettings = settings
        self.state: StateT = life.empty
        self.group_epoch: int = epoch
        self.assignment_epoch: int = epoch
        self.members: RosterT = members
        self._life = life
        self._nothing = nothing
        self._rows = ChangedRows(group_id, members, self.snapshot, form)
        self._timers: Timers[tuple[str, str]] = Timers()
        self._job: _Job[MemberT] | None = None
        self._next_target = float("-inf")
        """When the next target may be worked out."""
        self._emptied = False

    @property
    def size(self) -> int:
        """About how many bytes of memory its members take."""
        return self.members.size

    @property
    def shown_state(self) -> str:
        """The name of its state."""
        name: str = self.state.value
        return name

    @property
    def idle(self) -> bool:
        """Whether nobody is in it."""
        return self.state is self._life.empty

    # In what types of groups differ

    def snapshot(self) -> StoredGroup:
        """The group as it is stored, without its members."""
        raise NotImplementedError

    @property
    def _assignment_interval_ms(self) -> int:
        """The least time between two targets."""
        raise NotImplementedError

    @property
    def _limits_targets(self) -> bool:
        """Whether the next target waits for that time."""
        return True

    @property
    def _may_assign(self) -> bool:
        """Whether there is anything yet that a target could be worked out of."""
        raise NotImplementedError

    def _next(self) -> NextTarget[TargetT]:
        """What the next target is to be worked out of."""
        raise NotImplementedError

    def _heard(self, member: MemberT, now: float) -> None:
        """A member was heard of."""
        raise NotImplementedError

    def _note_lag(self, member: MemberT) -> None:
        """Whether a member has reached the target may have changed."""
        raise NotImplementedError

    def _is_revoking(self, member: MemberT) -> bool:
        """Whether a member that was stored has a time by which it has to have given something up."""
        raise NotImplementedError

    def _remove(self, member: MemberT, now: float) -> list[Action]:
        """A member is in the group no more: the others get what it had."""
        self._drop(member)
        self._bump(f"{member.member_id} has gone")
        return self._want_target(now)

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
            if kind in (_TARGET, FIRST):
                actions += self._want_target(now)
            elif kind in self._LATE and member is not None:
                logger.info("group %s: %s %s in time and is removed", self.group_id, member_id, self._LATE[kind])
                actions += self._remove(member, now)
        return actions + self._settle()

    def _limit_revocation(self, member: MemberT, now: float) -> None:
        deadline = now + max(member.rebalance_timeout_ms, 0) / 1000
        self._timers.schedule((REVOCATION, member.member_id), deadline)

    def _forget(self, member_id: str) -> None:
        for kind in self._LATE:
            self._timers.cancel((kind, member_id))

    @property
    def _too_early(self) -> bool:
        """Whether a target is due, and its time has not come."""
        return (_TARGET, "") in self._timers and self.group_epoch > self.assignment_epoch

    def _settle(self) -> list[Action]:
        """After everything that happened: be in the state that follows from it, and have stored what has changed."""
        if self.state is self._life.dead:
            return []
        following = self._following()
        if following is not self.state:
            self._emptied = self._emptied or following is self._life.empty
            self._go(self._life.leads_to[following])
        actions: list[Action] = [*self._rows.store(emptied=self._emptied)]
        if actions:
            self._emptied = False
        return actions

    def _following(self) -> StateT:
        if not len(self.members):
            return self._life.empty
        if self.group_epoch > self.assignment_epoch:
            return self._life.assigning
        return self._life.reconciling if self.members.lagging else self._life.stable

    def _go(self, event: PlainEnum) -> None:
        self.state = next_state(self._life.table, self.state, event, self)

    def __str__(self) -> str:
        return f"group {self.group_id!r}"

    # Epochs and targets

    def _be_at(self, group_epoch: int, assignment_epoch: int) -> None:
        """Have these epochs, as it was stored or as another type of group had them."""
        self.group_epoch, self.assignment_epoch = group_epoch, assignment_epoch

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
        if not self._may_assign:
            return []
        if now < self._next_target:
            self._timers.schedule((_TARGET, ""), self._next_target)
            return []
        job: _Job[MemberT] = _Job(self.group_epoch)
        self._job = job
        target = self._next()
        return [WorkOut(target.work, target.size, partial(self._worked_out, job))]

    def _worked_out(self, job: _Job[MemberT], targets: Mapping[str, TargetT] | None, now: float) -> Sequence[Action]:
        """A target is there; None if it could not be worked out."""
        if job is not self._job:
            return ()
        self._job = None
        if self._limits_targets:
            self._next_target = now + self._assignment_interval_ms / 1000
        if targets is None:
            self._next_target = now + _AGAIN_S
            self._timers.schedule((_TARGET, ""), self._next_target)
            why = "the assignor failed: the log of the gateway tells why"
            return [each.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, why) for each in job.waiting]
        renamed = {new: targets.get(old, self._nothing) for new, old in job.renamed.items()}
        for member in self.members.retarget({**targets, **renamed}, self._nothing):
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

    def _respond_or_wait(self, waiting: WaitingMember[MemberT], member: MemberT, now: float) -> list[Action]:
        """Have the next target worked out if there has to be one, and answer a member: who asks for it waits for it."""
        actions = self._want_target(now)
        if self._job is not None and (actions or not self.assignment_epoch):
            self._job.waiting.append(waiting)
        else:
            actions += waiting.respond(member, now)
        return actions

    def _when_stored(self, member: MemberT, reply: Reply) -> list[Action]:
        """Answer a member when what it is told is stored."""
        if self._rows.is_stored(member.member_id):
            return [reply]
        self._rows.answer(reply)
        return []

    def _drop(self, member: MemberT) -> None:
        """A member is among the members no more, nor is anything expected of it."""
        self.members.remove(member)
        self._forget(member.member_id)
        self._rows.change(member.member_id)

    # The store, and the end

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        """Rows were stored, or were not."""
        if not isinstance(ticket, RowsStored):
            return ()
        actions: list[Action] = [*self._rows.stored(ticket, error)]
        if self.state is self._life.dead:
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
        if self.state is self._life.dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not self._life.empty:
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
        self._go(self._life.removed)
        return actions

    def restored(self, now: float) -> list[Action]:
        """All members are there: they have one session to be heard of."""
        for member in self.members:
            self._heard(member, now)
            self._note_lag(member)
            if self._is_revoking(member):
                self._limit_revocation(member, now)
        self._rows.restored()
        return [*self._settle()]
