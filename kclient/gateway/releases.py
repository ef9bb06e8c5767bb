"""What gateways have handed over: a unit that has moved is opened once nobody who led it before does anything with it.

Each gateway says in a row of its own up to which generation it has handed over what that took away, in the commit of
the last checkpoints. Whoever is to lead a unit waits for the rows of all who led it before. One that is late is not
waited for longer than some seconds: then its row is written for it (a *claim*), and what it commits afterwards of what
it led conflicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.gateway.rows.assignment import ReleasedRow
from kclient.gateway.rows.keys import ASSIGNMENT, RELEASED, parse_released_key, released_key
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.unit import Unit
    from kclient.htp.port import Change, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway")

CLAIM_S: Final = 5.0
"""Seconds after which a unit is claimed that its former leader has not handed over."""


class _Late(NamedTuple):
    """A gateway that has not handed over what a generation took away."""

    node_id: int
    run: int
    generation: int


class Releases:
    """Follows what the gateways have handed over, this one too.

    Args:
        manager: Keeps the rows.
        lease: Under which claims are written.
        generations: Tell who led what.
    """

    prefixes: tuple[str, ...] = (RELEASED,)
    """What it follows in the log of changes."""

    def __init__(self, manager: Manager, lease: HeldLease, generations: ClusterGenerations) -> None:
        self._manager = manager
        self._lease = lease
        self._generations = generations
        self._rows: dict[int, ReleasedRow] = {}
        """As they were seen last. They only grow, so what they say holds; what they do not say may be there by now."""
        self._news = anyio.Event()

    async def read_all(self) -> None:
        """Read all rows anew. Raises `HtpError` if the store fails."""
        async for page in scan_pages(self._manager, RELEASED):
            for key, row in page.items():
                self._see(key, row.value)
        self._tell()

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed."""
        for key, value, _ in changes:
            if value is not None:
                self._see(key, value)
        self._tell()

    def _see(self, key: str, value: bytes) -> None:
        with suppress(ValueError):
            self._rows[parse_released_key(key)] = ReleasedRow.decode(value)

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def ready(self, unit: Unit) -> None:
        """Until nobody does anything with a unit any more who led it before.

        Raises:
            HtpError: The store failed.
        """
        if len(self._generations.current.kept) == 1:
            return
        until = anyio.current_time() + CLAIM_S
        while True:
            news = self._news
            late = await self._late(unit)
            if not late:
                return
            left = until - anyio.current_time()
            if left > 0:
                with anyio.move_on_after(left):
                    await news.wait()
                continue
            for each, version in late.items():
                await self._claim(each, version)

    async def unfinished(self) -> Callable[[Unit], int | None]:
        """What tells of a unit which gateway has not handed it over yet to its leader; None if that is done.

        Raises:
            HtpError: The store failed.
        """
        current = self._generations.current
        rows: dict[int, ReleasedRow] = {}
        async for page in scan_pages(self._manager, RELEASED):
            for key, row in page.items():
                with suppress(ValueError):
                    rows[parse_released_key(key)] = ReleasedRow.decode(row.value)
        behind = {
            (node_id, row.run): row.generation
            for node_id, row in rows.items()
            if row.generation < current.newest.number
        }

        def tell(unit: Unit) -> int | None:
            if behind:
                for leader, generation in current.former(unit.fingerprint).items():
                    if leader in behind and behind[leader] < generation:
                        return leader[0]
            return None

        return tell

    async def _late(self, unit: Unit) -> dict[_Late, int]:
        """Who has not handed it over, and the version of its row."""
        former = self._generations.current.former(unit.fingerprint)
        unsure = [
            _Late(*leader, generation) for leader, generation in former.items() if not self._told(*leader, generation)
        ]
        if not unsure:
            return {}
        rows = await self._manager.get([released_key(each.node_id) for each in unsure])
        for key, row in rows.items():
            self._see(key, row.value)
        return {
            each: rows[key].version
            for each in unsure
            if (key := released_key(each.node_id)) in rows and _is_late(each, rows[key])
        }

    def _told(self, node_id: int, run: int, generation: int) -> bool:
        row = self._rows.get(node_id)
        return row is not None and row.run == run and row.generation >= generation

    async def _claim(self, late: _Late, version: int) -> None:
        """Say for a gateway that it has handed over: what it commits from now on of that conflicts."""
        row = ReleasedRow(late.run, late.generation).encode()
        expected = {released_key(late.node_id): version, ASSIGNMENT: self._generations.version}
        try:
            await self._manager.commit({released_key(late.node_id): row}, expected, lease=self._lease.current)
        except ConflictError:  # it has, or there is another generation
            await self._generations.read_all()
            return
        logger.warning(
            "the gateway with node.id=%d has not handed over within %.0f s what generation %d took away: it is claimed",
            late.node_id, CLAIM_S, late.generation,
        )  # fmt: skip
        self._rows[late.node_id] = ReleasedRow(late.run, late.generation)
        self._tell()

    # This gateway's own

    async def own(self) -> tuple[int, int]:
        """The generation up to which this gateway has handed over, and the version of its row; 0 if it has none."""
        key = released_key(self._generations.node_id)
        row = (await self._manager.get([key])).get(key)
        if row is None:
            return 0, 0
        with suppress(ValueError):
            found = ReleasedRow.decode(row.value)
            if found.run == self._generations.run:
                return found.generation, row.version
        return 0, row.version

    async def release(
        self, generation: int, version: int, rows: Mapping[str, bytes | None], expect: Mapping[str, int] | None = None
    ) -> int | None:
        """Say that everything is handed over that a generation took away.

        Args:
            generation: Its number.
            version: That of this gateway's row, as it was before the last checkpoints were made.
            rows: These, written in the same commit.
            expect: Versions that other rows have to have.

        Returns:
            The version of the row then; None if it was claimed meanwhile: nothing was written.

        Raises:
            ConflictError: One of the other rows has another version.
            HtpError: The store failed.
        """
        node_id = self._generations.node_id
        row, key = ReleasedRow(self._generations.run, generation), released_key(node_id)
        expected = {**(expect or {}), key: version}
        try:
            version = await self._manager.commit({**rows, key: row.encode()}, expected, lease=self._lease.current)
        except ConflictError as conflict:
            if conflict.key != key:
                raise
            return None
        self._rows[node_id] = row
        self._tell()
        return version


def _is_late(late: _Late, row: Versioned) -> bool:
    """Whether a gateway's row says that it still has what a generation took away; nobody knows of a damaged one."""
    try:
        found = ReleasedRow.decode(row.value)
    except ValueError:
        return True
    return found.run == late.run and found.generation < late.generation
