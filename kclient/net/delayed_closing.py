"""Connections that are not served, and closed a while later, so that who tries again at once is not told at once."""

from __future__ import annotations

import heapq
import itertools
import socket
from typing import Final

import anyio

from kclient.concurrency import Supervisor, Timer
from kclient.net.connection_limits import Slot

__all__ = ["DelayedClosing"]

_MOST: Final = 1000
"""Sockets that are kept; of more the one is closed whose time is over first."""


class DelayedClosing:
    """The sockets that are to be closed.

    Args:
        supervisor: Runs the timer.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, socket.socket, Slot]] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sock: socket.socket, slot: Slot, seconds: float) -> None:
        """Close a socket after so many seconds; until then it counts as a connection."""
        heapq.heappush(self._waiting, (anyio.current_time() + seconds, next(self._order), sock, slot))
        if len(self._waiting) > _MOST:
            self._close_first()
        self._set()

    def close(self) -> None:
        """Close all of them now."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._close_first()

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited; the connections stay the parent's."""
        for _, _, sock, _ in self._waiting:
            sock.close()

    def _set(self) -> None:
        if not self._waiting:
            return
        if self._timer is None:
            self._timer = Timer(self._supervisor, self._close_due, name="close connections")
        if self._timer.when != self._waiting[0][0]:
            self._timer.set(self._waiting[0][0])

    def _close_due(self) -> None:
        now = anyio.current_time()
        while self._waiting and self._waiting[0][0] <= now:
            self._close_first()
        self._set()

    def _close_first(self) -> None:
        _, _, sock, slot = heapq.heappop(self._waiting)
        sock.close()
        slot.end()
