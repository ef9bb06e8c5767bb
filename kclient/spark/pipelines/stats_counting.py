"""Counting records: the Arrow columns of a range come in, and sums go out. It knows no Spark and no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.histogram import Histogram
from kclient.spark.pipelines.stats_results import PartitionStats, added

if TYPE_CHECKING:
    import pyarrow


class RangeCounter:
    """Sums of one range.

    Args:
        partition: Whose.
        start: The offset that the range begins at.
        end: The one behind it.
        span_ms: How long a span of time is, in milliseconds.
    """

    def __init__(self, partition: int, start: int, end: int, span_ms: int) -> None:
        self._found = PartitionStats(partition, start, end)
        self._span_ms = span_ms

    def add(self, batch: pyarrow.RecordBatch) -> pyarrow.Array:
        """Take records into account; returns how large each is, in bytes."""
        from pyarrow import compute

        keys, values = lengths(batch.column("key")), lengths(batch.column("value"))
        headers = header_lengths(batch.column("headers"))
        sizes = compute.add(compute.add(keys, values), headers)
        times = compute.divide(_as_integers(batch.column("timestamp")), 1000)
        timed = compute.greater_equal(times, 0)
        known = times.filter(timed)
        found = self._found
        self._found = found.joined(
            PartitionStats(
                found.partition, found.start, found.end, batch.num_rows, _sum(keys), _sum(values), _sum(headers),
                batch.column("key").null_count, batch.column("value").null_count,
                compute.min(known).as_py(), compute.max(known).as_py(), batch.num_rows - len(known),
                Histogram.of(sizes), self._spans(known, sizes.filter(timed)),
            )
        )  # fmt: skip
        return sizes

    def _spans(self, times: Any, sizes: Any) -> dict[int, tuple[int, int]]:
        import pyarrow
        from pyarrow import compute

        spans = pyarrow.table({"span": compute.divide(times, self._span_ms), "size": sizes})
        sums = spans.group_by("span").aggregate([("size", "count"), ("size", "sum")])
        columns = (sums.column(name).to_pylist() for name in ("span", "size_count", "size_sum"))
        return added({}, {span: (count, size) for span, count, size in zip(*columns, strict=True)})

    def found(self) -> PartitionStats:
        """What was added so far."""
        return self._found


def by_key(batch: pyarrow.RecordBatch, sizes: pyarrow.Array) -> pyarrow.Table:
    """Records and bytes of each key of a batch, as `key`, `records` and `size`; records without one are left out."""
    import pyarrow

    keys = pyarrow.table({"key": batch.column("key").cast(pyarrow.binary()), "size": sizes})
    keys = keys.filter(keys.column("key").is_valid())
    sums = keys.group_by("key").aggregate([("size", "count"), ("size", "sum")])
    return sums.select(["key", "size_count", "size_sum"]).rename_columns(["key", "records", "size"])


def lengths(column: Any) -> Any:
    """Of binary values; null has none."""
    import pyarrow
    from pyarrow import compute

    return compute.fill_null(compute.binary_length(column), 0).cast(pyarrow.int64())


def header_lengths(column: Any) -> Any:
    """Of a column of lists of name and value: the bytes of all names and values of each record."""
    import pyarrow
    from pyarrow import compute

    pairs = column.values
    each = compute.add(lengths(pairs.field("key")), lengths(pairs.field("value")))
    reached = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), compute.cumulative_sum(each)])
    places = column.offsets
    sums = compute.subtract(reached.take(places[1:]), reached.take(places[:-1]))
    return compute.if_else(column.is_valid(), sums, 0)


def _as_integers(column: Any) -> Any:
    """Microseconds, whatever a column of times is."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("us", column.type.tz))
    return column.cast(pyarrow.int64())


def _sum(column: Any) -> int:
    from pyarrow import compute

    return int(compute.sum(column).as_py() or 0)
