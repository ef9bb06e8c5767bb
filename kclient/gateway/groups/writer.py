"""The one queue through which everything about groups reaches the manager.

Requests enter it in the order of arrival; while one commit is under way the next ones gather, and go together. So many
small commits cost one sync. A large write goes in parts, and between two of them small ones of other groups: what is
written for one group keeps its order, and nobody waits for another group's parts, but for the one that is under way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kclient.concurrency import Completion, Wakeup
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.error_codes import Role, code_of
from kclient.htp.errors import ConflictError
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Manager
    from kclient.memory_ledger import MemoryAccount
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

MAX_ROWS = 2_000
"""Rows that go into one commit at most: the store takes some ten milliseconds for them. A larger write goes in several,
in the order of its rows: if one of them fails those before it are stored."""
MAX_BYTES = 1 << 20
"""Bytes of keys and values that go into one commit, but for a row more: a group's name, in each key, may have 32 kB."""
_IN_STEPS: Final = 1 << 16
"""About how many bytes a row has that is made in steps."""
_WRITE: Final = 4_000
"""About how many bytes of memory a write takes beside its rows, with the request that waits for it."""

_NOTHING: Final[Mapping[str, int]] = {}

Row: TypeAlias = "bytes | Callable[[], Generator[None, None, bytes]] | None"
"""A new value, or what makes it in steps once it is to be stored; None deletes."""


class Parts(Protocol):
    """The rows of a write, made one by one when they go to the store."""

    few: int | None
    """How many there are at most; None where they go alone, whose number nobody knows or that are many."""
    length: int
    """About how many bytes their keys and values have."""

    def __iter__(self) -> Iterator[tuple[str, Row]]: ...

    def stored(self) -> Iterable[None]:
        """What was iterated over by now is in the store; gone through in slices."""

    async def failed(self, manager: Manager) -> None:
        """What was iterated over since could not be stored, or that it was is not known: before anything that follows.

        Args:
            manager: Tells what is there, if it does.
        """


Rows: TypeAlias = "Mapping[str, Row] | Parts"


class Claims(Protocol):
    """What says that this gateway coordinates a group, where several gateways serve a store."""

    def of(self, group_id: str) -> Mapping[str, int] | None:
        """Rows and their versions: whoever takes the group over changes one, and nothing is written for it here.

        None if it is known already that another gateway coordinates it.
        """
        ...

    async def renew(self) -> None:
        """One of the rows has another version: find out what they are now. Raises `HtpError` if the store fails."""
        ...


class _LostError(Exception):
    """Another gateway coordinates the groups of some writes.

    Args:
        writes: These.
    """

    def __init__(self, writes: list[Write]) -> None:
        super().__init__(", ".join(sorted({write.group_id[:300] for write in writes})))
        self.writes = writes


class _UnexpectedError(_LostError):
    """Rows have other versions than some writes expect."""


class Write(Completion[ErrorCode]):
    """Rows on their way to the manager; completes with NONE or with why they were not stored.

    Args:
        group_id: Whose they are: nothing of a group overtakes what was written for it before.
        rows: The new values by key; or what gives them one by one, and is told of each part that is stored.
        stored: Called in the event loop, in the order of the queue, when they are stored or have failed; what it
            returns is gone through in slices.
        memory: Where it counts until then.
        held: About how many bytes of memory its rows take, beside keys that are there.
        expected: Versions that rows must have, 0 for one that must not be there; else it completes with
            CONCURRENT_TRANSACTIONS. Of small writes only.
    """

    __slots__ = ("_held", "_memory", "_stored", "expected", "group_id", "length", "rows", "size", "steps")

    def __init__(
        self,
        group_id: str,
        rows: Rows,
        stored: Callable[[ErrorCode], Iterable[None]],
        memory: MemoryAccount,
        held: int,
        expected: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.expected: Mapping[str, int] = expected
        self.group_id: str = group_id
        self.rows: Rows = rows
        count: int | None
        if isinstance(rows, Mapping):
            count, length = len(rows), sum(map(len, rows))
            held += length
        else:
            count, length = rows.few, rows.length
        self.length: int = max(length, held)
        """About how many bytes its rows have."""
        self._memory = memory
        self._held = held + _WRITE
        memory.add(self._held)
        large = count is None or count > MAX_ROWS or (self.length > MAX_BYTES and count > 1)
        self.size: int | None = None if large else count
        """How many rows there are; None for a large write, which goes in parts."""
        self.steps: Iterator[tuple[str, Row]] = self.all()
        """The rows of a large write that have not gone to the store."""
        self._stored = stored

    def all(self) -> Iterator[tuple[str, Row]]:
        """Its rows."""
        return iter(self.rows.items() if isinstance(self.rows, Mapping) else self.rows)

    def finish(self, error: ErrorCode) -> Iterator[None]:
        """It is stored (NONE) or has failed: in steps."""
        try:
            if not error and self.size is not None and not isinstance(self.rows, Mapping):
                yield from self.rows.stored()  # a large write has told of its parts
        finally:
            try:
                yield from self._stored(error)
            finally:
                self._memory.add(-self._held)
                self.set_result(error)  # nobody may wait for ever, whatever becomes of the rest


class GroupWriter:
    """Stores rows one commit after the other.

    Args:
        manager: Where they are stored.
        lease: Under which.
        flow: In whose turns large rows are made.
        memory: Where what is on its way counts.
        claims: What else has to hold for each group; None where the lease alone has to.
    """

    def __init__(
        self, manager: Manager, lease: HeldLease, flow: Flow, memory: MemoryAccount, claims: Claims | None = None
    ) -> None:
        self._manager = manager
        self._lease = lease
        self._flow = flow
        self._memory = memory
        self._claims = claims
        self._queue: deque[Write] = deque()
        self._large: deque[Write] = deque()
        """Large writes, whose turn has come or that wait for one another: the first is under way."""
        self._behind: dict[str, deque[Write]] = {}
        """What waits for a large write of its group, by group."""
        self._wake = Wakeup()
        self._busy = False
        self._idle: Completion[None] | None = None
        self._closed = False

    def submit(
        self,
        group_id: str,
        rows: Rows,
        stored: Callable[[ErrorCode], Iterable[None]],
        *,
        held: int = 0,
        expected: Mapping[str, int] = _NOTHING,
    ) -> Write:
        """Enqueue rows of a group; returns at once. Nothing is refused: see `GroupMemory.admits_write`.

        Args:
            group_id: The group.
            rows: The rows.
            stored: Called when they are stored or have failed.
            held: About how many bytes of memory they take meanwhile, beside keys that are there.
            expected: Versions that rows must have: see `Write`.
        """
        write = Write(group_id, rows, stored, self._memory, held, expected)
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
                while self._queue or self._large:
                    self._busy = True
                    batch = self._take()
                    if batch:
                        await self._store(batch, self._commit(batch))
                    if self._large:
                        await self._advance(self._large.popleft())
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
        failed = [*self._large, *chain.from_iterable(self._behind.values()), *self._queue]  # as they would have gone
        self._large.clear()
        self._behind.clear()
        self._queue.clear()
        for write in failed:
            _exhaust(write.finish(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._settled()

    def _settled(self) -> None:
        self._busy = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def _take(self) -> list[Write]:
        """The small writes that go together; large ones, and what comes behind these, are put aside."""
        batch: list[Write] = []
        rows = length = 0
        for _ in range(min(len(self._queue), MAX_ROWS)):
            write = self._queue[0]
            behind = self._behind.get(write.group_id)
            if behind is not None:
                behind.append(write)
            elif (size := write.size) is None:
                self._behind[write.group_id] = deque()
                self._large.append(write)
            elif batch and (rows + size > MAX_ROWS or length + write.length > MAX_BYTES):
                break
            else:
                batch.append(write)
                rows += size
                length += write.length
            self._queue.popleft()
        return batch

    async def _advance(self, write: Write) -> None:
        """Store the next part of a large write; after the last what is behind it comes first."""
        if await self._store([write], self._commit_part(write)):
            self._queue.extendleft(reversed(self._behind.pop(write.group_id)))
        else:
            self._large.appendleft(write)

    async def _store(self, writes: list[Write], work: Awaitable[bool]) -> bool:
        """Store rows of writes, and finish these if that was all or the store has failed: whether they are."""
        error, ended = ErrorCode.COORDINATOR_NOT_AVAILABLE, True
        try:
            ended = await work
            error = ErrorCode.NONE
        except _LostError as lost:
            error = _told(lost)
        except KafkaError as failure:
            error = ErrorCode(code_of(failure, Role.GROUPS, told=True))
            logger.error("groups and offsets could not be stored: %s", failure)
            for write in writes:
                if not isinstance(write.rows, Mapping):
                    await write.rows.failed(self._manager)
        finally:
            if ended:
                await self._finish([write.finish(error) for write in writes])
        return ended

    async def _finish(self, writes: list[Iterator[None]]) -> None:
        pace = Pace(self._flow)
        with ExitStack() as stack:  # cancelled or not: whoever waits must hear of it
            for steps in reversed(writes):
                stack.callback(_exhaust, steps)
            for _ in chain.from_iterable(writes):
                if pace.over:
                    await pace.pause()

    async def _commit(self, batch: list[Write]) -> bool:
        """Make the rows of small writes and store them; without those of groups that another gateway has taken over."""
        while batch:
            try:
                rows = chain.from_iterable(write.all() for write in batch)
                await self._commit_rows(rows, batch, Pace(self._flow))
            except _LostError as lost:
                batch[:] = [write for write in batch if write not in lost.writes]
                error = _told(lost)
                await self._finish([write.finish(error) for write in lost.writes])
            else:
                break
        return True

    def _claimed(self, writes: list[Write]) -> dict[str, int]:
        """What rows have to have which versions so that these groups are coordinated here.

        Raises:
            _LostError: Some are not.
        """
        claims, found = self._claims, dict[str, int]()
        lost: list[Write] = []
        if claims is not None:
            for write in writes:
                claimed = claims.of(write.group_id)
                if claimed is None:
                    lost.append(write)
                else:
                    found.update(claimed)
        if lost:
            raise _LostError(lost)
        return found

    @staticmethod
    def _expected(writes: list[Write], claimed: dict[str, int]) -> dict[str, int]:
        """What these writes expect beside that. Raises `_UnexpectedError` for those that contradict others."""
        contrary: list[Write] = []
        for write in writes:
            if any(claimed.get(key, version) != version for key, version in write.expected.items()):
                contrary.append(write)
            else:
                claimed.update(write.expected)
        if contrary:
            raise _UnexpectedError(contrary)
        return claimed

    async def _commit_part(self, write: Write) -> bool:
        """Make rows of a large write and store them, a commit's worth; whether there are no more."""
        pace = Pace(self._flow)
        part = _Part(write.steps)
        await self._commit_rows(part, [write], pace)
        if not isinstance(write.rows, Mapping):
            await to_the_end(iter(write.rows.stored()), pace)  # cancelled or not: it is stored
        return part.last

    async def _commit_rows(self, rows: Iterable[tuple[str, Row]], writes: list[Write], pace: Pace) -> None:
        merged: dict[str, Row] = {}  # of several versions of one row the last alone is made
        for key, row in rows:
            if pace.over:
                await pace.pause()
            merged[key] = row
        made = {key: await self._made(row, pace) if callable(row) else row for key, row in merged.items()}
        while made:
            expected = self._expected(writes, self._claimed(writes))
            try:
                await self._manager.commit(made, expected, lease=self._lease.current)
            except ConflictError as conflict:
                unexpected = [write for write in writes if conflict.key in write.expected]
                if unexpected:
                    raise _UnexpectedError(unexpected) from conflict
                if self._claims is None or conflict.key not in expected:
                    raise
                await self._claims.renew()
                self._check_renewed(writes, conflict.key, expected[conflict.key])
            else:
                return

    def _check_renewed(self, writes: list[Write], key: str, version: int) -> None:
        """Raise `_LostError` for those whose claims are what they were when one of their rows had another version."""
        assert self._claims is not None
        lost = [write for write in writes if (self._claims.of(write.group_id) or {}).get(key) == version]
        if lost:
            raise _LostError(lost)

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


def _told(lost: _LostError) -> ErrorCode:
    if isinstance(lost, _UnexpectedError):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    logger.warning("another gateway coordinates %s", lost)
    return ErrorCode.NOT_COORDINATOR


async def to_the_end(steps: Iterator[None], pace: Pace) -> None:
    """Go through steps in slices; at once where this is cancelled."""
    with ExitStack() as stack:
        stack.callback(_exhaust, steps)
        for _ in steps:
            if pace.over:
                await pace.pause()


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


class _Part:
    """What one commit may take of the rows of a large write."""

    def __init__(self, rows: Iterator[tuple[str, Row]]) -> None:
        self._rows = rows
        self.last: bool = False
        """Whether there are no more."""

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        length = 0
        for count, (key, row) in enumerate(self._rows, 1):
            yield key, row
            length += len(key) + (_IN_STEPS if callable(row) else len(row or b""))
            if count >= MAX_ROWS or length >= MAX_BYTES:
                return
        self.last = True
