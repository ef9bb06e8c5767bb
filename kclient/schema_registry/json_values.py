"""Values in JSON with a schema: columns by what the schema says.

JSON Schema says what is allowed, not what is there. So a property becomes a column where its schema names one type
(beside null); what may be several things, or anything, becomes the text of its JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kclient.arguments import INT64_MAX, shown
from kclient.errors import MissingExtraError, SerializationError
from kclient.schema_registry.framing import split
from kclient.schema_registry.json_documents import Document, Documents

if TYPE_CHECKING:
    import pyarrow

    from kclient.schema_registry.client import SchemaRegistry
    from kclient.schema_registry.schema import RegisteredSchema

__all__ = ["JsonReader"]

_DEEPEST: Final = 64
"""Objects within one another: a schema that holds itself has no end."""

_Fit = Callable[[Any], Any]
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
            known = Documents(text, documents)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"the schema {schema.schema_id} is not JSON: {error}") from error
        self.data_type: pyarrow.DataType
        self.data_type, self._fit = _Shapes(known).of([(text, known.main)], 0)

    def read(self, data: bytes) -> Any:
        """A value. Raises `SerializationError` if it is not JSON, or does not fit."""
        payload = split(data).payload
        try:
            value = json.loads(bytes(payload))
            return self._fit(value)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"the value is not JSON: {error}") from error


Part = tuple[Any, Document]
"""A schema, and the document that its references start from."""
_SHAPING: Final = frozenset(
    {
        "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "items", "oneOf", "patternProperties",
        "prefixItems", "properties", "type",
    }
)  # fmt: skip
"""What says which type a value has; all else says only which values of it are allowed."""
_MOST_PARTS: Final = 1000


class _Shapes:
    """The Arrow types of JSON schemas, and what fits values into them."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def of(self, parts: list[Part], depth: int) -> tuple[pyarrow.DataType, _Fit]:
        """Of a value that all the parts speak of."""
        import pyarrow

        if depth > _DEEPEST:
            raise SerializationError("the JSON schema holds itself, or is too deep: no column can be that deep")
        found: list[Part] = []
        clear = True
        for schema, document in parts:
            clear &= self._gather(schema, document, found, 0)
        kinds = _kinds([schema for schema, _ in found]) if clear else set()
        if kinds == {"object"}:
            shaped = self._object(found, depth)
        elif kinds == {"array"}:
            shaped = self._array(found, depth)
        else:
            shaped = None
        if shaped is not None:
            return shaped
        if kinds == {"string"}:
            return pyarrow.string(), _optional(_checked(str, "a string"))
        if kinds == {"boolean"}:
            return pyarrow.bool_(), _optional(_checked(bool, "true or false"))
        if kinds == {"integer"}:
            return pyarrow.int64(), _optional(_whole)
        if kinds == {"integer", "number"}:
            return pyarrow.float64(), _optional(_number)
        return pyarrow.string(), _optional(_text)

    def _object(self, found: list[Part], depth: int) -> tuple[pyarrow.DataType, _Fit] | None:
        import pyarrow

        properties: dict[str, list[Part]] = {}
        for schema, document in found:
            named = schema.get("properties")
            for name, each in named.items() if isinstance(named, dict) else ():
                properties.setdefault(name, []).append((each, document))
        if properties:
            return self._struct(properties, depth)
        others = [(schema.get("additionalProperties"), document) for schema, document in found]
        others = [each for each in others if isinstance(each[0], dict)]
        if others and not any(schema.get("patternProperties") for schema, _ in found):
            inner, fit = self.of(others, depth + 1)
            return pyarrow.map_(pyarrow.string(), inner), _optional(_mapped(fit))
        return None

    def _struct(self, properties: Mapping[str, list[Part]], depth: int) -> tuple[pyarrow.DataType, _Fit]:
        import pyarrow

        inner = {name: self.of(each, depth + 1) for name, each in properties.items()}
        data_type = pyarrow.struct([pyarrow.field(name, kind) for name, (kind, _) in inner.items()])
        fits = [(name, fit) for name, (_, fit) in inner.items()]

        def fit_all(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _unfit(value, "an object")
            return {name: fit(value.get(name)) for name, fit in fits}

        return data_type, _optional(fit_all)

    def _array(self, found: list[Part], depth: int) -> tuple[pyarrow.DataType, _Fit] | None:
        import pyarrow

        if any(schema.get("prefixItems") or isinstance(schema.get("items"), list) for schema, _ in found):
            return None  # a tuple: each place has a type of its own
        items = [(schema.get("items"), document) for schema, document in found]
        items = [each for each in items if isinstance(each[0], dict)]
        if not items:
            return None
        inner, fit = self.of(items, depth + 1)
        return pyarrow.list_(inner), _optional(_listed(fit))

    def _gather(self, schema: Any, document: Document, found: list[Part], depth: int) -> bool:
        """All that is said of a value: by the schema, by what it refers to, by `allOf`, and by the one thing beside
        null that `oneOf` or `anyOf` leave. Whether they leave no more than one."""
        if depth > _DEEPEST or len(found) > _MOST_PARTS:
            raise SerializationError("the JSON schema refers to itself")
        schema, document = self._documents.followed(schema, document)
        found.append((schema, document))
        clear = True
        every = schema.get("allOf")
        for each in every if isinstance(every, list) else ():
            clear &= self._gather(each, document, found, depth + 1)
        for choice in ("oneOf", "anyOf"):
            members = schema.get(choice)
            if not isinstance(members, list):
                continue
            others = [self._documents.followed(each, document) for each in members]
            others = [each for each in others if not _is_null(each[0])]
            if not any(_SHAPING & each.keys() for each, _ in others):
                continue
            clear &= len(others) == 1 and self._gather(*others[0], found, depth + 1)
        return clear


def _kinds(schemas: list[dict[str, Any]]) -> set[str]:
    """Which types a value may have beside null, as far as schemas say that all hold."""
    kinds: set[str] | None = None
    for schema in schemas:
        told = _told(schema)
        if told is None:
            continue
        if "number" in told:
            told = told | {"integer"}
        kinds = told if kinds is None else kinds & told
    return kinds or set()


def _told(schema: Mapping[str, Any]) -> set[str] | None:
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind} - {"null"}
    if isinstance(kind, list):
        return {each if isinstance(each, str) else "" for each in kind} - {"null"}
    if "properties" in schema:
        return {"object"}
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list) and allowed and all(isinstance(each, str | None) for each in allowed):
        return {"string"}
    return None


def _is_null(schema: Mapping[str, Any]) -> bool:
    return (
        schema.get("type") in ("null", ["null"])
        or ("const" in schema and schema["const"] is None)
        or schema.get("enum") == [None]
    )


def _optional(fit: _Fit) -> _Fit:
    return lambda value: None if value is None else fit(value)


def _unfit(value: Any, wanted: str) -> SerializationError:
    return SerializationError(f"the schema says {wanted}, and the value has {shown(value)} there")


def _checked(kind: type, wanted: str) -> _Fit:
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


def _mapped(fit: _Fit) -> _Fit:
    def fit_each(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unfit(value, "an object")
        return [(name, fit(each)) for name, each in value.items()]

    return fit_each


def _listed(fit: _Fit) -> _Fit:
    def fit_each(value: Any) -> Any:
        if not isinstance(value, list):
            raise _unfit(value, "an array")
        return [fit(each) for each in value]

    return fit_each
