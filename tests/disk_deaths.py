"""A process that dies before the n-th change of the disk, simulated: the call raises what nothing catches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """The process is gone: nothing more is done to the disk."""


class DiskDeaths:
    """Called with a number, lets the process die before that change, or at none; tells how many came since.

    Args:
        monkeypatch: Puts it between.
        methods: Names of those of `Path` that change something.
        functions: An object and the name of its function, for each that changes something.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, methods: Iterable[str], functions: Iterable[tuple[Any, str]]
    ) -> None:
        self._done = 0
        self._limit: int | None = None
        for owner, name in (*((Path, name) for name in methods), *functions):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, original: Any) -> Any:
        def change(*arguments: Any, **named: Any) -> Any:
            if self._limit is not None and self._done >= self._limit:
                raise Killed
            self._done += 1
            return original(*arguments, **named)

        return change

    def __call__(self, at: int | None) -> int:
        found, self._done, self._limit = self._done, 0, at
        return found
