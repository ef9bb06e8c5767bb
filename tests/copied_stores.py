"""Data directories that are filled once and copied for each test: a copy takes a hundredth of the time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Awaitable, Callable
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
