"""The columns of the source: those of Spark's built-in `kafka` source, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.records.arrow import COLUMN_NAMES

if TYPE_CHECKING:
    import pyarrow

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_COLUMNS = {
    field.name: field
    for field in (
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    )
}


def kafka_schema(columns: Sequence[str] = COLUMN_NAMES) -> StructType:
    """These of key, value, topic, partition, offset, timestamp, timestampType and headers."""
    return StructType([_COLUMNS[name] for name in columns])


def check_schema(schema: StructType) -> None:
    """A schema that the user gave may leave columns out and reorder them; names and types must be the source's.

    Raises:
        TypeError: it is not a schema.
        ConfigError: a column that the source does not have, or has with another type.
    """
    if not isinstance(schema, StructType):
        raise TypeError(f"a schema is a pyspark.sql.types.StructType, not {shown(schema)}")
    known = {name: field.dataType for name, field in _COLUMNS.items()}
    if not schema.fields:
        raise ConfigError(f"the schema has no column; the source's are {', '.join(known)}")
    for field in schema:
        if field.name not in known:
            raise ConfigError(f"the source has no column {field.name!r}; its columns are {', '.join(known)}")
        if field.dataType != known[field.name]:
            raise ConfigError(
                f"the column {field.name} is of type {known[field.name].simpleString()},"
                f" not {field.dataType.simpleString()}; cast it after reading"
            )


def select_columns(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The batch with just the columns of `schema`, in its order and with its types; no value is copied."""
    import pyarrow

    columns: list[Any] = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)
