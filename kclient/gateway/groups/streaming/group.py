"""The state machine of one streams group (KIP-1071): takes its requests, step by step as Kafka's coordinator.

It is told what happened and the time, in seconds on a monotonic clock, and returns what is to be done: replies, rows to
be stored, targets to be worked out. It never waits, reads no clock and does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import (
    ErrorCode,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    StreamsInvalidTopologyError,
    UnknownMemberIdError,
)
from kclient.gateway.groups.consumers.reading import TopicsRead
from kclient.gateway.groups.events import Action, GroupSettings, Reply, Token
from kclient.gateway.groups.offsets import Expiry
from kclient.gateway.groups.progress import WaitingMember
from kclient.gateway.groups.streaming.configuring import Configured, check_tasks, configure, configure_steps
from kclient.gateway.groups.streaming.endpoints import Endpoints
from kclient.gateway.groups.streaming.member import JOINING, StreamsMember
from kclient.gateway.groups.streaming.progress import StreamsProgress
from kclient.gateway.groups.streaming.reconciling import has_all
from kclient.gateway.groups.streaming.states import StreamsGroupState
from kclient.gateway.groups.streams_beats import BeatStatus, StatusCode, StreamsBeat, StreamsBeatResult

if TYPE_CHECKING:
    from kclient.gateway.groups.consumers.reading import CoordinatedTopics
    from kclient.gateway.groups.group import AskedTopics
    from kclient.gateway.groups.offsets import OffsetCommit
    from kclient.gateway.groups.streaming.member import HeldTasks
    from kclient.gateway.rows.streams_topology import Topology

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_WITH_MEMBER_EPOCHS: Final = 9
"""OffsetCommit knows of member epochs from this version on."""
_AT_ONCE: Final = 64
"""Names that are looked up before others may have their turn."""
_UNREADY: Final = Configured(-1, {}, {})


class StreamsGroup(StreamsProgress):
    """One streams group: takes its requests.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        self._read = TopicsRead()
        """The topics that the topology needs, as far as they are there."""
        self._endpoints = Endpoints()

    # Heartbeats

    def heartbeat(
        self, beat: StreamsBeat, token: Token, topics: CoordinatedTopics, now: float, looked: Looked | None = None
    ) -> list[Action]:
        """A StreamsGroupHeartbeat request; it is answered at once or when something is stored.

        Args:
            beat: The request.
            token: Stands for it.
            topics: The topics that there are.
            now: The time.
            looked: What `look` has found out before, if it has.

        Raises:
            FencedMemberEpochError: The member's epoch is not its own: it joins anew.
            GroupMaxSizeReachedError: There is no room for a member more.
            InvalidRequestError: The group has another topology, or the member says that it has tasks which are none.
            StreamsInvalidTopologyError: Nothing follows from the topology.
            UnknownMemberIdError: It is no member.
        """
        if self.state is StreamsGroupState.DEAD:
            return [Reply(token, StreamsBeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
        if beat.epoch < JOINING:
            return self._leave(beat, token, now)
        known, topology = self.check(beat, topics, looked)
        self._have(topology)  # nothing is refused from here on
        first = not len(self.members)
        member = self._entering(beat) if known is None else known
        behind = beat.epoch != member.epoch
        before = member.assigned
        self._note_changes(member, changed=self._update(member, beat) or known is None)
        if first:
            self._await_others(now)
        self._heard(member, now)
        if beat.shutdown:
            self._shut_down(member.member_id)
        respond = partial(self._answer, beat, token, before, behind)
        waiting = WaitingMember(member.member_id, respond, partial(_refuse, token))
        return self._respond_or_wait(waiting, member, now) + self._settle()

    def knows(self, topics: CoordinatedTopics) -> bool:
        """Whether there is nothing to `look` for."""
        return self.topology is not None and self.configured is not None and topics.changes == self._read.at

    def check(
        self, beat: StreamsBeat, topics: CoordinatedTopics, looked: Looked | None = None
    ) -> tuple[StreamsMember | None, Topology]:
        """Whether a heartbeat of somebody who does not leave is taken; raises as `heartbeat`.

        Args:
            beat: The request.
            topics: The topics that there are.
            looked: What `look` has found out before, if it has.

        Returns:
            The member, which is None for a new one, and the topology that the group is to have.
        """
        known = self._known(beat)
        topology = self._topology_of(beat)
        configured = self._look(topology, topics, looked)
        if configured.ready:
            for tasks in beat.owned or ():
                check_tasks(configured, tasks)
        return known, topology

    def _answer(
        self, beat: StreamsBeat, token: Token, before: HeldTasks, behind: bool, member: StreamsMember, now: float
    ) -> list[Action]:
        """Take a member a step further, and tell it.

        If it has got something else while this waited, what it said before that is no word on it, and the next answer
        tells it all of that once more: this one may come to nobody. Who does not know its epoch has lost an answer.
        """
        late = member.assigned is not before
        self._advance_member(member, None if late else beat.owned, now)
        tasks = None
        if beat.epoch == JOINING or behind or late or member.untold or member.assigned != before:
            tasks = member.assigned.sets
            member.untold = late
            self._endpoints.forget(member.member_id)
            if member.endpoint is not None:
                self._endpoints.epoch += 1
        placed = None
        if self._endpoints.epoch != beat.endpoints_epoch:
            placed = self._endpoints.all(self.members, self.configured or _UNREADY, self._count_of)
        result = StreamsBeatResult(
            ErrorCode.NONE,
            member.member_id,
            member.epoch,
            tasks,
            tuple(self._status(member)),
            () if self.configured is None else self.configured.missing,
            self._endpoints.epoch,
            placed,
        )
        return self._when_stored(member, Reply(token, result))

    def _status(self, member: StreamsMember) -> Iterable[BeatStatus]:
        """What a member has to know beside its tasks."""
        if self.topology is not None and member.topology_epoch < self.topology.epoch:
            yield BeatStatus(
                StatusCode.STALE_TOPOLOGY,
                f"the group's topology has epoch {self.topology.epoch}, that of the member {member.topology_epoch}",
            )
        if self._awaits_others:
            yield BeatStatus(
                StatusCode.ASSIGNMENT_DELAYED,
                "the group waits for more members (group.streams.initial.rebalance.delay.ms)",
            )
        elif self._too_early:
            yield BeatStatus(
                StatusCode.ASSIGNMENT_DELAYED, "tasks were given out just now (group.streams.assignment.interval.ms)"
            )
        if self.configured is not None and self.configured.fault is not None:
            yield self.configured.fault
        if self._shutdown is not None:
            yield BeatStatus(
                StatusCode.SHUTDOWN_APPLICATION, f"the member {self._shutdown} has failed, and wants all members to end"
            )

    def _known(self, beat: StreamsBeat) -> StreamsMember | None:
        """The member that a heartbeat is of; None for a new one."""
        known = self.members.get(beat.member_id)
        if beat.epoch == JOINING:
            if len(self.members) >= self.settings.group_streams_max_size:
                raise GroupMaxSizeReachedError(
                    f"the group has {len(self.members)} members, as many as group.streams.max.size allows"
                )
            return known
        if known is None:
            raise UnknownMemberIdError(f"{beat.member_id[:300]} is not a member of the group")
        lost = beat.epoch == known.previous_epoch and has_all(known.assigned, beat.owned)
        if beat.epoch > known.epoch or (beat.epoch < known.epoch and not lost):
            raise FencedMemberEpochError(
                f"the member's epoch {beat.epoch} is not the {known.epoch} that the coordinator knows: it has to give "
                "up all its tasks and to join again"
            )
        return known

    def _topology_of(self, beat: StreamsBeat) -> Topology:
        """The topology that the group has, or has from now on."""
        if self.topology is None:
            if beat.topology is None:
                raise InvalidRequestError("the group has no topology yet: who joins brings it along")
            return beat.topology
        if beat.topology is not None and beat.topology.epoch >= self.topology.epoch and beat.topology != self.topology:
            raise InvalidRequestError(
                "the group has another topology: it begins with a new one when it has been deleted, or use another "
                "application.id"
            )
        return self.topology

    def _look(self, topology: Topology, topics: CoordinatedTopics, looked: Looked | None) -> Configured:
        """What follows from the topology: looked at again if the topics that it needs may have changed."""
        known = None if self.topology is None else self.configured
        if known is None:
            self._read = TopicsRead()
        elif topics.changes == self._read.at:
            return known
        if looked is not None and looked.topology is topology and looked.read.at == topics.changes:
            same = known is not None and looked.read.told() == self._read.told()
            self._read = looked.read
            if known is not None and same:
                return known
            self.configured = None
            self.configured = looked.told()
            self._endpoints.forget_all()
            return self.configured
        read = self._read
        changed = None if read.at < 0 else topics.changed_since(read.at)
        names = topology.required if changed is None else topology.required & changed
        if not read.update(names, topics, topics.changes) and known is not None:
            return known
        self.configured = None  # unless something follows
        self.configured = configure(topology, self._count_of)
        self._endpoints.forget_all()
        return self.configured

    def _count_of(self, name: str) -> int | None:
        """How many partitions a topic has that the topology needs."""
        return _count_in(self._read, name)

    def _entering(self, beat: StreamsBeat) -> StreamsMember:
        logger.info("group %s: %s joins", self.group_id, beat.member_id)
        member = StreamsMember(beat.member_id)
        self.members.add(member)
        self.members.lagging.add(beat.member_id)
        return member

    def _update(self, member: StreamsMember, beat: StreamsBeat) -> bool:
        """Take over what a member says of itself; whether that is new."""
        before, process_id = member.told, member.process_id
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms != -1:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.topology is not None:
            member.topology_epoch = beat.topology.epoch
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.process_id is not None:
            member.process_id = beat.process_id
        if beat.tags is not None:
            member.tags = tuple(sorted(beat.tags))
        if beat.endpoint is not None:
            member.endpoint = beat.endpoint
        if member.told == before:
            return False
        self.members.hold(member, process_id, member.assigned, member.revoking)
        self._endpoints.forget(member.member_id)
        return True

    def _note_changes(self, member: StreamsMember, *, changed: bool) -> None:
        """Have another target, if something has changed that it depends on."""
        if changed:
            self._rows.change(member.member_id)
        assert self.topology is not None
        assert self.configured is not None
        digest = self._read.told().hex()
        validated = self.topology.epoch if self.configured.ready else -1
        standbys = self.settings.group_streams_num_standby_replicas
        present = digest, validated, standbys
        if changed or present != (self._digest, self._validated, self._standbys):
            self._digest, self._validated, self._standbys = present
            self._bump(f"{member.member_id}, its topics or settings")

    def _shut_down(self, member_id: str) -> None:
        if self._shutdown is None:
            logger.info("group %s: %s wants all members to end", self.group_id, member_id)
            self._shutdown = member_id

    def _leave(self, beat: StreamsBeat, token: Token, now: float) -> list[Action]:
        member = self.members.get(beat.member_id)
        if member is None:
            raise UnknownMemberIdError(f"{beat.member_id[:300]} is not a member of the group")
        if beat.shutdown:
            self._shut_down(beat.member_id)
        logger.info("group %s: %s leaves", self.group_id, member.member_id)
        actions = self._remove(member, now)
        self._rows.answer(Reply(token, StreamsBeatResult(ErrorCode.NONE, member.member_id, beat.epoch)))
        return actions + self._settle()

    def _remove(self, member: StreamsMember, now: float) -> list[Action]:
        self._endpoints.forget(member.member_id)
        return super()._remove(member, now)

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

        One that was sent before the member came to another epoch is taken if the member has had the tasks for as long
        (KIP-1251).
        """
        if self.state is StreamsGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not len(self.members):
            return ErrorCode.NONE  # an administrator
        if transactional and generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE  # a producer that does not know of groups' members
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version is not None and version < _WITH_MEMBER_EPOCHS and not transactional:
            return ErrorCode.UNSUPPORTED_VERSION
        stale = ErrorCode.ILLEGAL_GENERATION if transactional else ErrorCode.STALE_MEMBER_EPOCH
        if generation == member.epoch:
            return ErrorCode.NONE
        if generation > member.epoch or generation < 0 or commit is None or self.topology is None:
            return stale
        reader_of = self.topology.reader_of
        for record, partition, committed in commit.items():
            since = _since(member, reader_of.get(record.name, ""), partition.partition)
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
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """Offsets of the topics that tasks read may not be deleted."""
        yield from ()
        return ErrorCode.NONE, self._read_of(asked)

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        """When its offsets may be forgotten: counted from each commit, unless tasks read the topic."""
        yield from ()
        return Expiry(retention_ms, None, self._read_of(asked))

    def _read_of(self, asked: AskedTopics) -> frozenset[str]:
        if self.topology is None or not len(self.members):
            return frozenset()
        return asked.names & self.topology.reader_of.keys()


class Looked(NamedTuple):
    """What was found out of a topology before a heartbeat is taken: it counts as long as no topic has changed."""

    topology: Topology
    read: TopicsRead
    outcome: Configured | StreamsInvalidTopologyError

    def told(self) -> Configured:
        """What follows from it. Raises `StreamsInvalidTopologyError` if nothing does."""
        if isinstance(self.outcome, Configured):
            return self.outcome
        raise StreamsInvalidTopologyError(str(self.outcome))


def look(topology: Topology, topics: CoordinatedTopics) -> Generator[None, None, Looked]:
    """Find out in steps what follows from a topology, which else a heartbeat does in one go.

    Args:
        topology: It.
        topics: The topics that there are.
    """
    read, at, names = TopicsRead(), topics.changes, iter(topology.required)
    while some := list(islice(names, _AT_ONCE)):
        read.update(some, topics, at)
        yield
    read.at = at
    try:
        outcome: Configured | StreamsInvalidTopologyError
        outcome = yield from configure_steps(topology, partial(_count_in, read))
    except StreamsInvalidTopologyError as error:
        outcome = error
    return Looked(topology, read, outcome)


def _count_in(read: TopicsRead, name: str) -> int | None:
    """How many partitions a topic has that is read."""
    topic_id = read.ids.get(name)
    return None if topic_id is None else read.counts[topic_id]


def _refuse(token: Token, error: ErrorCode, message: str | None) -> Reply:
    return Reply(token, StreamsBeatResult(error, message=message))


def _since(member: StreamsMember, subtopology_id: str, number: int) -> int | None:
    """The epoch in which a member got an active task that it has, or was told to give up."""
    for held in (member.assigned, member.revoking):
        since = held.active.get(subtopology_id, {}).get(number)
        if since is not None:
            return since
    return None
