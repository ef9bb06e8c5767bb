"""What is looked at again and again: a table, or one object of JSON or YAML; once, or anew every second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from kclient.cli import output
from kclient.cli.errors import UsageError, complain, reason_of
from kclient.cli.options import FORMS
from kclient.errors import KafkaError
from kclient.sync import Admin

_WATCH_S = 1.0
"""Seconds between two looks with `--watch`."""
_AROUND = 6
"""Lines of a table around its rows."""


class Sheet(NamedTuple):
    """A table, and the same as one object."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    fields: Mapping[str, Any]
    missing: Mapping[int, KafkaError] = {}
    """Why brokers did not answer whose part is not there, by their ids."""


def sheet_of(title: str, columns: Sequence[str], objects: Sequence[Mapping[str, Any]], name: str) -> Sheet:
    """A table of objects; as one object it is all of them under a name. Lists stand in a cell with blanks."""
    rows = [[_cell(row[column]) for column in columns] for row in objects]
    return Sheet(title, columns, rows, {name: list(objects)})


def _cell(value: object) -> object:
    return (" ".join(map(str, value)) or None) if isinstance(value, list) else value


def moment(milliseconds: int | None) -> str | None:
    """A time in milliseconds since 1970, as people read it; None for none."""
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):  # a producer may write what it likes
        return str(milliseconds)


def tell_missing(missing: Mapping[int, KafkaError]) -> int:
    """Say which brokers did not answer, so that not everything is shown; the exit code."""
    for node_id, error in missing.items():
        complain(f"broker {node_id} has not answered, and what it has is not shown: {reason_of(error)}")
    return 1 if missing else 0


def check_form(form: str) -> None:
    """Raises `UsageError` for an `--output` that there is not."""
    if form not in FORMS:
        raise UsageError(f"--output is {', '.join(FORMS[:-1])} or {FORMS[-1]}, not {form!r}")


def show(look: Callable[[Admin], Sheet], settings: dict[str, object], *, form: str, watch: bool = False) -> int:
    """Print what a look at the cluster finds; with `watch` again and again, until Ctrl-C."""
    check_form(form)
    with Admin(settings) as admin:
        if not watch:
            sheet = look(admin)
            _print(sheet, form)
            return tell_missing(sheet.missing)
        if form == "table" and output.is_terminal():
            _live(lambda: look(admin))
        while True:
            sheet = look(admin)
            _print(sheet, form)
            tell_missing(sheet.missing)
            time.sleep(_WATCH_S)


def document(fields: Mapping[str, Any], form: str) -> str:
    """One object as JSON, or YAML."""
    if form == "json":
        return printable(json.dumps(fields, ensure_ascii=False))
    import yaml

    # each time a document of its own, so that what --watch prints can be read one after the other
    text = yaml.safe_dump(dict(fields), allow_unicode=True, sort_keys=False, explicit_start=True)
    return str(text).rstrip("\n")


def printable(text: str) -> str:
    """JSON with escapes for what is not printable: names that others chose are not obeyed by the terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _print(sheet: Sheet, form: str) -> None:
    if form == "table":
        output.table(sheet.columns, sheet.rows, title=sheet.title)
    else:
        output.line(document(sheet.fields, form))


def _live(look: Callable[[], Sheet]) -> NoReturn:
    from rich.console import Console
    from rich.live import Live

    console = Console()

    def shown() -> Any:
        sheet = look()
        rows = sheet.rows[: max(1, console.height - _AROUND)]  # more would not be seen, and takes long
        left = f", the first {len(rows)} are shown" if len(rows) < len(sheet.rows) else ""
        return output.rich_table(sheet.columns, rows, f"{sheet.title}{left}  {time.strftime('%H:%M:%S')}")

    with Live(shown(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(shown(), refresh=True)
