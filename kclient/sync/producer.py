"""The producer for blocking code.

`send` appends in the caller's thread, straight to the accumulator, and wakes the loop's thread only when there is
something new for it to look at; the other calls cross to that thread once.
"""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_timeout, in_seconds
from kclient.cluster import leaves_in_order
from kclient.concurrency import ThreadSignal, drive
from kclient.errors import ClosedError, DeliveryError, KafkaError, KafkaTimeoutError, TransactionAbortableError
from kclient.producer.base import ProducerBase
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.lifecycle import ProducerLifecycle
from kclient.producer.record_arguments import as_values_and_keys
from kclient.producer.sending import LetOthersRun, LoadTopic, WaitForRoom
from kclient.producer.transaction_driver import TransactionDriver
from kclient.sync.beginning import Beginning, StartedByWith, orphaned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from types import TracebackType
    from uuid import UUID

    from kclient.config import ConfigInput, ProducerConfig
    from kclient.producer.interfaces import DeliveryCallback, ProducerRecord
    from kclient.producer.sending import AnyWait
    from kclient.sync.portal import Portal
    from kclient.types import ConsumerGroupMetadata, Headers, Offsets, PartitionInfo

logger: logging.Logger = logging.getLogger("kclient.producer")

T = TypeVar("T")


class Producer(StartedByWith, ProducerBase):
    """Sends records to Kafka, or to a kclient gateway, from blocking code. Thread-safe.

    Use it with `with`: a normal exit flushes; leaving by KeyboardInterrupt gives up what was not acknowledged yet, and
    says how many records that were. Without `with`, it starts with the first call; `close` it in the end.

    By default the producer is idempotent (KIP-98): retries neither duplicate nor reorder records.

    Callbacks (`on_delivery`) and interceptors run in the thread that calls `send`, `flush` or `close`, or that asks a
    delivery for its `result`; never in the background. Deliveries that failed and that nobody asked for are reported
    by `flush` and `close`.

    Args:
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case, such as `bootstrap_servers` or `linger_ms`; they win.

    Raises:
        ConfigError: A setting is unknown or wrong.
        NotYetSupportedError: A setting asks for what kclient cannot do yet.
    """

    _label = "sync.Producer"
    _remedy = "`with`, or `producer.close()`"

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._fast: Callable[..., Delivery] | None = None
        """The compiled append; what it cannot do it leaves to `_send`."""
        if self._life.plain:
            appender = self._life.buffer.appender
            appender.fallback = _weakly(self)
            self._fast = appender.send
            if type(self).send is Producer.send:
                # for the object `send` is that itself, so that a record costs no call of a Python function
                self.send = appender.send  # type: ignore[method-assign, assignment]

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        async def start() -> None:
            await life.start()

        beginning = self._beginning = Beginning("producer", start)
        life = ProducerLifecycle(config, clock, lazy=True, check_alive=beginning.begun)
        return life

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the background tasks; `with` and the first call do it.

        It does not wait for a broker: the first `send` does, up to `max.block.ms`.
        """
        self._running()

    def _running(self) -> Portal:
        """The portal; starts the producer if it was not started."""
        if self._beginning.portal is None:
            _open_producers.add(self)
        return self._beginning.running()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        failed = None
        try:
            # an ordinary exception, or the program's end, is no reason to lose records; leaving at once is
            self.close(timeout=None if leaves_in_order(error) else 0)
        except DeliveryError as told:
            failed = told
        self._note_losses(error, failed)

    def close(self, timeout: float | None = None) -> None:
        """Send what is there, then end the background tasks. May be called again.

        While another call waits, the shorter time holds for both.

        Ctrl-C while it waits gives up what was not acknowledged yet.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known (within
                `delivery.timeout.ms`, and `transaction.timeout.ms` for the end of a transaction), 0 gives it up.

        Raises:
            DeliveryError: Records were not delivered, and nobody asked for them.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        deadline = None if timeout is None else monotonic() + timeout
        life = self._life
        if self._beginning.elsewhere:
            return  # the parent's producer goes on there
        portal = self._beginning.end()
        if portal is not None:
            try:
                portal.call(self._finish, timeout)
            except KeyboardInterrupt:  # it gives up what is on its way, and that is told too
                portal.call(self._finish, 0)
                life.reports.run_callbacks()
                life.reports.after_callbacks(life.close_plugins)
                raise
        else:
            life.close_unstarted()
        life.reports.settle(deadline)
        life.reports.after_callbacks(life.close_plugins)  # a callback may have called this
        _open_producers.discard(self)
        self._raise_failures()

    async def _finish(self, timeout: float | None) -> None:
        try:
            await self._life.finish(timeout)
        finally:
            await self._life.supervisor.aclose()

    # ------------------------------------------------------------------ sending

    def send(
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

        Waits only for the topic's metadata and for room in the buffer, up to `max.block.ms`. One that is
        interrupted while it waits has appended nothing; at other moments the record may be appended or not.

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
            The delivery: call `result()` for the `RecordMetadata`, or forget it and call `flush`.

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
        if self._fast is None:
            return self._send(topic, value, key, partition, timestamp, headers, on_delivery)
        # a subclass calls this
        return self._fast(
            topic, value, key, partition=partition, timestamp=timestamp, headers=headers, on_delivery=on_delivery
        )

    def _send(
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
        made = self._life.sending.send(topic, value, key, partition, timestamp, headers, on_delivery)
        return made if isinstance(made, Delivery) else drive(made, self._carry_out)

    def send_batch(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Append many records at once: several times faster than `send` for each.

        Waits as `send` does; if it is interrupted or fails, the records before the one it waited for are appended.

        Args:
            topic: Topic to send to.
            values: The values; any iterable will do.
            keys: As many keys; None for records without keys.
            partition: The partition of all; None leaves it to the partitioner.

        Returns:
            The deliveries, in order: `result()` gives a list of `RecordMetadata`.

        Raises:
            ValueError: There are not as many keys as values.
            TypeError: Values or keys are not a collection.
            KafkaError: As for `send`.
        """
        values, keys = as_values_and_keys(values, keys)
        return drive(self._life.sending.send_batch(topic, values, keys, partition), self._carry_out)

    def send_arrow(self, topic: str | None, data: Any) -> Deliveries:
        """Append the rows of Arrow data, whose columns are those of Spark's Kafka sink, as columns.

        Columns: `value`, and where wanted `key` (both of any kind of binary or string), `headers` (lists of structs of
        key and value, or maps), `partition` (integers; null leaves it to the partitioner), `timestamp` (timestamps, or
        integers: milliseconds; null is now) and `topic`. Serializers are not applied.

        It is as if `send` were called for each row, in order, but no Python objects are made of them, unless
        interceptors or a partitioner of your own look at each. It waits for a row as `send` does, up to `max.block.ms`.
        If it fails, the rows before the one it came to are appended, and none behind; a note on the error says how
        many. Of an exception of a signal handler it says how many at least; without a note it came before or after the
        rows. However much it is given, it takes no more than `buffer.memory`.

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
        self._beginning.check_here()
        return drive(self._life.sending.send_arrow(topic, data), self._carry_out)

    def _carry_out(self, wait: AnyWait) -> None:
        match wait:
            case LoadTopic(topic, partition, timeout):
                self._running().call(self._life.loader.load, topic, timeout, partition)
            case WaitForRoom(timeout):
                self._running().check_waiting()
                self._wait_for_room(timeout)
            case LetOthersRun():
                pass  # other threads run anyway

    def _wait_for_room(self, timeout: float) -> None:
        buffer = self._life.buffer
        room = ThreadSignal()
        if not buffer.add_waiter(room.set):
            return
        try:
            # in slices, because a thread that died frees nothing
            room.wait(min(timeout, 1.0))
        finally:
            buffer.remove_waiter(room.set)

    def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by, to find its metrics there (KIP-714); the same for its life.

        Args:
            timeout: Seconds to wait for it; the default is `default.api.timeout.ms`.

        Raises:
            IllegalStateError: `enable.metrics.push` is false.
            UnsupportedVersionError: The broker takes no metrics of clients, as a gateway that serves none.
            KafkaTimeoutError: The cluster has not told it in time.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        return self._running().call(self._life.client_instance_id, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything at once; wait until the fate of what was sent so far is known, and its callbacks are called.

        Called by a callback, it does not wait for callbacks: they come after the present one.

        Args:
            timeout: Seconds to wait at most; None waits within `delivery.timeout.ms`.

        Raises:
            DeliveryError: Records were not delivered, and nobody asked for them.
            KafkaTimeoutError: Not everything is through in time; it goes on in the background, or in the thread that
                calls the callbacks.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        life = self._life
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        deadline = None if timeout is None else monotonic() + timeout
        self._running().call(life.wait_flushed, timeout)
        if not life.reports.settle(deadline):
            raise KafkaTimeoutError(f"Another thread was still calling callbacks after {in_seconds(timeout or 0.0)}")
        self._raise_failures()

    # ------------------------------------------------------------------ transactions

    def init_transactions(self) -> None:
        """Get the producer id of `transactional.id`: before the first transaction, once.

        It fences every other producer with this `transactional.id`, and has the transaction that one left open ended.

        Waits up to `max.block.ms`. If it takes longer or is interrupted it goes on: call it again to wait for it.

        Raises:
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: It was called before, or there is no `transactional.id`.
            TransactionalIdAuthorizationError: This user must not use the `transactional.id`.
            InvalidTxnTimeoutError: `transaction.timeout.ms` is more than the brokers allow.
        """
        self._transact(TransactionDriver.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent until `commit_transaction` is committed or aborted as a whole.

        It asks nothing of a broker. `transaction.timeout.ms` counts from the first record or offset.

        Raises:
            IllegalStateError: A transaction is open, `init_transactions` has not been called, or another call has not
                ended.
            TransactionAbortableError: The present one has to be aborted first.
            ProducerFencedError: A newer producer has the `transactional.id`.
        """
        self._transact(TransactionDriver.begin_transaction)

    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: ConsumerGroupMetadata) -> None:
        """Make a consumer group's offsets a part of the transaction: they are committed with it, or not at all.

        The consumer must not commit them itself (`enable.auto.commit=false`). Waits up to `max.block.ms`; if it takes
        longer or is interrupted, it goes on until the transaction is committed, or is given up where that is aborted.

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
        self._transact(lambda driver: driver.send_offsets(wanted, group_metadata))

    def commit_transaction(self) -> None:
        """Commit the transaction, once everything that was sent in it has been delivered.

        A record that could not be delivered makes it fail: nobody has to look at deliveries. Waits up to
        `max.block.ms`. If it takes longer or is interrupted it goes on, and nothing is known yet: call it again for its
        outcome.

        Raises:
            TransactionAbortableError: It cannot be committed; `__cause__` says why. Call `abort_transaction`.
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: No transaction is open.
            ProducerFencedError: A newer producer has the `transactional.id`, or the transaction took longer than
                `transaction.timeout.ms`.
        """
        self._transact(TransactionDriver.commit_transaction)

    def abort_transaction(self) -> None:
        """Abort the transaction: readers with `isolation.level=read_committed` see none of it.

        Records that have not left are not sent; their deliveries raise `TransactionAbortedError`. Waits up to
        `max.block.ms`. If it takes longer or is interrupted it goes on: call it again to wait for it.

        Raises:
            KafkaTimeoutError: It takes longer than `max.block.ms`.
            IllegalStateError: No transaction is open.
            ProducerFencedError: A newer producer has the `transactional.id`, or the transaction took longer than
                `transaction.timeout.ms`.
        """
        self._transact(TransactionDriver.abort_transaction)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction for the length of a block, for `with`: committed at its end, aborted on an exception.

        It is aborted on Ctrl-C too, and where it cannot be committed. Where the commit itself is interrupted, or
        takes longer than `max.block.ms`, nothing is known yet: call `commit_transaction` again for its outcome.

        Raises:
            KafkaError: As for `begin_transaction` and `commit_transaction`.
        """
        try:
            self.begin_transaction()
        except KafkaError:
            raise
        except BaseException as error:  # Ctrl-C, and it may have begun all the same
            self._abort_after(error)
            raise
        try:
            yield self
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit_transaction()
        except TransactionAbortableError as error:
            self._abort_after(error)
            self._life.status.check()  # it may have turned out that the producer is fenced
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Abort because of an error, which is the one to be raised."""
        if not self._life.has_open_transaction:
            return
        try:
            self.abort_transaction()
        except KafkaError as second:
            error.add_note(f"kclient: the transaction could not be aborted: {second}")

    def _transact(self, ask: Callable[[TransactionDriver], Awaitable[Callable[[], None] | None]]) -> None:
        async def call() -> Callable[[], None] | None:
            return await ask(self._life.transactions())

        told = self._running().call(call)
        if told is not None:
            told()  # in this thread: an interrupted call has told nobody

    # ------------------------------------------------------------------ looking

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Asking may create it (`auto.create.topics.enable` of the broker).

        Raises:
            KafkaTimeoutError: Nothing is known within `max.block.ms`.
            InvalidTopicError: The name is empty.
        """
        return self._running().call(self._life.loader.partitions_for, topic)


def _weakly(producer: Producer) -> Callable[..., Delivery]:
    """The long way of `send`, without keeping the producer alive: the tasks of one that was dropped still know this."""
    reference = weakref.ref(producer)

    def send(*arguments: Any) -> Delivery:
        found = reference()
        if found is None:
            raise ClosedError("The producer is gone: keep the producer, not its `send` alone")
        return found._send(*arguments)

    return send


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork() -> None:
    for producer in list(_open_producers):
        producer._life.disable(orphaned("producer"))
    _open_producers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
