"""The one queue through which everything about groups reaches the manager.

Requests enter it in the order of arrival; while one commit is under way the next ones gather, and go together. So
commits of the same partition keep their order, and many small commits cost one sync.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kclient.concurrency import Completion, Wakeup
from kclient.errors import ErrorCode, KafkaError
from kclient.htp.errors import FencedError

if TYPE_CHECKING:
    from kclient.gateway.core import Core

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

MAX_ROWS = 10_000
"""Rows that go into one commit at most (a single larger write still goes whole)."""


class Write(Completion[ErrorCode]):
    """Rows on their way to the manager; completes with NONE or with why they were not stored.

    Args:
        rows: The new values by key; None deletes.
        stored: Called in the event loop, in the order of the queue, when they are stored or have failed.
    """

    __slots__ = ("_stored", "rows")

    def __init__(self, rows: Mapping[str, bytes | None], stored: Callable[[ErrorCode], object]) -> None:
        super().__init__()
        self.rows: Mapping[str, bytes | None] = rows
        self._stored = stored

    def finish(self, error: ErrorCode) -> None:
        """It is stored (NONE) or has failed."""
        try:
            self._stored(error)
        finally:
            self.set_result(error)  # nobody may wait for ever, whatever becomes of the rest


class Writer:
    """Stores rows one commit after the other."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._queue: deque[Write] = deque()
        self._wake = Wakeup()
        self._busy = False
        self._idle: Completion[None] | None = None
        self._closed = False

    def submit(self, rows: Mapping[str, bytes | None], stored: Callable[[ErrorCode], object]) -> Write:
        """Enqueue rows; returns at once."""
        write = Write(rows, stored)
        if self._closed:
            write.finish(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return write
        self._queue.append(write)
        self._wake.set()
        return write

    async def run(self) -> None:
        """Store what comes, for ever; a task of the gateway."""
        try:
            while True:
                while self._queue:
                    self._busy = True
                    await self._store(self._take())
                self._settled()
                await self._wake.wait()
        finally:
            self.fail_all()

    async def drain(self) -> None:
        """Wait until everything that was submitted is stored or has failed."""
        while self._queue or self._busy:
            self._idle = self._idle or Completion()
            await self._idle.wait()

    def fail_all(self) -> None:
        """Take nothing any more; what is in the queue has failed."""
        self._closed = True
        while self._queue:
            self._queue.popleft().finish(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._settled()

    def _settled(self) -> None:
        self._busy = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def _take(self) -> list[Write]:
        """The writes that go together."""
        batch = [self._queue.popleft()]
        rows = len(batch[0].rows)
        while self._queue and rows + len(self._queue[0].rows) <= MAX_ROWS:
            batch.append(self._queue.popleft())
            rows += len(batch[-1].rows)
        return batch

    async def _store(self, batch: list[Write]) -> None:
        rows: dict[str, bytes | None] = {}
        for write in batch:
            rows.update(write.rows)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            if rows:
                await self._core.manager.commit(rows, lease=self._core.lease)
            error = ErrorCode.NONE
        except FencedError:
            # another gateway has taken over: clients have to look their coordinator up again
            error = ErrorCode.NOT_COORDINATOR
            logger.warning("the group store refused a write: another gateway holds the lease")
        except KafkaError as failure:
            logger.error("groups and offsets could not be stored: %s", failure)
        finally:
            # cancelled or not: whoever waits must hear of it
            with ExitStack() as stack:
                for write in reversed(batch):
                    stack.callback(write.finish, error)
