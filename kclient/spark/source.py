"""The data source `kclient` for `spark.read.format("kclient")` and its relatives: Kafka topics as Arrow batches.

The driver's planning process fixes the ranges (`ranges`); each task reads one range (`reading`) with the public
blocking consumer and hands whole Arrow batches to Spark, so no record becomes a Python object on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from kclient.arguments import shown
from kclient.errors import ConfigError, NotYetSupportedError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions, parse_read_options, parse_stream_options, read_columns
from kclient.spark.pruning import Pruning, PushedFilters
from kclient.spark.ranges import resolve_ranges, split_ranges
from kclient.spark.reading import RangePartition, read_partition
from kclient.spark.schema import check_schema, kafka_schema
from kclient.spark.write_options import WriteOptions, parse_write_options, written_columns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `format("kclient")` known to this session, for where Spark does not find the package by itself."""
    if not hasattr(spark, "dataSource"):
        raise TypeError(f"register takes a Spark session, not {shown(spark)}")
    spark.dataSource.register(KclientDataSource)


class KclientDataSource(DataSource):
    """Kafka topics for Spark, with the options and the schema of Spark's built-in `kafka` source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if not isinstance(options, Mapping):
            raise ConfigError(f"options are a mapping of names to text, not {shown(options)}")
        # Spark's own mapping lower-cases the keys and does not travel well; a plain dict does.
        self.options: dict[str, str] = dict(options)

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "kclient"

    def schema(self) -> StructType:
        """The columns of Spark's `kafka` source, `headers` too with `includeHeaders`; or those in the option `columns`.

        Raises:
            ConfigError: An option is wrong or unknown.
        """
        return kafka_schema(read_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read.

        Args:
            schema: Columns of Spark's `kafka` source, in any order and choice.

        Raises:
            ConfigError: An option is wrong or unknown, or the schema has a column that there is not.
        """
        check_schema(schema)
        return KclientReader(parse_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write, of the columns key, value, headers, topic, partition and timestamp; others are left aside.

        Args:
            schema: Of the rows.
            overwrite: Whether the mode is `overwrite`, which topics do not have.

        Raises:
            ConfigError: An option or a column is wrong, unknown or missing, or the mode is overwrite.
            NotYetSupportedError: PySpark is older than 4.1.
        """
        refusal = 'the mode overwrite is not possible: topics are only appended to; use mode("append")'
        found: DataSourceWriter = _sink().KclientWriter(
            *self._writing(schema, refusal if overwrite else None, streaming=False)
        )
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write, as `writer`, in output mode `append`.

        Raises:
            ConfigError: An option or a column is wrong, unknown or missing, or the mode is complete.
            NotYetSupportedError: PySpark is older than 4.1.
        """
        refusal = (
            'the output mode complete is not possible: topics are only appended to; use outputMode("append"), or '
            "foreachBatch with a batch write"
        )
        found: DataSourceStreamWriter = _sink().KclientStreamWriter(
            *self._writing(schema, refusal if overwrite else None, streaming=True)
        )
        return found

    def _writing(self, schema: StructType, refusal: str | None, *, streaming: bool) -> tuple[WriteOptions, list[str]]:
        """How a write is done, and of which columns; `refusal` says why its mode is not possible."""
        options = parse_write_options(self.options, streaming=streaming)
        columns = written_columns(schema, options)
        if refusal is not None:
            raise ConfigError(refusal)
        if options.exactly_once:
            from kclient.spark.sink_driver import with_timeout

            options = with_timeout(options)
        return options, columns

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read.

        Args:
            schema: Columns of Spark's `kafka` source, in any order and choice.

        Raises:
            ConfigError: An option is wrong or unknown, or the schema has a column that there is not.
            NotYetSupportedError: PySpark is older than 4.2, which has not what limits need.
        """
        check_schema(schema)
        options = parse_stream_options(self.options)
        try:
            from kclient.spark.stream_reader import KclientStreamReader
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            raise NotYetSupportedError(
                f"streaming reads with kclient need PySpark 4.2 or later, and this is {pyspark.__version__}"
            ) from error
        return KclientStreamReader(options, schema)


def _sink() -> Any:
    """The module that writes, which older PySparks cannot import."""
    try:
        from kclient.spark import sink
    except ImportError as error:
        raise NotYetSupportedError(
            f"writing with kclient needs PySpark 4.1 or later, and this is {pyspark.__version__}"
        ) from error
    return sink


class KclientReader(DataSourceReader):
    """Plans the ranges in the driver's process and reads one of them in each task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()

    @property
    def pushFilters(self) -> PushedFilters:
        """With the option `pushFilters`, and `spark.sql.python.filterPushdown.enabled`, filters make ranges smaller.

        Not by itself: Spark (to 4.3) keeps what the filters of the last query left with the DataFrame, and reads that
        in all other queries of the same DataFrame too, also in those without filters, and in both sides of a join.
        """
        return PushedFilters(self._prune if self._options.push_filters else list)

    def _prune(self, filters: list[Any]) -> list[Any]:
        rest = []
        for each in filters:
            self._pruning, done = self._pruning.with_filter(each)
            if not done:
                rest.append(each)
        return rest

    def partitions(self) -> list[InputPartition]:
        """Ask the brokers what offsets there are, and cut them into a share for each task.

        Raises:
            KafkaError: No broker answers, or a topic does not exist.
        """
        options = self._options
        with LiveCluster(options.settings) as cluster:
            ranges = self._pruning.narrowed(cluster, resolve_ranges(cluster, options))
        pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """A share's records, in the schema that was asked for.

        Raises:
            KafkaError: The broker fails, or records are gone and `failOnDataLoss` is on.
        """
        return read_partition(self._options, self._schema, partition)
