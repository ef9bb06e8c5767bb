"""What earlier versions wrote into the database, made to fit; inside the transaction that opens it.

It belongs to the format of the data directory (`directory.py`), and comes after the check that the database is sound.
"""

from __future__ import annotations

import logging
from functools import cache

from sqlalchemy import Column, Connection, Dialect, MetaData, String, Table, insert, select
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from kclient.htp.embedded.tables import leases, metadata
from kclient.htp.rows import GREATEST_EPOCH, whole

logger: logging.Logger = logging.getLogger(__name__)


def make_tables(connection: Connection) -> None:
    """Make the tables that are missing, and migrate those of earlier formats."""
    there = set(connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())
    for table in metadata.sorted_tables:
        if table.name not in there:
            for statement in _making(table, connection.dialect):
                connection.exec_driver_sql(statement)
    columns = set(connection.exec_driver_sql("SELECT name FROM pragma_table_info('leases')").scalars())
    if "boot" in columns:
        _renew_leases(connection)


@cache
def _making(table: Table, dialect: Dialect) -> list[str]:
    """The statements that make a table and its indexes, which all stores need alike."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    parts: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, indexes)]
    return [str(part.compile(dialect=dialect)) for part in parts]


def _renew_leases(connection: Connection) -> None:
    """Up to format 2 a lease had its end, on the clock of the machine. Whoever held one is not there: all are free."""
    older = Table(leases.name, MetaData(), *(Column(name, String) for name in ("name", "holder")), Column("epoch"))
    rows = []
    for row in connection.execute(select(older)).all():
        try:
            epoch = whole(row.epoch, 0, GREATEST_EPOCH)
        except ValueError as error:
            logger.error("the row of the lease %r is damaged (%s) and is not kept", row.name, error)
            continue
        rows.append(
            {"name": row.name, "holder": str(row.holder), "epoch": epoch, "ttl": 0.0, "held": False, "version": 0}
        )
    older.drop(connection)
    leases.create(connection)
    if rows:
        connection.execute(insert(leases), rows)
