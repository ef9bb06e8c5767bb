"""The types that fields of Kafka's messages have.

Each type knows its bytes. `write` and `read` here are the plain, interpreted way, which generic structs use (see
`schema`) and which finds the field to blame when a message cannot be encoded; messages go through compiled codecs
(see `codec`), and the tests compare the two.

A type is written in two ways: with fixed-width lengths, or in the "flexible" versions of a message with varint
lengths (KIP-482), which Kafka calls compact.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any, Generic, TypeVar

from kclient.errors import ProtocolError
from kclient.protocol.errors import shortened
from kclient.protocol.primitives import (
    MAX_STRING,
    buffer_error,
    cut_off,
    length_error,
    null_error,
    read_uvarint,
    read_varint,
    uuid_error,
    write_uvarint,
    write_varint,
)
from kclient.types import Buffer

T = TypeVar("T")

ZERO_UUID = bytes(16)
"""The UUID that stands for "none", for instance where a topic has no id."""


class Type(Generic[T]):
    """A type of the Kafka protocol.

    Attributes:
        name: Its name, as in the protocol guide.
        default: What a field of this type has when its declaration names no default.
    """

    def __init__(self, name: str, default: T) -> None:
        self.name = name
        self.default = default

    def __repr__(self) -> str:
        return self.name

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        """Append a value; raises ValueError or TypeError if it is not one of this type."""
        raise NotImplementedError

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[T | None, int]:
        """Read a value; gives it and the position behind it."""
        raise NotImplementedError

    def min_size(self, flexible: bool) -> int:
        """The least number of bytes that a value takes."""
        return 1


class FixedType(Type[T]):
    """A type of fixed width.

    Attributes:
        code: Its letter in `struct` formats.
        size: Its width in bytes.
    """

    def __init__(self, name: str, code: str, default: T) -> None:
        super().__init__(name, default)
        self.code = code
        self._struct = Struct(">" + code)
        self.size: int = self._struct.size

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        if self.code == "?" and not isinstance(value, bool):
            raise TypeError(f"expected a bool, got {shortened(value)}")
        try:
            data = self._struct.pack(value)
        except (struct.error, OverflowError, TypeError):
            raise self._misfit(value) from None
        out += data

    def _misfit(self, value: object) -> Exception:
        if not isinstance(value, int):
            return TypeError(f"expected {'a float' if self.code == 'd' else 'an int'}, got {shortened(value)}")
        if self.code == "d":
            return ValueError(f"{shortened(value)} does not fit into {self.name}")
        bits = self.size * 8
        low, high = (0, 2**bits - 1) if self.code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return ValueError(f"{shortened(value)} does not fit into {self.name} ({low} to {high})")

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[T | None, int]:
        if position + self.size > len(buffer):
            raise cut_off(self.name, self.size, buffer, position)
        return self._struct.unpack_from(buffer, position)[0], position + self.size

    def min_size(self, flexible: bool) -> int:
        return self.size


class UuidType(FixedType[bytes]):
    """A UUID, as 16 bytes; `ZERO_UUID` stands for none."""

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        if not isinstance(value, bytes | bytearray) or len(value) != 16:
            raise uuid_error(value)
        out += value


class VarintType(Type[int]):
    """A number of variable width, seven bits per byte; the signed ones in zigzag order."""

    def __init__(self, name: str, bits: int, signed: bool) -> None:
        super().__init__(name, 0)
        self.bits = bits
        self.signed = signed

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        if not isinstance(value, int):
            raise TypeError(f"expected an int, got {shortened(value)}")
        if self.signed:
            write_varint(out, value, self.bits)
        elif value >> self.bits:
            raise ValueError(f"{value} does not fit into {self.bits} bits")
        else:
            write_uvarint(out, value)

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[int | None, int]:
        read = read_varint if self.signed else read_uvarint
        return read(buffer, position, self.bits)


class LengthType(Type[T]):
    """A type that begins with its length: int16 for strings, int32 for the others, a varint if flexible."""

    def __init__(self, name: str, default: T, *, wide: bool) -> None:
        super().__init__(name, default)
        self.wide = wide
        self._struct = Struct(">i" if wide else ">h")

    def min_size(self, flexible: bool) -> int:
        return 1 if flexible else self._struct.size

    def write_length(self, out: bytearray, length: int, flexible: bool) -> None:
        """Append a length, -1 for null."""
        if flexible:
            write_uvarint(out, length + 1)
        else:
            out += self._struct.pack(length)

    def read_length(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[int, int]:
        """Read a length, -1 for null."""
        if flexible:
            length, position = read_uvarint(buffer, position)
            length -= 1
        else:
            if position + self._struct.size > len(buffer):
                raise cut_off("a length", self._struct.size, buffer, position)
            (length,) = self._struct.unpack_from(buffer, position)
            position += self._struct.size
        if length < -1:
            raise length_error(length, position)
        if length == -1 and not nullable:
            raise null_error(position)
        return length, position


class StringType(LengthType[str]):
    """Text in UTF-8."""

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        if value is None and nullable:
            self.write_length(out, -1, flexible)
            return
        if not isinstance(value, str):
            raise TypeError(f"expected a str, got {shortened(value)}")
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half of a surrogate pair at character {error.start}: no UTF-8 has it") from None
        if len(data) > MAX_STRING:
            raise ValueError(f"a string of {len(data)} bytes is longer than the allowed {MAX_STRING}")
        self.write_length(out, len(data), flexible)
        out += data

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[str | None, int]:
        length, position = self.read_length(buffer, position, flexible, nullable)
        if length < 0:
            return None, position
        if length > MAX_STRING:
            raise length_error(length, position)
        return _text(_take(buffer, position, length), position), position + length


class BytesType(LengthType[bytes]):
    """Bytes, copied out of the buffer when read."""

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        if value is None and nullable:
            self.write_length(out, -1, flexible)
            return
        if not isinstance(value, Buffer):
            raise buffer_error(value)
        if len(value) > INT32_MAX:
            raise ValueError(f"{len(value)} bytes are more than a field can hold ({INT32_MAX})")
        self.write_length(out, len(value), flexible)
        out += value

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[bytes | None, int]:
        length, position = self.read_length(buffer, position, flexible, nullable)
        if length < 0:
            return None, position
        return bytes(_take(buffer, position, length)), position + length


class RecordsType(LengthType[Buffer]):
    """Record batches as they are; read as a view of the buffer and written without a copy."""

    def write(self, out: bytearray, value: Any, flexible: bool, nullable: bool) -> None:
        BYTES.write(out, value, flexible, nullable)

    def read(self, buffer: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[Buffer | None, int]:
        length, position = self.read_length(buffer, position, flexible, nullable)
        if length < 0:
            return None, position
        return _take(memoryview(buffer), position, length), position + length


def _take(buffer: Buffer, position: int, length: int) -> Buffer:
    end = position + length
    if end > len(buffer):
        raise cut_off("a value", length, buffer, position)
    return buffer[position:end]


def _text(data: Buffer, position: int) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        at = position + error.start
    # outside of the handler: the error above holds the bytes
    raise ProtocolError("a text is not valid UTF-8", position=at)


INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


BOOL: FixedType[bool] = FixedType("bool", "?", False)
INT8: FixedType[int] = FixedType("int8", "b", 0)
INT16: FixedType[int] = FixedType("int16", "h", 0)
INT32: FixedType[int] = FixedType("int32", "i", 0)
INT64: FixedType[int] = FixedType("int64", "q", 0)
UINT16: FixedType[int] = FixedType("uint16", "H", 0)
UINT32: FixedType[int] = FixedType("uint32", "I", 0)
FLOAT64: FixedType[float] = FixedType("float64", "d", 0.0)
UUID = UuidType("uuid", "16s", ZERO_UUID)
VARINT = VarintType("varint", 32, signed=True)
VARLONG = VarintType("varlong", 64, signed=True)
UVARINT = VarintType("uvarint", 32, signed=False)
STRING = StringType("string", "", wide=False)
BYTES = BytesType("bytes", b"", wide=True)
RECORDS = RecordsType("records", b"", wide=True)
