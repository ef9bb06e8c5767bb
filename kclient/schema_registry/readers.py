"""Which reader a schema has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kclient.arguments import shown
from kclient.errors import SerializationError
from kclient.schema_registry.avro import AvroReader
from kclient.schema_registry.json_values import JsonReader
from kclient.schema_registry.protobuf import ProtobufReader
from kclient.schema_registry.schema import AVRO, JSON, PROTOBUF, RegisteredSchema

if TYPE_CHECKING:
    import pyarrow

    from kclient.schema_registry.client import SchemaRegistry

__all__ = ["ValueReader", "reader_for"]


class ValueReader(Protocol):
    """Makes Python values of bytes, and tells which Arrow type they have together."""

    data_type: pyarrow.DataType

    def read(self, data: bytes) -> Any:
        """A value. Raises `SerializationError`, or `SchemaRegistryError` where its schema cannot be had."""
        ...


def reader_for(registry: SchemaRegistry, schema: RegisteredSchema, message: str | None = None) -> ValueReader:
    """The reader of values in the shape of a schema.

    Args:
        registry: Has the schema, and those of the values.
        schema: What the values are to look like.
        message: Which message of a Protobuf file they are; the first by default.

    Raises:
        SerializationError: There is no reader for it, or it has something that no column can hold.
        SchemaRegistryError: What it uses cannot be had.
        MissingExtraError: The library for its kind is not installed.
    """
    if message is not None and schema.kind != PROTOBUF:
        raise SerializationError(
            f"message={shown(message)} is for Protobuf, and the schema {schema.schema_id} is {schema.kind}"
        )
    if schema.kind == AVRO:
        return AvroReader(registry, schema)
    if schema.kind == JSON:
        return JsonReader(registry, schema)
    if schema.kind == PROTOBUF:
        return ProtobufReader(registry, schema, message)
    raise SerializationError(
        f"the schema {schema.schema_id} is of the kind {shown(schema.kind)}; there are {AVRO}, {JSON} and {PROTOBUF}"
    )
