"""The serializers that Kafka's Java client brings, byte for byte: big-endian numbers, UTF-8 text."""

from __future__ import annotations

import struct
from typing import Any, ClassVar
from uuid import UUID

from kclient.arguments import shown
from kclient.errors import ConfigError, SerializationError
from kclient.types import Buffer, Headers

__all__ = [
    "BooleanDeserializer",
    "BooleanSerializer",
    "BytesDeserializer",
    "BytesSerializer",
    "DoubleDeserializer",
    "DoubleSerializer",
    "FloatDeserializer",
    "FloatSerializer",
    "IntegerDeserializer",
    "IntegerSerializer",
    "LongDeserializer",
    "LongSerializer",
    "ShortDeserializer",
    "ShortSerializer",
    "StringDeserializer",
    "StringSerializer",
    "UUIDDeserializer",
    "UUIDSerializer",
    "VoidDeserializer",
    "VoidSerializer",
]


class BytesSerializer:
    """Bytes as they are (`ByteArraySerializer`); any buffer will do."""

    def serialize(self, topic: str, value: Buffer | None, headers: Headers = ()) -> Buffer | None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        given: object = value
        if value is None or isinstance(given, bytes | bytearray | memoryview):
            return value
        hint = "encode it, or set a serializer such as value_serializer='string'"
        raise SerializationError(f"{topic}: expected bytes, not {type(value).__name__}: {hint}")


class BytesDeserializer:
    """Bytes as they are (`ByteArrayDeserializer`)."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> bytes | None:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None or isinstance(data, bytes):
            return data
        given: object = data
        if not isinstance(given, bytearray | memoryview):
            raise _no_bytes(topic, data)
        return bytes(data)


class StringSerializer:
    """Text, in UTF-8 unless told otherwise.

    Args:
        encoding: A Python codec.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = _codec(encoding)

    def serialize(self, topic: str, value: str | None, headers: Headers = ()) -> bytes | None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerializationError(f"{topic}: expected text, not {type(value).__name__}")
        try:
            return value.encode(self.encoding)
        except UnicodeError as error:
            raise SerializationError(f"{topic}: the text cannot be encoded: {error}") from error


class StringDeserializer:
    """Text, in UTF-8 unless told otherwise.

    Args:
        encoding: A Python codec.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = _codec(encoding)

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> str | None:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None:
            return None
        try:
            return str(data, self.encoding)
        except UnicodeError as error:
            raise SerializationError(f"{topic}: the bytes are not text in {self.encoding}: {error}") from error
        except TypeError:
            raise _no_bytes(topic, data) from None


class _Packed:
    """One value of a fixed size."""

    _struct: ClassVar[struct.Struct]
    _what: ClassVar[str]
    _types: ClassVar[tuple[type, ...]] = (int,)


class _PackedSerializer(_Packed):
    def serialize(self, topic: str, value: Any, headers: Headers = ()) -> bytes | None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        if value is None:
            return None
        if not isinstance(value, self._types) or (isinstance(value, bool) and bool not in self._types):
            raise SerializationError(f"{topic}: expected {self._what}, not {type(value).__name__}")
        try:
            return self._struct.pack(value)
        except (struct.error, OverflowError) as error:
            raise SerializationError(f"{topic}: {shown(value)} does not fit into {self._what}: {error}") from error


class _PackedDeserializer(_Packed):
    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> Any:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None:
            return None
        try:
            if len(data) == self._struct.size:
                return self._struct.unpack(data)[0]
            size = len(data)
        except TypeError:
            raise _no_bytes(topic, data) from None
        raise SerializationError(f"{topic}: {self._what} has {self._struct.size} bytes, these are {size}")


class ShortSerializer(_PackedSerializer):
    """Whole numbers of 2 bytes, big-endian, signed."""

    _struct = struct.Struct(">h")
    _what = "a whole number of 2 bytes"


class ShortDeserializer(_PackedDeserializer):
    """Whole numbers of 2 bytes, big-endian, signed."""

    _struct = struct.Struct(">h")
    _what = "a whole number of 2 bytes"


class IntegerSerializer(_PackedSerializer):
    """Whole numbers of 4 bytes, big-endian, signed."""

    _struct = struct.Struct(">i")
    _what = "a whole number of 4 bytes"


class IntegerDeserializer(_PackedDeserializer):
    """Whole numbers of 4 bytes, big-endian, signed."""

    _struct = struct.Struct(">i")
    _what = "a whole number of 4 bytes"


class LongSerializer(_PackedSerializer):
    """Whole numbers of 8 bytes, big-endian, signed."""

    _struct = struct.Struct(">q")
    _what = "a whole number of 8 bytes"


class LongDeserializer(_PackedDeserializer):
    """Whole numbers of 8 bytes, big-endian, signed."""

    _struct = struct.Struct(">q")
    _what = "a whole number of 8 bytes"


class FloatSerializer(_PackedSerializer):
    """Numbers as 4 bytes of IEEE 754, big-endian."""

    _struct = struct.Struct(">f")
    _what = "a number of 4 bytes"
    _types = (float, int)


class FloatDeserializer(_PackedDeserializer):
    """Numbers as 4 bytes of IEEE 754, big-endian."""

    _struct = struct.Struct(">f")
    _what = "a number of 4 bytes"


class DoubleSerializer(_PackedSerializer):
    """Numbers as 8 bytes of IEEE 754, big-endian."""

    _struct = struct.Struct(">d")
    _what = "a number of 8 bytes"
    _types = (float, int)


class DoubleDeserializer(_PackedDeserializer):
    """Numbers as 8 bytes of IEEE 754, big-endian."""

    _struct = struct.Struct(">d")
    _what = "a number of 8 bytes"


class BooleanSerializer(_PackedSerializer):
    """True and false as a byte 1 or 0."""

    _struct = struct.Struct(">?")
    _what = "true or false in one byte"
    _types = (bool,)


class BooleanDeserializer:
    """True and false as a byte 1 or 0; other bytes are an error, as in Java."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> bool | None:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None:
            return None
        if data == b"\x00":
            return False
        if data == b"\x01":
            return True
        given: object = data
        if not isinstance(given, bytes | bytearray | memoryview):
            raise _no_bytes(topic, data)
        raise SerializationError(f"{topic}: expected one byte 0 or 1, not {bytes(data[:8])!r}")


class UUIDSerializer:
    """UUIDs as text of 36 characters."""

    def serialize(self, topic: str, value: UUID | None, headers: Headers = ()) -> bytes | None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        if value is None:
            return None
        if not isinstance(value, UUID):
            raise SerializationError(f"{topic}: expected a UUID, not {type(value).__name__}")
        return str(value).encode()


class UUIDDeserializer:
    """UUIDs as text of 36 characters."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> UUID | None:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is None:
            return None
        try:
            return UUID(str(data, "utf-8"))
        except ValueError as error:
            raise SerializationError(f"{topic}: the bytes are not a UUID: {error}") from error
        except TypeError:
            raise _no_bytes(topic, data) from None


class VoidSerializer:
    """Nothing but nulls."""

    def serialize(self, topic: str, value: None, headers: Headers = ()) -> None:
        """The bytes of a value; None stays None. Raises `SerializationError` if it is of another kind."""
        if value is not None:
            raise SerializationError(f"{topic}: expected None, not {type(value).__name__}")


class VoidDeserializer:
    """Nothing but nulls."""

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> None:
        """The value that the bytes hold; None stays None. Raises `SerializationError` if they hold no such value."""
        if data is not None:
            given: object = data
            told = f"{len(data)} bytes" if isinstance(given, bytes | bytearray | memoryview) else type(data).__name__
            raise SerializationError(f"{topic}: expected a null, not {told}")


def _codec(encoding: str) -> str:
    """The name of a codec of texts that Python has.

    Raises:
        ConfigError: There is none of that name.
    """
    try:
        "".encode(encoding)
    except (LookupError, TypeError, ValueError):
        told = "an encoding of text is the name of a Python codec such as 'utf-8'"
        raise ConfigError(f"{told}, not {shown(encoding)}") from None
    return encoding


def _no_bytes(topic: str, data: object) -> SerializationError:
    return SerializationError(f"{topic}: expected bytes, not {type(data).__name__}")
