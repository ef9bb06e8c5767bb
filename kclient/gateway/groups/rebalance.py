"""How a group moves from one generation to the next: what happens without a request.

The theory is told in `states`. This half of the state machine keeps the deadlines, begins rebalances, completes
them with those who came, and answers what is parked. The other half, `classic`, takes the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import (
    NOBODY,
    UNKNOWN_MEMBER,
    Action,
    AssignmentStored,
    EmptyStored,
    GroupSettings,
    JoinResult,
    Reply,
    StoreSnapshot,
    SyncResult,
    Token,
)
from kclient.gateway.groups.members import Member, Roster
from kclient.gateway.groups.states import CAN_REBALANCE, GROUP_TABLE, GroupEvent, GroupState
from kclient.gateway.groups.timers import Timers
from kclient.gateway.rows.groups import GroupSnapshot
from kclient.state_tables import next_state

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_JOIN = "join"
_SYNC = "sync"
_SESSION = "session"
_NAMED = 10
_LEAST_PAUSE = 1.0  # seconds; clients may name a rebalance timeout of 0
_Timer = tuple[str, str]


class Rebalancing:
    """The generations of a group, its deadlines, and who is parked.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
        new_member_id: Makes a member id from a prefix (the client id, or the group instance id).
    """

    def __init__(self, group_id: str, settings: GroupSettings, new_member_id: Callable[[str], str]) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state: GroupState = GroupState.EMPTY
        self.generation: int = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members: Roster = Roster()
        self._new_member_id = new_member_id
        self._timers: Timers[_Timer] = Timers()
        self._initial = False  # this rebalance began in the empty group: wait for more members
        self._initial_delay = 0.0
        self._initial_remaining = 0.0
        self._newcomer = False  # someone came since the initial wait was last extended

    # ---- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `advance` has to be called, or None."""
        return self._timers.next_deadline()

    def advance(self, now: float) -> list[Action]:
        """Do everything whose time has come."""
        actions: list[Action] = []
        while (due := self._timers.pop_due(now)) is not None:
            kind, member_id = due
            if kind == _SESSION:
                actions += self._session_expired(member_id, now)
            elif kind == _SYNC:
                actions += self._sync_expired(now)
            elif self._initial:
                actions += self._initial_delay_over(now)
            else:
                actions += self._complete_join(now)
        return actions

    # ---- rebalance ----------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, now: float, reason: str) -> list[Action]:
        if self.state in CAN_REBALANCE:
            return self._prepare(now, reason)
        return self._maybe_complete_join(now)

    def _prepare(self, now: float, reason: str) -> list[Action]:
        """Begin a rebalance."""
        logger.info("group %s: rebalance after generation %d (%s)", self.group_id, self.generation, reason)
        actions: list[Action] = []
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members:
                member.assignment = b""
            actions += self._propagate(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self.members.pending_syncs.clear()
        self._timers.cancel((_SYNC, ""))
        self._initial = self.state is GroupState.EMPTY
        self._go(GroupEvent.CHANGED)
        if self._initial:
            delay = self.settings.group_initial_rebalance_delay_ms / 1000
            self._initial_delay = delay
            self._initial_remaining = max(self.members.rebalance_timeout - delay, 0.0)
            self._newcomer = False
            self._timers.schedule((_JOIN, ""), now + delay)
            return actions
        if self.members.all_joined:
            return actions + self._complete_join(now)
        self._timers.schedule((_JOIN, ""), now + self.members.rebalance_timeout)
        return actions

    def _initial_delay_over(self, now: float) -> list[Action]:
        """The empty group's wait is over, unless someone came meanwhile and there is time left."""
        if not self._newcomer or self._initial_remaining <= 0:
            return self._complete_join(now)
        self._newcomer = False
        passed = self._initial_delay
        delay = self.settings.group_initial_rebalance_delay_ms / 1000
        self._initial_delay = min(delay, self._initial_remaining)
        self._initial_remaining = max(self._initial_remaining - passed, 0.0)
        self._timers.schedule((_JOIN, ""), now + self._initial_delay)
        return []

    def _maybe_complete_join(self, now: float) -> list[Action]:
        if self.state is not GroupState.PREPARING_REBALANCE or self._initial or not self.members.all_joined:
            return []
        return self._complete_join(now)

    def _complete_join(self, now: float) -> list[Action]:
        """Everyone is here, or the time is up: begin the next generation with those who came."""
        self._timers.cancel((_JOIN, ""))
        actions: list[Action] = []
        for member in self.members:
            # static members keep their place until their session ends, that is what they are for
            if member.join_token is None and not member.is_static:
                actions += self._drop(member.member_id)
        if not self.members.elect_joined_leader() and len(self.members):
            # only static members are left and none came: wait until sessions end or one comes
            self._timers.schedule((_JOIN, ""), now + max(self.members.rebalance_timeout, _LEAST_PAUSE))
            self._initial = False
            return actions
        self.generation += 1
        if not len(self.members):
            return actions + self._become_empty()
        self.protocol_name = self.members.elect_protocol()
        self._go(GroupEvent.JOINED)
        logger.info(
            "group %s: generation %d with %d members, leader %s, protocol %s",
            self.group_id, self.generation, len(self.members), self.members.leader, self.protocol_name,
        )  # fmt: skip
        for member in self.members:
            if member.join_token is not None:
                leads = self.members.leader == member.member_id
                actions.append(Reply(member.join_token, self._current(member, with_members=leads)))
                member.join_token = None
            member.is_new = False
            self._heard(member, now)
            self.members.pending_syncs.add(member.member_id)
        self._timers.schedule((_SYNC, ""), now + self.members.rebalance_timeout)
        return actions

    def _become_empty(self) -> list[Action]:
        self.protocol_name = None
        self._go(GroupEvent.DESERTED)
        logger.info("group %s: empty after generation %d", self.group_id, self.generation)
        return [StoreSnapshot(self.snapshot(), EmptyStored(self.generation))]

    # ---- assignments --------------------------------------------------------------------------------------

    def _synced(self, member: Member) -> None:
        self.members.pending_syncs.discard(member.member_id)
        if not self.members.pending_syncs:
            self._timers.cancel((_SYNC, ""))

    def _assignment(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _assignment_stored(self, ticket: AssignmentStored, error: ErrorCode, now: float) -> list[Action]:
        if self.state is not GroupState.COMPLETING_REBALANCE or ticket.generation != self.generation:
            return []  # another rebalance began meanwhile and has answered everyone
        if error:
            for member in self.members:
                member.assignment = b""
            actions = self._propagate(error, now)
            return actions + self._prepare(now, "the assignment could not be stored")
        for member in self.members:
            member.assignment = ticket.assignments.get(member.member_id, b"")
        actions = self._propagate(ErrorCode.NONE, now)
        self._go(GroupEvent.ASSIGNED)
        return actions

    def _propagate(self, error: ErrorCode, now: float) -> list[Action]:
        """Answer every parked SyncGroup."""
        actions: list[Action] = []
        for member in self.members:
            if member.sync_token is not None:
                result = SyncResult(error) if error else self._assignment(member)
                actions.append(Reply(member.sync_token, result))
                member.sync_token = None
                self._heard(member, now)
        return actions

    # ---- clients that have gone ---------------------------------------------------------------------------

    def forsake(self, token: Token, now: float) -> list[Action]:
        """The client whose request was parked has gone without waiting for the answer.

        A new member goes with it: it does not know its id. Others may come back within their session's time, so they
        keep their place; what they have asked for counts, but does not hold off the end of their session any longer.
        """
        member = self.members.parked_by(token)
        if member is None:
            return []
        if member.is_new and not member.is_static and member.join_token is token:
            member.join_token = None
            actions = self._drop(member.member_id)
            return actions + self._after_removal(now, f"{member.member_id} has gone before it joined", changed=True)
        if member.join_token is token:
            member.join_token = NOBODY
        else:
            member.sync_token = NOBODY
        self._heard(member, now)
        return []

    # ---- expiry -------------------------------------------------------------------------------------------

    def _session_expired(self, member_id: str, now: float) -> list[Action]:
        member = self.members.get(member_id)
        if member is not None and member.heartbeat_satisfied:
            return []  # the end of the rebalance sets the next deadline
        if member is None and member_id not in self.members.pending_joins:
            return []
        logger.info("group %s: %s has not been heard of in time and is removed", self.group_id, member_id)
        actions = self._drop(member_id)
        return actions + self._after_removal(now, f"{member_id} timed out", changed=member is not None)

    def _sync_expired(self, now: float) -> list[Action]:
        """Members that were given the generation and never asked for their assignment are removed (KAFKA-10284)."""
        late = sorted(self.members.pending_syncs)
        if not late or self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return []
        actions: list[Action] = []
        for member_id in late:
            actions += self._drop(member_id)
        return actions + self._prepare(now, f"no SyncGroup from {named(late)}")

    def _drop(self, member_id: str) -> list[Action]:
        """Remove a member (or a pending id); its parked requests are told to start over."""
        self._forget(member_id)
        member = self.members.remove(member_id)
        return [] if member is None else answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)

    def _after_removal(self, now: float, reason: str, *, changed: bool) -> list[Action]:
        """Members (or, with `changed` False, only pending ids) were dropped."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            return self._prepare(now, reason) if changed else []
        return self._maybe_complete_join(now)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Action]:
        """This coordinator lets go of the group: everything parked is answered with `error`."""
        actions: list[Action] = []
        for member in self.members:
            actions += answer_parked(member, error)
        self._timers.clear()
        self._go(GroupEvent.ENDED)
        return actions

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """The group as it is stored, with assignments that do not hold yet."""
        return GroupSnapshot(
            self.group_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.members.leader,
            tuple(
                member.snapshot(None if assignments is None else assignments.get(member.member_id, b""))
                for member in self.members
            ),
        )

    def restore(self, stored: GroupSnapshot, now: float) -> list[Action]:
        """Take up a group that was stored: its members have a session timeout's time to be heard of."""
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        for snapshot in stored.members:
            member = Member(
                snapshot.member_id,
                snapshot.instance_id,
                snapshot.client_id,
                snapshot.client_host,
                snapshot.session_timeout_ms,
                snapshot.rebalance_timeout_ms,
                snapshot.protocols,
                snapshot.assignment,
            )
            self.members.add(member)
            self._heard(member, now)
        if not stored.members:
            return []
        self.members.leader = stored.leader
        self._go(GroupEvent.RESTORED)
        if len(self.members) > self.settings.group_max_size:
            return self._prepare(now, "the group is larger than group.max.size")
        return []

    def _current(self, member: Member, *, with_members: bool = False) -> JoinResult:
        """The answer that describes the present generation."""
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.members.leader or UNKNOWN_MEMBER,
            members=self._metadata() if with_members else (),
        )

    def _metadata(self) -> tuple[tuple[str, str | None, bytes], ...]:
        protocol = self.protocol_name or ""
        return tuple((member.member_id, member.instance_id, member.metadata(protocol)) for member in self.members)

    # ---- small things -------------------------------------------------------------------------------------

    def _expire_at(self, member_id: str, deadline: float) -> None:
        self._timers.schedule((_SESSION, member_id), deadline)

    def _forget(self, member_id: str) -> None:
        self._timers.cancel((_SESSION, member_id))

    def _heard(self, member: Member, now: float) -> None:
        self._expire_at(member.member_id, now + member.session_timeout_ms / 1000)

    def _go(self, event: GroupEvent) -> None:
        self.state = next_state(GROUP_TABLE, self.state, event, self)

    def __str__(self) -> str:
        return f"group {self.group_id!r}"


def named(member_ids: Sequence[str]) -> str:
    """Members in a log line, which is not to grow with their number."""
    more = len(member_ids) - _NAMED
    return ", ".join(member_ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def refuse(token: Token, error: ErrorCode, member_id: str) -> Reply:
    """Answer a JoinGroup with an error."""
    return Reply(token, JoinResult(error, member_id))


def answer_parked(member: Member, error: ErrorCode) -> list[Action]:
    """Answer what a member has parked, with an error."""
    actions: list[Action] = []
    if member.join_token is not None:
        member_id = UNKNOWN_MEMBER if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        actions.append(refuse(member.join_token, error, member_id))
        member.join_token = None
    if member.sync_token is not None:
        actions.append(Reply(member.sync_token, SyncResult(error)))
        member.sync_token = None
    return actions
