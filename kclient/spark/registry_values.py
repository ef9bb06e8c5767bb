"""Columns of values that name their schemas in a registry: a vectorised function, Arrow in and Arrow out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal

import pyarrow
from pyspark.sql import Column
from pyspark.sql.functions import col as named_column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from kclient.arguments import INT32_MAX, check_text, shown
from kclient.errors import SchemaRegistryError, SerializationError
from kclient.schema_registry import RegisteredSchema, SchemaRegistry
from kclient.schema_registry.framing import split
from kclient.schema_registry.readers import ValueReader, reader_for

__all__ = ["from_registry"]

_MODES: Final = ("FAILFAST", "PERMISSIVE")
_LONGEST_TYPE: Final = 300
"""Characters of it in an error."""
_UNFIT: Final = (pyarrow.ArrowException, OverflowError, TypeError, ValueError)
"""What Arrow raises of values that a type cannot hold; texts with half a surrogate pair are a `UnicodeEncodeError`."""


def from_registry(
    column: Column | str,
    registry: str | Mapping[str, str],
    subject: str | None = None,
    *,
    version: int | None = None,
    schema_id: int | None = None,
    message: str | None = None,
    mode: Literal["FAILFAST", "PERMISSIVE"] = "FAILFAST",
) -> Column:
    """A column of values in Avro, JSON or Protobuf as serializers of a schema registry write them, opened.

    The schema that is named here gives the column its type, once, when the query is made. Each value is read by the
    schema that it names itself, and brought into that shape: by Avro's schema resolution, by the names of properties
    (JSON), by the numbers of fields (Protobuf). The workers ask the registry too, once for each schema.

    ```python
    from kclient.spark import from_registry

    order = from_registry("value", "http://localhost:8081", "orders-value")
    orders = frame.select(order.alias("order")).select("order.*")
    ```

    Args:
        column: Binary, such as `key` or `value`. What is null stays null.
        registry: The address of the registry, or its settings (see `kclient.schema_registry.SchemaRegistry`).
        subject: Whose schema is meant: usually the topic's name and `-key` or `-value`.
        version: Which of the subject's; the latest by default.
        schema_id: The schema by its id, instead of a subject.
        message: Of Protobuf, which message of the file; the first by default.
        mode: What becomes of a value that cannot be read: `FAILFAST` fails the query, `PERMISSIVE` makes it null. A
            registry that cannot be asked fails it either way.

    Returns:
        A column; usually a struct.

    Raises:
        ConfigError: A setting of the registry is unknown, or cannot be used.
        SchemaRegistryError: There is no such schema, or the registry cannot be asked.
        SerializationError: The schema has something that no column can hold.
        MissingExtraError: A library is not installed; the extra `schema-registry` has them.
        TypeError, ValueError: An argument cannot be used, or not exactly one of `subject` and `schema_id` is given.
    """
    _check(column, subject, version, schema_id, message, mode)
    with SchemaRegistry(registry) as asked:
        if schema_id is not None:
            schema = asked.schema(schema_id)
        elif version is not None:
            schema = asked.version(str(subject), version)
        else:
            schema = asked.latest(str(subject))
        reader = reader_for(asked, schema, message)
    data_type = _in_microseconds(reader.data_type)
    settings = tuple(sorted(asked.settings.items()))
    permissive = mode == "PERMISSIVE"

    def read(values: pyarrow.Array) -> pyarrow.Array:
        return _opened(values, _reader(settings, schema, message), data_type, permissive)

    read.__name__ = from_registry.__name__  # plans show it, and a column without an alias
    make: Any = arrow_udf  # whose stub knows fewer types than it takes
    opened = make(read, from_arrow_type(data_type))
    found: Column = opened(named_column(column) if isinstance(column, str) else column)
    return found


def _check(column: Any, subject: Any, version: Any, schema_id: Any, message: Any, mode: Any) -> None:
    if not isinstance(column, str | Column):
        raise TypeError(f"expected a column or its name, got {shown(column)}")
    if (subject is None) is (schema_id is None):
        raise ValueError("expected either a subject or a schema_id")
    if version is not None and subject is None:
        raise ValueError("a version is one of a subject's: name it")
    for value, what in ((subject, "a subject"), (message, "a message's name")):
        if value is not None:
            check_text(value, what)
    for value, what in ((version, "a subject's version"), (schema_id, "a schema's id")):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{what} is a whole number, not {shown(value)}")
        if not 0 < value <= INT32_MAX:
            raise ValueError(f"{what} is a number from 1 to {INT32_MAX}, not {shown(value)}")
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(f"expected mode to be {' or '.join(_MODES)}, got {shown(mode)}")


@cache
def _reader(settings: tuple[tuple[str, str], ...], schema: RegisteredSchema, message: str | None) -> ValueReader:
    """One for each process, so that a schema is asked for once."""
    return reader_for(SchemaRegistry(dict(settings)), schema, message)


def _opened(values: pyarrow.Array, reader: ValueReader, data_type: pyarrow.DataType, permissive: bool) -> pyarrow.Array:
    if not _is_binary(values.type):  # which no mode makes null
        raise TypeError(f"from_registry opens binary columns, and this one is of the type {values.type}")
    rows: list[Any] = []
    unknown: set[int] = set()
    """Ids that the registry does not know: it is asked once."""
    for value in values.to_pylist():
        row = None
        if value is not None:
            try:
                if unknown and split(value).schema_id in unknown:
                    raise SerializationError("its schema is not known")
                row = reader.read(value)
            except SerializationError:
                if not permissive:
                    raise
            except SchemaRegistryError as error:
                if error.retriable or not permissive:
                    raise
                unknown.add(split(value).schema_id)
        rows.append(row)
    try:
        return _arrow(rows, reader.data_type, data_type)
    except _UNFIT:  # one of them, then: which?
        return _arrow_by_rows(rows, reader.data_type, data_type, permissive)


def _is_binary(data_type: pyarrow.DataType) -> bool:
    kinds = pyarrow.types
    return bool(
        kinds.is_binary(data_type)
        or kinds.is_large_binary(data_type)
        or kinds.is_binary_view(data_type)
        or kinds.is_fixed_size_binary(data_type)
        or kinds.is_null(data_type)
    )


def _arrow(rows: list[Any], read: pyarrow.DataType, data_type: pyarrow.DataType) -> pyarrow.Array:
    found = pyarrow.array(rows, type=read)
    return found if read == data_type else found.cast(data_type)  # which breaks lists of nulls


def _arrow_by_rows(
    rows: list[Any], read: pyarrow.DataType, data_type: pyarrow.DataType, permissive: bool
) -> pyarrow.Array:
    """Some of them have values that the type has no room for: a time or decimal too great, text that is none."""
    found = []
    for row in rows:
        try:
            found.append(_arrow([row], read, data_type))
        except _UNFIT as error:
            if not permissive:
                column = str(data_type)[:_LONGEST_TYPE]
                raise SerializationError(f"a value does not fit into its column: {error}; that is {column}") from error
            found.append(pyarrow.nulls(1, data_type))
    return pyarrow.concat_arrays(found)


def _in_microseconds(data_type: pyarrow.DataType) -> pyarrow.DataType:
    """The type with all times in Spark's unit."""
    if pyarrow.types.is_timestamp(data_type):
        return pyarrow.timestamp("us", tz=data_type.tz)
    if pyarrow.types.is_struct(data_type):
        return pyarrow.struct([field.with_type(_in_microseconds(field.type)) for field in data_type])
    if pyarrow.types.is_map(data_type):
        return pyarrow.map_(data_type.key_type, _in_microseconds(data_type.item_type))
    if pyarrow.types.is_list(data_type):
        return pyarrow.list_(_in_microseconds(data_type.value_type))
    return data_type
