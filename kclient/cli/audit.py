"""`kclient pipeline audit`: two topics, or a topic and an archive, compared with Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError, report
from kclient.cli.sides import asking_side, check_pages, is_archive, side_of, write_pages
from kclient.cli.spark_session import check_spark, progress, shown, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchivedTopic, AuditReport, TopicAt

SAME, DIFFERENT, NOT_COMPARED = 0, 1, 2
"""The exit codes."""


@dataclass(frozen=True)
class AuditWanted:
    """How is compared, and what is written; see `kclient.spark.audit`."""

    by: str
    overlap: bool
    ignore: tuple[str, ...]
    range_size: int
    html: str | None
    png: str | None
    as_json: bool
    topic_ids: tuple[str | None, str | None] = (None, None)


def audit(
    left: str,
    right: str,
    bootstrap: str,
    config: tuple[Sequence[str], Sequence[str], Sequence[str]],
    wanted: AuditWanted,
    *,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Compare, and print what was found; returns an exit code that says whether the sides are the same.

    Args:
        left: `TOPIC`, `TOPIC@ADDRESS` or `TOPIC@archive:DIR`.
        right: likewise.
        bootstrap: the address of a topic that has none.
        config: settings of both sides, of the left one, and of the right one.
        wanted: how.
        master: where Spark runs.
        spark_settings: its settings.
    """
    try:
        found = _audited(left, right, bootstrap, config, wanted, master, spark_settings)
    except Exception as error:  # noqa: BLE001  (whatever is wrong, 1 would say that they differ)
        report(error)
        return NOT_COMPARED
    return SAME if found.same else DIFFERENT


def _audited(
    left: str,
    right: str,
    bootstrap: str,
    config: tuple[Sequence[str], Sequence[str], Sequence[str]],
    wanted: AuditWanted,
    master: str,
    spark_settings: dict[str, str],
) -> AuditReport:
    check_spark(spark_settings, "The audit pipeline")
    from kclient.spark.pipelines import audit as run
    from kclient.spark.pipelines.audit import check_audit
    from kclient.spark.pipelines.audit_sides import opened

    sides = [
        _side(name, text, bootstrap, config[0], own, topic_id)
        for name, text, own, topic_id in zip(
            ("left", "right"), (left, right), config[1:], wanted.topic_ids, strict=True
        )
    ]
    if config[0] and all(is_archive(text) for text in (left, right)):
        raise UsageError("--config is for topics of a cluster, and both sides are archives")
    arguments: dict[str, Any] = {
        "by": wanted.by,
        "overlap": wanted.overlap,
        "ignore": wanted.ignore,
        "range_size": wanted.range_size,
    }
    check_audit(sides[0], sides[1], **arguments)
    check_pages({"--html": wanted.html, "--png": wanted.png}, "The picture of an audit")
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    # all that can be wrong is said before Spark takes its seconds to start
    for side in sides:
        asking, patience = asking_side(side)
        with told(output.note, going_on=trying_for(patience)), shown(f"looking at {side}"):
            opened(asking)
    with spark_session("kclient audit", master, spark_settings) as spark, progress() as bars:
        found = run(spark, sides[0], sides[1], **arguments, progress=bars)
    if wanted.as_json:
        output.line(found.to_json())
    else:
        _print(found)
    write_pages(found, wanted.html, wanted.png)
    return found


def _side(
    name: str, text: str, bootstrap: str, shared: Sequence[str], own: Sequence[str], topic_id: str | None
) -> TopicAt | ArchivedTopic:
    if is_archive(text):
        if own:
            raise UsageError(f"--{name}-config is for a topic of a cluster, and the {name} side is an archive")
    elif topic_id is not None:
        raise UsageError(f"--{name}-topic-id is for an archive, and the {name} side is a topic of a cluster")
    return side_of(text, bootstrap, [*shared, *own], topic_id=topic_id)


def _print(found: AuditReport) -> None:
    from kclient.spark.pipelines.audit_report import GAP_COLUMNS, PARTITION_COLUMNS, parting_lines, partition_row

    output.table(
        PARTITION_COLUMNS,
        [partition_row(each) for each in found.partitions],
        title=f"{found.left}, and {found.right}: {found.summary()}, in {found.seconds:.1f} s",
    )
    if not output.is_terminal():
        for parting in found.partings:
            for line in parting_lines(parting):
                output.say(line)
        return
    if found.gap_rows():
        output.table(GAP_COLUMNS, found.gap_rows(), title="Offsets without a record")
    for note in found.notes:
        output.line(note)
    if found.latency.records:
        output.table(["latency", "ms"], list(found.latency.percentiles().items()))
    for parting in found.partings:
        for line in parting_lines(parting):
            output.line(line)
