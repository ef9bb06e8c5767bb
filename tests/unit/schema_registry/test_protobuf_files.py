"""Protobuf files as they are met: names that clash, imports that are nowhere, all that came before and after proto3."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, text_format, timestamp_pb2

from kclient.errors import SerializationError
from kclient.schema_registry import SchemaRegistry
from kclient.schema_registry.readers import reader_for
from tests.registry_server import RegistryServer, framed


def told(text: str) -> str:
    """A descriptor of its text, as a registry tells it."""
    return base64.b64encode(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()).SerializeToString()).decode()


def field(name: str, number: int, kind: str, more: str = "") -> str:
    return f'field {{ name: "{name}" number: {number} type: TYPE_{kind} label: LABEL_OPTIONAL {more} }} '


@pytest.fixture
def opened(server: RegistryServer, registry: SchemaRegistry):
    def read(file: str, data: bytes, references: Any = ()) -> Any:
        schema_id = server.register("t", "x", "PROTOBUF", references, serialized=told(file))
        reader = reader_for(registry, registry.schema(schema_id))
        (found,) = pa.array([reader.read(framed(schema_id, b"\0" + data))], type=reader.data_type).to_pylist()
        return found

    return read


@pytest.mark.slow
def test_fields_that_are_called_like_what_python_has(opened) -> None:
    names = ["class", "from", "DESCRIPTOR", "HasField", "ParseFromString", "None", "__class__"]
    fields = "".join(
        field(name, number, "STRING", f"proto3_optional: true oneof_index: {number - 1}")
        for number, name in enumerate(names, 1)
    )
    oneofs = "".join(f'oneof_decl {{ name: "_{number}" }} ' for number in range(len(names)))
    data = b"".join(bytes([number << 3 | 2, 1]) + b"x" for number in range(1, len(names)))
    found = opened(f'syntax: "proto3" message_type {{ name: "M" {fields} {oneofs} }}', data)
    assert found == {**dict.fromkeys(names, "x"), "__class__": None}


def test_proto2(opened) -> None:
    file = (
        'package: "a" message_type { name: "M" '
        'field { name: "r" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED } '
        + field("d", 2, "STRING", 'default_value: "x"')
        + 'field { name: "g" number: 3 type: TYPE_GROUP type_name: ".a.M.G" label: LABEL_REPEATED } '
        + 'nested_type { name: "G" '
        + field("z", 1, "INT32")
        + "} extension_range { start: 100 end: 200 } "
        + field("e", 4, "ENUM", 'type_name: ".a.E"')
        + "} "
        + 'enum_type { name: "E" value { name: "LESS" number: -1 } value { name: "ONE" number: 1 } '
        + 'value { name: "UNO" number: 1 } options { allow_alias: true } }'
    )
    data = b"\x08\x05\x1b\x08\x02\x1c\x20" + b"\xff" * 9 + b"\x01\xa2\x06\x01x"
    assert opened(file, data) == {"r": 5, "d": None, "g": [{"z": 2}], "e": "LESS"}
    assert opened(file, b"\x20\x01")["e"] == "ONE", "the first of several names"
    assert opened(file, b"\x20\x07")["e"] is None, "a closed enum has no other numbers"


def test_editions(opened) -> None:
    file = (
        'syntax: "editions" edition: EDITION_2023 message_type { name: "M" '
        + field("a", 1, "INT32")
        + field("b", 2, "INT32", "options { features { field_presence: IMPLICIT } }")
        + "}"
    )
    assert opened(file, b"") == {"a": None, "b": 0}


def test_times_at_the_ends(opened) -> None:
    file = (
        'syntax: "proto3" dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/duration.proto" '
        'message_type { name: "M" '
        + field("at", 1, "MESSAGE", 'type_name: ".google.protobuf.Timestamp"')
        + field("took", 2, "MESSAGE", 'type_name: ".google.protobuf.Duration"')
        + "}"
    )
    for at, seconds, nanos in (
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800, 0),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799, 999_999_999),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1, 999_999_999),
    ):
        data = timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
        assert opened(file, bytes([0x0A, len(data)]) + data) == {"at": at, "took": None}
    for took, seconds, nanos in (
        (timedelta(seconds=-5), -5, -500),
        (timedelta(seconds=-5, microseconds=-1), -5, -1999),
        (timedelta(seconds=5, microseconds=1), 5, 1999),
    ):
        data = duration_pb2.Duration(seconds=seconds, nanos=nanos).SerializeToString()
        assert opened(file, bytes([0x12, len(data)]) + data) == {"at": None, "took": took}


BASE = 'name: "base.proto" package: "b" syntax: "proto3" message_type { name: "B" ' + field("n", 1, "INT32") + "}"


def test_what_an_import_makes_public(server: RegistryServer, opened) -> None:
    server.register("base", "x", "PROTOBUF", serialized=told(BASE))
    middle = 'name: "m.proto" package: "b" syntax: "proto3" dependency: "base.proto" public_dependency: 0'
    server.register("m", "x", "PROTOBUF", [("base.proto", "base", 1)], serialized=told(middle))
    file = 'syntax: "proto3" dependency: "m.proto" message_type { name: "M" ' + field(
        "b", 1, "MESSAGE", 'type_name: ".b.B"'
    )
    assert opened(file + "}", b"\x0a\x02\x08\x03", [("m.proto", "m", 1)]) == {"b": {"n": 3}}


def test_imports_that_nothing_is_taken_of(opened) -> None:
    file = (
        'syntax: "proto2" dependency: "confluent/meta.proto" dependency: "gone.proto" weak_dependency: 1 '
        'message_type { name: "M" ' + field("n", 1, "INT32") + "}"
    )
    assert opened(file, b"\x08\x05") == {"n": 5}


def test_files_that_everybody_is_expected_to_have(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = text_format.Parse(BASE, descriptor_pb2.FileDescriptorProto())
    odd.name, odd.package = "google/type/odd.proto", "google.type"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(odd)
    module = SimpleNamespace(DESCRIPTOR=pool.FindFileByName(odd.name))
    monkeypatch.setitem(sys.modules, "google.type.odd_pb2", module)
    file = (
        'syntax: "proto3" dependency: "google/type/odd.proto" dependency: "confluent/type/decimal.proto" '
        'message_type { name: "M" '
        + field("b", 1, "MESSAGE", 'type_name: ".google.type.B"')
        + field("d", 2, "MESSAGE", 'type_name: ".confluent.type.Decimal"')
        + "}"
    )
    assert opened(file, b"\x0a\x02\x08\x03\x12\x05\x0a\x01x\x18\x02") == {
        "b": {"n": 3},
        "d": {"value": b"x", "precision": 0, "scale": 2},
    }
    monkeypatch.setitem(sys.modules, "google.type.odd_pb2", None)
    with pytest.raises(SerializationError, match=r"imports google/type/odd\.proto, .* googleapis-common-protos"):
        opened(file, b"")


def test_a_registry_that_tells_no_descriptors(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = server.register("t", "x", "PROTOBUF", serialized='syntax = "proto3"; message M {}')
    with pytest.raises(SerializationError, match="does not tell the schema 1 as a descriptor"):
        reader_for(registry, registry.schema(schema_id))
