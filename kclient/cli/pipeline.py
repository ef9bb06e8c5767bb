"""`kclient pipeline archive`: topics to Parquet with Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.settings import client_settings, refuse_group_settings, with_patience
from kclient.cli.spark_session import check_spark, progress, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchiveSummary


def archive(
    topics: list[str],
    bootstrap: str,
    config: list[str] | None,
    *,
    pattern: str | None,
    destination: str,
    master: str,
    spark_settings: dict[str, str],
    allow_data_loss: bool,
    restart_recreated: bool,
) -> int:
    """Archive what no earlier run has archived, and print a summary."""
    if bool(topics) == (pattern is not None):
        raise UsageError("say what to archive: topics, or --pattern")
    check_spark(spark_settings, "The archive pipeline")
    from kclient.spark.pipelines import archive as run
    from kclient.spark.pipelines.archive import check_folder, check_selection, check_topics

    # all that can be wrong is said before a broker is asked, and that before Spark takes its seconds to start
    check_folder(destination)
    settings = client_settings(bootstrap, config, refused=("key.deserializer", "value.deserializer"))
    refuse_group_settings({name.replace("_", ".") for name in settings}, "an archive has none")
    check_selection(settings, topics=topics, pattern=pattern)
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = with_patience(settings)
    with told(output.note, going_on=trying_for(patience)):
        check_topics(asking, topics=topics, pattern=pattern)
    with spark_session("kclient archive", master, spark_settings) as spark, progress() as shown:
        summary = run(
            spark, destination, settings, topics=topics, pattern=pattern, fail_on_data_loss=not allow_data_loss,
            restart_recreated=restart_recreated, progress=shown,
        )  # fmt: skip
    _print(summary)
    return 0


def _print(summary: ArchiveSummary) -> None:
    rows = [(topic.topic, topic.partitions, topic.records, topic.files, topic.size) for topic in summary.topics]
    title = f"{summary.records} records to {summary.destination} in {summary.seconds:.1f} s"
    output.table(["topic", "partitions", "records", "files", "bytes"], rows, title=title)
    for topic in summary.topics:
        if topic.lost:
            output.warn(f"{topic.topic}: {topic.lost} offsets were gone before they were archived")
