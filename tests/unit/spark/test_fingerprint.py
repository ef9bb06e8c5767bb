"""The fingerprint of a task's rows: what it takes for the same, and what it tells apart."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.spark.fingerprint import RowsSeen

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS),
    ]
)
Row = tuple[Any, ...]

texts = st.none() | st.text("ab", max_size=2)
row = st.tuples(
    texts.map(lambda text: None if text is None else text.encode()),
    texts,
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 2).map(lambda n: datetime.datetime(2024, 1, 1, microsecond=n, tzinfo=datetime.UTC)),
    st.none() | st.lists(st.fixed_dictionaries({"key": st.text("a"), "value": st.none() | st.binary(max_size=1)})),
)


def seen(*batches: Sequence[Row]) -> RowsSeen:
    found = RowsSeen()
    for rows in batches:
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
        found.add(
            pa.record_batch(
                [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
            )
        )
    return found


@given(st.lists(row, max_size=6), st.randoms(use_true_random=False), st.integers(0, 6))
def test_order_and_batches_count_for_nothing(rows: list[Row], chance: Any, cut: int) -> None:
    shuffled = list(rows)
    chance.shuffle(shuffled)
    one, other = seen(rows), seen(shuffled[:cut], shuffled[cut:])
    assert (one.rows, one.fingerprint) == (other.rows, other.fingerprint)


@given(st.lists(row, max_size=4), st.lists(row, max_size=4))
def test_other_rows_have_another(some: list[Row], other: list[Row]) -> None:
    same = sorted(map(repr, some)) == sorted(map(repr, other))
    found = [(each.rows, each.fingerprint) for each in (seen(some), seen(other))]
    assert (found[0] == found[1]) is same


@pytest.mark.parametrize(
    ("some", "other"),
    [
        ([(b"a", "b"), (b"c", "d")], [(b"a", "d"), (b"c", "b")]),
        ([(b"ab", "c")], [(b"a", "bc")]),
        ([(b"a", "b")], [(b"b", "a")]),
        ([(b"", None)], [(None, "")]),
        ([(b"a", "b")], [(b"a", "b"), (b"a", "b")]),
        ([(b"a", "b")] * 2 + [(b"c", "d")], [(b"a", "b")] + [(b"c", "d")] * 2),
    ],
    ids=["values swapped", "moved over", "columns swapped", "null", "twice", "how often"],
)
def test_what_would_look_alike(some: list[Row], other: list[Row]) -> None:
    rest = (None, None, None)
    assert seen([(*one, *rest) for one in some]).fingerprint != seen([(*one, *rest) for one in other]).fingerprint


def test_it_stays_what_it_is() -> None:
    """It is compared with what an earlier version may have committed: to change it takes another format."""
    moment = datetime.datetime(2024, 5, 17, tzinfo=datetime.UTC)
    rows: list[Row] = [
        (b"k", "v", 1, moment, [{"key": "h", "value": b"x"}]),
        (None, None, None, None, None),
        (b"", "", 0, moment, []),
    ]
    assert seen(rows).fingerprint == "f7d35f1cf56292ab"


def test_the_topic_of_all_rows_is_as_a_column_of_it() -> None:
    rows = pa.record_batch([pa.array(["a", "b"])], ["value"])
    named = rows.append_column("topic", pa.array(["t", "t"]))
    by_option, by_column, other, none = RowsSeen("t"), RowsSeen(), RowsSeen("u"), RowsSeen()
    for seen_by, batch in ((by_option, rows), (by_column, named), (other, rows), (none, rows)):
        seen_by.add(batch)
    assert by_option.fingerprint == by_column.fingerprint
    assert len({by_option.fingerprint, other.fingerprint, none.fingerprint}) == 3
