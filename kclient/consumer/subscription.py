"""What a consumer reads: its subscription, and the partitions it has.

Pure bookkeeping without I/O or clock. Whoever shares it between threads holds a lock around each call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kclient.consumer.partition_state import PartitionState, PositionState
from kclient.consumer.reset import ResetKind, ResetPolicy
from kclient.errors import IllegalStateError, NoOffsetForPartitionError
from kclient.state_tables import PlainEnum
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kclient.consumer.interfaces import RebalanceListener


class SubscriptionKind(PlainEnum):
    """How the consumer came by its partitions; the ways do not mix."""

    NONE = "none"
    TOPICS = "topics"
    """`subscribe` with a list of topics: the group decides."""
    PATTERN = "pattern"
    """`subscribe` with a pattern: the group decides."""
    REMOTE_PATTERN = "remote pattern"
    """`subscribe` with a `SubscriptionPattern`: the group decides, and the broker which topics match."""
    ASSIGNED = "assigned"
    """`assign`: the caller decides."""


class Places(NamedTuple):
    """Offsets to commit."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    topic_ids: dict[TopicPartition, bytes]
    """The ids of the topics that they are in, as far as they are known: a namesake that comes after is another."""


class SubscriptionState:
    """The subscription and the positions of one consumer.

    Args:
        default_policy: What `auto.offset.reset` says.
        store_by_hand: Whether the user says up to where he is through (`enable.auto.offset.store=false`).
    """

    def __init__(self, default_policy: ResetPolicy, *, store_by_hand: bool = False) -> None:
        self.default_policy = default_policy
        self._store_by_hand = store_by_hand
        self.kind: SubscriptionKind = SubscriptionKind.NONE
        self.pattern: re.Pattern[str] | None = None
        self.listener: RebalanceListener | None = None
        """Told when the group gives and takes partitions."""
        self._topics: frozenset[str] = frozenset()
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._version = 0
        self._pauses = 0
        self.assignments: int = 0
        """How often other partitions were to be read."""
        self.ended: int = 0
        """How often the user gave up everything: what began before has no say in what is read since."""

    # ------------------------------------------------------------------ subscription

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics; with a pattern those that match it now, or where the broker knows that, those that it
        has assigned partitions of."""
        if self.kind is SubscriptionKind.REMOTE_PATTERN:
            return frozenset(tp.topic for tp in self._partitions)
        return self._topics

    @property
    def uses_group(self) -> bool:
        """Whether a group decides which partitions are read."""
        return self.kind in {SubscriptionKind.TOPICS, SubscriptionKind.PATTERN, SubscriptionKind.REMOTE_PATTERN}

    def subscribe(self, topics: Collection[str]) -> bool:
        """Subscribe to topics; True if that changes anything.

        Raises:
            IllegalStateError: The consumer reads in another way already.
        """
        self._set_kind(SubscriptionKind.TOPICS)
        return self._set_topics(topics)

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to the topics whose whole name matches; `match` says which those are.

        Raises:
            IllegalStateError: The consumer reads in another way already.
        """
        self._set_kind(SubscriptionKind.PATTERN)
        self.pattern = pattern

    def subscribe_remotely(self) -> None:
        """Subscribe to the topics that match a pattern which the broker evaluates.

        Raises:
            IllegalStateError: The consumer reads in another way already.
        """
        self._set_kind(SubscriptionKind.REMOTE_PATTERN)

    def match(self, topics: Iterable[str]) -> bool:
        """Choose from all topics by the pattern; True if that changes the subscription."""
        assert self.pattern is not None
        return self._set_topics({topic for topic in topics if self.pattern.fullmatch(topic)})

    def _set_topics(self, topics: Iterable[str]) -> bool:
        new = frozenset(topics)
        changed = new != self._topics
        self._topics = new
        return changed

    def _set_kind(self, kind: SubscriptionKind) -> None:
        if self.kind not in {SubscriptionKind.NONE, kind}:
            raise IllegalStateError(
                "subscribe to topics, subscribe to a pattern and assign exclude each other; call unsubscribe first"
            )
        self.kind = kind

    def unsubscribe(self) -> None:
        """Forget the subscription and every partition."""
        self.ended += 1
        self.kind = SubscriptionKind.NONE
        self.pattern = None
        self.listener = None
        self._topics = frozenset()
        self._replace([])

    # ------------------------------------------------------------------ assignment

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those that stay keep their positions.

        Raises:
            IllegalStateError: The consumer is subscribed.
        """
        self._set_kind(SubscriptionKind.ASSIGNED)
        self._replace(partitions)

    def assign_from_group(self, partitions: Iterable[TopicPartition]) -> None:
        """Read what the group decided; partitions that stay keep their positions."""
        assert self.uses_group
        self._replace(partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading some partitions."""
        gone = set(partitions)
        self._replace([tp for tp in self._partitions if tp not in gone])

    def _replace(self, partitions: Iterable[TopicPartition]) -> None:
        old = self._partitions
        self.assignments += 1
        # dict.fromkeys drops duplicates and keeps the order, in which partitions take their turns
        self._partitions = {
            tp: old.get(tp) or PartitionState(tp, self.next_version()) for tp in dict.fromkeys(partitions)
        }
        for tp in old.keys() - self._partitions.keys():
            old[tp].version = -1  # what was fetched for it is worth nothing now
            old[tp].attempt = None

    def next_version(self) -> int:
        """The version of a position that is about to jump."""
        self._version += 1
        return self._version

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._partitions.values())

    def find(self, tp: TopicPartition) -> PartitionState | None:
        """The state of a partition, or None if it is not read."""
        return self._partitions.get(tp)

    def state(self, tp: TopicPartition) -> PartitionState:
        """The state of a partition.

        Raises:
            IllegalStateError: It is not read by this consumer.
        """
        found = self._partitions.get(tp)
        if found is None:
            raise IllegalStateError(f"Partition {tp} is not assigned to this consumer")
        return found

    # ------------------------------------------------------------------ positions

    def seek(self, tp: TopicPartition, offset: int, epoch: int | None = None) -> None:
        """Go on at an offset, which is taken as it is.

        Raises:
            IllegalStateError: The partition is not assigned.
            ValueError: The offset is negative.
        """
        if offset < 0:
            raise ValueError(f"cannot seek to the negative offset {offset}")
        state = self.state(tp)
        state.jump(offset, epoch, self.next_version())
        state.read_id = None

    def stay(self, state: PartitionState) -> None:
        """Go on where the consumer is, without what was fetched ahead."""
        state.jump(state.position, state.epoch, self.next_version())

    def go_back(self, state: PartitionState, offset: int, epoch: int | None, read_id: bytes | None) -> None:
        """Go on where the consumer was before records were taken, which nobody has got."""
        state.jump(offset, epoch, self.next_version())
        state.read_id = read_id

    def outdate(self, state: PartitionState) -> None:
        """The topic was deleted: what was fetched is worth nothing, and so is the position."""
        state.outdate(self.next_version())

    def reset(self, tp: TopicPartition, policy: ResetPolicy | None = None, *, by_user: bool = False) -> None:
        """Go on where a policy says, by default `auto.offset.reset`.

        Args:
            tp: The partition.
            policy: Where to go on.
            by_user: Whether the user has asked for it: what he commits then is of the topic that is there.

        Raises:
            IllegalStateError: The partition is not assigned.
            NoOffsetForPartitionError: The policy is `none`.
        """
        policy = policy or self.default_policy
        state = self.state(tp)
        if policy.kind is ResetKind.NONE:
            raise NoOffsetForPartitionError(
                f"{tp} has no committed offset and auto.offset.reset is none: seek to a position first, or set "
                "auto.offset.reset to earliest, latest or by_duration",
                partitions=[tp],
            )
        state.reset(policy, self.next_version())
        if by_user:
            state.read_id = None

    def found(self, tp: TopicPartition, version: int, offset: int, epoch: int | None) -> bool:
        """The broker said where to go on; ignored if the partition jumped elsewhere since `version`."""
        state = self._partitions.get(tp)
        if state is None or state.version != version or not state.to_find:
            return False
        state.jump(offset, epoch, self.next_version())
        return True

    def without_position(self, now: float) -> list[PartitionState]:
        """The partitions whose committed offset is to be fetched."""
        return [state for state in self if state.state is PositionState.UNKNOWN and _is_due(state, now)]

    def resetting(self, now: float) -> list[PartitionState]:
        """The partitions whose reset is to be answered by a broker."""
        return [state for state in self if state.state is PositionState.RESETTING and _is_due(state, now)]

    def next_retry(self, now: float) -> float | None:
        """When the next partition without a valid position may be asked for again."""
        waiting = [state for state in self if state.to_find and state.attempt is None]
        times = [state.retry_at for state in waiting if state.retry_at > now]
        return min(times, default=None)

    def consumed(self, partitions: Iterable[TopicPartition] | None = None) -> Places:
        """The positions to commit, of some partitions or all: those behind everything that was handed out, or where the
        user says up to where he is through, those."""
        chosen = self if partitions is None else filter(None, map(self.find, partitions))
        if self._store_by_hand:
            stored = [(state.tp, *state.through) for state in chosen]
            return Places(
                {tp: offset for tp, offset, _ in stored if offset is not None},
                {tp: topic_id for tp, offset, topic_id in stored if offset is not None and topic_id is not None},
            )
        valid = [state for state in chosen if state.state is PositionState.VALID]
        return Places(
            {state.tp: OffsetAndMetadata(state.position, "", state.epoch) for state in valid},
            {state.tp: state.topic_id for state in valid if state.topic_id is not None},
        )

    def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The user is through with what comes before these offsets.

        Raises:
            IllegalStateError: One of the partitions is not assigned, and then nothing is stored; or positions count.
        """
        if not self._store_by_hand:
            raise IllegalStateError(
                "Positions are committed, not what is stored: to store offsets set enable.auto.offset.store=false"
            )
        for state, offset in [(self.state(tp), offset) for tp, offset in offsets.items()]:
            state.store(offset)

    def given(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Places:
        """Offsets that the user wants to be committed.

        They are of the topics that he got records of, unless they are where the consumer is: then they are of the
        topic that is there.
        """
        states = filter(None, map(self.find, offsets))
        ids = {state.tp: state.id_of(offsets[state.tp].offset) for state in states}
        return Places(dict(offsets), {tp: topic_id for tp, topic_id in ids.items() if topic_id is not None})

    def deleted(self, places: Places) -> list[TopicPartition]:
        """Those of the places that are in a topic that was deleted, as far as that is known."""
        states = filter(None, map(self.find, places.topic_ids))
        return [state.tp for state in states if state.topic_id not in {places.topic_ids[state.tp], None}]

    def doubt(self, topic_ids: Mapping[TopicPartition, bytes | None]) -> None:
        """A coordinator does not know partitions of these topics."""
        for state in filter(None, map(self.find, topic_ids)):
            state.doubt(topic_ids[state.tp])

    # ------------------------------------------------------------------ pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until they are resumed.

        Raises:
            IllegalStateError: One of them is not assigned; then nothing is paused.
        """
        for state in [self.state(tp) for tp in partitions]:
            self._pause(state)
            state.resting = False

    def _pause(self, state: PartitionState) -> None:
        if not state.paused:
            self._pauses += 1
            state.paused, state.pause = True, self._pauses

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`.

        Raises:
            IllegalStateError: One of them is not assigned; then nothing is resumed.
        """
        for state in [self.state(tp) for tp in partitions]:
            if not state.resting:
                self._resume(state)

    def _resume(self, state: PartitionState) -> None:
        if state.paused:
            state.paused = False
            state.quiet_at = None  # that was before the pause

    def rest_but(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of other partitions than these until `rest_no_more`: as if the user had paused them."""
        for state in self:
            if not state.paused and state.tp not in partitions:
                state.resting = True
                self._pause(state)

    def rest_no_more(self) -> None:
        """Undo `rest_but`."""
        for state in self:
            if state.resting:
                self._resume(state)
                state.resting = False

    @property
    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {state.tp for state in self if state.paused and not state.resting}


def _is_due(state: PartitionState, now: float) -> bool:
    return state.attempt is None and state.retry_at <= now
