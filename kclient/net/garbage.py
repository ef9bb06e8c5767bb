"""Makes full garbage collections rare while large requests are in work.

A large request is hundreds of thousands of objects, none of them garbage. So many new ones make the interpreter look at
all objects there are, again and again, a tenth of a second each time in which nothing else happens. The young
generations, which hold what is soon garbage, are collected as always.
"""

from __future__ import annotations

import gc
import time
from types import TracebackType
from typing import Any, Final

__all__ = ["LARGE", "HoldOff"]

LARGE: Final = 1 << 20
"""Bytes of objects that are worth it."""
_APART: Final = 10.0
"""Seconds between two full collections at least."""
_SHARE: Final = 0.001
"""Of the time that full collections take at most: many objects that stay make one long, and then they are rarer."""
_PATIENCE: Final = 600.0
"""Seconds after which there is a full collection though a large request is in work: clients that always have one must
not make garbage stay."""
_NEVER: Final = 1 << 30


class _Collector:
    """The process's collector: how often it may look at everything.

    It is asked after each collection of the middle generation. What a large request leaves behind still makes the
    interpreter want a full one, so they are kept apart for some time after its end too. Where one large request
    follows another there would never be a good moment: then the one is taken in which none is in work.
    """

    def __init__(self) -> None:
        self._holders = 0
        self._usual = 0
        """The threshold of full collections, while they are held off."""
        self._last = float("-inf")
        """When there was a full one."""
        self._began = 0.0
        """When the one that runs began."""
        self._apart = _APART

    def begin(self) -> None:
        self._holders += 1
        if self._holders == 1:
            if self._told not in gc.callbacks:
                self._last = time.monotonic()
                self._apart = _APART
                gc.callbacks.append(self._told)
            self._hold_off()

    def end(self) -> None:
        self.forget()
        if not self._holders and self._is_due():
            gc.collect()

    def forget(self) -> None:
        """One has ended where nothing may be collected: the next collection of the middle generation sees to it."""
        self._holders -= 1

    def _is_due(self) -> bool:
        """Whether there would have been a full collection, and the last one is long enough ago."""
        return gc.get_count()[2] > self._usual and time.monotonic() - self._last >= self._apart

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the interpreter before and after each collection."""
        generation = info["generation"]
        if phase != "stop":
            if generation == 2:
                self._began = time.monotonic()
            return
        if not generation:
            return
        now = time.monotonic()
        if generation == 2:
            self._last = now
            self._apart = max(_APART, (now - self._began) / _SHARE)
            if self._holders:
                self._hold_off()
            elif self._told in gc.callbacks:
                gc.callbacks.remove(self._told)
                self._allow()  # the collection may have been asked for by hand
        elif now - self._last >= (_PATIENCE if self._holders else self._apart):
            self._allow()

    def _hold_off(self) -> None:
        young, middle, old = gc.get_threshold()
        if old != _NEVER:
            self._usual = old
            gc.set_threshold(young, middle, _NEVER)

    def _allow(self) -> None:
        young, middle, old = gc.get_threshold()
        if old == _NEVER:
            gc.set_threshold(young, middle, self._usual)


_collector: Final = _Collector()


class HoldOff:
    """Makes full collections rare from `begin` to some seconds after `end`; may be used again, also by `with`.

    One that is given up before its end, as with the jobs of a loop that was closed, ends by itself.
    """

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active: bool = False

    def begin(self) -> None:
        """From now on, unless it is so already."""
        if not self.active:
            self.active = True
            _collector.begin()

    def end(self) -> None:
        """No longer."""
        if self.active:
            self.active = False
            _collector.end()

    def __del__(self) -> None:
        if self.active:
            _collector.forget()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
