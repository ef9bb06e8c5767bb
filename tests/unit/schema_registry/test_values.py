"""Values of the three kinds: what is read, which Arrow type it has, and what is refused."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import SchemaRegistryError, SerializationError
from kclient.schema_registry import SchemaRegistry
from kclient.schema_registry.framing import message_indexes, split
from kclient.schema_registry.readers import reader_for
from tests.protobuf_files import ORDER, PART, message_class, serialized
from tests.registry_server import RegistryServer, framed, serving_registry


def avro(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def record(*fields, name: str = "shop.Order") -> dict:
    """Of fields with their names, types, and defaults where they have one."""
    keys = ("name", "type", "default")
    return {"type": "record", "name": name, "fields": [dict(zip(keys, each, strict=False)) for each in fields]}


def logical(kind: str, name: str, **more) -> dict:
    return {"type": kind, "logicalType": name, **more}


# --- framing


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", b"\1\0\0\0\1x", b'{"a": 1}'])
def test_a_value_that_names_no_schema(data: bytes) -> None:
    with pytest.raises(SerializationError, match="names no schema"):
        split(data)


def test_which_message_of_a_file_it_is() -> None:
    assert message_indexes(memoryview(b"\0rest")) == ((0,), b"rest")
    assert message_indexes(memoryview(b"\4\2\0rest")) == ((1, 0), b"rest")
    assert message_indexes(memoryview(b"\2\xac\x02")) == ((150,), b"")


@given(st.binary(max_size=40))
def test_indexes_of_any_bytes_are_found_or_refused(data: bytes) -> None:
    try:
        indexes, rest = message_indexes(memoryview(data))
    except SerializationError:
        return
    assert indexes
    assert all(index >= 0 for index in indexes)
    assert data.endswith(rest)


# --- Avro


def test_avro_of_every_type(server: RegistryServer, registry: SchemaRegistry) -> None:
    part = record(("x", "float"), name="Part")
    schema = record(
        ("b", "boolean"), ("i", "int"), ("l", "long"), ("d", "double"), ("raw", "bytes"), ("s", "string"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}), ("f", {"type": "fixed", "name": "F", "size": 2}),
        ("parts", {"type": "array", "items": part}), ("part", "Part"), ("m", {"type": "map", "values": "int"}),
        ("null", "null"), ("some", ["null", "string"]), ("wide", ["int", "long"]),
        ("real", ["float", "null", "double"]),
        ("day", logical("int", "date")), ("ms", logical("long", "timestamp-millis")),
        ("us", logical("long", "timestamp-micros")), ("local", logical("long", "local-timestamp-micros")),
        ("clock", logical("int", "time-millis")), ("id", logical("string", "uuid")),
        ("price", logical("bytes", "decimal", precision=9, scale=2)), ("odd", logical("string", "of-ours")),
    )  # fmt: skip
    at, number = datetime(2024, 2, 29, 12, 30, 0, 500_000, tzinfo=UTC), uuid.uuid4()
    value = {
        "b": True, "i": -1, "l": 2**62, "d": 0.5, "raw": b"\0", "s": "ü", "e": "B", "f": b"ab",
        "parts": [{"x": 1.5}], "part": {"x": 2.5}, "m": {"k": 1},
        "null": None, "some": None, "wide": 2**40, "real": None,
        "day": at.date(), "ms": at, "us": at, "local": at.replace(tzinfo=None),
        "clock": time(0, 0, 1), "id": number, "price": Decimal("-1.25"), "odd": "x",
    }  # fmt: skip
    schema_id = server.register("t", schema)
    reader = reader_for(registry, registry.schema(schema_id))
    read = reader.read(framed(schema_id, avro(schema, value)))
    (found,) = pa.array([read], type=reader.data_type).to_pylist()
    assert found == {**value, "m": [("k", 1)], "clock": 1000, "id": str(number)}
    assert str(reader.data_type.field("ms").type) == "timestamp[ms, tz=UTC]"
    assert reader.data_type.field("local").type == pa.timestamp("us")
    assert reader.data_type.field("price").type == pa.decimal128(9, 2)


def test_avro_by_other_schemas_is_brought_into_shape(server: RegistryServer, registry: SchemaRegistry) -> None:
    old, new = record(("id", "int"), ("gone", "string")), record(("id", "long"), ("more", "string", "none"))
    old_id, new_id = server.register("t", old), server.register("t", new)
    reader = reader_for(registry, registry.schema(new_id))
    assert reader.read(framed(old_id, avro(old, {"id": 1, "gone": "x"}))) == {"id": 1, "more": "none"}
    assert reader.read(framed(new_id, avro(new, {"id": 2, "more": "y"}))) == {"id": 2, "more": "y"}
    assert server.asked.count(f"/schemas/ids/{old_id}") == 1
    other = server.register("u", '"string"')
    with pytest.raises(SerializationError, match=f"the Avro schema {other} says"):
        reader.read(framed(other, avro("string", "x")))


def test_avro_with_references(server: RegistryServer, registry: SchemaRegistry) -> None:
    part = record(("name", "string"), name="shop.Part")
    server.register("part", part)
    schema = record(("parts", {"type": "array", "items": "shop.Part"}))
    schema_id = server.register("t", schema, references=[("shop.Part", "part", 1)])
    reader = reader_for(registry, registry.schema(schema_id))
    whole = record(("parts", {"type": "array", "items": part}))
    assert reader.read(framed(schema_id, avro(whole, {"parts": [{"name": "a"}]}))) == {"parts": [{"name": "a"}]}
    assert reader.data_type == pa.struct([("parts", pa.list_(pa.struct([("name", pa.string())])))])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("again", ["null", "shop.Order"])), "holds itself"),
        (["int", "string"], "a union of int, string has no column"),
        (logical("bytes", "decimal", precision=39), "a decimal of 39 digits"),
        ("no schema", "is not an Avro schema"),
        ({"type": "record", "name": "x", "fields": 5}, "is not an Avro schema"),
        ("{", "is not an Avro schema"),
    ],
)
def test_avro_that_no_column_can_hold(server: RegistryServer, registry: SchemaRegistry, schema, why: str) -> None:
    schema_id = server.register("t", schema)
    with pytest.raises(SerializationError, match=why):
        reader_for(registry, registry.schema(schema_id))


@given(data=st.binary(max_size=60))
def test_avro_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    reader = _fuzzed()
    try:
        value = reader.read(framed(1, data))
    except SerializationError:
        return
    pa.array([value], type=reader.data_type)


_kept: list = []


def _fuzzed():
    """A reader of many types whose registry was asked before."""
    if not _kept:
        with serving_registry() as server:
            server.register(
                "t",
                record(
                    ("a", {"type": "array", "items": "string"}), ("n", ["null", "long"]),
                    ("p", logical("bytes", "decimal", precision=5, scale=1)),
                    ("t", logical("long", "timestamp-micros")),
                    ("e", {"type": "enum", "name": "E", "symbols": ["A"]}), ("d", logical("int", "date")),
                ),
            )  # fmt: skip
            with SchemaRegistry(server.url) as registry:
                _kept.append(reader_for(registry, registry.schema(1)))
    return _kept[0]


def test_avro_that_is_cut_off_or_too_long(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema = record(("s", "string"))
    schema_id = server.register("t", schema)
    reader = reader_for(registry, registry.schema(schema_id))
    data = framed(schema_id, avro(schema, {"s": "hello"}))
    with pytest.raises(SerializationError, match="is not what the Avro schema"):
        reader.read(data[:-1])
    with pytest.raises(SerializationError, match="1 bytes are left over"):
        reader.read(data + b"x")
    with pytest.raises(SchemaRegistryError, match="does not know the schema 77"):
        reader.read(framed(77, b""))


# --- JSON

SHAPE = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "s": {"type": ["string", "null"]},
        "b": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        "list": {"type": "array", "items": {"$ref": "#/definitions/part"}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {},
        "mixed": {"type": ["string", "integer"]},
        "kind": {"enum": ["A", "B"]},
        "other": {"$ref": "other.json#/properties/x"},
    },
    "definitions": {"part": {"properties": {"name": {"type": "string"}}}},
}


def test_json_by_what_its_schema_says(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register("other", {"properties": {"x": {"type": "string"}}}, "JSON")
    schema_id = server.register("t", SHAPE, "JSON", references=[("other.json", "other", 1)])
    reader = reader_for(registry, registry.schema(schema_id))
    value = {
        "i": 1.0, "n": 2, "s": None, "b": True, "list": [{"name": "a", "more": 1}, {}], "map": {"k": 1},
        "any": {"x": [1, "ü"]}, "mixed": 5, "kind": "A", "other": "o", "unknown": 1,
    }  # fmt: skip
    read = reader.read(framed(schema_id, json.dumps(value).encode()))
    (found,) = pa.array([read], type=reader.data_type).to_pylist()
    assert found == {
        "i": 1, "n": 2.0, "s": None, "b": True, "list": [{"name": "a"}, {"name": None}], "map": [("k", 1)],
        "any": '{"x":[1,"ü"]}', "mixed": "5", "kind": "A", "other": "o",
    }  # fmt: skip
    assert reader.read(framed(schema_id, b"null")) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"i": "1"}, "an integer of 64 bits, and the value has '1'"),
        ({"i": 2**63}, "an integer of 64 bits"),
        ({"i": True}, "an integer of 64 bits"),
        ({"n": "x"}, "a number"),
        ({"s": 1}, "a string"),
        ({"b": 0}, "true or false"),
        ({"list": {}}, "an array"),
        ({"map": []}, "an object"),
        ([], "an object"),
    ],
)
def test_json_that_does_not_fit(server: RegistryServer, registry: SchemaRegistry, value, why: str) -> None:
    server.register("other", {"properties": {"x": {"type": "string"}}}, "JSON")
    schema_id = server.register("t", SHAPE, "JSON", references=[("other.json", "other", 1)])
    reader = reader_for(registry, registry.schema(schema_id))
    with pytest.raises(SerializationError, match=why):
        reader.read(framed(schema_id, json.dumps(value).encode()))
    with pytest.raises(SerializationError, match="is not JSON"):
        reader.read(framed(schema_id, b"{"))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "is not JSON"),
        ({"$ref": "#"}, "refers to itself"),
        ({"$ref": "#/x"}, "which it does not have"),
        ({"$ref": "elsewhere.json"}, "which is not registered with it"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "holds itself"),
    ],
)
def test_json_schemas_that_are_none(server: RegistryServer, registry: SchemaRegistry, schema, why: str) -> None:
    schema_id = server.register("t", schema, "JSON")
    with pytest.raises(SerializationError, match=why):
        reader_for(registry, registry.schema(schema_id))


# --- Protobuf


def order_schema(server: RegistryServer) -> int:
    server.register("part", "message Part", "PROTOBUF", serialized=serialized(PART))
    return server.register("t", "message Order", "PROTOBUF", [("part.proto", "part", 1)], serialized=serialized(ORDER))


def test_protobuf_of_every_type(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = order_schema(server)
    reader = reader_for(registry, registry.schema(schema_id))
    order = message_class("shop.Order")(id=2**64 - 1, state=1, raw=b"\0")
    order.at.FromJsonString("2024-02-29T12:30:00.5Z")
    order.parts.add(name="a", price=1.5)
    order.counts["k"].name = "b"
    read = reader.read(framed(schema_id, b"\0" + order.SerializeToString()))
    (found,) = pa.array([read], type=reader.data_type).to_pylist()
    assert found == {
        "id": Decimal(2**64 - 1), "at": datetime(2024, 2, 29, 12, 30, 0, 500_000, tzinfo=UTC),
        "parts": [{"name": "a", "price": 1.5}], "state": "SENT", "note": None,
        "counts": [("k", {"name": "b", "price": 0.0})], "raw": b"\0",
    }  # fmt: skip
    order.note = ""
    order.ClearField("at")
    read = reader.read(framed(schema_id, b"\2\0" + order.SerializeToString()))
    assert (read["note"], read["at"]) == ("", None)


def test_protobuf_messages_by_name(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = order_schema(server)
    schema = registry.schema(schema_id)
    inner = message_class("shop.Other.Inner")(number=2**32 - 1).SerializeToString()
    for name in ("Other.Inner", "shop.Other.Inner"):
        reader = reader_for(registry, schema, name)
        assert reader.read(framed(schema_id, b"\4\2\0" + inner)) == {"number": 2**32 - 1}
    with pytest.raises(SerializationError, match=r"the value is a shop\.Order, not a shop\.Other\.Inner"):
        reader.read(framed(schema_id, b"\0"))
    with pytest.raises(SerializationError, match="has no message at"):
        reader.read(framed(schema_id, b"\2\x50"))
    with pytest.raises(SerializationError, match=r"the value is no shop\.Other\.Inner"):
        reader.read(framed(schema_id, b"\4\2\0\xff"))
    with pytest.raises(SerializationError, match=r"has no message 'Nothing'; it has shop\.Order"):
        reader_for(registry, schema, "Nothing")
    with pytest.raises(SerializationError, match="holds itself"):
        reader_for(registry, schema, "Loop")


def test_protobuf_that_is_told_as_no_descriptor(server: RegistryServer, registry: SchemaRegistry) -> None:
    for told, why in (("message X {}", "does not tell the schema"), ("/////w==", "does not tell the schema")):
        schema_id = server.register("t", "x", "PROTOBUF", serialized=told)
        with pytest.raises(SerializationError, match=why):
            reader_for(registry, registry.schema(schema_id))


def test_kinds_that_are_none(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = server.register("t", "x", "XML")
    with pytest.raises(SerializationError, match="of the kind 'XML'; there are AVRO, JSON and PROTOBUF"):
        reader_for(registry, registry.schema(schema_id))
    schema_id = server.register("t", '"int"')
    with pytest.raises(SerializationError, match="is for Protobuf"):
        reader_for(registry, registry.schema(schema_id), "M")


def test_dates_beyond_what_python_knows(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema = record(("d", logical("int", "date")), ("t", logical("long", "timestamp-millis")))
    schema_id = server.register("t", schema)
    reader = reader_for(registry, registry.schema(schema_id))
    plain = record(("d", "int"), ("t", "long"))
    read = reader.read(framed(schema_id, avro(plain, {"d": 2**31 - 1, "t": 2**60})))
    column = pa.array([read], type=reader.data_type)
    assert column.field("d").cast(pa.int32()).to_pylist() == [2**31 - 1]
    assert date(1970, 1, 1) in pa.array([0], pa.date32()).to_pylist()
