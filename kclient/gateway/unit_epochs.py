"""The leader epochs of the units that this gateway leads, where they are others than its own.

A unit is led under the epoch of the gateway's lease until it gets one of its own, by `raise_epoch`. That is a row,
written before the epoch is used. The next gateway's epoch is above all that were ever given, for that is written too:
rows of the past mean nothing then, and a store with thousands of partitions has a row for none of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.concurrency import NamedLocks
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import LEADER_EPOCH, UNITS, parse_unit_key, unit_key
from kclient.gateway.rows.units import UnitRow
from kclient.htp.errors import ConflictError, HtpError
from kclient.htp.rows import GREATEST_EPOCH, scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")

_AHEAD: Final = 16
"""So many epochs are told to be given at once: nearly no raise has to write a row that all units share."""


class Unit(NamedTuple):
    """What has one leader, as much as a store can fence as a whole: a partition, or those that share a topic."""

    topic_id: bytes
    number: int


class UnitEpochs:
    """Knows the epochs of units, and gives them new ones.

    Args:
        manager: Keeps the rows.
        lease: Under which they are written; its epoch is that of every unit without one of its own.
    """

    def __init__(self, manager: Manager, lease: HeldLease) -> None:
        self._manager = manager
        self._lease = lease
        self._gateway = lease.current.epoch
        self.own: dict[bytes, dict[int, int]] = {}
        """The epochs of units that have one of their own, by topic and number; others only look. Mostly it is empty."""
        self._versions: dict[Unit, int] = {}
        """Of the rows that were written."""
        self._told = self._gateway
        """No epoch above this is given before that is told."""
        self._telling = anyio.Lock()
        self._raising: NamedLocks[Unit] = NamedLocks()

    async def load(self) -> None:
        """Read what earlier gateways have written: what is below this one's epoch is removed, what is not, exceeded.

        The latter is there only where the row was damaged that this gateway's epoch was taken from, or an epoch was
        raised in the moment of the take-over.

        Raises:
            HtpError: The store failed.
        """
        past: dict[str, None] = {}
        above: dict[Unit, int] = {}
        async for page in scan_pages(self._manager, UNITS):
            for key, row in page.items():
                try:
                    unit, epoch = Unit(*parse_unit_key(key)), UnitRow.decode(row.value).epoch
                except ValueError as error:
                    logger.error(
                        "%s, which held the leader epoch of a partition, cannot be read; %s tells one above it, so "
                        "nothing has to be done (%s)", key, LEADER_EPOCH, error,
                    )  # fmt: skip
                    continue
                if epoch < self._gateway:
                    past[key] = None
                else:
                    above[unit], self._versions[unit] = epoch, row.version
        if past:
            await self._manager.commit(past, lease=self._lease.current)
        for unit, epoch in above.items():
            await self.raise_epoch(unit, epoch)

    def of(self, unit: Unit) -> int:
        """The epoch of a unit."""
        return self.own.get(unit.topic_id, {}).get(unit.number, self._gateway)

    def greatest(self, topic_id: bytes) -> int:
        """The greatest epoch of a topic's units: under it all of them may be removed."""
        return max(self.own.get(topic_id, {}).values(), default=self._gateway)

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed, and the rows of its units with it."""
        for number in self.own.pop(topic_id, {}):
            del self._versions[Unit(topic_id, number)]

    async def raise_epoch(self, unit: Unit, above: int, *, since: int | None = None) -> int:
        """Give a unit an epoch that is above all that it had, and above this one.

        Args:
            unit: The unit.
            above: The epoch is greater.
            since: If the unit has a newer epoch than this, not below `above`, it keeps that: somebody else has raised
                it. None if it is to be raised in any case.

        Returns:
            The epoch; it is durable, and the unit's from now on.

        Raises:
            FencedError: Another gateway leads.
            HtpError: The store failed. The unit keeps its epoch; it may be tried again.
        """
        async with self._raising.hold(unit):
            held = self.of(unit)
            if since is not None and held > since and held >= above:
                return held
            key, version = unit_key(*unit), self._versions.get(unit, 0)
            epoch = max(self.of(unit), above) + 1
            while True:
                await self._tell(epoch)
                row = UnitRow(self._gateway, epoch).encode()
                try:
                    version = await self._manager.commit({key: row}, {key: version}, lease=self._lease.current)
                except ConflictError:
                    # Nobody else writes it under this lease: a commit that failed was made all the same, or the row is
                    # one that could not be read at the start.
                    written, version = await self._written(key)
                    epoch = max(epoch, written + 1)
                    continue
                self.own.setdefault(unit.topic_id, {})[unit.number] = epoch
                self._versions[unit] = version
                return epoch

    async def _tell(self, epoch: int) -> None:
        """Have the next gateway begin above an epoch, whatever becomes of the unit's row."""
        if epoch > GREATEST_EPOCH:
            raise HtpError(f"no leader epoch is left above {epoch - 1}")
        async with self._telling:
            if epoch > self._told:
                told = min(epoch + _AHEAD, GREATEST_EPOCH)
                rows = {LEADER_EPOCH: numbers.LEADER_EPOCH.encode(told)}
                await self._manager.commit(rows, lease=self._lease.current)
                self._told = told

    async def _written(self, key: str) -> tuple[int, int]:
        """The epoch and the version of a row; 0 for what cannot be read."""
        found = (await self._manager.get([key])).get(key)
        if found is None:
            return 0, 0
        try:
            return UnitRow.decode(found.value).epoch, found.version
        except ValueError:
            return 0, found.version
