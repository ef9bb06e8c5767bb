"""What a registry knows of a schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["AVRO", "JSON", "PROTOBUF", "RegisteredSchema", "SchemaReference"]

AVRO = "AVRO"
JSON = "JSON"
PROTOBUF = "PROTOBUF"


class SchemaReference(NamedTuple):
    """A schema that another one uses."""

    name: str
    """What it is called there: a full name (Avro), a URL (JSON), an imported file (Protobuf)."""
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema.

    Args:
        schema_id: What values name it by.
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: The schema itself. Of `PROTOBUF` a `FileDescriptorProto` in base64 where it was asked for so.
        references: The schemas that it uses.
    """

    schema_id: int
    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()
