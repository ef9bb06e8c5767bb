"""What commands print: tables for people on a terminal, lines with tabs in a pipe; and progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

_MOST_RICH: Final = 500
"""Rows of a table that is drawn nicely."""


def is_terminal() -> bool:
    """Whether people look at the output."""
    return sys.stdout.isatty()


def line(text: str) -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Tell people something that is not output: on standard error, and only if that is a terminal."""
    if sys.stderr.isatty():
        say(text)


def warn(text: str) -> None:
    """Say on standard error what must not be overlooked, also in a pipe."""
    say(f"kclient: {text}")


def say(text: str) -> None:
    """Write a line to standard error; where nobody can read it, the work goes on all the same."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print rows under columns; in a pipe a single column stands without its name."""
    if is_terminal():
        rows = list(rows)
        if len(rows) > _MOST_RICH:
            _aligned(columns, rows, title)
        else:
            _rich_table(columns, rows, title)
        return
    if len(columns) > 1:
        line("\t".join(columns))
    for row in rows:
        line("\t".join(_plain(cell) for cell in row))


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None) -> None:
    """Columns under each other: of thousands of rows, rich would work at each for more than a millisecond."""
    cells = [columns, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if title is not None:
        line(title)
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Any:
    """A table as rich prints it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # as text: brackets in it, as of a folder's name, are no markup
    shown = Table(
        title=None if title is None else Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold"
    )
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(_styled(cell) for cell in row))
    return shown


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None) -> None:
    from rich.console import Console

    shown = rich_table(columns, rows, title)
    console = Console()
    if shown.row_count:
        console.print(shown)
        return
    if title is not None:
        console.print(title, style="bold", markup=False)
    console.print("nothing", style="dim")


def _styled(cell: Any) -> Any:
    from rich.text import Text

    if isinstance(cell, int) and not isinstance(cell, bool):
        return Text(str(cell), style="cyan", justify="right")
    return Text(_plain(cell))


def _plain(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    # a cell never breaks its line
    text = str(cell).replace("\t", " ").replace("\n", " ")
    if text.isprintable():
        return text
    # names that others chose: an escape sequence in one would be obeyed by the terminal
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
