"""What the async and the blocking producer have in common: everything except the waiting.

`append` may be called from any thread; it never waits. Where it cannot append it says why, and the faces do the
waiting: `NO_METADATA` (call `load_topic` in the loop) or `FULL` (wait until the accumulator has room).
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from kclient.arguments import AS_LONG_AS_IT_TAKES, INT32_MAX, check_timeout, check_topic, in_seconds, shown
from kclient.cluster import (
    ClientState,
    Cluster,
    ClusterSnapshot,
    cluster_addresses,
    topic_error,
)
from kclient.concurrency import Supervisor, Wakeup, to_the_end
from kclient.errors import (
    BufferExhaustedError,
    ClosedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from kclient.producer.accumulator import Accumulator
from kclient.producer.answers import FULL, NO_METADATA, Full, NoMetadata
from kclient.producer.delivery import Deliveries, Delivery, wait_for_batches
from kclient.producer.dispatcher import Dispatcher
from kclient.producer.interfaces import ProducerRecord
from kclient.producer.metrics import ProducerMetrics
from kclient.producer.outcomes import Outcomes
from kclient.producer.sender import Sender
from kclient.producer.settings import ProducerPlan
from kclient.producer.transactions import TransactionManager
from kclient.unclosed import warn_unclosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kclient.concurrency import TaskHandle
    from kclient.config import ProducerConfig
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.serialization import Serializer
    from kclient.types import Headers, PartitionInfo

logger: logging.Logger = logging.getLogger("kclient.producer")


class ProducerCore:
    """One producer without a face.

    Args:
        config: The settings.
        clock: Monotonic time in seconds.
    """

    def __init__(self, config: ProducerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        # what cannot be right is refused now, not by the first call
        cluster_addresses(config)
        self.config = config
        self.clock = clock
        self.plan: ProducerPlan = ProducerPlan.of(config)
        self.state: ClientState = ClientState.NEW
        self.max_block: float = config.max_block_ms / 1000
        self.unsent: int = 0
        """How many records were given up when the producer ended."""
        self.woken: bool = False
        """Whether the sender was woken since somebody last reset this."""
        self.outcomes: Outcomes = Outcomes()
        plain = not (self.plan.interceptors or self.plan.partitioner)
        plain = plain and self.plan.key_serializer is None and self.plan.value_serializer is None
        self.plain = plain
        """Whether a record goes to the accumulator as it is: then `send` tries the compiled append first."""
        self.wakeup: Wakeup = Wakeup()
        self.accumulator: Accumulator = Accumulator(self.plan.accumulator, self.outcomes, self._wake, clock, time.time)
        self.supervisor: Supervisor = Supervisor("producer", on_failure=self._on_failure)
        self._failure: BaseException | None = None
        self._forgotten = False
        self._plugins_closed = False
        self._pid = os.getpid()
        self._counts: dict[str, int] = {}
        self._awaited: Counter[str] = Counter()
        """Topics that calls wait for."""
        self._transactions = TransactionManager() if self.plan.idempotent else None
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._dispatcher: Dispatcher | None = None
        self._tasks: list[TaskHandle] = []

    def __repr__(self) -> str:
        return f"{','.join(self.config.bootstrap_servers)} {self.state.value}"

    def _wake(self) -> None:
        self.woken = True
        self.wakeup.set()

    # ------------------------------------------------------------------ life, in the loop

    async def start(self) -> None:
        """Start the background tasks; connects when there is something to send."""
        if self.state in {ClientState.CLOSING, ClientState.CLOSED}:
            raise ClosedError("The producer was closed; make a new one")
        if self.state is not ClientState.NEW:
            raise IllegalStateError("The producer was started before; make a new one")
        await self.supervisor.start()
        self.outcomes.check_loop = self.supervisor.check_loop
        try:
            if self.state is not ClientState.NEW:
                raise ClosedError("The producer was closed while it was started; make a new one")
            self._start_tasks()
            await self.cluster.start()
            self.state = self.state.to(ClientState.RUNNING, "producer")
        except BaseException:  # whatever it is, no task may stay behind a producer that was not made
            try:
                if self._cluster is not None:
                    await self._cluster.aclose()
            finally:
                await self.supervisor.aclose()
            raise

    def _start_tasks(self) -> None:
        config = self.config
        cluster = self._cluster = Cluster(
            config,
            self.supervisor,
            metadata_max_idle=config.metadata_max_idle_ms / 1000,
            in_use=lambda: self.accumulator.topics | self._awaited.keys(),
            clock=self.clock,
        )
        sender = self._sender = Sender(
            self.accumulator, self._transactions, cluster.metadata, self.plan.sender, cluster.retry_backoff
        )
        cluster.listeners.append(self._on_metadata)
        self._dispatcher = Dispatcher(
            sender,
            cluster,
            self.supervisor,
            acks=self.plan.sender.acks,
            timeout_ms=config.request_timeout_ms,
            wakeup=self.wakeup,
        )
        self._tasks.append(self.supervisor.spawn(self._dispatcher.run, name="sender"))

    @property
    def cluster(self) -> Cluster:
        """Metadata and connections.

        Raises:
            IllegalStateError: The producer was not started.
        """
        if self._cluster is None:
            raise IllegalStateError("The producer was not started: use `async with` or call `start`")
        return self._cluster

    def _on_metadata(self) -> None:
        """New metadata: append may go by them from now on. Replaced as a whole, so any thread may read."""
        snapshot = self.cluster.snapshot
        self._counts = {name: len(topic.partitions) for name, topic in snapshot.topics.items() if topic.partitions}
        self.accumulator.update(snapshot)

    def _on_failure(self, error: BaseException) -> None:
        """A background task died: everything that waits fails, and the next call raises it."""
        self._failure = error
        cause = error if isinstance(error, KafkaError) else _wrapped(error)
        self.accumulator.close(cause)
        ended = isinstance(error, ClosedError)  # a loop that ends takes the tasks with it
        lost = sum(batch.count for batch in self.accumulator.abort(cause))
        self._gave_up(lost, _LOOP_ENDED if ended else "the producer failed")
        if not ended:
            logger.error("the producer failed: %r", error)

    def _gave_up(self, count: int, why: str) -> None:
        self.unsent += count
        if count:
            logger.warning("%d records were not sent: %s (%r)", count, why, self)

    def forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn if it was not closed, and let the tasks send what is there and end.

        It runs in the garbage collector, so in any thread, whatever lock that holds.
        """
        if self._forgotten or self.state is not ClientState.RUNNING or self._pid != os.getpid():
            return
        self._forgotten = True
        pending = self.accumulator.open_records
        if self.unsent:
            lost = f"{self.unsent} records were not sent"
        elif pending:
            lost = f"{pending} records are not acknowledged yet, and lost if the program ends before they are"
        else:
            lost = ""
        self.supervisor.retire(partial(self.finish, None))
        warn_unclosed(face, remedy, lost)

    def disable(self, error: KafkaError) -> None:
        """Make every call raise from now on, without touching a lock that a lost thread may hold (after a fork)."""
        self._failure = error
        self._counts = {}
        self.accumulator.appender.topics.clear()

    def check(self) -> None:
        """Raise what went wrong in the background, or that the producer is not open.

        Raises:
            KafkaError: The stored failure.
            ClosedError: The producer was closed.
            IllegalStateError: The producer was not started.
        """
        if self._failure is not None:
            if isinstance(self._failure, KafkaError):
                raise self._failure
            raise _wrapped(self._failure)
        if self._transactions is not None and self._transactions.error is not None:
            raise self._transactions.error
        if self.state is ClientState.NEW:
            raise IllegalStateError("The producer was not started: use `async with` or call `start`")
        if self.state is not ClientState.RUNNING:
            raise ClosedError("The producer was closed")

    # ------------------------------------------------------------------ appending, in any thread

    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None,
        serialized: bool = False,
    ) -> Delivery | Literal[Full.FULL, NoMetadata.NO_METADATA]:
        """Append a record if that is possible now.

        The headers are a list or a tuple (see `as_headers`), since they may be read several times.

        Raises:
            KafkaError: The record can never be appended, or the producer cannot take any.
        """
        try:
            count = self._counts.get(topic)
        except TypeError:  # it cannot be looked up, and is no name
            check_topic(topic)
            raise
        if count is None:
            self.check()
            check_topic(topic)
            # what is wrong anyway must not be waited for
            check_headers(headers)
            if partition is not None:
                check_partition(partition)
            if timestamp is not None:
                check_timestamp(timestamp)
            return NO_METADATA
        key_bytes, value_bytes = key, value
        plan = self.plan
        if plan.key_serializer is not None and not serialized:
            key_bytes = _serialize(plan.key_serializer, topic, key, headers)
        if plan.value_serializer is not None and not serialized:
            value_bytes = _serialize(plan.value_serializer, topic, value, headers)
        if partition is not None:
            if check_partition(partition) >= count:
                return NO_METADATA
        elif plan.partitioner is not None:
            partition = plan.partitioner.partition(topic, key, key_bytes, value, value_bytes, self.cluster.snapshot)
            if not isinstance(partition, int) or not 0 <= partition < count:
                name = type(plan.partitioner).__name__
                raise ValueError(f"{name} chose the partition {shown(partition)} of {topic!r}, which has {count}")
        if timestamp is not None:
            check_timestamp(timestamp)
        try:
            return self.accumulator.append(topic, value_bytes, key_bytes, partition, timestamp, headers, on_delivery)
        except (TypeError, ValueError, OverflowError) as error:
            check_headers(headers)
            if not isinstance(error, TypeError):
                raise
            raise SerializationError(f"{error}; set key_serializer or value_serializer, or send bytes") from error

    def append_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        into: Deliveries,
        serialized: bool = False,
    ) -> Literal[Full.FULL, NoMetadata.NO_METADATA] | None:
        """Append values from `values[len(into)]` on; None when all are appended, else why it stopped."""
        try:
            count = self._counts.get(topic)
        except TypeError:  # it cannot be looked up, and is no name
            check_topic(topic)
            raise
        if count is None:
            self.check()
            check_topic(topic)
            if partition is not None:
                check_partition(partition)
            return NO_METADATA
        if partition is not None and check_partition(partition) >= count:
            return NO_METADATA
        plan = self.plan
        serialized = serialized or plan.value_serializer is None
        if keys is not None or plan.partitioner is not None or not serialized:
            return self._append_one_by_one(topic, values, keys, partition, into, serialized)
        while len(into) < len(values):
            timestamp = int(time.time() * 1000)
            try:
                result = self.accumulator.append_many(topic, partition, timestamp, values, len(into))
            except TypeError as error:
                raise SerializationError(f"{error}; set value_serializer, or send bytes") from error
            if result is FULL or result is NO_METADATA:
                return result
            into.add(*result)
        return None

    def _append_one_by_one(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        into: Deliveries,
        serialized: bool = False,
    ) -> Literal[Full.FULL, NoMetadata.NO_METADATA] | None:
        while len(into) < len(values):
            position = len(into)
            key = None if keys is None else keys[position]
            result = self.append(topic, values[position], key, partition, None, (), None, serialized)
            if not isinstance(result, Delivery):
                return result
            into.add(result.batch, result.index, 1)
        return None

    def intercept(self, record: ProducerRecord) -> ProducerRecord:
        """Let the interceptors see a record; what they raise is logged."""
        for interceptor in self.plan.interceptors:
            try:
                seen = interceptor.on_send(record)
                if not isinstance(seen, ProducerRecord):
                    raise TypeError(f"on_send returns the record to send, a ProducerRecord; not {shown(seen)}")
                record = seen
            except Exception:  # the user's code: the record is sent as it was, as in Java
                logger.exception("%s.on_send raised", type(interceptor).__name__)
        return record

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """The interceptors have seen a record: if it is not appended in the block, they are told why."""
        try:
            yield
        except BaseException as error:
            cause = error if isinstance(error, KafkaError) else _not_sent(error)
            self.acknowledgement(None)(None, cause)
            raise

    def acknowledgement(self, callback: DeliveryCallback | None) -> DeliveryCallback:
        """The callback that tells the interceptors, then the user."""
        interceptors = self.plan.interceptors

        def tell(metadata: Any, error: KafkaError | None) -> None:
            for interceptor in interceptors:
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception:  # the user's code: the delivery stays what it is
                    logger.exception("%s.on_acknowledgement raised", type(interceptor).__name__)
            if callback is not None:
                callback(metadata, error)

        return tell

    @staticmethod
    def columns(values: Iterable[Any], keys: Iterable[Any] | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Values and keys of a batch as sequences that know their length.

        Raises:
            TypeError: They are no collections.
            ValueError: There are not as many keys as values.
        """
        values = _column(values, "values")
        if keys is None:
            return values, None
        keys = _column(keys, "keys")
        if len(keys) != len(values):
            raise ValueError(f"{len(values)} values but {len(keys)} keys")
        return values, keys

    def exhausted(self) -> BufferExhaustedError:
        """There was no room within `max.block.ms`."""
        return BufferExhaustedError(
            f"No room became free in buffer.memory ({self.plan.accumulator.buffer_memory} bytes) within "
            f"max.block.ms ({self.config.max_block_ms} ms): the brokers take records more slowly than they come"
        )

    # ------------------------------------------------------------------ waiting, in the loop

    async def load_topic(self, topic: str, timeout: float, partition: int | None = None) -> ClusterSnapshot:
        """Wait until the partitions of a topic are known, or one that it may have got lately; asking may create it.

        Raises:
            KafkaTimeoutError: They are not known within `timeout` seconds; the text says what was tried.
            KafkaError: The topic can never be used.
        """
        cluster = self.cluster

        def known(snapshot: ClusterSnapshot) -> bool:
            self.check()
            error = topic_error(snapshot, topic)
            if error is not None and not error.retriable:
                raise error
            return topic in self._counts

        self._awaited[topic] += 1
        deadline = self.clock() + timeout
        try:
            cluster.track([topic], create=False)  # but it is in use now, so asking creates it
            snapshot = await cluster.wait_until(known, timeout=timeout, what=f"The partitions of topic {shown(topic)}")
            if partition is not None:
                snapshot = await self._grown(topic, partition, deadline, timeout)
        except KafkaTimeoutError as late:
            error = topic_error(cluster.snapshot, topic)
            if error is None:
                raise
            raise KafkaTimeoutError(f"{late.message}: {error}") from error
        finally:
            self._awaited[topic] -= 1
            self._awaited = +self._awaited
        return snapshot

    async def _grown(self, topic: str, partition: int, deadline: float, timeout: float) -> ClusterSnapshot:
        """Ask for the topic again and again, ever less often, until it has a partition."""
        cluster = self.cluster
        attempts = 0
        while (count := self._counts.get(topic, 0)) <= partition:
            left = deadline - self.clock()
            if left <= 0:
                text = f"The partition {partition} of topic {topic!r} did not appear within"
                time_over = f"{in_seconds(self.max_block)} (max.block.ms)"
                raise UnknownTopicOrPartitionError(f"{text} {time_over}: the topic has {count} partitions")
            attempts += 1
            delay = cluster.retry_backoff.seconds(attempts) if attempts > 1 else 0.0
            await anyio.sleep(min(delay, left))
            self.check()
            with anyio.move_on_after(max(deadline - self.clock(), 0.0)):
                await cluster.refresh(timeout=timeout)
        return cluster.snapshot

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The topic's partitions, fetched if they are not known."""
        self.check()
        check_topic(topic)
        if topic not in self._counts:
            await self.load_topic(topic, self.max_block)
        return self.cluster.snapshot.partitions_for(topic)

    async def wait_flushed(self, timeout: float | None) -> None:
        """Wait until the fate of everything appended so far is known.

        Raises:
            KafkaTimeoutError: It is not known within `timeout` seconds.
            TypeError, ValueError: The timeout is no number of seconds.
        """
        self.check()
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        batches = self.accumulator.begin_flush()
        try:
            with anyio.move_on_after(timeout):
                await wait_for_batches(batches)
        finally:
            self.accumulator.end_flush()
        waiting = sum(1 for batch in batches if not batch.done)
        if waiting and timeout is not None:
            raise KafkaTimeoutError(f"{waiting} batches were not acknowledged within {in_seconds(timeout)}")

    async def finish(self, timeout: float | None) -> None:
        """Take no more records, send what is there, disconnect. The supervisor is left for its owner to close.

        Cancelling it, like a timeout, gives up what has not been acknowledged.

        Args:
            timeout: Seconds to wait for what is on its way; None waits until its fate is known. What is given up is
                counted in `unsent`.
        """
        if self.state is ClientState.NEW:
            self.state = self.state.to(ClientState.CLOSED, "producer")
        if self.state is ClientState.CLOSED:
            return
        if self.state is ClientState.RUNNING:
            self.state = self.state.to(ClientState.CLOSING, "producer")
        self.accumulator.close()
        try:
            if timeout is None or timeout > 0:
                with anyio.move_on_after(timeout):
                    await wait_for_batches(self.accumulator.incomplete)
        finally:
            await to_the_end(self._end)

    async def _end(self) -> None:
        if self._sender is not None:
            error = ClosedError("The producer was closed before the record was acknowledged")
            self._gave_up(self._sender.abort(error), "the producer was closed before they were acknowledged")
        if self._dispatcher is not None:
            self._dispatcher.stop()
        for task in self._tasks:
            task.cancel()
        if self._cluster is not None:
            await self._cluster.aclose()
        if self.state is ClientState.CLOSING:
            self.state = self.state.to(ClientState.CLOSED, "producer")

    def close_plugins(self) -> None:
        """Tell interceptors, partitioner and serializers, once, that it is over; in the caller's thread."""
        if self._plugins_closed:
            return
        self._plugins_closed = True
        plan = self.plan
        for plugin in (*plan.interceptors, plan.partitioner, plan.key_serializer, plan.value_serializer):
            close = getattr(plugin, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:  # the user's code: the others are closed all the same
                    logger.exception("%s.close raised", type(plugin).__name__)

    def figures(self) -> dict[str, float]:
        """The metrics, by Java's names."""
        figures = (ProducerMetrics() if self._sender is None else self._sender.metrics).figures()
        total = self.plan.accumulator.buffer_memory
        figures["buffer-total-bytes"] = total
        figures["buffer-available-bytes"] = self.accumulator.memory.available
        figures["waiting-threads"] = self.accumulator.waiting
        figures["requests-in-flight"] = 0 if self._sender is None else self._sender.in_flight
        return figures


def _serialize(serializer: Serializer[Any], topic: str, value: Any, headers: Headers) -> Any:
    try:
        return serializer.serialize(topic, value, headers)
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"{type(serializer).__name__} failed for a record of {topic!r}: {error}") from error


def _column(given: Any, name: str) -> Sequence[Any]:
    if isinstance(given, list | tuple):
        return given
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise TypeError(f"{name} are a sequence, one for each record; not {shown(given)}")
    return list(given)


def as_headers(headers: Any) -> Headers:
    """Headers that may be read several times; what is in them is looked at later.

    Raises:
        TypeError: They are no collection of pairs.
    """
    if isinstance(headers, tuple | list):
        return headers
    if headers is None:
        return ()
    if isinstance(headers, _NO_HEADERS) or not isinstance(headers, Iterable):
        check_headers(headers)
    return list(headers)


def check_headers(headers: Any) -> None:
    """Raise `TypeError` if these cannot be a record's headers."""
    expected = "headers are a sequence of pairs of str and bytes (or None), as in [('trace', b'1')]"
    if isinstance(headers, Mapping):
        raise TypeError(f"{expected}; not {type(headers).__name__}: give list(headers.items())")
    if not isinstance(headers, Iterable) or isinstance(headers, _NO_HEADERS):
        raise TypeError(f"{expected}; not {type(headers).__name__}")
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"{expected}; {shown(header)} is no such pair")
        if isinstance(header[1], str):
            raise TypeError(f"{expected}; encode the value of {shown(header)}, as in {shown(header[1])}.encode()")


def check_timestamp(timestamp: Any) -> None:
    """Raise if this cannot be the timestamp of a record to be sent."""
    expected = "a record's timestamp is a whole number of milliseconds since the epoch, 0 or more, or None for now"
    if isinstance(timestamp, datetime):
        raise TypeError(f"{expected}; not a datetime: give int(when.timestamp() * 1000)")
    if not isinstance(timestamp, int):
        raise TypeError(f"{expected}; not {type(timestamp).__name__}")
    if not 0 <= timestamp < 2**63:
        raise ValueError(f"{expected}; not {shown(timestamp)}")


def _wrapped(error: BaseException) -> KafkaError:
    """An unexpected exception of a background task, as the producer raises it."""
    wrapped = KafkaError(f"The producer's background task failed: {error!r}", fatal=True)
    wrapped.__cause__ = error
    return wrapped


def _not_sent(error: BaseException) -> KafkaError:
    """What kept a record from being sent, as the interceptors are told."""
    text = str(error) if isinstance(error, Exception) else "the call was cancelled or interrupted"
    wrapped = KafkaError(f"The record was not sent: {text or repr(error)}")
    wrapped.__cause__ = error
    return wrapped


def check_partition(partition: Any) -> int:
    """The number of a partition.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative, or larger than any that Kafka knows.
    """
    if not isinstance(partition, int):
        raise TypeError(f"a partition is a whole number, or None for the partitioner's choice; not {shown(partition)}")
    if not 0 <= partition <= INT32_MAX:
        text = f"a partition's number is from 0 to {INT32_MAX}, or None for the partitioner's choice"
        raise ValueError(f"{text}: {shown(partition)}")
    return partition


_LOOP_ENDED = "its event loop ended before the producer was closed; use `async with`, `with`, or `close`"
_NO_HEADERS = (str, bytes, bytearray, memoryview, Mapping)
