"""Has the embedded backend fail on purpose: `open_store("embedded:DIRECTORY", faults=True).faults`."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.errors import PositionError
from kclient.htp.port import FAULT_DAMAGE, FAULT_FULL, FAULT_SYNC, FAULT_WRITE

if TYPE_CHECKING:
    from kclient.htp.embedded.log import TopicLog
    from kclient.htp.port import Place
    from kclient.types import Buffer


class FaultyFiles(Files):
    """The operating system's files, of which a test lets the next write or sync of messages fail.

    Small files, which are written whole (`store`), are left alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next_write_fails: bool = False
        self.next_sync_fails: bool = False
        """Of the messages of one topic; a sync of everything before it fails too."""
        self.space: int | None = None
        """Bytes that may still be written, if there is a limit."""
        self._storing = threading.local()

    def store(self, path: str, content: bytes, point: SyncPoint | None = None) -> None:
        """Write a small file."""
        self._storing.now = True
        try:
            super().store(path, content, point)
        finally:
            self._storing.now = False

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers, or as many bytes as there is space for."""
        if getattr(self._storing, "now", False):
            super().write(fd, buffers, position)
            return
        if self.next_write_fails:
            self.next_write_fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.space is None:
            super().write(fd, buffers, position)
            return
        data = b"".join(buffers)
        fits = min(self.space, len(data))
        self.space -= fits
        super().write(fd, [data[:fits]], position)
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, fd: int, point: SyncPoint) -> None:
        """Make the content of a file durable."""
        if self.next_sync_fails and point is SyncPoint.MESSAGES:
            self.next_sync_fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd, point)

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        """Make the whole file system durable."""
        if self.next_sync_fails:  # then each file is synced by itself
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_everything(fd, point)


class EmbeddedFaults:
    """Implements `kclient.htp.port.Faults`.

    Args:
        files: What the store's files are opened with.
        log_of: The log of a topic that is open. Raises `UnknownTopicError` for another one.
    """

    kinds: frozenset[str] = frozenset({FAULT_WRITE, FAULT_SYNC, FAULT_FULL, FAULT_DAMAGE})

    def __init__(self, files: FaultyFiles, log_of: Callable[[Place], TopicLog]) -> None:
        self._files = files
        self._log_of = log_of

    def fail_write(self) -> None:
        """The next write of messages fails."""
        self._files.next_write_fails = True

    def fail_sync(self) -> None:
        """The next sync of messages fails."""
        self._files.next_sync_fails = True

    def fill(self, space: int = 0) -> None:
        """The disk takes so many bytes of messages, and then no more."""
        self._files.space = space

    def lose_answer(self) -> None:
        """A file system answers."""
        raise NotImplementedError("embedded HTP knows what became of each send: it never loses an answer")

    async def damage(self, place: Place, position: int) -> None:
        """Overwrite the beginning of the message at a position with zeros."""
        log = self._log_of(place)
        for segment in log.segments():
            if segment.first <= position < segment.next:
                self._overwrite(log, segment.first, position)
                return
        raise PositionError(f"{place} has no message at {position}", start=log.start, end=log.end)

    def _overwrite(self, log: TopicLog, base: int, position: int) -> None:
        fd = Files.open(self._files, log.path_of(base))
        try:
            content = Files.read(self._files, fd, self._files.size(fd), 0)
            place = 0
            while place < len(content):
                info = log.framing.inspect(content, place)
                if info.last >= position:
                    Files.write(self._files, fd, [bytes(min(info.length, log.framing.prefix))], place)
                    return
                place += info.length
        finally:
            self._files.close(fd)
        raise PositionError(f"{log.name} has no message at {position}", start=log.start, end=log.end)

    def clear(self) -> None:
        """Nothing fails any more."""
        self._files.next_write_fails = self._files.next_sync_fails = False
        self._files.space = None
