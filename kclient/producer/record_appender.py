"""From the arguments of `send` to the accumulator: serializers, the partitioner, and what is wrong with a record.

Its methods may be called from any thread, and never wait. Where a record cannot be appended they say why, and the
caller waits: `NO_METADATA` (the topic or the partition is not known) or `FULL` (the accumulator has no room).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kclient.arguments import check_topic, index_of, shown
from kclient.errors import SerializationError
from kclient.producer.accumulator import FULL, NO_METADATA, Full, NoMetadata
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.partitioner import LEFT_OPEN
from kclient.producer.record_arguments import as_partition_number, as_timestamp, check_headers, is_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kclient.cluster import ClusterSnapshot
    from kclient.producer.accumulator import Accumulator
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.partitioner import Partitioner
    from kclient.producer.topics import KnownTopics
    from kclient.records import Appender, RecordSource
    from kclient.serialization import Serializer
    from kclient.types import Headers

_ONE_BY_ONE: Final = 100
"""Records that `append_some` takes one by one before others may run: well below a millisecond's worth."""
_MANY_AT_ONCE: Final = 2000
"""Records that it takes many at once, likewise; the last batch may be larger."""


class RecordAppender:
    """Appends records as users give them.

    Args:
        appender: Appends to open batches.
        accumulator: Does what the appender does not.
        topics: How many partitions topics have.
        check: Raises where the producer takes no records.
        snapshot: What is known of the cluster, for the partitioner.
        key_serializer: Makes bytes of keys; None where they are bytes.
        value_serializer: Makes bytes of values, likewise.
        partitioner: The user's; None leaves the choice to the accumulator.
        clock: Monotonic time in seconds.
        wall_clock: Seconds since the epoch, for records without a timestamp.
    """

    def __init__(
        self,
        appender: Appender,
        accumulator: Accumulator,
        topics: KnownTopics,
        check: Callable[[], None],
        snapshot: Callable[[], ClusterSnapshot],
        *,
        key_serializer: Serializer[Any] | None,
        value_serializer: Serializer[Any] | None,
        partitioner: Partitioner | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._append_open = appender.append
        self._accumulator = accumulator
        self._topics = topics
        self._check = check
        self._snapshot = snapshot
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._clock = clock
        self._wall_clock = wall_clock

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
        following: int = 0,
    ) -> Delivery | Full | NoMetadata:
        """Append a record if that is possible now.

        The headers are a list or a tuple (see `as_headers`), since they may be read several times; `serialized`: key
        and value are bytes already; `following`: about as many bytes of others come behind it.

        Raises:
            KafkaError: The record can never be appended, or the producer cannot take any.
        """
        try:
            count = self._topics.counts.get(topic)
        except TypeError:  # it cannot be looked up, and is not a name
            check_topic(topic)
            raise
        if count is None:
            self._check()
            check_topic(topic)
            # what is wrong anyway must not be waited for
            check_headers(headers)
            if partition is not None:
                as_partition_number(partition)
            if timestamp is not None:
                as_timestamp(timestamp)
            return NO_METADATA
        key_bytes, value_bytes = key, value
        if self._key_serializer is not None and not serialized:
            key_bytes = _serialize(self._key_serializer, topic, key, headers)
        if self._value_serializer is not None and not serialized:
            value_bytes = _serialize(self._value_serializer, topic, value, headers)
        if partition is not None:
            partition = as_partition_number(partition)
            if partition >= count:
                return NO_METADATA
        elif self._partitioner is not None:
            chosen = self._partitioner.partition(topic, key, key_bytes, value, value_bytes, self._snapshot())
            partition = chosen if type(chosen) is int else index_of(chosen)
            if partition == LEFT_OPEN:
                partition = None
            elif partition is None or not 0 <= partition < count:
                name = type(self._partitioner).__name__
                raise ValueError(f"{name} chose the partition {shown(chosen)} of {topic!r}, which has {count}")
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        try:
            if on_delivery is None:
                # what the accumulator does concerns one record in a hundred
                made: Delivery | None = self._append_open(topic, value_bytes, key_bytes, partition, timestamp, headers)
                if made is not None:
                    return made
            stamp = int(self._wall_clock() * 1000) if timestamp is None else timestamp
            return self._accumulator.append(
                topic,
                value_bytes,
                key_bytes,
                partition,
                stamp,
                headers,
                on_delivery,
                now=self._clock(),
                following=following,
            )
        except (TypeError, ValueError, OverflowError) as error:
            check_headers(headers)
            if not isinstance(error, TypeError):
                raise
            setting = "value_serializer" if key_bytes is None or is_bytes(key_bytes) else "key_serializer"
            raise SerializationError(f"{error}; set {setting}, or send bytes") from error

    def append_rows(self, source: RecordSource, start: int, into: Deliveries) -> int:
        """Append rows of columns, from `start` on, while they find room in open batches.

        Returns:
            How many: the first one that is left is for `append`. None are taken where a partitioner of the user's
            looks at each.

        Raises:
            ValueError: The first row makes no sense.
        """
        if self._partitioner is not None:
            return 0
        appended = self._accumulator.append_rows(source, start)
        into._add_rows(appended)
        return len(appended[2])

    def end_rows(self) -> None:
        """No more rows follow those of `append_rows`."""
        self._accumulator.end_rows()

    def append_some(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        into: Deliveries,
        serialized: bool = False,
    ) -> Full | NoMetadata | None:
        """Append some of the values from `values[len(into)]` on, at least one; or say why that is not possible now."""
        try:
            count = self._topics.counts.get(topic)
        except TypeError:  # it cannot be looked up, and is not a name
            check_topic(topic)
            raise
        if count is None:
            self._check()
            check_topic(topic)
            if partition is not None:
                as_partition_number(partition)
            return NO_METADATA
        if partition is not None:
            partition = as_partition_number(partition)
            if partition >= count:
                return NO_METADATA
        as_they_are = serialized or self._value_serializer is None
        if keys is not None or self._partitioner is not None or not as_they_are:
            return self._append_one_by_one(topic, values, keys, partition, into, serialized)
        stop = min(len(into) + _MANY_AT_ONCE, len(values))
        while (start := len(into)) < stop:
            stamp = int(self._wall_clock() * 1000)
            try:
                result = self._accumulator.append_many(topic, partition, stamp, values, start, now=self._clock())
            except TypeError as error:
                raise SerializationError(f"{error}; set value_serializer, or send bytes") from error
            if result is FULL or result is NO_METADATA:
                return result
            into._add(*result)
        return None

    def _append_one_by_one(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        into: Deliveries,
        serialized: bool,
    ) -> Full | NoMetadata | None:
        for position in range(len(into), min(len(into) + _ONE_BY_ONE, len(values))):
            key = None if keys is None else keys[position]
            result = self.append(topic, values[position], key, partition, None, (), None, serialized)
            if not isinstance(result, Delivery):
                return result
            into._add(result.batch, result.index, 1)
        return None


def _serialize(serializer: Serializer[Any], topic: str, value: Any, headers: Headers) -> Any:
    try:
        return serializer.serialize(topic, value, headers)
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"{type(serializer).__name__} failed for a record of {topic!r}: {error}") from error
