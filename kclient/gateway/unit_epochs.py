"""The leader epochs of the units that this gateway leads, where they are others than its own.

A unit is led under the epoch that the generations of gateways give it until it gets one of its own, by `raise_epoch`.
That is a row, written before the epoch is used. The next generation's number is above all epochs that were ever given,
for that is written too: rows of the past mean nothing then, and a store with thousands of partitions has a row for none
of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from kclient.concurrency import NamedLocks
from kclient.gateway.fenced_writer import FencedWriter
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import LEADER_EPOCH, UNITS, parse_unit_key, unit_key
from kclient.gateway.rows.units import UnitRow
from kclient.gateway.unit import Unit
from kclient.htp.errors import ConflictError, HtpError
from kclient.htp.rows import GREATEST_EPOCH, scan_pages

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Change, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway")

_AHEAD: Final = 16
"""So many epochs are told to be given at once: nearly no raise has to write a row that all units share."""


class UnitEpochs:
    """Knows the epochs of units, and gives them new ones.

    Args:
        manager: Keeps the rows.
        lease: Under which it is written that epochs were given.
        generations: Give the epochs of units that have none of their own.
    """

    prefixes: tuple[str, ...] = (UNITS,)
    """What it follows in the log of changes."""

    def __init__(self, manager: Manager, lease: HeldLease, generations: ClusterGenerations) -> None:
        self._manager = manager
        self._lease = lease
        self._generations = generations
        self._writer = FencedWriter(manager, lease, generations)
        self.own: dict[bytes, dict[int, int]] = {}
        """The epochs of units that have one of their own, by topic and number; others only look. Mostly it is empty."""
        self._versions: dict[Unit, int] = {}
        """Of their rows."""
        self._told = generations.current.newest.number
        """No epoch above this is given before that is told."""
        self._telling = anyio.Lock()
        self._raising: NamedLocks[Unit] = NamedLocks()

    async def load(self) -> None:
        """Read what is written: what is below the unit's epoch is removed; what is not is exceeded, if it is led here.

        The latter is there only where the row was damaged that the generation's number was taken from, or an epoch
        was raised in the moment of the take-over.

        Raises:
            HtpError: The store failed.
        """
        past: dict[str, int] = {}
        for unit, (epoch, version) in (await self._written_rows()).items():
            if epoch < self._given(unit):
                past[unit_key(*unit)] = version
            elif self._generations.leads(unit.fingerprint):
                self._versions[unit] = version
                await self.raise_epoch(unit, epoch)
            else:
                self._put(unit, epoch, version)
        if past:
            with suppress(ConflictError):  # its leader has raised one again: they go the next time
                await self._manager.commit(dict.fromkeys(past), past, lease=self._lease.current)

    async def _written_rows(self) -> dict[Unit, tuple[int, int]]:
        """The epochs that are written, and the versions of their rows."""
        found = {}
        async for page in scan_pages(self._manager, UNITS):
            for key, row in page.items():
                epoch = _decoded(key, row.value)
                if epoch is not None:
                    found[Unit(*parse_unit_key(key))] = epoch, row.version
        return found

    async def read_all(self) -> None:
        """Read all rows anew. Raises `HtpError` if the store fails."""
        for unit, (epoch, version) in (await self._written_rows()).items():
            self._put(unit, epoch, version)

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed: who leads a unit has raised its epoch, or its topic was removed."""
        for key, value, version in changes:
            if value is None:
                self._row_gone(key, version)
            elif (epoch := _decoded(key, value)) is not None:
                self._put(Unit(*parse_unit_key(key)), epoch, version)

    def _put(self, unit: Unit, epoch: int, version: int) -> None:
        if version > self._versions.get(unit, 0):
            self.own.setdefault(unit.topic_id, {})[unit.number] = epoch
            self._versions[unit] = version

    def _row_gone(self, key: str, version: int) -> None:
        with suppress(ValueError):
            unit = Unit(*parse_unit_key(key))
            if version > self._versions.get(unit, version):
                del self._versions[unit]
                of_topic = self.own[unit.topic_id]
                del of_topic[unit.number]
                if not of_topic:
                    del self.own[unit.topic_id]

    def of(self, unit: Unit) -> int:
        """The epoch of a unit."""
        return max(self._given(unit), self.own.get(unit.topic_id, {}).get(unit.number, 0))

    def _given(self, unit: Unit) -> int:
        return self._generations.current.leader(unit.fingerprint).epoch

    def greatest(self, topic_id: bytes) -> int:
        """An epoch that none of a topic's units is above: under it all of them may be removed."""
        return max(self._generations.current.newest.number, *self.own.get(topic_id, {}).values(), 0)

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed, and the rows of its units with it."""
        for number in self.own.pop(topic_id, {}):
            self._versions.pop(Unit(topic_id, number), None)

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
                row = UnitRow(self._given(unit), epoch).encode()
                try:
                    version = await self._writer.commit({key: row}, [unit], {key: version})
                except ConflictError:
                    # Nobody else writes it: a commit that failed was made all the same, or the row is one that could
                    # not be read at the start, or was removed as one of the past.
                    written, version = await self._written(key)
                    epoch = max(epoch, written + 1)
                    continue
                self.own.setdefault(unit.topic_id, {})[unit.number] = epoch
                self._versions[unit] = version
                return epoch

    async def _tell(self, epoch: int) -> None:
        """Have the next generation begin above an epoch, whatever becomes of the unit's row."""
        if epoch > GREATEST_EPOCH:
            raise HtpError(f"no leader epoch is left above {epoch - 1}")
        async with self._telling:
            while epoch > self._told:
                row = (await self._manager.get([LEADER_EPOCH])).get(LEADER_EPOCH)
                told, version = _told(row), 0 if row is None else row.version
                if told < epoch:
                    told = min(epoch + _AHEAD, GREATEST_EPOCH)
                    rows = {LEADER_EPOCH: numbers.LEADER_EPOCH.encode(told)}
                    try:
                        await self._manager.commit(rows, {LEADER_EPOCH: version}, lease=self._lease.current)
                    except ConflictError:  # another gateway has told one
                        continue
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


def _decoded(key: str, row: bytes) -> int | None:
    """The epoch that a unit's row tells; None if it is damaged."""
    try:
        parse_unit_key(key)
        return UnitRow.decode(row).epoch
    except ValueError as error:
        logger.error(
            "%s, which held the leader epoch of a partition, cannot be read; %s tells one above it, so nothing has to "
            "be done (%s)", key, LEADER_EPOCH, error,
        )  # fmt: skip
        return None


def _told(row: Versioned | None) -> int:
    """The epoch that a row says was given, or may have been; 0 where it says nothing."""
    if row is not None:
        with suppress(ValueError):
            return numbers.LEADER_EPOCH.decode(row.value)
    return 0
