"""Every public function of `kclient.records`, to be called with arguments by name: over one implementation, with
arguments that are right, giving what can be compared."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

import kclient.records as public
from kclient.records import BinaryColumn, CompressionType, Destinations, HeaderColumn, RecordColumns
from tests.message_sets import write_message_set
from tests.unit.records.faces import FACES, Face, build

BATCH = build(FACES[0], [(1000, b"k", b"v", [("h", b"x")]), (2000, None, b"w", [])], compression=CompressionType.LZ4)
SENT = write_message_set(1, [(b"k", b"v")], 1000)
COLUMN = BinaryColumn(0, None, array.array("i", (0, 1, 2)).tobytes(), b"xx")
COLUMNS = RecordColumns(2, None, COLUMN, None, 1, None)
HEADERS = HeaderColumn(0, None, array.array("i", (0, 1, 2)).tobytes(), 0, 2, COLUMN, COLUMN)
DESTINATIONS = Destinations(["t"], array.array("i", (0, 0)).tobytes(), array.array("i", (1, -1)).tobytes())
TABLE = pa.table({"value": [b"1", b"2"]})
SETTINGS = {"limit": 1000, "compression": CompressionType.GZIP, "level": 9, "delete_horizon": 5}
RECORD = {"timestamp": 1000, "key": b"k", "value": b"v", "headers": [("h", b"x")]}
READING = {"buffer": BATCH, "topic": "t", "partition": 0, "start_offset": 0, "end_offset": 9, "max_decompressed": 1000}
READING |= {"aborted": [(1, 1)], "key_deserializer": None, "value_deserializer": None}


def _builder(face: Face) -> Any:
    return face.BatchBuilder(limit=1000)


def _set_builder() -> Any:
    return public.MessageSetBuilder(magic=1, limit=1000)


def _built(face: Face, **numbers: Any) -> bytes:
    builder = _builder(face)
    builder.append(1, b"k", b"v")
    try:
        return bytes(builder.build(**numbers))
    except Exception:
        assert builder.append(1, b"k", b"v") == 1, "what was refused closed the builder"
        raise


def _appended(face: Face, method: str, **arguments: Any) -> Any:
    builder = _builder(face)
    state = getattr(builder, method)(**arguments), builder.count
    return state, bytes(builder.build()) if builder.count else b""


def _limited(face: Face, limit: Any) -> int:
    builder = _builder(face)
    builder.limit = limit
    return int(builder.limit)


def _record(face: Face, **fields: Any) -> Any:
    record = face.ConsumerRecord(**fields)
    return [getattr(record, name) for name in fields if name not in ("key", "value")]


def _appender(face: Face) -> Any:
    slots = face.TopicSlots()
    slots.partitions, slots.sticky = 3, 2
    for number in range(3):
        slots.open(number, number, _builder(face))
    appender = face.Appender(face.LazyDelivery)
    appender.topics["t"] = slots
    return appender


def _place(face: Face, **arguments: Any) -> Any:
    handle = _appender(face).append(**arguments)
    return handle and (handle.batch, handle.index)


def _places(face: Face, source: Any = None, **arguments: Any) -> Any:
    source = face.RecordSource(COLUMNS, DESTINATIONS) if source is None else source
    return _appender(face).append_rows(source, **arguments)


def _slots(face: Face, **values: Any) -> Any:
    slots = face.TopicSlots()
    slots.partitions, slots.sticky = values["partitions"], values["sticky"]
    slots.open(values["partition"], "batch", _builder(face) if values["builder"] is None else values["builder"])
    slots.close(values["closed"])
    return slots.partitions, slots.sticky


def _set_built(**arguments: Any) -> bytes:
    base_offset = arguments.pop("base_offset")
    builder = public.MessageSetBuilder(**arguments)
    builder.append(1, b"k", b"v")
    return bytes(builder.build(base_offset))


def _restamped(**arguments: Any) -> bytes:
    buffer = arguments["buffer"] = bytearray(BATCH) if arguments["buffer"] is None else arguments["buffer"]
    public.restamp(**arguments)
    return bytes(buffer)


def framed(buffer: Any, position: Any) -> Any:
    framing = public.RecordBatchFraming()
    return framing.measure(buffer, position), framing.inspect(buffer, position), framing.verify(buffer, position)


def _bytes_of(batches: Iterator[Any]) -> list[bytes]:
    return [bytes(batch) for batch in batches]


Call = tuple[Callable[..., Any], dict[str, Any]]

OF_IMPLEMENTATIONS: dict[str, Call] = {
    "BatchBuilder": (lambda face, **a: face.BatchBuilder(**a).limit, SETTINGS),
    "BatchBuilder.limit": (_limited, {"limit": 5}),
    "BatchBuilder.append": (lambda face, **a: _appended(face, "append", **a), RECORD),
    "BatchBuilder.append_at": (lambda face, **a: _appended(face, "append_at", **a), {"offset_delta": 3, **RECORD}),
    "BatchBuilder.append_many": (
        lambda face, **a: _appended(face, "append_many", **a),
        {"timestamp": 1, "values": [b"1", None], "keys": [None, b"2"], "start": 0},
    ),
    "BatchBuilder.append_columns": (
        lambda face, **a: _appended(face, "append_columns", **a),
        {"columns": COLUMNS, "start": 0},
    ),
    "RecordColumns": (
        lambda face, **a: _appended(face, "append_columns", columns=RecordColumns(**a)),
        COLUMNS._asdict(),
    ),
    "BinaryColumn": (
        lambda face, **a: _appended(face, "append_columns", columns=COLUMNS._replace(values=BinaryColumn(**a))),
        COLUMN._asdict(),
    ),
    "HeaderColumn": (
        lambda face, **a: _appended(face, "append_columns", columns=COLUMNS._replace(headers=HeaderColumn(**a))),
        HEADERS._asdict(),
    ),
    "RecordSource": (
        lambda face, **a: (face.RecordSource(**a).rows, face.RecordSource(**a).has_destinations),
        {"columns": COLUMNS, "destinations": DESTINATIONS},
    ),
    "Destinations": (
        lambda face, **a: _places(face, face.RecordSource(COLUMNS, Destinations(**a))),
        DESTINATIONS._asdict(),
    ),
    "Appender.append_rows": (_places, {"source": None, "start": 0, "enough": 1000}),
    "BatchBuilder.build": (
        _built,
        {
            "base_offset": 5,
            "producer_id": 1,
            "producer_epoch": 1,
            "base_sequence": 1,
            "partition_leader_epoch": 1,
            "last_offset_delta": 3,
        },
    ),
    "ConsumerRecord": (
        _record,
        {
            "topic": "t",
            "partition": 1,
            "offset": 5,
            "timestamp": 1,
            "timestamp_type": 0,
            "key": b"k",
            "value": None,
            "headers": [("h", b"x")],
            "leader_epoch": 3,
            "delivery_count": 2,
        },
    ),
    "LazyDelivery": (lambda face, index: face.LazyDelivery("batch", index).index, {"index": 5}),
    "Appender": (
        lambda face, handle: bool(face.Appender(face.LazyDelivery if handle is None else handle)),
        {"handle": None},
    ),
    "Appender.append": (_place, {"topic": "t", "partition": 1, **RECORD}),
    "TopicSlots": (_slots, {"partitions": 3, "sticky": 1, "partition": 0, "builder": None, "closed": 0}),
    "fnv1a": (lambda face, data: face.fnv1a(data), {"data": b"key"}),
    "murmur2": (lambda face, data: face.murmur2(data), {"data": b"key"}),
    "partition_for_key": (
        lambda face, key, partitions: face.partition_for_key(key, partitions),
        {"key": b"k", "partitions": 3},
    ),
    "decode_records": (lambda face, **a: repr(face.decode_records(**a)), READING),
    "decode_some": (lambda face, **a: repr(face.decode_some(**a)), {**READING, "enough": 1}),
    "iter_batches": (lambda face, **a: repr(list(face.iter_batches(**a))), READING),
    "read_end_marker": (
        lambda face, batch, max_decompressed: face.read_end_marker(batch, max_decompressed),
        {"batch": BATCH, "max_decompressed": 1000},
    ),
    "decode_arrow": (
        lambda face, chunks, columns, max_decompressed: face.decode_arrow(
            chunks, columns=columns, max_decompressed=max_decompressed
        ),
        {"chunks": [("t", 0, BATCH)], "columns": ["value", "headers"], "max_decompressed": 1000},
    ),
    "decode_arrow_some": (
        lambda face, chunks, enough, max_decompressed: face.decode_arrow_some(
            chunks, enough, True, max_decompressed=max_decompressed
        ),
        {"chunks": [("t", 0, BATCH)], "enough": 1, "max_decompressed": 1000},
    ),
    "ArrowChunk": (
        lambda face, **a: face.decode_arrow([public.ArrowChunk(**a)], True),
        {"topic": "t", "partition": 0, "buffer": BATCH, "start_offset": 0, "end_offset": 5, "aborted": [(1, 1)]},
    ),
    "encode_arrow": (
        lambda face, **a: _bytes_of(face.encode_arrow(**a)),
        {
            "data": TABLE,
            "limit": 1000,
            "timestamp": 5,
            "compression": CompressionType.ZSTD,
            "level": 3,
            "base_offset": 1,
        },
    ),
    "down_convert": (
        lambda face, **a: face.down_convert(**a),
        {"buffer": BATCH, "magic": 1, "first_offset": 0, "level": 3, "max_decompressed": 1000},
    ),
    "up_convert": (
        lambda face, **a: face.up_convert(**a),
        {"buffer": BATCH, "magic": 2, "level": 3, "max_decompressed": 1000},
    ),
    "batch_of_sent": (
        lambda face, **a: face.batch_of_sent(**a),
        {"buffer": SENT, "level": 3, "max_decompressed": 1000},
    ),
}
"""What is made over an implementation: takes that first."""

WRITTEN_ONCE: dict[str, Call] = {
    "MessageSetBuilder": (
        _set_built,
        {
            "magic": 1,
            "limit": 1000,
            "compression": CompressionType.LZ4,
            "level": 3,
            "log_append_time": 5,
            "base_offset": 7,
        },
    ),
    "MessageSetBuilder.append_at": (
        lambda **a: _set_builder().append_at(**a),
        {"offset_delta": 3, **RECORD, "headers": ()},
    ),
    "MessageSetBuilder.append_many": (
        lambda **a: _set_builder().append_many(**a),
        {"timestamp": 1, "values": [b"1", None], "keys": [None, b"2"], "start": 0},
    ),
    "RecordBatchFraming": (lambda make_info: public.RecordBatchFraming(make_info).inspect(BATCH), {"make_info": None}),
    "RecordBatchFraming.measure": (framed, {"buffer": BATCH, "position": 0}),
    "check_batch": (public.check_batch, {"buffer": BATCH, "position": 0}),
    "read_header": (public.read_header, {"buffer": BATCH, "position": 0}),
    "iter_headers": (lambda **a: list(public.iter_headers(**a)), {"buffer": BATCH, "position": 0}),
    "check_level": (public.check_level, {"compression": CompressionType.GZIP, "level": 3}),
    "crc32c": (public.crc32c, {"data": BATCH, "value": 0}),
    "decode_control_type": (public.decode_control_type, {"key": bytes(4)}),
    "decode_end_marker": (public.decode_end_marker, {"key": bytes(4), "value": bytes(6)}),
    "encode_end_marker": (lambda **a: public.encode_end_marker(commit=True, **a), {"coordinator_epoch": 3}),
    "record_columns": (lambda **a: list(public.record_columns(**a)), {"data": TABLE, "timestamp": 1}),
    "restamp": (
        _restamped,
        {"buffer": None, "position": 0, "base_offset": 5, "partition_leader_epoch": 1, "log_append_time": 5},
    ),
    "size_of_message": (public.size_of_message, {"magic": 1, "key": b"k", "value": b"v"}),
    "size_of_record": (
        public.size_of_record,
        {"key": b"k", "value": b"v", "headers": [("h", b"x")], "timestamp_delta": 3, "offset_delta": 3},
    ),
}
"""What there is once for both implementations."""

NO_FUNCTIONS = {
    "ABORT", "Appended", "COMMIT", "CURRENT_MAGIC", "DEFAULT_MAX_DECOMPRESSED", "HEADER_SIZE", "IMPLEMENTATION",
    "MAX_BATCH_SIZE", "BatchHeader", "BatchInfo", "CompressionType", "Deserialize", "EndMarker", "Magic",
    "arrow_schema",
}  # fmt: skip
"""Constants, types, tuples that hold whatever they are given, and a function of one flag."""


def _released() -> memoryview:
    view = memoryview(b"released")
    view.release()
    return view


# fmt: off
_ODD = (
    None, True, False, 0, 1, 2, -1, -5, 70_000, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70), 10**5000, 1.5, float("nan"),
    "", "text", "10", "\ud800", b"", b"bytes", (), {}, {"a": b"b"}, {1: 2}, [], [1], [None], [("h", b"v")], [("h",)],
    ["ab"], [(b"h", b"v")], [("\ud800", b"")], [("h", "v")], [["h", None]], {"h"}, "x" * 100, object, Decimal(5),
    datetime(2026, 1, 1, tzinfo=UTC), CompressionType.ZSTD, len, BATCH, [BATCH],
)
# fmt: on
ODD_VALUES: list[Callable[[], Any]] = [
    *[partial(copy, value) for value in _ODD],
    lambda: bytearray(b"x" * 70),
    lambda: memoryview(b"x" * 70),
    lambda: memoryview(array.array("i", range(40))),
    lambda: memoryview(b"x" * 70)[::2],
    lambda: memoryview(bytes(70)).cast("B", (7, 10)),
    _released,
    object,
    lambda: iter([("h", b"v")]),
    lambda: (b"%d" % n for n in range(3)),
    lambda: pa.array([1, 2]),
    lambda: pa.table({"value": [1.5]}),
    lambda: [pa.table({"value": [b""]})],
]
"""Makers of values that most arguments cannot be."""
