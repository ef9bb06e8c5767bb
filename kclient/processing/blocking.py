"""Reads, processes and writes exactly once, for blocking code."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.arguments import shown
from kclient.concurrency import ThreadSignal, drive
from kclient.consumer import RebalanceListener
from kclient.errors import IllegalStateError
from kclient.processing.actions import Ask, Collect, Idle, ProcessRun, SendOutputs, WorkThrough
from kclient.processing.base import RAISE, ProcessorBase, outputs_of, spans_of
from kclient.processing.decisions import FinalError
from kclient.processing.loop import ClientCalls
from kclient.processing.processor import Outputs
from kclient.processing.settings import COMMIT_INTERVAL, MAX_RETRIES, RETRY_TIMEOUT, check_function
from kclient.producer import ProducerRecord
from kclient.sync.consumer import Consumer
from kclient.sync.producer import Producer

if TYPE_CHECKING:
    from kclient.processing.actions import ProcessingScript, Step
    from kclient.processing.failures import OnError
    from kclient.processing.progress import ProcessingProgress
    from kclient.types import TopicPartition

BlockingProcessFunction: TypeAlias = Callable[[Any], Outputs]
"""A function for blocking code: is given a `ConsumerRecord`, or with `batch=True` `ConsumerRecords`."""


class BlockingProcessor(ProcessorBase):
    """As `Processor`, for the clients of `kclient.sync`.

    The function, `on_error` and rebalance listeners run in the thread that calls `run`. Heartbeats do not wait for
    them, but `max.poll.interval.ms` counts.

    Args:
        consumer: Subscribed, or with partitions assigned. Its settings: `group.id`, `enable.auto.commit=false`,
            `isolation.level=read_committed`.
        producer: With a `transactional.id` that no other instance uses. `run` calls `init_transactions`, unless that
            was done.
        function: Called with a `ConsumerRecord`. Returns or yields `ProducerRecord`s.
        batch: Whether the function gets `ConsumerRecords` instead: the records of one partition that a poll returned.
        commit_interval: Seconds from the begin of a transaction to its commit; 0 commits after each poll, that is after
            `max.poll.records` at most.
        on_error: What to do about a record for which the function raised an exception, or whose outcome cannot be sent,
            or that the consumer cannot deserialize: an action (`Raise`, `Skip`, `Retry`, `DeadLetter`), or a function
            that is given a `ProcessingFailure` and returns one. The default raises.
        max_retries: How often a record is tried again at most, where `Retry` is asked for.
        retry_timeout: Seconds for which it goes on while no transaction succeeds; then the last error is raised. Time
            in which there is nothing to process does not count.

    Raises:
        ConfigError: The settings of a client contradict processing exactly once.
        TypeError, ValueError: An argument is wrong.
    """

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        function: BlockingProcessFunction,
        *,
        batch: bool = False,
        commit_interval: float = COMMIT_INTERVAL,
        on_error: OnError = RAISE,
        max_retries: int = MAX_RETRIES,
        retry_timeout: float = RETRY_TIMEOUT,
    ) -> None:
        if not isinstance(consumer, Consumer) or not isinstance(producer, Producer):
            raise TypeError(
                "a BlockingProcessor takes a kclient.sync.Consumer and a kclient.sync.Producer (those of kclient are "
                f"for Processor), not {shown(consumer)} and {shown(producer)}"
            )
        check_function(function, blocking=True)
        calls = ClientCalls(
            poll=consumer.poll,
            committed=consumer.committed,
            init_transactions=producer.init_transactions,
            begin_transaction=producer.begin_transaction,
            send_offsets=producer.send_offsets_to_transaction,
            commit_transaction=producer.commit_transaction,
            abort_transaction=producer.abort_transaction,
        )
        super().__init__(
            consumer,
            producer,
            calls,
            batch=batch,
            commit_interval=commit_interval,
            on_error=on_error,
            max_retries=max_retries,
            retry_timeout=retry_timeout,
        )
        self._consumer = consumer
        self._producer = producer
        self._function = function
        traced = consumer.config.tracing is not None
        self._run_through = self._process_traced_run if traced else self._process_run
        self._collect_from = self._collect_traced if traced else self._collect
        self._rest = ThreadSignal()

    def _wake(self) -> None:
        self._rest.set()

    def run(self) -> ProcessingProgress:
        """Process until `stop` is called.

        If it raises, also by Ctrl-C, the transaction is aborted, or where its commit was under way that is waited for
        (up to `max.block.ms`), and the consumer is back at what is committed. A second Ctrl-C ends that.

        Returns:
            The figures.

        Raises:
            KafkaError: The producer is fenced, or something else has happened after which going on does not help.
            IllegalStateError: It was called before, or the producer has a transaction open.
            Exception: What the function raised, if `on_error` says so; a note tells which record it was.
        """
        self._begin()
        try:
            try:
                drive(self._loop.run(), self._carry_out)
                return self.progress
            except FinalError as carried:
                raised = carried.error
            except BaseException as error:
                self._give_up(error)
                raise
            self._give_up(raised)
            raise raised
        finally:
            listener = self._consumer.rebalance_listener
            if isinstance(listener, _BlockingListener):
                self._consumer.rebalance_listener = listener.listener

    def _listen(self) -> bool:
        listener = self._consumer.rebalance_listener
        if isinstance(listener, _BlockingListener):
            return False
        with suppress(IllegalStateError):  # partitions were assigned by hand
            self._consumer.rebalance_listener = _BlockingListener(self, listener)
            return True
        return False

    def _give_up(self, error: BaseException) -> None:
        drive(self._loop.give_up(error, interrupted=True), self._carry_out)

    def _rebalance(self, script: ProcessingScript) -> None:
        drive(script, self._carry_out)

    def _carry_out(self, step: Step) -> Any:
        match step:
            case Collect():
                return self._collect_from(step)
            case SendOutputs():
                with step.context or nullcontext():
                    for record in step.records:
                        self._send(record)
                        step.sent += 1
            case ProcessRun():
                self._run_through(step)
            case Ask(function, arguments):
                return _plain(function(*arguments), "on_error")
            case WorkThrough(partitions):
                for tp in partitions:
                    drive(self._loop.work(tp), self._carry_out)
            case Idle(seconds):
                self._rest.wait(seconds)
        return None

    def _send(self, record: ProducerRecord) -> None:
        self._producer.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
        )

    def _process_run(self, run: ProcessRun) -> None:
        function, send, enough = self._function, self._producer.send, run.enough
        for record in run.records:
            if enough():
                return
            result = function(record)
            if result is not None:
                outputs = (result,) if type(result) is ProducerRecord else self._outputs(result)
                run.sending = True
                for given in outputs:
                    send(
                        given.topic,
                        given.value,
                        given.key,
                        partition=given.partition,
                        timestamp=given.timestamp,
                        headers=given.headers,
                    )
                    run.sent += 1
                run.written += run.sent
                run.sending = False
                run.sent = 0
            run.done += 1

    def _process_traced_run(self, run: ProcessRun) -> None:
        """As without tracing: each record has a span, in which what comes of it is sent."""
        for record in run.records:
            if run.enough():
                return
            one = ProcessRun((record,), enough=lambda: False)
            try:
                with self._consumer.processing(record):
                    self._process_run(one)
            finally:
                run.done += one.done
                run.written += one.written
                run.sending, run.sent = one.sending, one.sent

    def _collect_traced(self, step: Collect) -> Sequence[ProducerRecord]:
        with spans_of(self._consumer, step):
            return self._collect(step)

    def _collect(self, step: Collect) -> Sequence[ProducerRecord]:
        return self._outputs(self._function(step.argument))

    def _outputs(self, result: Any) -> Sequence[ProducerRecord]:
        return outputs_of(_plain(result, "the function"))


def _plain(result: Any, whose: str) -> Any:
    """What a function of the user's returned, if nobody would have to await it."""
    if inspect.isawaitable(result) or isinstance(result, AsyncIterable):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{whose} returned {shown(result)}, which would have to be awaited: use kclient.processing.process with "
            "the async clients"
        )
    return result


class _BlockingListener(RebalanceListener):
    """Told of rebalances before the user's listener, which the subscription had."""

    def __init__(self, processor: BlockingProcessor, listener: RebalanceListener | None) -> None:
        self._processor = processor
        self.listener = listener

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Any:
        self._processor._rebalance(self._processor._loop.revoked(partitions))
        return self.listener.on_partitions_revoked(partitions) if self.listener is not None else None

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Any:
        self._processor._rebalance(self._processor._loop.lost(partitions))
        return self.listener.on_partitions_lost(partitions) if self.listener is not None else None

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Any:
        return self.listener.on_partitions_assigned(partitions) if self.listener is not None else None


def process_blocking(
    consumer: Consumer,
    producer: Producer,
    function: BlockingProcessFunction,
    *,
    batch: bool = False,
    commit_interval: float = COMMIT_INTERVAL,
    on_error: OnError = RAISE,
    max_retries: int = MAX_RETRIES,
    retry_timeout: float = RETRY_TIMEOUT,
) -> ProcessingProgress:
    """Read records, give them to a function, and write what it returns, exactly once, until it is interrupted.

    Make a `BlockingProcessor` instead where it is to be stopped in good order, or its progress looked at. The arguments
    and errors are those of `BlockingProcessor` and its `run`.
    """
    return BlockingProcessor(
        consumer,
        producer,
        function,
        batch=batch,
        commit_interval=commit_interval,
        on_error=on_error,
        max_retries=max_retries,
        retry_timeout=retry_timeout,
    ).run()
