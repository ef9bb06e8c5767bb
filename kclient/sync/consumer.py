"""The consumer for blocking code.

`poll` takes what was fetched from where the loop's thread put it, and decodes it in the caller's thread. While
something is there it does not cross to the other thread at all; while nothing is, it waits on a `ThreadSignal`.
Heartbeats and fetches go on in the loop's thread, whatever the caller does meanwhile.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kclient.arguments import as_count, as_partition, as_partitions, check_choice
from kclient.cluster import leaves_in_order
from kclient.concurrency import ThreadSignal, drive, stands_in
from kclient.consumer.actions import Action, Await, Call, Wait
from kclient.consumer.base import CLOSE_TIMEOUT, LONG, ConsumerBase, close_timeout, deadline_of
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.reset import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kclient.errors import IllegalStateError
from kclient.records import decode_arrow
from kclient.records.arrow import column_names
from kclient.sync.beginning import Beginning, StartedByWith, orphaned

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from kclient.config import ConfigInput
    from kclient.records import ConsumerRecord
    from kclient.sync.portal import Portal
    from kclient.types import (
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Offsets,
        Partition,
        PartitionInfo,
        Timestamps,
        TopicPartition,
    )

T = TypeVar("T")

_SLICE = 1.0
"""Seconds after which a wait looks whether the loop's thread is still alive."""


class Consumer(StartedByWith, ConsumerBase):
    """Reads records from Kafka, or from a kclient gateway, in blocking code.

    Use it with `with`: leaving commits (with `enable.auto.commit`) and leaves the group; leaving by KeyboardInterrupt
    does so without waiting. Without `with`, it starts with the first call; `close` it in the end. One thread uses it
    at a time, except for `wakeup` and `close`, which any thread may call.

    Records, rebalance listeners, deserializers, interceptors and callbacks are all handled in the thread that polls.
    Heartbeats are sent by another thread, however long the processing takes; but if the time between two polls exceeds
    `max.poll.interval.ms`, the consumer leaves its group.

    A `poll` that a signal handler interrupts has handed out nothing: the next one returns the same records.

    Args:
        topics: Topics to subscribe to; or call `subscribe` or `assign` later. A mapping, or the path
            (`*.properties`) or text of properties, is taken as `config` here.
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case, such as `bootstrap_servers` or `group_id`; they win.

    Raises:
        ConfigError: A setting is unknown or wrong.
        NotYetSupportedError: A setting asks for what kclient cannot do yet.
    """

    _remedy = "`with`, or `consumer.close()`"

    def __init__(self, *topics: str | Mapping[str, Any] | Path, config: ConfigInput = None, **settings: Any) -> None:
        self._claims: dict[str, _Claim] = {}
        """That of the poll which is under way, if there is one."""
        self._stealing = threading.RLock()
        """Held for moments, while a claim is taken away that an interrupt has left behind."""
        self._broken_off = False
        """Whether a poll raised something, and it is not yet seen to what that leaves."""
        self._ready = ThreadSignal()
        super().__init__(*topics, config=config, **settings)
        self._readiness.signal = self._ready.set
        self._beginning = Beginning("consumer", self._core.start)

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<sync.Consumer {core!r}>" if core is not None else "<sync.Consumer, not made>"

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the background tasks; `with` and the first call do it. It does not wait for a broker."""
        self._running()

    def _running(self) -> Portal:
        """The portal; starts the consumer if it was not started."""
        if self._beginning.portal is None:
            _open_consumers.add(self)
        return self._beginning.running()

    def _check(self) -> None:
        self._running()
        super()._check()

    def _check_here(self) -> None:
        if not self._core.life.is_ours:
            raise orphaned("consumer")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(CLOSE_TIMEOUT if leaves_in_order(error) else 0)

    def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit the positions (with `enable.auto.commit`), leave the group, end the tasks. May be called again.

        A thread that polls meanwhile gets a `ClosedError`. A call while another thread closes the consumer waits for
        that; when its own time is over, or if it is interrupted, both give up. A static member (`group.instance.id`)
        does not leave by itself, so that it finds its partitions again.

        Args:
            timeout: Seconds to wait for brokers; None is 30, 0 neither commits nor waits.
            leave_group: Whether the group is told, so that the other members share its partitions at once (KIP-1092).
                None: yes, unless it is a static member. With False the group waits for `session.timeout.ms` for a
                member that comes back, which only a static one does. With `group.protocol=consumer` a static member's
                partitions wait for it unless this is True, for as long as the broker's session timeout.

        Raises:
            TypeError: `leave_group` is not True, False or None.
        """
        core = self._core
        if self._beginning.elsewhere:
            return  # the parent's consumer goes on there
        seconds = close_timeout(timeout)
        check_choice(leave_group, "leave_group")
        me = threading.get_ident()
        if core.life.closure.is_by(me) and self._amid_close():
            return  # what a call of this calls
        portal = self._beginning.end()  # first of all: where it refuses, a later call closes
        _open_consumers.discard(self)
        try:
            try:
                if core.closing(me):
                    deadline = core.clock() + seconds
                    poll = self._claims.get(_POLL)
                    if seconds and poll is not None and poll.thread != me and self._is_live(poll):
                        self._wait_out(poll, deadline)  # its rebalance goes on no more then
                    self._collector.settle()
                    core.look_again()
                    drive(core.departure.close(max(deadline - core.clock(), 0), leave_group), self._carry_out)
                    return
            finally:
                if core.life.closure.is_by(me):
                    self._beginning.begun().call(self._shut)
        except BaseException:
            if portal is not None and core.life.closure.is_by(me):  # interrupted at last: it ends without this call
                portal.spawn(self._shut)
                core.life.closure.leave()
            raise
        if portal is not None:
            portal.call(self._closed_by_another, seconds)
        # what is left of them if the other call was interrupted
        drive(core.notices.run_callbacks(), self._carry_out)

    def _amid_close(self) -> bool:
        """Whether `close` is called by what it calls; else one that was interrupted repeatedly has left it undone."""
        return stands_in(sys._getframe(2), _CLOSE_CODE, "self", self)

    async def _shut(self) -> None:
        try:
            await self._core.shut()
        finally:
            try:
                await self._core.supervisor.aclose()
            finally:
                self._core.life.closure.end()

    async def _closed_by_another(self, timeout: float) -> None:
        try:
            await self._core.closed_by_another(timeout)
        finally:
            await self._core.supervisor.aclose()

    def _carry_out(self, action: Action) -> Any:
        match action:
            case Wait(until):
                return self._wait(until)
            case Call(function, arguments):
                return _call(function, arguments)
            case Await(function, arguments):
                return self._beginning.begun().call(function, *arguments)

    def _wait(self, until: float) -> None:
        """Wait until the loop's thread has something, or the time has come."""
        portal = self._beginning.begun()
        while (left := until - self._core.clock()) > 0:
            if self._ready.wait(min(left, _SLICE)):
                break
            portal.check()
        self._ready.clear()

    def _wait_for(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Have the loop's thread do what `wakeup` may end."""
        found: T = self._running().call(self._core.waits.interruptible, function, *arguments)
        return found

    # ------------------------------------------------------------------ what to read

    def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; waits a second at most until the coordinator knows."""
        self._check()
        self._collector.settle()
        drive(self._core.departure.unsubscribe(), self._carry_out)

    # ------------------------------------------------------------------ records

    def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> ConsumerRecords:
        """The next records, at most `max.poll.records`; waits until there are some.

        What earlier polls returned counts as processed from now on: auto commit commits it. Joining the group and
        rebalance listeners happen inside this call.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there.
            max_records: At most so many records; None is `max.poll.records`.

        Returns:
            The records; empty when the time is over first.

        Raises:
            ValueError: The timeout is negative, or `max_records` below 1.
            TypeError: One of them is no number.
            WakeupError: `wakeup` was called.
            NoOffsetForPartitionError: A partition has no position, and `auto.offset.reset` is `none`.
            OffsetOutOfRangeError: A position does not exist any more, and `auto.offset.reset` is `none`.
            RecordDeserializationError: A record cannot be deserialized; seek past it to go on.
            CorruptRecordError: A batch is damaged; seek past it to go on.
            KafkaError: The group refused this member, or a background task failed.
        """
        take = self._collector.take
        if max_records is not None:
            take = partial(take, as_count(max_records, "max_records"))
        records: ConsumerRecords | None = self._poll(timeout, take)
        return ConsumerRecords() if records is None else records

    def joined(self, timeout: float | None = None) -> set[TopicPartition]:
        """Wait until this is a member of its group, without taking records; what it reads then.

        It counts as a poll without records: what earlier polls returned counts as processed, listeners are called in
        here, and `max.poll.interval.ms` begins anew. Called again while it is a member, it returns at once.

        Args:
            timeout: Seconds; None is `default.api.timeout.ms`.

        Returns:
            The assignment, perhaps empty: there may be more members than partitions, and with a cooperative assignor
            what others have to give up first comes by a later rebalance.

        Raises:
            IllegalStateError: It is not subscribed.
            KafkaTimeoutError: It did not become one in time, and why, as far as that is known; it goes on joining with
                the next call, or poll.
            WakeupError: `wakeup` was called.
            KafkaError: The group refused this member, or a background task failed.
        """
        self._check()
        seconds = self._seconds(timeout)
        if not self._core.subscriptions.uses_group:
            raise IllegalStateError("There is no group to join: subscribe first")
        if not self._poll(seconds, self._core.has_joined):
            raise self._core.not_joined(seconds)
        return self.assignment()

    def poll_arrow(
        self,
        timeout: float = 0.0,
        *,
        include_headers: bool = False,
        columns: Iterable[str] | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """As `poll`, as columns: everything that was fetched, up to 16 MB of it, in one `pyarrow.RecordBatch`.

        The schema is that of Spark's Kafka source; keys and values are bytes, deserializers are not called, and
        `max.poll.records` does not apply.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there.
            include_headers: Whether to add the column `headers`.
            columns: The names of the columns that are wanted, in their order; None for all. What is not wanted is not
                copied, and of batches that need not be opened for it not even decompressed: see `decode_arrow`.
            max_bytes: Bytes of records, after decompression, behind which no further batch is opened: so many there are
                at most, and those of one batch of the producer's. By default as many as were fetched, or 16 MB.

        Returns:
            The record batch; without rows when the time is over first.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError: The columns are no names, or max_bytes is no number.
            ValueError: A column is unknown or named twice, max_bytes is below 1; or as for `poll`.
            KafkaError: As for `poll`.
        """
        names, most = column_names(columns, include_headers), as_count(max_bytes, "max_bytes")
        batch = self._poll(timeout, lambda: self._collector.take_arrow(names, most))
        return decode_arrow([], columns=names) if batch is None else batch

    def _poll(self, timeout: float, take: Any) -> Any:
        claim = _Claim()
        claims = self._claims
        try:
            self._begin_poll(claim)
            self._running()
            self._core.life.check_polling()
            if self._broken_off:
                self._recover()
            self._collector.settle()
            found = drive(self._core.polling.poll(deadline_of(self._core, timeout), take), self._carry_out)
            claim.over.set()
        except BaseException:
            try:
                if self._claims.get(_POLL) is claim:
                    self._broken_off = True
                    self._recover()
            finally:
                self._end_poll(claim)
            raise
        # No signal and no other thread comes between from here on, as nothing is called. The records are the user's
        # before the claim is gone: whoever polls or closes next puts back what a poll has left.
        self._buffer.taken = None
        if _POLL in claims and claims[_POLL] is claim:
            del claims[_POLL]
        return found

    def _recover(self) -> None:
        """A poll raised something, which may have been a signal handler's."""
        self._collector.put_back()
        self._core.look_again()
        self._broken_off = False

    def _end_poll(self, claim: _Claim) -> None:
        if self._claims.get(_POLL) is claim:
            del self._claims[_POLL]
        claim.over.set()

    def _wait_out(self, claim: _Claim, deadline: float) -> None:
        """Wait until the poll of another thread has returned, or has raised and put back what nobody got."""
        clock = self._core.clock
        claim.over.wait(deadline - clock())
        while self._claims.get(_POLL) is claim and clock() < deadline and self._is_live(claim):
            time.sleep(0.001)

    def _begin_poll(self, claim: _Claim) -> None:
        """One thread polls at a time. A claim whose poll is gone was left behind by an interrupt amid `_end_poll`."""
        while (other := self._claims.setdefault(_POLL, claim)) is not claim:
            self._core.life.check_polling()
            if self._is_live(other):
                raise IllegalStateError("Another thread is polling this consumer: one thread polls at a time")
            with self._stealing:
                if self._claims.get(_POLL) is other:
                    del self._claims[_POLL]

    def _is_live(self, claim: _Claim) -> bool:
        """Whether a poll is still under way: each has a claim of its own, and its frame goes with it."""
        for _ in range(_LOOKS):
            if self._claims.get(_POLL) is not claim or any(
                stands_in(frame, _POLL_CODE, "claim", claim) for frame in sys._current_frames().values()
            ):
                return True
            time.sleep(0.001)
        return False

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for it. A record counts as processed when the next one is asked for."""
        readiness = self._readiness
        if not readiness.poll_needed and readiness.clock() < readiness.poll_due:
            record = self._collector.next_record()
            if record is not None:
                return record
        while True:
            self._poll(LONG, self._collector.refill)
            record = self._collector.next_record()
            if record is not None:
                return record

    # ------------------------------------------------------------------ commits

    def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit and wait for it, trying again what can be.

        If it is interrupted, the offsets may be committed or not.

        Args:
            offsets: The offset of the next record to read in each partition; None commits the positions, which are
                behind everything that was returned.
            timeout: Seconds; None is `default.api.timeout.ms`.

        Raises:
            CommitFailedError: The group gave the partitions to others meanwhile (names the setting to change).
            RebalanceInProgressError: The group rebalances: poll, then commit again.
            KafkaTimeoutError: It did not succeed in time.
        """
        self._check()
        self._collector.settle()
        drive(self._commit_script(offsets, timeout), self._carry_out)

    def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group; None where nothing was committed.

        Raises:
            KafkaTimeoutError: No answer in time.
            InvalidGroupIdError: There is no `group.id`.
        """
        self._check()
        committed = self._core.group().committed
        wanted = as_partitions(partitions)
        return self._wait_for(committed.fetch, wanted, self._seconds(timeout))

    # ------------------------------------------------------------------ positions

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that will be returned; waits until it is known.

        Raises:
            IllegalStateError: The partition is not assigned.
            KafkaTimeoutError: It did not become known in time.
        """
        self._check()
        self._collector.settle()
        return self._wait_for(self._core.positions.position, as_partition(partition), self._seconds(timeout))

    # ------------------------------------------------------------------ looking

    def offsets_for_times(
        self, timestamps: Timestamps, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition; None where there is none.

        Args:
            timestamps: Milliseconds since the epoch.
            timeout: Seconds; None is `default.api.timeout.ms`.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        return self._wait_for(self._core.queries.offsets_for_times, timestamps, self._seconds(timeout))

    def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the oldest record of each partition.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        wanted = as_partitions(partitions)
        return self._wait_for(self._core.queries.offsets_at, wanted, EARLIEST_TIMESTAMP, self._seconds(timeout))

    def end_offsets(self, partitions: Iterable[Partition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each partition (with `read_committed`: the last stable one).

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        wanted = as_partitions(partitions)
        return self._wait_for(self._core.queries.offsets_at, wanted, LATEST_TIMESTAMP, self._seconds(timeout))

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic.

        Raises:
            KafkaTimeoutError: Nothing is known of it in time.
            InvalidTopicError: The name is empty.
        """
        self._check()
        return self._wait_for(self._core.queries.partitions_for, topic, self._seconds(timeout))

    def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that may be described, with their partitions; Kafka's own (internal) ones too, as in Java.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        self._check()
        return self._wait_for(self._core.queries.list_topics, self._seconds(timeout))


class _Claim:
    """That one thread, and no other, polls a consumer now: one for each poll."""

    __slots__ = ("over", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = ThreadSignal()
        """Set when the poll is over, or about to return."""


_POLL: Final = "poll"
_LOOKS: Final = 20
_POLL_CODE: Final = Consumer._poll.__code__
_CLOSE_CODE: Final = Consumer.close.__code__


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    result = function(*arguments)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{function!r} is a coroutine function; kclient.sync needs a plain one")
    return result


_open_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _after_fork() -> None:
    for consumer in list(_open_consumers):
        consumer._core.life.fail(orphaned("consumer"))
        consumer._readiness.poll_needed = True  # also where records are at hand: they are the parent's
    _open_consumers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
