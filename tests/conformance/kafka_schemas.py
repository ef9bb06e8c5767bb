"""Kafka's own message schemas: the JSON files inside the kafka-clients jar, flattened one version at a time."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclient.protocol.versions import Versions


@dataclass(frozen=True)
class Leaf:
    """One field of one version, as wide as a comparison needs it.

    `path` is the way from the message, `[]` marking arrays; `kind` the JSON's type, "struct" for nested ones.
    """

    path: str
    kind: str
    nullable: bool
    tag: int | None
    default: str
    ignorable: bool


class KafkaSchema:
    """One JSON file."""

    def __init__(self, json_: dict[str, Any]) -> None:
        self.name: str = json_["name"]
        self.type: str = json_["type"]
        self.api_key: int | None = json_.get("apiKey")
        self.listeners: list[str] = json_.get("listeners") or []
        self.versions = Versions.parse(json_["validVersions"])
        """The versions; `load_schemas` takes off a highest one that is not stable."""
        self.latest_unstable: bool = json_.get("latestVersionUnstable", False)
        self.flexible = Versions.parse(json_.get("flexibleVersions", "none"))
        self._fields = json_.get("fields", [])
        self._common = {item["name"]: item["fields"] for item in json_.get("commonStructs", [])}

    def leaves(self, version: int) -> list[Leaf]:
        """All fields of a version in their order."""
        return self._flatten(self._fields, version, "")

    def _flatten(self, fields: list[dict[str, Any]], version: int, prefix: str) -> list[Leaf]:
        found = []
        for item in fields:
            if version not in Versions.parse(item["versions"]):
                continue
            dimension = "[]" if item["type"].startswith("[]") else ""
            kind = item["type"].removeprefix("[]")
            inner = item.get("fields", self._common.get(kind))
            path = f"{prefix}{snake_case(item['name'])}{dimension}"
            found.append(
                Leaf(
                    path=path,
                    kind=kind if inner is None else "struct",
                    nullable=version in Versions.parse(item.get("nullableVersions", "none")),
                    tag=item["tag"] if version in Versions.parse(item.get("taggedVersions", "none")) else None,
                    default=_default(item, kind, inner is not None),
                    ignorable=str(item.get("ignorable", False)).lower() == "true",
                )
            )
            if inner is not None:
                found += self._flatten(inner, version, f"{path}.")
        return found


def _default(item: dict[str, Any], kind: str, is_struct: bool) -> str:
    text = str(item.get("default", "")).strip()
    if text == "null":
        return "null"
    if item["type"].startswith("[]") or is_struct:
        return ""
    if kind.startswith(("int", "uint")):
        return str(int(text or "0", 0))
    if kind == "float64":
        return str(float(text or "0"))
    if kind == "bool":
        return (text or "false").lower()
    return text


def snake_case(name: str) -> str:
    """Kafka's field name as kclient spells it: "TopicId" is "topic_id"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def load_schemas(jar: Path) -> dict[str, KafkaSchema]:
    """Every schema in a kafka-clients jar by its name."""
    schemas = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = re.sub(r"(?m)^\s*//.*$|(?<=[\s,{\[])//.*$", "", archive.read(name).decode())
                schema = KafkaSchema(json.loads(text))
                schemas[schema.name] = schema
    for schema in schemas.values():
        # the mark stands at the request and holds for the response too
        if schemas.get(schema.name.replace("Response", "Request"), schema).latest_unstable:
            schema.versions = Versions(schema.versions.low, schema.versions.high - 1)
    return schemas
