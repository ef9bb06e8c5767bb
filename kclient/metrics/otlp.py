"""Metrics in OpenTelemetry's format: protobuf's bytes of a `MetricsData`, as far as KIP-714 needs it.

Field numbers are those of `opentelemetry/proto/metrics/v1/metrics.proto`; a test reads the bytes with its own package.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Point", "Temporality", "encode_metrics"]

_LENGTH_DELIMITED: Final = 2
_FIXED64: Final = 1
_VARINT: Final = 0
_DOUBLE: Final = struct.Struct("<d")
_UINT64: Final = struct.Struct("<Q")


class Temporality(IntEnum):
    """What the value of a sum is counted from."""

    DELTA = 1
    """From the point before."""
    CUMULATIVE = 2
    """From the beginning."""


class Point(NamedTuple):
    """The value of one metric."""

    name: str
    attributes: Mapping[str, str]
    value: float
    time_ns: int
    """When, in nanoseconds since 1970."""
    temporality: Temporality | None = None
    """None for a gauge, else it is a sum that only grows."""
    start_ns: int = 0
    """From when on a sum counts."""


def encode_metrics(points: Iterable[Point], resource: Mapping[str, str]) -> bytes:
    """All points as one `MetricsData`.

    Args:
        points: The values.
        resource: What they are of: attributes of the client.
    """
    scope = b"".join(_message(2, _metric(point)) for point in points)
    described = b"".join(_message(1, _attribute(*item)) for item in resource.items())
    return _message(1, _message(1, described) + _message(2, scope))


def _metric(point: Point) -> bytes:
    data = _message(1, _data_point(point))
    if point.temporality is None:
        return _text(1, point.name) + _message(5, data)
    return _text(1, point.name) + _message(7, data + _varint(2, point.temporality) + _varint(3, 1))


def _data_point(point: Point) -> bytes:
    start = _fixed(2, _UINT64.pack(point.start_ns)) if point.start_ns else b""
    attributes = b"".join(_message(7, _attribute(*item)) for item in point.attributes.items())
    time = _fixed(3, _UINT64.pack(point.time_ns))
    return start + time + _fixed(4, _DOUBLE.pack(point.value)) + attributes


def _attribute(key: str, value: str) -> bytes:
    return _text(1, key) + _message(2, _text(1, value))


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8"))


def _message(field: int, data: bytes) -> bytes:
    return _number(field << 3 | _LENGTH_DELIMITED) + _number(len(data)) + data


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3 | _VARINT) + _number(value)


def _fixed(field: int, data: bytes) -> bytes:
    return _number(field << 3 | _FIXED64) + data


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
