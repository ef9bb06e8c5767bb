"""A hook of mkdocs: each setting in a table can be linked to, as in `reference/settings/#linger.ms`."""

from __future__ import annotations

import re
from typing import Any

_HEADING = re.compile(r'<h2 id="([^"]+)"')
_TABLE = re.compile(r"<table>\s*<thead>\s*<tr>\s*<th>(?:setting|option)</th>.*?</table>", re.DOTALL)
_FIRST_CELL = re.compile(r"(<tr>\s*<td>)(.*?)(</td>)", re.DOTALL)
_NAME = re.compile(r"<code>([a-zA-Z0-9_.-]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Gives names an id: the name itself, and the section's before it where another section has the name too.

    Names may be broken behind their dots, where the window is narrow.
    """
    taken: set[str] = set()

    def table(found: re.Match[str]) -> str:
        headings = _HEADING.findall(html, 0, found.start())
        section = headings[-1] if headings else "table"

        def link(match: re.Match[str]) -> str:
            name = match[1]
            anchor = name if name not in taken else f"{section}-{name}"
            taken.add(anchor)
            shown = name.replace(".", ".<wbr>")
            return f'<a class="setting" id="{anchor}" href="#{anchor}"><code>{shown}</code></a>'

        return _FIRST_CELL.sub(lambda cell: cell[1] + _NAME.sub(link, cell[2]) + cell[3], found[0])

    return _TABLE.sub(table, html)
