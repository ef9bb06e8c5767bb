"""What was fetched and waits for `poll`: bookkeeping without I/O or clock.

Completed fetches wait undecoded, in order of arrival. That of a paused partition is kept for as long as nobody else
needs its room.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from kclient.consumer.fetch.budget import Frame
from kclient.consumer.fetch.completed_fetch import CompletedFetch
from kclient.consumer.partition_state import PositionState
from kclient.consumer.reset import ResetKind
from kclient.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.consumer.fetch.budget import FetchBudget
    from kclient.consumer.partition_state import PartitionState
    from kclient.consumer.subscription import SubscriptionState

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")

_Before: TypeAlias = "tuple[int, int, int, int | None, bytes | None]"
"""What a partition was before records of it were taken: its version, and the one that the taking gave it; position,
epoch and `read_id`."""

_LITTLE = 0.75
"""How much of a response is copied at most, to be rid of the rest."""


class FetchBuffer:
    """The completed fetches of one consumer.

    Args:
        subscriptions: The partitions and positions; the buffer moves their positions as it hands out.
        budget: The bytes that are held.
    """

    def __init__(self, subscriptions: SubscriptionState, budget: FetchBudget) -> None:
        self.crowded: bool = False
        """Whether something cannot be fetched for want of room that a paused partition takes: see `drop_paused`."""
        self._subscriptions = subscriptions
        self._budget = budget
        self._ready: deque[CompletedFetch] = deque()
        self.changing: bool = False
        """Whether something is being changed; or was not changed whole, because an exception of a signal handler came
        amid, and `start_over` is due. Under the lock."""
        self.taken: dict[PartitionState, _Before] | None = None
        """The partitions of which records were taken that nobody may have got yet, as they were before. Whoever hands
        the records to the user forgets it last, where no signal can come any more."""

    @property
    def size(self) -> int:
        """Bytes that were fetched and are still held: whole responses, until their last part is handed out."""
        return self._budget.buffered

    # ------------------------------------------------------------------ signals

    def start_over(self) -> None:
        """What was fetched is fetched again. Under the lock.

        What was taken goes back first: the versions say no more afterwards whether it may.
        """
        self.put_back()
        for state in self._subscriptions:
            if state.state is PositionState.VALID:
                self._subscriptions.stay(state)
            elif isinstance(state.attempt, CompletedFetch) and state.attempt not in self._ready:
                self._ready.append(state.attempt)
        self._ready = deque(completed for completed in self._ready if not self._stale(completed))
        self._budget.recount(completed.frame for completed in self._ready if completed.frame is not None)
        self.changing = False

    def _begin_change(self) -> None:
        if self.changing:
            self.start_over()
        self.changing = True

    def note(self, state: PartitionState) -> None:
        """Records of it are about to be taken. Of several fetches the first one says where to go back to."""
        assert self.taken is not None
        self.taken.setdefault(state, (state.version, state.version, state.position, state.epoch, state.read_id))

    def put_back(self) -> None:
        """Go back to where the records begin that were taken and that nobody got. Under the lock."""
        for state, (version, given, position, epoch, read_id) in (self.taken or {}).items():
            if state.version in {version, given} and self._subscriptions.find(state.tp) is state:
                self._subscriptions.go_back(state, position, epoch, read_id)
        self.taken = None

    # ------------------------------------------------------------------ taking in

    def add(self, completed: CompletedFetch) -> None:
        """One more fetch is completed, or an error came instead."""
        state = completed.state
        if completed.error is None:
            state.fetch_offset = completed.next_offset
            state.fetch_epoch = completed.epoch
            state.buffered += completed.size
        else:
            # nothing can be fetched behind it before poll has dealt with it
            state.attempt = completed
        self._ready.append(completed)

    def made_anew(self, state: PartitionState) -> None:
        """The topic was deleted and created again: what was fetched is of the old one, and so is the position."""
        state.high_watermark = state.last_stable_offset = state.log_start_offset = state.told_at = None
        state.preferred_replica = None
        policy = self._subscriptions.default_policy
        if policy.kind is not ResetKind.NONE:
            error = deleted_position(state)
            self._subscriptions.reset(state.tp)
            logger.warning("%s; going on, because auto.offset.reset is %s", error, policy.kind.value)
            self.drop_stale()
            return
        self._subscriptions.outdate(state)
        self.drop_stale()
        self._complain_of_position(state)

    def _complain_of_position(self, state: PartitionState) -> None:
        """Raise it with each turn, until the user says where to go on."""
        self.add(CompletedFetch.failure(state, deleted_position(state)))

    # ------------------------------------------------------------------ handing out

    def head(self) -> CompletedFetch | None:
        """The first completed fetch that may be handed out; what nobody waits for any more is thrown away."""
        if not self._ready:
            return None
        first = self._ready[0]
        if not first.state.paused and not self._stale(first):
            return first
        self._begin_change()
        kept: list[CompletedFetch] = []
        found: CompletedFetch | None = None
        while self._ready:
            completed = self._ready[0]
            if self._stale(completed):
                self._ready.popleft()
                self._release(completed)
            elif completed.state.paused:
                kept.append(self._ready.popleft())
            else:
                found = completed
                break
        self._ready.extendleft(reversed(kept))
        self.changing = False
        return found

    def _stale(self, completed: CompletedFetch) -> bool:
        state = completed.state
        return state.version != completed.version or self._subscriptions.find(state.tp) is not state

    def _release(self, completed: CompletedFetch) -> None:
        if completed.frame is not None:
            self._budget.release(completed.frame)

    def advance(self, completed: CompletedFetch, count: int) -> bool:
        """`count` records of the first completed fetch are handed out; moves the position behind them.

        Returns:
            Whether the completed fetch is used up, so that there is room to fetch more.
        """
        assert completed.records is not None
        left = len(completed.records) - completed.index - count
        if not left and completed.rest is None:
            self.finish(completed)
            return True
        self.move(completed, count)
        completed.index += count
        if not left:
            completed.go_on()
        return False

    def move(self, completed: CompletedFetch, count: int) -> None:
        """Move the position behind the next `count` records, and nothing else."""
        state = completed.state
        offset, epoch = completed.place_behind(count)
        state.position, state.epoch = offset, epoch
        if count:
            state.read_id = state.topic_id

    def advance_to(self, completed: CompletedFetch, offset: int) -> None:
        """The records of a completed fetch up to an offset are handed out, of which a batch begins there."""
        completed.state.position, completed.state.epoch = offset, completed.epoch_before(offset)
        completed.state.read_id = completed.state.topic_id
        completed.go_on()

    def finish(self, completed: CompletedFetch) -> None:
        """A fetch is used up: the position is behind it, even where it ends with records that are not for users."""
        state = completed.state
        self._ready.remove(completed)
        self._release(completed)
        if completed.broken:
            version = self._subscriptions.next_version()
            if self.taken is not None and state in self.taken:
                self.taken[state] = (state.version, version, *self.taken[state][2:])
            state.jump(completed.next_offset, state.epoch, version)
            state.read_id = state.topic_id
        elif completed.error is None:
            state.read_id = state.topic_id
            state.position = completed.next_offset
            state.epoch = completed.epoch
            state.buffered -= completed.size
        elif state.attempt is completed:
            state.attempt = None
            if state.state is PositionState.OUTDATED:
                self._complain_of_position(state)

    def still_there(self, completed: CompletedFetch) -> bool:
        """Whether a completed fetch that was handed out in part has not been thrown away since."""
        return not self._stale(completed) and completed in self._ready

    @property
    def has_ready(self) -> bool:
        """Whether something can be handed out."""
        return any(not completed.state.paused and not self._stale(completed) for completed in self._ready)

    def available(self) -> Iterator[CompletedFetch]:
        """Everything that can be handed out now, in order."""
        return (
            completed for completed in list(self._ready) if not completed.state.paused and not self._stale(completed)
        )

    def drop_stale(self) -> None:
        """Throw away what nobody waits for any more, to make room."""
        self._begin_change()
        self._drop_stale()
        self.changing = False

    def _drop_stale(self) -> None:
        stale = [completed for completed in self._ready if self._stale(completed)]
        for completed in stale:
            self._ready.remove(completed)
            self._release(completed)

    def drop_paused(self) -> None:
        """Make room where it is wanted, and no more than is needed, out of what paused partitions have.

        If they have little left of a response, it is kept without the rest. Where that is not enough it is thrown away,
        first of those that have been paused for longest, and fetched again when they go on. To be called between polls
        only, when no completed fetch is being handed out.
        """
        self._begin_change()
        self.crowded = False
        self._drop_stale()
        spare = self._spare()
        for frame in self._budget.to_free(spare):
            fetches = spare[frame]
            if _has_little_left(frame, fetches):
                self._keep_apart(fetches)
            else:
                for completed in fetches:
                    self._subscriptions.stay(completed.state)
        self._drop_stale()
        self.changing = False

    def _spare(self) -> dict[Frame, list[CompletedFetch]]:
        """The responses of which only paused partitions have something left, in the order in which to do without."""
        held: dict[Frame, list[CompletedFetch]] = {}
        for completed in self._ready:
            if completed.frame is not None and not self._stale(completed):
                held.setdefault(completed.frame, []).append(completed)
        spare = [item for item in held.items() if all(completed.state.paused for completed in item[1])]
        spare.sort(key=lambda item: (not _has_little_left(*item), max(completed.state.pause for completed in item[1])))
        return dict(spare)

    def _keep_apart(self, fetches: list[CompletedFetch]) -> None:
        """Copy what is left of a response, so that its memory is free."""
        for completed in fetches:
            completed.state.buffered -= completed.size
            self._release(completed)
            completed.cut()
            completed.state.buffered += completed.size
            assert completed.frame is not None
            completed.frame = Frame(completed.frame.node_id, completed.size)
            self._budget.hold(completed.frame)

    def notice_crowding(self) -> None:
        """Fetches were planned: see whether a broker was not asked for want of room that paused partitions take, and
        nothing of it is at hand."""
        self.crowded = self._is_crowded()

    def _is_crowded(self) -> bool:
        short = self._budget.short_of
        for completed in self._ready:
            if not short:
                return False
            if completed.frame is not None and not completed.state.paused and not self._stale(completed):
                short.pop(completed.frame.node_id, None)
        return bool(self._budget.to_free(self._spare())) if short else False


def _has_little_left(frame: Frame, fetches: list[CompletedFetch]) -> bool:
    """Whether it is worth copying what completed fetches have left, to be rid of the response that they are of."""
    return sum(completed.left for completed in fetches) <= _LITTLE * frame.size


def deleted_position(state: PartitionState) -> OffsetOutOfRangeError:
    """The error of a position in a topic that was deleted and created again."""
    return OffsetOutOfRangeError(
        f"Topic {state.tp.topic!r} was deleted and created again: offset {state.position} of {state.tp} is one of the "
        "deleted topic",
        offsets={state.tp: state.position},
    )
