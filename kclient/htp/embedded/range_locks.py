"""Locks on single bytes of a file, of which anybody can list those that are held: they last when names are removed.

Only on Linux (F_OFD_SETLK): such a lock belongs to an open file, as that of `flock` does, and is independent of it. On
other systems, and on file systems without them, nothing is locked and none is found.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from typing import Final

_THERE: Final = sys.platform == "linux" and struct.calcsize("P") == 8
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock`: type, whence, start, length, process (0)."""
_END: Final = (1 << 63) - 1
_NOT_HERE: Final = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def lock_byte(fd: int, byte: int) -> bool:
    """Lock a byte until the file is closed; whether that was possible here.

    Raises:
        BlockingIOError: Somebody else has locked it.
        OSError: The file system refuses.
    """
    return _set(fd, byte, fcntl.F_WRLCK)


def unlock_byte(fd: int, byte: int) -> None:
    """Give it up: closing alone would not do while a child that was just forked has not closed its copy."""
    _set(fd, byte, fcntl.F_UNLCK)


def _set(fd: int, byte: int, kind: int) -> bool:
    if sys.platform == "linux" and _THERE:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
        else:
            return True
    return False


def locked_bytes(fd: int, least: int = 0, greatest: int = _END - 1) -> list[int]:
    """The bytes that others have locked, in order; not those that were locked through this very descriptor."""
    found = []
    spans = [(least, greatest)]
    while spans:  # the system tells one lock at a time, of those that are in the way
        first, last = spans.pop()
        byte = _locked(fd, first, last)
        if byte is None:
            continue
        found.append(byte)
        spans += [(low, high) for low, high in ((first, byte - 1), (byte + 1, last)) if low <= high]
    return sorted(found)


def _locked(fd: int, first: int, last: int) -> int | None:
    if sys.platform == "linux" and _THERE:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, last - first + 1, 0)
        try:
            kind, _, start, _, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            return None
        if kind != fcntl.F_UNLCK:
            return max(int(start), first)
    return None
