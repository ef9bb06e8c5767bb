"""What an audit finds in two streams: nothing where they are the same, and where they part if they are not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from kclient.spark.pipelines.audit import stretches_of
from kclient.spark.pipelines.audit_compare import Comparison, Rules
from kclient.spark.pipelines.audit_results import Latency, RangeResult, by_partition, from_text, to_text
from kclient.spark.pipelines.checksums import ContentSum
from kclient.spark.pipelines.columns import stored_schema

ORDER, OFFSET = Rules(by_offset=False), Rules(by_offset=True)


class Rec(NamedTuple):
    """A record; times are in milliseconds."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    time: int = 0
    kind: int = 0
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def batch(records: Sequence[Rec]) -> pa.RecordBatch:
    header = stored_schema().field("headers").type
    pairs = [None if r.headers is None else [{"key": k, "value": v} for k, v in r.headers] for r in records]
    columns = {
        "key": pa.array([r.key for r in records], pa.binary()),
        "value": pa.array([r.value for r in records], pa.binary()),
        "headers": pa.array(pairs, header),
        "offset": pa.array([r.offset for r in records], pa.int64()),
        "timestamp": pa.array([r.time * 1000 for r in records], pa.timestamp("us", "UTC")),
        "timestampType": pa.array([r.kind for r in records], pa.int32()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def batches(records: Sequence[Rec], chance: random.Random | None = None) -> list[pa.RecordBatch]:
    found, start = [], 0
    while start < len(records):
        size = len(records) if chance is None else chance.randrange(1, 8)
        found.append(batch(records[start : start + size]))
        start += size
    return found


def compare(
    left: Sequence[Rec], right: Sequence[Rec], rules: Rules = ORDER, chance: random.Random | None = None
) -> list[RangeResult]:
    bounds = [(side[0].offset, side[-1].offset + 1) if side else (0, 0) for side in (left, right)]
    comparison = Comparison(rules, 0, (bounds[0], bounds[1]))
    found = list(comparison.ranges(batches(left, chance), batches(right, chance)))
    assert [from_text(to_text(each)) for each in found] == found
    return found


def records(values: Sequence[int], start: int = 0) -> list[Rec]:
    return [Rec(start + place, b"%d" % value) for place, value in enumerate(values)]


def found(left: Sequence[int], right: Sequence[int], rules: Rules = ORDER) -> dict[str, Any]:
    [one] = compare(records(left), records(right, 100), rules)
    names = ("matched", "changed", "moved", "only_left", "only_right", "again")
    told = {name: getattr(one, name) for name in names}
    place = None
    if one.parting is not None:
        place = tuple(None if each is None else each.value for each in (one.parting.left, one.parting.right))
    return {name: count for name, count in {**told, "place": place}.items() if count}


def test_in_order() -> None:
    numbers = range(20)
    assert found(numbers, numbers) == {"matched": 20}
    assert found([], []) == {}
    changed = [*range(7), 70, *range(8, 20)]
    assert found(numbers, changed) == {"matched": 19, "changed": 1, "place": ("'7'", "'70'")}
    lacking = [each for each in numbers if each not in (3, 4)]
    assert found(numbers, lacking) == {"matched": 18, "only_left": 2, "place": ("'3'", "'5'")}
    assert found(lacking, numbers) == {"matched": 18, "only_right": 2, "place": ("'5'", "'3'")}
    twice = [*range(10), 8, 9, *range(10, 20)]
    assert found(numbers, twice) == {"matched": 20, "only_right": 2, "again": 2, "place": ("'10'", "'8'")}
    swapped = [0, 1, 3, 2, *range(4, 20)]
    assert found(numbers, swapped) == {"matched": 18, "moved": 2, "place": ("'2'", "'3'")}
    assert found(numbers, range(18)) == {"matched": 18, "only_left": 2, "place": ("'18'", None)}
    assert found(numbers, range(22)) == {"matched": 20, "only_right": 2, "place": (None, "'20'")}
    assert found([1] * 9, [1] * 8) == {"matched": 8, "only_left": 1, "place": ("'1'", None)}


def test_nothing_in_common() -> None:
    one = found(range(2000), range(5000, 7000))
    assert (one["changed"], one["place"]) == (2000, ("'0'", "'5000'"))


@pytest.mark.parametrize("seed", range(40))
def test_what_was_done_to_a_stream_is_found(seed: int) -> None:
    """Edits far from each other, whatever batches records come in."""
    chance = random.Random(seed)
    left = records(range(300))
    right, expected, place = list(left), dict.fromkeys(("changed", "only_left", "only_right", "moved"), 0), 280
    first = None
    while place > 20:
        kind = chance.choice(list(expected))
        if kind == "changed":
            right[place] = right[place]._replace(value=b"other")
        elif kind == "only_left":
            del right[place]
        elif kind == "only_right":
            right.insert(place, Rec(0, b"new %d" % place))
        else:
            right[place], right[place + 1] = right[place + 1], right[place]
        expected[kind] += 2 if kind == "moved" else 1
        first = place
        place -= chance.randrange(15, 60)
    right = [each._replace(offset=1000 + number) for number, each in enumerate(right)]
    [one] = compare(left, right, chance=chance)
    assert {name: getattr(one, name) for name in expected} == expected
    assert one.matched == 300 - expected["changed"] - expected["only_left"] - expected["moved"]
    assert (one.left.records, one.right.records, one.same) == (300, len(right), first is None)
    if first is not None:
        assert one.parting is not None
        assert one.parting.right is not None
        assert one.parting.right.offset == 1000 + first


@pytest.mark.parametrize("seed", range(40))
def test_by_offset(seed: int) -> None:
    chance = random.Random(seed)
    every = [Rec(offset, b"%d" % offset, headers=(("h", None),)) for offset in range(200)]
    left = [each for each in every if chance.random() < 0.9]
    right = [each for each in every if chance.random() < 0.9]
    right = [each._replace(headers=(("h", b""),)) if chance.random() < 0.05 else each for each in right]
    mine, theirs = {each.offset: each for each in left}, {each.offset: each for each in right}
    [one] = compare(left, right, OFFSET, chance)
    both = mine.keys() & theirs.keys()
    changed = {offset for offset in both if mine[offset] != theirs[offset]}
    assert (one.matched, one.changed) == (len(both) - len(changed), len(changed))
    assert (one.only_left, one.only_right) == (len(mine.keys() - both), len(theirs.keys() - both))
    assert (one.left.missing, one.left.again) == (left[-1].offset - left[0].offset + 1 - len(left), 0)
    differing = changed | (mine.keys() ^ theirs.keys())
    if differing:
        assert one.parting is not None
        seen = [each.offset for each in (one.parting.left, one.parting.right) if each is not None]
        assert set(seen) == {min(differing)}
    else:
        assert one.parting is None


def test_gaps() -> None:
    [one] = compare(records(range(3)), [Rec(5, b"0"), Rec(7, b"1"), Rec(11, b"2")])
    assert (one.right.start, one.right.end, one.right.missing, one.right.gaps, one.right.single) == (5, 12, 4, 2, 1)
    assert one.right.some_gaps == ((6, 7), (8, 11))
    assert (one.same, one.left.gaps) == (True, 0)
    comparison = Comparison(OFFSET, 0, ((0, 20), (0, 20)), (False, True))
    [one] = comparison.ranges([batch([Rec(4, b"x")])], [batch([Rec(4, b"x")])])
    assert (one.left.some_gaps, one.right.some_gaps) == (((0, 4), (5, 20)), ((5, 20),))


def test_an_offset_that_is_there_twice() -> None:
    twice = [Rec(0, b"a"), Rec(1, b"b"), Rec(1, b"b"), Rec(2, b"c")]
    [one] = compare(twice, twice, OFFSET)
    assert (one.left.again, one.right.again, one.parting, one.same) == (1, 1, None, False)
    [one] = compare(twice, [Rec(0, b"a"), Rec(1, b"b"), Rec(2, b"c")], OFFSET)
    assert (one.matched, one.only_left, one.left.again) == (3, 1, 1)


def test_what_does_not_count() -> None:
    one, other = [Rec(0, b"v", b"k", 5)], [Rec(0, b"v", b"other", 7)]
    assert not compare(one, other)[0].same
    assert not compare(one, other, replace(ORDER, ignore=frozenset({"key"})))[0].same
    rules = replace(ORDER, ignore=frozenset({"key", "timestamp"}))
    [same] = compare(one, other, rules)
    assert same.same
    assert same.left_sum == same.right_sum
    [nothing] = compare(one, other, replace(ORDER, ignore=frozenset({"key", "value", "headers", "timestamp"})))
    assert nothing.same


def test_times_of_arrival_are_latency() -> None:
    left = [Rec(number, b"%d" % number, time=1000 * number) for number in range(10)]
    right = [each._replace(time=each.time + 40 + each.offset, kind=1) for each in left]
    [one] = compare(left, right)
    assert (one.same, one.matched, one.latency.records) == (True, 10, 10)
    assert one.left_sum == one.right_sum
    assert one.latency.percentiles() == {"p50": 44, "p90": 48, "p99": 48, "p99.9": 48, "p100": 48}
    [back] = compare(right, left)
    assert back.latency == one.latency
    right[4] = right[4]._replace(value=b"other")
    [one] = compare(left, right)
    assert (one.changed, one.matched) == (1, 9)  # times of arrival do not keep the rest from being found
    [stored] = compare(right, [each._replace(time=0) for each in right], OFFSET)
    assert stored.changed == 10


@pytest.mark.slow
def test_ranges_end_where_both_sides_are_together() -> None:
    left = records(range(1000))
    right = [each._replace(offset=each.offset + 7) for each in left if each.offset not in (150, 151)]
    ranges = compare(left, right, replace(ORDER, range_size=100), random.Random(1))
    assert len(ranges) >= 9
    assert [each.same for each in ranges].count(False) == 1
    assert all((each.left_sum == each.right_sum) == each.same for each in ranges)
    [whole] = by_partition(reversed(ranges))
    assert (whole.left.records, whole.right.records, whole.matched, whole.only_left) == (1000, 998, 998, 2)
    assert (whole.left.start, whole.left.end) == (0, 1000)


@pytest.mark.parametrize("seed", range(10))
def test_checksums_do_not_hang_on_batches(seed: int) -> None:
    chance = random.Random(seed)

    def content() -> bytes | None:
        return chance.choice([None, b"", b"a", b"ab", b"abc"])

    every = [
        Rec(n, content(), content(), chance.randrange(99), 0, chance.choice([None, (), (("h", content()), ("", b""))]))
        for n in range(60)
    ]

    def checksum(parts: Sequence[pa.RecordBatch]) -> str:
        total = ContentSum(("key", "value", "headers", "offset"))
        for part in parts:
            total.add(part)
        return total.told()

    whole = checksum([batch(every)])
    assert checksum(batches(every, chance)) == whole
    assert checksum([batch(every).slice(0, 13), batch(every).slice(13)]) == whole
    place = chance.randrange(60)
    for other in ({"value": b"abd"}, {"key": b"q"}, {"headers": (("x", None),)}, {"offset": 99}):
        assert checksum([batch([*every[:place], every[place]._replace(**other), *every[place + 1 :]])]) != whole
    assert checksum([batch([Rec(0, b"ab", b"c")])]) != checksum([batch([Rec(0, b"a", b"bc")])])
    assert checksum([batch([Rec(0, b"ab"), Rec(1, b"c")])]) != checksum([batch([Rec(0, b"a"), Rec(1, b"bc")])])
    assert checksum([batch([Rec(0, None)])]) != checksum([batch([Rec(0, b"")])])


def test_latencies_are_kept_to_a_sixteenth() -> None:
    lags = pa.array([1000 * each for each in (-3, 0, 15, 31, 32, 33, 1001)], pa.int64())
    assert dict(Latency.of(lags).counts) == {-3: 1, 0: 1, 15: 1, 31: 1, 32: 2, 992: 1}


class Bounds(NamedTuple):
    """A side of which only its bounds are known."""

    bounds: dict[int, tuple[int, int]]


def stretched(left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]], **how: Any) -> list[tuple[Any, ...]]:
    sides: Any = Bounds(left), Bounds(right)
    return [
        (each.partition, each.left, each.right)
        for each in stretches_of(sides, **{"by_offset": True, "overlap": False, "size": 10, **how})
    ]


def test_which_task_compares_what() -> None:
    assert stretched({0: (0, 25)}, {0: (3, 12)}) == [
        (0, (0, 10), (3, 10)), (0, (10, 20), (10, 12)), (0, (20, 25), (20, 20)),
    ]  # fmt: skip
    assert stretched({0: (0, 25)}, {0: (3, 12)}, overlap=True) == [(0, (3, 12), (3, 12))]
    assert stretched({0: (0, 5)}, {0: (7, 9)}, overlap=True) == [(0, (7, 7), (7, 7))]
    assert stretched({0: (0, 25), 1: (0, 0)}, {2: (4, 8)}, by_offset=False) == [
        (0, (0, 25), (0, 0)), (1, (0, 0), (0, 0)), (2, (0, 0), (4, 8)),
    ]  # fmt: skip
    assert stretched({0: (0, 0)}, {0: (0, 0)}) == [(0, (0, 0), (0, 0))]
    assert stretched({0: (0, 0)}, {0: (1000, 1004)}) == [(0, (1000, 1000), (1000, 1004))]


@pytest.mark.slow
def test_a_long_stretch_that_is_missing_is_one_difference() -> None:
    numbers, lacking = range(9000), [*range(1000), *range(3500, 9000)]
    expected = {"matched": 6500, "only_left": 2500, "place": ("'1000'", "'3500'")}
    assert found(numbers, lacking) == expected
    [one] = compare(records(lacking), records(numbers), ORDER, random.Random(1))
    assert (one.matched, one.only_right, one.changed) == (6500, 2500, 0)


@pytest.mark.slow
def test_how_far_is_looked_hangs_on_sizes() -> None:
    """Of large records not ten thousands are held, where streams have nothing in common."""
    taken = [0, 0]
    held = 0

    def counted(side: int, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        nonlocal held
        for place, number in enumerate(numbers):
            taken[side] += 1
            if side == 1 and place == 512:
                held = taken[0]
            yield batch([Rec(place, b"%d" % number + bytes(32 << 10))])

    comparison = Comparison(ORDER, 0, ((0, 1500), (0, 1500)))
    [told] = comparison.ranges(counted(0, range(1500)), counted(1, range(5000, 6500)))
    assert (told.changed, held) == (1500, 513)


def test_what_stays_in_its_place_has_not_moved() -> None:
    numbers = list(range(30))
    changed = [each + 100 if each % 3 == 0 else each for each in numbers]
    assert found(numbers, changed) == {"matched": 20, "changed": 10, "place": ("'0'", "'100'")}


def mixed(times: Sequence[int], arrived: int) -> list[Rec]:
    """A topic whose `message.timestamp.type` was set to LogAppendTime amid its records."""
    return [Rec(place, b"%d" % place, time=time, kind=int(place >= arrived)) for place, time in enumerate(times)]


@pytest.mark.parametrize("rules", [ORDER, OFFSET])
@pytest.mark.parametrize("seed", [None, *range(8)])
def test_times_of_arrival_from_some_record_on(rules: Rules, seed: int | None) -> None:
    chance = None if seed is None else random.Random(seed)
    times = [each if each not in (2, 4) else each + 1 for each in range(5)]
    one, other = mixed(range(10), 10), mixed([*times, *range(10, 15)], 5)
    [differs] = compare(one, other, rules, chance)
    assert (differs.matched, differs.changed, differs.moved) == (8, 2, 0)
    assert (differs.latency.records, differs.latency.percentiles()["p50"]) == (5, 5)
    [same] = compare(one, mixed([*range(5), *range(10, 15)], 5), rules, chance)
    assert (same.matched, same.same) == (10, True)


@pytest.mark.parametrize("rules", [ORDER, OFFSET])
def test_each_pair_is_measured_once(rules: Rules) -> None:
    one = mixed(range(100), 100)
    other = [each._replace(time=each.time + 7, kind=1) for each in one]
    other[50] = other[50]._replace(value=b"changed")
    [told] = compare(one, other, rules)
    assert (told.matched, told.changed) == (99, 1)
    assert told.latency.records == 99 + (rules == OFFSET)


@pytest.mark.parametrize("size", [7, 10, 100, 1000])
def test_gaps_do_not_hang_on_ranges(size: int) -> None:
    """Before the first record there is none; and one over the border of two ranges is one."""
    rows = [Rec(offset, b"x") for offset in range(300, 400) if offset not in (309, 310, 320, *range(330, 365))]
    side = SimpleNamespace(bounds={0: (0, 450)})
    ranges = []
    for each in stretches_of([side, side], by_offset=True, overlap=False, size=size):  # type: ignore[list-item]
        own = [row for row in rows if each.left[0] <= row.offset < each.left[1]]
        comparison = Comparison(OFFSET, 0, (each.left, each.right), (each.left[0] == 0,) * 2)
        ranges += list(comparison.ranges(batches(own), batches(own)))
    [told] = by_partition(ranges)
    assert (told.left.missing, told.left.gaps, told.left.single) == (2 + 1 + 35 + 50, 4, 1)
    assert told.left.some_gaps == ((309, 311), (320, 321), (330, 365), (400, 450))
