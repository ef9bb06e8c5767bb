"""Copies of data directories: filled once and copied for each test, which takes a hundredth of the time; or as a kill
would leave them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

_filled: dict[Callable[[str], Awaitable[None]], Path] = {}
"""By the function that filled it; they go when the process ends."""


async def copy_filled(url: str, fill: Callable[[str], Awaitable[None]]) -> None:
    """Have a store hold what a function puts into an empty one; an embedded one is a copy, but for the first.

    Args:
        url: Of the store, which nobody has opened.
        fill: Opens the store of a URL and fills it, always alike.
    """
    scheme, _, path = url.partition(":")
    if scheme != "embedded":
        await fill(url)
        return
    if fill not in _filled:
        folder = tempfile.mkdtemp(prefix="kclient-filled-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        await fill(f"embedded:{folder}/data")
        _filled[fill] = Path(folder, "data")
    shutil.copytree(_filled[fill], path, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)


def copy_as_killed(data: Path, copy: Path) -> None:
    """Copy a directory that is in use, as if its process were killed now.

    What is renamed or removed meanwhile, such as an index that is being written, may be missing.

    Args:
        data: The directory.
        copy: Where to; it is not there.
    """

    def unless_gone(source: str, target: str) -> str:
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)
        return target

    ignored = shutil.ignore_patterns("*-shm", "*.sock")
    shutil.copytree(data, copy, ignore=ignored, copy_function=unless_gone)
