"""A member of a consumer group, as a state machine free of I/O and clocks.

Events go in with the time they happened; `next` says which requests to send and when to ask again; `step` says
what the caller of `poll` has to do (commit, run the listener, take partitions over). The classic group protocol:
FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, eager or cooperative (KIP-429), static members
(KIP-345), `max.poll.interval.ms` (KIP-62), member ids before joining (KIP-394).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.consumer.group.assignors import Assignor, RebalanceProtocol, common_protocol
from kclient.consumer.group.consumer_protocol import decode_assignment
from kclient.consumer.group.coordinator_lookup import COORDINATOR_GONE
from kclient.consumer.group.errand import Errand
from kclient.consumer.group.leader import GroupLeader
from kclient.consumer.group.membership import Membership
from kclient.consumer.group.model import (
    Complete,
    ConsumerGroupMetadata,
    GroupRequest,
    MemberSettings,
    Prepare,
    RequestKind,
    Step,
    Todo,
)
from kclient.consumer.group.refusals import (
    instance_taken_over,
    membership_lost,
    no_common_assignor,
    too_late,
)
from kclient.consumer.group.requests import GroupRequests, read_subscriptions
from kclient.consumer.group.states import (
    MEMBER_TABLE,
    MemberEvent,
    MemberState,
)
from kclient.consumer.group.timers import Heartbeats
from kclient.errors import (
    ClosedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    error_for,
)
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kclient.consumer.group.model import RacksOf
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")

_MEMBERSHIP_GONE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_TRY_AGAIN = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS})
_ABSENT = frozenset({MemberState.UNJOINED, MemberState.FAILED, MemberState.FENCED})
_BEATING = frozenset(set(MemberState) - _ABSENT - {MemberState.JOINING})


class GroupMember(Membership):
    """One consumer's membership in its group, by the classic protocol.

    Args:
        settings: The configuration.
        assignors: `partition.assignment.strategy`, in order of preference.
    """

    # declared again, since they are set here as well
    error: KafkaError | None
    metadata: ConsumerGroupMetadata
    rebalances: int

    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor]) -> None:
        self._requests = GroupRequests(settings, list(assignors))
        super().__init__(settings)
        self.protocol: RebalanceProtocol = common_protocol(assignors)
        self.state: MemberState = MemberState.UNJOINED
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._leader = GroupLeader(by_rack=bool(settings.client_rack))
        self._heartbeats = Heartbeats(settings.heartbeat_interval, settings.session_timeout)
        self._topics: frozenset[str] | None = None
        self._by_pattern = False
        self._rejoin_reason: str | None = None
        self._join_reason = ""
        self._protocol_name = ""
        self._assignments: dict[str, bytes] = {}
        self._complete: Complete | None = None
        # requests under way, and times before which none is sent
        self._joining: GroupRequest | None = None
        self._heartbeat: GroupRequest | None = None
        self._join_at = 0.0
        self._join_failures = 0
        self._refresh: Errand[object] = Errand()
        """The refresh of the metadata that joining waits for."""
        self._receivers: dict[RequestKind, Callable[[Any, float], None]] = {
            RequestKind.JOIN: self._on_join,
            RequestKind.SYNC: self._on_sync,
            RequestKind.HEARTBEAT: self._on_heartbeat,
        }

    # ------------------------------------------------------------------ what the user does

    def subscribe(self, topics: Iterable[str], *, by_pattern: bool = False) -> None:
        """These topics are subscribed from now on; the next poll joins, or joins again.

        Args:
            topics: The topics.
            by_pattern: Whether they are what matches a pattern now: then nobody joins before the metadata are fresh. So
                a new topic makes the group rebalance once, and not once for each member that finds it.
        """
        self._by_pattern = by_pattern
        new = frozenset(topics)
        if new != self._topics:
            self._topics = new
            self.request_rejoin("the subscription changed")

    def subscribe_remotely(self, pattern: str) -> None:
        """Brokers do not evaluate patterns in the classic protocol.

        Raises:
            IllegalStateError: Always.
        """
        self.check_remote_patterns()

    def check_remote_patterns(self) -> None:
        """Brokers do not evaluate patterns in the classic protocol.

        Raises:
            IllegalStateError: Always.
        """
        raise IllegalStateError(
            "a SubscriptionPattern is evaluated by the broker, which needs group.protocol=consumer; with "
            "group.protocol=classic subscribe to a compiled pattern (re.compile)"
        )

    def request_rejoin(self, reason: str) -> None:
        """Have the group rebalance, once the next poll comes."""
        if self._rejoin_reason is None:
            self._rejoin_reason = reason
        if self.state is MemberState.STABLE:
            self._go(MemberEvent.REJOIN_WANTED)

    def polled(self, now: float) -> None:
        """The user polls.

        Raises:
            KafkaError: The group refused this member; polling again tries again, unless it was fenced.
        """
        self._polls.polled(now)
        if self.error is not None:
            raise self.take_error()
        if self.state is MemberState.UNJOINED and self._topics is not None:
            self._go(MemberEvent.POLLED)

    @property
    def stable(self) -> bool:
        """Whether it is a member with an assignment that has been taken over."""
        return self.state is MemberState.STABLE

    @property
    def outside(self) -> bool:
        """Whether there is no membership, and none on its way: a poll has to begin one, or to raise why not."""
        return self.state in _ABSENT

    @property
    def fenced(self) -> bool:
        """Whether another consumer took over this `group.instance.id`."""
        return self.state is MemberState.FENCED

    def take_error(self) -> KafkaError:
        """Why the group refused this member, to be raised; what comes next tries again, unless it was fenced."""
        assert self.error is not None
        error = self.error
        if self.state is MemberState.FAILED:
            self.error = None
            self._go(MemberEvent.RAISED)
        return error

    def step(self) -> Step | None:
        """What the caller of `poll` has to do before it returns records."""
        if self.state is MemberState.PREPARING:
            return Prepare(self._holding.lost, self._rejoin_reason or "joining")
        return self._complete if self.state is MemberState.COMPLETING else None

    def is_due(self, step: Step) -> bool:
        """Whether a step is still to be carried out: the membership may end amid it, and then another one is."""
        if isinstance(step, Complete):
            return self._complete is step
        return self.state is MemberState.PREPARING and (step.lost or not self._holding.lost)

    def prepared(self, done: Prepare, owned: Iterable[TopicPartition], now: float) -> None:
        """The step `Prepare` is done.

        Args:
            done: The step.
            owned: The partitions that the consumer still reads and wants to keep.
            now: Monotonic time in seconds.
        """
        if not self.is_due(done):
            return  # it left the group meanwhile, or what it keeps is lost, and is still to be given up
        self._holding.give_up(owned)
        self._join_reason = self._rejoin_reason or "joining"
        if self._by_pattern:
            self._refresh.want(object())
        self._start_joining(MemberEvent.PREPARED, now)

    def begin(self, step: Complete) -> None:
        """Partitions are given up for a step: nothing else can take its place anyway while the membership lasts."""

    def took_over(self, step: Complete) -> None:
        """What `Complete` assigns is read from now on, though the step may be broken off before it is done."""
        self._holding.take_over(step.assigned, step.generation_id)
        if self._complete is not step:
            self._holding.end_membership()  # the membership ended meanwhile, and what was just taken over with it

    def completed(self, done: Complete, *, gave_up: bool) -> None:
        """The step `Complete` is done.

        Args:
            done: The step.
            gave_up: Whether partitions were given up that another member waits for (cooperative).
        """
        self.took_over(done)
        if self._complete is not done:
            return
        self._complete = None
        self._lost_error = None
        self.rebalances += 1
        self._go(MemberEvent.COMPLETED)
        if gave_up:
            self.request_rejoin("gave up partitions for other members")
        if self._leader.outdated:
            self.request_rejoin("the number of partitions changed")
        if self._rejoin_reason is not None:
            self.request_rejoin(self._rejoin_reason)

    def leave(self, reason: str, tell: bool | None = None) -> None:
        """Leave the group for good.

        Args:
            reason: Why.
            tell: Whether the coordinator is told, so that others take over at once; None unless it is a static member.
        """
        self._topics = None
        self._rejoin_reason = None
        self._depart(reason, tell)
        self._holding.give_up()
        self._lost_error = self._was = None

    def renewed(self, identity: ConsumerGroupMetadata, partitions: Collection[TopicPartition]) -> ConsumerGroupMetadata:
        """As whom to commit: as who asked for it, since nothing is taken over from one generation to the next."""
        return identity

    def fetch_identity(self) -> None:
        """Anybody may ask for the committed offsets of a group of this protocol."""
        return

    def commit_refused(
        self,
        code: int,
        identity: ConsumerGroupMetadata,
        epoch: int,
        now: float,
        partitions: Collection[TopicPartition] = (),
    ) -> KafkaError:
        """A commit was answered with an error code: what to raise (retriable or not), with the state adjusted."""
        present = identity == self.metadata and identity.generation_id >= 0 and self.state not in _ABSENT
        if code in COORDINATOR_GONE:
            self.lose_coordinator(f"a commit was answered with {ErrorCode(code).name}", now, epoch)
        elif code in _MEMBERSHIP_GONE or (code == ErrorCode.GROUP_ID_NOT_FOUND and identity.generation_id >= 0):
            if present and self.state in _BEATING:
                self._lose_membership(code)
            return too_late(self.settings, self._lost_error or error_for(code))
        elif code == ErrorCode.FENCED_INSTANCE_ID and identity.generation_id >= 0:
            return self._fence() if present else instance_taken_over(self.settings)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            if present:
                self.request_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")
            return error_for(code, "The offsets cannot be committed while the group rebalances: poll, then commit")
        return error_for(code)

    # ------------------------------------------------------------------ what the cluster does

    @property
    def group_topics(self) -> set[str]:
        """As leader: the topics of all members, whose metadata the assignor needs."""
        return self._leader.topics

    def update_metadata(
        self, counts: Mapping[str, int], unknown: Collection[str], now: float, racks: RacksOf | None = None
    ) -> None:
        """There are new metadata.

        Args:
            counts: The number of partitions of each topic.
            unknown: Topics that were asked for and do not exist, or cannot be read or counted.
            now: Monotonic time in seconds.
            racks: Tells of a topic the racks of each partition's replicas.
        """
        self._leader.update(counts, unknown, racks)
        if self.state is MemberState.ASSIGNING:
            self._try_assign()
        elif self.state is MemberState.STABLE and self._leader.outdated:
            self.request_rejoin("the number of partitions changed")

    def stalled(self, seconds: float) -> None:
        """The event loop was blocked for this long; named if the membership is lost for it."""
        self._heartbeats.stalled(seconds)

    def next(self, now: float) -> Todo:
        """Which requests to send now, and when to ask again unless something happens before."""
        self._check_poll_interval(now)
        requests: list[GroupRequest] = []
        wake_at = min(
            self._plan_heartbeat(now, requests),  # may lose the coordinator, so it comes before looking for one
            self.lookup.plan(now, requests) if self._needs_coordinator else inf,
            self._plan_join(now, requests),
            self.lookup.plan_check(now, requests) if self._joining is not None else inf,
            self._poll_deadline,
        )
        leave = self._leave.give_out()
        if leave is not None:
            requests.append(leave)
        return Todo(requests, wake_at, self._refresh.give_out())

    def refreshed(self, refresh: object) -> None:
        """The metadata that `next` asked for are there, and `subscribe` knows of them; or they cannot be had."""
        if self._refresh.is_for(refresh):
            self._refresh.end()

    def resolved(self, names: Mapping[bytes, str], now: float) -> None:
        """Nobody asks for names: members of this protocol name topics to each other."""

    def awaits(self, request: GroupRequest) -> bool:
        """Whether the request is still of interest; one that could not leave before has lost its sense else.

        LeaveGroup never has: the member that it is of stays in the group without, whatever this one became since.
        """
        return (
            request is self._joining
            or request is self._heartbeat
            or request.kind is RequestKind.LEAVE
            or self.lookup.is_awaiting(request)
        )

    def received(self, request: GroupRequest, response: Any, now: float) -> None:
        """The answer to a request that `next` gave out."""
        if self.lookup.is_awaiting(request):
            known = self.coordinator
            self._not_found(self.lookup.received(request, response, now))
            if known is not None and self.coordinator is None:
                self._lost_coordinator()
        elif self._take(request):
            self._receivers[request.kind](response, now)

    def failed(self, request: GroupRequest, error: KafkaError, now: float) -> None:
        """A request could not be sent, or was not answered."""
        if self.lookup.is_awaiting(request):
            self._not_found(self.lookup.failed(request, error, now))
        elif not self._take(request):
            return
        elif not (error.retriable or isinstance(error, TimeoutError)):
            self._fail(error)
        else:
            self.lose_coordinator(f"{request.kind.value} failed: {error}", now)

    def _take(self, request: GroupRequest) -> bool:
        """Whether the request is still of interest; then it is no longer under way."""
        if request is self._joining:
            self._joining = None
        elif request is self._heartbeat:
            self._heartbeat = None
        else:
            if self._leave.is_for(request):
                self._leave.end()  # whatever the answer: the broker forgets the member soon enough by itself
            return False
        return True

    # ------------------------------------------------------------------ the coordinator

    @property
    def _needs_coordinator(self) -> bool:
        return self._sought or self.state not in _ABSENT

    def _not_found(self, error: KafkaError | None) -> None:
        if error is not None and not error.retriable and self._needs_coordinator:
            self._fail(error)

    def _lost_coordinator(self) -> None:
        self._heartbeat = None
        if self.state in {MemberState.JOINING, MemberState.SYNCING}:
            self._start_joining(MemberEvent.TRY_AGAIN, self.lookup.retry_at)

    # ------------------------------------------------------------------ joining

    def _start_joining(self, event: MemberEvent, at: float) -> None:
        self._go(event)
        self._joining = None
        self._join_at = at

    def _plan_join(self, now: float, requests: list[GroupRequest]) -> float:
        if self._joining is not None or self.coordinator is None:
            return inf
        if self.state is MemberState.JOINING:
            if self._refresh.pending:
                return inf
            if now < self._join_at:
                return self._join_at
            try:
                self._joining = self._requests.join(
                    self.coordinator, self.metadata, self._topics or (), self._holding.partitions, self._join_reason
                )
            except KafkaError as error:
                self._fail(error)
                return inf
            self._rejoin_reason = None
        elif self.state is MemberState.SYNCING:
            self._joining = self._requests.sync(self.coordinator, self.metadata, self._protocol_name, self._assignments)
        else:
            return inf
        self.lookup.waited(now)
        requests.append(self._joining)
        return inf

    def _on_join(self, response: Any, now: float) -> None:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.metadata = replace(self.metadata, generation_id=-1, member_id=response.member_id)
            self._start_joining(MemberEvent.TRY_AGAIN, now)
        elif code:
            self._join_refused(code, now)
        elif response.protocol_name not in self._assignors:
            self._fail(no_common_assignor(self.settings, self._assignors, response.protocol_name))
        else:
            self._joined(response, now)

    def _joined(self, response: Any, now: float) -> None:
        self.metadata = replace(self.metadata, generation_id=response.generation_id, member_id=response.member_id)
        self._protocol_name = response.protocol_name
        self._heartbeats.start(now)
        self._assignments = {}
        if response.leader != response.member_id:
            self._leader.dismiss()
            self._go(MemberEvent.JOINED)
            return
        try:
            self._leader.elect(read_subscriptions(response.members))
        except KafkaError as error:
            self._fail(error)
            return
        if response.skip_assignment:
            self._leader.keep()
            self._go(MemberEvent.JOINED)
        else:
            self._go(MemberEvent.ELECTED)
            self._try_assign()

    def _try_assign(self) -> None:
        if not self._leader.ready:
            return
        try:
            self._assignments = self._leader.assign(self._assignors[self._protocol_name])
        except KafkaError as error:
            self._fail(error)
        else:
            self._go(MemberEvent.ASSIGNED)

    def _on_sync(self, response: Any, now: float) -> None:
        if response.error_code:
            self._join_refused(response.error_code, now)
            return
        try:
            assigned, user_data = decode_assignment(response.assignment)
        except KafkaError as error:
            self._fail(error)
            return
        # only now: one that lets members join and refuses what they ask next is asked ever less often
        self._join_failures = 0
        self.lookup.answered(self.lookup.epoch)
        topics = self._topics or frozenset()
        wanted = tuple(tp for tp in assigned if tp.topic in topics)
        if len(wanted) < len(assigned):
            self.request_rejoin("the assignment is not of the present subscription")
        self._assignments = {}
        self._complete = Complete(wanted, user_data, self.metadata.generation_id, self._protocol_name)
        self._go(MemberEvent.SYNCED)

    def tell_assignor(self, step: Complete) -> None:
        """The assignor is told what was assigned; what it raises is the user's."""
        self._assignors[step.protocol].on_assignment(step.assigned, step.user_data, step.generation_id)

    def _join_refused(self, code: int, now: float) -> None:
        """JoinGroup or SyncGroup was answered with an error."""
        if code in COORDINATOR_GONE:
            self.lose_coordinator(f"joining was answered with {ErrorCode(code).name}", now)
        elif code in _TRY_AGAIN:
            # a group that rebalances again wants this member soon, however often
            self._join_failures = self._join_failures + 1 if code != ErrorCode.REBALANCE_IN_PROGRESS else 1
            self._start_joining(MemberEvent.TRY_AGAIN, now + self.settings.retry_backoff.seconds(self._join_failures))
        elif code in _MEMBERSHIP_GONE:
            if self._holding.partitions:
                self._lose_membership(code)
            else:
                self._forget_member(keep_id=code == ErrorCode.ILLEGAL_GENERATION)
                self._start_joining(MemberEvent.TRY_AGAIN, now)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fence()
        elif code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            self._fail(no_common_assignor(self.settings, self._assignors))
        else:
            self._fail(error_for(code))

    # ------------------------------------------------------------------ staying

    def _plan_heartbeat(self, now: float, requests: list[GroupRequest]) -> float:
        if self.metadata.generation_id < 0 or self.state not in _BEATING:
            return inf
        if now >= self._heartbeats.deadline:
            self._heartbeats.start(now)
            self.lose_coordinator("no heartbeat was answered within session.timeout.ms", now)
        if self.coordinator is None or self._heartbeat is not None:
            return self._heartbeats.deadline
        if now < self._heartbeats.due:
            return min(self._heartbeats.due, self._heartbeats.deadline)
        self._heartbeat = self._requests.heartbeat(self.coordinator, self.metadata)
        self._heartbeats.sent(now)
        requests.append(self._heartbeat)
        return self._heartbeats.deadline

    def _on_heartbeat(self, response: Any, now: float) -> None:
        code = response.error_code
        if code in COORDINATOR_GONE:
            self.lose_coordinator(f"a heartbeat was answered with {ErrorCode(code).name}", now)
        elif code in {ErrorCode.NONE, *_TRY_AGAIN}:
            self._heartbeats.answered(now)
            self.lookup.answered(self.lookup.epoch)
            if code == ErrorCode.REBALANCE_IN_PROGRESS and self.state in {MemberState.STABLE, MemberState.COMPLETING}:
                self.request_rejoin("the group rebalances")
        elif self.state not in _BEATING:
            return  # it answers for a membership that ended meanwhile
        elif code in _MEMBERSHIP_GONE:
            self._lose_membership(code)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fence()
        else:
            self._fail(error_for(code))

    # ------------------------------------------------------------------ ends

    def _lose_membership(self, code: int) -> None:
        """The broker does not count on this member any more: others may read its partitions already."""
        error = membership_lost(self.settings, code, self._heartbeats.explanation())
        logger.warning("%s", error)
        self._lost_error = error
        self._holding.end_membership()
        self._forget_member(keep_id=code == ErrorCode.ILLEGAL_GENERATION)
        self._go(MemberEvent.EXPELLED)

    def _forget_member(self, *, keep_id: bool = False) -> None:
        if self.metadata.generation_id >= 0:
            self._was = self.metadata
        member_id = self.metadata.member_id if keep_id else ""
        self.metadata = replace(self.metadata, generation_id=-1, member_id=member_id)
        self._joining = self._heartbeat = self._complete = None
        self._refresh.end()
        self._leader.dismiss()

    def _depart(self, reason: str, tell: bool | None = None) -> None:
        """Out of the group now; LeaveGroup follows unless this is a static member, or as `tell` says."""
        member = self.metadata
        told = member.group_instance_id is None if tell is None else tell
        if self.coordinator is not None and member.member_id and told:
            self._leave.want(self._requests.leave(self.coordinator, member, reason))
        self._forget_member()
        if self.state not in {MemberState.UNJOINED, MemberState.FENCED}:
            self.error = None
            self._go(MemberEvent.LEFT)

    def _fail(self, error: KafkaError) -> None:
        """The group refuses this member; the next poll raises the error."""
        # that the consumer closes is no trouble of the group
        level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
        logger.log(level, "group %s: %s", self.settings.group_id, error)
        if self.state in _ABSENT and self.state is not MemberState.UNJOINED:
            return
        self.error = error
        if self._holding.partitions:
            self._holding.end_membership()
        self._lost_error = error
        self._forget_member(keep_id=True)
        self._go(MemberEvent.REFUSED)

    def _fence(self) -> KafkaError:
        """Another consumer has the same instance id."""
        error = instance_taken_over(self.settings)
        self._forget_member()
        self.error = self._lost_error = error
        self._go(MemberEvent.TAKEN_OVER)
        return error

    def _go(self, event: MemberEvent) -> None:
        state = next_state(MEMBER_TABLE, self.state, event)
        logger.debug("group %s: %s: %s -> %s", self.settings.group_id, event.value, self.state.value, state.value)
        self.state = state
