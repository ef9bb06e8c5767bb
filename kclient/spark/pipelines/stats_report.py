"""The report of `stats`: for people, for programs, and as a page with pictures."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from html import escape
from typing import Any

from kclient.spark.pipelines.histogram import Histogram
from kclient.spark.pipelines.report_page import Drawing, PageReport, drawn, page, picture, table
from kclient.spark.pipelines.stats_results import KeyStats, PartitionStats, added

SPANS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""How long the spans of time are, in milliseconds."""
PARTITION_COLUMNS = (
    "partition", "records", "bytes", "bytes a record", "keys' bytes", "values' bytes", "headers' bytes", "without key",
    "without value", "offsets without record", "from", "to",
)  # fmt: skip
KEY_COLUMNS = ("key", "records", "% of records", "bytes", "% of bytes")
SPAN_COLUMNS = ("from", "records", "bytes", "records a second", "bytes a second")
_SPANS = 200
"""So many spans of time are in a page; those with most records."""
_SHOWN_KEY = 60
_BLUE, _RED = "#3b6ea8", "#c0392b"


@dataclass(frozen=True)
class StatsReport(PageReport):
    """What a topic holds. Bytes are those of keys, values and headers as producers sent them: uncompressed.

    Attributes:
        source: what was counted.
        per: `minute`, `hour` or `day`: how long the spans of time are.
        partitions: what each partition holds.
        keys: what keys there are; None where they were not counted.
        notes: what may explain offsets without a record.
        seconds: the run's wall time.
    """

    source: str
    per: str
    partitions: tuple[PartitionStats, ...]
    keys: KeyStats | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(each.records for each in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of keys, values and headers."""
        return sum(each.size for each in self.partitions)

    @cached_property
    def sizes(self) -> Histogram:
        """How large records are, in bytes."""
        return sum((each.sizes for each in self.partitions), Histogram())

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """Records and bytes by the beginning of each span of time, in milliseconds; spans without any are left out."""
        total: dict[int, tuple[int, int]] = reduce(added, (each.spans for each in self.partitions), {})
        return {number * SPANS_MS[self.per]: total[number] for number in sorted(total)}

    @property
    def skew(self) -> float:
        """How many times as many records as the average partition the fullest one has; 0 where there are none."""
        most = max((each.records for each in self.partitions), default=0)
        return most * len(self.partitions) / self.records if self.records else 0.0

    def summary(self) -> str:
        """What was found, in one sentence."""
        told = f"{self.records} records of {self.size} bytes in {len(self.partitions)} partitions"
        if self.records:
            told += f", the fullest with {self.skew:.2f} times the average"
        if self.keys is not None and self.keys.top:
            told += f"; {self.keys.distinct} keys, the first with {_percent(self.keys.top[0].records, self.records)} %"
        return told

    def as_json(self) -> dict[str, Any]:
        """As values that JSON has; keys are as Python writes bytes."""
        partitions = []
        for each in self.partitions:
            data = asdict(each)
            del data["spans"]
            partitions.append({**data, "size": each.size, "sizes": each.sizes.percentiles()})
        keys = None
        if self.keys is not None:
            top = [{"key": repr(each.key)[1:], "records": each.records, "size": each.size} for each in self.keys.top]
            keys = {"distinct": self.keys.distinct, "top": top}
        return {
            "source": self.source,
            "summary": self.summary(),
            "records": self.records,
            "size": self.size,
            "skew": round(self.skew, 4),
            "sizes": self.sizes.percentiles(),
            "keys": keys,
            "per": self.per,
            "spans": [
                {"from": start, "records": records, "size": size} for start, (records, size) in self.spans.items()
            ],
            "partitions": partitions,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(self.as_json())

    def to_html(self) -> str:
        """The page.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        parts = [
            f"<h1>{escape(self.source)}</h1>",
            f"<p>{escape(self.summary())}.</p>",
            *(f"<p>{escape(note)}</p>" for note in self.notes),
            picture(self._plots(), "rates, partitions, sizes and keys"),
            "<h2>Partitions</h2>",
            table(PARTITION_COLUMNS, self.partition_rows()),
            "<h2>Sizes of records</h2>",
            table(("% of records", "bytes at most"), list(self.sizes.percentiles().items())),
        ]
        if self.keys is not None:
            parts += [
                "<h2>Keys</h2>",
                f"<p>{self.keys.distinct} different ones.</p>",
                table(KEY_COLUMNS, self.key_rows()),
            ]
        parts += [f"<h2>Busiest {self.per}s</h2>", table(SPAN_COLUMNS, self.busiest_rows(_SPANS))]
        return page(self.source, parts)

    def partition_rows(self) -> list[tuple[object, ...]]:
        """The partitions in the columns `PARTITION_COLUMNS`."""
        return [
            (
                each.partition, each.records, each.size, each.size // each.records if each.records else 0,
                each.key_bytes, each.value_bytes, each.header_bytes, each.null_keys, each.null_values,
                each.end - each.start - each.records, _time(each.first_timestamp), _time(each.last_timestamp),
            )
            for each in self.partitions
        ]  # fmt: skip

    def key_rows(self) -> list[tuple[object, ...]]:
        """The keys with the most records in the columns `KEY_COLUMNS`."""
        return [
            (
                _shown(each.key), each.records, _percent(each.records, self.records), each.size,
                _percent(each.size, self.size),
            )
            for each in (self.keys.top if self.keys is not None else ())
        ]  # fmt: skip

    def busiest_rows(self, most: int) -> list[tuple[object, ...]]:
        """The spans with the most records in the columns `SPAN_COLUMNS`."""
        busiest = sorted(self.spans.items(), key=lambda span: -span[1][0])[:most]
        seconds = SPANS_MS[self.per] / 1000
        return [
            (_time(start), records, size, f"{records / seconds:.4g}", f"{size / seconds:.4g}")
            for start, (records, size) in busiest
        ]

    # Pictures

    def _plots(self) -> bytes:
        drawings: list[Drawing] = [self._draw_partitions]
        if any(start <= _LAST_DRAWN_MS for start in self.spans):
            drawings.insert(0, self._draw_rates)
        if self.sizes.counts:
            drawings.append(self._draw_sizes)
        if self.keys is not None and self.keys.top:
            drawings.append(self._draw_keys)
        return drawn(drawings, "The picture of statistics")

    def _draw_rates(self, axes: Any) -> None:
        span, seconds = SPANS_MS[self.per], SPANS_MS[self.per] / 1000
        edges: list[int] = []
        rates: list[float] = []
        later = 0
        for start, (records, _) in self.spans.items():
            if start > _LAST_DRAWN_MS:
                later += records
                continue
            if edges and edges[-1] < start:  # nothing came in between
                rates.append(0.0)
                edges.append(start)
            elif not edges:
                edges.append(start)
            rates.append(records / seconds)
            edges.append(start + span)
        axes.stairs(rates, [_axis_time(edge) for edge in edges], fill=True, color=_BLUE)
        without = f", without {later} of the year 9000 and later" if later else ""
        axes.set(title=f"Records by {self.per} of their timestamps (UTC){without}", ylabel="records a second")
        axes.margins(x=0.01)

    def _draw_partitions(self, axes: Any) -> None:
        places = range(len(self.partitions))
        axes.bar(places, [each.records for each in self.partitions], color=_BLUE)
        average = self.records / max(len(self.partitions), 1)
        axes.axhline(average, color=_RED, linestyle="--", linewidth=1, label="average")
        if len(self.partitions) <= 40:
            axes.set_xticks(list(places), [str(each.partition) for each in self.partitions])
        axes.set(title="Records by partition", xlabel="partition", ylabel="records")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    def _draw_sizes(self, axes: Any) -> None:
        reached, places, shares = 0, [], []
        for size in sorted(self.sizes.counts):
            reached += self.sizes.counts[size]
            places.append(max(size, 1))  # the axis is logarithmic
            shares.append(100 * reached / self.records)
        axes.step(places, shares, where="post", color=_BLUE)
        axes.fill_between(places, shares, step="post", color=_BLUE, alpha=0.2)
        axes.set_xscale("log")
        axes.set(title="Sizes of records", xlabel="bytes", ylabel="% of the records at most", ylim=(0, 103))

    def _draw_keys(self, axes: Any) -> None:
        assert self.keys is not None
        top = self.keys.top[:20]
        axes.barh(range(len(top)), [100 * each.records / self.records for each in top], color=_BLUE)
        names = [_shown(each.key, 24).replace("$", r"\$") for each in top]  # which would begin a formula
        axes.set_yticks(range(len(top)), names, fontsize=7)
        axes.invert_yaxis()
        axes.set(title="Keys with the most records", xlabel="% of the records")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "0"


def _shown(key: bytes, most: int = _SHOWN_KEY) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = repr(key)[1:]
    if not text.isprintable():
        text = repr(key)[1:]
    return text if len(text) <= most else f"{text[:most]}..."


_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_LAST_DRAWN_MS = 221_845_391_999_999
"""The end of the year 8999: matplotlib needs room between what it draws and the year 10000."""


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds > _LAST_MS:
        return f"{milliseconds} ms"
    return _axis_time(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _axis_time(milliseconds: int) -> datetime.datetime:
    begin = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return begin + datetime.timedelta(milliseconds=min(milliseconds, _LAST_MS))
