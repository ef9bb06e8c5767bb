"""A folder that one run at a time works in: whether it may be written, and its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class FolderInUseError(Exception):
    """Another process holds the lock.

    Attributes:
        process: its number, as it wrote it into the file; or `unknown`.
    """

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


def locked(path: Path) -> IO[str]:
    """The lock file, held until it is closed or the process dies; it names the process.

    Raises:
        FolderInUseError: another process, or another file of this one, holds it.
        OSError: the file system refuses.
    """
    while True:
        file = path.open("a+")
        try:
            if not try_lock(file):
                file.seek(0)
                raise FolderInUseError(file.read().strip() or "unknown")
            if _same_file(file, path):  # else somebody removed it meanwhile, and others lock the new one
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                return file
        except BaseException:  # Ctrl-C, too: an open file would hold the lock
            file.close()
            raise
        file.close()


def try_lock(file: IO[str]) -> bool:
    """Whether the lock was free; it is ours then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def why_not_writable(folder: Path) -> str | None:
    """What stands in the way of writing there, as far as can be said without making anything; None if nothing does.

    Raises:
        OSError: nothing can be found out.
    """
    found = next(path for path in (folder, *folder.parents) if path.exists())
    if not found.is_dir():
        return f"{found} is not a folder"
    if not os.access(found, os.W_OK | os.X_OK):
        return f"{found} may not be written"
    return None


def _same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
