"""What is said where a file system has no space left."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from typing import Final

from kclient.htp.errors import StorageError, StorageFullError

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of the operating system that say so."""
_LEAST_BYTES: Final = 64 << 10
"""What SQLite needs to open a database, roughly: 32 KiB for the index of its write-ahead log, and some pages."""
_SUSPECT: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""Primary codes of SQLite that may stand for that, or for something else."""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def opening_error(path: str, error: BaseException, reason: str) -> StorageError:
    """Why something cannot be opened; where there is no space, that, whatever else the reason says.

    Args:
        path: What cannot be opened.
        error: Of the operating system, or of SQLite.
        reason: What it says.
    """
    if isinstance(error, OSError):
        full = error.errno in NO_SPACE
    else:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the extended codes have more above that
        full = code == sqlite3.SQLITE_FULL or (code in _SUSPECT and _is_full(os.path.dirname(path)))  # noqa: PTH120
    if full:
        return StorageFullError(
            f"{path} cannot be opened: no space is left on its file system ({reason}). Nothing that was stored is "
            "lost: make space, and start again"
        )
    if not isinstance(error, OSError) and code in _DAMAGED:
        return StorageError(
            f"{path} is damaged ({reason}): nothing was changed; restore the data directory from a backup"
        )
    return StorageError(f"{path} cannot be opened: {reason}")


def space_left(path: str) -> int:
    """Bytes that may still be written beside a file, as far as the file system says so; very many if it does not."""
    return space_in(os.path.dirname(path))  # noqa: PTH120


def space_in(directory: str) -> int:
    """Bytes that may still be written in a directory, as far as the file system says so; very many if it does not."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize


def _is_full(directory: str) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    no_files = found.f_files > 0 and found.f_favail == 0
    return no_files or found.f_bavail * found.f_frsize < _LEAST_BYTES
