"""`kclient store`: looks after a gateway's data directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kclient.cli import output
from kclient.cli.errors import FAILED, check_terminated
from kclient.gateway.rows.inspection import RowInspection
from kclient.htp.embedded.backup import back_up
from kclient.htp.embedded.inspection import Inspection, TopicReport
from kclient.htp.embedded.restoring import restore as restore_backup
from kclient.htp.embedded.upgrading import upgrade as upgrade_directory
from kclient.htp.findings import Finding, Severity
from kclient.records import RecordBatchFraming

_TOLD: Final = 20
"""Things that were lost of which a backup tells, at most."""


def verify(directory: str) -> int:
    """Read everything that is stored, and print what is there and what is wrong; 1 if something is lost."""
    with Inspection(directory, RecordBatchFraming.name, dense=True) as inspection:
        findings = [*inspection.findings, *inspection.directories()]
        with _progress("verify", _bytes_of_messages(directory)) as (_, progress):
            reports = list(_read_topics(inspection, progress))
        for report in reports:
            findings += report.findings
        rows = RowInspection(inspection.places.values())
        for key, row in inspection.rows():
            findings += rows.look(key, row)
        findings += rows.compare()
    _print(reports, rows.rows, findings)
    return FAILED if any(finding.severity is Severity.ERROR for finding in findings) else 0


def upgrade(directory: str) -> int:
    """Bring a data directory to this version's format, and say from which."""
    before, after = upgrade_directory(directory)
    if before == after:
        output.line(f"{directory} has format {after}, which is this version's: there was nothing to upgrade")
    else:
        output.line(f"{directory} was upgraded from format {before} to {after}")
    return 0


def _read_topics(inspection: Inspection, progress: Callable[[int], object]) -> Iterator[TopicReport]:
    for place in sorted(inspection.places.values()):
        check_terminated()
        yield inspection.topic(place, progress)


def _print(reports: list[TopicReport], rows: int, findings: list[Finding]) -> None:
    wrong = {report.place for report in reports if report.findings}
    output.table(
        ["HTP topic", "broker", "incarnation", "segments", "messages", "bytes", "findings"],
        [
            (
                str(report.place.topic),
                report.place.broker or None,
                report.place.incarnation,
                report.segments,
                report.messages,
                report.size,
                len(report.findings) if report.place in wrong else None,
            )
            for report in reports
        ],
    )
    if findings:
        output.line("")
        output.table(["severity", "where", "what"], [(each.severity.value, each.where, each.what) for each in findings])
    lost = sum(finding.severity is Severity.ERROR for finding in findings)
    messages, size = sum(each.messages for each in reports), sum(each.size for each in reports)
    output.note(
        f"{len(reports)} HTP topics, {messages:,} messages, {size:,} bytes, {rows:,} rows: "
        f"{lost} errors, {len(findings) - lost} notes"
    )


def backup(directory: str, target: str) -> int:
    """Copy a data directory as it is at one moment, and say what was copied."""
    with _progress("backup") as (total, progress):
        report = back_up(directory, target, total=total, progress=progress)
    output.line(
        f"{target}: {report.topics} HTP topics, {report.files:,} files, {report.size:,} bytes, as of "
        f"{_shown_time(report.taken_ms)}"
    )
    if not report.exact:
        output.warn(
            "the logs were looked at one after another, within milliseconds: several processes have the data directory "
            "open, or who has it open did not tell where they end"
        )
    for each in report.lost[:_TOLD]:
        output.warn(each)
    if not report.lost:
        return 0
    more = f" {len(report.lost)} such findings, of which {_TOLD} are told." if len(report.lost) > _TOLD else ""
    output.warn(
        f"this backup has everything that is left, but {directory} had lost something before.{more} Keep the older "
        f"backups that have it; kclient store verify {target}/data tells more"
    )
    return FAILED


def restore(source: str, directory: str) -> int:
    """Make a data directory of a backup, and say what was copied."""
    with _progress("restore") as (total, progress):
        report = restore_backup(source, directory, total=total, progress=progress)
    output.line(f"{directory}: {report.files:,} files, {report.size:,} bytes, as of {_shown_time(report.taken_ms)}")
    for shard in report.lost:
        output.warn(
            f"the backup has nothing of {shard}: its directory was missing when it was taken. An empty one was made. "
            "The topics that were kept there cannot be used: delete them, or restore an older backup that has them"
        )
    return FAILED if report.lost else 0


def _shown_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bytes_of_messages(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).glob("brk-*/topics/*/*.log"))


@contextmanager
def _progress(what: str, total: int | None = None) -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
    """Shows how many bytes were read, to people: what is told how many there are, and what of each piece."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda found: bar.update(task, total=found), lambda count: bar.advance(task, count)
