"""`kclient pipeline expire`: old files of an archive deleted."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.settings import milliseconds
from kclient.errors import MissingExtraError

if TYPE_CHECKING:
    from kclient.spark.pipelines import ExpirySummary, TopicExpiry

_AGE = re.compile(r"(\d{1,6})([wdhm])", re.ASCII)
_SHOWN = 4
"""So many partitions are shown; the others are counted."""
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}


def expire(source: str, topics: Sequence[str], older_than: str, *, dry_run: bool, as_json: bool) -> int:
    """Delete what is older, and print a summary."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("pyarrow", "spark", "kclient pipeline expire") from error
    from kclient.spark.pipelines import expire_archive

    logging.getLogger("kclient").addHandler(logging.NullHandler())
    summary = expire_archive(source, _time(older_than), topics=topics, dry_run=dry_run)
    if as_json:
        output.line(summary.to_json())
    else:
        _print(summary)
    return 0


def _time(text: str) -> timedelta | int:
    match = _AGE.fullmatch(text)
    if match is not None:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        return milliseconds(text, "--older-than")
    except UsageError as error:
        raise UsageError(f"{error}; or an age such as 90d, 12h or 30m") from None


def _print(summary: ExpirySummary) -> None:
    done = "would be" if summary.dry_run else "were"
    output.table(
        ["topic", "files", "records", "bytes", "within the offsets of partitions"],
        [(each.topic, each.files, each.records, each.size, _offsets(each)) for each in summary.topics],
        title=f"{summary.records} records {done} deleted from {summary.destination}",
    )


def _offsets(topic: TopicExpiry) -> str:
    shown = [f"{number}: {start} to before {end}" for number, (start, end) in list(topic.ranges.items())[:_SHOWN]]
    more = len(topic.ranges) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
