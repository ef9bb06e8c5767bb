"""The tables of the management part. Nothing in them is SQLite's own: PostgreSQL can hold them too."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Float, LargeBinary, MetaData, String, Table

metadata: Final = MetaData()

domains: Final = Table("domains", metadata, Column("name", String, primary_key=True))

topics: Final = Table(
    "topics",
    metadata,
    Column("domain", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("broker", String, nullable=True),
    Column("incarnation", BigInteger, nullable=False, unique=True),
)

entries: Final = Table(
    "entries",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
)
"""The key-value part; `version` is the revision of the commit that wrote the value."""

leases: Final = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("ttl", Float, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
)
"""The last holder of each lease; the row stays when it is given up, because epochs only grow. `version` counts its
changes."""

counters: Final = Table(
    "counters",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""`revision`: of the last commit; `incarnation`: of the topic created last."""
