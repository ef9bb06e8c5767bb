"""Which folders an archive's files lie in: by topic, and by a part of the record's time in UTC.

Names and values are as Hive has them (`date=2013-01-01`), so that readers of Parquet make columns of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from kclient.arguments import shown
from kclient.errors import ConfigError

_LAYOUTS = (
    ("topic",),
    ("topic", "date"),
    ("topic", "date", "hour"),
    ("topic", "year"),
    ("topic", "year", "month"),
    ("topic", "year", "month", "day"),
    ("topic", "year", "month", "day", "hour"),
)
_EPOCH = date(1970, 1, 1)
_DAY_US = 86_400_000_000
_FIRST_US = (date.min - _EPOCH).days * _DAY_US
_LAST_US = ((date.max - _EPOCH).days + 1) * _DAY_US - 1
"""The times that have years of four digits, as readers of Parquet want them; others go to the first or the last."""


@dataclass(frozen=True)
class ArchiveLayout:
    """The folders below an archive's.

    Attributes:
        names: `topic`, and behind it which parts of the time.
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.names)

    def periods(self, times: Any) -> Any:
        """The period of each record as a number: what lies in one folder has the same, and later ones a greater one.

        Args:
            times: A column of microseconds since 1970, as 64-bit numbers.
        """
        import pyarrow
        from pyarrow import compute

        number = pyarrow.int32()
        if len(self.names) == 1:
            return pyarrow.repeat(pyarrow.scalar(0, number), len(times))
        known = compute.max_element_wise(times, pyarrow.scalar(_FIRST_US, pyarrow.int64()))
        known = compute.min_element_wise(known, pyarrow.scalar(_LAST_US, pyarrow.int64()))
        moments = known.view(pyarrow.timestamp("us"))
        finest = self.names[-1]
        if finest in ("date", "day", "hour"):
            found = moments.cast(pyarrow.date32()).view(number)
            if finest == "hour":
                hours = compute.hour(moments).cast(number)
                found = compute.add(compute.multiply(found, pyarrow.scalar(24, number)), hours)
            return found
        years = compute.year(moments).cast(number)
        if finest == "year":
            return years
        months = compute.subtract(compute.month(moments).cast(number), pyarrow.scalar(1, number))
        return compute.add(compute.multiply(years, pyarrow.scalar(12, number)), months)

    def folder_at(self, topic: str, time_us: int) -> str:
        """The folder of a topic and a time, in microseconds since 1970."""
        import pyarrow

        (period,) = self.periods(pyarrow.array([time_us], pyarrow.int64())).to_pylist()
        return self.folder(topic, period)

    def folder(self, topic: str, period: int) -> str:
        """The folder of a topic's period, as `periods` numbers it; below the archive's."""
        return "/".join(f"{name}={value}" for name, value in zip(self.names, self._values(topic, period), strict=True))

    def _values(self, topic: str, period: int) -> Sequence[str]:
        parts = self.names[1:]
        if not parts:
            return [topic]
        if parts[-1] == "year":
            return [topic, f"{period:04d}"]
        if parts[-1] == "month":
            year, month = divmod(period, 12)
            return [topic, f"{year:04d}", f"{month + 1:02d}"]
        days, hour = divmod(period, 24) if parts[-1] == "hour" else (period, 0)
        day = _EPOCH + timedelta(days=days)
        told = {
            "date": day.isoformat(), "year": f"{day.year:04d}", "month": f"{day.month:02d}", "day": f"{day.day:02d}",
            "hour": f"{hour:02d}",
        }  # fmt: skip
        return [topic, *(told[name] for name in parts)]


BY_DATE = ArchiveLayout(("topic", "date"))
"""That of archives whose makers have chosen none."""


def layout_of(partition_by: Any) -> ArchiveLayout:
    """The layout that an argument names.

    Args:
        partition_by: names, or a text of names with commas between them.

    Raises:
        ConfigError: there is no such layout.
    """
    given = partition_by.split(",") if isinstance(partition_by, str) else partition_by
    names = tuple(given) if isinstance(given, list | tuple) else None
    if names not in _LAYOUTS:
        known = "; ".join(str(ArchiveLayout(each)) for each in _LAYOUTS)
        raise ConfigError(f"partition_by is one of {known}; not {shown(partition_by)}")
    return ArchiveLayout(names)


def topic_of(path: str) -> str:
    """The topic in `topic=NAME/…`; Kafka's names hold nothing that would be escaped in a path."""
    return path.split("/", 1)[0].removeprefix("topic=")
