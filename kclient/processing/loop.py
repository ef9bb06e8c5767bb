"""Reads, processes and commits: the scripts that the async and the blocking face carry out.

`ProcessingLoop` decides what is done next; it neither awaits nor blocks. Everything happens in the task or thread that
calls `run`: polls, rebalances inside them, commits. Only the function may run side by side, for several partitions, and
is through before anything else goes on, so that a commit holds whole records.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.errors import (
    ClosedError,
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordDeserializationError,
    TransactionAbortableError,
    WakeupError,
)
from kclient.processing.actions import Ask, Collect, Idle, ProcessRun, SendOutputs, WorkThrough
from kclient.processing.backlog import Backlog
from kclient.processing.decisions import FailureDecisions, FinalError, in_context, noted
from kclient.processing.failures import DeadLetter, ProcessingFailure, Raise, Retry, Skip
from kclient.processing.outcomes import is_about_the_transaction, passes
from kclient.processing.progress import ProgressCounter
from kclient.processing.setbacks import Setbacks
from kclient.processing.states import PROCESSING_TABLE, ProcessingEvent, ProcessingState
from kclient.state_tables import next_state
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.consumer import ConsumerRecord
    from kclient.consumer.base import ConsumerBase
    from kclient.processing.actions import ProcessingScript
    from kclient.processing.backlog import RecordTrouble, WorkUnit
    from kclient.processing.failures import FailureAction
    from kclient.processing.settings import ProcessingSettings

logger: logging.Logger = logging.getLogger("kclient.processing")

_POLL = 1.0
"""Seconds that a poll waits while nothing is due."""
_SHARE = 0.5
"""The part of `transaction.timeout.ms` after which no further record is begun; the rest is for the commit."""


@dataclass(frozen=True, slots=True)
class ClientCalls:
    """The methods of the two clients that wait."""

    poll: Callable[..., Any]
    committed: Callable[..., Any]
    init_transactions: Callable[..., Any]
    begin_transaction: Callable[..., Any]
    send_offsets: Callable[..., Any]
    commit_transaction: Callable[..., Any]
    abort_transaction: Callable[..., Any]


class _IncompleteError(Exception):
    """What a record became is not in the transaction, or not all of it: the transaction has to go."""


class ProcessingLoop:
    """What one processor does.

    Args:
        consumer: What it reads from, for what does not wait.
        calls: What waits.
        settings: How.
        clock: Monotonic time in seconds.
        listen: Has `revoked` and `lost` called; returns whether that was not so. By hand assigned partitions need none.
    """

    def __init__(
        self,
        consumer: ConsumerBase,
        calls: ClientCalls,
        settings: ProcessingSettings,
        clock: Callable[[], float],
        listen: Callable[[], bool],
    ) -> None:
        self.in_group: bool = False
        """Whether a group decides what is read."""
        self.stopping: bool = False
        """Whether `stop` was called."""
        self.polling: bool = False
        """Whether records may be under way that a signal has kept from being noted."""
        self.woken: bool = False
        """Whether the consumer was woken for that, and no call of it has ended so."""
        self.wakers: list[None] = []
        """As many as are about to wake it."""
        self.state: ProcessingState = ProcessingState.IDLE
        self.progress: ProgressCounter = ProgressCounter()
        self._consumer = consumer
        self._calls = calls
        self._settings = settings
        self._clock = clock
        self._listen = listen
        self._backlog = Backlog(batch=settings.batch)
        self._setbacks = Setbacks(settings, unnoticed=_POLL)
        self._decisions = FailureDecisions(settings, self._backlog, self.progress)
        self._held: list[TopicPartition] = []
        """What the poll leaves out, because records of it wait."""
        self._began = 0.0
        """When the transaction began."""
        self._slowest = 0.0
        """The longest time that the function took in it."""
        self._units = 0
        """How many it was given in it."""
        self._incomplete = 0
        """How many units were begun in it that are not complete: something of them may be sent already."""
        self._finishing = False
        """Whether it is being committed."""

    def _go(self, event: ProcessingEvent) -> None:
        self.state = next_state(PROCESSING_TABLE, self.state, event, "the processor")

    # ------------------------------------------------------------------ the loop

    def run(self) -> ProcessingScript:
        """Process until `stopping`."""
        yield from self._initialize()
        while not self.stopping:
            if self._setbacks.pause:
                yield from self._finish()  # it may be a long one
                yield Idle(self._setbacks.take_pause())
                continue
            try:
                yield from self._poll()
                yield from self._work()
            except _IncompleteError:
                yield from self._abort(None)
            except KafkaError as error:
                # the errors of the user's own code do not come here: they travel in a `FinalError`
                yield from self._recover(error)
            if self._is_due():
                yield from self._finish()
        yield from self._finish()
        self._seek_back()
        yield from self._forget_wakeup()

    def _forget_wakeup(self) -> ProcessingScript:
        """The consumer was woken, and was not waiting any more: else the next poll of the user's would be ended."""
        while self.wakers:  # another thread is about to
            yield Idle(0.001)
        if self.woken:
            self.woken = False
            with suppress(KafkaError):
                yield Ask(self._calls.committed, ([], 0))

    def _initialize(self) -> ProcessingScript:
        """Get the producer's id; whoever had it is fenced. It may have been done before."""
        while not self.stopping:
            try:
                yield Ask(self._calls.init_transactions)
            except ClosedError:
                raise
            except IllegalStateError:
                return  # it has been: if not, beginning says what is wrong
            except KafkaTimeoutError as error:
                self._setbacks.note(error, "init_transactions", self._clock())
            else:
                self._setbacks.answered()
                return

    def _poll(self) -> ProcessingScript:
        """Read on, except for partitions of which records wait; rebalances happen here."""
        consumer, backlog = self._consumer, self._backlog
        yield from self._follow()
        self.polling = True
        try:
            self._held = [tp for tp in backlog.held(self._clock()) if tp not in consumer.paused()]
            if self._held:
                consumer.pause(self._held)
            records = yield Ask(self._calls.poll, (self._patience(),))
            backlog.add(records)
            self.polling = False
        except WakeupError:
            if not self.stopping:
                raise
            self.woken = False
        except RecordDeserializationError as error:
            yield from self._undecodable(error)
        finally:
            self._resume()
        self.polling = False
        yield from self._follow()

    def _follow(self) -> ProcessingScript:
        """Go on being told of rebalances: who subscribes anew puts another listener, or none, in the place of ours."""
        if not self._listen():
            return
        if self.in_group:
            here = self._consumer.assignment()
            gone = [tp for tp in self._backlog.partitions if tp not in here]
            if gone:
                yield from self.lost(gone)
        self.in_group = True

    def _resume(self) -> None:
        """Read on of the partitions that the poll left out."""
        if self._held:
            here = self._consumer.assignment()
            self._consumer.resume([tp for tp in self._held if tp in here])
            self._held = []

    def _patience(self) -> float:
        """How long to wait for records."""
        now = self._clock()
        due = now + _POLL
        if self.state is ProcessingState.OPEN:
            due = min(due, self._deadline())
        attempt = self._backlog.next_attempt
        if attempt is not None:
            due = min(due, attempt)
        return 0.0 if self.stopping else max(due - now, 0.0)

    def _deadline(self) -> float:
        """When the transaction that is open is to be committed."""
        return self._began + min(self._settings.commit_interval, self._settings.transaction_timeout * _SHARE)

    def _is_due(self) -> bool:
        return self.state is ProcessingState.OPEN and self._clock() >= self._deadline()

    # ------------------------------------------------------------------ the function

    def _work(self) -> ProcessingScript:
        ready = self._backlog.ready(self._clock())
        if not ready or self.stopping:
            return
        if self.state is ProcessingState.IDLE:
            yield from self._begin()
        yield WorkThrough(ready)

    def _begin(self) -> ProcessingScript:
        self._began = self._clock()
        self._setbacks.begun(self._began)
        self._slowest = 0.0
        self._units = 0
        self._incomplete = 0
        self._go(ProcessingEvent.BEGUN)
        try:
            yield Ask(self._calls.begin_transaction)
        except KafkaError as error:  # whatever else is raised, it may have begun
            self._go(ProcessingEvent.REFUSED)
            raise FinalError(error) from None  # no broker was asked: it would be the same another time

    def _is_enough(self) -> bool:
        """Whether no further record is to be begun in this transaction."""
        if self.stopping or self._finishing:
            return True
        if not self._units:
            return False
        return self._clock() >= self._began + self._time_to_work()

    def work(self, tp: TopicPartition) -> ProcessingScript:
        """Process what waits of a partition, in order, until it is enough."""
        while True:
            # counted first, as another thread that closes the consumer first says that it commits, and then looks
            self._incomplete += 1
            if self._is_enough():
                break
            records = self._backlog.run(tp)
            unit = None if records else self._backlog.next_unit(tp, self._clock())
            try:
                if records:
                    yield from self._process_run(tp, records)
                elif unit is not None:
                    yield from self._process(unit)
                    self._units += 1
                else:
                    break
            except KafkaError as error:
                if self.state is ProcessingState.OPEN:
                    raise
                raise _IncompleteError from error  # it was sent into a transaction that `revoked` has ended
            self._incomplete -= 1
        self._incomplete -= 1

    def _process_run(self, tp: TopicPartition, records: tuple[ConsumerRecord, ...]) -> ProcessingScript:
        """Process records one after the other, up to the first that fails."""
        began = self._clock()
        first = True

        def enough() -> bool:
            nonlocal began, first
            now = self._clock()
            if now - began > self._slowest:
                self._slowest = now - began
            began = now
            if self.stopping or self.state is not ProcessingState.OPEN:
                return True
            if first and not self._units:
                first = False
                return False
            return now >= deadline

        deadline = self._began + self._time_to_work()
        run = ProcessRun(records, enough)
        failure: Exception | None = None
        try:
            yield run
        except Exception as error:
            if run.sending and is_about_the_transaction(error):
                raise
            failure = error
        self._slowest = max(self._slowest, self._clock() - began)
        self._units += run.done
        self._check_open()
        self._backlog.processed_run(tp, run.done)
        self.progress.running.records_in += run.done
        self.progress.running.records_out += run.written
        if failure is not None:
            unit = self._backlog.next_unit(tp, self._clock())
            assert unit is not None
            self._units += 1
            yield from self._failed(unit, failure, partly_sent=run.sent > 0)

    def _time_to_work(self) -> float:
        """Seconds from the begin of a transaction in which a further record may be begun."""
        interval = self._settings.commit_interval or self._settings.transaction_timeout
        return min(interval, self._settings.transaction_timeout * _SHARE)

    def _process(self, unit: WorkUnit) -> ProcessingScript:
        trouble = self._backlog.trouble(unit.partition, unit.offset)
        if trouble is not None and trouble.action is not None and trouble.error is not None:
            # decided before the abort: the records are not tried again
            yield from self._carry_out(trouble.action, unit, trouble, trouble.error)
            return
        outputs = SendOutputs([])
        began = self._clock()
        try:
            argument = unit.as_records() if self._settings.batch else unit.records[0]
            collect = Collect(argument)
            try:
                outputs.records = yield collect
                outputs.context = collect.context
            finally:
                self._slowest = max(self._slowest, self._clock() - began)
            if outputs.records:
                yield outputs
        except Exception as error:
            if outputs.records and is_about_the_transaction(error):
                raise
            yield from self._failed(unit, error, partly_sent=outputs.sent > 0)
        else:
            self._done(unit, len(outputs.records))

    def _done(self, unit: WorkUnit, written: int) -> None:
        self._check_open()
        self._backlog.processed(unit)
        self.progress.running.records_in += len(unit.records)
        self.progress.running.records_out += written

    def _check_open(self) -> None:
        """Raise where another task has closed the consumer meanwhile, which has ended the transaction."""
        if self.state is not ProcessingState.OPEN:
            raise _IncompleteError

    # ------------------------------------------------------------------ failures

    def _failed(self, unit: WorkUnit, error: Exception, *, partly_sent: bool) -> ProcessingScript:
        last = unit.records[-1].offset
        trouble, action = yield from self._decisions.decide(unit.partition, unit.offset, last, unit.records, error)
        if isinstance(action, Raise):
            raise FinalError(noted(error, unit.partition, unit.offset))
        if partly_sent:
            if isinstance(action, Retry):
                trouble.not_before = self._clock() + action.delay
            else:
                trouble.action = action
            raise _IncompleteError
        yield from self._carry_out(action, unit, trouble, error)

    def _carry_out(
        self, action: FailureAction, unit: WorkUnit, trouble: RecordTrouble, error: Exception
    ) -> ProcessingScript:
        running = self.progress.running
        if isinstance(action, Retry):
            trouble.not_before = self._clock() + action.delay
        elif isinstance(action, DeadLetter):
            failure = ProcessingFailure(unit.partition, unit.offset, unit.records, error, trouble.attempts)
            letters = SendOutputs(action.records(failure))
            try:
                yield letters
            except Exception as failed:
                if is_about_the_transaction(failed):
                    raise
                in_context(failed, error).add_note(f"kclient: it was to be written to {action.topic!r} (DeadLetter)")
                raise FinalError(noted(failed, unit.partition, unit.offset)) from None
            self._done(unit, len(letters.records))
            running.dead_letters += len(letters.records)
        else:
            self._done(unit, 0)
            running.skipped += len(unit.records)

    def _undecodable(self, error: RecordDeserializationError) -> ProcessingScript:
        """The consumer cannot make sense of a record: there is none to give away, only to leave out."""
        tp, offset = TopicPartition(error.topic, error.partition), error.offset
        trouble, action = yield from self._decisions.decide(tp, offset, offset, (), error)
        if isinstance(action, Retry):
            trouble.not_before = self._clock() + action.delay
            self._backlog.put_off(tp, trouble)
            return
        if not isinstance(action, Skip):
            if isinstance(action, DeadLetter):
                error.add_note("kclient: DeadLetter needs the record; what a deserializer refuses can only be skipped")
            raise FinalError(noted(error, tp, offset))
        if self.state is ProcessingState.IDLE:
            yield from self._begin()
        self._units += 1
        self._consumer.seek(tp, offset + 1)
        self._backlog.passed_over(tp, offset)
        self.progress.running.records_in += 1
        self.progress.running.skipped += 1

    # ------------------------------------------------------------------ the end of a transaction

    def _finish(self) -> ProcessingScript:
        """Commit what is complete; where that cannot be, abort it and go back, if it may succeed another time.

        Where another task or thread has closed the consumer amid a record, what is sent of that must not be committed.
        """
        if self.state is not ProcessingState.OPEN or self._finishing:
            return
        self._finishing = True
        try:
            if self._incomplete:
                logger.warning("The consumer was closed amid a record: its transaction is aborted")
                yield from self._abort(None)
            else:
                yield from self._commit()
        except KafkaError as error:
            yield from self._recover(error)
        finally:
            self._finishing = False

    def _commit(self) -> ProcessingScript:
        offsets = self._backlog.offsets
        if offsets:
            member = self._consumer.group_metadata()
            if self.in_group and member.generation_id < 0:  # it would not be fenced
                raise CommitFailedError(
                    "The consumer is not a member of its group any more: others read its partitions"
                )
            yield Ask(self._calls.send_offsets, (offsets, member))
            if self.state is not ProcessingState.OPEN:
                return  # another task had to abort it meanwhile
        self._go(ProcessingEvent.FINISHED)
        yield from self._until_known(self._calls.commit_transaction, "commit_transaction")
        self._committed()

    def _committed(self) -> None:
        self.progress.committed(empty=not self._backlog.offsets)
        self._backlog.committed()
        self._setbacks.succeeded()
        self._go(ProcessingEvent.COMMITTED)

    def _until_known(self, call: Callable[..., Any], name: str) -> ProcessingScript:
        """Ask again for the outcome of a call that takes longer than `max.block.ms`."""
        while True:
            try:
                yield Ask(call)
            except KafkaTimeoutError as error:
                self._setbacks.note(error, name, self._clock())
            else:
                return

    def _recover(self, error: KafkaError) -> ProcessingScript:
        """Abort and go back; raise the error if it would come again."""
        yield from self._abort(error)
        timeout = self._settings.transaction_timeout
        too_slow = self._slowest > timeout * (1 - _SHARE)
        if too_slow:
            error.add_note(
                f"kclient: one call of the function took {self._slowest:.1f} s, and transaction.timeout.ms is "
                f"{timeout:g} s: raise that, or have the function do less at once"
            )
        if too_slow or not passes(error):
            raise error
        now = self._clock()
        self._setbacks.note(error, "the transaction was aborted, its records are processed again", now)
        self._setbacks.aborted(now)

    def _abort(self, error: KafkaError | None) -> ProcessingScript:
        """End the transaction without effect, and read again from what is committed."""
        if error is not None and self._gives_up(error):
            raise error
        if self.state is ProcessingState.OPEN or self.state is ProcessingState.COMMITTING:
            self._go(ProcessingEvent.GIVEN_UP)
        self._seek_back()
        if self.state is not ProcessingState.ABORTING:
            return
        try:
            yield from self._until_known(self._calls.abort_transaction, "abort_transaction")
        except KafkaError as second:
            if second is not error and error is not None:
                second.__cause__ = second.__cause__ or error
            if second.fatal:
                self._go(ProcessingEvent.FATAL)
            raise
        self._aborted()

    def _aborted(self) -> None:
        self.progress.aborted()
        self._go(ProcessingEvent.ABORTED)

    def _gives_up(self, error: KafkaError) -> bool:
        """Whether the transaction cannot even be aborted; the state says so then."""
        if self.state in {ProcessingState.UNDECIDED, ProcessingState.FAILED}:
            return True  # it was found out inside a poll
        if self.state is ProcessingState.COMMITTING:
            if isinstance(error, TransactionAbortableError) and not error.fatal:
                return False
            self._go(ProcessingEvent.UNKNOWN)
            error.add_note(
                "kclient: whether its last transaction was committed is not known: go on with a new consumer, too, "
                "which begins at what is committed"
            )
            return True
        if self.state is ProcessingState.OPEN and error.fatal:
            self._go(ProcessingEvent.FATAL)
            self.progress.aborted()  # by the brokers, or it is by now
            self._seek_back()
            return True
        return False

    def _seek_back(self) -> None:
        """Read again from what is committed."""
        here = self._consumer.assignment()
        for tp, place in self._backlog.rewind().items():
            if tp in here:
                self._consumer.seek(tp, place)

    # ------------------------------------------------------------------ rebalances

    def revoked(self, partitions: Iterable[TopicPartition]) -> ProcessingScript:
        """Partitions are about to go: what was processed of them is committed first."""
        try:
            if self.state is ProcessingState.OPEN:
                yield from self._finish()
        finally:
            self._backlog.drop(partitions)

    def lost(self, partitions: Iterable[TopicPartition]) -> ProcessingScript:
        """Partitions have gone, and others may read them already: nothing of them may be committed."""
        self._backlog.drop(partitions)
        if self.state is ProcessingState.OPEN:
            logger.warning("Partitions were lost amid a transaction: it is aborted")
            yield from self._abort(None)

    # ------------------------------------------------------------------ leaving amid it

    def give_up(self, error: BaseException, *, interrupted: bool) -> ProcessingScript:
        """Whatever was raised: end the transaction, and go back to what is committed.

        Args:
            error: What was raised; it is told what could not be done.
            interrupted: Whether it is a signal's, which may have come between any two instructions.
        """
        try:
            if self.state is ProcessingState.COMMITTING:
                yield from self._last_commit()
            if self.state in {ProcessingState.OPEN, ProcessingState.COMMITTING}:
                self._go(ProcessingEvent.GIVEN_UP)
            if self.state is ProcessingState.ABORTING:
                yield from self._last_abort()
        except KafkaError as second:
            error.add_note(f"kclient: the transaction was not ended: {second}")
            if self.state is ProcessingState.COMMITTING:
                self._go(ProcessingEvent.UNKNOWN)
                error.add_note("kclient: whether it was committed is not known: go on with new clients")
        finally:
            if self.state is not ProcessingState.UNDECIDED:
                self._go_back_at_last(error)
        yield from self._forget_wakeup()
        if interrupted and self.polling:
            yield from self._find_positions(error)

    def _last_commit(self) -> ProcessingScript:
        try:
            yield Ask(self._calls.commit_transaction)
        except ClosedError:
            raise
        except IllegalStateError:
            pass  # it was committed, and a signal kept that from being noted
        except TransactionAbortableError:
            return
        self._committed()

    def _last_abort(self) -> ProcessingScript:
        try:
            yield Ask(self._calls.abort_transaction)
        except ClosedError:
            raise
        except IllegalStateError:
            pass  # a signal came before it had begun, or after it was aborted
        self._aborted()

    def _go_back_at_last(self, error: BaseException) -> None:
        try:
            self._resume()
            self._seek_back()
        except KafkaError as second:  # such as that the consumer is closed
            logger.debug("the consumer keeps its positions: %s", second)
            if not isinstance(error, KafkaError):
                error.add_note(f"kclient: the consumer was not set back to what is committed: {second}")

    def _find_positions(self, error: BaseException) -> ProcessingScript:
        """Records were perhaps returned to nobody: go back to what is committed of all partitions."""
        consumer = self._consumer
        try:
            partitions = sorted(consumer.assignment())
            found = yield Ask(self._calls.committed, (partitions,))
            for tp, place in found.items():
                if place is not None:
                    consumer.seek(tp, place)
                elif consumer.config.auto_offset_reset == "earliest":
                    consumer.seek_to_beginning([tp])
        except KafkaError as second:
            error.add_note(f"kclient: the consumer was not set back to what is committed: {second}")
