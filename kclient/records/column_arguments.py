"""Checks of what is appended by the thousand: sequences of values, columns, and where their rows go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kclient.records.arguments import as_view, check_topic, shown
from kclient.records.bounds import INT32_MAX
from kclient.records.contract import BinaryColumn, Destinations, HeaderColumn, RecordColumns
from kclient.records.refusals import bad_column

_FARTHEST_ROW: Final = 1 << 48  # no memory has as many, and sums of such numbers do not overflow


def check_many(values: Any, keys: Any) -> None:
    """Refuse what many values and keys cannot be taken from by their index.

    Raises:
        TypeError: They are not sequences.
        ValueError: They differ in number.
    """
    _check_sequence("values", values, "")
    if keys is None:
        return
    _check_sequence("keys", keys, " or None")
    if len(keys) != len(values):
        raise ValueError(f"there are {len(keys)} keys for {len(values)} values")


def _check_sequence(name: str, items: Any, or_none: str) -> None:
    if type(items) is list or type(items) is tuple:
        return
    if isinstance(items, memoryview):
        raise TypeError(f"{name} must be a list or another sequence of bytes{or_none}, not {shown(items)}")
    try:
        len(items)
    except TypeError:
        sized = False
    else:
        sized = hasattr(items, "__getitem__") and not isinstance(items, str | bytes | bytearray | Mapping)
    if not sized:
        raise TypeError(f"{name} must be a list or another sequence of bytes{or_none}, not {shown(items)}")


def check_columns(columns: Any) -> None:
    """Refuse what are not columns to append; whether their buffers are long enough is still to be looked at.

    Raises:
        TypeError: They, or parts of them, are of a wrong type.
        ValueError: A number of rows, or where they begin, makes no sense.
    """
    if not isinstance(columns, RecordColumns):
        raise TypeError(f"columns must be RecordColumns, as record_columns makes them, not {shown(columns)}")
    rows = _plain_number("rows", columns.rows)
    _check_column("keys", columns.keys)
    _check_column("values", columns.values)
    if columns.timestamps is not None:
        as_view(columns.timestamps, "timestamps")
    if columns.headers is not None:
        _check_headers(columns.headers)
    if not 0 <= rows <= INT32_MAX:
        raise bad_column(0)


def _check_column(name: str, column: Any) -> None:
    if column is None:
        return
    if not isinstance(column, BinaryColumn):
        raise TypeError(f"{name} must be a BinaryColumn or None, not {shown(column)}")
    first = _plain_number(f"first of {name}", column.first)
    as_view(column.ends, f"ends of {name}")
    as_view(column.data, f"data of {name}")
    if column.validity is not None:
        as_view(column.validity, f"validity of {name}")
    _check_flag(f"wide of {name}", column.wide)
    if not 0 <= first <= _FARTHEST_ROW:
        raise bad_column(0)


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, HeaderColumn):
        raise TypeError(f"headers must be a HeaderColumn or None, not {shown(headers)}")
    numbers = [_plain_number(f"{name} of headers", getattr(headers, name)) for name in ("first", "base", "total")]
    as_view(headers.ends, "ends of headers")
    if headers.validity is not None:
        as_view(headers.validity, "validity of headers")
    _check_flag("wide of headers", headers.wide)
    _check_column("keys of headers", headers.keys)
    _check_column("values of headers", headers.values)
    if not all(0 <= number <= _FARTHEST_ROW for number in numbers):
        raise bad_column(0)


def _check_flag(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise TypeError(f"{name} must be True or False, not {shown(value)}")


def check_destinations(destinations: Any, rows: int) -> None:
    """Refuse what does not say where so many rows go.

    Raises:
        TypeError: They, or parts of them, are of a wrong type.
        ValueError: There are no topics, or not as many numbers as rows.
    """
    if not isinstance(destinations, Destinations):
        raise TypeError(f"destinations must be Destinations, not {shown(destinations)}")
    topics = destinations.topics
    if not isinstance(topics, list | tuple):
        raise TypeError(f"topics must be a list or tuple of names, not {shown(topics)}")
    for topic in topics:
        check_topic(topic)
    if not topics and destinations.numbers is None:
        raise ValueError("topics must not be empty where the rows tell no numbers of topics")
    for name in ("numbers", "partitions"):
        column = getattr(destinations, name)
        if column is not None and as_view(column, name).nbytes < rows * 4:
            raise bad_column(0)


def _plain_number(name: str, value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} must be an integer, not {shown(value)}")
    return value


def check_source(source: Any, kind: type[Any]) -> None:
    """Refuse what is not a source of rows of the same implementation, or does not say where they go.

    Raises:
        TypeError: It is not, or does not.
    """
    if not isinstance(source, kind):
        raise TypeError(f"source must be a RecordSource, not {shown(source)}")
    if not source.has_destinations:
        raise TypeError("source must be a RecordSource with destinations")
