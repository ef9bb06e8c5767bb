"""Open files of segments: as many as the process may hold, the longest unused closed first.

A file that was written to stays open until it is synced: its descriptor is what a sync proves something by. When too
many are held, whoever wants to write to another waits, and what is held is synced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from kclient.descriptors import OUT_OF_DESCRIPTORS, Descriptors, process_descriptors
from kclient.htp.embedded.files import Files

logger: logging.Logger = logging.getLogger(__name__)


class Handle:
    """A file that is open while somebody needs it, and some time after."""

    __slots__ = ("fd", "path", "pins", "removed")

    def __init__(self, path: str) -> None:
        self.path: str = path
        self.fd: int = -1
        """The descriptor; valid while pinned."""
        self.pins: int = 0
        self.removed: bool = False


class OpenFiles:
    """The open files of a broker. Only the event loop's thread calls it; others may use what is pinned for them.

    Args:
        files: The file system.
        limit: So many at a time, if the process does not need them for something else.
        descriptors: What the process may have open.
        brokers: How many brokers the store has. Each keeps files open of its own: those that wait for a sync of a disk
            that hangs leave some to the others.
    """

    def __init__(
        self, files: Files, limit: int | None = None, descriptors: Descriptors | None = None, *, brokers: int = 1
    ) -> None:
        self.files = files
        owner = descriptors or process_descriptors()
        self._limit = owner.limit if limit is None else max(limit // brokers, 1)
        self._share = owner.share(self._close_idle, alike=brokers)
        self._idle: dict[Handle, None] = {}
        """Open and not pinned, the longest unused first."""
        self._held: dict[Handle, Callable[[], object]] = {}
        """Written to and not synced, the longest held first; what has each synced."""
        self._many = max((limit or owner.limit) // brokers // 2, 1)
        self._asked = False
        self._room: anyio.Event | None = None

    def pin(self, handle: Handle) -> int:
        """Open the file, if it is not open, and keep it open until `unpin`, which comes soon.

        Raises:
            OSError: If it cannot be opened.
        """
        if handle.fd < 0:
            if not self._take():
                self._share.take_anyway()
            self._open(handle, create=False)
        else:
            self._idle.pop(handle, None)
        handle.pins += 1
        return handle.fd

    def hold(self, handle: Handle, sync: Callable[[], object], *, create: bool) -> bool:
        """Open the file to write to it, and keep it open until `let_go`, when it has been synced.

        Args:
            handle: The file.
            sync: Has it synced, soon.
            create: It must not exist yet.

        Returns:
            False if too many are held. They are being synced; `room` tells when to try again.

        Raises:
            OSError: If it cannot be opened.
        """
        if handle.fd < 0:
            if not self._take():
                if self._held:
                    self._sync_held()
                    return False
                self._share.take_anyway()
            try:
                self._open(handle, create=create)
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._held:
                    raise
                self._sync_held()
                return False
        else:
            self._idle.pop(handle, None)
        handle.pins += 1
        self._held[handle] = sync
        if len(self._held) >= self._many:
            try:
                self._sync_held()
            except BaseException:  # a signal handler's: the caller takes it for not held
                self.let_go(handle)
                raise
        return True

    async def room(self) -> None:
        """Until a file is held no more."""
        if self._room is None:
            self._room = anyio.Event()
        await self._room.wait()

    def let_go(self, handle: Handle) -> None:
        """A file that was held is synced, or given up."""
        self._held.pop(handle, None)
        self._asked = False
        self.unpin(handle)
        self.tell_room()

    def tell_room(self) -> None:
        """Whoever waits for room tries again."""
        if self._room is not None:
            self._room.set()
            self._room = None

    def unpin(self, handle: Handle) -> None:
        """One `pin` is no longer needed."""
        handle.pins -= 1
        if handle.pins == 0 and handle.fd >= 0:
            self._idle[handle] = None
            if handle.removed or self._share.used > self._limit:
                self._close(handle)

    def remove(self, handle: Handle) -> None:
        """Close the file as soon as it is not pinned."""
        handle.removed = True
        if handle in self._idle:
            self._close(handle)

    def close(self) -> None:
        """Close every file that is not pinned; none is opened any more."""
        for handle in list(self._idle):
            self._close(handle)
        self._share.close()

    def _take(self) -> bool:
        while self._share.used >= self._limit:
            if not self._close_idle():
                return False
        return self._share.take()

    def _open(self, handle: Handle, *, create: bool) -> None:
        try:
            while True:
                try:
                    handle.fd = self.files.open(handle.path, create=create)
                    return
                except OSError as error:  # the application has opened what nobody counts
                    if error.errno not in OUT_OF_DESCRIPTORS or not self._share.make_room():
                        raise
        finally:
            if handle.fd < 0:
                self._share.give_back()

    def _sync_held(self) -> None:
        """Have all synced that is held, so that it may be closed."""
        if not self._asked:
            for sync in list(self._held.values()):
                sync()
            self._asked = True

    def _close_idle(self) -> bool:
        handle = next(iter(self._idle), None)
        if handle is None:
            return False
        self._close(handle)
        return True

    def _close(self, handle: Handle) -> None:
        del self._idle[handle]
        fd, handle.fd = handle.fd, -1
        self._share.give_back()
        try:
            self.files.close(fd)
        except OSError as error:  # nothing unsynced is ever closed here, so nothing is lost
            logger.warning("closing %s failed: %s", handle.path, error)
