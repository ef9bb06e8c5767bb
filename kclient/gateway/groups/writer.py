"""The one queue through which everything about groups reaches the manager.

Requests enter it in the order of arrival; while one commit is under way the next ones gather, and go together. So
commits of the same partition keep their order, and many small commits cost one sync.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from kclient.concurrency import Completion, Wakeup
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.error_codes import Role, code_of
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.groups.parts import Parts

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

MAX_ROWS = 5_000
"""Rows that go into one commit at most: the store takes some ten milliseconds for them. A larger write goes in several,
in the order of its rows: if one of them fails those before it are stored."""


Row: TypeAlias = "bytes | Callable[[], Generator[None, None, bytes]] | None"
"""A new value, or what makes it in steps once it is to be stored; None deletes."""
Rows: TypeAlias = "Mapping[str, Row] | Parts"


class Write(Completion[ErrorCode]):
    """Rows on their way to the manager; completes with NONE or with why they were not stored.

    Args:
        rows: The new values by key; where they are very many, what gives them one by one, and is told of each part that
            is stored.
        stored: Called in the event loop, in the order of the queue, when they are stored or have failed; what it
            returns is gone through in slices.
    """

    __slots__ = ("_stored", "rows")

    def __init__(self, rows: Rows, stored: Callable[[ErrorCode], Iterable[None]]) -> None:
        super().__init__()
        self.rows: Rows = rows
        self._stored = stored

    @property
    def size(self) -> int | None:
        """How many rows there are; None where they are made: then it goes alone."""
        return len(self.rows) if isinstance(self.rows, Mapping) else None

    def finish(self, error: ErrorCode) -> Iterator[None]:
        """It is stored (NONE) or has failed: in steps."""
        try:
            yield from self._stored(error)
        finally:
            self.set_result(error)  # nobody may wait for ever, whatever becomes of the rest


class Writer:
    """Stores rows one commit after the other."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._flow = core.queue.flow()
        self._queue: deque[Write] = deque()
        self._wake = Wakeup()
        self._busy = False
        self._idle: Completion[None] | None = None
        self._closed = False

    def submit(self, rows: Rows, stored: Callable[[ErrorCode], Iterable[None]]) -> Write:
        """Enqueue rows; returns at once."""
        write = Write(rows, stored)
        if self._closed:
            _exhaust(write.finish(ErrorCode.COORDINATOR_NOT_AVAILABLE))
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
            _exhaust(self._queue.popleft().finish(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._settled()

    def _settled(self) -> None:
        self._busy = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def _take(self) -> list[Write]:
        """The writes that go together."""
        batch = [self._queue.popleft()]
        rows = batch[0].size
        while self._queue and rows is not None:
            size = self._queue[0].size
            if size is None or rows + size > MAX_ROWS:
                break
            batch.append(self._queue.popleft())
            rows += size
        return batch

    async def _store(self, batch: list[Write]) -> None:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            await self._commit(batch)
            error = ErrorCode.NONE
        except KafkaError as failure:
            error = ErrorCode(code_of(failure, Role.GROUPS, told=True))
            logger.error("groups and offsets could not be stored: %s", failure)
        finally:
            await self._finish([write.finish(error) for write in batch])

    async def _finish(self, writes: list[Iterator[None]]) -> None:
        pace = Pace(self._flow)
        with ExitStack() as stack:  # cancelled or not: whoever waits must hear of it
            for steps in reversed(writes):
                stack.callback(_exhaust, steps)
            for _ in chain.from_iterable(writes):
                if pace.over:
                    await pace.pause()

    async def _commit(self, batch: list[Write]) -> None:
        """Make the rows and store them, a commit's worth at a time."""
        parts = batch[0].rows if not isinstance(batch[0].rows, Mapping) else None  # then it is alone
        pace = Pace(self._flow)
        made: dict[str, bytes | None] = {}
        for key, row in _merged(batch) if parts is None else parts:
            if pace.over:
                await pace.pause()
            made[key] = await self._made(row, pace) if callable(row) else row
            if len(made) == MAX_ROWS:
                await self._store_part(made, parts, pace)
                made = {}
        if made:
            await self._store_part(made, parts, pace)

    async def _store_part(self, made: Mapping[str, bytes | None], parts: Parts | None, pace: Pace) -> None:
        await self._core.manager.commit(made, lease=self._core.lease)
        if parts is None:
            return
        with ExitStack() as stack:
            steps = iter(parts.stored())
            stack.callback(_exhaust, steps)  # cancelled or not: it is stored
            for _ in steps:
                if pace.over:
                    await pace.pause()

    @staticmethod
    async def _made(row: Callable[[], Generator[None, None, bytes]], pace: Pace) -> bytes:
        steps = row()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                made: bytes = end.value
                return made
            if pace.over:
                await pace.pause()


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _merged(batch: list[Write]) -> Iterable[tuple[str, Row]]:
    """The rows of writes that go together; of several versions of one, the last alone."""
    merged: dict[str, Row] = {}
    for write in batch:
        assert isinstance(write.rows, Mapping)
        merged.update(write.rows)
    return merged.items()
