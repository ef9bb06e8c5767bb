"""Rows of columns into the open batches of many partitions: the same as record by record."""

from __future__ import annotations

import array
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.records import BinaryColumn, Destinations, RecordColumns, record_columns
from tests.unit.records.faces import FACES, Face, header_lists, optional_bytes

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TOPICS = ["a", "b", "unknown"]
PARTITIONS = 3

rows = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 1, 2, 5, -1]),
        st.sampled_from([-1, -1, -1, 0, 1, 2, 3, -2]),
        st.sampled_from([0, 1_000, 2**50, -2]),
        optional_bytes,
        optional_bytes,
        header_lists,
    ),
    max_size=40,
)


class Batches:
    """Topics with an open batch for all partitions but the last of each."""

    def __init__(self, face: Face, limit: int, *, ignore_keys: bool = False) -> None:
        self.appender = face.Appender(face.LazyDelivery, ignore_keys)
        self.builders: dict[tuple[str, int], Any] = {}
        for number, topic in enumerate(TOPICS[:2]):
            slots = face.TopicSlots()
            slots.partitions, slots.sticky = PARTITIONS, number
            for partition in range(PARTITIONS - number):
                self.builders[topic, partition] = face.BatchBuilder(limit=limit)
                slots.open(partition, (topic, partition), self.builders[topic, partition])
            self.appender.topics[topic] = slots

    def built(self) -> dict[tuple[str, int], bytes]:
        return {place: bytes(builder.build()) for place, builder in self.builders.items() if builder.count}


def source_of(face: Face, records: list[Any]) -> Any:
    headers = [[{"key": k, "value": v} for k, v in row[5]] or None for row in records]
    (columns,) = list(
        record_columns(
            pa.record_batch(
                {
                    "key": pa.array([row[3] for row in records], pa.binary()),
                    "value": pa.array([row[4] for row in records], pa.large_binary()),
                    "headers": pa.array(headers, HEADERS),
                }
            )
        )
    )
    columns = columns._replace(timestamps=array.array("q", [row[2] for row in records]).tobytes())
    numbers = array.array("i", [row[0] for row in records]).tobytes()
    partitions = array.array("i", [row[1] for row in records]).tobytes()
    return face.RecordSource(columns, Destinations(TOPICS, numbers, partitions))


def one_by_one(batches: Batches, records: list[Any], start: int) -> list[tuple[Any, int]]:
    """Where each goes, up to the first that does not go anywhere."""
    places = []
    for topic, partition, timestamp, key, value, headers in records[start:]:
        if topic not in range(len(TOPICS)) or partition < -1 or timestamp < 0:
            break
        made = batches.appender.append(
            TOPICS[topic], value, key, None if partition < 0 else partition, timestamp, headers
        )
        if made is None:
            break
        places.append((made.batch, made.index))
    return places


def places_of(appended: Any) -> list[tuple[Any, int]]:
    batches, indexes, owners = appended
    following = list(indexes)
    places = []
    for owner in owners:
        places.append((batches[owner], following[owner]))
        following[owner] += 1
    return places


@pytest.mark.slow
@given(rows, st.sampled_from([150, 1_000, 1 << 20]), st.booleans())
def test_the_same_as_record_by_record(records: list[Any], limit: int, ignore_keys: bool) -> None:
    found = []
    for face in FACES:
        expected, columns = (Batches(face, limit, ignore_keys=ignore_keys) for _ in range(2))
        if not records:
            continue
        source = source_of(face, records)
        start = 0
        while start < len(records):  # behind each that goes nowhere it goes on
            places = one_by_one(expected, records, start)
            assert places_of(columns.appender.append_rows(source, start)) == places
            start += len(places) + 1
        built = columns.built()
        assert built == expected.built()
        found.append(built)
    assert all(each == found[0] for each in found)


def values(face: Face, count: int, size: int = 10, **destinations: Any) -> Any:
    (columns,) = record_columns(pa.record_batch({"value": [b"%0*d" % (size, n) for n in range(count)]}), timestamp=5)
    return face.RecordSource(columns, Destinations(["a"], **destinations))


def test_rows_without_a_timestamp_are_of_now(face: Face) -> None:
    import time

    batches = Batches(face, 1000)
    before = int(time.time() * 1000)
    (columns,) = record_columns(pa.record_batch({"value": [b"1", b"2"]}))
    batches.appender.append_rows(face.RecordSource(columns, Destinations(["a"])))
    after = int(time.time() * 1000)
    (record, other) = face.decode_records(batches.built()["a", 0], "a", 0)
    assert before <= record.timestamp == other.timestamp <= after


def test_it_stops_when_it_has_enough(face: Face) -> None:
    appender = Batches(face, 1 << 20).appender
    source = values(face, 100)
    taken = len(appender.append_rows(source, 0, 50)[2])
    assert 0 < taken < 10
    assert len(appender.append_rows(source, taken)[2]) == 100 - taken
    assert appender.append_rows(source, 100) == ([], [], b"")
    assert appender.append_rows(source, 1000) == ([], [], b"")


def test_one_call_takes_so_many_rows(face: Face) -> None:
    appender = Batches(face, 1 << 24).appender
    source = values(face, 20_000, 1)
    assert len(appender.append_rows(source, 0, 1 << 30)[2]) == 16384
    assert len(appender.append_rows(source, 16384, 1 << 30)[2]) == 20_000 - 16384


def test_one_call_takes_so_many_batches(face: Face) -> None:
    """Which batch a row is in has to fit into a byte."""
    appender = face.Appender(face.LazyDelivery)
    slots = appender.topics["a"] = face.TopicSlots()
    for partition in range(300):
        slots.open(partition, partition, face.BatchBuilder(limit=1000))
    source = values(face, 600, partitions=array.array("i", [*range(300), *range(300)]).tobytes())
    batches, indexes, owners = appender.append_rows(source)
    assert (batches, indexes, owners) == (list(range(256)), [0] * 256, bytes(range(256)))
    places = places_of(appender.append_rows(source, 256))
    assert places[:44] == [(partition, 0) for partition in range(256, 300)]
    assert places[44:] == [(partition, 1) for partition in range(212)]


def test_rows_that_make_no_sense(face: Face) -> None:
    """Those before are appended; the row itself raises in the next call."""
    positions = array.array("i", (0, 1, 2, 1)).tobytes()
    columns = RecordColumns(3, None, BinaryColumn(0, None, positions, b"xxx"), None, 1, None)
    appender = Batches(face, 1000).appender
    source = face.RecordSource(columns, Destinations(["a"]))
    assert places_of(appender.append_rows(source)) == [(("a", 0), 0), (("a", 0), 1)]
    with pytest.raises(ValueError, match="are inconsistent at row 2"):
        appender.append_rows(source, 2)
    assert appender.append(topic="a", value=b"x").index == 2, "the lock is free, and nothing half done"


def test_wrong_sources(face: Face) -> None:
    appender = Batches(face, 1000).appender
    (columns,) = record_columns(pa.record_batch({"value": [b"1", b"2"]}))
    with pytest.raises(TypeError, match="source must be a RecordSource with destinations"):
        appender.append_rows(face.RecordSource(columns))
    with pytest.raises(TypeError, match="source must be a RecordSource, not RecordColumns"):
        appender.append_rows(columns)
    with pytest.raises(ValueError, match="topics must not be empty"):
        face.RecordSource(columns, Destinations([]))
    for name in ("numbers", "partitions"):
        with pytest.raises(ValueError, match="are inconsistent at row 0"):
            face.RecordSource(columns, Destinations(["a"], **{name: bytes(7)}))


def test_threads_share_the_batches(face: Face) -> None:
    """Columns and single records by several threads: each is there once, those of a thread in their order."""
    batches = Batches(face, 1 << 24)
    count = 4000
    sources = [values(face, count), values(face, count)]
    sizes: list[int] = []

    def columns(source: Any) -> None:
        start = 0
        while start < count:
            start += len(batches.appender.append_rows(source, start, 500)[2])
        sizes.append(start)

    def singles() -> None:
        for _ in range(count):
            assert batches.appender.append("a", b"single") is not None

    threads = [threading.Thread(target=columns, args=(source,)) for source in sources]
    threads.append(threading.Thread(target=singles))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [record.value for record in face.decode_records(batches.built()["a", 0], "a", 0)]
    assert len(found) == 3 * count
    assert found.count(b"single") == count
    first = [value for value in found if value != b"single"]
    assert sorted(first) == sorted([b"%010d" % n for n in range(count)] * 2)
