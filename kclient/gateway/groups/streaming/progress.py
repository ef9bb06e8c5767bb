"""How a streams group goes on: its epochs, its deadlines, its next target, and where each member is with it.

This half of the state machine knows the members and the topology; the other half, `group`, takes the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import ErrorCode
from kclient.gateway.groups.assignors.sticky_tasks import assign_tasks
from kclient.gateway.groups.assignors.tasks import NOTHING_TO_DO, TaskMember, TaskSets, TaskView
from kclient.gateway.groups.consumers.storing import ChangedRows, RowFormat
from kclient.gateway.groups.events import Action, GroupSettings, Reply, RowsStored, Ticket, WorkOut
from kclient.gateway.groups.streaming.member import HeldTasks, StreamsMember
from kclient.gateway.groups.streaming.reconciling import reconcile_tasks
from kclient.gateway.groups.streaming.roster import StreamsRoster
from kclient.gateway.groups.streaming.states import (
    STREAMS_GROUP_LEADS_TO,
    STREAMS_GROUP_TABLE,
    StreamsGroupEvent,
    StreamsGroupState,
    TaskState,
)
from kclient.gateway.groups.streams_beats import QueryEndpoint
from kclient.gateway.groups.timers import Timers
from kclient.gateway.rows.keys import parse_member_key
from kclient.gateway.rows.streams_groups import (
    STREAMS,
    StreamsGroupSnapshot,
    StreamsMemberSnapshot,
    encode_streams_group,
    encode_streams_member,
)
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.gateway.groups.streaming.configuring import Configured
    from kclient.gateway.rows.streams_topology import Topology

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_SESSION: Final = "session"
_REVOCATION: Final = "revocation"
_LATE: Final = {_SESSION: "has not been heard of", _REVOCATION: "has not given its tasks up"}
"""The deadlines of a member, and what it has not done when they pass."""
_TARGET: Final = "target"
_FIRST: Final = "first target"
"""The deadline of a group that waits for more members."""
_STORE: Final = "store"
_AGAIN_S: Final = 1.0
"""Seconds until something that failed is tried again."""
_FIRST_EPOCH: Final = 1
"""The epoch that a group begins with, and that of the target of members that wait for others."""
TOPOLOGY: Final = 6
"""About how many bytes of memory a topology takes for each byte that its row has."""


class _Waiting(NamedTuple):
    """A request of a member that waits for a target."""

    member_id: str
    respond: Callable[[StreamsMember, float], list[Action]]
    refuse: Callable[[ErrorCode, str | None], Reply]


class _Job:
    """A target that is being worked out."""

    __slots__ = ("epoch", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.waiting: list[_Waiting] = []


class StreamsProgress:
    """The epochs of a group, and its deadlines.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    type: str = STREAMS
    protocol_type: str | None = STREAMS

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id: str = group_id
        self.settings: GroupSettings = settings
        self.state: StreamsGroupState = StreamsGroupState.EMPTY
        self.group_epoch: int = _FIRST_EPOCH
        self.assignment_epoch: int = _FIRST_EPOCH
        self.members: StreamsRoster = StreamsRoster()
        self.topology: Topology | None = None
        self.configured: Configured | None = None
        """What follows from the topology; None before anybody has looked, as after a restart."""
        self._validated = -1
        """The epoch of the topology whose topics were all there; -1 if they were not."""
        self._standbys = -1
        """How many standby tasks there were to be when the group got its epoch."""
        self._digest = ""
        """Of the topics that the topology needs."""
        self._rows = ChangedRows(group_id, self.members, self.snapshot, RowFormat(encode_streams_group, self._row))
        self._timers: Timers[tuple[str, str]] = Timers()
        self._job: _Job | None = None
        self._next_target = float("-inf")
        """When the next target may be worked out."""
        self._emptied = False
        self._shutdown: str | None = None
        """The member that wants all to end."""

    @property
    def untouched(self) -> bool:
        """Whether nobody has ever been in it, so that nothing of it is stored."""
        return self.topology is None and self.state is StreamsGroupState.EMPTY and self._rows.settled

    @property
    def size(self) -> int:
        """About how many bytes of memory its members and its topology take."""
        return self.members.size + (0 if self.topology is None else TOPOLOGY * len(self.topology.text))

    @property
    def shown_state(self) -> str:
        """The name of its state."""
        return self.state.value

    @property
    def idle(self) -> bool:
        """Whether nobody is in it."""
        return self.state is StreamsGroupState.EMPTY

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
            if kind in (_TARGET, _FIRST):
                actions += self._want_target(now)
            elif kind in _LATE and member is not None:
                logger.info("group %s: %s %s in time and is removed", self.group_id, member_id, _LATE[kind])
                actions += self._remove(member, now)
        return actions + self._settle()

    def _heard(self, member: StreamsMember, now: float) -> None:
        deadline = now + self.settings.group_streams_session_timeout_ms / 1000
        self._timers.schedule((_SESSION, member.member_id), deadline)

    def _await_others(self, now: float) -> None:
        """Somebody comes into a group without members: there is no target before others had time to come, too."""
        delay_ms = self.settings.group_streams_initial_rebalance_delay_ms
        if delay_ms > 0 and not self._awaits_others:
            self._timers.schedule((_FIRST, ""), now + delay_ms / 1000)

    @property
    def _awaits_others(self) -> bool:
        return (_FIRST, "") in self._timers

    @property
    def _too_early(self) -> bool:
        """Whether a target is due, and its time has not come."""
        return (_TARGET, "") in self._timers and self.group_epoch > self.assignment_epoch

    def _settle(self) -> list[Action]:
        """After everything that happened: be in the state that follows from it, and have stored what has changed."""
        if self.state is StreamsGroupState.DEAD:
            return []
        following = self._following()
        if following is not self.state:
            self._emptied = self._emptied or following is StreamsGroupState.EMPTY
            self._go(STREAMS_GROUP_LEADS_TO[following])
        actions: list[Action] = [*self._rows.store(emptied=self._emptied)]
        if actions:
            self._emptied = False
        return actions

    def _following(self) -> StreamsGroupState:
        if not len(self.members):
            self._shutdown = None
            return StreamsGroupState.EMPTY
        if self.topology is None or self._validated != self.topology.epoch:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        return StreamsGroupState.RECONCILING if self.members.lagging else StreamsGroupState.STABLE

    def _go(self, event: StreamsGroupEvent) -> None:
        self.state = next_state(STREAMS_GROUP_TABLE, self.state, event, self)

    def __str__(self) -> str:
        return f"group {self.group_id!r}"

    # Epochs and targets

    def _have(self, topology: Topology) -> None:
        """This is the group's topology, until it is deleted."""
        self.topology = topology

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
        configured = self.configured
        if self.group_epoch <= self.assignment_epoch or self._job is not None or not len(self.members):
            return []
        if configured is None or self._awaits_others:
            return []
        if now < self._next_target:
            self._timers.schedule((_TARGET, ""), self._next_target)
            return []
        job = self._job = _Job(self.group_epoch)
        view = TaskView(
            {each.member_id: TaskMember(each.process_id, each.target) for each in self.members},
            configured.work,
            self.settings.group_streams_num_standby_replicas,
        )
        work = partial(assign_tasks, view) if configured.ready else dict[str, TaskSets]
        return [WorkOut(work, len(self.members) + sum(configured.tasks.values()), partial(self._worked_out, job))]

    def _worked_out(self, job: _Job, targets: Mapping[str, TaskSets] | None, now: float) -> Sequence[Action]:
        """A target is there; None if it could not be worked out."""
        if job is not self._job:
            return ()
        self._job = None
        self._next_target = now + self.settings.group_streams_assignment_interval_ms / 1000
        if targets is None:
            self._next_target = now + _AGAIN_S
            self._timers.schedule((_TARGET, ""), self._next_target)
            why = "the assignor failed: the log of the gateway tells why"
            return [each.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, why) for each in job.waiting]
        for member in self.members.retarget(targets, NOTHING_TO_DO):
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

    def _respond_or_wait(
        self,
        member: StreamsMember,
        respond: Callable[[StreamsMember, float], list[Action]],
        refuse: Callable[[ErrorCode, str | None], Reply],
        now: float,
    ) -> list[Action]:
        """Have the next target worked out if there has to be one, and answer a member: who asks for it waits for it."""
        actions = self._want_target(now)
        if self._job is not None and actions:
            self._job.waiting.append(_Waiting(member.member_id, respond, refuse))
        else:
            actions += respond(member, now)
        return actions

    def _when_stored(self, member: StreamsMember, reply: Reply) -> list[Action]:
        """Answer a member when what it is told is stored."""
        if self._rows.is_stored(member.member_id):
            return [reply]
        self._rows.answer(reply)
        return []

    def _advance_member(self, member: StreamsMember, owned: TaskSets | None, now: float) -> None:
        """Take a member a step towards its target, which is nothing while the group waits for others."""
        target = NOTHING_TO_DO if self._awaits_others else member.target
        assigned, revoking = member.assigned, member.revoking
        if reconcile_tasks(member, self.assignment_epoch, target, self.members, owned):
            self.members.hold(member, member.process_id, assigned, revoking)
            self._rows.change(member.member_id)
            if member.state is TaskState.UNREVOKED_TASKS:
                self._limit_revocation(member, now)
            else:
                self._timers.cancel((_REVOCATION, member.member_id))
        self.members.note(member, self.assignment_epoch)

    def _limit_revocation(self, member: StreamsMember, now: float) -> None:
        deadline = now + max(member.rebalance_timeout_ms, 0) / 1000
        self._timers.schedule((_REVOCATION, member.member_id), deadline)

    def _remove(self, member: StreamsMember, now: float) -> list[Action]:
        """A member is in the group no more: the others get what it had."""
        self.members.remove(member)
        for kind in _LATE:
            self._timers.cancel((kind, member.member_id))
        self._rows.change(member.member_id)
        if not len(self.members):
            self._timers.cancel((_FIRST, ""))
        self._bump(f"{member.member_id} has gone")
        return self._want_target(now)

    # The store, and the end

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        """Rows were stored, or were not."""
        if not isinstance(ticket, RowsStored):
            return ()
        actions: list[Action] = [*self._rows.stored(ticket, error)]
        if self.state is StreamsGroupState.DEAD:
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
        if self.state is StreamsGroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not StreamsGroupState.EMPTY:
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
        self._go(StreamsGroupEvent.REMOVED)
        return actions

    def snapshot(self) -> StreamsGroupSnapshot:
        """The group as it is stored, without its members."""
        return StreamsGroupSnapshot(
            self.group_id, self.group_epoch, self.assignment_epoch, self._digest, self._validated, self._standbys,
            self.topology,
        )  # fmt: skip

    def _row(self, member_id: str) -> Callable[[], bytes | None]:
        member = self.members.get(member_id)
        if member is None:
            return lambda: None
        return partial(encode_streams_member, _snapshot_of(member))

    def restore(self, snapshot: StreamsGroupSnapshot, now: float) -> Sequence[Action]:
        """Be what was stored; `restore_member` brings the members, and `restored` is called after them."""
        self.group_epoch, self.assignment_epoch = snapshot.group_epoch, snapshot.assignment_epoch
        self._digest, self._validated, self._standbys = snapshot.digest, snapshot.validated_epoch, snapshot.standbys
        self.topology = snapshot.topology
        return ()

    def restore_member(self, snapshot: StreamsMemberSnapshot) -> None:
        """A member that was stored. Raises `ValueError` if its row makes no sense."""
        if snapshot.member_id in self.members:
            return  # the rows are read once more
        member = StreamsMember(snapshot.member_id)
        member.rack_id, member.rebalance_timeout_ms = snapshot.rack_id, snapshot.rebalance_timeout_ms
        member.client_id, member.client_host = snapshot.client_id, snapshot.client_host
        member.topology_epoch, member.process_id = snapshot.topology_epoch, snapshot.process_id
        member.endpoint = None if snapshot.endpoint is None else QueryEndpoint(*snapshot.endpoint)
        member.tags = snapshot.tags
        member.epoch, member.previous_epoch = snapshot.epoch, snapshot.previous_epoch
        member.state = TaskState(snapshot.state)
        member.assigned, member.revoking = HeldTasks(*snapshot.assigned), HeldTasks(*snapshot.revoking)
        member.target = TaskSets(*snapshot.target)
        self.members.add(member)

    def restored(self, now: float) -> list[Action]:
        """All members are there: they have one session to be heard of."""
        for member in self.members:
            self._heard(member, now)
            self.members.note(member, self.assignment_epoch)
            if member.state is TaskState.UNREVOKED_TASKS:
                self._limit_revocation(member, now)
        self._rows.restored()
        return [*self._settle()]


def _snapshot_of(member: StreamsMember) -> StreamsMemberSnapshot:
    return StreamsMemberSnapshot(
        member.member_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topology_epoch,
        member.process_id,
        member.endpoint,
        member.tags,
        member.epoch,
        member.previous_epoch,
        member.state.value,
        member.assigned,
        member.revoking,
        member.target,
    )
