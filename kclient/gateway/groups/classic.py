"""The state machine of one group, step by step as Kafka's coordinator for the classic protocol.

It is told what happened and the time, in seconds on a monotonic clock, and returns what is to be done: replies to
parked requests, and snapshots to be stored. It never waits, reads no clock and does no I/O. `next_deadline` says
when `advance` must be called.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Final

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    AssignmentStored,
    Join,
    Leave,
    ReplacementStored,
    Reply,
    StoreSnapshot,
    Sync,
    SyncResult,
    Ticket,
    Token,
)
from kclient.gateway.groups.group import CLASSIC, AskedTopics
from kclient.gateway.groups.members import Member, member_of
from kclient.gateway.groups.offsets import Expiry, OffsetCommit
from kclient.gateway.groups.rebalance import Rebalancing, answer_parked, named, refuse
from kclient.gateway.groups.states import CAN_REBALANCE, GroupState
from kclient.gateway.groups.subscriptions import CONSUMER, read_topics

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

MEMBER: Final = 1_200
"""About how many bytes of memory a member takes beside its metadata."""
_PENDING: Final = 500
"""The same of an id that waits for its owner."""


class ClassicGroup(Rebalancing):
    """One group of the classic protocol: takes its requests.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
        new_member_id: Makes a member id from a prefix (the client id, or the group instance id).
    """

    type: str = CLASSIC
    protocol_type: str | None

    @property
    def shown_state(self) -> str:
        """The name of its state."""
        return self.state.value

    @property
    def idle(self) -> bool:
        """Whether nobody is in it and nobody is expected."""
        return self.state is GroupState.EMPTY and not self.members.pending_joins

    @property
    def untouched(self) -> bool:
        """Whether it has had no generation yet, nor is about to."""
        return not self.generation and self.idle

    @property
    def size(self) -> int:
        """About how many bytes of memory its members take, and the ids that wait for their owners."""
        members = self.members
        pending = members.pending_joins
        held = members.held + MEMBER * len(members)
        return held + pending.size + _PENDING * len(pending)

    # ---- JoinGroup ----------------------------------------------------------------------------------------

    def join(self, join: Join, token: Token, now: float) -> list[Action]:
        """A JoinGroup request; it is answered at once or parked under `token`."""
        if self.state is GroupState.DEAD:
            return [refuse(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, join.member_id)]
        if not self._accepts(join.member_id):
            actions = self._drop(join.member_id)
            actions.append(refuse(token, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER))
            return actions + self._maybe_complete_join(now)
        if not self._supports(join):
            return [refuse(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id)]
        if join.member_id == UNKNOWN_MEMBER:
            return self._join_new(join, token, now)
        if join.member_id in self.members.pending_joins and join.instance_id is None:
            return self._add_member(join, join.member_id, token, now)
        return self._join_known(join, token, now)

    def _accepts(self, member_id: str) -> bool:
        """Whether the group has room; a group that is too large sheds those who come last to a rebalance."""
        limit = self.settings.group_max_size
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join_token is not None) or self.members.joined < limit
        if self.state is GroupState.EMPTY:
            return True
        return member is not None or len(self.members) < limit

    def _supports(self, join: Join) -> bool:
        if not join.protocol_type or not join.protocols:
            return False
        if self.state is GroupState.EMPTY or not len(self.members):
            return True
        return self.protocol_type == join.protocol_type and self.members.shares_protocol(
            name for name, _ in join.protocols
        )

    def _join_new(self, join: Join, token: Token, now: float) -> list[Action]:
        """A client without a member id: give it one; a static member takes over its old place."""
        if join.instance_id is not None:
            member_id = self._new_member_id(join.instance_id)
            old_id = self.members.static_id(join.instance_id)
            if old_id is None:
                return self._add_member(join, member_id, token, now)
            return self._replace_static(join, old_id, member_id, token, now)
        member_id = self._new_member_id(join.client_id)
        if not join.require_member_id:
            return self._add_member(join, member_id, token, now)
        # KIP-394: the client comes back with this id, so that retries of a lost answer leave no ghost members
        self.members.pending_joins.add(member_id)
        self._expire_at(member_id, now + join.session_timeout_ms / 1000)
        return [refuse(token, ErrorCode.MEMBER_ID_REQUIRED, member_id)]

    def _join_known(self, join: Join, token: Token, now: float) -> list[Action]:
        error = self.members.check(join.member_id, join.instance_id)
        if error:
            return [refuse(token, error, join.member_id)]
        member = self.members[join.member_id]
        leads = self.members.leader == member.member_id
        unchanged = member.protocols == join.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # its first answer was lost: tell it again
            return [Reply(token, self._current(member, with_members=leads))]
        if self.state is GroupState.STABLE and unchanged and not leads:
            return [Reply(token, self._current(member))]
        if self.state is GroupState.EMPTY:
            return [refuse(token, ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)]
        # new metadata, or the leader asks for a rebalance because it knows of a change (of topics, for one)
        actions = self._update(member, join, token)
        return actions + self._rebalance_or_complete(now, f"{member.member_id} rejoins: {join.reason or 'no reason'}")

    def _add_member(self, join: Join, member_id: str, token: Token, now: float) -> list[Action]:
        member = member_of(join, member_id)
        member.join_token = token
        if self.state is GroupState.PREPARING_REBALANCE and self._initial:
            self._newcomer = True
        if not len(self.members):
            self.protocol_type = join.protocol_type
        self.members.add(member)
        # A new member cannot send heartbeats yet and its connection may be gone without notice: it may wait for
        # this long, so that retries do not fill the group with members nobody is behind.
        timeout = self.settings.group_new_member_join_timeout_ms / 1000
        self._expire_at(member_id, now + timeout)
        return self._rebalance_or_complete(now, f"{member_id} joins: {join.reason or 'no reason'}")

    def _update(self, member: Member, join: Join, token: Token | None) -> list[Action]:
        """Take over what a member sent with its JoinGroup, and park it."""
        actions: list[Action] = []
        if member.join_token is not None:
            # the client sent it again; whoever waits for the first is told to try again
            actions.append(refuse(member.join_token, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.protocols = join.protocols
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        member.join_token = token
        return actions

    # ---- static members (KIP-345) ---------------------------------------------------------------------------

    def _replace_static(self, join: Join, old_id: str, new_id: str, token: Token, now: float) -> list[Action]:
        """A static member restarted: it gets a new id, and whoever uses the old one is fenced."""
        old_leader = self.members.leader
        member = self.members[old_id]
        actions = answer_parked(member, ErrorCode.FENCED_INSTANCE_ID)
        self._forget(old_id)
        self.members.replace(old_id, new_id, join)
        self._heard(member, now)
        changed = member.protocols != join.protocols
        actions += self._update(member, join, token)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # the leader may have the old id in hand, its assignment would miss the new one
            return actions + self._prepare(now, f"static member {join.instance_id} rejoined")
        if self.state is GroupState.PREPARING_REBALANCE:
            return actions + self._maybe_complete_join(now)
        if changed and self.members.elect_protocol() != self.protocol_name:
            return actions + self._prepare(now, f"static member {join.instance_id} changes the protocol")
        ticket = ReplacementStored(token, old_id, new_id, old_leader, join.can_skip_assignment)
        return [*actions, StoreSnapshot(self.snapshot(), ticket, self.size)]

    def _replacement_stored(self, ticket: ReplacementStored, error: ErrorCode, now: float) -> list[Action]:
        member = self.members.get(ticket.new_member_id)
        if member is None or member.join_token is not ticket.token or self.state is not GroupState.STABLE:
            return []  # a rebalance began meanwhile; its end answers the JoinGroup
        member.join_token = None
        self._heard(member, now)
        if error:
            # The member keeps its new id: the client tries again without one, and is replaced once more.
            return [refuse(ticket.token, error, UNKNOWN_MEMBER)]
        leads = self.members.leader == member.member_id
        if ticket.can_skip_assignment:
            current = replace(self._current(member, with_members=leads), skip_assignment=leads)
        else:
            # An old client that saw itself lead would compute an assignment that nobody takes: name the old id.
            current = replace(self._current(member), leader=ticket.old_leader or UNKNOWN_MEMBER)
        return [Reply(ticket.token, current)]

    # ---- SyncGroup ----------------------------------------------------------------------------------------

    def sync(self, sync: Sync, token: Token, now: float) -> list[Action]:
        """A SyncGroup request; it is answered at once or parked under `token`."""
        error = self._check_sync(sync)
        if error:
            return [Reply(token, SyncResult(error))]
        member = self.members[sync.member_id]
        if self.state is GroupState.STABLE:
            self._synced(member)
            self._heard(member, now)
            return [Reply(token, self._assignment(member))]
        actions: list[Action] = []
        if member.sync_token is not None:
            actions.append(Reply(member.sync_token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.sync_token = token
        self._synced(member)
        if self.members.leader == member.member_id:
            assignments = {
                member.member_id: bytes(sync.assignments.get(member.member_id, b"")) for member in self.members
            }
            ticket = AssignmentStored(self.generation, assignments)
            size = self.size + sum(map(len, assignments.values()))
            actions.append(StoreSnapshot(self.snapshot(assignments), ticket, size))
        return actions

    def awaits(self, sync: Sync) -> bool:
        """Whether this is the assignment of a generation, which has to be stored."""
        return self.state is GroupState.COMPLETING_REBALANCE and self.members.leader == sync.member_id

    def _check_sync(self, sync: Sync) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(sync.member_id, sync.instance_id)
        if error:
            return error
        if sync.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(sync.protocol_type, self.protocol_type) or _differs(sync.protocol_name, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> list[Action]:
        """A `StoreSnapshot` was done, or failed with `error`."""
        if isinstance(ticket, AssignmentStored):
            return self._assignment_stored(ticket, error, now)
        if isinstance(ticket, ReplacementStored):
            return self._replacement_stored(ticket, error, now)
        if error:
            # harmless: after a restart the generation before comes back without anybody in it, and times out
            logger.warning("group %s: the empty group was not stored (%s)", self.group_id, error.name)
        return []

    # ---- Heartbeat, OffsetCommit --------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """A Heartbeat request; returns the error to answer with."""
        error = self._check_member(member_id, instance_id, generation)
        if error:
            return error
        self._heard(self.members[member_id], now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: float,
        *,
        commit: OffsetCommit | None = None,
        transactional: bool = False,
        version: int | None = None,
    ) -> ErrorCode:
        """An OffsetCommit request; returns NONE when the offsets may be stored. It counts as a heartbeat."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # a client that manages its partitions itself, or an administrator
        if transactional and generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE  # a producer that does not know of groups' members
        error = self._check_member(member_id, instance_id, generation)
        if error:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE and not transactional:
            # its id and generation are right, so it has seen the new generation: let it finish the rebalance
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._heard(self.members[member_id], now)
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whoever asks is told what is committed."""
        return ErrorCode.NONE

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(member_id, instance_id)
        if not error and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # ---- committed offsets --------------------------------------------------------------------------------

    def subscribed(self, asked: AskedTopics) -> Generator[None, None, frozenset[str] | None]:
        """The topics of those asked about that a group of consumers reads, found out in steps.

        None for other types, and if what a member says cannot be read or changes meanwhile.
        """
        if self.protocol_type != CONSUMER:
            return None
        return (yield from read_topics(self.members, lambda: self.protocol_name, asked))

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """Why no offset may be deleted now, or else those of the topics whose offsets may not; None for all."""
        if self.state is GroupState.EMPTY:
            return ErrorCode.NONE, ()
        if self.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP, None
        # while it rebalances, or if its metadata cannot be read, all of it may be in use
        return ErrorCode.NONE, (yield from self.subscribed(asked))

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        """When its offsets may be forgotten (KIP-211); None if they may not now."""
        if self.protocol_type is None and not unread:
            return Expiry(retention_ms, None, frozenset())
        if self.state is GroupState.EMPTY:
            return Expiry(retention_ms, since_ms, frozenset())
        topics = None
        if self.state is GroupState.STABLE:
            topics = yield from self.subscribed(asked)
        return None if topics is None else Expiry(retention_ms, None, topics)

    # ---- leaving ------------------------------------------------------------------------------------------

    def leave(self, leaving: Iterable[Leave], now: float) -> tuple[list[ErrorCode], list[Action]]:
        """A LeaveGroup request; returns an error per member. All leave in one rebalance."""
        actions: list[Action] = []
        errors: list[ErrorCode] = []
        gone: list[str] = []
        changed = False
        for leave in leaving:
            error, member_id = self._find_leaving(leave)
            errors.append(error)
            if not error:
                logger.info("group %s: %s leaves (%s)", self.group_id, member_id, leave.reason or "no reason")
                changed = changed or member_id in self.members
                gone.append(member_id)
                actions += self._drop(member_id)
        if gone:
            actions += self._after_removal(now, f"{named(gone)} left", changed=changed)
        return errors, actions

    def _find_leaving(self, leave: Leave) -> tuple[ErrorCode, str]:
        if leave.member_id == UNKNOWN_MEMBER:
            # an administrator removes a static member by its instance id alone
            member_id = self.members.static_id(leave.instance_id)
            if member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER
            return ErrorCode.NONE, member_id
        if leave.member_id in self.members.pending_joins:
            return ErrorCode.NONE, leave.member_id
        return self.members.check(leave.member_id, leave.instance_id), leave.member_id

    def rebalance(self, reason: str, now: float) -> list[Action]:
        """Have its members join again."""
        return self._prepare(now, reason) if self.state in CAN_REBALANCE else []

    # ---- the end, and the beginning -----------------------------------------------------------------------

    @property
    def other_rows(self) -> Sequence[str]:
        """It has one row."""
        return ()

    def remove_rows(self, keys: Sequence[str]) -> bool:
        """Its members have none of their own."""
        return False

    def delete(self) -> ErrorCode:
        """Remove the group if it has no members; returns NONE, NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self.unload()
        return ErrorCode.NONE


def _differs(said: str | None, known: str | None) -> bool:
    """Whether a client named (since version 5 of SyncGroup) another protocol than the group's."""
    return said is not None and said != known
