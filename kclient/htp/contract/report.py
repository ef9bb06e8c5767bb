"""The table at the end: subject by subject, what the backend has passed, failed, and was not asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, Final

import pytest

from kclient.htp.contract.marks import FAULT, NEEDS, SUBJECT

__all__ = ["FAILED", "NOT_CLAIMED", "NOT_TESTABLE", "PASSED", "VERDICT", "ContractReport", "describe"]

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_CLAIMED: Final = "not claimed"
NOT_TESTABLE: Final = "not testable here"
VERDICT: Final = "htp_verdict"
"""The property of a test that was skipped: `NOT_CLAIMED` or `NOT_TESTABLE`."""
_ROW: Final = "htp_row"
_COLUMNS: Final = ("subject", "needs", "passed", "failed", "verdict")
_STYLES: Final = {PASSED: "green", FAILED: "bold red", NOT_CLAIMED: "dim", NOT_TESTABLE: "dim"}


def describe(item: pytest.Item) -> None:
    """Note in which row of the report a test counts: it travels with the test's reports, between processes too."""
    subject = item.get_closest_marker(SUBJECT)
    if subject is not None:
        needed = _names(item, NEEDS) + [f"fault {name}" for name in _names(item, FAULT)]
        item.user_properties.append((_ROW, f"{subject.args[0]}\n{', '.join(needed)}"))


def _names(item: pytest.Item, mark: str) -> list[str]:
    return sorted({name for each in item.iter_markers(mark) for name in each.args})


class ContractReport:
    """A plugin of pytest that counts verdicts and prints the table.

    Args:
        url: Of the store under test.
    """

    def __init__(self, url: str) -> None:
        self.url: str = url
        self._verdicts: dict[str, tuple[str, str]] = {}
        """Row and verdict of each test, by its name."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has been set up, has run, or was cleaned up."""
        properties = dict(report.user_properties)
        row = properties.get(_ROW)
        if row is None:
            return
        verdict: str | None = None
        if report.failed:
            verdict = FAILED
        elif report.skipped:
            verdict = str(properties.get(VERDICT, NOT_TESTABLE))
        elif report.when == "call":
            verdict = PASSED
        if verdict is not None and self._verdicts.get(report.nodeid, ("", ""))[1] != FAILED:
            self._verdicts[report.nodeid] = (str(row), verdict)

    def rows(self) -> list[tuple[str, str, int, int, str]]:
        """Subject, what it needs, tests passed and failed, and the verdict; in the order in which they were run."""
        counts: dict[str, Counter[str]] = {}
        for row, verdict in self._verdicts.values():
            counts.setdefault(row, Counter())[verdict] += 1
        rows = []
        for row, count in counts.items():
            subject, _, needed = row.partition("\n")
            verdict = next(each for each in (FAILED, NOT_TESTABLE, NOT_CLAIMED, PASSED) if count[each])
            if verdict != FAILED and count[PASSED]:
                verdict = PASSED
            rows.append((subject, needed or "required", count[PASSED], count[FAILED], verdict))
        return _together(rows)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        rows = self.rows()
        if not rows:
            return
        terminalreporter.section(f"HTP contract of {self.url}")
        terminalreporter.write(_drawn(rows, terminalreporter.hasmarkup))
        failing = list(dict.fromkeys(f"{row[0]} ({row[1]})" for row in rows if row[4] == FAILED))
        if failing:
            terminalreporter.write_line(f"It does not do what it claims: {'; '.join(failing)}.")
        else:
            terminalreporter.write_line("What it claims and could be tested, it does.")


def _together(rows: Iterable[tuple[str, str, int, int, str]]) -> list[tuple[str, str, int, int, str]]:
    """Rows of one subject one after the other, the one that is required first."""
    order: dict[str, list[tuple[str, str, int, int, str]]] = {}
    for row in rows:
        order.setdefault(row[0], []).append(row)
    return [row for some in order.values() for row in sorted(some, key=lambda each: each[1] != "required")]


def _drawn(rows: Sequence[tuple[str, str, int, int, str]], on_a_terminal: bool) -> str:
    if on_a_terminal:
        try:
            return _rich(rows)
        except ImportError:
            pass
    lines = [_COLUMNS, *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _rich(rows: Sequence[tuple[str, str, int, int, str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in (PASSED, FAILED) else "left")
    for subject, needed, passed, failed, verdict in rows:
        table.add_row(
            subject, Text(needed, style="dim" if needed == "required" else ""), str(passed),
            Text(str(failed), style=_STYLES[FAILED] if failed else "dim"), Text(verdict, style=_STYLES[verdict]),
        )  # fmt: skip
    drawn = StringIO()
    Console(file=drawn, force_terminal=True).print(table)
    return drawn.getvalue()
