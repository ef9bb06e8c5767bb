"""Follows the other gateways: their rows by the log of changes, their leases by looking at them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

import anyio

from kclient.gateway.membership import lease_looks
from kclient.gateway.membership.lease_looks import LeaseLooks
from kclient.gateway.membership.members import Members
from kclient.gateway.ownership import HeldLease
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.keys import GATEWAYS, parse_gateway_key
from kclient.htp.errors import HtpError
from kclient.htp.port import Change, Manager
from kclient.htp.rows import scan_pages

logger: logging.Logger = logging.getLogger("kclient.gateway")

_LEAST_S: Final = 0.01


class ClusterView:
    """The other gateways, as this one sees them.

    Args:
        manager: The store's.
        node_id: This gateway's number.
        looks: Looks at leases, perhaps for others too; if None, for this alone.
        lease: Of this gateway; it says whether the store has space for leases to be renewed. None if it always has.
    """

    prefixes: tuple[str, ...] = (GATEWAYS,)
    """What it follows in the log of changes."""

    def __init__(
        self,
        manager: Manager,
        node_id: int,
        looks: LeaseLooks | None = None,
        *,
        lease: HeldLease | None = None,
    ) -> None:
        self._lease = lease
        self._manager = manager
        self._members = Members(node_id)
        self._looks = looks or LeaseLooks(manager)
        self._since = 0.0
        """Of leases, what was read before this time does not tell what is to be known: since then there is another
        row, or the lease of one that is listed may be over."""
        self._news = anyio.Event()
        self._when_changed: list[Callable[[], object]] = []

    @property
    def others(self) -> tuple[GatewayRow, ...]:
        """Those that are live, without this one, by number; another object whenever it has changed."""
        return self._members.others

    def on_change(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called whenever `others` has changed."""
        self._when_changed.append(callback)

    async def read_all(self) -> None:
        """Read all rows anew. Raises `HtpError` if the store fails."""
        before, there = self.others, []
        async for page in scan_pages(self._manager, GATEWAYS):
            for key, row in page.items():
                there.append(key)
                self._row(key, row.value, row.version)
        self._members.only(number for number in map(_number, there) if number is not None)
        self._told()
        self._tell(before)

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed."""
        before = self.others
        for key, value, version in changes:
            if value is not None:
                self._row(key, value, version)
            elif (node_id := _number(key)) is not None:
                self._members.row_gone(node_id, version)
        self._told()
        self._tell(before)

    def _row(self, key: str, value: bytes, version: int) -> None:
        try:
            row = GatewayRow.decode(value)
            if row.node_id != _number(key):
                raise ValueError(f"it is that of gateway {row.node_id}")
        except ValueError as error:
            logger.error("%s cannot be read, what it tells of a gateway is not known: %s", key, error)
        else:
            self._members.row_seen(row, version)

    async def watch(self) -> None:
        """Look at the leases of the others for ever, while there are others."""
        while True:
            self._news = anyio.Event()
            pause: float | None = None
            if len(self._members):
                try:
                    pause = await self.look()
                except HtpError as error:
                    logger.warning("whether other gateways live cannot be found out now: %s", error)
                    pause = lease_looks.LOOK_S
            with nullcontext() if pause is None else anyio.move_on_after(pause):
                await self._news.wait()

    async def look(self) -> float:
        """Look at the leases of the others once; seconds until it should be done again. Raises `HtpError`."""
        if self._lease is not None and self._lease.short_of_space:
            self._members.watch_anew()
            return lease_looks.LOOK_S
        before = self.others
        found, at = await self._looks.recent(self._since)
        left = self._members.leases_seen(found, at)
        self._tell(before)
        if left is None or left >= lease_looks.LOOK_S:
            return lease_looks.LOOK_S
        self._since = at + left
        return max(_LEAST_S, left)

    def _told(self) -> None:
        """Rows were seen: whose they are is looked at now."""
        self._since = self._looks.now()
        self._news.set()

    def _tell(self, before: tuple[GatewayRow, ...]) -> None:
        if self.others is not before:
            logger.info("the other gateways are %s", ", ".join(str(row.node_id) for row in self.others) or "gone")
            for callback in self._when_changed:
                callback()


def _number(key: str) -> int | None:
    """The number of the gateway that a key names; None if it names none."""
    try:
        return parse_gateway_key(key)
    except ValueError:
        return None
