"""Values in JSON with a schema: columns by what the schema says.

JSON Schema says what is allowed, not what is there. So a property becomes a column where its schema names one type
(beside null); what may be several things, or anything, becomes the text of its JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kclient.arguments import INT64_MAX, shown
from kclient.errors import MissingExtraError, SerializationError
from kclient.schema_registry.framing import split

if TYPE_CHECKING:
    import pyarrow

    from kclient.schema_registry.client import SchemaRegistry
    from kclient.schema_registry.schema import RegisteredSchema

__all__ = ["JsonReader"]

_DEEPEST: Final = 64
"""Objects within one another: a schema that holds itself has no end."""

Fit = Callable[[Any], Any]
"""Makes of what was parsed what the column holds; raises `SerializationError`."""


class JsonReader:
    """Reads values into the shape of a schema.

    Args:
        registry: Has the schemas that it refers to.
        schema: What values are to look like. A value's own schema is not looked at: JSON tells what it is.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SerializationError: The schema is none.
    """

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema) -> None:
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtraError("pyarrow", "schema-registry", "JSON by schemas") from error
        try:
            documents = {used.name: json.loads(found.text) for used, found in registry.referenced(schema)}
            text = json.loads(schema.text)
        except ValueError as error:
            raise SerializationError(f"the schema {schema.schema_id} is no JSON: {error}") from error
        self.data_type: pyarrow.DataType
        self.data_type, self._fit = _Shapes(documents).of(text, text, 0)

    def read(self, data: bytes) -> Any:
        """A value. Raises `SerializationError` if it is no JSON, or does not fit."""
        payload = split(data).payload
        try:
            value = json.loads(bytes(payload))
        except ValueError as error:
            raise SerializationError(f"the value is no JSON: {error}") from error
        return self._fit(value)


class _Shapes:
    """The Arrow types of JSON schemas, and what fits values into them."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def of(self, schema: Any, document: Any, depth: int) -> tuple[pyarrow.DataType, Fit]:
        import pyarrow

        if depth > _DEEPEST:
            raise SerializationError("the JSON schema holds itself, or is too deep: no column can be that deep")
        schema, document = self._followed(schema, document)
        kinds, schema, document = self._kinds(schema, document)
        if kinds == {"object"} and isinstance(schema.get("properties"), dict) and schema["properties"]:
            return self._object(schema["properties"], document, depth)
        if kinds == {"object"} and isinstance(schema.get("additionalProperties"), dict):
            inner, fit = self.of(schema["additionalProperties"], document, depth + 1)
            return pyarrow.map_(pyarrow.string(), inner), _optional(_mapped(fit))
        if kinds == {"array"} and isinstance(schema.get("items"), dict):
            inner, fit = self.of(schema["items"], document, depth + 1)
            return pyarrow.list_(inner), _optional(_listed(fit))
        if kinds == {"string"}:
            return pyarrow.string(), _optional(_checked(str, "a string"))
        if kinds == {"boolean"}:
            return pyarrow.bool_(), _optional(_checked(bool, "true or false"))
        if kinds == {"integer"}:
            return pyarrow.int64(), _optional(_whole)
        if kinds in ({"number"}, {"integer", "number"}):
            return pyarrow.float64(), _optional(_number)
        return pyarrow.string(), _optional(_text)

    def _object(self, properties: Mapping[str, Any], document: Any, depth: int) -> tuple[pyarrow.DataType, Fit]:
        import pyarrow

        inner = {name: self.of(each, document, depth + 1) for name, each in properties.items()}
        data_type = pyarrow.struct([pyarrow.field(name, kind) for name, (kind, _) in inner.items()])
        fits = [(name, fit) for name, (_, fit) in inner.items()]

        def fit_all(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _unfit(value, "an object")
            return {name: fit(value.get(name)) for name, fit in fits}

        return data_type, _optional(fit_all)

    def _followed(self, schema: Any, document: Any) -> tuple[Any, Any]:
        """What a reference names, and the document that it is in."""
        for _ in range(_DEEPEST):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str):
                return (schema if isinstance(schema, dict) else {}), document
            name, _, pointer = reference.partition("#")
            if name:
                if name not in self._documents:
                    raise SerializationError(
                        f"the JSON schema refers to {shown(name)}, which is not registered with it"
                    )
                document = self._documents[name]
            schema = document
            for step in filter(None, pointer.split("/")):
                key = unquote(step).replace("~1", "/").replace("~0", "~")
                if not isinstance(schema, dict) or key not in schema:
                    raise SerializationError(f"the JSON schema refers to {shown(reference)}, which it does not have")
                schema = schema[key]
        raise SerializationError("the JSON schema refers to itself")

    def _kinds(self, schema: Any, document: Any) -> tuple[set[str], Any, Any]:
        """Which types a value may have beside null, as far as the schema says; of one of several, that one."""
        for choice in ("oneOf", "anyOf"):
            members = schema.get(choice)
            if isinstance(members, list):
                followed = [self._followed(each, document) for each in members]
                others = [each for each in followed if each[0].get("type") != "null"]
                if len(others) == 1:
                    return self._kinds(*others[0])
                return set(), schema, document
        kind = schema.get("type")
        if kind is None and "properties" in schema:
            kind = "object"
        if kind is None and isinstance(schema.get("enum"), list):
            return ({"string"} if all(isinstance(each, str) for each in schema["enum"]) else set()), schema, document
        kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
        return kinds - {"null"}, schema, document


def _optional(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _unfit(value: Any, wanted: str) -> SerializationError:
    return SerializationError(f"the schema says {wanted}, and the value has {shown(value)} there")


def _checked(kind: type, wanted: str) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _unfit(value, wanted)
        return value

    return fit


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise _unfit(value, "an integer of 64 bits")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _unfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _mapped(fit: Fit) -> Fit:
    def fit_each(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unfit(value, "an object")
        return [(name, fit(each)) for name, each in value.items()]

    return fit_each


def _listed(fit: Fit) -> Fit:
    def fit_each(value: Any) -> Any:
        if not isinstance(value, list):
            raise _unfit(value, "an array")
        return [fit(each) for each in value]

    return fit_each
