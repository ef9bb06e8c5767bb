"""Open files of segments: as many as the process may hold, the longest unused closed first."""

from __future__ import annotations

import logging
import sys

from kclient.htp.embedded.files import Files

logger: logging.Logger = logging.getLogger(__name__)

_RESERVE = 2
"""One open file in so many is for segments; the others are left to sockets and to the application."""
_MOST = 4096


def default_limit() -> int:
    """How many segments may be open at a time: half of what the process may open."""
    if sys.platform == "win32":
        return 256
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(16, min(_MOST, soft // _RESERVE))


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
    """The open files of a store. Only the event loop's thread calls it; others may use what is pinned for them."""

    def __init__(self, files: Files, limit: int | None = None) -> None:
        self.files = files
        self._limit = limit or default_limit()
        self._idle: dict[Handle, None] = {}
        """Open and not pinned, the longest unused first."""
        self._open = 0

    def pin(self, handle: Handle, *, create: bool = False) -> int:
        """Open the file, if it is not open, and keep it open until `unpin`."""
        if handle.fd < 0:
            while self._open >= self._limit and self._idle:
                self._close(next(iter(self._idle)))
            handle.fd = self.files.open(handle.path, create=create)
            self._open += 1
        else:
            self._idle.pop(handle, None)
        handle.pins += 1
        return handle.fd

    def unpin(self, handle: Handle) -> None:
        """One `pin` is no longer needed."""
        handle.pins -= 1
        if handle.pins == 0 and handle.fd >= 0:
            self._idle[handle] = None
            if handle.removed or self._open > self._limit:
                self._close(handle)

    def remove(self, handle: Handle) -> None:
        """Close the file as soon as it is not pinned."""
        handle.removed = True
        if handle in self._idle:
            self._close(handle)

    def close(self) -> None:
        """Close every file that is not pinned."""
        for handle in list(self._idle):
            self._close(handle)

    def _close(self, handle: Handle) -> None:
        del self._idle[handle]
        fd, handle.fd = handle.fd, -1
        self._open -= 1
        try:
            self.files.close(fd)
        except OSError as error:  # nothing unsynced is ever closed here, so nothing is lost
            logger.warning("closing %s failed: %s", handle.path, error)
