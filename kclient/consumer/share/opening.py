"""Acquired record batches as records or columns: only those offsets that were acquired, with their delivery counts."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from kclient.consumer.fetch.completed_fetch import ENOUGH
from kclient.consumer.share.model import AcknowledgeType
from kclient.errors import CorruptRecordError, MissingExtraError, RecordDeserializationError
from kclient.records import arrow_schema, count_deliveries, decode_arrow_some, decode_records, decode_some, iter_headers
from kclient.records.arrow import ArrowChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kclient.consumer.share.acquired import Acquired
    from kclient.errors import KafkaError
    from kclient.records import ConsumerRecord
    from kclient.types import Buffer

DELIVERY_COUNT: Final = "deliveryCount"
"""Name of the column that tells how often a record was delivered."""


class Opened:
    """The records of some acquired batches that were decoded and not handed out yet.

    Args:
        acquired: What they are of.
        records: The records, of which those are left out that somebody else has.
        position: Where the rest of it begins, when these are handed out.
        again: Whether they were handed out before.
    """

    __slots__ = ("acquired", "again", "broken", "error", "index", "position", "records")

    def __init__(
        self, acquired: Acquired, records: list[ConsumerRecord], position: int, *, again: bool = False
    ) -> None:
        self.acquired: Acquired = acquired
        self.records: list[ConsumerRecord] = records
        self.position: int = position
        self.index: int = 0
        """How many of them were handed out."""
        self.again: bool = again
        self.error: KafkaError | None = None
        """What is to be raised behind them."""
        self.broken: AcknowledgeType | None = None
        """What is said of the offsets up to `position` when it is."""

    def take(self, most: int) -> list[ConsumerRecord]:
        """Up to so many of them are handed out; those that were before only while they are to be returned again."""
        part = self.records[self.index : self.index + most]
        self.index += len(part)
        offsets = [record.offset for record in part]
        if self.again:
            wanted = set(self.acquired.redeliver(offsets))
            return part if len(wanted) == len(part) else [record for record in part if record.offset in wanted]
        whole = self.index == len(self.records)
        self.acquired.deliver(offsets, self.position if whole else offsets[-1] + 1)
        return part


def open_records(acquired: Acquired, options: Mapping[str, Any]) -> Opened:
    """Decode what comes next of an acquired batch; if a record is broken, those before it.

    A record that cannot be deserialized is released, and a damaged batch rejected, when their turn has come.

    Args:
        acquired: The batch.
        options: For `decode_some`.
    """
    topic, partition = acquired.partition.tp
    end = limit = acquired.end
    start = next((first for first, _, _ in acquired.between(acquired.position, end)), end)
    error: CorruptRecordError | RecordDeserializationError | None = None
    while True:
        try:
            records, rest, _ = decode_some(
                _data_from(acquired, start), topic, partition, max(ENOUGH, len(acquired.data)), start_offset=start,
                end_offset=limit, **options,
            )  # fmt: skip
        except (CorruptRecordError, RecordDeserializationError) as found:
            at = start if found.offset is None or found.offset < start else found.offset
            if error is not None and at >= limit:
                at = start
            error, limit = found, at
            if limit <= start:
                return _broken(acquired, start, error)
            continue
        break
    position = limit if rest is None else min(rest, limit)
    return Opened(acquired, _kept(records, acquired.between(start, position)), position)


def open_again(acquired: Acquired, options: Mapping[str, Any]) -> Opened:
    """Decode what is to be returned again.

    Raises:
        KafkaError: A deserializer fails, which it did not before.
    """
    topic, partition = acquired.partition.tp
    ranges = acquired.renewed_ranges()
    start, end = ranges[0][0], ranges[-1][1] + 1
    records = decode_records(
        _data_from(acquired, start), topic, partition, start_offset=start, end_offset=end, **options
    )
    return Opened(acquired, _kept(records, ranges), acquired.position, again=True)


def _data_from(acquired: Acquired, offset: int) -> Buffer:
    """From the batch on that has an offset: what comes before it is others', or was handed out, and may be damaged."""
    for position, header in iter_headers(acquired.data):
        if header.last_offset >= offset:
            return memoryview(acquired.data)[position:] if position else acquired.data
    return b""


def _broken(acquired: Acquired, start: int, error: CorruptRecordError | RecordDeserializationError) -> Opened:
    """What comes next cannot be handed out: that is said when its turn has come, unless somebody else has it."""
    if isinstance(error, RecordDeserializationError):
        end, kind, told = start + 1, AcknowledgeType.RELEASE, "The record is released: it is delivered again"
    else:
        end, kind, told = _behind_batch(acquired, start), AcknowledgeType.REJECT, "The batch is rejected"
    opened = Opened(acquired, [], end)
    if any(acquired.between(start, end)):
        opened.error = _told(acquired, error, start, told)
        opened.broken = kind
    return opened


def reject_batch(acquired: Acquired, error: CorruptRecordError) -> KafkaError | None:
    """The next batch is damaged: it is rejected; the error that says so, unless somebody else has it."""
    start = next((first for first, _, _ in acquired.between(acquired.position, acquired.end)), acquired.end)
    opened = _broken(acquired, start, error)
    acquired.skip(opened.position, AcknowledgeType.REJECT)
    return opened.error


def _behind_batch(acquired: Acquired, offset: int) -> int:
    """The offset behind the batch that an offset is in; the end, where the batches make no sense."""
    try:
        for _, header in iter_headers(acquired.data):
            if header.last_offset >= offset:
                return min(header.last_offset + 1, acquired.end)
    except CorruptRecordError:
        pass
    return acquired.end


def _told(
    acquired: Acquired, error: CorruptRecordError | RecordDeserializationError, offset: int, told: str
) -> KafkaError:
    """The error as the user is told of it, with what becomes of the record."""
    topic, partition = acquired.partition.tp
    made: KafkaError
    if isinstance(error, RecordDeserializationError):
        what = error.message.partition(";")[0]  # behind it, it says how to seek
        text = f"{what}. {told}, unless `acknowledge_offset` says something else of it before the next poll"
        made = RecordDeserializationError(text, topic=topic, partition=partition, offset=offset)
        made.__cause__ = error.__cause__
    else:
        text = f"{acquired.partition.tp}: {error.message.rstrip('.')}. {told}, and not delivered again"
        made = CorruptRecordError(text, topic=topic, partition=partition, offset=offset, position=error.position)
    return made


def _kept(records: list[ConsumerRecord], ranges: Iterable[tuple[int, int, int]]) -> list[ConsumerRecord]:
    """Those of fresh records, ascending, that are in the ranges; with their delivery counts."""
    kept: list[ConsumerRecord] = []
    for index, stop, count in _places([record.offset for record in records], ranges):
        count_deliveries(records, index, stop, count)
        kept += records[index:stop]
    return kept


def _places(offsets: Sequence[int], ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Where in ascending offsets those of the ranges are: first index, index behind the last one, delivery count."""
    places: list[tuple[int, int, int]] = []
    stop = 0
    for first, last, count in ranges:
        index = bisect_left(offsets, first, stop)
        stop = bisect_left(offsets, last + 1, index)
        if stop > index:
            places.append((index, stop, count))
    return places


def open_columns(
    acquired: Acquired,
    ranges: Sequence[tuple[int, int, int]],
    names: Sequence[str],
    most: int | None,
    options: Mapping[str, Any],
) -> tuple[Any, list[int], int]:
    """Some of an acquired batch as columns.

    Args:
        acquired: The batch.
        ranges: First and last offset of what is wanted, and the delivery count; ascending.
        names: The columns that are wanted; `DELIVERY_COUNT` may be one of them.
        most: Bytes behind which no further batch is opened; None for all.
        options: For `decode_arrow_some`.

    Returns:
        A `pyarrow.RecordBatch`, the offsets of its rows, and where the rest begins.

    Raises:
        CorruptRecordError: A batch is damaged.
    """
    start, end = ranges[0][0], ranges[-1][1] + 1
    pa = pyarrow()
    topic, partition = acquired.partition.tp
    decoded = [*(name for name in names if name != DELIVERY_COUNT), *_needed(names)]
    chunk = ArrowChunk(topic, partition, _data_from(acquired, start), start, end)
    batch, whole, rest = decode_arrow_some([chunk], most, columns=decoded, **options)
    position = end if whole or rest is None else min(rest, end)
    offsets = batch.column(decoded.index("offset")).to_pylist()
    places = _places(offsets, ranges)
    counts = [pa.repeat(pa.scalar(count, pa.int32()), stop - index) for index, stop, count in places]
    if len(places) == 1 and places[0][:2] == (0, len(offsets)):
        rows = batch
    else:
        pieces = [batch.slice(index, stop - index) for index, stop, _ in places]
        rows = one_batch(pieces, batch.schema)
        offsets = [offset for index, stop, _ in places for offset in offsets[index:stop]]
    delivered = pa.concat_arrays(counts) if counts else pa.array([], pa.int32())
    columns = [delivered if name == DELIVERY_COUNT else rows.column(decoded.index(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(names, batch.schema)), offsets, position


def schema_of(names: Sequence[str], decoded: Any) -> Any:
    """The schema of columns by their names, those of Kafka's as they are decoded."""
    pa = pyarrow()
    return pa.schema(
        [pa.field(DELIVERY_COUNT, pa.int32()) if name == DELIVERY_COUNT else decoded.field(name) for name in names]
    )


def one_batch(pieces: Sequence[Any], schema: Any) -> Any:
    """Several record batches of one schema as one."""
    pa = pyarrow()
    table = pa.Table.from_batches(pieces, schema=schema).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def pyarrow() -> Any:
    """The package.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "Reading columns") from error
    return pa


def empty_columns(names: Sequence[str]) -> Any:
    """A record batch of these columns without rows."""
    decoded = arrow_schema(columns=[*(name for name in names if name != DELIVERY_COUNT), *_needed(names)])
    return one_batch([], schema_of(names, decoded))


def _needed(names: Sequence[str]) -> tuple[str, ...]:
    """What has to be decoded beside the columns that are wanted, to know which rows are."""
    return () if "offset" in names else ("offset",)
