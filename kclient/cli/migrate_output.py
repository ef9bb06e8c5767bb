"""What `kclient migrate` shows: the plan, what was compared, and how far a run has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio

from kclient.cli import output
from kclient.migration.comparison import PartitionComparison
from kclient.migration.mirror import Mirror
from kclient.migration.planning import Plan
from kclient.migration.verifying import ComparedSides

_SHOWN_S: Final = 0.5
"""Seconds between two pictures on a terminal."""
_LINE_S: Final = 10.0
"""And between two lines where there is none."""
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_TOPICS: Final = 20
"""So many topics are shown at once: those that are behind come first."""


def size_of(count: float | None) -> str:
    """Bytes, as people read them."""
    if count is None:
        return "-"
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit is for all that is larger")


def print_plan(plan: Plan) -> None:
    """Print what would be moved, and what not."""
    output.table(
        ["topic", "partitions", "offsets", "bytes", "settings", "in the store", "stands in the way"],
        [
            (
                topic.name,
                topic.partitions,
                topic.offsets,
                size_of(topic.size),
                ", ".join(f"{name}={value}" for name, value in sorted(topic.settings.items())) or None,
                topic.there,
                topic.problem,
            )
            for topic in plan.topics
        ],
        title=f"Topics of cluster {plan.cluster_id}",
    )
    refused = [(each.name, name, why) for each in plan.topics for name, why in sorted(each.refused_settings.items())]
    if refused:
        output.table(["topic", "setting", "why it is not taken over"], refused, title="Settings left out")
    if plan.groups:
        output.table(
            ["group", "type", "state", "committed offsets"],
            [(group.group_id, group.type, group.state, group.offsets) for group in plan.groups],
            title="Groups whose committed offsets are moved",
        )
    not_moved: list[tuple[str, str]] = [(f"group {name}", why) for name, why in sorted(plan.groups_left.items())]
    not_moved += [(f"ACL {each}", "it has to be made anew (kclient acls)") for each in plan.others.acls]
    not_moved += [(f"credentials of {each}", "the password has to be set anew") for each in plan.others.credentials]
    not_moved += [(f"quota of {each}", "it has to be set anew (kclient quotas)") for each in plan.others.quotas]
    not_moved += [("not known", each) for each in plan.others.unknown]
    if not_moved:
        output.table(["what", "why"], not_moved, title="Not moved")
    for partition in plan.open_transactions:
        output.warn(f"a transaction is open in {partition}: it has to end before the cut-over")
    for problem in plan.problems:
        output.warn(problem)


def print_verification(found: ComparedSides) -> None:
    """Print what was compared, and every difference."""
    output.table(
        ["topic", "partition", "start", "end", "records", "checksum", "result"],
        [
            (
                each.tp.topic,
                each.tp.partition,
                None if each.source is None else each.source.start,
                None if each.source is None else each.source.end,
                each.records,
                each.checksum or None,
                each.difference or each.note or "equal",
            )
            for each in found.partitions
        ],
    )
    output.line(f"{found.offsets} committed offsets are equal")
    for each in found.notes:
        output.note(each)
    for failure in found.failures:
        output.warn(failure)


class MigrationProgress:
    """How far a run has come: a table on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._live: Any = None
        self._mirror: Mirror | None = None
        self._begun = time.monotonic()
        self._last = (self._begun, 0)
        self._rate = 0.0
        self._compared = 0

    def note(self, text: str) -> None:
        """Tell people something, on standard error."""
        if self._live is not None:
            self._live.console.print(text, style="yellow", markup=False, highlight=False)
        else:
            output.say(f"kclient: {text}")

    def compared(self, each: PartitionComparison) -> None:
        """A partition was compared."""
        self._compared += 1
        output.note(f"{each.tp}: {each.difference or f'{each.records} records are equal'}")

    @contextmanager
    def showing(self, mirror: Mirror) -> Iterator[None]:
        """While the body runs, `keep_showing` shows how far a mirror has come."""
        self._mirror = mirror
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False) as self._live:
            try:
                yield
            finally:
                self._show()
                self._live = None

    async def keep_showing(self) -> None:
        """Show it again and again."""
        while True:
            await anyio.sleep(_SHOWN_S if self._live is not None else _LINE_S)
            self._show()

    def _show(self) -> None:
        mirror = self._mirror
        assert mirror is not None
        records, size = moved(mirror)
        now = time.monotonic()
        before, then = self._last
        if now - before >= _SHOWN_S / 2:
            self._rate = (size - then) / (now - before)
            self._last = now, size
        behind = "?" if mirror.lag is None else str(mirror.lag)
        if self._live is None:
            output.say(
                f"{records} records ({size_of(size)}) moved, {size_of(self._rate)} a second, {behind} offsets behind"
            )
        else:
            self._live.update(self._picture(mirror, records, size), refresh=True)

    def _picture(self, mirror: Mirror, records: int, size: int) -> Any:
        from rich import box
        from rich.table import Table

        shown = Table(
            box=box.SIMPLE_HEAD,
            caption=f"{records} records ({size_of(size)}) moved, {size_of(self._rate)} a second; Ctrl-C ends it",
            caption_justify="left",
        )
        for column in ("topic", "partitions", "records", "bytes", "behind", ""):
            shown.add_column(column, overflow="fold")
        topics = sorted(mirror.topics.values(), key=lambda topic: (not topic.problems, -(topic.lag or 0), topic.name))
        for topic in topics[:_TOPICS]:
            lag = topic.lag
            shown.add_row(
                topic.name,
                str(len(topic.partitions)),
                str(sum(state.records for state in topic.partitions)),
                size_of(sum(state.size for state in topic.partitions)),
                "?" if lag is None else str(lag),
                "; ".join(topic.problems[:2]),
            )
        if len(topics) > _TOPICS:
            shown.add_row(f"and {len(topics) - _TOPICS} more", "", "", "", "", "")
        return shown

    def summary(self, mirror: Mirror, offsets: int) -> None:
        """What a run has done, when it is over."""
        records, size = moved(mirror)
        lag = "not known" if mirror.lag is None else str(mirror.lag)
        output.line(
            f"{len(mirror.topics)} topics: {records} records ({size_of(size)}) and {offsets} committed offsets moved; "
            f"offsets behind: {lag}"
        )
        for problem in mirror.problems:
            output.warn(problem)


def moved(mirror: Mirror) -> tuple[int, int]:
    """Records and bytes that a mirror has moved since it began."""
    states = [state for topic in mirror.topics.values() for state in topic.partitions]
    return sum(state.records for state in states), sum(state.size for state in states)
