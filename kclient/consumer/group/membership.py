"""What a consumer, its commits and its task see of a membership, whichever protocol it follows.

`GroupMember` follows the classic protocol, in which the members assign the partitions; `RemoteMember` the one of
KIP-848, in which the broker does.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.consumer.group.coordinator_lookup import CoordinatorLookup
from kclient.consumer.group.errand import Errand
from kclient.consumer.group.holding import Holding
from kclient.consumer.group.model import ConsumerGroupMetadata, GroupRequest
from kclient.consumer.group.refusals import max_poll_exceeded, not_a_member
from kclient.consumer.group.timers import PollTimer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kclient.consumer.group.assignors import RebalanceProtocol
    from kclient.consumer.group.model import Complete, MemberSettings, Prepare, RacksOf, Step, Todo
    from kclient.errors import KafkaError
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")


class Membership(ABC):
    """One consumer's membership in its group, as a state machine free of I/O and clocks.

    Events go in with the time they happened; `next` says which requests to send and when to ask again; `step` says
    what the caller of `poll` has to do (commit, run the listener, take partitions over).

    Args:
        settings: The configuration.
    """

    protocol: RebalanceProtocol
    """Whether a rebalance takes all partitions away first, or those only that go to others."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.error: KafkaError | None = None
        """Why the group refused this member; the next poll raises it."""
        self.metadata: ConsumerGroupMetadata = ConsumerGroupMetadata(
            settings.group_id, group_instance_id=settings.group_instance_id
        )
        self.rebalances: int = 0
        """How many times an assignment was completed."""
        self.lookup: CoordinatorLookup = CoordinatorLookup(settings)
        self._was: ConsumerGroupMetadata | None = None
        """Who it was when it was lost or refused."""
        self._lost_error: KafkaError | None = None
        self._holding = Holding()
        self._leave: Errand[GroupRequest] = Errand()
        self._sought = False
        """Whether the coordinator is looked for even without a membership."""
        self._polls = PollTimer(settings.max_poll_interval)

    @property
    def coordinator(self) -> int | None:
        """Node id of the coordinator, while it is known."""
        return self.lookup.node

    @property
    @abstractmethod
    def group_topics(self) -> set[str]:
        """Topics of other members, whose metadata this one needs."""

    # ------------------------------------------------------------------ what the user does

    @abstractmethod
    def subscribe(self, topics: Iterable[str], *, by_pattern: bool = False) -> None:
        """These topics are subscribed from now on; the next poll joins, or says so.

        Args:
            topics: The topics.
            by_pattern: Whether they are what matches a pattern now, which the client evaluates.
        """

    @abstractmethod
    def check_remote_patterns(self) -> None:
        """Raise unless brokers evaluate patterns in this protocol.

        Raises:
            IllegalStateError: They do not.
        """

    @abstractmethod
    def subscribe_remotely(self, pattern: str) -> None:
        """The topics are subscribed that match a pattern, which the broker evaluates.

        Raises:
            IllegalStateError: Brokers do not in this protocol.
        """

    @abstractmethod
    def request_rejoin(self, reason: str) -> None:
        """Have the group rebalance, once the next poll comes, where members may ask for that."""

    @abstractmethod
    def polled(self, now: float) -> None:
        """The user polls.

        Raises:
            KafkaError: The group refused this member; polling again tries again, unless it was fenced.
        """

    @property
    @abstractmethod
    def stable(self) -> bool:
        """Whether it is a member with an assignment that has been taken over."""

    @property
    @abstractmethod
    def outside(self) -> bool:
        """Whether there is no membership, and none on its way: a poll has to begin one, or to raise why not."""

    @property
    @abstractmethod
    def fenced(self) -> bool:
        """Whether another consumer took over this `group.instance.id`."""

    def wait_in_poll(self, begins: bool, now: float) -> None:
        """The user begins to wait inside `poll`, or ends it; `max.poll.interval.ms` does not count that time."""
        self._polls.waits(begins, now)

    @abstractmethod
    def take_error(self) -> KafkaError:
        """Why the group refused this member, to be raised; what comes next tries again, unless it was fenced."""

    @abstractmethod
    def step(self) -> Step | None:
        """What the caller of `poll` has to do before it returns records."""

    @abstractmethod
    def is_due(self, step: Step) -> bool:
        """Whether a step is still to be carried out: the membership may end amid it, and then another one is."""

    @abstractmethod
    def prepared(self, done: Prepare, owned: Iterable[TopicPartition], now: float) -> None:
        """The step `Prepare` is done.

        Args:
            done: The step.
            owned: The partitions that the consumer still reads and wants to keep.
            now: Monotonic time in seconds.
        """

    @abstractmethod
    def begin(self, step: Complete) -> None:
        """Partitions are given up for a step that is due: while the membership lasts, no other takes its place."""

    @abstractmethod
    def took_over(self, step: Complete) -> None:
        """What `Complete` assigns is read from now on, though the step may be broken off before it is done."""

    @abstractmethod
    def tell_assignor(self, step: Complete) -> None:
        """The assignor of the user's, if there is one, is told what was assigned; what it raises is the user's."""

    @abstractmethod
    def completed(self, done: Complete, *, gave_up: bool) -> None:
        """The step `Complete` is done.

        Args:
            done: The step.
            gave_up: Whether partitions were given up that another member waits for.
        """

    @abstractmethod
    def leave(self, reason: str, tell: bool | None = None) -> None:
        """Leave the group for good.

        Args:
            reason: Why.
            tell: Whether the coordinator is told, so that others take over at once; None unless it is a static member.
        """

    @property
    def leaving(self) -> bool:
        """Whether the request to leave is due or on its way."""
        return self._leave.pending

    def want_coordinator(self) -> None:
        """Look the coordinator up even without being a member, for commits."""
        self._sought = True

    # ------------------------------------------------------------------ who it is

    def commit_identity(self) -> ConsumerGroupMetadata:
        """As whom to commit.

        Raises:
            CommitFailedError: The consumer is no member (any more); says why.
            FencedInstanceIdError: Another consumer took over the instance id.
        """
        if self.fenced and self.error is not None:
            raise self.error
        if self.metadata.generation_id < 0:
            raise not_a_member(self.settings, self._lost_error) from self._lost_error
        return self.metadata

    @abstractmethod
    def renewed(self, identity: ConsumerGroupMetadata, partitions: Collection[TopicPartition]) -> ConsumerGroupMetadata:
        """As whom to commit now what somebody asked for as `identity`.

        The same; or the same member as the broker calls it now, as long as the partitions have been its all the time.
        """

    @abstractmethod
    def fetch_identity(self) -> ConsumerGroupMetadata | None:
        """As whom to ask for committed offsets; None as nobody in particular."""

    def transactional_identity(self) -> ConsumerGroupMetadata:
        """As whom a transaction commits offsets: who was lost says who it was, and the coordinator refuses it.

        Offsets of nobody in particular would be taken, since that is what producers without a member send (KIP-447).
        """
        metadata = self.metadata  # once: another thread may change it
        return metadata if metadata.generation_id >= 0 or self._was is None else self._was

    @abstractmethod
    def commit_refused(
        self,
        code: int,
        identity: ConsumerGroupMetadata,
        epoch: int,
        now: float,
        partitions: Collection[TopicPartition] = (),
    ) -> KafkaError:
        """A commit was answered with an error code: what to raise (retriable or not), with the state adjusted.

        Args:
            code: The error code.
            identity: As whom it was made; the consumer may be somebody else by now.
            epoch: The `lookup.epoch` when it was sent.
            now: Monotonic time in seconds.
            partitions: What was to be committed.
        """

    # ------------------------------------------------------------------ what the cluster does

    @abstractmethod
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

    @abstractmethod
    def stalled(self, seconds: float) -> None:
        """The event loop was blocked for this long; named if the membership is lost for it."""

    @abstractmethod
    def next(self, now: float) -> Todo:
        """Which requests to send now, and when to ask again unless something happens before."""

    @abstractmethod
    def refreshed(self, refresh: object) -> None:
        """The metadata that `next` asked for are there, and `subscribe` knows of them; or they cannot be had."""

    @abstractmethod
    def resolved(self, names: Mapping[bytes, str], now: float) -> None:
        """The names of the topics that `next` asked for, as far as they could be had.

        Args:
            names: By topic id.
            now: Monotonic time in seconds.
        """

    @abstractmethod
    def awaits(self, request: GroupRequest) -> bool:
        """Whether the request is still of interest; one that could not leave before has lost its sense else.

        The request to leave never has: the member that it is of stays in the group without, whatever this one became
        since.
        """

    @abstractmethod
    def received(self, request: GroupRequest, response: Any, now: float) -> None:
        """The answer to a request that `next` gave out."""

    @abstractmethod
    def failed(self, request: GroupRequest, error: KafkaError, now: float) -> None:
        """A request could not be sent, or was not answered."""

    def lose_coordinator(self, reason: str, now: float, epoch: int | None = None) -> None:
        """The coordinator cannot be reached or is another broker by now: look it up again.

        Args:
            reason: Why, for the log.
            now: Monotonic time in seconds.
            epoch: The `lookup.epoch` of which that is known; nothing happens if another was found since.
        """
        if self.lookup.lose(reason, now, epoch):
            self._lost_coordinator()

    @abstractmethod
    def _lost_coordinator(self) -> None:
        """What was asked of the coordinator is asked of the next one."""

    @property
    def _poll_deadline(self) -> float:
        """When `max.poll.interval.ms` is over."""
        return inf if self.outside else self._polls.deadline

    def _check_poll_interval(self, now: float) -> None:
        if now < self._poll_deadline:
            return
        error = max_poll_exceeded(self.settings, self._polls.since(now))
        logger.warning("%s", error)
        self._depart("max.poll.interval.ms exceeded")
        if self._holding.partitions:
            self._holding.end_membership()
        self._lost_error = error

    @abstractmethod
    def _depart(self, reason: str, tell: bool | None = None) -> None:
        """Be a member no more, and tell the coordinator as `leave` does; the partitions are kept for now."""
