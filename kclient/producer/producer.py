"""The producer for asyncio and trio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_callback, check_timeout
from kclient.concurrency import current_backend
from kclient.config import ProducerConfig
from kclient.errors import DeliveryError, IllegalStateError, SerializationError
from kclient.producer.answers import FULL, NO_METADATA
from kclient.producer.arrow import rows_of
from kclient.producer.core import ProducerCore, as_headers
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.interfaces import ProducerRecord
from kclient.unclosed import finalizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from kclient.config import ConfigSource
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.types import Headers, PartitionInfo

logger: logging.Logger = logging.getLogger("kclient.producer")

PATIENCE: float = 0.001
"""Seconds for which a loop of `send` may keep the event loop to itself."""


class Producer:
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

    def __init__(self, config: ConfigSource = None, /, **settings: Any) -> None:
        self._core = ProducerCore(ProducerConfig.parse(config, **settings))
        self._fast = self._core.accumulator.appender.append if self._core.plain else None
        self._yielded = 0.0
        self._nested = False
        """Whether the tasks' nursery is open around the user's block (trio), and must end after it."""

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<Producer {core!r}>" if core is not None else "<Producer, not made>"

    @finalizer
    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.forgotten(self, "`async with`, or `await producer.close()`")

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the background tasks. `async with` does it; on trio only that works, and this is an error.

        It does not wait for a broker: the first `send` does, up to `max.block.ms`.

        Raises:
            IllegalStateError: It was started before, or this is trio.
        """
        if current_backend() == "trio":  # whose tasks cannot outlive a block
            raise IllegalStateError("On trio a producer is started by its block: use `async with`, not `start`")
        await self._core.start()

    async def __aenter__(self) -> Self:
        await self._core.start()
        self._nested = current_backend() == "trio"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave(error)
        finally:
            await self._core.supervisor.aclose()

    async def _leave(self, error: BaseException | None) -> None:
        if error is None:
            await self.close()
            return
        try:
            # an ordinary exception is no reason to lose records; leaving at once is
            await self.close(timeout=None if isinstance(error, Exception) else 0)
        except DeliveryError as failed:
            if failed.count > self._core.unsent:
                error.add_note(f"kclient: {failed}")
        if self._core.unsent:
            error.add_note(f"kclient: {self._core.unsent} records were not sent")

    async def close(self, timeout: float | None = None) -> None:
        """Send what is there, then end the background tasks. May be called again.

        While another call waits, the shorter time holds for both.

        If it is cancelled, it gives up what was not acknowledged yet, ends the tasks, and lets go.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known (within
                `delivery.timeout.ms`), 0 gives it up.

        Raises:
            DeliveryError: Records were not delivered, and nobody awaited them.
            IllegalStateError: It was started in another event loop.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        core = self._core
        core.supervisor.check_loop()
        try:
            with anyio.CancelScope(shield=timeout == 0):
                await core.finish(timeout)
        finally:
            try:
                if not self._nested:
                    await core.supervisor.aclose()
            finally:
                try:
                    core.outcomes.run_callbacks()
                finally:
                    core.close_plugins()
        failures = core.outcomes.take_failures()
        if failures is not None:
            raise failures

    # ------------------------------------------------------------------ sending

    async def send(
        self,
        topic: str,
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
            topic: Topic to send to.
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
            TypeError: An argument is of a wrong type, such as an `on_delivery` that cannot be called.
            ValueError: The partition or the timestamp is negative, or larger than Kafka's numbers are.
        """
        core = self._core
        if self._fast is not None and on_delivery is None and not core.woken:
            try:
                delivery: Delivery | None = self._fast(topic, value, key, partition, timestamp, headers)
            except (TypeError, ValueError):
                delivery = None  # the long way says which setting helps
            if delivery is not None:
                return delivery
        return await self._send(topic, value, key, partition, timestamp, headers, on_delivery)

    async def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None = None,
        *,
        serialized: bool = False,
    ) -> Delivery:
        """`send` without the fast path; `serialized`: key and value are bytes already."""
        core = self._core
        if on_delivery is not None:
            check_callback(on_delivery, "on_delivery")
        if core.woken or core.clock() - self._yielded > PATIENCE:
            # the sender has something to do: a loop that only sends must not starve it
            core.supervisor.check_loop()
            core.woken = False
            await anyio.lowlevel.checkpoint()
            self._yielded = core.clock()
        if core.outcomes.callbacks_due:
            core.outcomes.run_callbacks()
        headers = as_headers(headers)
        if not core.plan.interceptors:
            return await self._append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        record = core.intercept(ProducerRecord(topic, value, key, partition, timestamp, headers))
        with core.intercepted():
            return await self._append(
                record.topic,
                record.value,
                record.key,
                record.partition,
                record.timestamp,
                as_headers(record.headers),
                core.acknowledgement(on_delivery),
                serialized,
            )

    async def _append(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None,
        serialized: bool,
    ) -> Delivery:
        """Append a record; waits while that is not possible."""
        core = self._core
        result = core.append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        if isinstance(result, Delivery):
            return result
        deadline = core.clock() + core.max_block
        while not isinstance(result, Delivery):
            await self._until_possible(result, topic, partition, deadline)
            result = core.append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        return result

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
            TypeError: Values or keys are no collection.
            KafkaError: As for `send`.
        """
        values, keys = self._core.columns(values, keys)
        return await self._send_batch(topic, values, keys, partition)

    async def _send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        *,
        serialized: bool = False,
    ) -> Deliveries:
        core = self._core
        deliveries = Deliveries()
        if core.plan.interceptors:
            for position, value in enumerate(values):
                key = None if keys is None else keys[position]
                delivery = await self._send(topic, value, key, partition, None, (), serialized=serialized)
                deliveries.add(delivery.batch, delivery.index, 1)
            return deliveries
        core.supervisor.check_loop()
        await anyio.lowlevel.checkpoint()
        if core.outcomes.callbacks_due:
            core.outcomes.run_callbacks()
        deadline = core.clock() + core.max_block
        while (why := core.append_many(topic, values, keys, partition, deliveries, serialized)) is not None:
            await self._until_possible(why, topic, partition, deadline)
        return deliveries

    async def send_arrow(self, topic: str | None, data: Any) -> Deliveries:
        """Append the rows of Arrow data, whose columns are those of Spark's Kafka sink.

        Columns: `value` (binary or string), and where wanted `key`, `headers` (list of key and value), `partition`,
        `timestamp` (milliseconds, or a timestamp) and `topic`. Serializers are not applied. Waits as `send_batch` does.

        Args:
            topic: Topic of all rows; None takes the column `topic`.
            data: A pyarrow Table or RecordBatch, or an iterable of RecordBatches.

        Returns:
            The deliveries, in order.

        Raises:
            MissingExtraError: pyarrow is not installed.
            SerializationError: A column is missing, unknown, or of a wrong type.
            KafkaError: As for `send`.
        """
        deliveries = Deliveries()
        for rows in rows_of(topic, data):
            if rows.uniform and topic is not None:
                deliveries.extend(await self._send_batch(topic, rows.values, rows.keys, None, serialized=True))
                continue
            for position, value in enumerate(rows.values):
                name = topic if rows.topics is None else rows.topics[position]
                if name is None:
                    raise SerializationError(f"send_arrow: row {position} has no topic")
                key = None if rows.keys is None else rows.keys[position]
                delivery = await self._send(name, value, key, **rows.rest(position), serialized=True)
                deliveries.add(delivery.batch, delivery.index, 1)
        return deliveries

    async def _until_possible(self, why: Any, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until an append may succeed that did not."""
        core = self._core
        core.supervisor.check_loop()
        left = deadline - core.clock()
        if why is NO_METADATA:
            await core.load_topic(topic, max(left, 0.0), partition)
            return
        assert why is FULL
        if left <= 0:
            core.check()
            raise core.exhausted()
        event = anyio.Event()
        if not core.accumulator.add_waiter(event.set):
            return
        try:
            with anyio.move_on_after(left):
                await event.wait()
        finally:
            core.accumulator.remove_waiter(event.set)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything at once and wait until the fate of what was sent so far is known.

        Args:
            timeout: Seconds to wait at most; None waits within `delivery.timeout.ms`.

        Raises:
            DeliveryError: Records were not delivered, and nobody awaited them.
            KafkaTimeoutError: Not everything is through in time; it goes on in the background.
            TypeError, ValueError: The timeout is no number of seconds.
        """
        core = self._core
        core.supervisor.check_loop()
        await core.wait_flushed(timeout)
        core.outcomes.run_callbacks()
        failures = core.outcomes.take_failures()
        if failures is not None:
            raise failures

    # ------------------------------------------------------------------ looking

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Asking may create it (`auto.create.topics.enable` of the broker).

        Raises:
            KafkaTimeoutError: Nothing is known within `max.block.ms`.
            InvalidTopicError: The name is empty.
        """
        self._core.supervisor.check_loop()
        return await self._core.partitions_for(topic)

    def metrics(self) -> dict[str, float]:
        """Figures since the start under the names of Java's metrics; times in milliseconds, sizes in bytes."""
        return self._core.figures()
