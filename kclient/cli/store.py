"""`kclient store`: looks after a gateway's data directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kclient.cli import output
from kclient.cli.errors import FAILED, check_terminated
from kclient.gateway.rows.inspection import RowInspection
from kclient.htp.embedded.inspection import Inspection, TopicReport
from kclient.htp.embedded.upgrading import upgrade as upgrade_directory
from kclient.htp.findings import Finding, Severity
from kclient.records import RecordBatchFraming


def verify(directory: str) -> int:
    """Read everything that is stored, and print what is there and what is wrong; 1 if something is lost."""
    with Inspection(directory, RecordBatchFraming.name) as inspection:
        findings = [*inspection.findings, *inspection.directories()]
        with _progress(directory) as progress:
            reports = list(_read_topics(inspection, progress))
        for report in reports:
            findings += report.findings
        rows = RowInspection(info.place for info in inspection.topics.values())
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
    for info in sorted(inspection.topics.values(), key=lambda info: info.topic):
        check_terminated()
        yield inspection.topic(info, progress)


def _print(reports: list[TopicReport], rows: int, findings: list[Finding]) -> None:
    wrong = {report.place for report in reports if report.findings}
    output.table(
        ["HTP topic", "incarnation", "segments", "messages", "bytes", "findings"],
        [
            (
                str(report.place.topic),
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


@contextmanager
def _progress(directory: str) -> Iterator[Callable[[int], object]]:
    """Shows how many of the messages' bytes were read, to people."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    total = sum(path.stat().st_size for path in Path(directory).glob("brk-*/topics/*/*.log"))
    with Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda count: bar.advance(task, count)
