"""A backend of HTP in one SQLite file: the smallest that keeps all that the contract asks for.

Each call is one short transaction in the event loop: good enough to read, and for tests; a server would use a thread.
"""

from htp_sqlite.store import SqliteStore
from kclient.errors import ConfigError
from kclient.htp import Store


def open_sqlite(path: str, *, durability: str = "synced") -> Store:
    """The entry point: gets what follows `sqlite:` in the URL, and the options of `kclient.htp.open_store`."""
    if durability not in ("synced", "written"):
        raise ConfigError(f"durability is 'synced' or 'written', not {durability!r}")
    return SqliteStore(path, durability)
