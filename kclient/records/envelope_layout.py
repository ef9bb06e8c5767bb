"""What messages look like that hold a batch each, in an envelope of fixed size in front of it."""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

from kclient.records.arguments import as_view, integer
from kclient.records.bounds import INT64_MAX

_UINT32_MAX: Final = 0xFFFFFFFF
_UINT32: Final = 4
_UINT64: Final = 8
_LEAST: Final = 3 * _UINT32 + _UINT64
_GREATEST: Final = 1 << 16


class EnvelopeLayout(NamedTuple):
    """Where an envelope says what, in this order; all numbers in it are unsigned and in network byte order."""

    size: int
    """Bytes of an envelope; the batch comes right behind it."""
    mark: int
    """What its first four bytes say where a batch follows."""
    kinds: int
    """The bits of these by which messages of other kinds differ, which are passed over."""
    length_at: int
    """Where the length in bytes of what follows the envelope stands: four bytes."""
    key_at: int
    """Where it stands to whom the batch belongs: four bytes."""
    number_at: int
    """Where the number of the message stands: eight bytes."""


def check_layout(layout: Any) -> EnvelopeLayout:
    """A layout that makes sense.

    Raises:
        TypeError: It is none, or a field of it is no integer.
        ValueError: A field reaches into another, or beyond the envelope.
    """
    if not isinstance(layout, EnvelopeLayout):
        raise TypeError(f"layout must be an EnvelopeLayout, not {type(layout).__name__}")
    size = integer("size", layout.size, _LEAST, _GREATEST)
    integer("mark", layout.mark, 0, _UINT32_MAX)
    integer("kinds", layout.kinds, 0, _UINT32_MAX)
    length_at = integer("length_at", layout.length_at, _UINT32, size - _UINT32)
    key_at = integer("key_at", layout.key_at, length_at + _UINT32, size - _UINT32)
    integer("number_at", layout.number_at, key_at + _UINT32, size - _UINT64)
    return layout


def check_numbers(name: str, numbers: Any) -> array[int]:
    """An array of int64.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(numbers, array) or numbers.typecode != "q":
        raise TypeError(f'{name} must be an array of the type code "q", not {type(numbers).__name__}')
    return numbers


def check_key(key: Any) -> int:
    """To whom batches belong."""
    return integer("key", key, 0, _UINT32_MAX)


def check_first(first: Any) -> int:
    """The number of a message."""
    return integer("first", first, 0, INT64_MAX)


def check_target(into: Any, size: int) -> memoryview:
    """What batches of so many bytes are copied into.

    Raises:
        TypeError: It cannot be written to.
        ValueError: It is smaller, or larger.
    """
    target = as_view(into, "into")
    if target.readonly:
        raise TypeError(f"into must be one that can be written to, as a bytearray, not {type(into).__name__}")
    if len(target) != size:
        raise ValueError(f"into has {len(target)} bytes, and the batches have {size}")
    return target


def not_there(number: int) -> ValueError:
    """The exception for a message that is not among some."""
    return ValueError(f"there is no batch in a message with the number {number}")
