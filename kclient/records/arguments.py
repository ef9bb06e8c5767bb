"""Checks of arguments that both implementations share, so that their complaints are the same."""

from __future__ import annotations

from typing import Any, Final

from kclient.errors import ConfigError, IllegalStateError, RecordTooLargeError
from kclient.records.batch_header import HEADER_SIZE

MAX_BATCH_SIZE: Final = 2**31 - 1 - (1 << 20)
"""Greatest batch in bytes: its length is an int32, and a request needs room around it."""

_MOST_PARTITIONS: Final = 1 << 20  # a topic's; Kafka's own limits lie far below


def as_bytes(data: Any, what: str) -> bytes | bytearray:
    """The bytes of a key, value or header value.

    Raises:
        TypeError: It is not bytes, bytearray or memoryview.
    """
    if isinstance(data, bytes | bytearray):
        return data
    if isinstance(data, memoryview):
        return data.tobytes()
    raise TypeError(
        f"a record's {what} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; use a serializer"
    )


def header_key(key: Any) -> bytes:
    """The key of a record header, encoded.

    Raises:
        TypeError: It is not a str.
    """
    if not isinstance(key, str):
        raise TypeError(f"the key of a record header must be str, not {type(key).__name__}")
    return str.encode(key)  # not what a subclass may have made of it


def check_limit(limit: int) -> int:
    """The limit of a batch builder, at most `MAX_BATCH_SIZE`.

    Raises:
        ConfigError: It is negative.
    """
    if limit < 0:
        raise ConfigError(f"the limit of a batch must not be negative ({limit})")
    return min(limit, MAX_BATCH_SIZE)


def check_partition(partition: int) -> None:
    """Refuse the number of a partition that cannot be.

    Raises:
        ValueError: It is negative or beyond a million.
    """
    if not 0 <= partition < _MOST_PARTITIONS:
        raise ValueError(f"{partition} cannot be the number of a partition")


def check_partitions(partitions: int) -> None:
    """Refuse a number of partitions that a key cannot be assigned among.

    Raises:
        ValueError: It is not between 1 and 2**31 - 1.
    """
    if not 0 < partitions < 2**31:
        raise ValueError(f"the number of partitions must be positive, not {partitions}")


def bad_timestamp(timestamp: int) -> ValueError:
    """The exception for a timestamp before the epoch."""
    return ValueError(f"a record's timestamp must be -1 (none) or milliseconds since the epoch, not {timestamp}")


def check_delete_horizon(delete_horizon: int | None) -> int:
    """The base timestamp of a batch with a delete horizon, and -1 for one without.

    Raises:
        ConfigError: The horizon is before the epoch.
    """
    if delete_horizon is None:
        return -1
    if delete_horizon < 0:
        raise ConfigError(f"a delete horizon must be milliseconds since the epoch, not {delete_horizon}")
    return delete_horizon


def check_last_delta(wanted: int | None, least: int) -> int:
    """The last offset delta of a batch: as wanted, or that of its last record.

    Raises:
        ValueError: The wanted one lies before the last record, or beyond 31 bits.
    """
    if wanted is None:
        return least
    if not least <= wanted < 2**31:
        raise ValueError(f"the last offset delta must be between {least} and {2**31 - 1}, not {wanted}")
    return wanted


def bad_offset_delta(delta: int, least: int) -> ValueError:
    """The exception for an offset that is not behind the one before."""
    return ValueError(f"the record's offset delta must be between {least} and {2**31 - 1}, not {delta}")


def bad_column(row: int) -> ValueError:
    """The exception for a column whose buffers contradict each other."""
    return ValueError(f"the buffers of a column make no sense at row {row}")


def bad_start(start: int) -> ValueError:
    """The exception for a negative start index."""
    return ValueError(f"start must not be negative ({start})")


def keys_mismatch(keys: int, values: int) -> ValueError:
    """The exception for keys and values of different number."""
    return ValueError(f"there are {keys} keys for {values} values")


def builder_closed() -> IllegalStateError:
    """The exception for appending to a batch that was built."""
    return IllegalStateError("The batch was built; nothing can be appended to it any more.")


def builder_empty() -> IllegalStateError:
    """The exception for building a batch without records."""
    return IllegalStateError("A batch without records cannot be built.")


def record_too_large(size: int) -> RecordTooLargeError:
    """The exception for a record that fits into no batch."""
    return RecordTooLargeError(
        f"A record of {size} bytes does not fit into a batch, whose length is at most {MAX_BATCH_SIZE} bytes "
        f"({HEADER_SIZE} of them the header)."
    )


def columns_too_large() -> RecordTooLargeError:
    """The exception for more bytes than one Arrow batch can hold."""
    return RecordTooLargeError(
        "The batches hold more than 2 GiB, more than one Arrow batch can; decode fewer at a time."
    )


def builder_busy() -> IllegalStateError:
    """The exception for using a column builder while another thread appends to it."""
    return IllegalStateError("Another thread is using the column builder.")
