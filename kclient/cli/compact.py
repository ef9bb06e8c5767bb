"""`kclient pipeline compact`: the latest record of each key of a topic, or of an archive of it, as a table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sides import asking_side, is_archive, side_of
from kclient.cli.spark_session import check_spark, progress, shown, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import CompactSummary


@dataclass(frozen=True)
class CompactWanted:
    """What is kept of the topic, and when the run fails; see `kclient.spark.compact`."""

    headers: bool
    keep_tombstones: bool
    refuse_null_keys: bool
    allow_data_loss: bool
    restart_recreated: bool
    topic_id: str | None

    def arguments(self) -> dict[str, Any]:
        """Those of `kclient.spark.compact`."""
        return {
            "headers": self.headers, "keep_tombstones": self.keep_tombstones, "refuse_null_keys": self.refuse_null_keys,
            "fail_on_data_loss": not self.allow_data_loss, "restart_recreated": self.restart_recreated,
        }  # fmt: skip


def compact(
    source: str,
    destination: str,
    bootstrap: str,
    config: Sequence[str],
    wanted: CompactWanted,
    *,
    dry_run: bool,
    as_json: bool,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Compact what is new, and print a summary."""
    check_spark(spark_settings, "The compact pipeline")
    from kclient.spark.pipelines import compact as run
    from kclient.spark.pipelines.compact import check_table_folder

    # all that can be wrong is said before Spark takes its seconds to start: by a dry run
    if is_archive(source) and config:
        raise UsageError("--config is for a topic of a cluster, and this is an archive")
    if wanted.topic_id is not None and not is_archive(source):
        raise UsageError("--topic-id is for an archive, and this is a topic of a cluster")
    check_table_folder(destination)
    side = side_of(source, bootstrap, list(config), "a compacted topic", topic_id=wanted.topic_id)
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = asking_side(side)
    with told(output.note, going_on=trying_for(patience)), shown(f"looking at {side}"):
        summary = run(None, asking, destination, **wanted.arguments(), dry_run=True)
    if not dry_run:
        with spark_session("kclient compact", master, spark_settings) as spark, progress() as bars:
            summary = run(spark, side, destination, **wanted.arguments(), progress=bars)
    if as_json:
        output.line(summary.to_json())
    else:
        _print(summary)
    return 0


def _print(summary: CompactSummary) -> None:
    if summary.dry_run:
        output.table(
            ["new offsets", "of partitions", "lost offsets", "rows of the last table"],
            [(summary.offsets, summary.partitions, summary.lost, summary.rows)],
            title=f"Compacting {summary.source} would read",
        )
        return
    output.table(
        ["records", "without a key", "lost offsets", "rows", "removed keys", "keys of several partitions", "bytes"],
        [(summary.records, summary.null_keys, summary.lost, summary.rows, summary.tombstones, summary.split_keys,
          summary.size)],
        title=f"{summary.source} in {summary.table}, in {summary.seconds:.1f} s",
    )  # fmt: skip
