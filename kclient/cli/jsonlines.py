"""Records as JSON lines: what `consume` writes and `produce` reads, without loss.

A line is an object with `key`, `value`, `headers`, `timestamp` and `partition` (and, written by `consume`, `topic` and
`offset`, which `produce` leaves aside). Bytes that are UTF-8 stand as a string, others as `{"base64": "…"}`; `null` is
the absent key or value. Headers are a list of pairs, in their order.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple, Protocol

_EXAMPLE = '{"key": "a", "value": "b"}'
_KNOWN = frozenset({"key", "value", "headers", "timestamp", "partition", "topic", "offset", "timestamp_type"})


class LineError(Exception):
    """A line that is not a record; the text says why."""


class Line(NamedTuple):
    """What a line says of a record."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int | None
    partition: int | None


class Record(Protocol):
    """Of a consumed record what is written."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> Any: ...


def dump(record: Record) -> str:
    """A record as a line, without its end."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _show(record.key),
        "value": _show(record.value),
    }
    if record.headers:
        fields["headers"] = [[name, _show(value)] for name, value in record.headers]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def parse(text: str | bytes) -> Line:
    """Read a line.

    Raises:
        LineError: If it is not a record.
    """
    try:
        fields = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise LineError(f"is not JSON ({error}): a line is {_EXAMPLE}") from None
    if not isinstance(fields, dict):
        raise LineError(f"is not a JSON object such as {_EXAMPLE}")
    unknown = sorted(fields.keys() - _KNOWN)
    if unknown:
        raise LineError(f"has the unknown field {unknown[0]!r}; known are key, value, headers, timestamp, partition")
    timestamp = _integer(fields, "timestamp", least=-1, bits=63)
    return Line(
        _bytes(fields.get("key"), "key"),
        _bytes(fields.get("value"), "value"),
        _headers(fields.get("headers")),
        None if timestamp == -1 else timestamp,  # a record that was never stamped
        _integer(fields, "partition", least=0, bits=31),
    )


def _show(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _bytes(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise LineError(f"has a {name} with half a surrogate pair") from None
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise LineError(f"has a {name} that is not base64") from None
    raise LineError(f'has a {name} that is neither a string, nor null, nor {{"base64": "…"}}')


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    if value is None:
        return []
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise LineError("has headers that are not a list of pairs")
    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise LineError("has a header that is not a pair of a name and a value")
        headers.append((pair[0], _bytes(pair[1], f"header {pair[0]!r}")))
    return headers


def _integer(fields: dict[str, Any], name: str, *, least: int, bits: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << bits:
        raise LineError(f"has a {name} that is not a valid number")
    return value
