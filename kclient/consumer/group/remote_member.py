"""A member whose partitions the broker assigns (KIP-848), as a state machine free of I/O and clocks.

One request, ConsumerGroupHeartbeat, joins, stays and leaves, tells what is subscribed and read, and brings what is to
be read. The member chooses its own id (KIP-1082). What the broker assigns is carried out by the caller of `poll`, as a
step: first it gives up what others get, then it takes over what it got, and the next heartbeat says that it is done.
"""

from __future__ import annotations

import base64
import logging
import uuid
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.consumer.group.assignors import RebalanceProtocol
from kclient.consumer.group.beating import Beating
from kclient.consumer.group.coordinator_lookup import COORDINATOR_GONE
from kclient.consumer.group.membership import Membership
from kclient.consumer.group.model import (
    Complete,
    ConsumerGroupMetadata,
    GroupRequest,
    MemberSettings,
    Prepare,
    Step,
    Todo,
)
from kclient.consumer.group.refusals import (
    instance_taken_over,
    protocol_not_served,
    remote_membership_lost,
    remotely_refused,
    too_late,
)
from kclient.consumer.group.remote_requests import JOINS, LEAVES, RESTS, Interest, RemoteRequests, Report
from kclient.consumer.group.remote_states import REMOTE_TABLE, RemoteEvent, RemoteState
from kclient.consumer.group.target import AssignmentTarget
from kclient.consumer.group.timers import RemoteHeartbeats
from kclient.errors import (
    ClosedError,
    ErrorCode,
    KafkaError,
    StaleMemberEpochError,
    UnsupportedVersionError,
    error_for,
)
from kclient.state_tables import next_state
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kclient.consumer.group.model import RacksOf

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")

_MEMBERSHIP_GONE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_COMMIT_REFUSED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND})
_ABSENT = frozenset({RemoteState.UNJOINED, RemoteState.FAILED, RemoteState.FENCED})
_SETTLED = frozenset({RemoteState.STABLE, RemoteState.RECONCILING})


class RemoteMember(Beating[Report], Membership):
    """One consumer's membership in its group, by the protocol in which the broker assigns the partitions.

    Args:
        settings: The configuration.
        member_id: Who it is, for as long as the consumer lives; by default a new one.
    """

    protocol = RebalanceProtocol.COOPERATIVE
    # declared again, since they are set here as well
    error: KafkaError | None
    metadata: ConsumerGroupMetadata
    rebalances: int

    def __init__(self, settings: MemberSettings, member_id: str | None = None) -> None:
        self._requests = RemoteRequests(settings)
        super().__init__(settings)
        self.state: RemoteState = RemoteState.UNJOINED
        self._id = member_id or new_id()
        self._wanted: Interest | None = None
        """What the user subscribed to last."""
        self._applied = Interest()
        """What the broker is told, since a poll has given up what is not of it."""
        self._target = AssignmentTarget()
        self._owned: dict[TopicPartition, bytes] = {}
        """What is read, with the topics' ids."""
        self._turn = 0
        self._complete: Complete | None = None
        self._begun = False
        """Whether the step is carried out so far that no other can take its place."""
        self._first_epoch = 0
        """The epoch in which this membership began."""
        self._told: Report | None = None
        self._heartbeat: tuple[GroupRequest, Report] | None = None
        self._heartbeats = RemoteHeartbeats(settings.retry_backoff)
        self._lingers = False
        """Whether the broker may still count on this member, though it joins."""

    # ------------------------------------------------------------------ what the user does

    def subscribe(self, topics: Iterable[str], *, by_pattern: bool = False) -> None:
        """These topics are subscribed from now on; the next poll joins, or gives up what is not of them."""
        self._want(Interest(frozenset(topics)))

    def check_remote_patterns(self) -> None:
        """Brokers evaluate patterns in this protocol; one that is too old says so when it is asked to."""

    def subscribe_remotely(self, pattern: str) -> None:
        """The topics are subscribed that match a pattern, which the broker evaluates."""
        self._want(Interest(pattern=pattern))

    def _want(self, interest: Interest) -> None:
        self._wanted = interest
        self._settle()

    def request_rejoin(self, reason: str) -> None:
        """Members cannot have this group rebalance: it is said in the log, as the Java client does."""
        logger.warning(
            "group %s: with group.protocol=consumer the broker decides when it rebalances; nothing is done (%s)",
            self.settings.group_id,
            reason,
        )

    def polled(self, now: float) -> None:
        """The user polls.

        Raises:
            KafkaError: The group refused this member, or topics; polling again tries again, unless it was fenced.
        """
        self._polls.polled(now)
        if self.error is not None:
            raise self.take_error()
        if self.state is RemoteState.UNJOINED and self._wanted is not None:
            self._go(RemoteEvent.POLLED)

    @property
    def stable(self) -> bool:
        """Whether it is a member with an assignment that has been taken over."""
        return self.state is RemoteState.STABLE and self._target.reached

    @property
    def outside(self) -> bool:
        """Whether there is no membership, and none on its way."""
        return self.state in _ABSENT

    @property
    def fenced(self) -> bool:
        """Whether another consumer took over this `group.instance.id`."""
        return self.state is RemoteState.FENCED

    def take_error(self) -> KafkaError:
        """Why the group refused this member, or topics; what comes next tries again, unless it was fenced."""
        assert self.error is not None
        error = self.error
        if self.state is not RemoteState.FENCED:
            self.error = None
        if self.state is RemoteState.FAILED:
            self._go(RemoteEvent.RAISED)
        return error

    # ------------------------------------------------------------------ steps

    def step(self) -> Step | None:
        """What the caller of `poll` has to do before it returns records."""
        if self.state is RemoteState.PREPARING:
            return Prepare(self._holding.lost, "the subscription changed" if self._present else "joining")
        return self._complete if self.state is RemoteState.RECONCILING else None

    def is_due(self, step: Step) -> bool:
        """Whether a step is still to be carried out: another may have taken its place."""
        if isinstance(step, Complete):
            return self._complete is step
        return self.state is RemoteState.PREPARING and (step.lost or not self._holding.lost)

    def prepared(self, done: Prepare, owned: Iterable[TopicPartition], now: float) -> None:
        """The step `Prepare` is done: join, or tell of the new subscription."""
        if not self.is_due(done):
            return
        kept = set(owned)
        self._holding.give_up(kept)
        self._applied = self._wanted or Interest()
        if self._present:
            self._owned = {tp: topic_id for tp, topic_id in self._owned.items() if tp in kept}
            self._go(RemoteEvent.RESUMED)
            self._settle()
        else:
            self._go(RemoteEvent.PREPARED)

    def begin(self, step: Complete) -> None:
        """Partitions are given up for a step: what the broker assigns meanwhile comes after it."""
        self._begun = self._complete is step

    def took_over(self, step: Complete) -> None:
        """What `Complete` assigns is read from now on, though the step may be broken off before it is done."""
        self._holding.take_over(step.assigned, step.generation_id)
        if self._complete is step:
            self._begun = True
        else:
            self._holding.end_membership()  # the membership ended meanwhile, and what was just taken over with it

    def tell_assignor(self, step: Complete) -> None:
        """The broker has assigned: there is nobody to be told."""

    def completed(self, done: Complete, *, gave_up: bool) -> None:
        """The step `Complete` is done; the next heartbeat says so, whatever was given up."""
        self.took_over(done)
        if self._complete is not done:
            return
        self._owned = self._target.reach()
        self._turn += 1
        self._lost_error = None
        self.rebalances += 1
        self._end_step()
        self._settle()

    def _end_step(self) -> None:
        self._complete, self._begun = None, False
        self._go(RemoteEvent.RECONCILED)

    def _settle(self) -> None:
        if self.state not in _SETTLED or self._begun:
            return
        if self._wanted != self._applied:
            self._complete = None
            self._go(RemoteEvent.SUBSCRIBED)
            return
        topics = None if self._applied.pattern is not None else self._applied.topics
        aim = self._target.aim(self._owned, topics)
        if aim is None:
            if self.state is RemoteState.RECONCILING:  # the broker has changed its mind
                self._end_step()
        elif aim.items() == self._owned.items() and self._target.reached:
            self._target.reach()
            self._turn += 1  # nothing is to be done, and that has to be told
            if self.state is RemoteState.RECONCILING:
                self._end_step()
        elif self._complete is None or self._target.moved:
            self._target.moved = False
            assignor = self.settings.remote_assignor or ""
            self._complete = Complete(tuple(sorted(aim)), None, self.metadata.generation_id, assignor)
            if self.state is RemoteState.STABLE:
                self._go(RemoteEvent.TARGETED)

    # ------------------------------------------------------------------ leaving

    def leave(self, reason: str, tell: bool | None = None) -> None:
        """Leave the group for good.

        Args:
            reason: Why, for the log.
            tell: Whether the partitions go to others at once. None: yes, unless it is a static member, whose partitions
                wait for it until the session is over. False says nothing of a member that is not static.
        """
        self._wanted = None
        self._depart(reason, tell)
        self._holding.give_up()
        self._lost_error = self._was = None

    def _depart(self, reason: str, tell: bool | None = None) -> None:
        self._say_farewell(reason, tell)
        self._forget_member()
        if self.state not in {RemoteState.UNJOINED, RemoteState.FENCED}:
            self.error = None
            self._go(RemoteEvent.LEFT)

    def _say_farewell(self, reason: str, tell: bool | None = None) -> None:
        """Whom the broker may count on tells it that it goes."""
        static = self.settings.group_instance_id is not None
        joined = self._present or self._heartbeat is not None
        if self.coordinator is None:
            self._lingers = self._lingers or joined
        elif joined and (static or tell is not False):
            epoch = RESTS if static and not tell else LEAVES
            self._leave.want(self._requests.leave(self.coordinator, self._id, epoch))
            logger.debug("group %s: leaving: %s", self.settings.group_id, reason)

    # ------------------------------------------------------------------ who it is

    @property
    def _present(self) -> bool:
        """Whether the broker counts on this member, as far as it has said."""
        return self.metadata.generation_id >= 0

    def renewed(self, identity: ConsumerGroupMetadata, partitions: Collection[TopicPartition]) -> ConsumerGroupMetadata:
        """As whom to commit what was asked for as `identity`: with the epoch of now, while the partitions are kept."""
        return self.metadata if self._keeps(identity, partitions) else identity

    def _keeps(self, identity: ConsumerGroupMetadata, partitions: Collection[TopicPartition]) -> bool:
        """Whether this is still the membership of then, and the partitions have been read all the time."""
        return (
            self._present
            and identity.member_id == self.metadata.member_id
            and self._first_epoch <= identity.generation_id <= self.metadata.generation_id
            and self._holding.kept_since(partitions, identity.generation_id)
        )

    def fetch_identity(self) -> ConsumerGroupMetadata | None:
        """The member of now: the broker refuses who was fenced, so that nobody begins where others read."""
        return self.metadata if self._present else None

    def commit_refused(
        self,
        code: int,
        identity: ConsumerGroupMetadata,
        epoch: int,
        now: float,
        partitions: Collection[TopicPartition] = (),
    ) -> KafkaError:
        """A commit was answered with an error code: what to raise (retriable or not), with the state adjusted."""
        present = self._present and identity == self.metadata
        if code in COORDINATOR_GONE:
            self.lose_coordinator(f"a commit was answered with {ErrorCode(code).name}", now, epoch)
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            if self._keeps(identity, partitions):  # the answer to a heartbeat is on its way, with the epoch of now
                return StaleMemberEpochError(retriable=True)
            return too_late(self.settings, self._lost_error or error_for(code))
        elif code in _COMMIT_REFUSED:
            if present and self.state not in _ABSENT:
                self._lose_membership(code)
            return too_late(self.settings, self._lost_error or error_for(code))
        elif code == ErrorCode.FENCED_INSTANCE_ID and identity.generation_id >= 0:
            return self._fence() if present else instance_taken_over(self.settings)
        return error_for(code)

    # ------------------------------------------------------------------ what the cluster does

    @property
    def group_topics(self) -> set[str]:
        """None: members know nothing of each other."""
        return set()

    def update_metadata(
        self, counts: Mapping[str, int], unknown: Collection[str], now: float, racks: RacksOf | None = None
    ) -> None:
        """The broker counts the partitions itself."""

    def next(self, now: float) -> Todo:
        """Which requests to send now, and when to ask again unless something happens before."""
        self._check_poll_interval(now)
        requests: list[GroupRequest] = []
        leave = self._leave.give_out()
        if leave is not None:
            requests.append(leave)
        resolve, resolve_at = self._target.unresolved(now)
        wake_at = min(
            self._plan_heartbeat(now, requests),
            self.lookup.plan(now, requests) if self._sought or self.state not in _ABSENT else inf,
            self._poll_deadline,
            resolve_at,
        )
        return Todo(requests, wake_at, resolve=resolve)

    def _plan_heartbeat(self, now: float, requests: list[GroupRequest]) -> float:
        beating = self._present or self.state is RemoteState.JOINING
        if not beating or self.coordinator is None or self._heartbeat is not None or self._leave.pending:
            return inf  # who comes back has to have left before: it does so under the same id
        told = self._told if self._present else None
        owned = frozenset((topic_id, tp.partition) for tp, topic_id in self._owned.items())
        report = Report(self._applied, owned, self._turn)
        due = self._heartbeats.due(changed=report != told)
        if now < due:
            return due
        epoch = self.metadata.generation_id if self._present else JOINS
        request = self._requests.heartbeat(self.coordinator, self._id, epoch, report, told)
        self._sends(request, report, now)
        requests.append(request)
        return inf

    def _not_found(self, error: KafkaError | None) -> None:
        if error is not None and not error.retriable and (self._sought or self.state not in _ABSENT):
            self._fail(error)

    def _lost_coordinator(self) -> None:
        self._unanswered()

    def _unanswered(self) -> None:
        self._lingers = self._lingers or self._heartbeat is not None
        super()._unanswered()

    def _stays_counted(self) -> None:
        self._lingers = True

    def _lose(self, reason: str, now: float) -> None:
        self.lose_coordinator(reason, now)

    def _unanswerable(self, error: KafkaError) -> None:
        unserved = isinstance(error, UnsupportedVersionError) and self._applied.pattern is None
        self._fail(protocol_not_served(self.settings, error) if unserved else error)

    # ------------------------------------------------------------------ answers to heartbeats

    def _is_member(self, response: Any) -> None:
        if not self._present:
            self._first_epoch = response.member_epoch
            self._lingers = False
            self._go(RemoteEvent.JOINED)
        self._id = response.member_id or self._id
        self.metadata = replace(self.metadata, generation_id=response.member_epoch, member_id=self._id)

    def _refused(self, code: int, message: str | None, now: float) -> None:
        joining = not self._present
        self._later(now)
        if code in COORDINATOR_GONE:
            self._lingers = True
            self.lose_coordinator(f"a heartbeat was answered with {ErrorCode(code).name}", now)
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and self._lingers and self.coordinator is not None:
            self._lingers = False  # it may be this member itself that has the name: if so, it has to leave first
            self._leave.want(self._requests.leave(self.coordinator, self._id, RESTS))
        elif code in _MEMBERSHIP_GONE or (code == ErrorCode.GROUP_ID_NOT_FOUND and not joining):
            self._lingers = code == ErrorCode.FENCED_MEMBER_EPOCH
            if not joining:
                self._heartbeats.again()
            self._lose_membership(code)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fence()
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:  # it stays a member, and goes on when it may
            self.error = remotely_refused(self.settings, code, message)
        elif code == ErrorCode.UNSUPPORTED_VERSION:
            self._fail(protocol_not_served(self.settings, error_for(code)))
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            logger.info("group %s: the coordinator is loading", self.settings.group_id)
        else:
            self._fail(remotely_refused(self.settings, code, message))

    # ------------------------------------------------------------------ ends

    def _lose_membership(self, code: int) -> None:
        """The broker does not count on this member any more: others may read its partitions already."""
        error = remote_membership_lost(self.settings, code, self._heartbeats.explanation())
        logger.warning("%s", error)
        self._lost_error = error
        self._holding.end_membership()
        self._forget_member()
        self._go(RemoteEvent.EXPELLED)

    def _forget_member(self) -> None:
        if self._present:
            self._was = self.metadata
        self.metadata = replace(self.metadata, generation_id=-1, member_id="")
        self._complete, self._begun = None, False
        self._heartbeat = self._told = None
        self._owned = {}
        self._target = AssignmentTarget()

    def _fail(self, error: KafkaError) -> None:
        """The group refuses this member; the next poll raises the error."""
        # that the consumer closes is no trouble of the group
        level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
        logger.log(level, "group %s: %s", self.settings.group_id, error)
        if self.state in _ABSENT and self.state is not RemoteState.UNJOINED:
            return
        self.error = error
        if self._holding.partitions:
            self._holding.end_membership()
        self._lost_error = error
        if self._present:  # else nobody would read its partitions until the session is over
            self._say_farewell("the group refused it")
        self._forget_member()
        self._go(RemoteEvent.REFUSED)

    def _fence(self) -> KafkaError:
        """Another consumer has the same instance id."""
        error = instance_taken_over(self.settings)
        self._forget_member()
        self.error = self._lost_error = error
        self._go(RemoteEvent.TAKEN_OVER)
        return error

    def _go(self, event: RemoteEvent) -> None:
        state = next_state(REMOTE_TABLE, self.state, event)
        logger.debug("group %s: %s: %s -> %s", self.settings.group_id, event.value, self.state.value, state.value)
        self.state = state


def new_id() -> str:
    """A member's id as Kafka's clients make it: a UUID in base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
