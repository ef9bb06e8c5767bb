"""Reads, processes and writes exactly once, for asyncio and trio."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from kclient.arguments import shown
from kclient.concurrency import Wakeup, current_backend, drive_async, first_leaf
from kclient.consumer import Consumer, RebalanceListener
from kclient.errors import IllegalStateError
from kclient.processing.actions import Ask, Collect, Idle, ProcessRun, SendOutputs, WorkThrough, as_output
from kclient.processing.base import RAISE, ProcessorBase, outputs_of, spans_of
from kclient.processing.decisions import FinalError
from kclient.processing.loop import ClientCalls
from kclient.processing.settings import COMMIT_INTERVAL, MAX_RETRIES, RETRY_TIMEOUT, check_function
from kclient.producer import Producer, ProducerRecord

if TYPE_CHECKING:
    from kclient.processing.actions import ProcessingScript, Step
    from kclient.processing.failures import OnError
    from kclient.processing.progress import ProcessingProgress
    from kclient.types import TopicPartition

Outputs: TypeAlias = ProducerRecord | Iterable[ProducerRecord] | None
"""What a function may return: nothing, a record, or any number of them; generator functions may yield them."""
AsyncOutputs: TypeAlias = Outputs | AsyncIterable[ProducerRecord]
"""What a function may return in async code, also as the result of a coroutine."""
ProcessFunction: TypeAlias = Callable[[Any], AsyncOutputs | Awaitable[AsyncOutputs]]
"""A function for async code: is given a `ConsumerRecord`, or with `batch=True` `ConsumerRecords`."""


class Processor(ProcessorBase):
    """Reads records, gives them to a function, and writes what it returns, exactly once.

    What the function returns and the offsets of what it was given are committed together, in transactions of the
    producer (KIP-98, KIP-447): whatever crashes, is cancelled or rebalanced meanwhile, readers with
    `isolation.level=read_committed` see the outcome of each record once. The function itself may run more than once
    for a record, so what else it does should bear that.

    While `run` runs, nobody else polls, seeks or commits with the consumer, or begins transactions with the producer.

    - **Order**: records of a partition are processed one after the other.
    - **Commits** come every `commit_interval`, before partitions go to other members, and in time for
      `transaction.timeout.ms`: in its second half no further record is begun.
    - **Rebalances**: what is complete is committed before partitions are given up; where they were lost, the
      transaction is aborted.
    - **After an abort** the consumer goes back to what is committed, and processes it again. Errors after which that
      can help (KIP-1050: the transaction has to be aborted, the group has gone on) are logged, and processing goes on,
      with a pause of `retry.backoff.ms` to `retry.backoff.max.ms` from the second one on. After others, such as
      `ProducerFencedError`, `run` raises.

    Args:
        consumer: Subscribed, or with partitions assigned; started. Its settings: `group.id`,
            `enable.auto.commit=false`, `isolation.level=read_committed`.
        producer: Started, with a `transactional.id` that no other instance uses. `run` calls `init_transactions`,
            unless that was done.
        function: Called with a `ConsumerRecord`. Returns or yields `ProducerRecord`s; may be a plain function, a
            coroutine function or a generator function of either kind. A plain one holds up the event loop.
        batch: Whether the function gets `ConsumerRecords` instead: the records of one partition that a poll returned.
        concurrency: For how many partitions the function may run at a time.
        commit_interval: Seconds from the begin of a transaction to its commit; 0 commits after each poll, that is after
            `max.poll.records` at most.
        on_error: What to do about a record for which the function raised an exception, or whose outcome cannot be sent,
            or that the consumer cannot deserialize: an action (`Raise`, `Skip`, `Retry`, `DeadLetter`), or a function,
            plain or async, that is given a `ProcessingFailure` and returns one. The default raises.
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
        function: ProcessFunction,
        *,
        batch: bool = False,
        concurrency: int = 1,
        commit_interval: float = COMMIT_INTERVAL,
        on_error: OnError = RAISE,
        max_retries: int = MAX_RETRIES,
        retry_timeout: float = RETRY_TIMEOUT,
    ) -> None:
        if not isinstance(consumer, Consumer) or not isinstance(producer, Producer):
            raise TypeError(
                "a Processor takes a kclient.Consumer and a kclient.Producer (those of kclient.sync are for "
                f"BlockingProcessor), not {shown(consumer)} and {shown(producer)}"
            )
        check_function(function, blocking=False)
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
            concurrency=concurrency,
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
        self._rest = Wakeup()

    def _wake(self) -> None:
        self._rest.set()

    async def run(self) -> ProcessingProgress:
        """Process until `stop` is called.

        If it is cancelled, or raises, the transaction is aborted, or where its commit was under way that is waited for
        (up to `max.block.ms`), and the consumer is back at what is committed.

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
                await drive_async(self._loop.run(), self._carry_out)
                return self.progress
            except FinalError as carried:
                raised = carried.error
            except BaseException as error:
                await self._give_up(error)
                raise
            await self._give_up(raised)
            raise raised
        finally:
            listener = self._consumer.rebalance_listener
            if isinstance(listener, _Listener):
                self._consumer.rebalance_listener = listener.listener

    def _listen(self) -> bool:
        listener = self._consumer.rebalance_listener
        if isinstance(listener, _Listener):
            return False
        with suppress(IllegalStateError):  # partitions were assigned by hand
            self._consumer.rebalance_listener = _Listener(self, listener)
            return True
        return False

    async def _give_up(self, error: BaseException) -> None:
        with anyio.CancelScope(shield=True):
            script = self._loop.give_up(error, interrupted=isinstance(error, KeyboardInterrupt))
            await drive_async(script, self._carry_out)

    async def _rebalance(self, script: ProcessingScript) -> None:
        await drive_async(script, self._carry_out)

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Collect():
                return await self._collect_from(step)
            case SendOutputs():
                with step.context or nullcontext():
                    for record in step.records:
                        await self._send(record)
                        step.sent += 1
            case ProcessRun():
                await self._run_through(step)
            case Ask(function, arguments):
                with _own_cancellations() if function is self._settings.on_error else nullcontext():
                    return await _awaited(function(*arguments))
            case WorkThrough(partitions):
                await self._work_through(partitions)
            case Idle(seconds):
                await self._rest.wait(seconds)
        return None

    async def _send(self, record: ProducerRecord) -> None:
        await self._producer.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
        )

    async def _process_run(self, run: ProcessRun) -> None:
        function, send, enough = self._function, self._producer.send, run.enough
        for record in run.records:
            if enough():
                return
            result = function(record)
            if result is not None:
                outputs = (result,) if type(result) is ProducerRecord else await self._outputs(result)
                run.sending = True
                for given in outputs:
                    await send(
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

    async def _process_traced_run(self, run: ProcessRun) -> None:
        """As without tracing: each record has a span, in which what comes of it is sent."""
        for record in run.records:
            if run.enough():
                return
            one = ProcessRun((record,), enough=lambda: False)
            try:
                with self._consumer.processing(record):
                    await self._process_run(one)
            finally:
                run.done += one.done
                run.written += one.written
                run.sending, run.sent = one.sending, one.sent

    async def _collect_traced(self, step: Collect) -> Sequence[ProducerRecord]:
        with spans_of(self._consumer, step):
            return await self._collect(step)

    async def _collect(self, step: Collect) -> Sequence[ProducerRecord]:
        with _own_cancellations():
            return await self._outputs(self._function(step.argument))

    async def _outputs(self, result: Any) -> Sequence[ProducerRecord]:
        with _own_cancellations():
            result = await _awaited(result)
            if not isinstance(result, AsyncIterable):
                return outputs_of(result)
            iterator = aiter(result)
            try:
                return [as_output(record) async for record in iterator]
            finally:
                if inspect.isasyncgen(iterator):
                    await iterator.aclose()

    async def _work_through(self, partitions: list[TopicPartition]) -> None:
        workers = min(self._settings.concurrency, len(partitions))
        waiting = deque(partitions)
        failures: list[BaseException] = []
        cancelled: list[BaseException] = []

        async def work() -> None:
            while waiting:
                await drive_async(self._loop.work(waiting.popleft()), self._carry_out)

        async def work_beside_others() -> None:
            try:
                await work()
            except anyio.get_cancelled_exc_class() as error:
                cancelled.append(error)
                raise
            except BaseException as error:  # noqa: BLE001 - raised below, and not in a group
                failures.append(error)
                tasks.cancel_scope.cancel()  # the others' work is aborted with the transaction

        if workers == 1:
            await work()
            return
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(workers):
                    tasks.start_soon(work_beside_others, name=f"process {number}")
        except BaseExceptionGroup as group:  # Ctrl-C in trio
            _, interrupt = group.split(anyio.get_cancelled_exc_class())
            raise first_leaf(interrupt or group) from None
        if failures:
            raise failures[0]
        if cancelled:  # else the group would have raised it: the function has cancelled the task that it ran in
            raise RuntimeError(_CANCELLED) from cancelled[0]


_CANCELLED = "the function was cancelled, and processing was not: it cancelled its own task, or awaited one that was"


@contextmanager
def _own_cancellations() -> Iterator[None]:
    """What is raised as a cancellation while nobody cancels is a failure like others, and the record's."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task() if current_backend() == "asyncio" else None
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(_CANCELLED) from error


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


class _Listener(RebalanceListener):
    """Told of rebalances before the user's listener, which the subscription had."""

    def __init__(self, processor: Processor, listener: RebalanceListener | None) -> None:
        self._processor = processor
        self.listener = listener

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._processor._rebalance(self._processor._loop.revoked(partitions))
        if self.listener is not None:
            await _awaited(self.listener.on_partitions_revoked(partitions))

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._processor._rebalance(self._processor._loop.lost(partitions))
        if self.listener is not None:
            await _awaited(self.listener.on_partitions_lost(partitions))

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        if self.listener is not None:
            await _awaited(self.listener.on_partitions_assigned(partitions))


async def process(
    consumer: Consumer,
    producer: Producer,
    function: ProcessFunction,
    *,
    batch: bool = False,
    concurrency: int = 1,
    commit_interval: float = COMMIT_INTERVAL,
    on_error: OnError = RAISE,
    max_retries: int = MAX_RETRIES,
    retry_timeout: float = RETRY_TIMEOUT,
) -> ProcessingProgress:
    """Read records, give them to a function, and write what it returns, exactly once, until it is cancelled.

    Make a `Processor` instead where it is to be stopped in good order, or its progress looked at. The arguments and
    errors are those of `Processor` and its `run`.
    """
    return await Processor(
        consumer,
        producer,
        function,
        batch=batch,
        concurrency=concurrency,
        commit_interval=commit_interval,
        on_error=on_error,
        max_retries=max_retries,
        retry_timeout=retry_timeout,
    ).run()
