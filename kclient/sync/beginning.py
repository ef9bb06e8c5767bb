"""The start of a blocking client, by its first call, while other threads may call it or close it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Self

from kclient.errors import ClosedError, IllegalStateError
from kclient.reentry import reentered
from kclient.sync.portal import Portal, get_portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class StartedByWith:
    """A client that a `with` block starts."""

    def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # interrupted, it may have started all the same
            self.close(0)
            raise
        return self


class Beginning:
    """Starts a client once, unless it is closed first.

    What starts it and what closes it meet in the event loop: once a start has `begun`, closing goes there too, and
    finds the client new, so that the start fails, or running.

    Args:
        client: What it is, for errors.
        start: Starts it, in the loop.
    """

    def __init__(self, client: str, start: Callable[[], Awaitable[None]]) -> None:
        self.portal: Portal | None = None
        """Where the client runs; None if it is not known to."""
        self._client = client
        self._start = start
        self._pid = os.getpid()
        self._starting = threading.RLock()
        self._amid = False
        """Whether a thread starts it."""
        self._deciding = threading.RLock()
        """Held for moments, never while waiting."""
        self._begun: Portal | None = None
        self._started = False
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    def running(self) -> Portal:
        """The portal; starts the client if it was not started.

        A start that is interrupted, such as by Ctrl-C, leaves the client for the next call to start, or to find
        running.

        Raises:
            ClosedError: The client was closed before or meanwhile.
            IllegalStateError: It was made before the process forked; or a signal handler came amid the start.
        """
        portal = self.portal
        if portal is not None:
            portal.check()
            return portal
        self.check_here()
        # also where another thread starts it: that needs the loop, which may wait for this thread
        get_portal().check_waiting()
        with self._starting:
            if self.portal is None:
                if self._amid:
                    raise reentered(f"the start of the {self._client}")
                self._amid = True
                try:
                    portal = self._begin()
                    portal.call(self._start_once)
                    self.portal = portal
                finally:
                    self._amid = False
            return self.portal

    def _begin(self) -> Portal:
        portal = get_portal()
        with self._deciding:
            if self._closed:
                raise ClosedError(f"The {self._client} was closed; make a new one")
            self._begun = portal
        return portal

    async def _start_once(self) -> None:
        async with self._one_at_a_time:  # an interrupted one may not have ended yet
            if not self._started:
                await self._start()
                self._started = True

    def begun(self) -> Portal:
        """The portal of a client that has begun to start, also while it is closed, to wait for."""
        portal = self._begun
        assert portal is not None
        portal.check_waiting()
        return portal

    def end(self) -> Portal | None:
        """The client closes: no start begins any more. The portal if one has begun, so that there is what to close.

        Raises:
            IllegalStateError: The caller may not wait for the loop, so nothing is closed.
        """
        with self._deciding:
            portal = self._begun
            if portal is not None:
                portal.check_waiting()
            self._closed = True
            return portal

    def check_here(self) -> None:
        """Raise in a forked child, before a lock is taken.

        Raises:
            IllegalStateError: It is one.
        """
        if self.elsewhere:
            raise orphaned(self._client)

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked child: the client, and perhaps its locks, are the parent's."""
        return self._pid != os.getpid()


def orphaned(client: str) -> IllegalStateError:
    """The client was made by the parent of a forked child."""
    return IllegalStateError(
        f"This {client} was made before the process forked, and its thread stayed in the parent: "
        f"make a new {client} in the child"
    )
