"""The report of an audit: for people, for programs, and as a page with pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from typing import Any

from kclient.spark.pipelines.audit_plots import plots
from kclient.spark.pipelines.audit_results import Latency, Parting, RangeResult, SideResult, by_partition
from kclient.spark.pipelines.report_page import PageReport, page, picture, table

_RANGES = 200
"""So many ranges are in a page; those that differ come first."""


@dataclass(frozen=True)
class AuditReport(PageReport):
    """What an audit found.

    Attributes:
        left: what the left side is.
        right: what the right side is.
        by: `offset` or `order`.
        ignored: what did not count.
        ranges: what was found, range by range.
        notes: what may explain gaps.
        seconds: the run's wall time.
    """

    left: str
    right: str
    by: str
    ignored: tuple[str, ...]
    ranges: tuple[RangeResult, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return all(each.same for each in self.ranges)

    @cached_property
    def partitions(self) -> list[RangeResult]:
        """What ranges come to, by partition."""
        return by_partition(self.ranges)

    @property
    def partings(self) -> list[Parting]:
        """Where each partition parts first, of those that do."""
        return [each.parting for each in self.partitions if each.parting is not None]

    @property
    def latency(self) -> Latency:
        """Of all records, between the two sides; empty where neither has times of arrival."""
        return sum((each.latency for each in self.ranges), Latency())

    def summary(self) -> str:
        """What was found, in one sentence."""
        total = sum(each.left.records for each in self.ranges)
        if self.same:
            return f"the same: {total} records, by {self.by}"
        found = {
            "changed": sum(each.changed for each in self.ranges),
            "in another order": sum(each.moved for each in self.ranges),
            "only on the left": sum(each.only_left for each in self.ranges),
            "only on the right": sum(each.only_right for each in self.ranges),
            "with an offset that was there before": sum(each.left.again + each.right.again for each in self.ranges),
        }
        told = ", ".join(f"{count} {what}" for what, count in found.items() if count)
        return f"different, by {self.by}: of {total} records on the left {told}"

    def as_json(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "same": self.same,
            "summary": self.summary(),
            "left": self.left,
            "right": self.right,
            "by": self.by,
            "ignored": list(self.ignored),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "latency_ms": {"records": self.latency.records, **self.latency.percentiles()},
            "partitions": [_as_json(each) for each in self.partitions],
            "ranges": [_as_json(each) for each in self.ranges],
        }

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(self.as_json())

    def to_html(self) -> str:
        """The page.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        verdict = "same" if self.same else "different"
        parts = [
            f"<h1>Audit: <span class='{verdict}'>{verdict}</span></h1>",
            f"<p>{escape(self.summary())}</p>",
            f"<p>Left: {escape(self.left)}<br>Right: {escape(self.right)}</p>",
            *(f"<p>{escape(note)}</p>" for note in self.notes),
            table(PARTITION_COLUMNS, [partition_row(each) for each in self.partitions]),
            picture(self._plots(), "records, ranges and latency"),
            *(_parting_html(parting) for parting in self.partings),
            "<h2>Gaps</h2>",
            table(GAP_COLUMNS, self.gap_rows()),
            *self._latency_html(),
            f"<h2>Ranges</h2><p>{len(self.ranges)}; those that differ come first.</p>",
            table(_RANGE_COLUMNS, [_range_row(each) for each in sorted(self.ranges, key=_worst_first)[:_RANGES]]),
        ]
        return page(f"Audit: {verdict}", parts)

    def _plots(self) -> bytes:
        return plots(self.partitions, self.ranges, self.latency, self.by)

    def gap_rows(self) -> list[tuple[object, ...]]:
        """Offsets that are missing, a row for each side of a partition that has gaps."""
        found: list[tuple[object, ...]] = []
        for each in self.partitions:
            for name, side in (("left", each.left), ("right", each.right)):
                if side.gaps:
                    some = ", ".join(f"{start}..{end}" for start, end in side.some_gaps)
                    more = ", …" if side.gaps > len(side.some_gaps) else ""
                    found.append((each.partition, name, side.missing, side.gaps, side.single, some + more))
        return found

    def _latency_html(self) -> list[str]:
        latency = self.latency
        if not latency.records:
            return []
        rows = [(name, value) for name, value in latency.percentiles().items()]
        return [f"<h2>Latency</h2><p>Of {latency.records} records, in milliseconds.</p>", table(("", "ms"), rows)]


PARTITION_COLUMNS = (
    "partition", "left", "right", "matched", "changed", "moved", "only left", "only right", "again", "missing left",
    "missing right", "same",
)  # fmt: skip
GAP_COLUMNS = ("partition", "side", "offsets missing", "gaps", "of one offset", "such as")
_RANGE_COLUMNS = (
    "partition", "left", "right", "records left", "records right", "checksum left", "checksum right", "same"
)  # fmt: skip


def partition_row(each: RangeResult) -> tuple[object, ...]:
    """A partition in the columns `PARTITION_COLUMNS`."""
    return (
        each.partition, each.left.records, each.right.records, each.matched, each.changed, each.moved, each.only_left,
        each.only_right, each.again + each.left.again + each.right.again, each.left.missing, each.right.missing,
        each.same,
    )  # fmt: skip


def _range_row(each: RangeResult) -> tuple[object, ...]:
    """A range in the columns `_RANGE_COLUMNS`."""
    return (
        each.partition, _span(each.left), _span(each.right), each.left.records, each.right.records, each.left_sum,
        each.right_sum, each.same,
    )  # fmt: skip


def _span(side: SideResult) -> str:
    return f"{side.start}..{side.end}"


def _worst_first(each: RangeResult) -> tuple[bool, int, int]:
    return each.same, each.partition, each.left.start


def _as_json(each: RangeResult) -> Mapping[str, Any]:
    data = asdict(each)
    data["latency_ms"] = {"records": each.latency.records, **each.latency.percentiles()}
    del data["latency"]
    if not each.left_sum:
        del data["left_sum"], data["right_sum"]
    return {**data, "same": each.same}


def parting_lines(parting: Parting) -> list[str]:
    """Where a partition parts, in three lines."""
    return [
        f"partition {parting.partition} parts here:",
        f"  left:  {parting.left or 'no record'}",
        f"  right: {parting.right or 'no record'}",
    ]


def _parting_html(parting: Parting) -> str:
    return f"<pre>{escape(chr(10).join(parting_lines(parting)))}</pre>"
