"""The state machine of one consumer group (KIP-848): takes its requests, step by step as Kafka's coordinator.

It is told what happened and the time, in seconds on a monotonic clock, and returns what is to be done: replies, rows to
be stored, targets to be worked out. It never waits, reads no clock and does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kclient.errors import (
    ErrorCode,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from kclient.gateway.groups.consumers.member import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerMember,
    MemberSubscription,
)
from kclient.gateway.groups.consumers.progress import ConsumerProgress
from kclient.gateway.groups.consumers.states import ConsumerGroupState
from kclient.gateway.groups.events import Action, Beat, BeatResult, Reply, Token
from kclient.gateway.groups.offsets import Expiry
from kclient.gateway.groups.progress import WaitingMember

if TYPE_CHECKING:
    from kclient.gateway.groups.consumers.member import Held, Owned
    from kclient.gateway.groups.consumers.reading import CoordinatedTopics, LookedUp
    from kclient.gateway.groups.group import AskedTopics
    from kclient.gateway.groups.offsets import OffsetCommit

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_PROTOCOL_TYPE: Final = "consumer"
MOST_TOPICS: Final = 10_000
"""Topics that a member may read by their names; the members of a group twice as many: they are looked at when topics
change. A pattern stands for as many as there are."""


class AssignedGroup(ConsumerProgress):
    """One group whose partitions the coordinator assigns: takes its requests.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    protocol_type: str | None = _PROTOCOL_TYPE

    # Heartbeats

    def heartbeat(
        self,
        beat: Beat,
        token: Token,
        topics: CoordinatedTopics,
        now: float,
        found: Sequence[LookedUp] = (),
    ) -> list[Action]:
        """A ConsumerGroupHeartbeat request; it is answered at once or when something is stored.

        Args:
            beat: The request.
            token: Stands for it.
            topics: The topics that there are.
            now: The time.
            found: What patterns stand for that were looked up.

        Raises:
            FencedMemberEpochError: The member's epoch is not its own: it joins anew.
            GroupMaxSizeReachedError: There is no room for a member more.
            UnknownMemberIdError: It is no member.
            UnreleasedInstanceIdError, FencedInstanceIdError: Another one has its `group.instance.id`.
        """
        if self.state is ConsumerGroupState.DEAD:
            return [Reply(token, BeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
        if beat.epoch in (LEAVING, AWAY):
            return self._leave(beat, token, now)
        member = self._entering(beat)
        before = member.assigned
        changed = self._update(member, beat)
        for each in found:
            self.members.learn(each, topics)
        self._look(member, topics, changed=changed)
        self._heard(member, now)
        waiting = WaitingMember(member.member_id, partial(self._answer, beat, token, before), partial(_refuse, token))
        return self._respond_or_wait(waiting, member, now) + self._settle()

    def _answer(self, beat: Beat, token: Token, before: Held, member: ConsumerMember, now: float) -> list[Action]:
        """Take a member a step further, and tell it.

        If it has got something else while this waited, what it said before that is no word on it, and the next answer
        tells it all of that once more: this one may come to nobody.
        """
        late = member.assigned is not before
        self._advance_member(member, None if late else beat.owned, now)
        assigned = None
        moved = member.assigned is not before and member.assigned != before
        if late or beat.is_full or member.untold or moved:
            assigned = member.assigned
            member.untold = late
        return self._when_stored(
            member, Reply(token, BeatResult(ErrorCode.NONE, member.member_id, member.epoch, assigned))
        )

    def _look(self, member: ConsumerMember, topics: CoordinatedTopics, *, changed: bool) -> None:
        """Look at what members read, if that may have changed: then there has to be another target.

        While nobody has looked up what a pattern of theirs stands for, as after a restart, there is none.
        """
        if self.members.unresolved:
            self._seen = -1
        elif changed or topics.changes != self._seen or self._version != self.members.version:
            self._seen = topics.changes
            changed = self.members.refresh(topics) or changed
            self._version = self.members.version
        if changed:
            self._bump(f"{member.member_id} or its topics")

    def _entering(self, beat: Beat) -> ConsumerMember:
        """The member that a heartbeat is of, which may be a new one."""
        known = self.members.get(beat.member_id)
        joins = beat.epoch == JOINING
        if joins and known is None and len(self.members) >= self.settings.group_consumer_max_size:
            raise GroupMaxSizeReachedError(
                f"the group has {len(self.members)} members, as many as group.consumer.max.size allows"
            )
        if beat.topics and self.members.count_names(beat.topics) > 2 * MOST_TOPICS:
            raise GroupMaxSizeReachedError(
                f"members of the group read more than {2 * MOST_TOPICS} topics by their names: subscribe by a pattern"
            )
        if beat.instance_id is not None:
            known = self._static(beat, joins=joins)
        if known is None:
            if not joins:
                raise UnknownMemberIdError(f"{beat.member_id[:300]} is not a member of the group")
            logger.info("group %s: %s joins", self.group_id, beat.member_id)
            known = self._new(beat.member_id, beat.instance_id)
        elif not joins:
            check_epoch(known, beat)
        return known

    def _new(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = ConsumerMember(member_id, instance_id)
        self.members.add(member)
        self.members.lagging.add(member_id)
        self._rows.change(member_id)
        return member

    def _static(self, beat: Beat, *, joins: bool) -> ConsumerMember | None:
        """The static member that a heartbeat is of, in its new place if it has come back."""
        assert beat.instance_id is not None
        known = self.members.static(beat.instance_id)
        if known is None:
            if not joins:
                raise UnknownMemberIdError(f"nobody has the group.instance.id {beat.instance_id[:300]}")
            member = self.members.get(beat.member_id)
            if member is not None:
                self.members.name(member, beat.instance_id)
                self._rows.change(member.member_id)
            return member
        if not joins:
            _check_instance(known, beat)
            return known
        if known.member_id == beat.member_id:
            return known
        if known.epoch != AWAY and known.classic is None:
            raise UnreleasedInstanceIdError(
                f"the group.instance.id {beat.instance_id[:300]} is in use by the member {known.member_id[:300]}"
            )
        logger.info("group %s: static member %s is back as %s", self.group_id, beat.instance_id, beat.member_id)
        other = self.members.get(beat.member_id)
        if other is not None:  # it was in the group as another member, and is that one no more
            self.members.remove(other)
            self._forget(other.member_id)
            self._bump(f"{beat.member_id} is another member")
        return self._replace(known, beat.member_id)

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take over what a member says of itself; whether it reads something else."""
        before = member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, member.classic
        if member.classic is not None:
            self._forget(member.member_id)  # what is expected of members of the classic protocol
            member.classic = None
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms != -1:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.assignor is not None and beat.assignor != member.assignor:
            self.members.prefer(member, beat.assignor, member.assignor)
            self._rows.change(member.member_id)
        if (member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, None) != before:
            self._rows.change(member.member_id)
            self.members.measure(member)
        present = member.subscription
        wanted = MemberSubscription(
            present.topics if beat.topics is None else beat.topics,
            present.pattern if beat.pattern is None else beat.pattern,
        )
        if wanted == present:
            return False
        self.members.subscribe(member, wanted)
        self._rows.change(member.member_id)
        return True

    def _leave(self, beat: Beat, token: Token, now: float) -> list[Action]:
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            member = self.members.static(beat.instance_id)
            if member is not None:
                _check_instance(member, beat)
        if member is None:
            raise UnknownMemberIdError(f"{(beat.instance_id or beat.member_id)[:300]} is not a member of the group")
        actions: list[Action] = []
        if beat.epoch == AWAY:
            logger.info("group %s: static member %s leaves for now", self.group_id, beat.instance_id)
            self._leave_for_now(member)
        else:
            logger.info("group %s: %s leaves", self.group_id, member.member_id)
            actions = self._remove(member, now)
        left = Reply(token, BeatResult(ErrorCode.NONE, member.member_id, beat.epoch))
        if self.state is ConsumerGroupState.DEAD:
            return [*actions, left]  # those who stay are a group of another type
        self._rows.answer(left)
        return actions + self._settle()

    def expel(self, member_id: str, instance_id: str | None, now: float) -> tuple[ErrorCode, list[Action]]:
        """An administrator removes a member, a static one by its `group.instance.id`: LeaveGroup."""
        member = self.members.get(member_id)
        if instance_id is not None:
            member = self.members.static(instance_id)
            if member is not None and member_id and member.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID, []
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        logger.info("group %s: %s is removed", self.group_id, member.member_id)
        return ErrorCode.NONE, self._remove(member, now) + self._settle()

    # Offsets

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
        """Whether a member may commit offsets now.

        One that was sent before the member came to another epoch is taken if the member has had the partitions for as
        long (KIP-1251).
        """
        if self.state is ConsumerGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not len(self.members):
            return ErrorCode.NONE  # a client that manages its partitions itself, or an administrator
        if transactional and generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE  # a producer that does not know of groups' members
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        old = version is not None and version < _WITH_MEMBER_EPOCHS
        if old and member.classic is None and not transactional:
            return ErrorCode.UNSUPPORTED_VERSION
        classic = member.classic is not None
        stale = ErrorCode.ILLEGAL_GENERATION if transactional or classic else ErrorCode.STALE_MEMBER_EPOCH
        if generation == member.epoch:
            return ErrorCode.NONE
        if generation > member.epoch or generation < 0 or commit is None:
            return stale
        for record, partition, committed in commit.items():
            since = _since(member, record.topic_id, partition.partition)
            if committed is not None and (since is None or generation < since):
                return stale
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for committed offsets: who names none always may."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """Offsets of the topics that members read may not be deleted."""
        yield from ()
        return ErrorCode.NONE, self._read_of(asked)

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        """When its offsets may be forgotten: counted from each commit, unless a member reads the topic."""
        yield from ()
        return Expiry(retention_ms, None, self._read_of(asked))

    def _read_of(self, asked: AskedTopics) -> frozenset[str]:
        return frozenset(name for name in asked.names if self.members.reads_topic(name))


_WITH_MEMBER_EPOCHS: Final = 9
"""OffsetCommit knows of member epochs from this version on."""


def _refuse(token: Token, error: ErrorCode, message: str | None) -> Reply:
    return Reply(token, BeatResult(error, message=message))


def _since(member: ConsumerMember, topic_id: bytes, number: int) -> int | None:
    """The epoch in which a member got a partition that it has, or was told to give up."""
    for held in (member.assigned, member.revoking):
        since = held.get(topic_id, {}).get(number)
        if since is not None:
            return since
    return None


def _check_instance(member: ConsumerMember, beat: Beat) -> None:
    if member.member_id != beat.member_id:
        raise FencedInstanceIdError(
            f"the group.instance.id {(beat.instance_id or '')[:300]} is that of the member {member.member_id[:300]}"
        )


def check_epoch(member: ConsumerMember, beat: Beat) -> None:
    """Whether an epoch is the member's; the one before is if the answer with the present one may have been lost."""
    if beat.epoch == member.epoch:
        return
    if beat.epoch > member.epoch:
        raise FencedMemberEpochError(
            f"the member's epoch {beat.epoch} is greater than the {member.epoch} that the coordinator knows: "
            "it has to give up all its partitions and to join again"
        )
    if beat.epoch != member.previous_epoch or not _has_all(member, beat.owned):
        raise FencedMemberEpochError(
            f"the member's epoch {beat.epoch} is less than the {member.epoch} that the coordinator knows: "
            "it has to give up all its partitions and to join again"
        )


def _has_all(member: ConsumerMember, owned: Owned | None) -> bool:
    """Whether all that a member says it has was assigned to it."""
    if owned is None:
        return False
    return all(numbers <= member.assigned.get(topic, {}).keys() for topic, numbers in owned.items())
