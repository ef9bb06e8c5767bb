"""Reads what clients push: a `MetricsData` of OpenTelemetry's, in protobuf.

Field numbers are those of `opentelemetry/proto/metrics/v1/metrics.proto`. What is yielded is made when it is asked
for, so that bytes in which very much is said take no more memory than themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from kclient.errors import CorruptRecordError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_INT64: Final = struct.Struct("<q")
_LONGEST_VARINT: Final = 10
_DELTA: Final = 1
_NO_VALUE: Final = 1
"""The flag of a point that only says that there is no value."""


class PointKind(Enum):
    """What the value of a point is."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """A sum that only grows, from its beginning."""
    COUNTER_DELTA = "counter delta"
    """What such a sum has grown by."""
    SUM = "sum"
    """A sum that may get smaller."""
    SUM_DELTA = "sum delta"
    OTHER = "other"
    """A histogram or a summary, whose value is not told."""


Attributes = tuple[tuple[str, str], ...]


class PushedPoint(NamedTuple):
    """The value of one metric."""

    name: str
    kind: PointKind
    attributes: Attributes
    value: float


class PushedResource(NamedTuple):
    """What the points are of that follow."""

    attributes: Attributes


_Field = tuple[int, int, "int | memoryview"]
"""Its number, how it lies, and its value: bytes for all that is no varint."""
_DISTRIBUTIONS: Final = frozenset({9, 10, 11})
"""The fields of a metric that is a histogram, an exponential histogram or a summary."""
_GAUGE, _SUM = 5, 7
_MOST: Final = 256
"""Fields that a point, or what is said of a resource, may have: labels and a few more."""
_MOST_WITHIN: Final = 2_048
"""Fields that it may have with all that is within them: a label has four, and those of a point are looked at twice."""
_AT_ONCE: Final = 256
"""Fields that are read before others may have their turn."""


class _Turn:
    """How much was read since others had their turn."""

    __slots__ = ("fields", "most")

    def __init__(self) -> None:
        self.fields = 0
        self.most = _MOST_WITHIN

    def begin(self) -> None:
        """What comes now is read at once, and has few fields."""
        self.most = self.fields + _MOST_WITHIN


def read_points(data: bytes | bytearray) -> Iterator[PushedPoint | PushedResource | None]:
    """The points of a push, and before those of each resource what is said of it.

    Args:
        data: The push, decompressed.

    Yields:
        None where it has read for a while without coming to a point: others may have their turn.

    Raises:
        CorruptRecordError: These are no such bytes, or a point has more to it than any has.
    """
    turn = _Turn()
    for resource_metrics in _messages(memoryview(data), 1, turn):
        if resource_metrics is None:
            yield None
            continue
        resource: list[tuple[str, str]] = []
        for described in _messages(resource_metrics, 1, turn):
            if described is None:
                yield None
            else:
                turn.begin()
                resource += _attributes(described, 1, turn)
                _check_few(len(resource))
        yield PushedResource(tuple(resource))
        for scope_metrics in _messages(resource_metrics, 2, turn):
            for metric in () if scope_metrics is None else _messages(scope_metrics, 2, turn):
                yield from (None,) if metric is None else _metric(metric, turn)
            yield None


def _metric(metric: memoryview, turn: _Turn) -> Iterator[PushedPoint | None]:
    name = ""
    for found in _messages(metric, 1, turn):
        if found is None:
            yield None
        else:
            name = _text(found)
    for field in _long(metric, turn):
        if field is None:
            yield None
            continue
        number, kind, value = field
        if kind != _BYTES:
            continue
        if number == _GAUGE:
            yield from _points(name, PointKind.GAUGE, _bytes(value), turn)
        elif number == _SUM:
            yield from _sum(name, _bytes(value), turn)
        elif number in _DISTRIBUTIONS:
            for point in _messages(_bytes(value), 1, turn):
                yield point if point is None else PushedPoint(name, PointKind.OTHER, (), 0.0)


def _sum(name: str, value: memoryview, turn: _Turn) -> Iterator[PushedPoint | None]:
    temporality = monotonic = 0
    for field in _long(value, turn):
        if field is None:
            yield None
            continue
        number, _, found = field
        if isinstance(found, int):
            temporality = found if number == 2 else temporality
            monotonic = found if number == 3 else monotonic
    if monotonic:
        kind = PointKind.COUNTER_DELTA if temporality == _DELTA else PointKind.COUNTER
    else:
        kind = PointKind.SUM_DELTA if temporality == _DELTA else PointKind.SUM
    yield from _points(name, kind, value, turn)


def _points(name: str, kind: PointKind, value: memoryview, turn: _Turn) -> Iterator[PushedPoint | None]:
    for point in _messages(value, 1, turn):
        if point is None:
            yield None
            continue
        turn.begin()
        number_of_point: float | None = None
        flags = 0
        for number, lies, found in _fields(point, turn):
            if number == 4 and lies == _FIXED64:
                number_of_point = _DOUBLE.unpack(_bytes(found))[0]
            elif number == 6 and lies == _FIXED64:
                number_of_point = _INT64.unpack(_bytes(found))[0]
            elif number == 8 and isinstance(found, int):
                flags = found
        if number_of_point is not None and not flags & _NO_VALUE:
            yield PushedPoint(name, kind, tuple(_attributes(point, 7, turn)), number_of_point)


def _attributes(message: memoryview, field: int, turn: _Turn) -> Iterator[tuple[str, str]]:
    for number_of_field, lies, attribute in _fields(message, turn):
        if number_of_field != field or lies != _BYTES:
            continue
        key = value = ""
        for number, kind, found in _fields(_bytes(attribute), turn):
            if number == 1 and kind == _BYTES:
                key = _text(found)
            elif number == 2 and kind == _BYTES:
                value = _any(_bytes(found), turn)
        yield key, value


def _any(message: memoryview, turn: _Turn) -> str:
    """A value of any type as text; nothing for arrays, maps and bytes."""
    for number, kind, found in _fields(message, turn):
        if number == 1 and kind == _BYTES:
            return _text(found)
        if isinstance(found, int):
            if number == 2:
                return "true" if found else "false"
            if number == 3:
                return str(found - (1 << 64) if found >= 1 << 63 else found)
        elif number == 4 and kind == _FIXED64:
            return repr(_DOUBLE.unpack(found)[0])
    return ""


def _messages(message: memoryview, field: int, turn: _Turn) -> Iterator[memoryview | None]:
    """The bytes of a field that may come very often; None where others may have their turn."""
    for found in _long(message, turn):
        if found is None:
            yield None
        elif found[0] == field and found[1] == _BYTES:
            yield _bytes(found[2])


def _long(message: memoryview, turn: _Turn) -> Iterator[_Field | None]:
    """The fields of a message that may have very many; None where others may have their turn."""
    for field in _all_fields(message):
        turn.fields += 1
        yield field
        if turn.fields >= _AT_ONCE:
            turn.fields = 0
            yield None


def _fields(message: memoryview, turn: _Turn) -> Iterator[_Field]:
    """The fields of a message that has few."""
    for count, field in enumerate(_all_fields(message)):
        turn.fields += 1
        _check_few(count)
        if turn.fields > turn.most:
            raise CorruptRecordError(
                f"pushed metrics have a point or a resource with more than {_MOST_WITHIN} fields within it"
            )
        yield field


def _check_few(count: int) -> None:
    if count >= _MOST:
        raise CorruptRecordError(f"pushed metrics have a point or a resource with {_MOST} fields and more")


def _bytes(found: int | memoryview) -> memoryview:
    assert isinstance(found, memoryview)
    return found


def _text(found: int | memoryview) -> str:
    try:
        return str(found, "utf-8")  # type: ignore[arg-type]
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"pushed metrics have a text that is not in UTF-8: {error}") from error


def _all_fields(data: memoryview) -> Iterator[_Field]:
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise CorruptRecordError(f"pushed metrics have a field of the unknown type {kind}")
        if size > end - at:
            raise CorruptRecordError("pushed metrics end within a field")
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise CorruptRecordError("pushed metrics end within a number, or have one that is too long")
