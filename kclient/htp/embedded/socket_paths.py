"""Paths of Unix sockets, which the systems allow about a hundred bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LONGEST: Final = 100
"""Bytes; the systems' limits are 104 and 108, with the closing zero."""


@contextmanager
def socket_path(directory: str, name: str) -> Iterator[str]:
    """A path of a socket in a directory that is short enough for the system, where there is such.

    Raises:
        OSError: The directory cannot be opened.
    """
    path = f"{directory}/{name}"
    if len(os.fsencode(path)) <= _LONGEST or not sys.platform.startswith("linux"):
        yield path
        return
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)
