"""`kclient pipeline replay`: an archive back to topics with Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.settings import client_settings, milliseconds, with_patience
from kclient.cli.spark_session import check_spark, progress, shown, spark_session
from kclient.cli.trouble import told, trying_for
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.spark.pipelines import ReplaySummary

_RANGE = re.compile(r"([^:=]+):(\d+)=(\d+)\.\.(\d+)", re.ASCII)


@dataclass(frozen=True)
class ReplayWanted:
    """What is to be replayed, as the command's options say it; see `kclient.spark.replay`."""

    topics: Sequence[str]
    rename: Mapping[str, str]
    prefix: str
    target: str | None
    since: str | None
    until: str | None
    offsets: Sequence[str]
    topic_ids: Sequence[str]
    records_per_second: float | None
    bytes_per_second: float | None
    keep_partitions: bool
    append: bool
    replay_id: str | None

    def arguments(self) -> dict[str, Any]:
        """Those of `kclient.spark.replay`.

        Raises:
            UsageError: one of them is malformed.
        """
        return {
            "topics": self.topics, "rename": self.rename, "prefix": self.prefix, "target": self.target,
            "since": None if self.since is None else milliseconds(self.since, "--since"),
            "until": None if self.until is None else milliseconds(self.until, "--until"),
            "offsets": _ranges(self.offsets), "topic_ids": self.topic_ids,
            "records_per_second": self.records_per_second, "bytes_per_second": self.bytes_per_second,
            "keep_partitions": self.keep_partitions, "append": self.append, "replay_id": self.replay_id,
        }  # fmt: skip


def replay(
    source: str,
    bootstrap: str,
    config: list[str] | None,
    wanted: ReplayWanted,
    *,
    dry_run: bool,
    as_json: bool,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Replay what no earlier run has replayed, and print a summary."""
    check_spark(spark_settings, "The replay pipeline")
    from kclient.spark.pipelines import replay as run
    from kclient.spark.pipelines.archive_view import ArchiveView
    from kclient.spark.pipelines.places import local_folder

    # all that can be wrong is said before Spark takes its seconds to start: by a dry run
    settings = client_settings(bootstrap, config, refused=("key.serializer", "value.serializer"))
    arguments = wanted.arguments()
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = with_patience(settings)
    with told(output.note, going_on=trying_for(patience)), shown("looking at the archive and the target"):
        summary = run(None, source, asking, **arguments, dry_run=True)
    for note in ArchiveView(local_folder(source)).notes([each.topic for each in summary.topics]):
        output.warn(note)
    for warning in summary.warnings:
        output.warn(warning)
    if not dry_run:
        with spark_session("kclient replay", master, spark_settings) as spark, progress() as bars:
            summary = run(spark, source, settings, **arguments, progress=bars)
    if as_json:
        output.line(summary.to_json())
    else:
        _print(summary)
    return 0


def _ranges(given: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
    found: dict[TopicPartition, tuple[int, int]] = {}
    for text in given:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise UsageError(f"--offsets takes TOPIC:PARTITION=FIRST..END, such as flights:0=1000..2000, not {text!r}")
        place = TopicPartition(match[1], int(match[2]))
        if place in found:
            raise UsageError(f"--offsets {match[1]}:{match[2]} is given twice")
        found[place] = int(match[3]), int(match[4])
    return found


def _print(summary: ReplaySummary) -> None:
    if summary.dry_run:
        output.table(
            ["topic", "target", "partitions", "offsets to look at", "replayed before"],
            [(each.topic, each.target, each.partitions, each.offsets, each.total) for each in summary.topics],
            title=f"Replay {summary.id} of {summary.source} would write",
        )
        return
    output.table(
        ["topic", "target", "partitions", "records", "bytes", "records of all runs"],
        [(each.topic, each.target, each.partitions, each.records, each.size, each.total) for each in summary.topics],
        title=f"{summary.records} records of {summary.source} in {summary.seconds:.1f} s (replay {summary.id})",
    )
