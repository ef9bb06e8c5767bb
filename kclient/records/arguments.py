"""Checks of arguments that both implementations share, so that their complaints are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kclient.arguments import index_of
from kclient.errors import ConfigError
from kclient.records.bounds import INT16_MAX, INT32_MAX, INT64_MAX, INT64_MIN
from kclient.types import Buffer, TimestampType

MAX_BATCH_SIZE: Final = INT32_MAX - (1 << 20)
"""Greatest batch in bytes: its length is an int32, and a request needs room around it."""

_SHOWN_BITS: Final = 128
_SHOWN_LENGTH: Final = 40
_HEADERS: Final = 'headers must be a list of pairs of str and bytes or None, as in [("name", b"value")]'
_TIMESTAMP: Final = (
    f"a record's timestamp must be an integer: milliseconds since the epoch, at most {INT64_MAX}, or -1 for none"
)
_MOST_PARTITIONS: Final = 1 << 20  # a topic's; Kafka's own limits lie far below


def shown(value: Any) -> str:
    """A value that was refused, as its complaint shows it: short, and never by code of the value's own."""
    kind = type(value)
    if value is None:
        return "None"
    if kind is int:
        return str(value) if value.bit_length() <= _SHOWN_BITS else f"a number of {value.bit_length()} bits"
    if kind in (bool, float):
        return f"{value!r} ({kind.__name__})"
    if kind in (str, bytes):
        text = repr(value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH])
        return f"{text} ({kind.__name__})" if len(value) <= _SHOWN_LENGTH else f"{text}... ({kind.__name__})"
    return str(kind.__name__)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def integer(name: str, value: Any, least: int, greatest: int) -> int:
    """An argument that is an integer within a range.

    Raises:
        TypeError: It is not an integer.
        ValueError: It lies outside the range.
    """
    number = value if type(value) is int else index_of(value)
    if number is None:
        raise TypeError(f"{name} must be an integer from {least} to {greatest}, not {shown(value)}")
    if not least <= number <= greatest:
        raise ValueError(f"{name} must be from {least} to {greatest}, not {shown(number)}")
    return number


def setting(name: str, value: Any, least: int, greatest: int) -> int:
    """A setting that is an integer within a range.

    Raises:
        ConfigError: It is not an integer, or lies outside the range.
    """
    number = value if type(value) is int else index_of(value)
    if number is None or not least <= number <= greatest:
        raise ConfigError(f"{name} must be an integer from {least} to {greatest}, not {shown(value)}")
    return number


def check_topic(topic: Any) -> str:
    """The name of a topic.

    Raises:
        TypeError: It is not a str.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {shown(topic)}")
    return topic if type(topic) is str else str.__str__(topic)


def check_callable(name: str, function: Any, *, optional: bool = True) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: It is neither a function nor, if that is allowed, None.
    """
    if not callable(function) and not (optional and function is None):
        raise TypeError(f"{name} must be a function{' or None' if optional else ''}, not {shown(function)}")


def as_bytes(data: Any, what: str, *, nullable: bool = True) -> bytes | bytearray:
    """The bytes of a key, value or header value.

    Raises:
        TypeError: It is not bytes, bytearray or memoryview.
        ValueError: It is a memoryview that was released.
    """
    if isinstance(data, bytes | bytearray):
        return data
    if isinstance(data, memoryview):
        try:
            return data.tobytes()
        except ValueError:
            raise ValueError(f"a record's {what} is a memoryview that was released") from None
    kinds = "bytes, bytearray, memoryview or None" if nullable else "bytes, bytearray or memoryview"
    raise TypeError(f"a record's {what} must be {kinds}, not {_kind(data)}")


def header_key(key: Any) -> bytes:
    """The key of a record header, encoded.

    Raises:
        TypeError: It is not a str.
        ValueError: It is a str that no UTF-8 can hold.
    """
    if not isinstance(key, str):
        raise TypeError(f"the key of a record header must be str, not {_kind(key)}")
    try:
        return str.encode(key)  # not what a subclass may have made of it
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the key of a record header must be text that UTF-8 can hold, not {str.__str__(key)!a}"
        ) from error


def header_list(headers: Any) -> list[Any]:
    """The headers of a record as a list, whose items are still to be looked at by `header_pair`.

    Raises:
        TypeError: They are not a list of pairs.
    """
    if headers is None:
        return []
    if isinstance(headers, str | bytes | bytearray | memoryview | Mapping):
        raise _no_headers(headers)
    try:
        items = iter(headers)
    except TypeError:
        raise _no_headers(headers) from None
    return list(items)


def header_pair(header: Any) -> tuple[Any, Any]:
    """Key and value of one header, whose types are still to be looked at.

    Raises:
        TypeError: It is not a pair.
    """
    if isinstance(header, tuple | list) and len(header) == 2:
        return header[0], header[1]
    if isinstance(header, tuple | list):
        raise TypeError(f"{_HEADERS}; one of them is a {type(header).__name__} of {len(header)}")
    raise TypeError(f"{_HEADERS}; one of them is {shown(header)}")


def header_pairs(headers: Any) -> list[tuple[Any, Any]]:
    """The headers of a record as pairs; what their keys and values are is still to be looked at.

    Raises:
        TypeError: They are not a list of pairs.
    """
    return [header_pair(header) for header in header_list(headers)]


def _no_headers(headers: Any) -> TypeError:
    text = f"{_HEADERS}, not {shown(headers)}"
    return TypeError(f"{text}; use list(headers.items())" if isinstance(headers, Mapping) else text)


def as_buffer(buffer: Any, name: str = "buffer") -> Buffer:
    """What bytes can be read from by position: the argument itself, or a view of it.

    Raises:
        TypeError: It holds no bytes, or not one behind the other.
        ValueError: It is a memoryview that was released.
    """
    if type(buffer) is bytes or type(buffer) is bytearray:
        return buffer
    return as_view(buffer, name)


def as_view(buffer: Any, name: str = "buffer") -> memoryview:
    """A view of the bytes in a buffer.

    Raises:
        TypeError: It holds no bytes, or not one behind the other.
        ValueError: It is a memoryview that was released.
    """
    if type(buffer) is bytes or type(buffer) is bytearray:
        return memoryview(buffer)
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(f"{name} must be bytes, bytearray or memoryview, not {shown(buffer)}") from None
    except ValueError:
        raise ValueError(f"{name} is a memoryview that was released") from None
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    if not view.c_contiguous:
        raise TypeError(f"{name} must hold its bytes one behind the other, not with gaps between them")
    return view.cast("B")


def check_position(position: Any) -> int:
    """A position in a buffer.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative.
    """
    return integer("position", position, 0, INT64_MAX)


def check_limit(limit: Any) -> int:
    """The limit of a batch builder, at most `MAX_BATCH_SIZE`.

    Raises:
        ConfigError: It is not an integer, or negative.
    """
    return min(setting("limit", limit, 0, INT64_MAX), MAX_BATCH_SIZE)


def check_max_decompressed(limit: Any) -> int:
    """How large the records of a batch may be after decompression.

    Raises:
        ConfigError: It is not an integer, or not positive.
    """
    return setting("max_decompressed", limit, 1, INT64_MAX)


def check_partition(partition: Any) -> int:
    """The number of a partition in a topic.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative or beyond a million.
    """
    return integer("partition", partition, 0, _MOST_PARTITIONS - 1)


def partition_or_none(partition: Any) -> int:
    """The number of a partition, or -1 for one that cannot be there.

    Raises:
        TypeError: It is not an integer.
    """
    number = index_of(partition)
    return check_partition(partition) if number is None else number if 0 <= number < _MOST_PARTITIONS else -1


def check_partitions(partitions: Any) -> int:
    """The number of partitions that a key is assigned among.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not between 1 and 2**31 - 1.
    """
    return integer("partitions", partitions, 1, INT32_MAX)


def milliseconds(timestamp: Any) -> int:
    """The timestamp of a record.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is before the epoch and not -1, or beyond 64 bits.
    """
    number = timestamp if type(timestamp) is int else index_of(timestamp)
    if number is None:
        text = f"{_TIMESTAMP}, not {shown(timestamp)}"
        raise TypeError(
            f"{text}; use int(moment.timestamp() * 1000)" if callable(getattr(timestamp, "timestamp", None)) else text
        )
    if not -1 <= number <= INT64_MAX:
        raise bad_timestamp(number)
    return number


def negative_timestamp(timestamp: int) -> ValueError:
    """The exception for a record to be sent whose timestamp is before the epoch, or -1, which stands for none."""
    return ValueError(
        f"a record's timestamp is 0 or more milliseconds since the epoch, or None for now; not {timestamp}"
    )


def bad_timestamp(timestamp: int) -> ValueError:
    """The exception for a timestamp before the epoch, or beyond 64 bits."""
    return ValueError(f"{_TIMESTAMP}, not {shown(timestamp)}")


def check_delete_horizon(delete_horizon: Any) -> int:
    """The base timestamp of a batch with a delete horizon, and -1 for one without.

    Raises:
        ConfigError: The horizon is not an integer, or before the epoch.
    """
    return -1 if delete_horizon is None else setting("delete_horizon", delete_horizon, 0, INT64_MAX)


def check_last_delta(wanted: Any, least: int) -> int:
    """The last offset delta of a batch: as wanted, or that of its last record.

    Raises:
        TypeError: The wanted one is not an integer.
        ValueError: The wanted one lies before the last record, or beyond 31 bits.
    """
    return least if wanted is None else integer("last_offset_delta", wanted, least, INT32_MAX)


def check_stamps(
    base_offset: Any,
    producer_id: Any,
    producer_epoch: Any,
    base_sequence: Any,
    partition_leader_epoch: Any,
    last_offset_delta: int,
) -> tuple[int, int, int, int, int]:
    """The numbers that are written into the header of a batch when it is built.

    Raises:
        TypeError: One is not an integer.
        ValueError: One is out of its range.
    """
    if (
        type(base_offset) is type(producer_id) is type(producer_epoch) is type(base_sequence) is int
        and type(partition_leader_epoch) is int
        and 0 <= base_offset < INT64_MAX - last_offset_delta
        and -1 <= producer_id <= INT64_MAX
        and -1 <= producer_epoch <= INT16_MAX
        and -1 <= base_sequence <= INT32_MAX
        and -1 <= partition_leader_epoch <= INT32_MAX
    ):
        return base_offset, producer_id, producer_epoch, base_sequence, partition_leader_epoch
    return (
        integer("base_offset", base_offset, 0, INT64_MAX - 1 - last_offset_delta),
        integer("producer_id", producer_id, -1, INT64_MAX),
        integer("producer_epoch", producer_epoch, -1, INT16_MAX),
        integer("base_sequence", base_sequence, -1, INT32_MAX),
        integer("partition_leader_epoch", partition_leader_epoch, -1, INT32_MAX),
    )


def check_offset_delta(delta: Any, least: int) -> int:
    """The offset of a record less the base offset of its batch.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not behind that of the record before, or beyond 31 bits.
    """
    return integer("offset_delta", delta, least, INT32_MAX)


def check_start(start: Any) -> int:
    """From which record or row on to append.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative.
    """
    return integer("start", start, 0, INT64_MAX)


def check_enough(enough: Any) -> int:
    """After how many bytes to stop.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not positive.
    """
    return integer("enough", enough, 1, INT64_MAX)


def check_builder(builder: Any, kind: type[Any]) -> None:
    """Refuse what is not a builder of the same implementation.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(builder, kind):
        raise TypeError(f"builder must be a BatchBuilder, not {shown(builder)}")


def check_handle(handle: Any, kind: type[Any]) -> None:
    """Refuse what is not a class of handles.

    Raises:
        TypeError: It is not a subclass of the implementation's `LazyDelivery`.
    """
    if not (isinstance(handle, type) and issubclass(handle, kind)):
        what = f"the class {handle.__name__}" if isinstance(handle, type) else shown(handle)
        raise TypeError(f"handle must be a subclass of LazyDelivery, not {what}")


def check_record(
    topic: Any,
    partition: Any,
    offset: Any,
    timestamp: Any,
    timestamp_type: Any,
    headers: Any,
    leader_epoch: Any,
    delivery_count: Any,
) -> tuple[str, int, int, int, TimestampType, tuple[Any, ...], int, int]:
    """The fields of a fetched record but key and value; -1 where there is no leader epoch, 0 without a delivery count.

    Raises:
        TypeError: One is of a wrong type.
        ValueError: One is out of its range.
    """
    kind = integer("timestamp_type", timestamp_type, -1, 1)
    return (
        check_topic(topic),
        integer("partition", partition, -1, INT32_MAX),
        integer("offset", offset, INT64_MIN, INT64_MAX),
        integer("timestamp", timestamp, INT64_MIN, INT64_MAX),
        TimestampType(kind),
        tuple(header_pairs(headers)),
        -1 if leader_epoch is None else integer("leader_epoch", leader_epoch, -1, INT32_MAX),
        0 if delivery_count is None else integer("delivery_count", delivery_count, 1, INT16_MAX),
    )
