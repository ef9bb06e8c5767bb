"""How a value names its schema: a zero byte, and the id in four bytes.

Source: Confluent's wire format, which the serializers of Java, Python, Go and .NET write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.errors import SerializationError

__all__ = ["FramedValue", "message_indexes", "split"]

_HEAD: Final = 5
_LONGEST_VARINT: Final = 5
_MOST_INDEXES: Final = 100
"""Messages that lie within one another: no compiler takes more."""


class FramedValue(NamedTuple):
    """A value in its two parts."""

    schema_id: int
    payload: memoryview


def split(data: bytes) -> FramedValue:
    """Take the schema's id off a value.

    Raises:
        SerializationError: The value begins otherwise.
    """
    if len(data) < _HEAD or data[0]:
        raise SerializationError(
            f"the value {data[:20]!r} names no schema: it does not begin with a zero byte and an id of four bytes, so "
            "it was not written by a serializer of a schema registry"
        )
    return FramedValue(int.from_bytes(data[1:_HEAD], "big"), memoryview(data)[_HEAD:])


def message_indexes(payload: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Which message of a Protobuf file a value is: the place of each message among those of the one around it.

    Returns:
        The places, outermost first, and the message's bytes.

    Raises:
        SerializationError: They are cut off, or absurd.
    """
    count, place = _varint(payload, 0)
    if count == 0:  # short for the first message
        return (0,), payload[place:]
    if not 0 < count <= _MOST_INDEXES:
        raise SerializationError(f"a Protobuf message cannot lie within {count} others")
    indexes = []
    for _ in range(count):
        index, place = _varint(payload, place)
        if index < 0:
            raise SerializationError(f"{index} is the place of no Protobuf message")
        indexes.append(index)
    return tuple(indexes), payload[place:]


def _varint(payload: memoryview, start: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    value = 0
    for number, byte in enumerate(payload[start : start + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), start + number + 1
    raise SerializationError("the value is cut off before its Protobuf message, or does not name one")
