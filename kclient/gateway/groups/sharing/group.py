"""The state machine of one share group (KIP-932): takes its requests, step by step as Kafka's coordinator.

It is told what happened and the time, in seconds on a monotonic clock, and returns what is to be done: replies, rows to
be stored, targets to be worked out. It never waits, reads no clock and does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode, GroupMaxSizeReachedError, UnknownMemberIdError
from kclient.gateway.groups.assignors.simple import assign_simply
from kclient.gateway.groups.consumers.group import MOST_TOPICS, check_epoch
from kclient.gateway.groups.consumers.member import JOINING, LEAVING, ConsumerMember, MemberSubscription
from kclient.gateway.groups.consumers.progress import ConsumerProgress
from kclient.gateway.groups.consumers.roster import SharedRoster
from kclient.gateway.groups.consumers.states import ConsumerGroupState
from kclient.gateway.groups.events import Action, Beat, BeatResult, Reply, Token
from kclient.gateway.groups.group import CommitsNothing
from kclient.gateway.groups.progress import WaitingMember
from kclient.gateway.rows.consumer_groups import SHARE

if TYPE_CHECKING:
    from kclient.gateway.groups.assignors.model import PartitionAssignor
    from kclient.gateway.groups.consumers.member import Held, Owned
    from kclient.gateway.groups.consumers.reading import CoordinatedTopics
    from kclient.gateway.groups.consumers.roster import ConsumerRoster
    from kclient.gateway.groups.group import AskedTopics

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_GIVES_UP_NOTHING: Final[Owned] = {}
"""What a member of a share group has to give up before it gets something else."""
_FIRST_EPOCH: Final = 1
"""The epoch of a group that begins without members."""


class SharedGroup(CommitsNothing, ConsumerProgress):
    """One share group: takes its requests.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    type: str = SHARE
    protocol_type: str | None = SHARE

    @property
    def shown_state(self) -> str:
        """The name of its state: who is not at the target yet comes there with the next heartbeat, so it is stable."""
        ended = self.state is ConsumerGroupState.EMPTY or self.state is ConsumerGroupState.DEAD
        return self.state.value if ended else ConsumerGroupState.STABLE.value

    @property
    def empty(self) -> bool:
        """Whether nobody is in it."""
        return self.state is ConsumerGroupState.EMPTY

    @property
    def idle(self) -> bool:
        """It does not go by itself, as on Kafka: what it has read of partitions is kept until it is deleted."""
        return False

    def _empty_roster(self) -> ConsumerRoster:
        return SharedRoster()

    @property
    def _session_timeout_ms(self) -> int:
        return self.settings.group_share_session_timeout_ms

    @property
    def _assignment_interval_ms(self) -> int:
        return self.settings.group_share_assignment_interval_ms

    @property
    def _assign(self) -> PartitionAssignor:
        return assign_simply

    # Heartbeats

    def heartbeat(self, beat: Beat, token: Token, topics: CoordinatedTopics, now: float) -> list[Action]:
        """A ShareGroupHeartbeat request; it is answered at once or when something is stored.

        Args:
            beat: The request.
            token: Stands for it.
            topics: The topics that there are.
            now: The time.

        Raises:
            FencedMemberEpochError: The member's epoch is not its own: it joins anew.
            GroupMaxSizeReachedError: There is no room for a member more.
            UnknownMemberIdError: It is no member.
        """
        if self.state is ConsumerGroupState.DEAD:
            return [Reply(token, BeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
        if beat.epoch == LEAVING:
            return self._leave(beat, token, now)
        member = self._entering(beat)
        before = member.assigned
        changed = self._update(member, beat)
        if changed or topics.changes != self._seen or self._version != self.members.version:
            self._seen = topics.changes
            changed = self.members.refresh(topics) or changed
            self._version = self.members.version
        if changed:
            self._bump(f"{member.member_id} or its topics")
        self._heard(member, now)
        waiting = WaitingMember(member.member_id, partial(self._answer, beat, token, before), partial(_refuse, token))
        return self._respond_or_wait(waiting, member, now) + self._settle()

    def _answer(self, beat: Beat, token: Token, before: Held, member: ConsumerMember, now: float) -> list[Action]:
        """Take a member to its target, and tell it.

        If it has got something else while this waited, the next answer tells it that once more: this one may come to
        nobody.
        """
        late = member.assigned is not before
        self._advance_member(member, _GIVES_UP_NOTHING, now)
        assigned = None
        moved = member.assigned is not before and member.assigned != before
        if late or beat.is_full or member.untold or moved:
            assigned = member.assigned
            member.untold = late
        result = BeatResult(ErrorCode.NONE, member.member_id, member.epoch, assigned)
        return self._when_stored(member, Reply(token, result))

    def _entering(self, beat: Beat) -> ConsumerMember:
        """The member that a heartbeat is of, which may be a new one."""
        known, joins = self.members.get(beat.member_id), beat.epoch == JOINING
        if known is None and len(self.members) >= self.settings.group_share_max_size:
            raise GroupMaxSizeReachedError(
                f"the group has {len(self.members)} members, as many as group.share.max.size allows"
            )
        if beat.topics and self.members.count_names(beat.topics) > 2 * MOST_TOPICS:
            raise GroupMaxSizeReachedError(f"members of the group read more than {2 * MOST_TOPICS} topics")
        if known is None:
            if not joins:
                raise UnknownMemberIdError(f"{beat.member_id[:300]} is not a member of the group")
            logger.info("group %s: %s joins", self.group_id, beat.member_id)
            known = ConsumerMember(beat.member_id, None)
            self.members.add(known)
            self.members.lagging.add(beat.member_id)
            self._rows.change(beat.member_id)
        elif not joins:
            check_epoch(known, beat)
        return known

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take over what a member says of itself; whether it reads something else."""
        before = member.rack_id, member.client_id, member.client_host
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if (member.rack_id, member.client_id, member.client_host) != before:
            self._rows.change(member.member_id)
            self.members.measure(member)
        if beat.topics is None or beat.topics == member.subscription.topics:
            return False
        self.members.subscribe(member, MemberSubscription(beat.topics))
        self._rows.change(member.member_id)
        return True

    def _leave(self, beat: Beat, token: Token, now: float) -> list[Action]:
        member = self.members.get(beat.member_id)
        if member is None:
            raise UnknownMemberIdError(f"{beat.member_id[:300]} is not a member of the group")
        logger.info("group %s: %s leaves", self.group_id, member.member_id)
        actions = self._remove(member, now)
        self._rows.answer(Reply(token, BeatResult(ErrorCode.NONE, member.member_id, LEAVING)))
        return actions + self._settle()

    # Administration

    def establish(self, token: Token) -> list[Action]:
        """Be there although nobody has been in it: the request is answered when that is stored."""
        if self.untouched:
            self._be_at(_FIRST_EPOCH, _FIRST_EPOCH)
            self._rows.change_group()
        reply = Reply(token, BeatResult(ErrorCode.NONE))
        if self._rows.settled:
            return [reply]
        self._rows.answer(reply)
        return self._settle()

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """There are none to be deleted."""
        yield from ()
        return ErrorCode.GROUP_ID_NOT_FOUND, None


def _refuse(token: Token, error: ErrorCode, message: str | None) -> Reply:
    return Reply(token, BeatResult(error, message=message))
