"""Reading and writing what is not of fixed width: varints, strings, arrays of numbers, tagged fields.

The compiled codecs (see `codec`) call these for the cases that they do not spell out. Reading functions take the
buffer and a position and return the value and the position behind it. They raise `ProtocolError`, `IndexError`,
`struct.error` or `ValueError` on malformed bytes; the caller turns them all into a `ProtocolError` that says what was
read (see `message`). A slice that reaches behind the buffer's end is not noticed here but by the caller, who compares
the final position with the size of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, cast

from kclient.errors import ProtocolError
from kclient.protocol.errors import shortened
from kclient.types import Buffer

MAX_STRING = 0x7FFF
"""Longest string in bytes of UTF-8, as in Kafka, also where the length is a varint."""

Packer: TypeAlias = Callable[..., bytes]
Unpacker: TypeAlias = Callable[..., tuple[Any, ...]]

_INT16 = Struct(">h")
_INT32 = Struct(">i")


# --- varints -------------------------------------------------------------------------------------------------


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint: seven bits per byte, the lowest first.

    Raises:
        ValueError: If the value is negative.
    """
    if value < 0:
        raise ValueError(f"an unsigned varint cannot be {value}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(buffer: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Read an unsigned varint of at most `bits` bits."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ProtocolError(f"a varint is longer than {bits} bits", position=position)
    if value >> bits:
        raise ProtocolError(f"a varint is longer than {bits} bits", position=position)
    return value, position


def write_varint(out: bytearray, value: int, bits: int = 32) -> None:
    """Append a signed varint (zigzag: 0, -1, 1, -2, ...).

    Raises:
        ValueError: If the value has more than `bits` bits.
    """
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise ValueError(f"{value} does not fit into {bits} bits")
    write_uvarint(out, (value << 1) ^ (value >> (bits - 1)))


def read_varint(buffer: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Read a signed varint of at most `bits` bits."""
    value, position = read_uvarint(buffer, position, bits)
    return (value >> 1) ^ -(value & 1), position


# --- strings and bytes ---------------------------------------------------------------------------------------


def write_string_length(out: bytearray, length: int) -> None:
    """Append the length of a compact string, plus one.

    Raises:
        ValueError: If the string is longer than Kafka allows.
    """
    if length > MAX_STRING:
        raise ValueError(f"a string of {length} bytes is longer than the allowed {MAX_STRING}")
    write_uvarint(out, length + 1)


def read_string(buffer: Buffer, position: int, first: int, nullable: bool) -> tuple[str | None, int]:
    """Read a compact string whose first length byte `first` was read already."""
    length, position = read_length(buffer, position, first)
    if length == 0:
        return null(position, nullable)
    if length > MAX_STRING + 1:
        raise ProtocolError(f"a string claims {length - 1} bytes", position=position)
    end = position + length - 1
    return str(buffer[position:end], "utf-8"), end


def read_length(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a compact length, plus one, whose first byte was read already."""
    if first < 0x80:
        return first, position
    return read_uvarint(buffer, position - 1)


def null(position: int, nullable: bool) -> tuple[None, int]:
    """What is read where a length says null."""
    if not nullable:
        raise null_error(position)
    return None, position


def null_error(position: int) -> ProtocolError:
    """The error for a null where the schema has none."""
    return ProtocolError("null in a field that is not nullable", position=position)


def length_error(length: int, position: int) -> ProtocolError:
    """The error for a length that cannot be."""
    return ProtocolError(f"a length of {length} is not possible here", position=position)


def amount(size: int) -> str:
    """A number of bytes in words."""
    return "1 byte" if size == 1 else f"{size} bytes"


def left_over(title: str, buffer: Buffer, end: int) -> ProtocolError:
    """The error for bytes behind the end of a message."""
    left = len(buffer) - end
    return ProtocolError(f"{title}: {amount(left)} follow{'s' * (left == 1)} at its end", position=end)


def cut_off(what: str, size: int, buffer: Buffer, position: int) -> ProtocolError:
    """The error for something of `size` bytes that begins at a position and does not end inside of the buffer."""
    missing = min(size, position + size - len(buffer))
    if missing < size:
        part = f"{missing} of the {size} bytes"
    else:
        part = {1: "the only byte", 2: "both bytes"}.get(size, f"all {size} bytes")
    return ProtocolError(f"cut off: {part} of {what} {'are' if missing > 1 else 'is'} missing", position=position)


def uuid_error(value: object) -> Exception:
    """The error for a value that is not a topic id or another UUID."""
    if isinstance(value, bytes | bytearray):
        return ValueError(f"a UUID has 16 bytes, not {len(value)}")
    return TypeError(f"a UUID is 16 bytes, not {shortened(value)}")


def buffer_error(value: object) -> TypeError:
    """The error for a value that should be bytes and is not."""
    return TypeError(f"expected bytes, got {shortened(value)}")


def check_buffer(value: object) -> None:
    """Raise TypeError for a value that should be bytes, or a subclass of them, and is not."""
    if not isinstance(value, Buffer):
        raise buffer_error(value)


def check_bytes(buffer: object) -> None:
    """Raise TypeError for what cannot be read as a message: no buffer, or a view of something else than bytes."""
    if not isinstance(buffer, Buffer):
        raise TypeError(f"a message is read from bytes, bytearray or memoryview, not from {shortened(buffer)}")
    if isinstance(buffer, memoryview) and (buffer.itemsize != 1 or not buffer.contiguous):
        raise TypeError(
            "a message is read from a memoryview of bytes, one behind the other; see view.cast('B') or view.tobytes()"
        )


def text_array_error(value: object) -> TypeError:
    """The error for a single text where a list of them belongs: its characters would be taken for the list."""
    return TypeError(f"expected a list, got {shortened(value)}")


# --- arrays of numbers ---------------------------------------------------------------------------------------

SMALL = 33
"""Arrays of fewer elements than this have their packers made in advance."""


class ArrayFormat:
    """Packing and unpacking arrays of one fixed-width type, a whole array at once.

    For small arrays the tables hold functions: `unpack[count](buffer, position)` reads the values, and
    `pack[count + 1](count + 1, *values)` writes them behind the length byte of a compact array; index 0 is null there.
    """

    def __init__(self, code: str, size: int) -> None:
        self.code = code
        self.size = size
        self.unpack: list[Unpacker] = [Struct(">" + code * count).unpack_from for count in range(SMALL)]
        self.pack: list[Packer] = [_no_null, *(Struct(">B" + code * count).pack for count in range(SMALL))]

    def write(self, out: bytearray, values: list[Any], flexible: bool) -> None:
        """Append a whole array, its length first."""
        if flexible:
            write_uvarint(out, len(values) + 1)
        else:
            out += _INT32.pack(len(values))
        out += Struct(">" + self.code * len(values)).pack(*values)

    def read(self, buffer: Buffer, position: int, first: int, nullable: bool) -> tuple[list[Any] | None, int]:
        """Read a compact array whose first length byte was read already."""
        length, position = read_length(buffer, position, first)
        if length == 0:
            return null(position, nullable)
        return self.read_values(buffer, position, length - 1)

    def read_values(self, buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
        """Read `count` values; nothing is allocated for more values than the buffer holds."""
        end = position + count * self.size
        if count < 0 or end > len(buffer):
            raise length_error(count, position)
        return list(Struct(">" + self.code * count).unpack_from(buffer, position)), end


def _no_null(*_: object) -> Any:
    raise ProtocolError("null in a field that is not nullable")


_ARRAY_FORMATS: dict[str, ArrayFormat] = {}


def array_format(code: str, size: int) -> ArrayFormat:
    """The shared `ArrayFormat` of a struct code such as "i"."""
    if code not in _ARRAY_FORMATS:
        _ARRAY_FORMATS[code] = ArrayFormat(code, size)
    return _ARRAY_FORMATS[code]


# --- tagged fields (KIP-482) ---------------------------------------------------------------------------------


class RawTaggedField(NamedTuple):
    """A tagged field that the declaration does not know, as it came."""

    tag: int
    data: bytes


UnknownTags: TypeAlias = "Mapping[int, Buffer] | Iterable[tuple[int, Buffer]] | None"


def unknown_tags(fields: UnknownTags) -> list[RawTaggedField] | None:
    """Unknown tagged fields as messages hold them: None if there are none; those of a mapping by their tags."""
    if not fields:
        return None
    pairs = sorted(fields.items()) if isinstance(fields, Mapping) else fields
    return [RawTaggedField(tag, cast("bytes", data)) for tag, data in pairs] or None


def write_tags(
    out: bytearray, known: Iterable[tuple[int, Buffer]], unknown: Iterable[tuple[int, Buffer]] | None
) -> None:
    """Append the tagged fields of a struct in ascending order of their tags.

    Raises:
        ValueError: If a preserved unknown field has the tag of a known one, or does not have a higher one than that
            before it. Kafka reads such fields, and refuses to write them.
        TypeError: If what is preserved is not a tag with bytes.
    """
    declared = dict(known)
    fields = dict(declared)
    before = -1
    for tag, data in unknown or ():
        if type(tag) is not int or not isinstance(data, Buffer):
            raise TypeError(f"expected unknown tagged fields as (tag, bytes), got {shortened((tag, data))}")
        if tag in declared:
            raise ValueError(f"the unknown tagged field {tag} has the tag of a field that is known")
        if not 0 <= tag < 1 << 32:
            raise ValueError(f"the tag {shortened(tag)} does not fit into an unsigned varint of 32 bits")
        if tag <= before:
            raise ValueError(f"the unknown tagged field {tag} comes after {before}: tags must rise")
        fields[tag] = data
        before = tag
    write_uvarint(out, len(fields))
    for tag in sorted(fields):
        write_uvarint(out, tag)
        write_uvarint(out, len(fields[tag]))
        out += fields[tag]


def read_unknown_tags(buffer: Buffer, position: int, count: int) -> tuple[list[RawTaggedField] | None, int]:
    """Read the tagged fields of a struct that knows none.

    They are kept, as Kafka's generated readers do it: each one as it comes, also out of order or twice.

    `count` is the first byte of their number, read already.
    """
    if not count:
        return None, position
    steps = unknown_tags_in_steps(buffer, position, count)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("tuple[list[RawTaggedField] | None, int]", end.value)


def skip_unknown_tags(buffer: Buffer, position: int, count: int, most: int) -> int:
    """The end of tagged fields that nobody wants, `most` at most; it may lie behind that of the buffer.

    `count` is the first byte of their number, read already.
    """
    count, position = read_length(buffer, position, count)
    if count > most:
        raise ProtocolError(f"{count} tagged fields are too many, {most} may be there", position=position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    return position


MEMORY_OF_TAG = 160
"""About how many bytes a preserved tagged field takes, beside those that are in it."""
_TAGS_AT_ONCE = 64


def unknown_tags_in_steps(
    buffer: Buffer, position: int, count: int
) -> Generator[int, None, tuple[list[RawTaggedField] | None, int]]:
    """As `read_unknown_tags`, with pauses; yields the bytes of memory that were taken since the last yield."""
    count, position = read_length(buffer, position, count)
    fields: list[RawTaggedField] = []
    for number in range(1, count + 1):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + size
        fields.append(RawTaggedField(tag, bytes(buffer[position:end])))
        position = end
        if number % _TAGS_AT_ONCE == 0:
            yield _TAGS_AT_ONCE * MEMORY_OF_TAG
    return fields or None, position
