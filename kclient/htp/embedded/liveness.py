"""Whether the disk of a broker answers: one that hangs must not hold up the event loop, and with it other brokers.

What is appended is written in the event loop: for a disk that answers this is faster by far than a thread. A disk
that hangs is mostly known before anything is written to it, since a sync is on its way then that does not come to its
end. Where other brokers would suffer, a disk that has not been heard of for a while is asked first, by a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import anyio
import anyio.lowlevel

from kclient.concurrency import LoopHandle

PATIENCE_S: Final = 1.0
"""So long a disk is trusted after it was heard of, and so long a sync may take."""


class DiskLiveness:
    """Made in the event loop of the store; `sync_begins` and `sync_ends` are the syncer's thread's.

    Args:
        prove: Returns when the disk has answered; called in a thread. None where there is no other broker.
    """

    __slots__ = ("_asking", "_over", "_post", "_prove", "until")

    def __init__(self, prove: Callable[[], object] | None) -> None:
        self._prove = prove
        self._post = LoopHandle().post
        self._asking = False
        self._over: anyio.Event | None = None
        self.until: float = self._trusted()
        """Nothing is written in the event loop after this, by the monotonic clock, unless the disk has answered."""

    def _trusted(self) -> float:
        return float("inf") if self._prove is None else time.monotonic() + PATIENCE_S

    def sync_begins(self) -> None:
        """A round of syncs begins."""
        self.until = time.monotonic() + PATIENCE_S

    def sync_ends(self) -> None:
        """It is over, whatever came of it."""
        self.until = self._trusted()

    def tell(self) -> None:
        """Something is over that may have been waited for: in the event loop, after `sync_ends`."""
        over, self._over = self._over, None
        if over is not None:
            over.set()

    async def answered(self) -> None:
        """Until it is worth looking again, if the disk is not trusted: whoever waits does."""
        await anyio.lowlevel.checkpoint()
        if time.monotonic() <= self.until:
            return
        over = self._over = self._over or anyio.Event()
        if self._prove is not None and not self._asking:
            self._asking = True
            # a daemon, and none of those that the broker has: it may hang for ever
            thread = threading.Thread(target=self._ask, name="kclient-htp-ask-disk", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started: then nobody can be spared anything
                self._asking, self.until = False, self._trusted()
                self.tell()
        await over.wait()

    def _ask(self) -> None:
        assert self._prove is not None
        try:
            self._prove()
        except OSError:
            pass  # an answer, too: whoever writes is told what is wrong
        finally:
            self._asking = False
            self.until = self._trusted()
            self._post(self.tell)
