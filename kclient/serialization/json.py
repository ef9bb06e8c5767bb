"""JSON, compact and in UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kclient.errors import SerializationError
from kclient.types import Buffer, Headers

__all__ = ["JsonDeserializer", "JsonSerializer"]


class JsonSerializer:
    """Values as JSON; None is a null record value (a tombstone), not the JSON text `null`.

    Args:
        default: Turns other objects into what JSON knows, as in `json.dumps`.
        sort_keys: Whether equal objects always give equal bytes (keys of records need that).
    """

    def __init__(self, *, default: Callable[[Any], Any] | None = None, sort_keys: bool = False) -> None:
        self._encode = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=default, sort_keys=sort_keys, allow_nan=False
        ).encode

    def serialize(self, topic: str, value: Any, headers: Headers = ()) -> bytes | None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        if value is None:
            return None
        try:
            return self._encode(value).encode()
        except (TypeError, ValueError) as error:
            raise SerializationError(f"{topic}: the value cannot be written as JSON: {error}") from error


class JsonDeserializer:
    """Values from JSON; a null record value is None."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> Any:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None:
            return None
        try:
            return json.loads(str(data, "utf-8"))
        except ValueError as error:
            raise SerializationError(f"{topic}: the bytes are not JSON: {error}") from error
        except TypeError:
            raise SerializationError(f"{topic}: expected bytes, not {type(data).__name__}") from None
