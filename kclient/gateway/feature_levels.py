"""The levels of the cluster's features: kept by the manager, the same at all gateways of a store (KIP-584)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from kclient.gateway.rows.features import FeaturesRow
from kclient.gateway.rows.keys import FEATURES
from kclient.htp.errors import ConflictError, FormatVersionError

if TYPE_CHECKING:
    from kclient.gateway.features import FeatureChange, Features
    from kclient.gateway.membership import LiveGateways
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.features")

_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""


class FeatureLevels:
    """Changes the levels of features, and follows what other gateways change.

    Args:
        features: What ApiVersions tells.
        manager: Keeps the levels.
        lease: Under which they are kept.
        gateways: The others, which have to know a level before it is raised.
        shields: Keep a change from being left half done.
    """

    def __init__(
        self, features: Features, manager: Manager, lease: HeldLease, gateways: LiveGateways, shields: Shields
    ) -> None:
        self._features = features
        self._manager = manager
        self._lease = lease
        self._gateways = gateways
        self._shields = shields
        self._changing = anyio.Lock()
        self._version = 0
        """Of the row that is in force; 0 if there is none."""
        self._row = FeaturesRow(features.epoch, {})

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What it follows in the log of changes."""
        return (FEATURES,)

    async def load(self) -> None:
        """Have in force what the store says.

        Raises:
            FormatVersionError: It has a level that only a newer release can do.
            HtpError: The store failed.
        """
        async with self._changing:
            found = await self._read()
            if found is None:
                return
            row = self._decode(found)
            unsupported = self._features.unsupported(row.levels)
            if unsupported:
                told = ", ".join(f"{name}={level}" for name, level in sorted(unsupported.items()))
                raise FormatVersionError(
                    f"the features of the store have levels that this release of kclient cannot do: {told}. Start a "
                    "newer release, and downgrade the features there first if this one is to serve it"
                )
            self._take_over(row, found.version)

    async def apply(self, _changes: Sequence[Change]) -> None:
        """Levels have changed, maybe at another gateway: have them in force. Raises `HtpError` if the store fails."""
        await self.read_all()

    async def read_all(self) -> None:
        """Have in force what the row says now. Raises `HtpError` if the store fails."""
        async with self._changing:
            await self._catch_up()

    async def _read(self) -> Versioned | None:
        return (await self._manager.get([FEATURES])).get(FEATURES)

    async def _catch_up(self) -> None:
        found = await self._read()
        if found is None or found.version == self._version:
            return
        row = self._decode(found)
        unsupported = self._features.unsupported(row.levels)
        if unsupported:
            logger.error("a newer gateway has set levels of features that this release cannot do: %s", unsupported)
        self._take_over(row, found.version)

    def _decode(self, found: Versioned) -> FeaturesRow:
        """What a row says; of one that cannot be read, that all is as at first, under an epoch above all before."""
        try:
            return FeaturesRow.decode(found.value)
        except ValueError as error:
            logger.error(
                "the levels of features cannot be read, those that releases begin with are in use: set others again "
                "with UpdateFeatures (%s)",
                error,
            )
            return FeaturesRow(found.version, {})  # each change was a commit, so it has had a smaller epoch

    def _take_over(self, row: FeaturesRow, version: int) -> None:
        before = dict(self._features.levels)
        self._row, self._version = row, version
        self._features.take_over(row.levels, row.epoch)
        if self._features.levels != before:
            told = ", ".join(f"{name}={level}" for name, level in self._features.levels.items())
            logger.info("the features of the cluster are %s (epoch %d)", told, row.epoch)

    async def update(self, changes: Iterable[FeatureChange], *, validate_only: bool = False) -> None:
        """Change levels, durably, all of them or none; where nothing changes, nothing is written.

        Args:
            changes: What is to be changed.
            validate_only: Nothing is.

        Raises:
            InvalidUpdateVersionError: One of them cannot be made.
            HtpError: The store failed; what it has of it is in force once it is read.
        """
        changes = tuple(changes)
        async with self._changing:
            for left in reversed(range(_TRIES)):
                levels = self._features.changed(changes, self._others())
                if validate_only or levels == self._features.levels:
                    return
                row = FeaturesRow(self._row.epoch + 1, {**self._row.levels, **levels})
                try:
                    with self._shields.shield():
                        self._take_over(row, await self._write(row))
                    return
                except ConflictError as error:
                    if not left:
                        raise
                    logger.info("another gateway has changed features meanwhile: %s", error)
                    await self._catch_up()

    async def _write(self, row: FeaturesRow) -> int:
        expected = {FEATURES: self._version}
        return await self._manager.commit({FEATURES: row.encode()}, expected, lease=self._lease.current)

    def _others(self) -> dict[int, dict[str, range]]:
        """The levels that the other live gateways can do."""
        return {
            gateway.node_id: {name: range(there.lowest, there.highest + 1) for name, there in gateway.features.items()}
            for gateway in self._gateways.others
        }
