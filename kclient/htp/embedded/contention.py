"""Beginning a transaction where other processes make some too: nobody waits much longer than the others do."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from kclient.htp.errors import StorageError

BUSY_MS: Final = 1
"""So long SQLite itself waits for another process: its pauses grow to a tenth of a second, so that whoever has waited
for long would be overtaken by all others."""
PATIENCE_S: Final = 10.0
"""How long another process may have the database."""
GIVE_WAY_S: Final = 0.002
"""For so long one that has just committed leaves the database to others that commit too: they ask again sooner."""
_WRITE_LOCK: Final = 120
"""The byte of the file `-shm` that is locked by who writes (https://www.sqlite.org/walformat.html)."""


def begin(connection: sqlite3.Connection, path: str) -> None:
    """Begin a transaction that writes; blocks.

    Args:
        connection: Waits for `BUSY_MS`.
        path: Of the database.

    Raises:
        StorageError: Another process has it, and does not go on.
        sqlite3.Error: The database fails.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            # the lock first: a transaction that reads and then writes would fail when another one wrote between
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > until:
                raise StorageError(f"{path}: {error}{_remedy(path)}") from error
        else:
            return


def _remedy(path: str) -> str:
    holder = writer_of(path)
    who, number = ("another process", "PID") if holder is None else (f"process {holder}", str(holder))
    return (
        f": {who} is amid a transaction, and does not go on: if it is stopped, have it go on (kill -CONT {number}), or "
        f"kill it (kill -9 {number}); nothing that it has acknowledged is lost by that"
    )


def writer_of(path: str) -> int | None:
    """The process that is amid a transaction of a database; None if there is none, or that cannot be found out."""
    if not sys.platform.startswith("linux"):
        return None
    # not by asking for the lock: to close the file would take this process's own locks on it away
    with suppress(OSError, ValueError):
        inode = str(Path(f"{path}-shm").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" in words or words[1] != "POSIX" or words[3] != "WRITE" or words[5].rpartition(":")[2] != inode:
                continue
            if int(words[6]) <= _WRITE_LOCK and (words[7] == "EOF" or int(words[7]) >= _WRITE_LOCK):
                return int(words[4]) if int(words[4]) > 0 else None  # of another container: not known here
    return None
