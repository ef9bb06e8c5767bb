"""What the compiled and the interpreted implementation both provide, as types.

Everything that runs once per record is in an implementation; everything that runs once per batch or less is
written once, in the other modules of this package.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

from kclient.records.batch_header import BatchHeader, CompressionType
from kclient.records.envelope_layout import EnvelopeLayout
from kclient.types import Buffer, Header, Headers, TimestampType

Deserialize: TypeAlias = Callable[[str, Headers, bytes], Any]
"""Makes a key or value of bytes: takes topic, headers and the bytes (never None)."""


class Columns(NamedTuple):
    """Columns of records in Arrow's memory layout; the validity bitmaps are None where nothing is null.

    Where keys or values were not asked for, there are none of any row.
    """

    rows: int
    key_validity: Buffer | None
    key_ends: Buffer
    """`rows + 1` positions in `key_data`, int32 in native byte order."""
    key_data: Buffer
    value_validity: Buffer | None
    value_ends: Buffer
    value_data: Buffer
    offsets: Buffer
    """int64."""
    timestamps: Buffer
    """int64, microseconds since the epoch."""
    headers: list[tuple[Header, ...] | None] | None
    """The headers of each record (None for none), if they were asked for."""


class BinaryColumn(NamedTuple):
    """Keys or values in Arrow's memory layout."""

    first: int
    """Where row 0 is: the Arrow array's offset."""
    validity: Buffer | None
    """The bitmap of rows that are not null; None where no row is."""
    ends: Buffer
    """Positions in `data`, in native byte order: row n is from number `first + n` to the next."""
    data: Buffer
    """The bytes of all rows."""
    wide: bool = False
    """Whether the positions are int64 (Arrow's large types); else they are int32."""


class HeaderColumn(NamedTuple):
    """The headers of each row in Arrow's memory layout: a list of keys and values."""

    first: int
    """Where row 0 is: the Arrow array's offset."""
    validity: Buffer | None
    """The bitmap of rows that are not null; None where no row is. A row that is null has no headers."""
    ends: Buffer
    """Positions among all headers, in native byte order: row n is from number `first + n` to the next."""
    base: int
    """The position of the first header in `keys` and `values`."""
    total: int
    """How many headers there are in `keys` and `values`."""
    keys: BinaryColumn | None
    """None where there are no headers; none of those of a row may be null."""
    values: BinaryColumn | None
    """None where no header has a value."""
    wide: bool = False
    """Whether the positions are int64 (Arrow's large lists); else they are int32."""


class RecordColumns(NamedTuple):
    """Records to be built into batches, as columns; made by `record_columns`."""

    rows: int
    """How many records."""
    keys: BinaryColumn | None
    """None where no record has a key."""
    values: BinaryColumn | None
    """None where no record has a value."""
    timestamps: Buffer | None
    """int64 in native byte order, milliseconds since the epoch; None where all have `timestamp`."""
    timestamp: int
    """Milliseconds since the epoch, of all records where there is no column; -1 for none."""
    headers: HeaderColumn | None
    """None where no record has headers."""


class Destinations(NamedTuple):
    """Where the rows of `RecordColumns` are to go."""

    topics: Sequence[str]
    """The topics by number."""
    numbers: Buffer | None = None
    """The number of each row's topic, int32 in native byte order; None where all go to the first."""
    partitions: Buffer | None = None
    """The partition of each row, int32 in native byte order, -1 for the partitioner's choice; None for that of all."""


class Survivors(NamedTuple):
    """What a compaction keeps of the records of a batch."""

    kept: int
    """How many."""
    records: bytes | None
    """They themselves; None where all are kept as they are."""
    max_timestamp: int
    """The greatest timestamp of them, as they carry it; -1 if there are none."""
    restamped: bool
    """Whether their timestamps are counted from the horizon."""


Appended: TypeAlias = tuple[list[Any], list[int], bytes]
"""Rows that were appended: their batches, the index of the first one in each, and for each row which batch it is in.

In a batch the rows are one behind the other.
"""


class ConsumerRecordType(Protocol):
    """A record as it was fetched. Immutable; equal to a record with equal fields."""

    __slots__ = ()

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
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> tuple[Header, ...]: ...
    @property
    def leader_epoch(self) -> int | None: ...
    @property
    def delivery_count(self) -> int | None: ...


class LazyDeliveryType(Protocol):
    """The handle of a record in a producer's batch: the batch and the record's index in it, nothing else."""

    __slots__ = ()

    def __init__(self, batch: Any, index: int) -> None: ...
    @property
    def batch(self) -> Any: ...
    @property
    def index(self) -> int: ...


class TopicSlotsType(Protocol):
    """The open batch of each partition of a topic."""

    partitions: int
    sticky: int

    def open(self, partition: int, batch: Any, builder: Any) -> None: ...
    def close(self, partition: int) -> None: ...


class AppenderType(Protocol):
    """Appends records to open batches."""

    def __init__(self, handle: type[Any], ignore_keys: bool = False) -> None: ...
    @property
    def lock(self) -> AbstractContextManager[None]: ...
    @property
    def topics(self) -> dict[str, Any]: ...

    fallback: Callable[..., Any] | None

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
    ) -> Any: ...
    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Any: ...
    def append_rows(self, source: Any, start: int = 0, enough: int = 1048576) -> Appended: ...


class BatchBuilderType(Protocol):
    """Builds one record batch; the docstrings are those of the implementations."""

    def __init__(
        self,
        *,
        limit: int,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        is_transactional: bool = False,
        is_control: bool = False,
        delete_horizon: int | None = None,
    ) -> None: ...

    limit: int

    @property
    def compression(self) -> CompressionType: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def timestamp_runs(self) -> array[int]: ...
    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int: ...
    def append_at(
        self, offset_delta: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int: ...
    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        start: int = 0,
    ) -> int: ...
    def append_columns(self, columns: RecordColumns, start: int = 0) -> int: ...
    def build(
        self,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        partition_leader_epoch: int = -1,
        last_offset_delta: int | None = None,
    ) -> bytearray: ...


class RecordSourceType(Protocol):
    """Records to be appended, read from columns row by row."""

    def __init__(self, columns: RecordColumns, destinations: Destinations | None = None) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def has_destinations(self) -> bool: ...


class ColumnBuilderType(Protocol):
    """Collects the records of batches as columns."""

    def __init__(self, include_headers: bool = False, keys: bool = True, values: bool = True) -> None: ...
    def append_dense(self, header: BatchHeader, start: int, end: int) -> int: ...
    def append(self, payload: Buffer, header: BatchHeader, position: int, start: int, end: int) -> int: ...
    def finish(self) -> Columns: ...


class RecordScanType(Protocol):
    """Looks through the records of a batch; the docstrings are those of the implementations."""

    def __init__(
        self, header: BatchHeader, *, needs_keys: bool = False, since: int | None = None, first_delta: int = 0
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def keyless(self) -> list[int]: ...
    @property
    def least_timestamp(self) -> int: ...
    @property
    def greatest_timestamp(self) -> int: ...
    @property
    def found(self) -> tuple[int, int] | None: ...
    def feed(self, piece: Buffer) -> None: ...
    def finish(self) -> None: ...


class EnvelopedBatchesType(Protocol):
    """Finds batches among messages; the docstrings are those of the implementations."""

    def __init__(self, messages: Buffer, first: int, layout: EnvelopeLayout) -> None: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    def place(self, number: int) -> tuple[int, int]: ...
    def select(
        self, key: int, numbers: array[int], offsets: array[int], start: int, most: int, room: int
    ) -> tuple[int, int]: ...


class KeyOffsetsType(Protocol):
    """The last offset of each key; the docstrings are those of the implementations."""

    def __init__(self, slots: int) -> None: ...
    @property
    def slots(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def end(self) -> int: ...
    def note(self, payload: Buffer, header: BatchHeader, start: int) -> bool: ...
    def passed(self, end: int) -> None: ...
    def superseded(self, key: bytes, offset: int) -> bool: ...


class ParseRecords(Protocol):
    """Reads the records of one batch."""

    def __call__(
        self,
        payload: Buffer,
        header: BatchHeader,
        position: int,
        topic: str,
        partition: int,
        start: int,
        end: int,
        key_deserializer: Deserialize | None,
        value_deserializer: Deserialize | None,
        records: list[Any],
    ) -> None:
        """Append the records with `start <= offset < end` to `records`.

        Args:
            payload: The decompressed records of the batch.
            header: The batch's header.
            position: Where the batch begins in the buffer that is read, for error messages.
            topic: Topic of the records.
            partition: Partition of the records.
            start: First offset that is wanted.
            end: First offset that is not wanted.
            key_deserializer: Makes the key, or None for bytes.
            value_deserializer: Makes the value, or None for bytes.
            records: Where the records go; on an error nothing is said about what is in it.

        Raises:
            CorruptRecordError: A record makes no sense.
            RecordDeserializationError: A deserializer failed.
        """


class Implementation(Protocol):
    """The names that an implementation module defines."""

    Appender: type[AppenderType]
    BatchBuilder: type[BatchBuilderType]
    ColumnBuilder: type[ColumnBuilderType]
    ConsumerRecord: type[ConsumerRecordType]
    EnvelopedBatches: type[EnvelopedBatchesType]
    KeyOffsets: type[KeyOffsetsType]
    LazyDelivery: type[LazyDeliveryType]
    RecordScan: type[RecordScanType]
    RecordSource: type[RecordSourceType]
    TopicSlots: type[TopicSlotsType]

    @property
    def count_deliveries(self) -> Callable[[list[Any], int, int, int], None]: ...
    @property
    def gather_batches(
        self,
    ) -> Callable[[Sequence[tuple[Any, array[int], int, int]], bytearray | memoryview], None]: ...
    @property
    def made_record(self) -> Callable[..., ConsumerRecordType]: ...
    @property
    def parse_records(self) -> ParseRecords: ...
    @property
    def surviving_records(self) -> Callable[[Buffer, BatchHeader, Any, bool, int | None], Survivors]: ...
    @property
    def fnv1a(self) -> Callable[[Buffer], int]: ...
    @property
    def murmur2(self) -> Callable[[Buffer], int]: ...
    @property
    def partition_for_key(self) -> Callable[[Buffer, int], int]: ...
