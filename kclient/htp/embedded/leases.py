"""The leases in the database: what is done with them inside a transaction."""

from __future__ import annotations

import logging
import math
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from kclient.htp.embedded.tables import leases
from kclient.htp.errors import FencedError, LeaseHeldError
from kclient.htp.port import Lease, LeaseInfo
from kclient.htp.rows import GREATEST_EPOCH, whole

logger: logging.Logger = logging.getLogger(__name__)


class LeaseTable:
    """Acquires, renews and gives up leases; only for the thread that writes the database.

    Args:
        exclusive: Whether nobody else has the database open: then the leases that are there at first are free.
    """

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._ours: set[str] = set()
        """Leases that were acquired or renewed since the database was opened."""

    def acquire(
        self, connection: Connection, name: str, holder: str, above: int, ttl: float, over: LeaseInfo | None
    ) -> int:
        """Take a lease that is free, the holder's own, or still as `over`; its epoch."""
        row = connection.execute(select(leases).where(leases.c.name == name)).first()
        known = None if row is None else self._info(row)
        if known is not None and known.held and known.holder != holder and known != over:
            raise LeaseHeldError(f"{known.holder!r} holds {name!r}", holder=known.holder)
        epoch, version = (0, 0) if known is None else (known.epoch, known.version)
        epoch = max(above, epoch) + 1
        values = {"holder": holder, "epoch": epoch, "ttl": ttl, "held": True, "version": version + 1}
        if row is None:
            connection.execute(insert(leases).values(name=name, **values))
        else:
            connection.execute(update(leases).where(leases.c.name == name).values(**values))
        self._ours.add(name)
        return epoch

    def renew(self, connection: Connection, lease: Lease) -> None:
        """Say that the holder is still there."""
        check_epoch(connection, lease)
        self._change(connection, lease, held=True)
        self._ours.add(lease.name)

    def release(self, connection: Connection, lease: Lease) -> None:
        """Give up a lease; one that somebody else has acquired since is left alone."""
        self._change(connection, lease, held=False)

    def all(self, connection: Connection, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with a prefix, by name."""
        rows = connection.execute(select(leases).order_by(leases.c.name)).all()
        infos = [self._info(row) for row in rows if row.name.startswith(prefix)]
        return [info for info in infos if info is not None]

    @staticmethod
    def _change(connection: Connection, lease: Lease, *, held: bool) -> None:
        held_by = (leases.c.name == lease.name, leases.c.epoch == lease.epoch)
        connection.execute(update(leases).where(*held_by).values(held=held, version=leases.c.version + 1))

    def _info(self, row: Row[Any]) -> LeaseInfo | None:
        """What a row says; None, and a line in the log, for one that is damaged: it counts as free."""
        try:
            epoch, version, ttl = whole(row.epoch, 0, GREATEST_EPOCH), whole(row.version), float(row.ttl)
            if not 0 <= ttl < math.inf:
                raise ValueError(f"it lasts for {ttl} s")
        except (ValueError, TypeError) as error:
            logger.error(
                "the row of the lease %r is damaged (%s) and counts as free: it gets a new epoch when it is acquired",
                row.name, error,
            )  # fmt: skip
            return None
        held = bool(row.held) and not (self._exclusive and row.name not in self._ours)
        return LeaseInfo(row.name, str(row.holder), epoch, ttl, held, version)


def check_epoch(connection: Connection, lease: Lease) -> None:
    """Raise `FencedError` if somebody has acquired a lease since."""
    epoch = connection.scalar(select(leases.c.epoch).where(leases.c.name == lease.name))
    if epoch != lease.epoch:
        raise FencedError(f"{lease.name!r} has epoch {epoch}, not {lease.epoch}", epoch=epoch)
