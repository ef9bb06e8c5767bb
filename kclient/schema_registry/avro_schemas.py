"""Avro schemas made ready for fastavro: what its schema resolution does not do by itself.

- Logical types. It goes by the writer's alone: milliseconds would be taken for microseconds. So those of values that
  another schema wrote get names of ours, and readers that look at both sides.
- Defaults of bytes are texts in JSON, one character for each byte (Avro's specification), also those of decimals;
  defaults of records may leave out fields that have one.
- Names. A type that one side names and the other defines in a union is not found, and a schema that is itself a union
  or a name does not find what it refers to. So types are named wherever they are used, and the schema gets a record
  around it, which takes no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

__all__ = ["DECIMAL", "LOGICAL_TYPE", "VALUE", "install_readers", "prepared"]

LOGICAL_TYPE: Final = "kclientLogicalType"
"""Where the logical type stands of what fastavro is to leave a number: Arrow makes times of it, which is quicker and
knows no year 10000."""
DECIMAL: Final = "decimal"
VALUE: Final = "value"
"""The one field of the record around a schema."""
_AROUND: Final = "KclientValue"
_OURS: Final = "kclient-"
_NESTED: Final = frozenset({"type", "fields", "items", "values"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_EXACT: Final = Context(prec=1000)
_PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_FAMILIES: Final = {"timestamp": "a timestamp", "local-timestamp": "a timestamp", "time": "a time of day"}


def _times() -> dict[str, tuple[str, int]]:
    """By logical type: what it is, and how many of it a second has."""
    found = {
        f"{family}-{unit}": (what, per_second)
        for family, what in _FAMILIES.items()
        for unit, per_second in _PER_SECOND.items()
    }
    return {**found, "date": ("a date", 0)}


_TIMES: Final = _times()


def prepared(
    parse: Callable[..., Any], texts: Iterable[Any], schema: Any, *, written: bool
) -> tuple[Any, dict[str, Any]]:
    """A schema as fastavro is to have it, and what it can name.

    Args:
        parse: fastavro's `parse_schema`.
        texts: The schemas that it uses, parsed from JSON, each after those that it uses itself.
        schema: The schema, parsed from JSON.
        written: Values were written by it, and are wanted in the shape of another one.
    """
    named: dict[str, Any] = {}
    for each in texts:
        parse(_with_logical_types(each, written), named)
    around = {
        "type": "record",
        "name": _AROUND,
        "fields": [{"name": VALUE, "type": _with_logical_types(schema, written)}],
    }
    found = parse(around, named)
    for each in named.values():
        for field in each.get("fields", ()):
            field["type"] = _by_names(field["type"])
    if not written:
        _complete_defaults(named)
    return found, named


def install_readers(readers: dict[str, Any]) -> None:
    """Add those of our logical types to fastavro's (`fastavro.read.LOGICAL_READERS`), which are for the process."""
    for kind in ("int", "long"):
        for name in _TIMES:
            readers[f"{kind}-{_OURS}{name}"] = _read_time
    for kind in ("bytes", "fixed"):
        readers[f"{kind}-{_OURS}{DECIMAL}"] = _read_decimal


def _with_logical_types(schema: Any, written: bool) -> Any:
    """The schema with its logical types as above; one that says nothing there is none (Avro's specification)."""
    if isinstance(schema, list):
        return [_with_logical_types(each, written) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_logical_types(value, written) if name in _NESTED else value for name, value in schema.items()}
    if "logicalType" not in found:
        return found
    name = found.pop("logicalType")
    if name == DECIMAL:
        if _is_decimal(found):
            found["logicalType"] = _OURS + DECIMAL if written else DECIMAL
    elif written and isinstance(name, str) and name in _TIMES:
        found["logicalType"] = _OURS + name
    else:
        found[LOGICAL_TYPE] = name
    return found


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    kind, digits, scale = schema.get("type"), schema.get("precision"), schema.get("scale", 0)
    if kind not in {"bytes", "fixed"} or type(digits) is not int or type(scale) is not int:
        return False
    if kind == "fixed":
        size = schema.get("size")
        if type(size) is not int or digits > math.floor(math.log10(2) * (8 * size - 1)):
            return False
    return digits > 0 and 0 <= scale <= digits


def _read_time(data: Any, writer: Mapping[str, Any], reader: Any) -> Any:
    wanted = reader.get(LOGICAL_TYPE) if isinstance(reader, dict) else None
    written = writer["logicalType"].removeprefix(_OURS)
    if wanted == written or wanted not in _TIMES:
        return data
    (what, per_second), (wanted_what, wanted_per_second) = _TIMES[written], _TIMES[wanted]
    if what != wanted_what:
        raise ValueError(f"{written} is {what}, and {wanted} is {wanted_what}")
    return data * wanted_per_second // per_second


def _read_decimal(data: bytes, writer: Mapping[str, Any], reader: Any) -> Any:
    is_one = isinstance(reader, dict) and reader.get("logicalType") == DECIMAL
    return _decimal(data, writer) if is_one else data


def _decimal(data: bytes, schema: Mapping[str, Any]) -> Decimal:
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0), _EXACT)


def _by_names(schema: Any) -> Any:
    """The type with named ones by their names alone, also within it (in place)."""
    if isinstance(schema, list):
        schema[:] = [_by_names(each) for each in schema]
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            return schema["name"]
        for inner in ("items", "values"):
            if inner in schema:
                schema[inner] = _by_names(schema[inner])
    return schema


def _complete_defaults(named: Mapping[str, Any]) -> None:
    for each in named.values():
        for field in each.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """The value that a default in JSON stands for. Raises `ValueError` where it is none."""
    if isinstance(schema, list):
        for each in schema:
            try:
                return _default(each, value, named)
            except ValueError:
                continue
        raise ValueError(f"{value!r} is not a default of the union {schema}")
    if isinstance(schema, str) and schema not in _PRIMITIVE:
        return _default(named[schema], value, named)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(value, bytes | Decimal):  # of a record that was completed before
        return value
    if not isinstance(value, _IN_JSON[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(f"{value!r} is not a default of the type {kind}")
    if kind in {"bytes", "fixed"}:
        data = value.encode("latin-1")
        is_decimal = isinstance(schema, dict) and schema.get("logicalType") == DECIMAL
        return _decimal(data, schema) if is_decimal else data
    if kind == "array":
        return [_default(schema["items"], each, named) for each in value]
    if kind == "map":
        return {name: _default(schema["values"], each, named) for name, each in value.items()}
    if kind in {"record", "error"}:
        return {field["name"]: _default_of_field(field, value, named) for field in schema["fields"]}
    return value


def _default_of_field(field: Mapping[str, Any], value: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    name = field["name"]
    if name not in value and "default" not in field:
        raise ValueError(f"a default of a record has no {name}")
    return _default(field["type"], value[name] if name in value else field["default"], named)


_IN_JSON: Final[Mapping[str, Any]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "string": str,
    "enum": str,
    "fixed": str,
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
}
