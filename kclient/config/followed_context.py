"""An `ssl.SSLContext` that is made anew when the files that it was made of have changed."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from kclient.errors import KafkaError

__all__ = ["FollowedContext"]

logger: logging.Logger = logging.getLogger("kclient.config")

_Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""When each file was changed, its size and its number; None for one that is not there."""


class FollowedContext:
    """Certificates are renewed while clients run: connections that are made then show and trust the new ones.

    Files that cannot be used change nothing, and are told of once; so one that is just being written is read when
    it is whole.

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

    def current(self) -> ssl.SSLContext | None:
        """The context for the next connection."""
        if self._files and self._context is not None and (stamp := self._look()) != self._stamp:
            self._stamp = stamp
            names = " and ".join(self._files)
            try:
                self._context = self._make()
            except KafkaError as error:
                logger.warning(
                    "%s changed, but cannot be used; new connections use what it was before: %s", names, error
                )
            else:
                logger.info("%s changed: new connections use what it is now", names)
        return self._context

    def _look(self) -> _Stamp:
        return tuple(map(_stamp, self._files))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
