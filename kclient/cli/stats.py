"""`kclient pipeline stats`: what a topic, or an archive of it, holds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sides import asking_side, check_pages, is_archive, side_of, write_pages
from kclient.cli.spark_session import check_spark, progress, shown, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import StatsReport


@dataclass(frozen=True)
class StatsWanted:
    """What is counted, and what is written; see `kclient.spark.stats`."""

    per: str
    keys: bool
    top: int
    html: str | None
    png: str | None
    as_json: bool
    topic_id: str | None


def stats(
    source: str,
    bootstrap: str,
    config: Sequence[str],
    wanted: StatsWanted,
    *,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Count, and print what was found."""
    check_spark(spark_settings, "The stats pipeline")
    from kclient.spark.pipelines import stats as run
    from kclient.spark.pipelines.audit_sides import opened
    from kclient.spark.pipelines.stats import check_stats

    # all that can be wrong is said before Spark takes its seconds to start
    if is_archive(source) and config:
        raise UsageError("--config is for a topic of a cluster, and this is an archive")
    if wanted.topic_id is not None and not is_archive(source):
        raise UsageError("--topic-id is for an archive, and this is a topic of a cluster")
    side = side_of(source, bootstrap, list(config), "a count", topic_id=wanted.topic_id)
    check_stats(side, per=wanted.per, top=wanted.top)
    check_pages({"--html": wanted.html, "--png": wanted.png}, "The picture of statistics")
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = asking_side(side)
    with told(output.note, going_on=trying_for(patience)), shown(f"looking at {side}"):
        opened(asking)
    with spark_session("kclient stats", master, spark_settings) as spark, progress() as bars:
        found = run(spark, side, per=wanted.per, keys=wanted.keys, top=wanted.top, progress=bars)
    if wanted.as_json:
        output.line(found.to_json())
    else:
        _print(found)
    write_pages(found, wanted.html, wanted.png)
    return 0


def _print(found: StatsReport) -> None:
    from kclient.spark.pipelines.stats_report import KEY_COLUMNS, PARTITION_COLUMNS, SPAN_COLUMNS

    title = f"{found.source}: {found.summary()}, in {found.seconds:.1f} s"
    output.table(PARTITION_COLUMNS, found.partition_rows(), title=title)
    if not output.is_terminal():
        return  # programs read one table, or JSON
    for note in found.notes:
        output.line(note)
    if found.records:
        output.table(
            ["% of records", "bytes at most"], list(found.sizes.percentiles().items()), title="Sizes of records"
        )
    if found.key_rows():
        output.table(KEY_COLUMNS, found.key_rows(), title="Keys with the most records")
    if found.spans:
        output.table(SPAN_COLUMNS, found.busiest_rows(10), title=f"Busiest {found.per}s")
