"""Which columns JSON schemas make: what is said in several places, and what references name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kclient.errors import SerializationError
from kclient.schema_registry import SchemaRegistry
from kclient.schema_registry.readers import reader_for
from tests.registry_server import RegistryServer, framed

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.fixture
def opened(server: RegistryServer, registry: SchemaRegistry):
    def read(schema: Any, value: Any, references: Any = ()) -> Any:
        schema_id = server.register("t", schema, "JSON", references=references)
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return reader_for(registry, registry.schema(schema_id)).read(framed(schema_id, data))

    return read


def shape(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ({"allOf": [shape(a=NUMBER), shape(b=TEXT)]}, {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        ({**shape(a=NUMBER), "allOf": [shape(b=TEXT)]}, {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        (shape(x={"allOf": [{"$ref": "#/$defs/p"}], "title": "t"}) | {"$defs": {"p": shape(n=TEXT)}},
         {"x": {"n": "q"}}, {"x": {"n": "q"}}),
        ({"allOf": [shape(x=shape(a=NUMBER)), shape(x=shape(b=NUMBER))]}, {"x": {"a": 1, "b": 2}},
         {"x": {"a": 1, "b": 2}}),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, 5, 5),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, 5, "5"),
        ({**shape(a=NUMBER), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1}),
        ({"type": "string", "oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]}, "::1", "::1"),
        ({**shape(a=NUMBER), "oneOf": [shape(b=TEXT), shape(c=TEXT)]}, {"a": 1}, '{"a":1}'),
        ({"enum": ["A", None]}, "A", "A"),
        ({"const": "A"}, "A", "A"),
        ({"oneOf": [{"enum": [None]}, TEXT]}, "A", "A"),
        ({"anyOf": [{"type": ["null"]}, {"const": None}, TEXT]}, "A", "A"),
        ({"type": "array", "prefixItems": [TEXT], "items": NUMBER}, ["x", 1], '["x",1]'),
        ({"type": "object", "patternProperties": {"^n": NUMBER}, "additionalProperties": TEXT}, {"n": 1, "s": "x"},
         '{"n":1,"s":"x"}'),
        ({"type": [{"type": "string"}, "null"]}, "x", '"x"'),
        (shape(a=True, b=False), {"a": [1]}, {"a": "[1]", "b": None}),
    ],
)  # fmt: skip
def test_what_is_said_of_a_value(opened, schema: Any, value: Any, found: Any) -> None:
    assert opened(schema, value) == found


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://x.org/root.json", **shape(a={"$ref": "other.json"})},
        shape(a={"$ref": "http://x.org/other.json"}),
        {**shape(a={"$ref": "http://x.org/other.json#/definitions/t"})},
        {**shape(a={"$ref": "item"}), "$defs": {"i": {"$id": "item", **TEXT}}},
        {**shape(a={"$ref": "#t"}), "$defs": {"i": {"$anchor": "t", **TEXT}}},
        {**shape(a={"$ref": "#t"}), "definitions": {"i": {"$id": "#t", **TEXT}}},
        {**shape(a={"$ref": "inner#/$defs/t"}), "$defs": {"i": {"$id": "inner", "$defs": {"t": TEXT}}}},
        {**shape(a={"$ref": "inner"}), "$defs": {"i": {"$id": "inner", "$ref": "#/$defs/t", "$defs": {"t": TEXT}}}},
        {"$id": "http://x.org/root.json", **shape(a={"$ref": "root.json#/$defs/t"}), "$defs": {"t": TEXT}},
        {**shape(a={"$ref": "#/x-types/1"}), "x-types": [NUMBER, TEXT]},
        {**shape(a={"$ref": "#/$defs/a~1b%25"}), "$defs": {"a/b%": TEXT}},
    ],
)
def test_references_relative_to_what_is_around_them(server: RegistryServer, opened, schema: Any) -> None:
    other = {"$id": "http://x.org/other.json", **TEXT, "definitions": {"t": TEXT}}
    server.register("other", other, "JSON")
    for name in ("http://x.org/other.json", "any name"):
        assert opened(schema, {"a": "x"}, [(name, "other", 1)]) == {"a": "x"}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (shape(a={"$ref": "#nothing"}), "refers to '#nothing', which it does not have"),
        (shape(a={"$ref": "#/x/7"}) | {"x": []}, "refers to '#/x/7', which it does not have"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ('{"properties":{"a":' * 5000 + "{}" + "}}" * 5000, "is not JSON"),
    ],
)
def test_schemas_that_are_refused(opened, schema: Any, why: str) -> None:
    with pytest.raises(SerializationError, match=why):
        opened(schema, {})


def test_values_too_deep_are_refused(opened) -> None:
    with pytest.raises(SerializationError, match="is not JSON"):
        opened(shape(a={}), b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
