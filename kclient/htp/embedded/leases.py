"""The leases in the database: what is done with them inside a transaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from kclient.htp.embedded.tables import lease_processes, leases
from kclient.htp.errors import FencedError, LeaseHeldError
from kclient.htp.leases import check_ttl, next_epoch
from kclient.htp.port import Lease, LeaseInfo
from kclient.htp.rows import GREATEST_EPOCH, whole

if TYPE_CHECKING:
    from kclient.htp.embedded.processes import Processes

logger: logging.Logger = logging.getLogger(__name__)

_EPOCH: Final = select(leases.c.epoch).where(leases.c.name == bindparam("lease"))
"""Made once: see tables.py."""
_ALL: Final = select(leases).order_by(leases.c.name)
_PROCESSES: Final = select(lease_processes.c.process).distinct()
_OF_PROCESS: Final = select(lease_processes.c.name).where(lease_processes.c.process == bindparam("of_process"))


class LeaseTable:
    """Acquires, renews and gives up leases; only for the thread that writes the database.

    Args:
        exclusive: Whether nobody else has the database open: then the leases that are there at first are free.
        processes: Tell which processes have it open; a lease of one that is not there any more is free. If None, that
            is not known.
    """

    def __init__(self, *, exclusive: bool, processes: Processes | None = None) -> None:
        self._exclusive = exclusive
        self._processes = processes
        self._ours: dict[str, int] = {}
        """Leases that were acquired or renewed since the database was opened, and their version then: one with an older
        version is as it was found, because the transaction was rolled back."""

    def acquire(
        self, connection: Connection, name: str, holder: str, above: int, ttl: float, over: LeaseInfo | None
    ) -> int:
        """Take a lease that is free, the holder's own, or still as `over`; its epoch."""
        if self._processes is not None:
            self._free_of_the_dead(connection)
        row = connection.execute(select(leases).where(leases.c.name == name)).first()
        known = None if row is None else self._info(row)
        if known is not None and known.held and known.holder != holder and known != over:
            raise LeaseHeldError(
                f"{known.holder!r} holds {name!r}", holder=known.holder, process=self._process_of(connection, name)
            )
        epoch, version = (0, 0) if row is None else (_legible(row.epoch, GREATEST_EPOCH), _legible(row.version))
        epoch = next_epoch(name, epoch, above)
        values = {"holder": holder, "epoch": epoch, "ttl": ttl, "held": True, "version": version + 1}
        if row is None:
            connection.execute(insert(leases).values(name=name, **values))
        else:
            connection.execute(update(leases).where(leases.c.name == name).values(**values))
        if self._processes is not None:
            connection.execute(delete(lease_processes).where(lease_processes.c.name == name))
            connection.execute(insert(lease_processes).values(name=name, process=self._processes.number))
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
        if self._processes is not None:
            self._free_of_the_dead(connection)
        rows = connection.execute(_ALL).all()
        infos = [self._info(row) for row in rows if row.name.startswith(prefix)]
        return [info for info in infos if info is not None]

    @staticmethod
    def free_all(connection: Connection) -> None:
        """Whoever held a lease is not there any more."""
        connection.execute(update(leases).where(leases.c.held).values(held=False, version=leases.c.version + 1))
        connection.execute(delete(lease_processes))

    def _free_of_the_dead(self, connection: Connection) -> None:
        """The leases of processes that were killed are free at once: nothing of them writes any more."""
        assert self._processes is not None
        for process in connection.scalars(_PROCESSES).all():
            if process == self._processes.number or self._processes.is_there(process):
                continue
            names = list(connection.scalars(_OF_PROCESS, {"of_process": process}))
            held = (leases.c.name.in_(names), leases.c.held)
            connection.execute(update(leases).where(*held).values(held=False, version=leases.c.version + 1))
            connection.execute(delete(lease_processes).where(lease_processes.c.process == process))

    def _process_of(self, connection: Connection, name: str) -> int | None:
        """The process id of another opening, which is there, that holds a lease; None if it is another's."""
        if self._processes is None:
            return None
        number = connection.scalar(select(lease_processes.c.process).where(lease_processes.c.name == name))
        if number is None or number == self._processes.number:
            return None
        return self._processes.owner(number)

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
