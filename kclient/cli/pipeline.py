"""`kclient pipeline archive`: topics to Parquet with Spark."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.settings import client_settings, refuse_group_settings, with_patience
from kclient.cli.spark_session import check_spark, progress, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchiveSummary


@dataclass(frozen=True)
class ArchiveWanted:
    """What is to be archived, as the options of the command say it."""

    topics: list[str]
    pattern: str | None
    allow_data_loss: bool
    restart_recreated: bool
    max_offsets: int | None
    min_partitions: int | None
    compression: str | None
    compression_level: int | None
    file_size: int | None
    row_group_size: int | None
    partition_by: str | None

    def arguments(self) -> dict[str, Any]:
        """Those of the pipeline."""
        return {
            "topics": self.topics,
            "pattern": self.pattern,
            "fail_on_data_loss": not self.allow_data_loss,
            "restart_recreated": self.restart_recreated,
            "max_offsets": self.max_offsets,
            "min_partitions": self.min_partitions,
            "partition_by": self.partition_by,
            **self.parquet(),
        }

    def parquet(self) -> dict[str, Any]:
        """Those that say how files are written."""
        return {
            "compression": self.compression,
            "compression_level": self.compression_level,
            "file_size": self.file_size,
            "row_group_size": self.row_group_size,
        }


def archive(
    destination: str,
    bootstrap: str,
    config: list[str] | None,
    wanted: ArchiveWanted,
    *,
    dry_run: bool,
    as_json: bool,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Archive what no earlier run has archived, and print a summary."""
    topics, pattern = wanted.topics, wanted.pattern
    if bool(topics) == (pattern is not None):
        raise UsageError("say what to archive: topics, or --pattern")
    check_spark(spark_settings, "The archive pipeline")
    from kclient.spark.pipelines import archive as run
    from kclient.spark.pipelines.archive import check_folder, check_selection, check_topics
    from kclient.spark.pipelines.parquet_choices import parquet_choices

    # all that can be wrong is said before a broker is asked, and that before Spark takes its seconds to start
    check_folder(destination, wanted.partition_by)
    parquet_choices(None, **wanted.parquet())
    settings = client_settings(bootstrap, config, refused=("key.deserializer", "value.deserializer"))
    refuse_group_settings({name.replace("_", ".") for name in settings}, "an archive has none")
    check_selection(settings, topics=topics, pattern=pattern)
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = with_patience(settings)
    arguments = wanted.arguments()
    with told(output.note, going_on=trying_for(patience)):
        if dry_run:
            summary = run(None, destination, asking, **arguments, dry_run=True)
        else:
            check_topics(asking, topics=topics, pattern=pattern)
    if not dry_run:
        with spark_session("kclient archive", master, spark_settings) as spark, progress() as shown:
            summary = run(spark, destination, settings, **arguments, progress=shown)
    if as_json:
        output.line(summary.to_json())
    else:
        _print(summary)
    for topic in summary.topics:
        if topic.lost:
            output.warn(f"{topic.topic}: {topic.lost} offsets were gone before they were archived")
    return 0


def _print(summary: ArchiveSummary) -> None:
    if summary.dry_run:
        output.table(
            ["topic", "partitions", "offsets to read"],
            [(topic.topic, topic.partitions, topic.offsets) for topic in summary.topics],
            title=f"An archive to {summary.destination} would take",
        )
        _print_remaining(summary)
        return
    rows = [(topic.topic, topic.partitions, topic.records, topic.files, topic.size) for topic in summary.topics]
    title = f"{summary.records} records to {summary.destination} in {summary.seconds:.1f} s"
    output.table(["topic", "partitions", "records", "files", "bytes"], rows, title=title)
    _print_remaining(summary)


def _print_remaining(summary: ArchiveSummary) -> None:
    if summary.remaining:
        output.note(f"{summary.remaining} offsets are left to later runs")
