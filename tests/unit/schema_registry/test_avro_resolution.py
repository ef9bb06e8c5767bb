"""Avro values in the shape of another schema than the one that wrote them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kclient.errors import SerializationError
from kclient.schema_registry import SchemaRegistry
from kclient.schema_registry.readers import reader_for
from tests.registry_server import RegistryServer, framed
from tests.unit.schema_registry.test_values import avro, logical, record


def decimal(digits: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=digits, scale=scale)


def fixed_decimal(scale: int) -> dict[str, Any]:
    return {**logical("fixed", "decimal", precision=9, scale=scale, size=4), "name": "Amount"}


@pytest.fixture
def resolve(server: RegistryServer, registry: SchemaRegistry):
    def resolved(written: Any, wanted: Any, value: Any, plain: Any = None) -> Any:
        """What a value by one schema is by the other; `plain` is what to write it by, without logical types."""
        written_id, wanted_id = server.register("t", written), server.register("t", wanted)
        reader = reader_for(registry, registry.schema(wanted_id))
        return reader.read(framed(written_id, avro(plain or written, value)))

    return resolved


@pytest.mark.parametrize(
    ("written", "wanted", "value", "found"),
    [
        (("long", "timestamp-millis"), ("long", "timestamp-micros"), 1001, 1_001_000),
        (("long", "timestamp-micros"), ("long", "timestamp-millis"), 1_001_999, 1001),
        (("long", "timestamp-micros"), ("long", "timestamp-millis"), -1, -1),
        (("long", "timestamp-nanos"), ("long", "timestamp-micros"), 1_001_999, 1001),
        (("long", "local-timestamp-micros"), ("long", "local-timestamp-millis"), 5000, 5),
        (("int", "time-millis"), ("long", "time-micros"), 5, 5000),
        (("int", "date"), ("int", "date"), 5, 5),
    ],
)
def test_times_keep_their_meaning_from_unit_to_unit(resolve, written, wanted, value: int, found: int) -> None:
    kind, of, into = written[0], logical(*written), logical(*wanted)
    shapes = (
        (lambda each: each, value, found),
        (lambda each: ["null", each], value, found),
        (lambda each: {"type": "array", "items": each}, [value], [found]),
        (lambda each: {"type": "map", "values": ["null", each]}, {"k": value}, {"k": found}),
    )
    for shape, given, read in shapes:
        schemas = [record(("x", shape(each))) for each in (of, into, kind)]
        assert resolve(schemas[0], schemas[1], {"x": given}, schemas[2]) == {"x": read}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [(("int", "date"), ("long", "timestamp-millis")), (("int", "time-millis"), ("long", "timestamp-millis"))],
)
def test_times_of_another_kind_are_refused(resolve, written, wanted) -> None:
    with pytest.raises(SerializationError, match=rf"{written[1]} is a .*, and {wanted[1]} is a timestamp"):
        resolve(logical(*written), logical(*wanted), 5, written[0])


def test_decimals_by_the_scale_that_they_were_written_with(resolve) -> None:
    for of, into in ((decimal(9, 2), decimal(9, 4)), (fixed_decimal(2), fixed_decimal(3))):
        assert resolve(record(("x", of)), record(("x", ["null", into])), {"x": Decimal("-1.25")}) == {
            "x": Decimal("-1.25")
        }
    assert resolve(decimal(9, 2), '"bytes"', Decimal("1.25")) == b"\x7d"


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
        (decimal(9, 2), "\u0001", Decimal("0.01")),
        (fixed_decimal(1), "\u0000\u0000\u0000\u0001", Decimal("0.1")),
        ({"type": "array", "items": decimal(9, 2)}, ["\u0001"], [Decimal("0.01")]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, {"k": b"\xff"}),
        (record(("a", "int", 5), ("b", "bytes", "\u00ff"), name="N"), {}, {"a": 5, "b": b"\xff"}),
        (record(("a", record(("b", "bytes"), name="B")), name="N"), {"a": {"b": "\u00ff"}}, {"a": {"b": b"\xff"}}),
    ],
)
def test_defaults_are_values_and_no_texts(resolve, kind: Any, default: Any, found: Any) -> None:
    old, new = record(("y", "int")), record(("y", "int"), ("x", kind, default))
    assert resolve(old, new, {"y": 1}) == {"y": 1, "x": found}


PART = record(("p", "int"), name="Part")
OLD_PART, NEW_PART = record(("p", "int"), name="a.Old"), {**record(("p", "long"), name="b.New"), "aliases": ["a.Old"]}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


@pytest.mark.parametrize(
    ("written", "wanted", "value"),
    [
        (record(("a", PART), ("b", "Part")), record(("b", ["null", PART])), {"a": {"p": 1}, "b": {"p": 2}}),
        (record(("b", PART)), record(("b", ["null", PART])), {"b": {"p": 2}}),
        (record(("b", {"type": "map", "values": PART})), record(("b", {"type": "map", "values": ["null", PART]})),
         {"b": {"k": {"p": 2}}}),
        (record(("a", ENUM), ("b", "E")), record(("b", ["null", ENUM])), {"a": "A", "b": "A"}),
        (record(("b", ["null", OLD_PART])), record(("b", ["null", NEW_PART])), {"b": {"p": 2}}),
        (record(("b", {"type": "array", "items": OLD_PART})), record(("b", {"type": "array", "items": NEW_PART})),
         {"b": [{"p": 2}]}),
    ],
)  # fmt: skip
def test_types_that_one_side_names_and_the_other_defines(resolve, written: Any, wanted: Any, value: Any) -> None:
    assert resolve(written, wanted, value) == {"b": value["b"]}


@pytest.mark.parametrize("schema", ['"Line"', ["null", "Line"], ["Line", "Part"]])
def test_a_schema_that_is_nothing_but_references(server: RegistryServer, registry: SchemaRegistry, schema) -> None:
    line = record(("part", PART), name="Line")
    server.register("part", PART)
    server.register("line", record(("part", "Part"), name="Line"), references=[("Part", "part", 1)])
    written = server.register("t", schema, references=[("Line", "line", 1), ("shop.Part", "part", 1)])
    reader = reader_for(registry, registry.version("line", 1))
    value = {"part": {"p": 3}}
    whole = line if isinstance(schema, str) else [line if each == "Line" else each for each in schema]
    assert reader.read(framed(written, avro(whole, value))) == value
    if "Part" not in schema:
        own = reader_for(registry, registry.schema(written))
        assert own.data_type == pa.struct([("part", pa.struct([("p", pa.int32())]))])
        assert own.read(framed(written, avro(whole, value))) == value


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (logical("string", "decimal", precision=5), pa.string()),
        (logical("bytes", "decimal"), pa.binary()),
        (logical("bytes", "decimal", precision=0), pa.binary()),
        (logical("bytes", "decimal", precision=2, scale=5), pa.binary()),
        ({**logical("fixed", "decimal", precision=5, size=2), "name": "F"}, pa.binary()),
        (logical("int", "decimal", precision=3), pa.int32()),
        (logical("long", "date"), pa.int64()),
        ([{"type": "null"}, "int"], pa.int32()),
    ],
)
def test_logical_types_that_say_nothing_are_none(
    server: RegistryServer, registry: SchemaRegistry, schema: Any, found: pa.DataType
) -> None:
    assert reader_for(registry, registry.schema(server.register("t", schema))).data_type == found


def test_a_date_and_a_time_in_one_union_are_not_both_numbers(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = server.register("t", [logical("int", "date"), logical("long", "timestamp-millis")])
    with pytest.raises(SerializationError, match="a union of date, timestamp-millis has no column"):
        reader_for(registry, registry.schema(schema_id))


def test_a_schema_too_deep_is_refused(server: RegistryServer, registry: SchemaRegistry) -> None:
    schema_id = server.register("t", '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000)
    with pytest.raises(SerializationError, match="is not an Avro schema"):
        reader_for(registry, registry.schema(schema_id))
