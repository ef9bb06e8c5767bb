"""Handing out what a share group's brokers hold for this consumer: as lists of records, one by one, or as columns.

Runs in the caller's thread or task. What is handed out is in the user's hand; a call that failed or was interrupted
puts it back, and the next one hands it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.consumer.fetch.completed_fetch import ENOUGH
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.share.model import AcknowledgeType
from kclient.consumer.share.opening import one_batch, open_again, open_columns, open_records, reject_batch
from kclient.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kclient.concurrency import MomentLock
    from kclient.consumer.share.acquired import Acquired
    from kclient.consumer.share.hand import Hand
    from kclient.consumer.share.opening import Opened
    from kclient.consumer.share.sessions import ShareSessions
    from kclient.metrics.windows import MetricTally
    from kclient.records import ConsumerRecord
    from kclient.types import TopicPartition


class ShareCollector:
    """Hands out records of one share consumer.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        sessions: Have what was acquired.
        hand: Has what the user got.
        subscribed: The topics that the user wants.
        records: Counts those that are handed out.
        max_poll_records: `max.poll.records`.
        decode_options: Arguments for `records.decode_records`.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        sessions: ShareSessions,
        hand: Hand,
        subscribed: Callable[[], frozenset[str]],
        records: MetricTally,
        max_poll_records: int,
        decode_options: Mapping[str, Any],
    ) -> None:
        self.taken: list[tuple[Acquired, list[int]]] | None = None
        """What a poll has taken, and its caller has not got yet."""
        self._records = records
        self._clock = clock
        self._lock = lock
        self._sessions = sessions
        self._hand = hand
        self._subscribed = subscribed
        self._max_poll_records = max_poll_records
        self._options = decode_options
        self._column_options = {name: decode_options[name] for name in ("check_crcs", "max_decompressed")}
        self._current: Acquired | None = None
        """Of what records are handed out now."""
        self._opened: Opened | None = None
        """What was decoded of it, or is returned again."""
        self._last: tuple[Acquired, int] | None = None
        """The record that iteration has handed out last: it counts as processed when the next one is asked for."""

    # ------------------------------------------------------------------ not handed out after all

    def settle(self) -> None:
        """Nothing is handed out ahead of the user."""

    def put_back(self) -> None:
        """What was taken and nobody got is returned by the next poll: the call was interrupted."""
        with self._lock:
            taken, self.taken = self.taken, None
            for acquired, offsets in taken or ():
                acquired.put_back(offsets)

    def drop(self) -> None:
        """Under the lock: nothing more is handed out of what was acquired."""
        self._current = self._opened = None

    def has_ready(self) -> bool:
        """Under the lock: whether there may be something to hand out."""
        if self._hand.renews:
            return bool(self._hand.renewed())
        return bool((self._current is not None and not self._current.delivered) or self._sessions.buffer)

    # ------------------------------------------------------------------ lists

    def take(self, limit: int | None = None) -> ConsumerRecords | None:
        """Up to so many records, or `max.poll.records`; None if nothing is there.

        Raises:
            KafkaError: The next record or batch is broken.
        """
        left = limit or self._max_poll_records
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        self._begin()
        while left > 0 and self._open_next():
            opened = self._opened
            assert opened is not None
            if opened.index == len(opened.records):
                if found:
                    break
                self._raise_error(opened)
                continue
            with self._lock:
                assert self.taken is not None
                offsets = [record.offset for record in opened.records[opened.index : opened.index + left]]
                self.taken.append((opened.acquired, offsets))
                part = opened.take(left)
            if part:
                tp = opened.acquired.partition.tp
                found[tp] = found[tp] + part if tp in found else part
                left -= len(part)
        if not found:
            return None
        self._records.total += sum(map(len, found.values()))
        return ConsumerRecords(found)

    def _begin(self) -> None:
        """A poll begins: what is to be returned again may be more than was opened."""
        with self._lock:
            if self._opened is not None and self._opened.again:
                self._opened = None
            self.taken = []

    def _raise_error(self, opened: Opened) -> None:
        with self._lock:
            error, opened.error = opened.error, None
            self._opened = None
            if opened.broken is not None:
                opened.acquired.skip(opened.position, opened.broken)
        if error is not None:
            raise error

    def _open_next(self) -> bool:
        """Have `_opened` hold something to hand out or to raise; False if there is nothing."""
        while True:
            with self._lock:
                acquired = self._next()
            if acquired is None:
                return False
            if self._opened is not None:
                return True
            opened = open_again(acquired, self._options) if acquired.renewed else open_records(acquired, self._options)
            if opened.records or opened.error is not None:
                self._opened = opened
                return True
            with self._lock:
                if opened.again:
                    acquired.renewed.clear()  # there is nothing to return
                elif acquired.lost is None:
                    acquired.deliver([], max(opened.position, acquired.position))

    def _next(self) -> Acquired | None:
        """Under the lock: of what records come next. What was opened of anything else is dropped."""
        now = self._clock()
        opened = self._opened
        if opened is not None:
            acquired = opened.acquired
            acquired.expire(now)
            left = opened.index < len(opened.records) and (opened.again or not acquired.delivered)
            if acquired.lost is None and (left or opened.error is not None):
                return acquired
            self._opened = None
        for acquired in self._hand.renewed():
            acquired.expire(now)
            if acquired.renewed:
                return acquired
        if self._hand.renews:
            return None  # as in the Java client, those come first
        return self._next_new(now)

    def _next_new(self, now: float) -> Acquired | None:
        while True:
            if self._current is not None:
                self._current.expire(now)
                if not self._current.delivered:
                    return self._current
                self._current = None
            if not self._sessions.buffer:
                return None
            acquired = self._sessions.buffer.popleft()
            self._hand.take(acquired)
            if acquired.partition.topic in self._subscribed():
                self._current = acquired
            else:
                acquired.skip(acquired.end, AcknowledgeType.RELEASE)

    # ------------------------------------------------------------------ one by one

    def refill(self) -> bool:
        """Have something for `next_record`; False if nothing is there.

        Raises:
            KafkaError: The next record or batch is broken.
        """
        self._begin()
        while self._open_next():
            opened = self._opened
            assert opened is not None
            if opened.index < len(opened.records):
                return True
            self._raise_error(opened)
        return False

    def next_record(self) -> ConsumerRecord | None:
        """The next record of those that `refill` has found."""
        with self._lock:
            if self._hand.explicit and self._hand.unsettled:
                return None  # a poll says why not
            if self._last is not None and not self._hand.explicit:
                acquired, offset = self._last
                acquired.choose(offset, AcknowledgeType.ACCEPT)
            self._last = None
            opened = self._opened
            while opened is not None and self._next() is opened.acquired and self._opened is opened:
                if opened.index == len(opened.records):
                    return None
                part = opened.take(1)
                if part:
                    self._records.total += 1
                    self._last = opened.acquired, part[0].offset
                    return part[0]
            return None

    # ------------------------------------------------------------------ columns

    def take_arrow(self, names: Sequence[str], most: int | None) -> Any:
        """Everything that was acquired, or about `most` bytes of it, as one record batch; None if nothing is there.

        Raises:
            KafkaError: The next batch is damaged.
        """
        left = ENOUGH if most is None else most
        pieces: list[Any] = []
        self._begin()
        while left > 0:
            with self._lock:
                self._opened = None  # as columns, it is decoded anew
                acquired = self._next()
            if acquired is None:
                break
            try:
                batch = self._take_columns(acquired, names, left)
            except CorruptRecordError as error:
                if pieces:
                    break
                with self._lock:
                    told = reject_batch(acquired, error)
                if told is not None:
                    raise told from None
                continue
            left -= batch.nbytes
            if batch.num_rows:
                pieces.append(batch)
        if not pieces:
            return None
        rows = pieces[0] if len(pieces) == 1 else one_batch(pieces, pieces[0].schema)
        self._records.total += rows.num_rows
        return rows

    def _take_columns(self, acquired: Acquired, names: Sequence[str], most: int) -> Any:
        """What comes next of an acquired batch, up to the first damaged one.

        Raises:
            CorruptRecordError: The very first one is damaged.
        """
        with self._lock:
            again = bool(acquired.renewed)
            ranges = acquired.renewed_ranges() if again else list(acquired.between(acquired.position, acquired.end))
        while True:
            try:
                batch, offsets, position = open_columns(
                    acquired, ranges, names, None if again else most, self._column_options
                )
                break
            except CorruptRecordError as error:
                if again or error.offset is None or error.offset <= ranges[0][0]:
                    raise
                ranges = list(acquired.between(ranges[0][0], error.offset))
        with self._lock:
            assert self.taken is not None
            self.taken.append((acquired, offsets))
            if again:
                acquired.redeliver(offsets)
                acquired.renewed.clear()
            elif acquired.lost is None:
                acquired.deliver(offsets, max(position, acquired.position))
        return batch
