"""The producer for asyncio and trio."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import anyio.lowlevel

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_timeout
from kclient.cluster import leaves_in_order
from kclient.concurrency import Gate, drive_async
from kclient.errors import DeliveryError, KafkaError, TransactionAbortableError
from kclient.producer.base import ProducerBase
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.lifecycle import ProducerLifecycle
from kclient.producer.record_arguments import as_values_and_keys
from kclient.producer.sending import LetOthersRun, LoadTopic, WaitForRoom

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType
    from uuid import UUID

    from kclient.config import ConfigInput, ProducerConfig
    from kclient.producer.interfaces import DeliveryCallback, ProducerRecord
    from kclient.producer.sending import AnyWait
    from kclient.types import ConsumerGroupMetadata, Headers, Offsets, PartitionInfo

logger: logging.Logger = logging.getLogger("kclient.producer")

T = TypeVar("T")

PATIENCE: float = 0.001
"""Seconds for which a loop of `send` may keep the event loop to itself."""


class Producer(ProducerBase):
    """Sends records to Kafka, or to a kclient gateway, from asyncio or trio code.

    Use it with `async with`: a normal exit flushes; leaving by cancellation or KeyboardInterrupt gives up what was
    not acknowledged yet, and says how many records that were. It belongs to one event loop.

    By default the producer is idempotent (KIP-98): retries neither duplicate nor reorder records.

    Callbacks (`on_delivery`) and interceptors run in the task that calls `send`, `flush` or `close`, or that awaits
    a delivery; never in the background. Deliveries that failed and that nobody awaited are reported by `flush` and
    `close`.

    Args:
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case, such as `bootstrap_servers` or `linger_ms`; they win.

    Raises:
        ConfigError: A setting is unknown or wrong.
        NotYetSupportedError: A setting asks for what kclient cannot do yet.
    """

    _remedy = "`async with`, or `await producer.close()`"

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._fast: Callable[..., Any] | None = self._life.buffer.appender.append if self._life.plain else None
        """The compiled append; what it does not take, such as a `ProducerRecord`, it refuses."""

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        self._clock = clock
        self._yielded = 0.0
        self._sender_turn = _SenderTurn()
        return ProducerLifecycle(config, clock, on_wake=self._sender_turn.sender_woken)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the background tasks; `async with` does it.

        It does not wait for a broker: the first `send` does, up to `max.block.ms`.

        Raises:
            IllegalStateError: It was started before.
        """
        await self._life.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        failed = None
        try:
            # an ordinary exception, or the program's end, is no reason to lose records; leaving at once is
            await self.close(timeout=None if leaves_in_order(error) else 0)
        except DeliveryError as told:
            failed = told
        self._note_losses(error, failed)

    async def close(self, timeout: float | None = None) -> None:
        """Send what is there, then end the background tasks. May be called again.

        While another call waits, the shorter time holds for both.

        If it is cancelled, it gives up what was not acknowledged yet, ends the tasks, and lets go.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known (within
                `delivery.timeout.ms`, and `transaction.timeout.ms` for the end of a transaction), 0 gives it up.

        Raises:
            DeliveryError: Records were not delivered, and nobody awaited them.
            IllegalStateError: It was started in another event loop.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        life = self._life
        life.supervisor.check_loop()
        try:
            with anyio.CancelScope(shield=timeout == 0):
                await life.finish(timeout)
        finally:
            try:
                await life.supervisor.aclose()
            finally:
                try:
                    life.reports.run_callbacks()
                finally:
                    life.close_plugins()
        self._raise_failures()

    # ------------------------------------------------------------------ sending

    async def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Append a record to the batch of its partition.

        Waits only for the topic's metadata and for room in the buffer, up to `max.block.ms`. A cancelled `send` has
        appended nothing.

        Args:
            topic: Topic to send to; or a `ProducerRecord`, which has all but `on_delivery`.
            value: The value: bytes, or what the value serializer takes; None is a tombstone.
            key: The key, likewise; None for none.
            partition: The partition; None leaves it to the partitioner. One that the topic does not have is waited
                for, up to `max.block.ms`: it may be new.
            timestamp: Milliseconds since the epoch, 0 or more; None is now.
            headers: Pairs of str and bytes (or None); any iterable will do.
            on_delivery: Called with `(RecordMetadata, None)` or `(None, error)` when the fate is known.

        Returns:
            The delivery: await it for the `RecordMetadata`, or forget it and call `flush`.

        Raises:
            KafkaTimeoutError: The topic's metadata did not come within `max.block.ms`.
            UnknownTopicOrPartitionError: The topic has no such partition, and got none within `max.block.ms`.
            BufferExhaustedError: No room became free within `max.block.ms`.
            RecordTooLargeError: The record exceeds `max.request.size`.
            SerializationError: The serializer failed.
            ClosedError: The producer was closed.
            TypeError: An argument is of a wrong type, such as an `on_delivery` that cannot be called or would have to
                be awaited; or there are others beside a `ProducerRecord`.
            ValueError: The partition or the timestamp is negative, or larger than Kafka's numbers are.
        """
        if self._fast is not None and on_delivery is None and not self._sender_turn.due:
            try:
                delivery: Delivery | None = self._fast(topic, value, key, partition, timestamp, headers)
            except (TypeError, ValueError):
                delivery = None  # the long way says which setting helps
            if delivery is not None:
                return delivery
        return await self._send(topic, value, key, partition, timestamp, headers, on_delivery)

    async def _send(
        self,
        topic: str | ProducerRecord,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """`send` without the fast path."""
        if self._sender_turn.due or self._clock() - self._yielded > PATIENCE:
            # the sender has something to do: a loop that only sends must not starve it
            await self._let_others_run()
        made = self._life.sending.send(topic, value, key, partition, timestamp, headers, on_delivery)
        return made if isinstance(made, Delivery) else await drive_async(made, self._carry_out)

    async def _let_others_run(self) -> None:
        self._life.supervisor.check_loop()
        self._sender_turn.due = False
        await anyio.lowlevel.checkpoint()
        self._yielded = self._clock()

    async def send_batch(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Append many records at once: several times faster than `send` for each.

        Waits as `send` does; if it is cancelled or fails, the records before the one it waited for are appended.

        Args:
            topic: Topic to send to.
            values: The values; any iterable will do.
            keys: As many keys; None for records without keys.
            partition: The partition of all; None leaves it to the partitioner.

        Returns:
            The deliveries, in order: await them all at once for a list of `RecordMetadata`, or one by one.

        Raises:
            ValueError: There are not as many keys as values.
            TypeError: Values or keys are not a collection.
            KafkaError: As for `send`.
        """
        values, keys = as_values_and_keys(values, keys)
        await self._let_others_run()
        return await drive_async(self._life.sending.send_batch(topic, values, keys, partition), self._carry_out)

    async def send_arrow(self, topic: str | None, data: Any) -> Deliveries:
        """Append the rows of Arrow data, whose columns are those of Spark's Kafka sink, as columns.

        Columns: `value`, and where wanted `key` (both of any kind of binary or string), `headers` (lists of structs of
        key and value, or maps), `partition` (integers; null leaves it to the partitioner), `timestamp` (timestamps, or
        integers: milliseconds; null is now) and `topic`. Serializers are not applied.

        It is as if `send` were called for each row, in order, but no Python objects are made of them, unless
        interceptors or a partitioner of your own look at each. It waits for a row as `send` does, up to `max.block.ms`.
        If it is cancelled or fails, the rows before the one it came to are appended, and none behind; a note on
        the error says how many. However much it is given, it takes no more than `buffer.memory`.

        Args:
            topic: Topic of all rows; None takes the column `topic`.
            data: A pyarrow Table or RecordBatch, an iterable of RecordBatches, or what offers an Arrow stream, such as
                the data frames of other libraries.

        Returns:
            The deliveries, in order.

        Raises:
            MissingExtraError: pyarrow is not installed.
            SerializationError: A column is missing, unknown, there twice, or of a wrong type, or a row has no topic.
            TypeError: It is not Arrow data, or the topic is not text.
            KafkaError, ValueError: As for `send`.
        """
        await self._let_others_run()
        return await drive_async(self._life.sending.send_arrow(topic, data), self._carry_out)

    async def _carry_out(self, wait: AnyWait) -> None:
        match wait:
            case LoadTopic(topic, partition, timeout):
                self._life.supervisor.check_loop()
                await self._life.loader.load(topic, timeout, partition)
            case WaitForRoom(timeout):
                self._life.supervisor.check_loop()
                await self._wait_for_room(timeout)
            case LetOthersRun():
                await self._let_others_run()

    async def _wait_for_room(self, timeout: float) -> None:
        buffer = self._life.buffer
        gate = Gate()
        if not buffer.add_waiter(gate.open):
            return
        try:
            await gate.wait(timeout)
        finally:
            buffer.remove_waiter(gate.open)

    async def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by, to find its metrics there (KIP-714); the same for its life.

        Args:
            timeout: Seconds to wait for it; the default is `default.api.timeout.ms`.

        Raises:
            IllegalStateError: `enable.metrics.push` is false.
            UnsupportedVersionError: The broker takes no metrics of clients, as a gateway that serves none.
            KafkaTimeoutError: The cluster has not told it in time.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        return await self._life.client_instance_id(timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything at once and wait until the fate of what was sent so far is known.

        Args:
            timeout: Seconds to wait at most; None waits within `delivery.timeout.ms`.

        Raises:
            DeliveryError: Records were not delivered, and nobody awaited them.
            KafkaTimeoutError: Not everything is through in time; it goes on in the background.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        life = self._life
        life.supervisor.check_loop()
        await life.wait_flushed(timeout)
        life.reports.run_callbacks()
        self._raise_failures()

    # ------------------------------------------------------------------ transactions

    async def init_transactions(self) -> None:
        """Get the producer id of `transactional.id`: before the first transaction, once.

        It fences every other producer with this `transactional.id`, and has the transaction that one left open ended.

        Waits up to `max.block.ms`. If it takes longer or is cancelled it goes on: call it again to wait for it.

        Raises:
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: It was called before, or there is no `transactional.id`.
            TransactionalIdAuthorizationError: This user must not use the `transactional.id`.
            InvalidTxnTimeoutError: `transaction.timeout.ms` is more than the brokers allow.
        """
        told = await self._life.transactions().init_transactions()
        told()

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is sent until `commit_transaction` is committed or aborted as a whole.

        It asks nothing of a broker. `transaction.timeout.ms` counts from the first record or offset.

        Raises:
            IllegalStateError: A transaction is open, `init_transactions` has not been called, or another call has not
                ended.
            TransactionAbortableError: The present one has to be aborted first.
            ProducerFencedError: A newer producer has the `transactional.id`.
        """
        await self._life.transactions().begin_transaction()

    async def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: ConsumerGroupMetadata) -> None:
        """Make a consumer group's offsets a part of the transaction: they are committed with it, or not at all.

        The consumer must not commit them itself (`enable.auto.commit=false`). Waits up to `max.block.ms`; if it takes
        longer or is cancelled, it goes on until the transaction is committed, or is given up where that is aborted.

        Args:
            offsets: By partition, the offset of the next record to read (`Consumer.position`), also as
                `OffsetAndMetadata`.
            group_metadata: The consumer's `group_metadata()`: offsets of a consumer that is not in the group any more
                are refused (KIP-447).

        Raises:
            CommitFailedError: The group has gone on without the consumer. Abort the transaction.
            TransactionAbortableError: The transaction has to be aborted.
            GroupAuthorizationError: This user must not commit offsets of the group. Abort the transaction.
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: No transaction is open.
            ProducerFencedError: A newer producer has the `transactional.id`.
            TypeError, ValueError: The arguments are not as above.
        """
        wanted = self._group_offsets(offsets, group_metadata)
        await self._life.transactions().send_offsets(wanted, group_metadata)

    async def commit_transaction(self) -> None:
        """Commit the transaction, once everything that was sent in it has been delivered.

        A record that could not be delivered makes it fail: nobody has to look at deliveries. Waits up to
        `max.block.ms`. If it takes longer or is cancelled it goes on, and nothing is known yet: call it again for its
        outcome.

        Raises:
            TransactionAbortableError: It cannot be committed; `__cause__` says why. Call `abort_transaction`.
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: No transaction is open.
            ProducerFencedError: A newer producer has the `transactional.id`, or the transaction took longer than
                `transaction.timeout.ms`.
        """
        told = await self._life.transactions().commit_transaction()
        told()

    async def abort_transaction(self) -> None:
        """Abort the transaction: readers with `isolation.level=read_committed` see none of it.

        Records that have not left are not sent; their deliveries raise `TransactionAbortedError`. Waits up to
        `max.block.ms`. If it takes longer or is cancelled it goes on: call it again to wait for it.

        Raises:
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: No transaction is open.
            ProducerFencedError: A newer producer has the `transactional.id`, or the transaction took longer than
                `transaction.timeout.ms`.
        """
        told = await self._life.transactions().abort_transaction()
        told()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction for the length of a block, for `async with`: committed at its end, aborted on an exception.

        It is aborted on a cancellation too, and where it cannot be committed. Where the commit itself is cancelled, or
        takes longer than `max.block.ms`, nothing is known yet: call `commit_transaction` again for its outcome.

        Raises:
            KafkaError: As for `begin_transaction` and `commit_transaction`.
        """
        await self.begin_transaction()
        try:
            yield self
        except BaseException as error:
            await self._abort_after(error)
            raise
        try:
            await self.commit_transaction()
        except TransactionAbortableError as error:
            await self._abort_after(error)
            self._life.status.check()  # it may have turned out that the producer is fenced
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort because of an error, which is the one to be raised."""
        if not self._life.has_open_transaction:
            return
        try:
            with anyio.CancelScope(shield=True):
                await self.abort_transaction()
        except KafkaError as second:
            error.add_note(f"kclient: the transaction could not be aborted: {second}")

    # ------------------------------------------------------------------ looking

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Asking may create it (`auto.create.topics.enable` of the broker).

        Raises:
            KafkaTimeoutError: Nothing is known within `max.block.ms`.
            InvalidTopicError: The name is empty.
        """
        self._life.supervisor.check_loop()
        self._life.status.check()
        return await self._life.loader.partitions_for(topic)


class _SenderTurn:
    """Tells a call that would not wait that the sender is to have its turn. It knows no face, which may be dropped."""

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: bool = False
        """Whether the sender was woken, and has not had its turn since."""

    def sender_woken(self) -> None:
        self.due = True
