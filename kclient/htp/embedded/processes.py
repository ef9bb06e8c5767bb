"""The openings of a data directory that several processes have open: each holds the lock of a file of its own.

brk-0/process-NUMBER   locked by an opening as long as it lasts; holds its process id

Whether an opening is there is told by that lock alone, which the system takes away from a process that is killed, once
nothing of it writes any more. Numbers are never used twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

_PREFIX: Final = "process-"
_UNFINISHED: Final = ".tmp"


def socket_of(process: int) -> str:
    """The name of the socket at which an opening tells where its logs end (`ends.py`)."""
    return f"ends-{process}.sock"


class Processes:
    """Those that have a data directory open, and this opening among them.

    Args:
        path: The directory of the first shard.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.number: int = secrets.randbits(62) + 1
        """Of this opening."""
        self._lock: int | None = None

    def _file(self, number: int) -> str:
        return f"{self._path}/{_PREFIX}{number}"

    def enter(self) -> None:
        """Be one of them until `leave`. Raises `OSError` if the file system refuses."""
        path = self._file(self.number)
        unfinished = path + _UNFINISHED
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, f"{os.getpid()}\n".encode())
            Path(unfinished).rename(path)  # locked before anybody finds it
        except BaseException:
            os.close(lock)
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()
            raise
        self._lock = lock

    def leave(self) -> None:
        """Be one of them no more, once nothing is written any more."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with contextlib.suppress(OSError):
            Path(self._file(self.number)).unlink()
        with contextlib.suppress(OSError):
            # closing alone would not do while a child that was just forked has not closed its copy
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

    def abandon(self) -> None:
        """In a forked child: the parent is one of them, not the child."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def owner(self, number: int) -> int | None:
        """The process id of an opening that is there, 0 if it cannot be read; None if it is not there any more."""
        try:
            fd = os.open(self._file(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            try:
                # shared: two that look at the same moment do not take each other for it
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.read(fd, 100).decode(errors="replace").strip()
                return int(text) if text.isdigit() else 0
            self._remove(number)
            return None
        finally:
            os.close(fd)

    def others(self) -> dict[int, int]:
        """The other openings that are there, each with its process id."""
        found = {}
        for number in self._numbers():
            if number != self.number and (owner := self.owner(number)) is not None:
                found[number] = owner
        return found

    def _remove(self, number: int) -> None:
        """Remove what an opening has left that was killed."""
        with contextlib.suppress(OSError):
            for path in (self._file(number), f"{self._path}/{socket_of(number)}"):
                Path(path).unlink(missing_ok=True)

    def remove_dead(self) -> None:
        """Remove what those have left that were killed; there is no other."""
        self.others()
        with contextlib.suppress(OSError):
            for path in Path(self._path).glob(f"{_PREFIX}*{_UNFINISHED}"):
                path.unlink()

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._path)  # noqa: PTH208  (as fast as it gets: it is asked for often)
        except FileNotFoundError:
            return []
        numbers = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
        return [int(number) for number in numbers if number.isascii() and number.isdigit()]
