"""Batches of Arrow columns: the same as record by record, whatever the columns look like."""

from __future__ import annotations

import array
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import IllegalStateError, SerializationError
from kclient.records import BinaryColumn, CompressionType, HeaderColumn, RecordColumns, read_header, record_columns
from kclient.records.arrow_source import milliseconds_column
from tests.unit.records.faces import FACES, Face, build, header_lists, optional_bytes

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
rows = st.lists(
    st.tuples(st.integers(-1, 2**50), optional_bytes, optional_bytes, header_lists), min_size=1, max_size=20
)


def table(records: list[Any], *, with_headers: bool = True) -> pa.Table:
    columns = {
        "key": pa.array([row[1] for row in records], pa.binary()),
        "value": pa.array([row[2] for row in records], pa.binary()),
        "topic": pa.array(["ignored"] * len(records)),
        "timestamp": pa.array([row[0] * 1000 for row in records], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    if with_headers:
        headers = [[{"key": k, "value": v} for k, v in row[3]] or None for row in records]
        columns["headers"] = pa.array(headers, HEADERS)
    return pa.table(columns)


def encoded(face: Face, data: Any, **settings: Any) -> list[bytes]:
    return [bytes(batch) for batch in face.encode_arrow(data, **{"limit": 1 << 24, **settings})]


@given(rows, st.sampled_from(CompressionType), st.booleans())
def test_the_same_as_record_by_record(records: list[Any], codec: CompressionType, with_headers: bool) -> None:
    if not with_headers:
        records = [(*row[:3], []) for row in records]
    for face in FACES:
        data = table(records, with_headers=with_headers)
        assert encoded(face, data, compression=codec) == [build(face, records, compression=codec)]


@given(rows, st.integers(0, 19), st.integers(1, 7))
def test_slices_and_chunks(records: list[Any], start: int, size: int) -> None:
    whole = table(records)
    start = min(start, len(records) - 1)
    pieces = [whole.slice(at, size) for at in range(start, len(records), size)]
    for face in FACES:
        expected = [build(face, records[start:])]
        assert encoded(face, whole.slice(start)) == expected
        assert encoded(face, pa.concat_tables(pieces)) == expected
        assert encoded(face, whole.slice(start).to_batches()) == expected
        (batch,) = whole.slice(start).combine_chunks().to_batches()
        assert encoded(face, batch) == expected


def test_batches_as_large_as_the_limit_allows(face: Face) -> None:
    data = pa.table({"value": pa.array([b"%04d" % n * 10 for n in range(1000)], pa.binary())})
    batches = encoded(face, data, limit=2000, timestamp=77, base_offset=5)
    assert all(len(batch) <= 2000 for batch in batches)
    headers = [read_header(batch) for batch in batches]
    assert [header.base_offset for header in headers[1:]] == [header.next_offset for header in headers[:-1]]
    assert (headers[0].base_offset, headers[-1].next_offset) == (5, 1005)
    records = [record for batch in batches for record in face.decode_records(batch, "t", 0)]
    assert [(r.value, r.timestamp) for r in records] == [(b"%04d" % n * 10, 77) for n in range(1000)]
    large = pa.table({"value": [b"x" * 5000, b"y", b"z" * 5000]})
    assert [read_header(batch).count for batch in encoded(face, large, limit=2000)] == [1, 1, 1]
    assert encoded(face, large, limit=2000, is_transactional=True)[0][22] == 0x10


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.large_string(), pa.binary(3), pa.binary_view()])
def test_kinds_of_binary(face: Face, kind: Any) -> None:
    values = [b"abc", None, b"xyz"] if pa.types.is_binary(kind) or "binary" in str(kind) else ["abc", None, "xyz"]
    data = pa.table({"value": pa.array(values, kind), "key": pa.array(values, pa.string()).dictionary_encode()})
    (batch,) = encoded(face, data.slice(1))
    assert [(r.key, r.value) for r in face.decode_records(batch, "t", 0)] == [(None, None), (b"xyz", b"xyz")]


@pytest.mark.parametrize(
    ("column", "stamps"),
    [
        (pa.array([1_500, None], pa.int64()), [1_500, 9]),
        (pa.array([1_500, None], pa.int32()), [1_500, 9]),
        (pa.array([1_500_999, None], pa.timestamp("us")), [1_500, 9]),
        (pa.array([1_500_999_999, 5], pa.timestamp("ns", "Europe/Berlin")), [1_500, 0]),
        (pa.array([3, 4], pa.timestamp("s")), [3_000, 4_000]),
        (pa.array([None, None], pa.timestamp("ms")), [9, 9]),
        (pa.array([None, None], pa.null()), [9, 9]),
    ],
)
def test_kinds_of_timestamps(face: Face, column: Any, stamps: list[int]) -> None:
    data = pa.table({"value": [b"1", b"2"], "timestamp": column})
    (batch,) = encoded(face, data, timestamp=9)
    assert [r.timestamp for r in face.decode_records(batch, "t", 0)] == stamps


def test_headers_as_a_map(face: Face) -> None:
    headers = pa.array([[("h", b"1"), ("h", None)], None], pa.map_(pa.string(), pa.binary()))
    (batch,) = encoded(face, pa.table({"value": [b"1", b"2"], "headers": headers}))
    assert [r.headers for r in face.decode_records(batch, "t", 0)] == [(("h", b"1"), ("h", None)), ()]


def test_what_decoding_gives_is_what_encoding_takes(face: Face) -> None:
    records = [(1000 + n, b"k%d" % n, None if n == 3 else b"v", [("h", b"x")] * (n % 3)) for n in range(10)]
    batch = build(face, records)
    assert encoded(face, face.decode_arrow([("t", 0, batch)], include_headers=True)) == [batch]


def test_nothing(face: Face) -> None:
    assert encoded(face, pa.table({"value": pa.array([], pa.binary())})) == []
    assert encoded(face, []) == []
    (batch,) = encoded(face, pa.table({"value": pa.array([None, None], pa.binary())}))
    assert [r.value for r in face.decode_records(batch, "t", 0)] == [None, None]
    (batch,) = encoded(face, pa.table({"value": [b"", b""]}))
    assert [r.value for r in face.decode_records(batch, "t", 0)] == [b"", b""]


@pytest.mark.parametrize(
    ("columns", "flaw"),
    [
        ({"key": [b""]}, "'value' is missing"),
        ({"value": [b""], "colour": [1], "shape": [2]}, "unknown columns colour, shape"),
        ({"value": [1.5]}, "'value' of type double"),
        ({"value": [b""], "timestamp": ["now"]}, "'timestamp' of type string"),
        ({"value": [b""], "headers": [1]}, "'headers' of type int64"),
        ({"value": [b""], "headers": [[{"name": "x"}]]}, "'headers' of type list"),
    ],
)
def test_columns_that_are_no_records(face: Face, columns: Any, flaw: str) -> None:
    with pytest.raises(SerializationError, match=flaw):
        encoded(face, pa.table(columns))


@pytest.mark.parametrize(("unit", "ticks"), [("us", 1000), ("ns", 1_000_000)])
def test_moments_just_before_the_epoch_are_before_it(unit: str, ticks: int) -> None:
    numbers = [-1, -ticks, -ticks - 1, 0, 1, ticks - 1, ticks, None, -(2**63), 2**63 - 1]
    column = pa.array(numbers, pa.timestamp(unit))
    expected = [None if number is None else number // ticks for number in numbers]
    assert milliseconds_column(column).to_pylist() == expected
    assert milliseconds_column(column[3:8]).to_pylist() == expected[3:8]


def test_timestamps_before_the_epoch(face: Face) -> None:
    builder = face.BatchBuilder(limit=1000)
    (columns,) = record_columns(pa.table({"value": [b"1", b"2"], "timestamp": [5, -2]}))
    with pytest.raises(ValueError, match="-2"):
        builder.append_columns(columns)
    assert builder.count == 1, "those before it were taken"
    with pytest.raises(ValueError, match="-3"):
        encoded(face, pa.table({"value": [b"1"]}), timestamp=-3)


def positions(*numbers: int) -> bytes:
    return array.array("i", numbers).tobytes()


HEADER_COLUMN = HeaderColumn(0, None, positions(5, 6, 7), 5, 2, BinaryColumn(0, None, positions(0, 1, 2), b"kk"), None)


@pytest.mark.parametrize(
    "column",
    [
        BinaryColumn(0, None, positions(0, 1), b"xxx"),
        BinaryColumn(1, None, positions(0, 1, 2), b"xxx"),
        BinaryColumn(-1, None, positions(0, 1, 2), b"xxx"),
        BinaryColumn(2**40, None, positions(0, 1, 2), b"xxx"),
        BinaryColumn(0, b"", positions(0, 1, 2), b"xxx"),
        BinaryColumn(0, None, positions(0, 2, 1), b"xxx"),
        BinaryColumn(0, None, positions(-1, 0, 1), b"xxx"),
        BinaryColumn(0, None, positions(0, 1, 4), b"xxx"),
        BinaryColumn(0, None, positions(0, 1, 2**31 - 1), b"xxx"),
    ],
)
def test_columns_that_lie(face: Face, column: BinaryColumn) -> None:
    for columns in (
        RecordColumns(2, None, column, None, 1, None),
        RecordColumns(2, column, None, None, 1, None),
        RecordColumns(2, None, column, None, 1, HEADER_COLUMN),
    ):
        with pytest.raises(ValueError, match="are inconsistent at row"):
            face.BatchBuilder(limit=1000).append_columns(columns)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ends": positions(5, 6)},
        {"first": 1},
        {"ends": positions(4, 5, 6)},
        {"ends": positions(5, 7, 6)},
        {"ends": positions(5, 6, 8)},
        {"validity": b""},
        {"keys": None},
        {"keys": BinaryColumn(0, b"\x01", positions(0, 1, 2), b"kk")},
        {"keys": BinaryColumn(0, None, positions(0, 1), b"kk")},
        {"values": BinaryColumn(0, None, positions(0, 1, 9), b"kk")},
        {"wide": True},
    ],
)
def test_headers_that_lie(face: Face, wrong: dict[str, Any]) -> None:
    value = BinaryColumn(0, None, positions(0, 1, 2), b"xx")
    with pytest.raises(ValueError, match="are inconsistent at row"):
        face.BatchBuilder(limit=1000).append_columns(
            RecordColumns(2, None, value, None, 1, HEADER_COLUMN._replace(**wrong))
        )


def test_headers_of_rows_that_are_null(face: Face) -> None:
    """What lies behind a null row is no row's, even a null key."""
    items = pa.StructArray.from_arrays(
        [pa.array(["a", None, "c"]), pa.array([b"1", None, None], pa.binary())], ["key", "value"]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), items, mask=pa.array([False, True, False]))
    (batch,) = encoded(face, pa.table({"value": [b"1", b"2", b"3"], "headers": lists}))
    assert [r.headers for r in face.decode_records(batch, "t", 0)] == [(("a", b"1"),), (), (("c", None),)]
    (batch,) = encoded(face, pa.table({"value": [b"2", b"3"], "headers": lists.slice(1)}))
    assert [r.headers for r in face.decode_records(batch, "t", 0)] == [(), (("c", None),)]


STRUCT = pa.struct([pa.field("value", pa.large_string()), pa.field("key", pa.dictionary(pa.int8(), pa.large_string()))])


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(STRUCT),
        pa.large_list(STRUCT),
        pa.list_view(STRUCT),
        pa.large_list_view(STRUCT),
        pa.map_(pa.string(), pa.large_string()),
        pa.list_(pa.struct([pa.field("key", pa.string_view()), pa.field("value", pa.binary_view())])),
    ],
)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_kinds_of_headers(face: Face, kind: Any, start: int) -> None:
    rows = [[("a", "1"), ("b", "x" * 20)], None, [("é", None)], [], [("a", "")]]
    made = rows if pa.types.is_map(kind) else [r and [{"key": k, "value": v} for k, v in r] for r in rows]
    if "binary_view" in str(kind):
        made = [r and [{**h, "value": h["value"] and h["value"].encode()} for h in r] for r in made]  # type: ignore[index,union-attr]
    column = pa.array(made, kind).slice(start)
    (batch,) = encoded(face, pa.table({"value": [b"v"] * len(column), "headers": column}))
    expected = [tuple((k, None if v is None else v.encode()) for k, v in row or ()) for row in rows[start:]]
    assert [r.headers for r in face.decode_records(batch, "t", 0)] == expected


@pytest.mark.parametrize(
    ("column", "flaw"),
    [
        (pa.array([[{"key": None, "value": b""}]], HEADERS), "the key of one, is null"),
        (pa.array([[None]], HEADERS), "is null"),
        (pa.array([[{"key": b"k", "value": b""}]]), "the key of a header is text"),
        (pa.array([[{"key": "k", "value": 5}]]), "int64 cannot be taken as binary"),
        (pa.array([[{"key": "k"}]]), "not a list of keys and values"),
        (pa.array([["k"]]), "not a list of keys and values"),
        (
            pa.MapArray.from_arrays(
                [0, 1],
                pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(positions(0, 1)), pa.py_buffer(b"\xff")]),
                pa.array([b""]),
            ),
            "not text",
        ),
    ],
)
def test_headers_that_are_none(face: Face, column: Any, flaw: str) -> None:
    with pytest.raises(SerializationError, match=rf"column 'headers' of type .*{flaw}"):
        encoded(face, pa.table({"value": [b"v"], "headers": column}))


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_what_lies_one_behind_the_other_is_not_copied(kind: Any) -> None:
    column = pa.array(["a", "bc", None], kind).slice(1)
    (columns,) = record_columns(pa.record_batch({"value": column}))
    assert columns.values is not None
    assert columns.values.data.address == column.buffers()[2].address  # type: ignore[union-attr]
    assert columns.values.ends.address == column.buffers()[1].address  # type: ignore[union-attr]
    assert columns.values.wide == ("large" in str(kind))


def test_other_mistakes(face: Face) -> None:
    column = BinaryColumn(0, None, positions(0, 1, 2), b"xx")
    good = RecordColumns(2, None, column, None, 1, None)
    builder = face.BatchBuilder(limit=1000)
    with pytest.raises(ValueError, match="start must be from 0"):
        builder.append_columns(good, -1)
    with pytest.raises(ValueError, match="are inconsistent"):
        builder.append_columns(good._replace(timestamps=bytes(8)))
    with pytest.raises(ValueError, match="are inconsistent"):
        builder.append_columns(good._replace(rows=-1))
    with pytest.raises(TypeError):
        builder.append_columns(good._replace(timestamp=1.5))  # type: ignore[arg-type]
    assert builder.append_columns(good, 2) == 0
    assert builder.append_columns(good, 3) == 0
    assert builder.append_columns(good, 1) == 1
    builder.build()
    with pytest.raises(IllegalStateError):
        builder.append_columns(good)


def test_without_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from kclient.records import encode_arrow\n"
        "try: next(encode_arrow([], limit=1))\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("MissingExtraError"), done
    assert "htp-kclient[arrow]" in done.stdout
