"""A consumer group some of whose members speak the classic protocol: a live group that is migrated, member by member.

A member of the classic protocol joins again for each step: its JoinGroup says what it still has, SyncGroup tells it
what it may read, and a heartbeat that is answered with REBALANCE_IN_PROGRESS has it join for the next step. Its
generation is its epoch. When the last member of the new protocol has gone, the group is a classic one again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kclient.errors import ErrorCode, ProtocolError
from kclient.gateway.groups.consumers.group import MOST_TOPICS, AssignedGroup
from kclient.gateway.groups.consumers.member import JOINING, ClassicSide, ConsumerMember, Held, MemberSubscription
from kclient.gateway.groups.consumers.progress import JOIN, SYNC
from kclient.gateway.groups.consumers.states import ConsumerGroupState, ReconcilingState
from kclient.gateway.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    Become,
    Join,
    JoinResult,
    Reply,
    Sync,
    SyncResult,
    Token,
)
from kclient.gateway.groups.group import CLASSIC
from kclient.gateway.groups.progress import WaitingMember
from kclient.gateway.rows.groups import GroupSnapshot, MemberSnapshot
from kclient.protocol.embedded import decode_embedded, encode_embedded
from kclient.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kclient.protocol.messages.consumer_protocol import ConsumerProtocolAssignmentTopicPartition

if TYPE_CHECKING:
    from kclient.gateway.groups.assignors.model import Partitions
    from kclient.gateway.groups.classic import ClassicGroup
    from kclient.gateway.groups.consumers.reading import CoordinatedTopics

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_CONSUMER: Final = "consumer"


class MixedGroup(AssignedGroup):
    """One group whose partitions the coordinator assigns, with members of both protocols.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    # From a classic group

    def take_over(self, group: ClassicGroup, topics: CoordinatedTopics, now: float) -> None:
        """Begin with the members of a classic group: each has what its leader assigned to it.

        Args:
            group: The classic group; its members are told to join again where they wait.
            topics: The topics that there are.
            now: The time.

        Raises:
            ProtocolError: What its members say, or were assigned, cannot be read.
            ValueError: Its leader has told them more than partitions, which nobody would.
        """
        epoch = group.generation
        self._be_at(epoch, epoch)  # its members have reached the target
        for known in group.members:
            if known.is_new:
                continue  # it does not know its id yet, and joins anew
            metadata = known.metadata(group.protocol_name or known.protocols[0][0])
            subscription = decode_embedded(ConsumerProtocolSubscription, metadata)
            member = ConsumerMember(known.member_id, known.instance_id)
            member.client_id, member.client_host = known.client_id, known.client_host
            member.rack_id, member.rebalance_timeout_ms = subscription.rack_id, known.rebalance_timeout_ms
            member.classic = ClassicSide(known.session_timeout_ms, known.protocols)
            member.subscription = MemberSubscription(tuple(sorted(set(subscription.topics))))
            member.epoch = member.previous_epoch = epoch
            if known.assignment:
                assignment = decode_embedded(ConsumerProtocolAssignment, known.assignment)
                if assignment.user_data:
                    raise ValueError("its assignor tells members more than their partitions")
                told = _by_id(assignment.assigned_partitions, topics)
                member.target = self._free_of(told)  # its leader may give one to several members
                member.assigned = {
                    topic: dict.fromkeys(sorted(numbers), epoch) for topic, numbers in member.target.items()
                }
            self.members.add(member)
            self._rows.change(member.member_id)
            self._heard(member, now)
            self._note_lag(member)
        self._rows.change_group()
        self.members.refresh(topics)

    def _free_of(self, told: Partitions) -> Partitions:
        """Those partitions that nobody has."""
        free = {
            topic: frozenset(n for n in numbers if self.members.is_free(topic, n)) for topic, numbers in told.items()
        }
        return {topic: numbers for topic, numbers in free.items() if numbers}

    # To a classic group

    def _converted(self, now: float) -> list[Action]:
        if not len(self.members) or any(member.classic is None for member in self.members):
            return []
        allowed = self.settings.group_consumer_migration_policy in ("downgrade", "bidirectional")
        if not allowed or len(self.members) > self.settings.group_max_size:
            return []
        snapshot, gone = self._as_classic(), self._rows.all_keys()
        logger.info("group %s: all members speak the classic protocol, it is a classic group", self.group_id)
        actions = self.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        return [*actions, Become(CLASSIC, snapshot, gone, "the last member of the consumer protocol has gone")]

    def _as_classic(self) -> GroupSnapshot:
        members = list(self.members)
        sides = [member.classic for member in members if member.classic is not None]
        names = [{name for name, _ in side.protocols} for side in sides]
        shared = set.intersection(*names)
        protocol = next((name for name, _ in sides[0].protocols if name in shared), sides[0].protocols[0][0])
        return GroupSnapshot(
            self.group_id,
            self.group_epoch,
            _CONSUMER,
            protocol,
            members[0].member_id,
            tuple(
                MemberSnapshot(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    side.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    side.protocols,
                    self._assignment(member, side),
                )
                for member, side in zip(members, sides, strict=True)
            ),
        )

    # JoinGroup

    def join(self, join: Join, token: Token, topics: CoordinatedTopics, now: float) -> list[Action]:
        """A JoinGroup request; it is answered at once, or when something is stored.

        Args:
            join: The request.
            token: Stands for it.
            topics: The topics that there are.
            now: The time.
        """
        error, subscription = self._check_join(join)
        if error or subscription is None:
            return [Reply(token, JoinResult(error, join.member_id))]
        member_id = join.member_id or str(uuid.uuid4())
        if join.member_id == UNKNOWN_MEMBER and join.require_member_id:
            return [Reply(token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
        member = self.members.get(member_id)
        if join.instance_id is not None:
            member = self.members.static(join.instance_id)
            if member is not None and member.member_id != member_id:
                member = self._replace(member, member_id)
        if member is None:
            logger.info("group %s: %s joins with the classic protocol", self.group_id, member_id)
            member = self._new(member_id, join.instance_id)
        changed = self._update_classic(member, join, subscription)
        self._look(member, topics, changed=changed)
        self._heard(member, now)
        self._timers.cancel((JOIN, member_id))
        self._timers.schedule((SYNC, member_id), now + max(join.rebalance_timeout_ms, 0) / 1000)
        owned = _by_id(subscription.owned_partitions, topics)
        respond = partial(self._answer_join, owned, member.assigned, token)
        waiting = WaitingMember(member_id, respond, partial(_refuse_join, token, member_id))
        return self._respond_or_wait(waiting, member, now) + self._settle()

    def _check_join(self, join: Join) -> tuple[ErrorCode, ConsumerProtocolSubscription | None]:
        """Whether somebody may join, and what it reads."""
        if self.state is ConsumerGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        known = self.members.get(join.member_id)
        if known is None and len(self.members) >= self.settings.group_consumer_max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, None
        if self.settings.group_consumer_migration_policy == "disabled":
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        if join.protocol_type != _CONSUMER or not self._shares_protocol(join):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        if join.instance_id is not None and join.member_id != UNKNOWN_MEMBER:
            static = self.members.static(join.instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, None
            if static.member_id != join.member_id:
                return ErrorCode.FENCED_INSTANCE_ID, None
        try:
            subscription = decode_embedded(ConsumerProtocolSubscription, join.protocols[0][1])
        except ProtocolError:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        if self.members.count_names(subscription.topics) > 2 * MOST_TOPICS:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, None
        return ErrorCode.NONE, subscription

    def _shares_protocol(self, join: Join) -> bool:
        """Whether all members of the classic protocol support one that this one does: they may be alone some day."""
        mine = {name for name, _ in join.protocols}
        for member in self.members:
            if member.classic is not None and member.member_id != join.member_id:
                mine &= {name for name, _ in member.classic.protocols}
        return bool(mine)

    def _update_classic(self, member: ConsumerMember, join: Join, said: ConsumerProtocolSubscription) -> bool:
        """Take over what a member says of itself; whether it reads something else."""
        side = ClassicSide(join.session_timeout_ms, join.protocols)
        before = member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, member.classic
        member.rack_id = said.rack_id or member.rack_id
        member.rebalance_timeout_ms, member.classic = join.rebalance_timeout_ms, side
        member.client_id, member.client_host = join.client_id, join.client_host
        if (member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, side) != before:
            self._rows.change(member.member_id)
            self.members.measure(member)
        wanted = MemberSubscription(tuple(sorted(set(said.topics))))
        if wanted == member.subscription:
            return False
        self.members.subscribe(member, wanted)
        self._rows.change(member.member_id)
        return True

    def _answer_join(
        self, owned: Partitions, before: Held, token: Token, member: ConsumerMember, now: float
    ) -> list[Action]:
        self._advance_member(member, owned if member.assigned is before else None, now)
        protocol = None if member.classic is None else member.classic.protocols[0][0]
        result = JoinResult(ErrorCode.NONE, member.member_id, member.epoch, _CONSUMER, protocol)
        return self._when_stored(member, Reply(token, result))

    # SyncGroup, Heartbeat

    def sync(self, sync: Sync, token: Token, now: float) -> list[Action]:
        """A SyncGroup request: tells a member of the classic protocol what it may read."""
        error, member = self._classic(sync.member_id, sync.instance_id, sync.generation)
        if not error and member is not None and member.classic is not None:
            protocol = member.classic.protocols[0][0]
            if sync.protocol_type not in (None, _CONSUMER) or sync.protocol_name not in (None, protocol):
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            elif self._is_behind(member) or self._seen < 0:  # or the names of its topics are not known yet
                self._expect(member, now)
                error = ErrorCode.REBALANCE_IN_PROGRESS
            else:
                self._timers.cancel((SYNC, member.member_id))
                self._heard(member, now)
                assignment = self._assignment(member, member.classic)
                result = SyncResult(ErrorCode.NONE, assignment, sync.protocol_type, sync.protocol_name)
                return [*self._when_stored(member, Reply(token, result)), *self._converted(now), *self._settle()]
        return [Reply(token, SyncResult(error))]

    def heartbeat_classic(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """A Heartbeat request; returns the error to answer with: REBALANCE_IN_PROGRESS where it is to join again."""
        error, member = self._classic(member_id, instance_id, generation)
        if error or member is None:
            return error
        self._heard(member, now)
        if (
            member.epoch < self.group_epoch
            or member.state is ReconcilingState.UNREVOKED_PARTITIONS
            or (member.state is ReconcilingState.UNRELEASED_PARTITIONS and not self._waits(member))
        ):
            self._expect(member, now)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _is_behind(self, member: ConsumerMember) -> bool:
        """Whether it has to join again before it gets anything; who gives partitions up does that first."""
        return self.group_epoch > member.epoch and member.state is not ReconcilingState.UNREVOKED_PARTITIONS

    def _waits(self, member: ConsumerMember) -> bool:
        """Whether others still have something that a member is to have."""
        return any(
            number not in member.assigned.get(topic, ()) and not self.members.is_free(topic, number)
            for topic, numbers in member.target.items()
            for number in numbers
        )

    def _expect(self, member: ConsumerMember, now: float) -> None:
        """A member was told to join again."""
        key = JOIN, member.member_id
        if key not in self._timers:
            self._timers.schedule(key, now + max(member.rebalance_timeout_ms, 0) / 1000)

    def _classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ErrorCode, ConsumerMember | None]:
        """The member of the classic protocol that a request is of."""
        if self.state is ConsumerGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        member = self.members.get(member_id) if instance_id is None else self.members.static(instance_id)
        if member is None or member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        if member.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID, None
        if generation != member.epoch or member.epoch == JOINING:
            return ErrorCode.ILLEGAL_GENERATION, None
        return ErrorCode.NONE, member

    def _assignment(self, member: ConsumerMember, side: ClassicSide) -> bytes:
        """What a member may read, as it is told by SyncGroup: in the version in which it has told what it reads."""
        names = self.members.names_read(member)
        version = int.from_bytes(side.protocols[0][1][:2], "big")
        assignment = ConsumerProtocolAssignment(assigned_partitions=_named(member.assigned, names))
        return encode_embedded(assignment, min(version, ConsumerProtocolAssignment.VERSIONS.high))


def _named(held: Held, names: Mapping[bytes, str]) -> list[ConsumerProtocolAssignmentTopicPartition]:
    return [
        ConsumerProtocolAssignmentTopicPartition(topic=names[topic], partitions=sorted(numbers))
        for topic, numbers in held.items()
        if topic in names
    ]


class _Named(Protocol):
    """Partitions of a topic by its name, as members are told them and tell of them."""

    topic: str
    partitions: list[int]


def _by_id(told: Iterable[_Named], topics: CoordinatedTopics) -> Partitions:
    """Partitions of topics that are there; a topic may be named in several places."""
    found: dict[bytes, set[int]] = {}
    for each in told:
        record = topics.get(each.topic)
        there = () if record is None else [n for n in each.partitions if 0 <= n < record.partitions]
        if record is not None and there:
            found.setdefault(record.topic_id, set()).update(there)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


def _refuse_join(token: Token, member_id: str, error: ErrorCode, _message: str | None) -> Reply:
    return Reply(token, JoinResult(error, member_id))
