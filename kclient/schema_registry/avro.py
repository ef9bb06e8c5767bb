"""Avro values, by fastavro: read by the schema that they name, in the shape of the one that is wanted.

Which Arrow type a schema has follows Spark's own `from_avro`: times of day are numbers, what is either null or
something else is nullable, and logical types that nobody knows are what they are made of.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kclient.errors import MissingExtraError, SerializationError
from kclient.schema_registry.avro_schemas import DECIMAL, LOGICAL_TYPE, VALUE, install_readers, prepared
from kclient.schema_registry.framing import split

if TYPE_CHECKING:
    import pyarrow

    from kclient.schema_registry.client import SchemaRegistry
    from kclient.schema_registry.schema import RegisteredSchema

__all__ = ["AvroReader"]

_PLAIN: Final = {
    "null": "null",
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_MOST_DIGITS: Final = 38
"""Of a decimal, in Spark."""
_LONGEST_REASON: Final = 500
"""Characters: fastavro's errors have whole schemas in them."""


class AvroReader:
    """Reads values into the shape of a schema.

    Args:
        registry: Has the schemas.
        schema: What values are to look like, whichever schema they were written by (Avro's schema resolution).

    Raises:
        MissingExtraError: fastavro is not installed.
        SerializationError: The schema is none, or has something that no column can hold.
    """

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema) -> None:
        try:
            import fastavro
        except ModuleNotFoundError as error:
            raise MissingExtraError("fastavro", "schema-registry", "Avro") from error
        install_readers(fastavro.read.LOGICAL_READERS)
        self._read: Callable[..., Any] = fastavro.schemaless_reader
        self._parse = fastavro.parse_schema
        self._registry = registry
        self._schema, named = self._parsed(schema, written=False)
        self._writers: dict[int, Any] = {schema.schema_id: self._schema}
        (around,) = self._schema["fields"]
        self.data_type: pyarrow.DataType = _Types(named).of(around["type"])

    def read(self, data: bytes) -> Any:
        """A value.

        Raises:
            SerializationError: It is none, or its schema cannot be resolved into the one that is wanted.
            SchemaRegistryError: Its schema cannot be had.
        """
        schema_id, payload = split(data)
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = self._parsed(self._registry.schema(schema_id), written=True)[0]
        source = io.BytesIO(payload)
        try:
            value = self._read(source, writer, None if writer is self._schema else self._schema)[VALUE]
        except Exception as error:  # fastavro raises what comes: EOFError, IndexError, its own
            raise SerializationError(
                f"the value is not what the Avro schema {schema_id} says, or that does not fit the one that is wanted: "
                f"{type(error).__name__}: {str(error)[:_LONGEST_REASON]}"
            ) from error
        if source.tell() != len(payload):
            left = len(payload) - source.tell()
            raise SerializationError(f"{left} bytes are left over behind a value of the Avro schema {schema_id}")
        return value

    def _parsed(self, schema: RegisteredSchema, *, written: bool) -> tuple[Any, dict[str, Any]]:
        """The schema in a record of its own, and what it can name."""
        if schema.kind != "AVRO":
            raise SerializationError(f"the schema {schema.schema_id} is of the kind {schema.kind}, not AVRO")
        # One schema may be referred to by several names, which mean nothing in Avro.
        used = {(each.subject, each.version): found for each, found in self._registry.referenced(schema)}
        try:
            texts = [json.loads(each.text) for each in used.values()]
            return prepared(self._parse, texts, json.loads(schema.text), written=written)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise self._no_schema(schema, error) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "fastavro":
                raise
            raise self._no_schema(schema, error) from error

    @staticmethod
    def _no_schema(schema: RegisteredSchema, error: Exception) -> SerializationError:
        return SerializationError(
            f"the schema {schema.schema_id} is not an Avro schema: "
            f"{str(error)[:_LONGEST_REASON] or type(error).__name__}"
        )


class _Types:
    """The Arrow types of Avro's."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: list[str] = []
        """The records around the present place: one that holds itself has no type."""

    def of(self, schema: Any) -> pyarrow.DataType:
        import pyarrow

        if isinstance(schema, list):
            return self._of_union(schema)
        if isinstance(schema, str):
            plain = _PLAIN.get(schema)
            return getattr(pyarrow, plain)() if plain else self.of(self._named[schema])
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind)
        logical = _LOGICAL.get((kind, schema.get(LOGICAL_TYPE)))
        if logical is not None:
            return logical()
        if schema.get("logicalType") == DECIMAL:
            return self._of_decimal(schema)
        if kind == "array":
            return pyarrow.list_(self.of(schema["items"]))
        if kind == "map":
            return pyarrow.map_(pyarrow.string(), self.of(schema["values"]))
        if kind in {"record", "error"}:
            return self._of_record(schema)
        return self.of(kind)

    def _of_record(self, schema: Mapping[str, Any]) -> pyarrow.DataType:
        import pyarrow

        name = schema["name"]
        if name in self._open:
            raise SerializationError(f"the Avro record {name} holds itself: no column can be that deep")
        self._open.append(name)
        fields = [pyarrow.field(field["name"], self.of(field["type"])) for field in schema["fields"]]
        self._open.pop()
        return pyarrow.struct(fields)

    def _of_union(self, members: list[Any]) -> pyarrow.DataType:
        import pyarrow

        others = [each for each in members if each not in ("null", {"type": "null"})]
        if len(others) == 1:
            return self.of(others[0])
        # What has a logical type is no number: a date and a timestamp are not told apart in one column.
        kinds = {each if isinstance(each, str) else each.get(LOGICAL_TYPE) or each["type"] for each in others}
        if kinds == {"int", "long"}:
            return pyarrow.int64()
        if kinds == {"float", "double"}:
            return pyarrow.float64()
        if not others:
            return pyarrow.null()
        raise SerializationError(
            f"a union of {', '.join(sorted(map(str, kinds)))} has no column: only null and one other type, or int and "
            "long, or float and double"
        )

    @staticmethod
    def _of_decimal(schema: Mapping[str, Any]) -> pyarrow.DataType:
        import pyarrow

        digits, scale = schema["precision"], schema.get("scale", 0)
        if digits > _MOST_DIGITS:
            raise SerializationError(f"a decimal of {digits} digits has no column: Spark's have {_MOST_DIGITS} at most")
        return pyarrow.decimal128(digits, scale)


def _logical() -> dict[tuple[str, Any], Callable[[], pyarrow.DataType]]:
    def timestamp(unit: str, zone: str | None) -> Callable[[], pyarrow.DataType]:
        def made() -> pyarrow.DataType:
            import pyarrow

            return pyarrow.timestamp(unit, tz=zone)

        return made

    def date() -> pyarrow.DataType:
        import pyarrow

        return pyarrow.date32()

    return {
        ("int", "date"): date,
        ("long", "timestamp-millis"): timestamp("ms", "UTC"),
        ("long", "timestamp-micros"): timestamp("us", "UTC"),
        ("long", "local-timestamp-millis"): timestamp("ms", None),
        ("long", "local-timestamp-micros"): timestamp("us", None),
    }


_LOGICAL: Final = _logical()
