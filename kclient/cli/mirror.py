"""`kclient pipeline mirror`: topics of a cluster to another one with Spark."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError, named_by
from kclient.cli.repeated import repeated
from kclient.cli.settings import client_settings, refuse_group_settings, with_patience
from kclient.cli.spark_session import check_spark, progress, shown, spark_session
from kclient.cli.trouble import told, trying_for

if TYPE_CHECKING:
    from kclient.spark.pipelines import MirrorSummary

_AS_BYTES = "records are mirrored as bytes"


@dataclass(frozen=True)
class MirrorWanted:
    """What is to be mirrored, as the command's options say it; see `kclient.spark.mirror`."""

    topics: Sequence[str]
    pattern: str | None
    rename: Mapping[str, str]
    prefix: str
    copy_settings: bool
    allow_data_loss: bool
    restart_recreated: bool
    groups: str | None
    records_per_second: float | None
    bytes_per_second: float | None
    max_offsets: int | None
    mirror_id: str | None

    def arguments(self) -> dict[str, Any]:
        """Those of `kclient.spark.mirror`.

        Raises:
            UsageError: nothing, or too much, says which topics.
        """
        if bool(self.topics) == (self.pattern is not None):
            raise UsageError("say what to mirror: topics, or --pattern")
        return {
            "topics": self.topics, "pattern": self.pattern, "rename": self.rename, "prefix": self.prefix,
            "copy_settings": self.copy_settings, "fail_on_data_loss": not self.allow_data_loss,
            "restart_recreated": self.restart_recreated, "groups": self.groups,
            "records_per_second": self.records_per_second, "bytes_per_second": self.bytes_per_second,
            "max_offsets": self.max_offsets, "mirror_id": self.mirror_id,
        }  # fmt: skip


def mirror(
    source: str,
    target: str,
    configs: tuple[list[str], list[str]],
    wanted: MirrorWanted,
    *,
    every: float | None,
    dry_run: bool,
    as_json: bool,
    master: str,
    spark_settings: dict[str, str],
) -> int:
    """Mirror what no earlier run has mirrored, and print a summary; with `every` again and again."""
    arguments = wanted.arguments()
    _check_every(every, dry_run=dry_run)
    check_spark(spark_settings, "The mirror pipeline")
    from kclient.spark.pipelines import mirror as run

    # all that can be wrong is said before Spark takes its seconds to start: by a dry run
    reading = client_settings(
        source, configs[0], refused=("key.deserializer", "value.deserializer"), why=_AS_BYTES,
        options=("--from", "--from-config"),
    )  # fmt: skip
    refuse_group_settings({name.replace("_", ".") for name in reading}, "a mirror has none", "--from-config")
    writing = client_settings(
        target, configs[1], refused=("key.serializer", "value.serializer"), why=_AS_BYTES,
        options=("--to", "--to-config"),
    )  # fmt: skip
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    (asking, patience), (telling, _) = with_patience(reading), with_patience(writing)
    with named_by("--from and --to say where the two clusters are"):
        with told(output.note, going_on=trying_for(patience)), shown("looking at both clusters"):
            summary = run(None, asking, telling, **arguments, dry_run=True)
        warned = set[str]()
        _warn(summary, warned)
        if dry_run:
            _tell(summary, as_json=as_json)
            return 0
        with spark_session("kclient mirror", master, spark_settings) as spark:

            def once() -> MirrorSummary:
                with progress() as bars:
                    done = run(spark, reading, writing, **arguments, progress=bars)
                _warn(done, warned)
                return done

            if every is not None:
                return repeated(every, lambda: _tell(once(), as_json=as_json, quiet=True), output.warn)
            summary = once()
        _tell(summary, as_json=as_json)
    return 0


def _check_every(every: float | None, *, dry_run: bool) -> None:
    """Raises `UsageError` where nobody could wait so long, or where nothing is done."""
    if every is None:
        return
    if not 0 < every < threading.TIMEOUT_MAX:
        raise UsageError(f"--every takes a number of seconds greater than 0, not {every:g}")
    if dry_run:
        raise UsageError("--every goes on and on, and --dry-run only says what would be written: give one of them")


def _tell(summary: MirrorSummary, *, as_json: bool, quiet: bool = False) -> None:
    """Print what a run did; with `quiet` no table of nothing."""
    if as_json:
        output.line(summary.to_json())
    elif not quiet or summary.records or (summary.groups is not None and summary.groups.moved):
        _print(summary)
    sys.stdout.flush()
    _tell_aside(summary)


def _warn(summary: MirrorSummary, warned: set[str]) -> None:
    """Tell each warning once: a target that the run has made has none in the look before."""
    for warning in summary.warnings:
        if warning not in warned:
            output.warn(warning)
    warned.update(summary.warnings)


def _print(summary: MirrorSummary) -> None:
    if summary.dry_run:
        output.table(
            ["topic", "target", "partitions", "offsets to look at", "mirrored before", "target is made"],
            [
                (each.topic, each.target, each.partitions, each.offsets, each.total, "yes" if each.created else "no")
                for each in summary.topics
            ],
            title=f"Mirror {summary.id} would write",
        )
        return
    output.table(
        ["topic", "target", "partitions", "records", "bytes", "records of all runs"],
        [(each.topic, each.target, each.partitions, each.records, each.size, each.total) for each in summary.topics],
        title=f"{summary.records} records in {summary.seconds:.1f} s (mirror {summary.id})",
    )
    groups = summary.groups
    if groups is not None:
        output.note(
            f"committed offsets: {groups.moved} translated, {groups.same} left as they were, {groups.later} of records"
            " that are not mirrored yet"
        )


def _tell_aside(summary: MirrorSummary) -> None:
    """What people should know, whatever is printed."""
    if not summary.topics and not summary.left_out:
        output.warn("no topic has a name that matches --pattern")
    if summary.remaining:
        output.note(f"{summary.remaining} offsets are left to later runs")
    if summary.waiting:
        output.note(f"{summary.waiting} offsets lie behind transactions that are open, and wait for those to end")
    for topic in summary.left_out:
        output.note(f"{topic} is left out: it was mirrored from the target's own cluster")
    for each in summary.topics:
        if each.lost:
            output.warn(f"{each.topic}: {each.lost} offsets were gone before they were mirrored")
    if summary.groups is not None:
        for group in summary.groups.active:
            output.warn(f"the group {group} has members in the target: its offsets were left as they are")
        for reason in summary.groups.refused:
            output.warn(f"the target does not take the offsets of the group {reason}")
        if summary.groups.early:
            output.warn(
                f"{summary.groups.early} committed offsets may lie before their exact place, never behind it:"
                " the source has lost records since"
            )
