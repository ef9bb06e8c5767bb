"""Where a consumer is in one of its partitions, and what it knows of that.

Bookkeeping without I/O or clock, under the lock of `SubscriptionState`, which holds these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.reset import ResetPolicy
from kclient.state_tables import PlainEnum, next_state
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.metrics.windows import MetricSpread, MetricTally


class PositionState(PlainEnum):
    """What is known about the position in a partition."""

    UNKNOWN = "unknown"
    """Nothing: the committed offset has to be fetched first."""
    RESETTING = "resetting"
    """The broker has to be asked for the offset that a reset policy or a seek means."""
    VALID = "valid"
    """Known: records can be fetched."""
    OUTDATED = "outdated"
    """One in a topic that was deleted, and `auto.offset.reset` is `none`: the user has to say where to go on."""


class PositionEvent(PlainEnum):
    """What happens to a position."""

    PLACED = "placed"
    """An offset is committed, a leader answered, or the user seeks."""
    RESET = "reset"
    """A policy or the user wants a place that a leader has to name."""
    DELETED = "deleted"
    """The topic was deleted and created again, and no policy says where to go on."""


_ANY = {PositionEvent.PLACED: PositionState.VALID, PositionEvent.RESET: PositionState.RESETTING}

POSITION_TABLE: dict[PositionState, dict[PositionEvent, PositionState]] = {
    PositionState.UNKNOWN: _ANY,
    PositionState.RESETTING: _ANY,
    PositionState.VALID: {**_ANY, PositionEvent.DELETED: PositionState.OUTDATED},
    PositionState.OUTDATED: {**_ANY, PositionEvent.DELETED: PositionState.OUTDATED},
}
"""Which event leads where; a rebalance makes new objects rather than going back to UNKNOWN."""


class PartitionState:
    """The consumer's state in one partition."""

    __slots__ = (
        "answered",
        "attempt",
        "buffered",
        "end_told",
        "epoch",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "former_id",
        "high_watermark",
        "lags",
        "last_stable_offset",
        "leads",
        "log_start_offset",
        "pause",
        "paused",
        "policy",
        "position",
        "preferred_replica",
        "preferred_until",
        "quiet_at",
        "read_id",
        "resting",
        "retry_at",
        "state",
        "stored",
        "stored_id",
        "told_at",
        "topic_id",
        "tp",
        "turn",
        "version",
    )

    def __init__(self, tp: TopicPartition, version: int) -> None:
        self.tp: TopicPartition = tp
        self.state: PositionState = PositionState.UNKNOWN
        self.position: int = -1
        """Offset of the next record to hand out."""
        self.epoch: int | None = None
        """Leader epoch of the record before it, if known (KIP-320)."""
        self.fetch_offset: int = -1
        """Offset to fetch next: behind what is buffered."""
        self.fetch_epoch: int | None = None
        self.version: int = version
        """Grows whenever the position jumps: what was fetched for an older version is thrown away."""
        self.policy: ResetPolicy | None = None
        """Where a reset under way leads."""
        self.paused: bool = False
        self.pause: int = 0
        """When it was paused last: who has been for longest has the least."""
        self.resting: bool = False
        """Whether it is paused for the length of a poll of other partitions, and the user has not paused it."""
        self.attempt: object | None = None
        """The fetch or the search for a position that is under way; what any other one brings comes too late. Or the
        error behind which nothing is fetched."""
        self.quiet_at: int | None = None
        """The broker that has answered last, if that brought nothing."""
        self.turn: int = 0
        """When it last brought records: the one that waits longest is asked for first."""
        self.buffered: int = 0
        """Bytes that were fetched and not handed out."""
        self.failures: int = 0
        """Attempts that failed since one succeeded."""
        self.retry_at: float = 0.0
        """Time before which nothing is asked for this partition, after an error."""
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.told_at: float | None = None
        """When a broker has told these three last, or that they have not changed."""
        self.answered: int | None = None
        """The version for which a fetch was answered, where the ends of partitions are told."""
        self.end_told: tuple[int, int] | None = None
        """The version, and the position at the end that the user has been told of last."""
        self.preferred_replica: int | None = None
        """A replica that the leader sent us to (KIP-392)."""
        self.preferred_until: float = 0.0
        self.topic_id: bytes | None = None
        """The id of the topic that the position is in; None while it is not known."""
        self.former_id: bytes | None = None
        """The id of the topic of this name that was deleted before."""
        self.read_id: bytes | None = None
        """The id of the topic that the records were of that were handed out last; None after a seek."""
        self.stored: OffsetAndMetadata | None = None
        """Up to where the user is through, as he says."""
        self.stored_id: bytes | None = None
        """The id of the topic that this is in, if it is known."""
        self.lags: MetricTally | None = None
        """How far the position was from the end, each time that records were handed out."""
        self.leads: MetricSpread | None = None
        """How far it was from the beginning."""

    def end(self, *, read_committed: bool) -> int | None:
        """Up to where can be read, as a broker has told last: the last stable offset, or the high watermark."""
        return self.last_stable_offset if read_committed else self.high_watermark

    def lag(self, *, read_committed: bool) -> int | None:
        """How many offsets are to be read until then; None where the position or the end is not known."""
        end = self.end(read_committed=read_committed)
        if end is None or self.state is not PositionState.VALID:
            return None
        return max(end - self.position, 0)

    @property
    def lead(self) -> int | None:
        """How many offsets the position is behind the beginning; None where either is not known."""
        if self.log_start_offset is None or self.state is not PositionState.VALID:
            return None
        return max(self.position - self.log_start_offset, 0)

    @property
    def fetchable(self) -> bool:
        """Whether records may be fetched and handed out."""
        return self.state is PositionState.VALID and not self.paused

    @property
    def to_find(self) -> bool:
        """Whether brokers have to be asked for the position."""
        return self.state in {PositionState.UNKNOWN, PositionState.RESETTING}

    def _go(self, event: PositionEvent, version: int) -> None:
        """What was under way for the place before is forgotten.

        Nothing is called after the first change, here and by those who call this: no signal comes between.
        """
        self.state = next_state(POSITION_TABLE, self.state, event)
        self.version = version
        self.attempt = None
        self.buffered = 0
        self.retry_at = 0.0
        self.quiet_at = None

    def jump(self, offset: int, epoch: int | None, version: int) -> None:
        """Go on at an offset, and forget what was fetched for another."""
        self._go(PositionEvent.PLACED, version)
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.policy = None

    def outdate(self, version: int) -> None:
        """The position is one in a deleted topic, and nothing is fetched before the user says where to go on."""
        self._go(PositionEvent.DELETED, version)
        self.fetch_offset = self.position
        self.fetch_epoch = self.epoch
        self.policy = None

    def reset(self, policy: ResetPolicy, version: int) -> None:
        """Let the broker say where to go on."""
        self._go(PositionEvent.RESET, version)
        self.policy = policy
        self.preferred_replica = None

    def store(self, offset: OffsetAndMetadata) -> None:
        """The user is through with what comes before an offset."""
        self.stored, self.stored_id = offset, self.id_of(offset.offset)

    @property
    def through(self) -> tuple[OffsetAndMetadata | None, bytes | None]:
        """Up to where the user is through, with the topic's id; nowhere in a topic that was created again since."""
        same = self.topic_id in {self.stored_id, None} or self.stored_id is None
        return (self.stored, self.stored_id) if same else (None, None)

    def id_of(self, offset: int) -> bytes | None:
        """The id of the topic that an offset is of which the user commits, if it is known."""
        if self.state is PositionState.VALID and offset == self.position:
            return self.topic_id
        return self.read_id or self.topic_id

    def recognise(self, topic_id: bytes) -> bool:
        """The topic has this id now; False if that is another topic than before, which the position is not in."""
        if self.topic_id in {topic_id, None}:
            self.topic_id = topic_id
            return True
        if topic_id == self.former_id:  # a broker that lags behind
            return True
        self.former_id, self.topic_id = self.topic_id, topic_id
        return False

    def served(self, topic_id: bytes) -> bool:
        """A leader has read from the topic of this id, so that is the one, whatever the metadata of some broker said;
        False if it was thought to be another."""
        if self.topic_id in {topic_id, None}:
            self.topic_id = topic_id
            return True
        self.former_id, self.topic_id = self.topic_id, topic_id
        return False

    def doubt(self, topic_id: bytes | None) -> None:
        """A coordinator does not know this id: if it is the topic's, the metadata are believed that name another."""
        if topic_id is not None and topic_id == self.topic_id:
            self.former_id = None
