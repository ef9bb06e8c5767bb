"""The producer for blocking code.

`send` appends in the caller's thread, straight to the accumulator, and wakes the loop's thread only when there is
something new for it to look at; the other calls cross to that thread once.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_callback, check_timeout, in_seconds
from kclient.cluster.client_state import ClientState
from kclient.config import ProducerConfig
from kclient.errors import ClosedError, DeliveryError, KafkaTimeoutError, SerializationError
from kclient.producer.answers import NO_METADATA
from kclient.producer.arrow import rows_of
from kclient.producer.core import ProducerCore, as_headers
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.interfaces import ProducerRecord
from kclient.sync.beginning import Beginning, orphaned
from kclient.sync.portal import get_portal
from kclient.unclosed import finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from kclient.config import ConfigSource
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.sync.portal import Portal
    from kclient.types import Headers, PartitionInfo

logger: logging.Logger = logging.getLogger("kclient.producer")

_REMEDY = "`with`, or `producer.close()`"


class Producer:
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

    def __init__(self, config: ConfigSource = None, /, **settings: Any) -> None:
        self._core = ProducerCore(ProducerConfig.parse(config, **settings))
        if self._core.plain:
            # for the object, `send` is the compiled append itself; what it cannot do it leaves to `_send`
            appender = self._core.accumulator.appender
            appender.fallback = _weakly(self)
            self.send = appender.send  # type: ignore[method-assign]
        self._beginning = Beginning("producer", partial(_start, self._core))

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<sync.Producer {core!r}>" if core is not None else "<sync.Producer, not made>"

    @finalizer
    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.forgotten(self, _REMEDY)

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

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # interrupted, it may have started all the same
            self.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            # an ordinary exception is no reason to lose records; leaving at once is
            self.close(timeout=None if isinstance(error, Exception) else 0)
        except DeliveryError as failed:
            if failed.count > self._core.unsent:
                error.add_note(f"kclient: {failed}")
        if self._core.unsent:
            error.add_note(f"kclient: {self._core.unsent} records were not sent")

    def close(self, timeout: float | None = None) -> None:
        """Send what is there, then end the background tasks. May be called again.

        While another call waits, the shorter time holds for both.

        Ctrl-C while it waits gives up what was not acknowledged yet.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known (within
                `delivery.timeout.ms`), 0 gives it up.

        Raises:
            DeliveryError: Records were not delivered, and nobody asked for them.
        """
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        deadline = None if timeout is None else monotonic() + timeout
        core = self._core
        if self._beginning.elsewhere:
            return  # the parent's producer goes on there
        portal = self._beginning.end()
        _open_producers.discard(self)
        if portal is not None:
            try:
                portal.call(self._finish, timeout)
            except KeyboardInterrupt:  # it gives up what is on its way, and that is told too
                portal.call(self._finish, 0)
                core.outcomes.run_callbacks()
                core.outcomes.after_callbacks(core.close_plugins)
                raise
        else:
            core.state = ClientState.NEW.to(ClientState.CLOSED, "producer")
        core.outcomes.settle(deadline)
        core.outcomes.after_callbacks(core.close_plugins)  # a callback may have called this
        failures = core.outcomes.take_failures()
        if failures is not None:
            raise failures

    async def _finish(self, timeout: float | None) -> None:
        try:
            await self._core.finish(timeout)
        finally:
            await self._core.supervisor.aclose()

    # ------------------------------------------------------------------ sending

    def send(
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

        Waits only for the topic's metadata and for room in the buffer, up to `max.block.ms`. A `send` that was
        interrupted has appended nothing.

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
            The delivery: call `result()` for the `RecordMetadata`, or forget it and call `flush`.

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
        return self._send(topic, value, key, partition, timestamp, headers, on_delivery)

    def _send(
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
        if core.outcomes.callbacks_due:
            core.outcomes.run_callbacks()
        headers = as_headers(headers)
        if not core.plan.interceptors:
            return self._append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        record = core.intercept(ProducerRecord(topic, value, key, partition, timestamp, headers))
        with core.intercepted():
            return self._append(
                record.topic,
                record.value,
                record.key,
                record.partition,
                record.timestamp,
                as_headers(record.headers),
                core.acknowledgement(on_delivery),
                serialized,
            )

    def _append(
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
        if self._beginning.portal is None:
            self.start()
        result = core.append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        if isinstance(result, Delivery):
            return result
        deadline = core.clock() + core.max_block
        while not isinstance(result, Delivery):
            self._until_possible(result, topic, partition, deadline)
            result = core.append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        return result

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
            TypeError: Values or keys are no collection.
            KafkaError: As for `send`.
        """
        values, keys = self._core.columns(values, keys)
        return self._send_batch(topic, values, keys, partition)

    def _send_batch(
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
                delivery = self._send(topic, value, key, partition, None, (), serialized=serialized)
                deliveries.add(delivery.batch, delivery.index, 1)
            return deliveries
        if core.outcomes.callbacks_due:
            core.outcomes.run_callbacks()
        self._running()
        deadline = core.clock() + core.max_block
        while (why := core.append_many(topic, values, keys, partition, deliveries, serialized)) is not None:
            self._until_possible(why, topic, partition, deadline)
        return deliveries

    def send_arrow(self, topic: str | None, data: Any) -> Deliveries:
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
                deliveries.extend(self._send_batch(topic, rows.values, rows.keys, None, serialized=True))
                continue
            for position, value in enumerate(rows.values):
                name = topic if rows.topics is None else rows.topics[position]
                if name is None:
                    raise SerializationError(f"send_arrow: row {position} has no topic")
                key = None if rows.keys is None else rows.keys[position]
                delivery = self._send(name, value, key, **rows.rest(position), serialized=True)
                deliveries.add(delivery.batch, delivery.index, 1)
        return deliveries

    def _until_possible(self, why: Any, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until an append may succeed that did not."""
        core = self._core
        portal = self._running()
        left = deadline - core.clock()
        if why is NO_METADATA:
            portal.call(core.load_topic, topic, max(left, 0.0), partition)
            return
        if left <= 0:
            core.check()
            raise core.exhausted()
        event = threading.Event()
        if not core.accumulator.add_waiter(event.set):
            return
        try:
            # in slices, because a thread that died frees nothing
            event.wait(min(left, 1.0))
        finally:
            core.accumulator.remove_waiter(event.set)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything at once; wait until the fate of what was sent so far is known, and its callbacks are called.

        Called by a callback, it does not wait for callbacks: they come after the present one.

        Args:
            timeout: Seconds to wait at most; None waits within `delivery.timeout.ms`.

        Raises:
            DeliveryError: Records were not delivered, and nobody asked for them.
            KafkaTimeoutError: Not everything is through in time; it goes on in the background, or in the thread that
                calls the callbacks.
            TypeError, ValueError: The timeout is no number of seconds.
        """
        core = self._core
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        deadline = None if timeout is None else monotonic() + timeout
        self._running().call(core.wait_flushed, timeout)
        if not core.outcomes.settle(deadline):
            raise KafkaTimeoutError(f"Another thread was still calling callbacks after {in_seconds(timeout or 0.0)}")
        failures = core.outcomes.take_failures()
        if failures is not None:
            raise failures

    # ------------------------------------------------------------------ looking

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Asking may create it (`auto.create.topics.enable` of the broker).

        Raises:
            KafkaTimeoutError: Nothing is known within `max.block.ms`.
            InvalidTopicError: The name is empty.
        """
        return self._running().call(self._core.partitions_for, topic)

    def metrics(self) -> dict[str, float]:
        """Figures since the start under the names of Java's metrics; times in milliseconds, sizes in bytes."""
        return self._core.figures()


async def _start(core: ProducerCore) -> None:
    await core.start()
    core.outcomes.check_alive = get_portal().check


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
        producer._core.disable(orphaned("producer"))
    _open_producers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
