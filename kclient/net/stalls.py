"""Tells clients that stall from clients that are slow, while others wait for the memory that is kept for them.

A client has `timeout` seconds of patience. They run down while memory is kept until it sends or reads on, or while the
server waits for the rest of a request of it, and what it moves gives some back: who moves *enough* in the time of the
patience keeps all of it. `_MUCH` bytes are enough, or a quarter of what is kept, if that is less; but where so much is
kept that it would take longer than `_TIMES` times the patience to move at that pace, it has to be moved in that time.
So who wants to keep all the memory there is has to move all of it once in that time.

When no patience is left, the stream is asked: a client whose bytes have come and are not read has no part in it, and
waits on. Since it has shown only that it can fill a buffer, its patience is short when it is read again: thousands of
them would keep all others waiting in turn. It has all of it again once it has moved enough beyond what was in the
buffers. Whoever else has none left stalls.

It knows no clock, and looks at connections only when it is told to.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakKeyDictionary

from kclient.net.memory_budget import Share

__all__ = ["StallWatch", "Watched"]

_MUCH: Final = 256 * 1024
"""Bytes that are enough to move in the time of the patience, unless much is kept."""
_PART: Final = 4
"""Less is enough where little is kept: one part of it in so many."""
_TIMES: Final = 6
"""In so many times the patience all of it has to move, however much is kept: a minute, while Java's clients give up
after half of that (`request.timeout.ms`)."""
_LEAST: Final = 0.2
"""Of the patience, what there is at first, also where the client has been silent for long, and what one has that could
not be read for so long that nothing of it was left."""


class Watched(Protocol):
    """What is asked of a connection; see `ServerConnection`."""

    @property
    def share(self) -> Share: ...

    @property
    def moved(self) -> int: ...

    @property
    def stuck(self) -> int: ...

    @property
    def announced(self) -> tuple[float, int] | None: ...

    @property
    def waits_to_be_read(self) -> bool: ...


class _PatienceLeft:
    """What is left for one connection."""

    __slots__ = ("at", "emptied", "full", "left", "most", "moved")

    def __init__(self, most: float, at: float, moved: int) -> None:
        self.most = most
        """Seconds."""
        self.left = most
        """Of these, what is left."""
        self.full = at
        """When all of it was left."""
        self.at = at
        """When it was last reckoned."""
        self.moved = moved
        """Bytes that had moved then."""
        self.emptied: int | None = None
        """While it is short: the bytes that had moved when the buffers had been read; None before that."""

    def refill(self, most: float, now: float) -> None:
        self.left = self.most = most
        self.full = now
        self.emptied = None


class StallWatch:
    """Remembers what patience is left for whom.

    Args:
        timeout: The patience in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._short = timeout * _LEAST
        self._watched: WeakKeyDictionary[Watched, _PatienceLeft] = WeakKeyDictionary()

    def stalls_for(self, connection: Watched, now: float) -> float | None:
        """The seconds for which a connection has moved too little, if it has no patience left; else None.

        Args:
            connection: It is looked at.
            now: Seconds on the clock of `Watched.announced`.
        """
        kept = connection.stuck
        if not kept:
            self._watched.pop(connection, None)
            return None
        patience = self._watched.get(connection)
        if patience is None:
            patience = self._watched[connection] = self._begin(connection, kept, now)
        else:
            # where nothing was looked at for long, it was not the client that did nothing
            patience.at = max(patience.at, now - self._short)
            self._reckon(patience, kept, connection.moved, now)
        if patience.left <= 0 and connection.waits_to_be_read:
            patience.refill(self._short, now)
        return now - patience.full if patience.left <= 0 else None

    def _begin(self, connection: Watched, kept: int, now: float) -> _PatienceLeft:
        """A connection is looked at for the first time: its request may have begun to come long ago."""
        at, moved = connection.announced or (now, connection.moved)
        patience = _PatienceLeft(self._timeout, at, moved)
        self._reckon(patience, kept, connection.moved, now)
        patience.left = max(patience.left, self._short)
        return patience

    def _reckon(self, patience: _PatienceLeft, kept: int, moved: int, now: float) -> None:
        enough = max(min(_MUCH, kept // _PART), kept // _TIMES, 1)
        given = (moved - patience.moved) / enough * self._timeout
        left = max(patience.left, 0.0) + given - (now - patience.at)
        if left >= patience.most:
            left, patience.full = patience.most, now
        if patience.most < self._timeout and moved > patience.moved:
            if patience.emptied is None:
                patience.emptied = moved
            elif moved - patience.emptied >= enough:
                patience.refill(self._timeout, now)
                left = patience.left
        patience.left, patience.at, patience.moved = left, now, moved
