"""`kclient pipeline`: the options of its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from kclient.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Command, Config
from kclient.cli.settings import parse_config

pipeline_app: typer.Typer = typer.Typer(help="Jobs that run on Spark.", no_args_is_help=True)

_Master = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")]
_Spark = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="NAME=VALUE", help="A setting of Spark, such as spark.executor.memory=4g."),
]
_Side = Annotated[str, typer.Argument(metavar="TOPIC[@ADDRESS]", help="TOPIC, TOPIC@HOST:PORT or TOPIC@archive:DIR.")]
_Json = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]


@pipeline_app.callback()
def _pipelines() -> None:
    """Jobs that run on Spark."""


@pipeline_app.command("archive", cls=Command)
def pipeline_archive(
    destination: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Folder for the Parquet files, which Spark's workers share.")
    ],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="What to archive; or --pattern.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="All topics of such names.")] = None,
    master: _Master = "local[*]",
    spark: _Spark = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on if records were deleted before they were archived.")
    ] = False,
    restart_recreated: Annotated[
        bool,
        typer.Option(
            "--restart-recreated", help="Archive topics that were deleted and created again from their new start."
        ),
    ] = False,
    max_offsets: Annotated[
        int | None, typer.Option("--max-offsets", metavar="N", min=1, help="Take about so many; later runs go on.")
    ] = None,
    min_partitions: Annotated[
        int | None,
        typer.Option("--min-partitions", metavar="N", min=1, help="Read with so many tasks at least."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option("--compression", metavar="CODEC", help="zstd, snappy, gzip, brotli, lz4 or none."),
    ] = None,
    compression_level: Annotated[
        int | None, typer.Option("--compression-level", metavar="N", help="Such as 1 to 22 of zstd.")
    ] = None,
    file_size: Annotated[
        int | None,
        typer.Option("--file-size", metavar="BYTES", help="A file that has about so many is followed by another."),
    ] = None,
    row_group_size: Annotated[
        int | None,
        typer.Option("--row-group-size", metavar="BYTES", help="Of row groups, in memory; 67108864 if unsaid."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option("--partition-by", metavar="NAMES", help="The folders: topic,date if unsaid; or topic,date,hour."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be archived.")] = False,
    as_json: _Json = False,
    config: Config = None,
) -> int:
    """Archive topics as Parquet, by topic and UTC time; what earlier runs have archived is left out."""
    from kclient.cli.pipeline import ArchiveWanted, archive

    wanted = ArchiveWanted(
        topics or [], pattern, allow_data_loss, restart_recreated, max_offsets, min_partitions, compression,
        compression_level, file_size, row_group_size, partition_by,
    )  # fmt: skip
    return archive(
        destination, bootstrap, config, wanted, dry_run=dry_run, as_json=as_json, master=master,
        spark_settings=parse_config(spark, "--spark"),
    )  # fmt: skip


@pipeline_app.command("expire", cls=Command)
def pipeline_expire(
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="The archive's folder.")],
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="AGE|TIME", help="An age (90d, 12h, 30m), ISO 8601, or milliseconds."),
    ],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Of which; by default of all.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: _Json = False,
) -> int:
    """Delete an archive's files whose records are all older; it needs no Spark."""
    from kclient.cli.expire import expire

    return expire(source, topics or [], older_than, dry_run=dry_run, as_json=as_json)


@pipeline_app.command("replay", cls=Command)
def pipeline_replay(
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="The archive, which Spark's workers share.")],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="What to replay; by default all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="TOPIC=TARGET", help="Another name for a topic.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="What the other targets begin with.")] = "",
    target: Annotated[str | None, typer.Option("--target", metavar="TOPIC", help="One target for all.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this timestamp on, as 2013-01-01T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this timestamp.")] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", metavar="TOPIC:PARTITION=FIRST..END", help="Only these, to before END."),
    ] = None,
    topic_ids: Annotated[
        list[str] | None,
        typer.Option("--topic-id", metavar="ID", help="Which topic, where several of one name are archived."),
    ] = None,
    records_per_second: Annotated[
        float | None, typer.Option("--rate", metavar="RECORDS", help="At most so many records a second.")
    ] = None,
    bytes_per_second: Annotated[
        float | None, typer.Option("--rate-bytes", metavar="BYTES", help="At most so many bytes a second.")
    ] = None,
    repartition: Annotated[
        bool, typer.Option("--repartition", help="Let the partitioner choose partitions, instead of keeping them.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Write to a target that has other records already.")] = False,
    replay_id: Annotated[str | None, typer.Option("--id", metavar="NAME", help="What the next run goes on by.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    as_json: _Json = False,
    master: _Master = "local[*]",
    spark: _Spark = None,
    config: Config = None,
) -> int:
    """Write an archive back to topics, each record once; a run that was ended is gone on with by the same command."""
    from kclient.cli.replay import ReplayWanted, replay

    wanted = ReplayWanted(
        topics or [], parse_config(rename, "--rename"), prefix, target, since, until, offsets or [], topic_ids or [],
        records_per_second, bytes_per_second, not repartition, append, replay_id,
    )  # fmt: skip
    return replay(
        source, bootstrap, config, wanted, dry_run=dry_run, as_json=as_json, master=master,
        spark_settings=parse_config(spark, "--spark"),
    )  # fmt: skip


@pipeline_app.command("mirror", cls=Command)
def pipeline_mirror(
    source: Annotated[str, typer.Option("--from", metavar="HOST:PORT", help="The cluster that is read.")],
    target: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The cluster that is written.")],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="What to mirror; or --pattern.")] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="All topics of such names.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="TOPIC=TARGET", help="Another name for a topic.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="What the other targets begin with.")] = "",
    groups: Annotated[
        str | None, typer.Option("--groups", metavar="REGEX", help="Translate the committed offsets of such groups.")
    ] = None,
    no_settings: Annotated[
        bool, typer.Option("--no-settings", help="Make targets without the settings of their sources.")
    ] = False,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on if records were deleted before they were mirrored.")
    ] = False,
    restart_recreated: Annotated[
        bool,
        typer.Option(
            "--restart-recreated", help="Mirror topics that were deleted and created again from their new start."
        ),
    ] = False,
    records_per_second: Annotated[
        float | None, typer.Option("--rate", metavar="RECORDS", help="The most records a second, of the whole job.")
    ] = None,
    bytes_per_second: Annotated[
        float | None, typer.Option("--rate-bytes", metavar="BYTES", help="The most bytes a second, of the whole job.")
    ] = None,
    max_offsets: Annotated[
        int | None, typer.Option("--max-offsets", metavar="N", min=1, help="Take about so many; later runs go on.")
    ] = None,
    mirror_id: Annotated[str | None, typer.Option("--id", metavar="NAME", help="What the next run goes on by.")] = None,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="SECONDS", help="Run again so many seconds after a run began, until Ctrl-C."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    as_json: _Json = False,
    master: _Master = "local[*]",
    spark: _Spark = None,
    source_config: Annotated[
        list[str] | None, typer.Option("--from-config", metavar="NAME=VALUE", help="A setting of those who read.")
    ] = None,
    target_config: Annotated[
        list[str] | None, typer.Option("--to-config", metavar="NAME=VALUE", help="A setting of those who write.")
    ] = None,
) -> int:
    """Write topics to another cluster, each record once; the same command goes on where a run has ended."""
    from kclient.cli.mirror import MirrorWanted, mirror

    wanted = MirrorWanted(
        topics or [], pattern, parse_config(rename, "--rename"), prefix, not no_settings, allow_data_loss,
        restart_recreated, groups, records_per_second, bytes_per_second, max_offsets, mirror_id,
    )  # fmt: skip
    return mirror(
        source, target, (source_config or [], target_config or []), wanted, every=every, dry_run=dry_run,
        as_json=as_json, master=master, spark_settings=parse_config(spark, "--spark"),
    )  # fmt: skip


@pipeline_app.command("audit", cls=Command)
def pipeline_audit(
    left: _Side,
    right: _Side,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    by: Annotated[
        str, typer.Option("--by", metavar="auto|offset|order", help="What makes two records counterparts.")
    ] = "auto",
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Compare only offsets within the bounds of both sides.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="key|value|headers|timestamp", help="What does not count."),
    ] = None,
    range_size: Annotated[
        int, typer.Option("--range-size", metavar="N", help="So many records have a checksum.")
    ] = 1_000_000,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page, with its pictures inside.")
    ] = None,
    png: Annotated[str | None, typer.Option("--png", metavar="FILE", help="Write the pictures.")] = None,
    as_json: _Json = False,
    left_config: Annotated[
        list[str] | None, typer.Option("--left-config", metavar="NAME=VALUE", help="A setting of the left side.")
    ] = None,
    right_config: Annotated[
        list[str] | None, typer.Option("--right-config", metavar="NAME=VALUE", help="A setting of the right side.")
    ] = None,
    left_topic_id: Annotated[
        str | None,
        typer.Option("--left-topic-id", metavar="ID", help="Which topic of that name the left archive means."),
    ] = None,
    right_topic_id: Annotated[
        str | None, typer.Option("--right-topic-id", metavar="ID", help="Likewise, of the right archive.")
    ] = None,
    master: _Master = "local[*]",
    spark: _Spark = None,
    config: Config = None,
) -> int:
    """Compare two topics, or a topic and an archive: 0 is the same, 1 different, 2 could not be compared."""
    from kclient.cli.audit import AuditWanted, audit

    return audit(
        left, right, bootstrap, (config or [], left_config or [], right_config or []),
        AuditWanted(by, overlap, tuple(ignore or ()), range_size, html, png, as_json, (left_topic_id, right_topic_id)),
        master=master,
        spark_settings=parse_config(spark, "--spark"),
    )  # fmt: skip


@pipeline_app.command("stats", cls=Command)
def pipeline_stats(
    source: _Side,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    per: Annotated[str, typer.Option("--per", metavar="minute|hour|day", help="Tell rates by it.")] = "hour",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Tell so many keys.")] = 20,
    topic_id: Annotated[
        str | None,
        typer.Option("--topic-id", metavar="ID", help="Which topic, where several of one name are archived."),
    ] = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Count no keys, which is quicker.")] = False,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page, with its pictures inside.")
    ] = None,
    png: Annotated[str | None, typer.Option("--png", metavar="FILE", help="Write the pictures.")] = None,
    as_json: _Json = False,
    master: _Master = "local[*]",
    spark: _Spark = None,
    config: Config = None,
) -> int:
    """Count what a topic, or an archive of it, holds: sizes, rates, partitions and keys."""
    from kclient.cli.stats import StatsWanted, stats

    wanted = StatsWanted(per, not no_keys, top, html, png, as_json, topic_id)
    return stats(
        source, bootstrap, config or [], wanted, master=master, spark_settings=parse_config(spark, "--spark")
    )  # fmt: skip


@pipeline_app.command("compact", cls=Command)
def pipeline_compact(
    source: _Side,
    destination: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Folder for the table, which Spark's workers share.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    headers: Annotated[bool, typer.Option("--headers", help="Keep headers, as a column.")] = False,
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep keys without a value, as rows with null.")
    ] = False,
    refuse_null_keys: Annotated[
        bool, typer.Option("--refuse-null-keys", help="Fail if records have no key; else they are left out.")
    ] = False,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on if records were deleted before they were read.")
    ] = False,
    restart_recreated: Annotated[
        bool,
        typer.Option("--restart-recreated", help="Begin a new table if the topic was deleted and created again."),
    ] = False,
    topic_id: Annotated[
        str | None,
        typer.Option("--topic-id", metavar="ID", help="Which topic, where several of one name are archived."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be read.")] = False,
    as_json: _Json = False,
    master: _Master = "local[*]",
    spark: _Spark = None,
    config: Config = None,
) -> int:
    """Keep the latest record of each key as a Parquet table; later runs read only what is new."""
    from kclient.cli.compact import CompactWanted, compact

    wanted = CompactWanted(
        headers, keep_tombstones, refuse_null_keys, allow_data_loss, restart_recreated, topic_id
    )  # fmt: skip
    return compact(
        source, destination, bootstrap, config or [], wanted, dry_run=dry_run, as_json=as_json, master=master,
        spark_settings=parse_config(spark, "--spark"),
    )  # fmt: skip
