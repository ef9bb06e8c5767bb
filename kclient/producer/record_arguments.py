"""The arguments of `send` and `send_batch`, checked: one text for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kclient.arguments import INT32_MAX, INT64_MAX, index_of, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.types import Headers

_NO_HEADERS = (str, bytes, bytearray, memoryview, Mapping)
_FIELDS = ("value", "key", "partition", "timestamp")


def is_bytes(value: Any) -> bool:
    """Whether this can be sent as it is."""
    return isinstance(value, bytes | bytearray | memoryview)


def as_headers(headers: Any) -> Headers:
    """Headers that may be read several times; what is in them is looked at later.

    Raises:
        TypeError: They are not a collection of pairs.
    """
    if isinstance(headers, tuple | list):
        return headers
    if headers is None:
        return ()
    if isinstance(headers, _NO_HEADERS) or not isinstance(headers, Iterable):
        check_headers(headers)
    return list(headers)


def check_headers(headers: Any) -> None:
    """Raise `TypeError` if these cannot be a record's headers."""
    expected = "headers are a sequence of pairs of str and bytes (or None), as in [('trace', b'1')]"
    if isinstance(headers, Mapping):
        raise TypeError(f"{expected}; not {type(headers).__name__}: give list(headers.items())")
    if not isinstance(headers, Iterable) or isinstance(headers, _NO_HEADERS):
        raise TypeError(f"{expected}; not {type(headers).__name__}")
    for header in headers:
        is_pair = isinstance(header, tuple | list) and len(header) == 2 and isinstance(header[0], str)
        if is_pair and isinstance(header[1], str):
            raise TypeError(f"{expected}; encode the value of {shown(header)}, as in {shown(header[1])}.encode()")
        if not is_pair or not (header[1] is None or is_bytes(header[1])):
            raise TypeError(f"{expected}; {shown(header)} is not such a pair")


def as_timestamp(timestamp: Any) -> int:
    """The timestamp of a record to be sent, in milliseconds.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is negative, or beyond 64 bits.
    """
    expected = "a record's timestamp is a whole number of milliseconds since the epoch, 0 or more, or None for now"
    if isinstance(timestamp, datetime):
        raise TypeError(f"{expected}; not a datetime: give int(when.timestamp() * 1000)")
    number = index_of(timestamp)
    if number is None:
        raise TypeError(f"{expected}; not {type(timestamp).__name__}")
    if not 0 <= number <= INT64_MAX:
        raise ValueError(f"{expected}; not {shown(number)}")
    return number


def as_partition_number(partition: Any) -> int:
    """The number of a partition.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is negative, or larger than any that Kafka knows.
    """
    number = index_of(partition)
    if number is None:
        raise TypeError(f"a partition is a whole number, or None for the partitioner's choice; not {shown(partition)}")
    if not 0 <= number <= INT32_MAX:
        text = f"a partition's number is from 0 to {INT32_MAX}, or None for the partitioner's choice"
        raise ValueError(f"{text}: {shown(number)}")
    return number


def as_values_and_keys(values: Iterable[Any], keys: Iterable[Any] | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Values and keys of a batch as sequences that know their length.

    Raises:
        TypeError: They are not collections.
        ValueError: There are not as many keys as values.
    """
    values = _as_sequence(values, "values")
    if keys is None:
        return values, None
    keys = _as_sequence(keys, "keys")
    if len(keys) != len(values):
        raise ValueError(f"{len(values)} values but {len(keys)} keys")
    return values, keys


def _as_sequence(given: Any, name: str) -> Sequence[Any]:
    if isinstance(given, list | tuple):
        return given
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise TypeError(f"{name} are a sequence, one for each record; not {shown(given)}")
    return list(given)


def check_alone(*others: Any) -> None:
    """See to it that `send` was given a `ProducerRecord` and nothing beside it.

    Args:
        others: Value, key, partition, timestamp and headers.

    Raises:
        TypeError: One was given too.
    """
    *fields, headers = others
    given = [name for name, other in zip(_FIELDS, fields, strict=True) if other is not None]
    if not isinstance(headers, tuple) or headers:
        given.append("headers")
    if given:
        raise TypeError(f"send takes a ProducerRecord alone: {' and '.join(given)} belong into it")
