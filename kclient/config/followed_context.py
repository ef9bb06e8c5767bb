"""An `ssl.SSLContext` that is made anew when the files that it was made of have changed."""

from __future__ import annotations

import logging
import ssl
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from kclient.errors import KafkaError

__all__ = ["FollowedContext"]

logger: logging.Logger = logging.getLogger("kclient.config")

_Stamp: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""What tells that a file has changed; None for one that is not there, or is none: a pipe cannot be read again."""


class FollowedContext:
    """Certificates are renewed while clients run: connections that are made then show and trust the new ones.

    Files that cannot be used change nothing, and are told of each time that they change; so one that is just being
    written is read when it is whole. What is read from a pipe is not followed.

    Args:
        make: Makes the context; None without TLS.
        files: What it reads.

    Raises:
        KafkaError: What `make` raises the first time.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext | None], files: Sequence[str]) -> None:
        self._make = make
        self._files = files
        self._stamp: _Stamp = self._look()  # before they are read: a change amid that is seen next time
        self._context = make()
        self._followed = bool(files) and self._context is not None and None not in self._stamp
        self._again = False
        """Whether what failed last may succeed without a change: there were too many open files, say."""
        self._told: tuple[str, _Stamp] | None = None
        """Why the files cannot be used, as the log was told, and which."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context that was made last, whatever became of the files."""
        return self._context

    @property
    def changed(self) -> bool:
        """Whether `current` would read the files again, which may take some milliseconds."""
        return self._followed and (self._look() != self._stamp or self._again)

    def current(self) -> ssl.SSLContext | None:
        """The context for the next connection."""
        if self._followed and ((stamp := self._look()) != self._stamp or self._again):
            self._stamp = stamp
            self._renew()
        return self._context

    def renew(self) -> str | None:
        """Read the files again, changed or not.

        Returns:
            Why they cannot be used, so that the context stays; None if they can, or there are none.
        """
        if not self._files:
            return None
        self._stamp, self._told = self._look(), None
        self._renew()
        return None if self._told is None else self._told[0]

    def _renew(self) -> None:
        names = " and ".join(self._files)
        self._again = False
        missing = [path for path, stamp in zip(self._files, self._stamp, strict=True) if stamp is None]
        if missing:
            self._tell(names, f"{missing[0]} is missing, or is not a file")
            return
        try:
            self._context = self._make()
        except (KafkaError, OSError) as error:
            cause = error.__cause__ or error
            self._again = isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
            self._tell(names, str(error))
        else:
            self._told = None
            logger.info("%s changed: new connections use what it is now", names)

    def _tell(self, names: str, reason: str) -> None:
        # again for other files: who takes trust away has to learn that it has no effect, whatever was wrong before
        if (reason, self._stamp) != self._told:
            self._told = reason, self._stamp
            logger.warning("%s changed, but cannot be used; new connections use what it was before: %s", names, reason)

    def _look(self) -> _Stamp:
        return tuple(map(_stamp, self._files))


def _stamp(path: str) -> tuple[int, ...] | None:
    """When it was changed, its size and number. The second time cannot be set back, and tells of new rights, too."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
