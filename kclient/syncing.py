"""How files and directories are made durable, which is another call on macOS than elsewhere.

There `fsync` hands the data to the drive, which keeps it in its cache: only `F_FULLFSYNC` has the drive write it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_FULL_FSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""The number of the call, which macOS alone has."""
_NOT_HERE: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})
"""What file systems say that lack it, such as those of other hosts."""


def sync_data(fd: int) -> None:
    """Make the content of an open file durable, with its length and without its times.

    Raises:
        OSError: The disk could not take it.
    """
    if _FULL_FSYNC is None:
        os.fdatasync(fd)
    else:
        _sync_to_the_drive(fd, _FULL_FSYNC)


def sync_all(fd: int) -> None:
    """Make an open file durable with all that is known of it, or the entries of an open directory.

    Raises:
        OSError: The disk could not take it.
    """
    if _FULL_FSYNC is None:
        os.fsync(fd)
    else:
        _sync_to_the_drive(fd, _FULL_FSYNC)


def _sync_to_the_drive(fd: int, call: int) -> None:
    try:
        fcntl.fcntl(fd, call)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        os.fsync(fd)  # the most that there is
