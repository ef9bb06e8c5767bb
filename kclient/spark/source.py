"""The data source `kclient` for `spark.read.format("kclient")`: Kafka topics as Arrow batches.

The driver's planning process fixes the ranges (`ranges`); each task reads one range with the public blocking
consumer and hands whole Arrow batches to Spark, so no record becomes a Python object on the way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kclient.errors import KafkaTimeoutError, NotYetSupportedError, OffsetOutOfRangeError
from kclient.spark.options import ReadOptions, parse_read_options
from kclient.spark.ranges import DataLossError, OffsetRange, resolve_ranges, split_ranges
from kclient.spark.schema import check_schema, kafka_schema, select_columns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from kclient.sync import Consumer


def register(spark: SparkSession) -> None:
    """Makes `format("kclient")` known to this session, for where Spark does not find the package by itself."""
    spark.dataSource.register(KclientDataSource)


class KclientDataSource(DataSource):
    """Kafka topics for Spark, with the options and the schema of Spark's built-in `kafka` source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark's own mapping lower-cases the keys and does not travel well; a plain dict does.
        self.options: dict[str, str] = dict(options)

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "kclient"

    def schema(self) -> StructType:
        """The columns of Spark's `kafka` source; `headers` too with the option `includeHeaders`.

        Raises:
            ConfigError: An option is wrong or unknown.
        """
        return kafka_schema(include_headers=parse_read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read.

        Args:
            schema: Columns of `schema()`, in any order and choice.

        Raises:
            ConfigError: An option is wrong or unknown, or the schema has a column that there is not.
        """
        check_schema(schema)
        return KclientReader(parse_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Not there yet: raises `NotYetSupportedError`."""
        raise NotYetSupportedError("the data source kclient does not write yet; writing comes in a later release")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Not there yet: raises `NotYetSupportedError`."""
        raise NotYetSupportedError("the data source kclient does not write streams yet; that comes in a later release")

    def streamReader(self, schema: StructType) -> NoReturn:
        """Not there yet: raises `NotYetSupportedError`."""
        raise NotYetSupportedError(
            "the data source kclient does not read streams yet; use spark.read, or wait for a later release"
        )

    def simpleStreamReader(self, schema: StructType) -> NoReturn:
        """Not there yet: raises `NotYetSupportedError`."""
        self.streamReader(schema)


class RangePartition(InputPartition):
    """One task's share: a range of one partition's offsets."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(offsets)
        self.offsets = offsets


class KclientReader(DataSourceReader):
    """Plans the ranges in the driver's process and reads one of them in each task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Ask the brokers what offsets there are, and cut them into a share for each task.

        Raises:
            KafkaError: No broker answers, or a topic does not exist.
        """
        options = self._options
        with open_consumer(options.settings) as consumer:
            ranges = resolve_ranges(consumer, options)
        pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """A share's records, in the schema that was asked for.

        Raises:
            KafkaError: The broker fails, or records are gone and `failOnDataLoss` is on.
        """
        # Spark turns an empty list of partitions into one partition without a value.
        if isinstance(partition, RangePartition):
            schema = to_arrow_schema(self._schema, timezone="UTC")
            for batch in read_range(self._options, partition.offsets):
                yield select_columns(batch, schema)


def open_consumer(settings: Mapping[str, str], **overrides: Any) -> Consumer:
    """A blocking consumer without group membership, for explicit positions only."""
    from kclient.sync import Consumer

    fixed = {"auto.offset.reset": "none", "enable.auto.commit": "false", "client.id": "kclient-spark"}
    return Consumer({**fixed, **settings, **overrides})


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    """The records of the range as Arrow batches in the full schema; none is left out and none is given twice.

    Raises:
        DataLossError: the log no longer holds the position and `failOnDataLoss` is true.
        KafkaTimeoutError: nothing arrived for `kafkaConsumer.pollTimeoutMs`.
    """
    partition = wanted.topic_partition
    with open_consumer(options.settings, **{"max.poll.records": 1_000_000}) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, wanted.start)
        position = wanted.start
        deadline = time.monotonic() + options.poll_timeout_ms / 1000
        while position < wanted.end:
            try:
                batch = consumer.poll_arrow(timeout=1.0, include_headers=options.include_headers)
            except OffsetOutOfRangeError as error:
                position = _after_loss(consumer, options, wanted, position, error)
                continue
            reached = consumer.position(partition)
            if reached > position:
                deadline = time.monotonic() + options.poll_timeout_ms / 1000
                position = reached
            elif time.monotonic() > deadline:
                _raise_stalled(options, wanted, position)
            if batch.num_rows:
                yield _before(batch, wanted.end) if position > wanted.end else batch


def _before(batch: pyarrow.RecordBatch, end: int) -> pyarrow.RecordBatch:
    """The rows before the range's end: offsets only grow within a batch, so it is a slice."""
    import numpy

    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    return batch.slice(0, int(numpy.searchsorted(offsets, end, side="left")))


def _after_loss(
    consumer: Consumer,
    options: ReadOptions,
    wanted: OffsetRange,
    position: int,
    error: OffsetOutOfRangeError,
) -> int:
    partition = wanted.topic_partition
    beginning = consumer.beginning_offsets([partition])[partition]
    if options.fail_on_data_loss or beginning <= position:
        raise DataLossError(
            f"{partition.topic}-{partition.partition}: the offset {position} is gone (the log begins at {beginning});"
            " set failOnDataLoss=false to go on with what is there"
        ) from error
    if beginning < wanted.end:
        consumer.seek(partition, beginning)
    return beginning


def _raise_stalled(options: ReadOptions, wanted: OffsetRange, position: int) -> NoReturn:
    raise KafkaTimeoutError(
        f"{wanted.topic}-{wanted.partition}: nothing arrived for {options.poll_timeout_ms} ms at offset {position}"
        f" of {wanted.end}; is the broker overloaded? kafkaConsumer.pollTimeoutMs says how long to wait"
    )
