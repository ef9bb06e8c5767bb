"""What references in JSON schemas name: `$ref`, over the documents that are registered together.

A document is known by the name that it is referred to by, and by its own `$id`. A reference is taken as it stands
first, and then relative to the `$id` around it (RFC 3986), as JSON Schema says. Parts that have an `$id` or an
`$anchor` of their own are found by it (drafts 4 and 6, too: `id`, and `$id` with a `#`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from kclient.arguments import shown
from kclient.errors import SerializationError

__all__ = ["Document", "Documents"]

_MOST_STEPS: Final = 64
"""From reference to reference."""
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})
"""What has values in it, and no schemas."""


@dataclass(frozen=True, slots=True)
class Document:
    """A schema that references start from: a whole one, or a part with an `$id`."""

    root: Any
    base: str


class Documents:
    """A schema, and those that it uses.

    Args:
        root: The schema, parsed.
        used: The others, parsed, by the names that they are referred to by.
    """

    def __init__(self, root: Any, used: Mapping[str, Any]) -> None:
        self._by_name: dict[str, Document] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._own: dict[int, Document] = {}
        """By the identity of the part that is one."""
        self.main: Document = self._add(root, "")
        for name, each in used.items():
            document = self._add(each, name)
            self._by_name[name] = document
            self._by_name.setdefault(_joined(self.main.base, name), document)

    def followed(self, schema: Any, document: Document) -> tuple[dict[str, Any], Document]:
        """What a schema's reference names, and the document that it is in; else the schema itself.

        Raises:
            SerializationError: There is no such thing, or the references go round in circles.
        """
        for _ in range(_MOST_STEPS):
            document = self._own.get(id(schema), document)
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str):
                return (schema if isinstance(schema, dict) else {}), document
            document = self._named(reference, document)
            schema, document = self._within(reference, document)
        raise SerializationError("the JSON schema refers to itself")

    def _named(self, reference: str, document: Document) -> Document:
        name = urldefrag(reference).url
        if not name:
            return document
        for known in (name, _joined(document.base, name)):
            if known in self._by_name:
                return self._by_name[known]
        raise SerializationError(f"the JSON schema refers to {shown(name)}, which is not registered with it")

    def _within(self, reference: str, document: Document) -> tuple[Any, Document]:
        fragment = unquote(reference.partition("#")[2])
        if not fragment:
            return document.root, document
        if not fragment.startswith("/"):
            if (document.base, fragment) not in self._anchors:
                raise _missing(reference)
            return self._anchors[document.base, fragment], document
        schema = document.root
        for step in fragment[1:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                raise _missing(reference)
            document = self._own.get(id(schema), document)
        return schema, document

    def _add(self, root: Any, name: str) -> Document:
        found = Document(root, _joined(name, _id(root)))
        self._own[id(root)] = found
        if found.base:
            self._by_name.setdefault(found.base, found)
        self._look_through(root, found)
        return found

    def _look_through(self, schema: Any, document: Document) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._look_through(each, document)
        if not isinstance(schema, dict):
            return
        own = _id(schema)
        if own and id(schema) not in self._own:
            document = Document(schema, _joined(document.base, own))
            self._own[id(schema)] = document
            self._by_name.setdefault(document.base, document)
        for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
            anchor = schema.get(key)
            if isinstance(anchor, str) and (key.endswith("nchor") or anchor.startswith("#")):
                self._anchors.setdefault((document.base, anchor.removeprefix("#")), schema)
        for key, each in schema.items():
            if key not in _VALUES:
                self._look_through(each, document)


def _id(schema: Any) -> str:
    if isinstance(schema, dict):
        for key in ("$id", "id"):
            found = schema.get(key)
            if isinstance(found, str) and not found.startswith("#"):
                return found
    return ""


def _joined(base: str, name: str) -> str:
    try:
        return urldefrag(urljoin(base, name)).url
    except ValueError:  # an address that is none
        return name


def _missing(reference: str) -> SerializationError:
    return SerializationError(f"the JSON schema refers to {shown(reference)}, which it does not have")
