"""Second names for the files of an open store: what has one stays readable, whatever the owner removes meanwhile."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kclient.htp.errors import StorageError

_PREFIX: Final = "backup-"
_LOCK: Final = "lock"
_YOUNG_S: Final = 60.0
"""A directory without a lock that is older was left behind."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class HardLinks:
    """A directory of hard links in a shard, from `with` to its end.

    One that a process left behind that was killed is removed by the next backup, or by the next start of the owner
    (`remove_left_behind`).

    Args:
        shard: The directory of the brk shard.

    Raises:
        StorageError: Nothing can be written there.
    """

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._numbers = itertools.count()
        self._linked: dict[tuple[int, int], str] = {}
        """Paths of links, by device and inode."""
        self.path: str = ""
        self._lock = -1
        self._directory = -1

    def __enter__(self) -> Self:
        remove_left_behind(self._shard)
        path = f"{self._shard}/{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            Path(path).mkdir()
            self.path = path
            self._lock = os.open(f"{path}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not os.fstat(self._lock).st_nlink:  # who saw it before it was locked has taken it for left behind
                raise FileNotFoundError(errno.ENOENT, "it was removed at once; take the backup again")
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._close()
            raise StorageError(
                f"{path} cannot be made ({error.strerror}): a backup of a store that is in use needs links beside its "
                "files. Run it as the user who may write there, or stop the gateway first"
            ) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        for fd in (self._directory, self._lock):
            if fd >= 0:
                os.close(fd)
        self._directory = self._lock = -1

    def link(self, directory: int, name: str, found: os.stat_result) -> str | None:
        """The path of a link to a file, made unless there is one; None if the file has gone, or another has its name.

        Args:
            directory: The open directory that holds the file.
            name: The name in it.
            found: What is known of it.

        Raises:
            StorageError: The file system has no hard links, or somebody has removed those there were.
        """
        known = self._linked.get((found.st_dev, found.st_ino))
        if known is not None:
            return known
        number = str(next(self._numbers))
        try:
            os.link(name, number, src_dir_fd=directory, dst_dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            if not os.fstat(self._directory).st_nlink:
                raise StorageError(
                    f"{self.path}, which holds the links of the backup, was removed meanwhile: take the backup again"
                ) from None
            return None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageError(
                f"the file system of {self._shard} makes no hard links ({error.strerror}): stop the gateway, then back "
                "the directory up"
            ) from error
        made = os.stat(number, dir_fd=self._directory, follow_symlinks=False)
        path = f"{self.path}/{number}"
        self._linked[made.st_dev, made.st_ino] = path
        # another file may have got the name between; what was asked for is then gone
        return path if made.st_ino == found.st_ino else None


def remove_left_behind(shard: str) -> None:
    """Remove what backups left behind that were killed; one that runs keeps its own."""
    with suppress(OSError):
        for path in Path(shard).glob(f"{_PREFIX}*"):
            _remove_unless_in_use(path)


def _remove_unless_in_use(directory: Path) -> None:
    try:
        fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # it is being made or removed right now, or was cut off there
        if not _is_young(directory):
            shutil.rmtree(directory, ignore_errors=True)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)  # locked: whoever is about to use it sees that it is gone
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def _is_young(directory: Path) -> bool:
    try:
        return time.time() - directory.stat().st_mtime < _YOUNG_S
    except FileNotFoundError:
        return True
