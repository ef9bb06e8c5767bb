"""What `send`, `send_batch` and `send_arrow` do, for both faces: everything except the waiting.

Where a call has to wait it becomes a script, a generator that says what to wait for; the async face awaits that, the
blocking one waits in the caller's thread. A record for which there is room, which is nearly every one, needs none.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from kclient.arguments import check_plain_callback
from kclient.errors import BufferExhaustedError, TransactionAbortedError
from kclient.producer.accumulator import NO_METADATA, Full, NoMetadata
from kclient.producer.arrow import pieces_of, telling_rows
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.interfaces import ProducerRecord
from kclient.producer.record_arguments import as_headers, as_partition_number, check_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kclient.producer.arrow import Piece
    from kclient.producer.delivery_reports import DeliveryReports
    from kclient.producer.interceptors import Interceptors
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.metrics import ProducerMetrics
    from kclient.producer.record_appender import RecordAppender
    from kclient.types import Headers

T = TypeVar("T")


LONGEST_PIECE: Final = 0.005
"""Seconds after which a long `send_batch` lets others run; the sender wakes less often so, for larger batches."""


class LoadTopic(NamedTuple):
    """Wait until a topic, and perhaps a partition of it, is known."""

    topic: str
    partition: int | None
    timeout: float
    """At most this many seconds; then it is an error."""


class WaitForRoom(NamedTuple):
    """Wait until there may be room in the buffer."""

    timeout: float
    """At most this many seconds; then the script goes on."""


class LetOthersRun(NamedTuple):
    """A piece of a long call is done: where others share the thread, it may be their turn."""


AnyWait: TypeAlias = LoadTopic | WaitForRoom | LetOthersRun
Script: TypeAlias = Generator[AnyWait, None, T]
Arguments: TypeAlias = tuple[
    str, Any, Any, int | None, int | None, "Headers", "DeliveryCallback | None", bool, int
]  # of `RecordAppender.append`


class Sending:
    """The logic of the calls that send. Its methods may be called from any thread.

    Args:
        appender: Takes the records.
        interceptors: See them first.
        reports: Has callbacks that are due.
        check: Raises where the producer takes no records.
        clock: Monotonic time in seconds.
        max_block_ms: How long a call waits at most (`max.block.ms`).
        buffer_memory: Bytes of the buffer, for messages.
        metrics: Are told how long calls wait.
        transaction: Numbers the transactions; None without a transactional id.
    """

    def __init__(
        self,
        appender: RecordAppender,
        interceptors: Interceptors,
        reports: DeliveryReports,
        check: Callable[[], None],
        *,
        clock: Callable[[], float],
        max_block_ms: int,
        buffer_memory: int,
        metrics: ProducerMetrics,
        transaction: Callable[[], int] | None = None,
    ) -> None:
        self._append = appender.append
        self._append_some = appender.append_some
        self._append_rows = appender.append_rows
        self._end_rows = appender.end_rows
        self._interceptors = interceptors
        self._intercepted = bool(interceptors)
        self._reports = reports
        self._check = check
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._max_block = max_block_ms / 1000
        self._buffer_memory = buffer_memory
        self._metrics = metrics
        self._transaction = transaction

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None = None,
        serialized: bool = False,
    ) -> Delivery | Script[Delivery]:
        """Append a record, or give the script that does it once that is possible.

        `topic`: its topic, or all of it; `serialized`: key and value are bytes already.
        """
        if isinstance(topic, ProducerRecord):
            check_alone(value, key, partition, timestamp, headers)
            record = topic
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            timestamp, headers = record.timestamp, record.headers
        if on_delivery is not None:
            check_plain_callback(on_delivery, "on_delivery")
        if self._reports.callbacks_due:
            self._reports.run_callbacks()
        headers = as_headers(headers)
        if not self._intercepted:
            made = self._append(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
            if isinstance(made, Delivery):
                return made
            arguments = (topic, value, key, partition, timestamp, headers, on_delivery, serialized, 0)
            return self._in_one_transaction(self._append_later(made, arguments))
        seen = self._interceptors.on_send(ProducerRecord(topic, value, key, partition, timestamp, headers))
        told = self._interceptors.acknowledgement(on_delivery)
        with self._interceptors.seen():
            rest = (seen.partition, seen.timestamp, as_headers(seen.headers), told, serialized, 0)
            arguments = (seen.topic, seen.value, seen.key, *rest)
            made = self._append(*arguments)
        if isinstance(made, Delivery):
            return made
        return self._in_one_transaction(self._append_seen(made, arguments))

    def _in_one_transaction(self, script: Script[T]) -> Script[T]:
        """A script that ends with an error where the transaction that it began in is not the present one any more.

        Else what waited would join a transaction that another task has begun meanwhile.
        """
        if self._transaction is None:
            return (yield from script)
        number = self._transaction()
        try:
            wait = next(script)
            while True:
                try:
                    yield wait
                    if self._transaction() != number:
                        raise TransactionAbortedError("The transaction that the call was made in ended while it waited")
                except BaseException as error:  # noqa: BLE001  (the script decides what to do about it)
                    wait = script.throw(error)
                else:
                    wait = script.send(None)
        except StopIteration as end:
            made: T = end.value
            return made

    def _append_later(self, why: Full | NoMetadata, record: Arguments) -> Script[Delivery]:
        deadline = self._clock() + self._max_block
        while True:
            yield from self._waiting(why, record[0], record[3], deadline)
            result = self._append(*record)
            if isinstance(result, Delivery):
                return result
            why = result

    def _append_seen(self, why: Full | NoMetadata, record: Arguments) -> Script[Delivery]:
        with self._interceptors.seen():
            return (yield from self._append_later(why, record))

    def _waiting(self, why: Full | NoMetadata, topic: str, partition: int | None, deadline: float) -> Script[None]:
        """Wait until an append may succeed that did not; the metrics tell how long."""
        wait = self._wait(why, topic, partition, deadline)
        began = self._clock()
        try:
            yield wait
        finally:
            metrics = self._metrics
            tally = metrics.metadata_time if isinstance(wait, LoadTopic) else metrics.room_time
            tally.add(self._clock() - began)

    def _wait(self, why: Full | NoMetadata, topic: str, partition: int | None, deadline: float) -> AnyWait:
        """What to wait for until an append may succeed that did not."""
        left = deadline - self._clock()
        if why is NO_METADATA:
            number = None if partition is None else as_partition_number(partition)
            return LoadTopic(topic, number, max(left, 0.0))
        if left <= 0:
            self._check()
            self._metrics.windows.look()
            self._metrics.exhausted.add()
            raise BufferExhaustedError(
                f"No room became free in buffer.memory ({self._buffer_memory} bytes) within "
                f"max.block.ms ({self._max_block_ms} ms): the brokers take records more slowly than they come"
            )
        return WaitForRoom(left)

    def send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        serialized: bool = False,
    ) -> Script[Deliveries]:
        """Append values, and as many keys if there are any."""
        return self._in_one_transaction(self._send_batch(topic, values, keys, partition, serialized))

    def _send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        serialized: bool,
    ) -> Script[Deliveries]:
        deliveries = Deliveries()
        begun = self._clock()
        if self._intercepted:
            yield from self._send_each(deliveries, topic, values, keys, partition, (), serialized)
            return deliveries
        if self._reports.callbacks_due:
            self._reports.run_callbacks()
            begun = self._clock()
        deadline = begun + self._max_block
        while True:
            why = self._append_some(topic, values, keys, partition, deliveries, serialized)
            if why is not None:
                yield from self._waiting(why, topic, partition, deadline)
            elif len(deliveries) == len(values):
                return deliveries
            elif self._clock() - begun > LONGEST_PIECE:
                yield LetOthersRun()
                begun = self._clock()

    def _send_each(
        self,
        deliveries: Deliveries,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        headers: Headers,
        serialized: bool,
    ) -> Script[None]:
        """Append values one by one."""
        begun = self._clock()
        for position, value in enumerate(values):
            key = None if keys is None else keys[position]
            yield from self._send_into(deliveries, topic, value, key, partition, None, headers, serialized)
            if self._clock() - begun > LONGEST_PIECE:
                yield LetOthersRun()
                begun = self._clock()

    def send_arrow(self, topic: str | None, data: Any) -> Script[Deliveries]:
        """Append the rows of Arrow data; without a topic each row tells its own."""
        return self._in_one_transaction(self._send_arrow(topic, data))

    def _send_arrow(self, topic: str | None, data: Any) -> Script[Deliveries]:
        deliveries = Deliveries()
        with telling_rows(deliveries):
            yield from self._append_pieces(pieces_of(topic, data), deliveries)
        return deliveries

    def _append_pieces(self, pieces: Iterator[Piece], deliveries: Deliveries) -> Script[None]:
        """Append rows: as columns, unless interceptors look at each."""
        if not self._intercepted:
            yield from self._append_columns(pieces, deliveries)
            return
        begun = self._clock()
        for piece in pieces:
            for position in range(piece.rows):
                yield from self._send_into(deliveries, *piece.row(position), serialized=True)
                if self._clock() - begun > LONGEST_PIECE:
                    yield LetOthersRun()
                    begun = self._clock()

    def _append_columns(self, pieces: Iterator[Piece], deliveries: Deliveries) -> Script[None]:
        """Rows go to open batches as columns; the first of them that finds no room there, or is odd, goes by itself."""
        begun = self._clock()
        try:
            for piece in pieces:
                position = 0
                while position < piece.rows:
                    deliveries._unsure = True
                    position += self._append_rows(piece.source, position, deliveries)
                    deliveries._unsure = False
                    if self._reports.callbacks_due:
                        self._reports.run_callbacks()
                    # not behind the row below: the sender would take it away before others join it
                    if self._clock() - begun > LONGEST_PIECE:
                        yield LetOthersRun()
                        begun = self._clock()
                    if position < piece.rows:
                        record = (*piece.row(position), None, True, piece.bytes_from(position))
                        deliveries._unsure = True
                        made = self._append(*record)
                        delivery = made if isinstance(made, Delivery) else (yield from self._append_later(made, record))
                        deliveries._add(delivery.batch, delivery.index, 1)
                        deliveries._unsure = False
                        position += 1
        finally:
            self._end_rows()

    def _send_into(
        self,
        deliveries: Deliveries,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        serialized: bool,
    ) -> Script[None]:
        """Append one record of many, and take down its delivery."""
        deliveries._unsure = True
        # not a subclass's `send`: many records are one call
        made = Sending.send(self, topic, value, key, partition, timestamp, headers, None, serialized)
        delivery = made if isinstance(made, Delivery) else (yield from made)
        deliveries._add(delivery.batch, delivery.index, 1)
        deliveries._unsure = False
