"""The openings of a data directory that several processes have open: each holds the lock of a file of its own.

brk-0/process-NUMBER   locked by an opening as long as it lasts; holds its process id, and its options in JSON
brk-0/lock             of this file each locks the byte of its number, too (`range_locks.py`)

Whether an opening is there is told by those locks alone, which the system takes away from a process that is killed,
once nothing of it writes any more. Either of them will do: whose file was removed is there all the same, and makes it
anew. Numbers are never used twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kclient.htp.embedded.range_locks import lock_byte, locked_bytes, unlock_byte
from kclient.htp.embedded.shard import LOCK_FILE
from kclient.htp.rows import parse_object

logger: logging.Logger = logging.getLogger(__name__)

_PREFIX: Final = "process-"
_UNFINISHED: Final = ".tmp"
_LONGEST: Final = 4096
"""Bytes of such a file."""


class Opening(NamedTuple):
    """One opening that is there."""

    pid: int
    """Of its process; 0 if that cannot be read."""
    options: Mapping[str, object] | None
    """With which it was opened; None if they cannot be read, or an earlier version told none."""


_UNREADABLE: Final = Opening(0, None)
BELL: Final = "bell-"
"""What the names of bells begin with."""


def bell_of(process: int) -> str:
    """The name of the socket at which an opening hears that others have changed something (`bell.py`)."""
    return f"{BELL}{process}.sock"


def socket_of(process: int) -> str:
    """The name of the socket at which an opening tells where its logs end (`ends.py`)."""
    return f"ends-{process}.sock"


class Processes:
    """Those that have a data directory open, and this opening among them.

    Args:
        path: The directory of the first shard.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path
        """Of that directory."""
        self.number: int = secrets.randbits(62) + 1
        """Of this opening."""
        self._options: dict[str, object] = {}
        self._lock: int | None = None
        """Its file, while it is there."""
        self._byte: int | None = None
        """The common file, of which it has locked a byte."""

    def _file(self, number: int) -> str:
        return f"{self.path}/{_PREFIX}{number}"

    @contextlib.contextmanager
    def one_enters(self) -> Iterator[bool]:
        """Keep others from entering meanwhile; whether that is so, or somebody else does, who will soon be there."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def enter(self, options: Mapping[str, object]) -> None:
        """Be one of them until `leave`. Raises `OSError` if the file system refuses.

        Args:
            options: What others are told, who may have to have the same; values that JSON can say.
        """
        self._options = dict(options)
        byte = os.open(f"{self.path}/{LOCK_FILE}", os.O_RDWR | os.O_CLOEXEC)
        try:
            lock_byte(byte, self.number)
            self._lock = self._make()
        except BaseException:  # interrupted too: it is not there for the others
            os.close(byte)
            raise
        self._byte = byte

    def _make(self) -> int:
        """Make its file, locked."""
        path = self._file(self.number)
        unfinished = path + _UNFINISHED
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, f"{os.getpid()}\n{json.dumps(self._options)}\n".encode())
            Path(unfinished).rename(path)  # locked before anybody finds it
        except BaseException:  # interrupted too: no unfinished file stays
            os.close(lock)
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()
            raise
        return lock

    def restore(self) -> None:
        """Make its file anew if somebody has removed it."""
        if self._lock is None or os.path.exists(self._file(self.number)):  # noqa: PTH110  (it is asked for often)
            return
        try:
            lock = self._make()
        except OSError as error:
            logger.warning("%s was removed, and cannot be made anew: %s", self._file(self.number), error)
            return
        logger.warning("%s was removed, and has been made anew: it belongs to this process", self._file(self.number))
        gone, self._lock = self._lock, lock
        os.close(gone)

    def leave(self) -> None:
        """Be one of them no more, once nothing is written any more."""
        lock, self._lock = self._lock, None
        byte, self._byte = self._byte, None
        if lock is not None:
            with contextlib.suppress(OSError):
                Path(self._file(self.number)).unlink()
            with contextlib.suppress(OSError):
                # closing alone would not do while a child that was just forked has not closed its copy
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)
        if byte is not None:
            with contextlib.suppress(OSError):
                unlock_byte(byte, self.number)
            os.close(byte)

    def abandon(self) -> None:
        """In a forked child: the parent is one of them, not the child."""
        for fd in (self._lock, self._byte):
            if fd is not None:
                os.close(fd)
        self._lock = self._byte = None

    def is_there(self, number: int) -> bool:
        """Whether an opening is there, without asking who it is."""
        return self._is_locked(number) or self._opening(number) is not None

    def owner(self, number: int) -> int | None:
        """The process id of an opening that is there, 0 if it cannot be read; None if it is not there any more."""
        found = self._opening(number)
        return None if found is None else found.pid

    def others(self) -> dict[int, int]:
        """The other openings that are there, each with its process id, 0 if that cannot be read."""
        return {number: found.pid for number, found in self.openings().items()}

    def openings(self) -> dict[int, Opening]:
        """The other openings that are there, and what they tell of themselves."""
        found = {}
        for number in {*self._locked(), *self._numbers()} - {self.number}:
            if (opening := self._opening(number)) is not None:
                found[number] = opening
        return found

    def _opening(self, number: int) -> Opening | None:
        """What is known of an opening; None if it is not there."""
        try:
            fd = os.open(self._file(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # somebody has removed it, or it has just ended
            return _UNREADABLE if self._is_locked(number) else None
        try:
            try:
                # shared: two that look at the same moment do not take each other for it
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _told(os.read(fd, _LONGEST))
            if self._is_locked(number):  # somebody has put a copy in its place
                return _UNREADABLE
            self._remove(number)
            return None
        finally:
            os.close(fd)

    def _is_locked(self, number: int) -> bool:
        return bool(self._locked(number, number))

    def _locked(self, *between: int) -> list[int]:
        if self._byte is not None:
            return locked_bytes(self._byte, *(between or (1,)))
        try:
            fd = os.open(f"{self.path}/{LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # a copy may lack it
            return []
        try:
            return locked_bytes(fd, *(between or (1,)))
        finally:
            os.close(fd)

    def _remove(self, number: int) -> None:
        """Remove what an opening has left that was killed."""
        with contextlib.suppress(OSError):
            for name in (f"{_PREFIX}{number}", socket_of(number), bell_of(number)):
                Path(self.path, name).unlink(missing_ok=True)

    def remove_dead(self) -> None:
        """Remove what those have left that were killed; there is no other."""
        self.openings()
        with contextlib.suppress(OSError):
            # sockets too: their owner's file may have been removed before
            for pattern in (f"{_PREFIX}*{_UNFINISHED}", f"{BELL}*.sock", "ends-*.sock"):
                for path in Path(self.path).glob(pattern):
                    path.unlink()

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.path)  # noqa: PTH208  (as fast as it gets: it is asked for often)
        except FileNotFoundError:
            return []
        numbers = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
        return [int(number) for number in numbers if number.isascii() and number.isdigit()]


def _told(content: bytes) -> Opening:
    first, _, rest = content.partition(b"\n")
    options: Mapping[str, object] | None = None
    with contextlib.suppress(ValueError):
        options = parse_object(rest) if rest else None
    return Opening(int(first) if first.isdigit() else 0, options)
