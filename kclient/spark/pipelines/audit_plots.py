"""The pictures of an audit: records by partition, which ranges differ, and how long records took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.report_page import Drawing, drawn

if TYPE_CHECKING:
    from kclient.spark.pipelines.audit_results import Latency, RangeResult

_LEFT, _RIGHT, _SAME, _DIFFERENT = "#3b6ea8", "#e0913a", "#7fbf8e", "#c0392b"


def plots(partitions: Sequence[RangeResult], ranges: Sequence[RangeResult], latency: Latency, by: str) -> bytes:
    """All of them in one PNG.

    Args:
        partitions: What was found by partition.
        ranges: And by range.
        latency: Of all records; without any there is no picture of it.
        by: What was compared by.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawings: list[Drawing] = [
        lambda axes: _draw_counts(axes, partitions),
        lambda axes: _draw_ranges(axes, ranges, by),
    ]
    if latency.records:
        drawings.append(lambda axes: _draw_latency(axes, latency))
    return drawn(drawings, "The picture of an audit")


def _draw_counts(axes: Any, partitions: Sequence[RangeResult]) -> None:
    places = range(len(partitions))
    axes.bar(
        [place - 0.2 for place in places], [each.left.records for each in partitions], 0.4, label="left", color=_LEFT
    )
    axes.bar([place + 0.2 for place in places], [each.right.records for each in partitions], 0.4, label="right",
             color=_RIGHT)  # fmt: skip
    lacking = [each.only_left + each.only_right + each.changed + each.moved for each in partitions]
    for place, each, wrong in zip(places, partitions, lacking, strict=True):
        if wrong:
            top = max(each.left.records, each.right.records)
            axes.annotate(f"{wrong} differ", (place, top), ha="center", va="bottom", color=_DIFFERENT, fontsize=8)
    if len(partitions) <= 40:
        axes.set_xticks(list(places), [str(each.partition) for each in partitions])
    axes.set(title="Records by partition", xlabel="partition", ylabel="records")
    axes.margins(y=0.15)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_ranges(axes: Any, ranges: Sequence[RangeResult], by: str) -> None:
    rows = {number: row for row, number in enumerate(sorted({each.partition for each in ranges}))}
    reached: dict[int, int] = defaultdict(int)
    for same, color in ((True, _SAME), (False, _DIFFERENT)):
        axes.barh([0], [0], color=color, label="same" if same else "different")
    for each in sorted(ranges, key=lambda one: (one.partition, one.left.start, one.right.start)):
        if by == "offset":
            start, end = _bounds(each)
        else:
            start = reached[each.partition]
            end = reached[each.partition] = start + max(each.left.records, each.right.records)
        color = _SAME if each.same else _DIFFERENT
        axes.barh(
            rows[each.partition], end - start, left=start, height=0.7, color=color, edgecolor="white", linewidth=0.5
        )
    if len(rows) <= 40:
        axes.set_yticks(list(rows.values()), [str(number) for number in rows])
    axes.invert_yaxis()
    axes.set(title="Ranges", xlabel="offset" if by == "offset" else "records from the beginning", ylabel="partition")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _bounds(each: RangeResult) -> tuple[int, int]:
    """Where a range lies; a side that has nothing of it says nothing about that."""
    sides = [side for side in (each.left, each.right) if side.start < side.end] or [each.left]
    return min(side.start for side in sides), max(side.end for side in sides)


def _draw_latency(axes: Any, latency: Latency) -> None:
    """The share of records that took so long at most: buckets grow with latency, so their counts would show steps."""
    buckets, reached, shares = sorted(latency.counts), 0, []
    for each in buckets:
        reached += latency.counts[each]
        shares.append(100 * reached / latency.records)
    places = [max(each, 0.5) for each in buckets]  # the axis is logarithmic
    axes.step(places, shares, where="post", color=_LEFT)
    axes.fill_between(places, shares, step="post", color=_LEFT, alpha=0.2)
    axes.set_xscale("log")
    for name, value in latency.percentiles().items():
        if name in ("p50", "p99"):
            axes.axvline(max(value, 0.5), color=_DIFFERENT, linestyle="--", linewidth=1)
            axes.annotate(
                f"{name}: {value} ms", (max(value, 0.5), 3), xytext=(4, 0), textcoords="offset points", fontsize=8
            )
    axes.set(title="Latency", xlabel="milliseconds", ylabel="% of the records at most", ylim=(0, 103))
