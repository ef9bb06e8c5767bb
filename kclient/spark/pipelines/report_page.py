"""What the pages of reports have in common: one HTML file with its pictures inside."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from kclient.errors import ConfigError, MissingExtraError

Drawing: TypeAlias = Callable[[Any], None]
"""Draws into matplotlib's axes."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .75rem; border-bottom: 1px solid #ddd }
th { text-align: left } td.number { text-align: right; font-variant-numeric: tabular-nums }
.same { color: #1a7f37 } .different { color: #b3261e } pre { background: #f6f6f6; padding: .75rem; overflow: auto }
img { max-width: 100% }
"""


class PageReport:
    """What is written as a page or as its pictures alone."""

    def to_html(self) -> str:
        """The page.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        raise NotImplementedError

    def _plots(self) -> bytes:
        """The pictures as one PNG."""
        raise NotImplementedError

    def write_html(self, path: str | Path) -> None:
        """Write one page, with its pictures inside.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OSError: it cannot be written.
        """
        Path(path).write_text(self.to_html(), "utf-8")

    def write_png(self, path: str | Path) -> None:
        """Write the pictures as one.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OSError: it cannot be written.
        """
        Path(path).write_bytes(self._plots())


def check_matplotlib(what: str) -> None:
    """Whether pictures can be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed; `what` needs it.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", "plots", what) from error


def check_writable(path: str | Path, what: str) -> None:
    """Whether a report could be written there, as far as can be said without making anything; `what` names it.

    Raises:
        ConfigError: it is a folder, lies in none, or may not be written.
    """
    target = Path(path)
    try:
        if target.is_dir():
            why = "it is a folder; name a file in it"
        elif not target.parent.is_dir():
            why = f"there is no folder {target.parent}; make it first"
        elif not os.access(target if target.exists() else target.parent, os.W_OK):
            why = "it may not be written"
        else:
            return
    except (OSError, ValueError) as error:
        why = str(error)
    raise ConfigError(f"{what} {path} cannot be written: {why}")


def drawn(drawings: Sequence[Drawing], what: str) -> bytes:
    """All drawings in one PNG, one below the other.

    Raises:
        MissingExtraError: matplotlib is not installed; `what` needs it.
    """
    check_matplotlib(what)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4 * len(drawings)), layout="constrained")
    axes = figure.subplots(len(drawings), 1, squeeze=False)
    for place, draw in zip(axes[:, 0], drawings, strict=True):
        draw(place)
    FigureCanvasAgg(figure)
    found = io.BytesIO()
    with warnings.catch_warnings():
        # no font has all letters that keys may have: some are drawn as boxes, and are text in the page's tables
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(found, format="png")
    return found.getvalue()


def page(title: str, parts: Iterable[str]) -> str:
    """A page of these parts, which are HTML; the title is not."""
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def picture(png: bytes, about: str) -> str:
    """A picture, and what stands for it where it is not shown."""
    return f"<img alt='{escape(about)}' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table: numbers to the right, whether something is right in colour."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{_cells(row)}</tr>' for row in rows)}</table>"


def _cells(row: Iterable[object]) -> str:
    return "".join(_cell(cell) for cell in row)


def _cell(cell: object) -> str:
    if isinstance(cell, bool):
        return f"<td class='{'same' if cell else 'different'}'>{'yes' if cell else 'no'}</td>"
    if isinstance(cell, int):
        return f"<td class='number'>{cell}</td>"
    return f"<td>{escape(str(cell))}</td>"
