"""What an audit finds: ranges as tasks tell them, and what they come to for a partition and for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from kclient.spark.pipelines.histogram import Histogram

_SHOWN_BYTES = 60


@dataclass(frozen=True)
class SeenRecord:
    """A record as reports show it: what is long is cut.

    Attributes:
        offset: its offset.
        timestamp: in milliseconds.
        key: as Python writes bytes; None is null.
        value: likewise.
        headers: likewise, with their names.
    """

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...] = ()

    @classmethod
    def of(
        cls,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> Self:
        """The record with these contents."""
        return cls(offset, timestamp, _shown(key), _shown(value), tuple((name, _shown(each)) for name, each in headers))

    def __str__(self) -> str:
        headers = f" headers {dict(self.headers)}" if self.headers else ""
        return f"offset {self.offset} time {self.timestamp} key {self.key} value {self.value}{headers}"


def _shown(content: bytes | None) -> str | None:
    if content is None:
        return None
    text = repr(content[:_SHOWN_BYTES])[1:]
    return text if len(content) <= _SHOWN_BYTES else f"{text}... ({len(content)} bytes)"


@dataclass(frozen=True)
class Parting:
    """The first place where two sides differ: the records there, None where a side has none.

    Attributes:
        partition: its number.
        left: the left one's record.
        right: the right one's.
    """

    partition: int
    left: SeenRecord | None
    right: SeenRecord | None


@dataclass(frozen=True)
class SideResult:
    """One side of a range, or of a partition.

    Attributes:
        start: the offset that it begins at.
        end: the one behind its end.
        records: how many there are.
        first: the offset of the first one.
        last: the offset of the last one.
        missing: how many offsets between start and end no record has.
        gaps: how many gaps that are.
        single: how many of those are of one offset, as the end of a transaction leaves.
        some_gaps: the first gaps: from an offset to before another.
        again: how many records have an offset that was there before.
    """

    start: int
    end: int
    records: int = 0
    first: int | None = None
    last: int | None = None
    missing: int = 0
    gaps: int = 0
    single: int = 0
    some_gaps: tuple[tuple[int, int], ...] = ()
    again: int = 0

    def joined(self, other: SideResult) -> SideResult:
        """With the range that follows: a gap over the border is one, and before the first record there is none."""
        close = other.first if other.first is not None else other.end
        missing, gaps, single = self.missing + other.missing, self.gaps + other.gaps, self.single + other.single
        listed, more = self.some_gaps, other.some_gaps
        if more and more[0] == (other.start, close):
            size, more = close - other.start, more[1:]
            if self.first is None:
                missing, gaps, single = missing - size, gaps - 1, single - (size == 1)
            elif self.last is not None and self.last + 1 < self.end == other.start:
                gaps, single = gaps - 1, single - (size == 1) - (self.end - self.last == 2)
                if listed and listed[-1][1] == self.end:
                    listed = (*listed[:-1], (listed[-1][0], close))
            else:
                more = other.some_gaps
        return SideResult(
            self.start, other.end, self.records + other.records,
            self.first if self.first is not None else other.first,
            other.last if other.last is not None else self.last,
            missing, gaps, single, (*listed, *more)[:5], self.again + other.again,
        )  # fmt: skip


class Latency(Histogram):
    """How long records took from one side to the other, in milliseconds."""

    @classmethod
    def of(cls, numbers: Any) -> Self:
        """Of a column of microseconds."""
        from pyarrow import compute

        return super().of(compute.divide(numbers, 1000))


@dataclass(frozen=True)
class RangeResult:
    """What was found in a range of a partition.

    Attributes:
        partition: its number.
        left: the left side.
        right: the right side.
        left_sum: a checksum of the left side's records.
        right_sum: and of the right side's.
        matched: how many pairs are equal.
        changed: how many pairs differ.
        moved: how many are on both sides, in another order.
        only_left: how many the right side lacks.
        only_right: how many the left side lacks.
        again: how many of those that differ came before, close by.
        parting: where they part first; None where they do not.
        latency: between the two, where one has times of arrival.
    """

    partition: int
    left: SideResult
    right: SideResult
    left_sum: str
    right_sum: str
    matched: int = 0
    changed: int = 0
    moved: int = 0
    only_left: int = 0
    only_right: int = 0
    again: int = 0
    parting: Parting | None = None
    latency: Latency = field(default_factory=Latency)

    @property
    def same(self) -> bool:
        """Whether nothing differs, and no offset is there twice."""
        return self.parting is None and not self.left.again and not self.right.again

    def joined(self, other: RangeResult) -> RangeResult:
        """With the range that follows; checksums are of ranges, and are not joined."""
        return RangeResult(
            self.partition, self.left.joined(other.left), self.right.joined(other.right), "", "",
            self.matched + other.matched, self.changed + other.changed, self.moved + other.moved,
            self.only_left + other.only_left, self.only_right + other.only_right, self.again + other.again,
            self.parting or other.parting, self.latency + other.latency,
        )  # fmt: skip


def to_text(result: RangeResult) -> str:
    """A range as it travels."""
    return json.dumps(asdict(result))


def from_text(text: str) -> RangeResult:
    """The range that `to_text` wrote."""
    data = json.loads(text)
    for name in ("left", "right"):
        data[name]["some_gaps"] = tuple((start, end) for start, end in data[name]["some_gaps"])
        data[name] = SideResult(**data[name])
    parting = data.pop("parting")
    counts = {int(each): count for each, count in data.pop("latency")["counts"].items()}
    return RangeResult(**data, parting=_parting_of(parting), latency=Latency(counts))


def _parting_of(data: Mapping[str, Any] | None) -> Parting | None:
    if data is None:
        return None
    seen = [
        None if each is None else SeenRecord(**{**each, "headers": tuple((n, v) for n, v in each["headers"])})
        for each in (data["left"], data["right"])
    ]
    return Parting(data["partition"], seen[0], seen[1])


def by_partition(ranges: Iterable[RangeResult]) -> list[RangeResult]:
    """What ranges come to, partition by partition."""
    found: dict[int, RangeResult] = {}
    for each in sorted(ranges, key=lambda one: (one.partition, one.left.start, one.right.start)):
        found[each.partition] = found[each.partition].joined(each) if each.partition in found else each
    return [found[number] for number in sorted(found)]
