"""Two streams of records side by side: what is the same, and where they part. It knows columns, no cluster and no file.

By offset a record's counterpart has the same offset. By order it is the next one of the same content: where the streams
part, the nearest place is looked for where they go on together, and what lies before it is what differs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.audit_results import Latency, Parting, RangeResult, SeenRecord, SideResult
from kclient.spark.pipelines.checksums import ContentSum

if TYPE_CHECKING:
    import pyarrow

CONTENT = ("key", "value", "headers", "timestamp")
"""What makes records equal; each of them can be left out."""
COLUMNS = ("key", "value", "headers", "offset", "timestamp", "timestampType")
_WINDOW = 512
"""So many records are looked ahead for the place where streams go on together, and back for those that come again."""
_FARTHEST = 64 * _WINDOW
_FARTHEST_BYTES = 64 << 20
"""Where there is no such place, four times as many are looked at, up to so many records or bytes."""
_SURE = 3
"""So many records in a row have to be equal for that, or all that are left."""
_GAPS = 5
"""So many gaps of a range are told."""


@dataclass(frozen=True)
class Rules:
    """How records are compared.

    Attributes:
        by_offset: whether equal offsets make two records counterparts; else their order does.
        ignore: which of `CONTENT` do not count.
        range_size: after so many records, in order, a range ends; by offset the caller makes ranges.
    """

    by_offset: bool
    ignore: frozenset[str] = frozenset()
    range_size: int = 1_000_000

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that count."""
        return tuple(name for name in CONTENT if name not in self.ignore)


def _normalized(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """A batch of either side in `COLUMNS`, with times as numbers of microseconds."""
    import pyarrow

    from kclient.spark.pipelines.columns import stored_schema

    columns: list[Any] = []
    for name in COLUMNS:
        column = batch.column(name)
        if name == "timestamp":
            column = column.view(pyarrow.int64())
        elif name == "headers" and column.type != stored_schema().field("headers").type:
            column = column.cast(stored_schema().field("headers").type)
        columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, names=list(COLUMNS))


class _Side:
    """One of the streams: what lies ahead, and what was taken since the range began."""

    def __init__(self, batches: Iterable[pyarrow.RecordBatch], start: int, rules: Rules, *, leading: bool) -> None:
        self._batches = iter(batches)
        self._leading = leading
        self._ahead: pyarrow.RecordBatch | None = None
        self._rules = rules
        self._recent: list[pyarrow.RecordBatch] = []
        self._expected = start
        self._before: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._start = self._expected
        self._records = self._missing = self._gaps = self._single = self._again = 0
        self._listed = list[tuple[int, int]]()
        self._first: int | None = None
        self._last: int | None = None
        self.sum = ContentSum((*self._rules.columns, *(["offset"] if self._rules.by_offset else [])))

    def ahead(self, least: int = 1) -> pyarrow.RecordBatch | None:
        """What comes next: at least so many records, if there are so many; None where nothing does."""
        import pyarrow

        parts = [] if self._ahead is None or not self._ahead.num_rows else [self._ahead]
        count = sum(part.num_rows for part in parts)
        while count < least:
            batch = next(self._batches, None)
            if batch is None:
                break
            if batch.num_rows:
                parts.append(_normalized(batch))
                count += batch.num_rows
        if len(parts) > 1:
            parts = pyarrow.Table.from_batches(parts).combine_chunks().to_batches()
        self._ahead = parts[0] if parts else None
        return self._ahead if self._ahead is not None and self._ahead.num_rows else None

    def take(self, count: int) -> pyarrow.RecordBatch:
        """The next records, which are behind then."""
        assert self._ahead is not None
        taken, self._ahead = self._ahead.slice(0, count), self._ahead.slice(count)
        if count:
            self._note(taken)
        return taken

    def recent(self, columns: Sequence[str]) -> set[Any]:
        """The records that were taken last, as `_keys_of` tells them."""
        return set([key for batch in self._recent for key in _keys_of(batch, columns)][-_WINDOW:])

    def _note(self, taken: pyarrow.RecordBatch) -> None:
        self._records += taken.num_rows
        self.sum.add(taken)
        if not self._rules.by_offset:
            self._recent.append(taken.slice(max(0, taken.num_rows - _WINDOW)))
            while len(self._recent) > 1 and sum(each.num_rows for each in self._recent[1:]) >= _WINDOW:
                self._recent.pop(0)
        self._note_offsets(taken.column("offset"))

    def _note_offsets(self, column: Any) -> None:
        import pyarrow
        from pyarrow import compute

        first, last, count = column[0].as_py(), column[-1].as_py(), len(column)
        if self._first is None:
            self._first = first
        if self._leading:  # what lies before the first record of all is no gap: nobody knows what was there
            self._leading, self._expected = False, first
        self._last = last
        if first == self._expected and last - first == count - 1:  # nothing is missing, and none is there twice
            self._before, self._expected = last, last + 1
            return
        before = first - 1 if self._before is None else self._before
        former = pyarrow.concat_arrays([pyarrow.array([before], pyarrow.int64()), column.slice(0, count - 1)])
        steps = compute.subtract(column, former)
        self._again += compute.sum(compute.less_equal(steps, 0)).as_py() or 0
        if first > self._expected:
            self._gap(self._expected, first)
        inner = compute.greater(steps.slice(1), 1)
        for place in compute.indices_nonzero(inner).to_pylist():
            self._gap(column[place].as_py() + 1, column[place + 1].as_py())
        self._before, self._expected = last, max(self._expected, last + 1)

    def _gap(self, start: int, end: int) -> None:
        self._missing += end - start
        self._gaps += 1
        self._single += end - start == 1
        if len(self._listed) < _GAPS:
            self._listed.append((start, end))

    def cut(self, end: int | None = None) -> SideResult:
        """What was taken since the last cut. The range ends at `end`, or behind what was taken."""
        if end is not None and end > self._expected:
            if not self._leading:
                self._gap(self._expected, end)
            self._expected = end
        result = SideResult(
            self._start, self._expected, self._records, self._first, self._last, self._missing, self._gaps,
            self._single, tuple(self._listed), self._again,
        )  # fmt: skip
        self._begin()
        return result


class Comparison:
    """Compares two streams of one partition.

    Args:
        rules: How.
        partition: Its number.
        bounds: Where each side begins and ends: the offsets of the first record and behind the last one.
        leading: Whether each side has nothing before that.
    """

    def __init__(
        self,
        rules: Rules,
        partition: int,
        bounds: tuple[tuple[int, int], tuple[int, int]],
        leading: tuple[bool, bool] = (True, True),
    ) -> None:
        self._leading = leading
        self._rules = rules
        self._partition = partition
        self._bounds = bounds
        self._begin()

    def _begin(self) -> None:
        self._matched = self._changed = self._moved = self._only_left = self._only_right = self._again = 0
        self._parting: Parting | None = None
        self._latency = Latency()
        self._arrival = False

    def ranges(
        self, left: Iterable[pyarrow.RecordBatch], right: Iterable[pyarrow.RecordBatch]
    ) -> Iterator[RangeResult]:
        """What was found, range by range; by offset it is one."""
        sides = (
            _Side(left, self._bounds[0][0], self._rules, leading=self._leading[0]),
            _Side(right, self._bounds[1][0], self._rules, leading=self._leading[1]),
        )
        step = self._by_offset if self._rules.by_offset else self._by_order
        taken = 0
        while count := step(*sides):
            taken += count
            if not self._rules.by_offset and taken >= self._rules.range_size:
                yield self._cut(sides, (None, None))
                taken = 0
        yield self._cut(sides, (self._bounds[0][1], self._bounds[1][1]))

    def _cut(self, sides: tuple[_Side, _Side], ends: tuple[int | None, int | None]) -> RangeResult:
        without = {"timestamp"} if self._arrival else set[str]()
        sums = [side.sum.told(without) for side in sides]
        left, right = (side.cut(end) for side, end in zip(sides, ends, strict=True))
        result = RangeResult(
            self._partition, left, right, sums[0], sums[1], self._matched, self._changed, self._moved,
            self._only_left, self._only_right, self._again, self._parting, self._latency,
        )  # fmt: skip
        self._begin()
        return result

    # ------------------------------------------------------------------ by offset

    def _by_offset(self, left: _Side, right: _Side) -> int:
        """Take what can be judged at once; returns how many records, of the side with more."""
        one, other = left.ahead(), right.ahead()
        if one is None or other is None:
            return self._rest(left, right)
        lefts, rights = _offsets(one), _offsets(other)
        if lefts[0] < rights[0]:
            return self._lone_left(left, bisect_left(lefts, rights[0]))
        if rights[0] < lefts[0]:
            return self._lone_right(right, bisect_left(rights, lefts[0]))
        count = _alike(one.column("offset"), other.column("offset"))
        return self._pairs(left.take(count), right.take(count))

    def _pairs(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch) -> int:
        """Counterparts, which are equal or changed."""
        count: int = one.num_rows
        same = self._same(one, other)
        self._measure(one, other)
        equal = count if same is None else sum(same)
        self._matched += equal
        self._changed += count - equal
        if same is not None and equal < count:
            place = same.index(False)
            self._part(_seen_at(one, place), _seen_at(other, place))
        return count

    # ------------------------------------------------------------------ by order

    def _by_order(self, left: _Side, right: _Side) -> int:
        one, other = left.ahead(), right.ahead()
        if one is None or other is None:
            return self._rest(left, right)
        count: int = min(one.num_rows, other.num_rows, self._rules.range_size)
        same = self._same(one.slice(0, count), other.slice(0, count))
        if same is not None:
            count = same.index(False) if False in same else count
        if not count:
            return self._together_again(left, right)
        self._matched += count
        self._measure(left.take(count), right.take(count))
        return count

    def _together_again(self, left: _Side, right: _Side) -> int:
        """The next records differ: find where the streams go on together, and judge what lies before."""
        size = _WINDOW
        while True:
            one, other = left.ahead(size), right.ahead(size)
            assert one is not None, "both have a next record"
            assert other is not None, "both have a next record"
            one, other = one.slice(0, size), other.slice(0, size)
            columns = [name for name in self._rules.columns if name != "timestamp" or not _arrived(one, other)]
            lefts, rights = _keys_of(one, columns), _keys_of(other, columns)
            at_left, at_right = _meeting(lefts, rights)
            if (at_left, at_right) != (len(lefts), len(rights)) or not _worth_more(one, other, size):
                break
            size *= 4
        self._part(_seen_at(one, 0), _seen_at(other, 0))
        if not at_left and not at_right:  # alike but for their times, which count for these, and not for some behind
            at_left = at_right = 1
        if at_left == at_right:  # what is in its place has not moved
            keys = list(zip(lefts[:at_left], rights[:at_right], strict=True))
            self._in_place(one.slice(0, at_left), other.slice(0, at_right), [a == b for a, b in keys])
            mine, theirs = Counter(a for a, b in keys if a != b), Counter(b for a, b in keys if a != b)
        else:
            mine, theirs = Counter(lefts[:at_left]), Counter(rights[:at_right])
        self._moved += (mine & theirs).total()
        lone, strange = mine - theirs, theirs - mine
        for rows, side in ((lone, left), (strange, right)):
            known = side.recent(columns)
            self._again += sum(count for key, count in rows.items() if key in known)
        pairs = min(lone.total(), strange.total())
        self._changed += pairs
        self._only_left += lone.total() - pairs
        self._only_right += strange.total() - pairs
        left.take(at_left), right.take(at_right)
        return max(at_left, at_right)

    # ------------------------------------------------------------------ both

    def _rest(self, left: _Side, right: _Side) -> int:
        """One side is through."""
        one, other = left.ahead(), right.ahead()
        if one is not None:
            return self._lone_left(left, one.num_rows)
        return 0 if other is None else self._lone_right(right, other.num_rows)

    def _lone_left(self, left: _Side, count: int) -> int:
        taken = left.take(count)
        self._part(_seen_at(taken, 0), None)
        self._only_left += count
        return count

    def _lone_right(self, right: _Side, count: int) -> int:
        taken = right.take(count)
        self._part(None, _seen_at(taken, 0))
        self._only_right += count
        return count

    def _part(self, left: SeenRecord | None, right: SeenRecord | None) -> None:
        if self._parting is None:
            self._parting = Parting(self._partition, left, right)

    def _same(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch) -> list[bool] | None:
        """Which rows are equal; None for all."""
        found: list[bool] | None = None
        for name in self._rules.columns:
            if name == "timestamp":
                same = self._same_times(one, other)
            else:
                same = _equal_values(one.column(name), other.column(name))
            if same is not None:
                found = same if found is None else [a and b for a, b in zip(found, same, strict=True)]
        return found

    def _same_times(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch) -> list[bool] | None:
        """Times when records arrived are no content."""
        from pyarrow import compute

        arrived, _ = self._arrivals(one, other)
        if compute.all(arrived).as_py():
            return None
        same = _equal_values(one.column("timestamp"), other.column("timestamp"))
        if same is None or not compute.any(arrived).as_py():
            return same
        found = [a or b for a, b in zip(same, arrived.to_pylist(), strict=True)]
        return None if all(found) else found

    def _arrivals(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch) -> tuple[Any, Any]:
        """Of which pairs the times do not count; and of which the left time is of arrival, and not the right one."""
        from pyarrow import compute

        left, right = (compute.equal(each.column("timestampType"), 1) for each in (one, other))
        return (compute.xor if self._rules.by_offset else compute.or_)(left, right), compute.and_not(left, right)

    def _measure(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch) -> None:
        """The latency of pairs: what lies between a time of arrival and the other side's."""
        from pyarrow import compute

        if "timestamp" not in self._rules.columns:
            return
        arrived, at_left = self._arrivals(one, other)
        if not compute.any(arrived).as_py():
            return
        self._arrival = True
        lags = compute.subtract(other.column("timestamp"), one.column("timestamp"))
        lags = compute.if_else(at_left, compute.negate(lags), lags)
        self._latency = self._latency + Latency.of(lags.filter(arrived))

    def _in_place(self, one: pyarrow.RecordBatch, other: pyarrow.RecordBatch, alike: Sequence[bool]) -> None:
        """Of pairs some of which differ: those that are equal, and those that are alike but for a time that counts."""
        import pyarrow

        same = self._same(one, other)
        assert same is not None, "some differ"
        self._changed += sum(a and not b for a, b in zip(alike, same, strict=True))
        self._matched += sum(same)
        if any(same):
            kept = pyarrow.array(same)
            self._measure(one.filter(kept), other.filter(kept))


def _equal_values(one: Any, other: Any) -> list[bool] | None:
    """Which values of two columns are equal, null and null too; None for all."""
    if one.equals(other):
        return None
    return [a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)]


def _offsets(batch: pyarrow.RecordBatch) -> Sequence[int]:
    from kclient.spark.pipelines.archive_reader import offsets_of

    return offsets_of(batch)


def _alike(one: Any, other: Any) -> int:
    """How many values two columns begin with that are equal."""
    from pyarrow import compute

    count = min(len(one), len(other))
    one, other = one.slice(0, count), other.slice(0, count)
    if one.equals(other):
        return count
    return int(compute.index(compute.equal(one, other), False).as_py())


def _arrived(*batches: pyarrow.RecordBatch) -> bool:
    """Whether some have times of arrival."""
    from pyarrow import compute

    return any(compute.max(each.column("timestampType")).as_py() == 1 for each in batches)


def _keys_of(batch: pyarrow.RecordBatch, columns: Sequence[str]) -> list[Any]:
    """What is equal for records that are equal in these columns."""
    found = []
    for name in columns:
        values = batch.column(name).to_pylist()
        if name == "headers":
            values = [None if each is None else tuple((pair["key"], pair["value"]) for pair in each) for each in values]
        found.append(values)
    return list(zip(*found, strict=True)) if found else [()] * batch.num_rows


def _worth_more(one: pyarrow.RecordBatch, other: pyarrow.RecordBatch, size: int) -> bool:
    """Whether to look farther than so many records: there are more, and they are neither too many nor too large."""
    if size >= _FARTHEST or max(one.num_rows, other.num_rows) < size:
        return False
    return bool(4 * (one.nbytes + other.nbytes) <= _FARTHEST_BYTES)


def _meeting(lefts: Sequence[Any], rights: Sequence[Any]) -> tuple[int, int]:
    """How many records of each lie before the nearest place where they go on alike; all of them where there is none."""
    whole = len(rights) - _SURE + 1
    places: dict[Any, int] = {}
    for at_right in range(whole):
        places.setdefault(tuple(rights[at_right : at_right + _SURE]), at_right)
    last = range(max(0, whole), len(rights))
    best = len(lefts), len(rights)
    for at_left in range(len(lefts)):
        if at_left >= sum(best):
            break
        candidates: Sequence[int] = range(len(rights))
        if at_left + _SURE <= len(lefts):
            first = places.get(tuple(lefts[at_left : at_left + _SURE]))
            candidates = last if first is None else (first,)
        for at_right in candidates:
            if at_left + at_right >= sum(best):
                break
            if _is_sure(lefts, at_left, rights, at_right):
                best = at_left, at_right
                break
    return best


def _is_sure(lefts: Sequence[Any], at_left: int, rights: Sequence[Any], at_right: int) -> bool:
    ahead = zip(lefts[at_left : at_left + _SURE], rights[at_right : at_right + _SURE], strict=False)
    return all(a == b for a, b in ahead)


def _seen_at(batch: pyarrow.RecordBatch, place: int) -> SeenRecord:
    """A record as reports show it."""
    row = {name: batch.column(name)[place].as_py() for name in COLUMNS}
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    return SeenRecord.of(row["offset"], row["timestamp"] // 1000, row["key"], row["value"], headers)
