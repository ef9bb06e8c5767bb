"""The leases in the database: what is done with them inside a transaction."""

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from kclient.htp.embedded.tables import leases
from kclient.htp.errors import FencedError, LeaseHeldError
from kclient.htp.leases import check_ttl, next_epoch
from kclient.htp.port import Lease, LeaseInfo
from kclient.htp.rows import GREATEST_EPOCH, whole

logger: logging.Logger = logging.getLogger(__name__)

_EPOCH: Final = select(leases.c.epoch).where(leases.c.name == bindparam("lease"))
"""Made once: see tables.py."""


class LeaseTable:
    """Acquires, renews and gives up leases; only for the thread that writes the database.

    Args:
        exclusive: Whether nobody else has the database open: then the leases that are there at first are free.
    """

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._ours: dict[str, int] = {}
        """Leases that were acquired or renewed since the database was opened, and their version then: one with an older
        version is as it was found, because the transaction was rolled back."""

    def acquire(
        self, connection: Connection, name: str, holder: str, above: int, ttl: float, over: LeaseInfo | None
    ) -> int:
        """Take a lease that is free, the holder's own, or still as `over`; its epoch."""
        row = connection.execute(select(leases).where(leases.c.name == name)).first()
        known = None if row is None else self._info(row)
        if known is not None and known.held and known.holder != holder and known != over:
            raise LeaseHeldError(f"{known.holder!r} holds {name!r}", holder=known.holder)
        epoch, version = (0, 0) if row is None else (_legible(row.epoch, GREATEST_EPOCH), _legible(row.version))
        epoch = next_epoch(name, epoch, above)
        values = {"holder": holder, "epoch": epoch, "ttl": ttl, "held": True, "version": version + 1}
        if row is None:
            connection.execute(insert(leases).values(name=name, **values))
        else:
            connection.execute(update(leases).where(leases.c.name == name).values(**values))
        self._is_ours(name, version + 1)
        return epoch

    def renew(self, connection: Connection, lease: Lease) -> None:
        """Say that the holder is still there."""
        check_epoch(connection, lease)
        self._change(connection, lease, held=True)
        if self._exclusive and lease.name not in self._ours:
            version = select(leases.c.version).where(leases.c.name == lease.name)
            self._is_ours(lease.name, connection.execute(version).scalar_one())

    def release(self, connection: Connection, lease: Lease) -> None:
        """Give up a lease; one that somebody else has acquired since is left alone."""
        self._change(connection, lease, held=False)

    def all(self, connection: Connection, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with a prefix, by name."""
        rows = connection.execute(select(leases).order_by(leases.c.name)).all()
        infos = [self._info(row) for row in rows if row.name.startswith(prefix)]
        return [info for info in infos if info is not None]

    def _is_ours(self, name: str, version: int) -> None:
        self._ours[name] = min(version, self._ours.get(name, version))

    @staticmethod
    def _change(connection: Connection, lease: Lease, *, held: bool) -> None:
        # the holder too: an epoch whose transaction was rolled back is given to somebody else
        held_by = (leases.c.name == lease.name, leases.c.epoch == lease.epoch, leases.c.holder == lease.holder)
        connection.execute(update(leases).where(*held_by).values(held=held, version=leases.c.version + 1))

    def _info(self, row: Row[Any]) -> LeaseInfo | None:
        """What a row says; None, and a line in the log, for one that is damaged: it counts as free."""
        try:
            epoch, version, ttl = whole(row.epoch, 0, GREATEST_EPOCH), whole(row.version), float(row.ttl)
            check_ttl(ttl)
        except (ValueError, TypeError) as error:
            logger.error(
                "the row of the lease %r is damaged (%s) and counts as free: it gets a new epoch when it is acquired",
                row.name, error,
            )  # fmt: skip
            return None
        held = bool(row.held) and not (self._exclusive and version < self._ours.get(row.name, version + 1))
        return LeaseInfo(row.name, str(row.holder), epoch, ttl, held, version)


def _legible(value: Any, *greatest: int) -> int:
    """A number of a row that may be damaged elsewhere; 0 for one that is damaged itself."""
    try:
        return whole(value, 0, *greatest)
    except ValueError:
        return 0


def check_epoch(connection: Connection, lease: Lease) -> None:
    """Raise `FencedError` if somebody has acquired a lease since."""
    epoch = connection.scalar(_EPOCH, {"lease": lease.name})
    if epoch != lease.epoch:
        raise FencedError(f"{lease.name!r} has epoch {epoch}, not {lease.epoch}", epoch=epoch)
