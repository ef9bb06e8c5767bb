"""What the producer does once per record: find the open batch, append, make a handle."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from time import time
from typing import Any, Final

from kclient.records._interpreted.builder import BatchBuilder, encode_headers
from kclient.records._interpreted.hashing import partition_for_key
from kclient.records._interpreted.record import LazyDelivery
from kclient.records._interpreted.sources import RecordSource
from kclient.records.arguments import (
    as_bytes,
    check_builder,
    check_enough,
    check_handle,
    check_partition,
    check_start,
    check_topic,
    integer,
    milliseconds,
    negative_timestamp,
    partition_or_none,
)
from kclient.records.bounds import INT32_MAX
from kclient.records.column_arguments import check_source
from kclient.records.contract import Appended
from kclient.reentry import reentered
from kclient.types import Buffer, Headers

_MOST_ROWS: Final = 16384
_MOST_BATCHES: Final = 256
"""What one call of `append_rows` takes at most: which batch a row is in has to fit into a byte."""


class TopicSlots:
    """The open batch of each partition of a topic, as `Appender` sees them.

    Changed under the appender's lock only.
    """

    __slots__ = ("_open", "_partitions", "_sticky")

    def __init__(self) -> None:
        self._partitions = 0
        self._sticky = -1
        self._open: dict[int, tuple[Any, BatchBuilder]] = {}

    @property
    def partitions(self) -> int:
        """Number of partitions that keys are spread over."""
        return self._partitions

    @partitions.setter
    def partitions(self, value: int) -> None:
        self._partitions = integer("partitions", value, 0, INT32_MAX)

    @property
    def sticky(self) -> int:
        """The partition that records without a key go to; -1 for none."""
        return self._sticky

    @sticky.setter
    def sticky(self, value: int) -> None:
        self._sticky = integer("sticky", value, -1, INT32_MAX)

    def open(self, partition: int, batch: Any, builder: BatchBuilder) -> None:
        """From now on records for a partition go into this builder, and their handles name this batch.

        Raises:
            TypeError: The partition is not an integer, or the builder is not a `BatchBuilder`.
            ValueError: The partition is negative or beyond a million.
        """
        partition = check_partition(partition)
        check_builder(builder, BatchBuilder)
        self._open[partition] = (batch, builder)

    def close(self, partition: int) -> None:
        """A partition has no open batch.

        Raises:
            TypeError: The partition is not an integer.
        """
        self._open.pop(partition_or_none(partition), None)


class Mutex:
    """A lock for moments: as `threading.Lock`, but waiting for it cannot be interrupted.

    The thread that holds it cannot take it again: a signal handler or a finalizer that tries is told so.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock: Any = RLock()

    @property
    def held(self) -> bool:
        """Whether this thread holds it."""
        found: bool = self._lock._is_owned()
        return found

    # The lock's own methods, found before it is taken: no signal comes between taking it and what follows.

    @property
    def __enter__(self) -> Callable[[], None]:
        if self._lock._is_owned():
            raise reentered("another call of the same producer")
        found: Callable[[], None] = self._lock.__enter__
        return found

    @property
    def __exit__(self) -> Callable[[object, object, object], None]:  # noqa: PYI036
        found: Callable[[object, object, object], None] = self._lock.__exit__
        return found


class Appender:
    """Appends records to open batches: what the producer does once per record.

    Args:
        handle: Class of the handles, a subclass of `LazyDelivery`.
        ignore_keys: Whether records with a key go to the sticky partition too.

    Raises:
        TypeError: `handle` is no such class.
    """

    __slots__ = ("_handle", "_ignore_keys", "fallback", "lock", "topics")

    def __init__(self, handle: type[LazyDelivery], ignore_keys: bool = False) -> None:
        check_handle(handle, LazyDelivery)
        self.topics: dict[str, TopicSlots] = {}
        """The slots of each topic, by name."""
        self.lock: Mutex = Mutex()
        """Held while it appends; to be held by whoever opens and closes batches."""
        self.fallback: Callable[..., Any] | None = None
        """What `send` calls where `append` does nothing."""
        self._handle = handle
        self._ignore_keys = ignore_keys

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        on_delivery: Any = None,
    ) -> Any:
        """`append`, or where that does nothing `fallback`, which is called with all arguments by position.

        This is the producer's `send` itself, so that a record costs no call of a Python function.
        """
        made = None
        if on_delivery is None:
            try:
                made = self.append(topic, value, key, partition, timestamp, headers)
            except (TypeError, ValueError):
                made = None  # the fallback says which setting helps
            if made is not None:
                return made
        assert self.fallback is not None
        return self.fallback(topic, value, key, partition, timestamp, headers, on_delivery)

    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Any:
        """Append a record to the open batch of its partition, if there is one and it has room.

        Args:
            topic: The topic; its slots are in `topics`.
            value: The value's bytes, or None.
            key: The key's bytes, or None.
            partition: The partition; None takes that of the key, or else the sticky one.
            timestamp: Milliseconds since the epoch; None is now.
            headers: Pairs of str and bytes or None, in a list or tuple; with others, which might be read only once,
                nothing is appended.

        Returns:
            The handle, or None if nothing was appended.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: The timestamp is before the epoch, or beyond 64 bits.
        """
        slots = self.topics.get(check_topic(topic))
        if slots is None or not isinstance(headers, tuple | list):
            return None
        # What may run other code comes before the lock, which that code would wait for in vain if it sends.
        timestamp = int(time() * 1000) if timestamp is None else milliseconds(timestamp)
        if timestamp < 0:
            raise negative_timestamp(timestamp)
        key = None if key is None else as_bytes(key, "key")
        value = None if value is None else as_bytes(value, "value")
        encoded = encode_headers(headers)
        if partition is not None:
            partition = partition_or_none(partition)
        elif key is not None and not self._ignore_keys:
            if slots._partitions <= 0:
                return None
            partition = partition_for_key(key, slots._partitions)
        if self.lock.held:
            return None
        with self.lock:
            found = slots._open.get(slots._sticky if partition is None else partition)
            if found is None:
                return None
            batch, builder = found
            index = builder._put(timestamp, key, value, encoded)
        return None if index < 0 else self._handle(batch, index)

    def append_rows(self, source: RecordSource, start: int = 0, enough: int = 1048576) -> Appended:
        """Append rows of columns to the open batches of their partitions, in their order, as long as that is possible.

        It stops at the first row for which `append` would do nothing or raise, because the batch has no room, or the
        topic, partition or timestamp is none; a null timestamp is now.

        Args:
            source: The rows, with their destinations.
            start: The first row to take.
            enough: Bytes of records after which it stops, to let others have the lock.

        Returns:
            What was appended, perhaps nothing.

        Raises:
            TypeError: The source is none, or has no destinations.
            ValueError: `start` is negative; positions in a column make no sense at the first row to take.
        """
        start = check_start(start)
        enough = check_enough(enough)
        check_source(source, RecordSource)
        topics = [self.topics.get(topic) for topic in source._topics]
        owners = bytearray()
        found: dict[int, int] = {}
        batches: list[Any] = []
        indexes: list[int] = []
        with self.lock:
            now = int(time() * 1000)
            for row in range(start, min(source.rows, start + _MOST_ROWS)):
                try:
                    place = self._place(source, row, topics)
                    if place is None or (id(place[1]) not in found and len(batches) == _MOST_BATCHES):
                        break
                    batch, builder, (key, value, headers) = place
                    stamp, before = source._stamps.look(row), builder.size
                    index = builder._put(now if stamp < 0 else stamp, key, value, headers)
                except Exception:
                    if not owners:  # else it will be raised by the next call, which begins with this row
                        raise
                    break
                if index < 0:
                    break
                owner = found.setdefault(id(builder), len(batches))
                if owner == len(batches):
                    batches.append(batch)
                    indexes.append(index)
                owners.append(owner)
                enough -= builder.size - before
                if enough <= 0:
                    break
        return batches, indexes, bytes(owners)

    def _place(
        self, source: RecordSource, row: int, topics: list[TopicSlots | None]
    ) -> tuple[Any, BatchBuilder, tuple[bytes | None, bytes | None, bytes]] | None:
        """The open batch for a row, and what is to be appended; None where `append_rows` stops."""
        topic, partition = source._numbers.look(row), source._partitions.look(row)
        if not 0 <= topic < len(topics) or partition < -1 or source._stamps.look(row) < -1:
            return None
        slots = topics[topic]
        if slots is None:
            return None
        fields = source.look(row)
        key = fields[0]
        if partition >= 0:
            pass
        elif key is None or self._ignore_keys:
            partition = slots._sticky
        elif slots._partitions > 0:
            partition = partition_for_key(key, slots._partitions)
        found = slots._open.get(partition)
        return None if found is None else (*found, fields)
