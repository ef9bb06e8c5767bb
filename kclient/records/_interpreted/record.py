"""A fetched record, and the handle of a sent one."""

from __future__ import annotations

from typing import Any, NoReturn, final

from kclient.records.arguments import check_record, integer
from kclient.records.bounds import INT32_MAX
from kclient.records.restoring import restore_record
from kclient.types import Header, Headers, TimestampType

_CHECKED = ("topic", "partition", "offset", "timestamp", "timestamp_type", "headers", "leader_epoch", "delivery_count")


class _Fields:
    """The fields of a record, which can be set here: `made_record` fills them before it makes a record of it."""

    __slots__ = (
        "delivery_count", "headers", "key", "leader_epoch", "offset", "partition", "timestamp", "timestamp_type",
        "topic", "value",
    )  # fmt: skip


@final
class ConsumerRecord(_Fields):
    """A record as it was fetched. Immutable; equal to a record with equal fields.

    Raises:
        TypeError: A field is of a wrong type.
        ValueError: A number is out of its range.
    """

    __slots__ = ()

    topic: str
    """Where it was fetched from."""
    partition: int
    """The number of the partition."""
    offset: int
    """Its place in the partition."""
    timestamp: int
    """Milliseconds since the epoch, or -1."""
    timestamp_type: TimestampType
    """Who stamped the record; nobody in message format v0."""
    key: Any
    """Bytes or None, or what the key deserializer made of them."""
    value: Any
    """Bytes or None, or what the value deserializer made of them."""
    headers: tuple[Header, ...]
    """Pairs of a key and bytes or None, in order; empty in the message formats v0 and v1."""
    leader_epoch: int | None
    """Epoch of the leader that appended the record, if the broker told."""
    delivery_count: int | None
    """How often a share group has delivered the record, this time included (KIP-932); None for any other consumer."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: Any,
        value: Any,
        headers: Headers = (),
        leader_epoch: int | None = None,
        delivery_count: int | None = None,
    ) -> None:
        fields = check_record(
            topic, partition, offset, timestamp, timestamp_type, headers, leader_epoch, delivery_count
        )
        assign = object.__setattr__
        for name, field in zip(_CHECKED, fields, strict=True):
            assign(self, name, field)
        assign(self, "key", key)
        assign(self, "value", value)
        if fields[-2] < 0:
            assign(self, "leader_epoch", None)
        if not fields[-1]:
            assign(self, "delivery_count", None)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a ConsumerRecord is immutable; {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a ConsumerRecord is immutable; {name!r} cannot be deleted")

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type,
            self.key, self.value, self.headers, self.leader_epoch, self.delivery_count,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        delivered = "" if self.delivery_count is None else f", delivery_count={self.delivery_count}"
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, timestamp_type={self.timestamp_type.name}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch}{delivered})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_record, self._fields()


def made_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    timestamp_type: TimestampType,
    key: Any,
    value: Any,
    headers: tuple[Header, ...],
    leader_epoch: int | None,
    delivery_count: int | None = None,
) -> ConsumerRecord:
    """A record of fields that are known to be right."""
    # faster than the constructor, which looks at everything and goes round immutability
    record: Any = _Fields()
    record.topic = topic
    record.partition = partition
    record.offset = offset
    record.timestamp = timestamp
    record.timestamp_type = timestamp_type
    record.key = key
    record.value = value
    record.headers = headers
    record.leader_epoch = leader_epoch
    record.delivery_count = delivery_count
    record.__class__ = ConsumerRecord
    return record  # type: ignore[no-any-return]


def count_deliveries(records: list[ConsumerRecord], start: int, stop: int, count: int) -> None:
    """Say of fresh records, which nobody has seen yet, how often they were delivered.

    Args:
        records: The records.
        start: Index of the first one.
        stop: Index behind the last one.
        count: How often, once at least.
    """
    assign = object.__setattr__
    for record in records[start:stop]:
        assign(record, "delivery_count", count)


class LazyDelivery:
    """The handle of a record in a producer's batch: the batch and the record's index in it, nothing else.

    To be subclassed; everything that a handle tells about its record it looks up in the batch when asked.

    Raises:
        TypeError: The index is not an integer.
        ValueError: The index is negative, or beyond 31 bits.
    """

    __slots__ = ("batch", "index")

    def __init__(self, batch: Any, index: int) -> None:
        self.batch: Any = batch
        """What its owner knows of the batch."""
        self.index: int = integer("index", index, 0, INT32_MAX)
        """Index of the record in the batch."""
