"""The life of a partition, from its first use to its end: who opens it, who waits for that, and when it is tried again.

What is done to open it, and everything that is done with it then, is `Partition`'s.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import anyio
import anyio.lowlevel

from kclient.errors import KafkaError, KafkaStorageError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kclient.gateway.append import Append
from kclient.gateway.partition_states import PARTITION_TABLE, PartitionEvent, PartitionPhase
from kclient.htp.errors import HtpError
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.log import PartitionLog
    from kclient.gateway.log_transactions import Verification
    from kclient.gateway.opening import Openings
    from kclient.gateway.waiters import Waiter
    from kclient.records import BatchHeader
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_REFUSAL_S: Final = 1.0
"""Seconds until a partition that could not be opened is tried again; more often it is not opened anew, either."""
_SOON_S: Final = 0.5
"""Seconds after the beginning of opening a partition in which it is waited for: others wait with whoever does."""
_TURN_S: Final = 0.002
"""Seconds of one turn of the loop for appends that have waited for the partition."""
_BEING_OPENED: Final = frozenset({PartitionPhase.OPENING, PartitionPhase.REOPENING})
_NOT_YET_OPEN: Final = _BEING_OPENED | {PartitionPhase.RESUMING}


class LifeSurroundings(Protocol):
    """What the life of a partition needs of what all partitions of a gateway work with."""

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    @property
    def openings(self) -> Openings:
        """Opens partitions, so many at a time."""
        ...

    @property
    def spawn(self) -> Callable[..., object]:
        """Starts a task of the gateway."""
        ...


AroundT = TypeVar("AroundT", bound=LifeSurroundings)


class _Queued(NamedTuple):
    """A batch that waits until it can be appended."""

    batch: Buffer
    header: BatchHeader
    append: Append
    verified: Verification | None


def moved(partition: object) -> NotLeaderOrFollowerError:
    """What whoever wants something of a partition is told that another gateway leads now."""
    return NotLeaderOrFollowerError(f"another gateway leads {partition} now")


class PartitionLife(ABC, Generic[AroundT]):
    """A partition, as far as it has to be opened before it can be used.

    Args:
        name: Of its topic.
        index: Its number.
        log: As far as it is known.
        around: What it works with.
    """

    __slots__ = (
        "_around", "_begun", "_moved", "_opened", "_opening", "_queue", "_refusal", "index", "log", "name",
        "state", "waiters",
    )  # fmt: skip

    def __init__(self, name: str, index: int, log: PartitionLog, around: AroundT) -> None:
        self.name: str = name
        """Of its topic."""
        self.index: int = index
        self.log: PartitionLog = log
        self.state: PartitionPhase = PartitionPhase.CLOSED
        self.waiters: set[Waiter] = set()
        self._around: AroundT = around
        self._opened: anyio.Event | None = None
        """Set when the last try to open it is over."""
        self._opening: anyio.Event | None = None
        """Set when what is done to open it is over, also where it has gone meanwhile; None while nothing is."""
        self._moved = False
        """Whether another gateway leads it."""
        self._begun = 0.0
        """When that began."""
        self._queue: deque[_Queued] = deque()
        self._refusal: tuple[float, str] = 0.0, ""
        """Until when it is not opened again, since that has failed or was done just now, and why."""

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"

    @abstractmethod
    async def _recover(self) -> PartitionLog:
        """Open it for the first time, however far that went before; its log."""

    @abstractmethod
    async def _find_out(self) -> None:
        """Open it anew, and find out what is stored; it goes on where it was broken off."""

    @abstractmethod
    def _append(
        self, batch: Buffer, header: BatchHeader, queued: Append | None = None, verified: Verification | None = None
    ) -> Append:
        """Append a batch to the open partition; `queued` is what somebody waits for already."""

    def _move(self, event: PartitionEvent) -> None:
        self.state = next_state(PARTITION_TABLE, self.state, event, self)

    def open_soon(self) -> None:
        """Begin to open the partition, unless that has begun."""
        if self.state is PartitionPhase.CLOSED:
            self._begin(PartitionEvent.USED)

    def _begin(self, event: PartitionEvent) -> None:
        self._move(event)
        self._opened = anyio.Event()
        self._begun = self._around.clock.now()
        self._around.openings.add(self)

    async def ready(self) -> None:
        """Until the partition is open, but not for a store that hangs.

        Raises:
            KafkaStorageError: It cannot be opened, or opening it takes longer than half a second.
            UnknownTopicOrPartitionError: It has gone.
        """
        self.open_soon()
        await self.soon_opened()
        if self.state is PartitionPhase.OPEN:
            return
        self._check_here()
        if self.being_opened:
            raise KafkaStorageError(f"{self} is still being opened")
        raise KafkaStorageError(f"{self} cannot be opened: see the gateway's log")

    @property
    def being_opened(self) -> bool:
        """Whether it is being opened, or opened anew: when that is over, its waiters are woken."""
        return self.state in _NOT_YET_OPEN

    async def opened(self) -> None:
        """Until opening has succeeded or failed."""
        if self._opened is not None:
            await self._opened.wait()

    async def soon_opened(self) -> None:
        """The same, but no longer than half a second from its beginning on."""
        if self.being_opened and (left := self._begun + _SOON_S - self._around.clock.now()) > 0:
            with anyio.move_on_after(left):
                await self.opened()

    def wake(self) -> None:
        """Have waiting fetches look again."""
        for waiter in list(self.waiters):
            waiter.wake()

    def _check_here(self) -> None:
        if self.state is PartitionPhase.GONE or self.state is PartitionPhase.LEAVING:
            raise self.gone()

    def gone(self) -> KafkaError:
        """What whoever wants something of it is told, now that it is not here any more."""
        return moved(self) if self._moved else UnknownTopicOrPartitionError(f"{self} is gone")

    def _wait_for(self, batch: Buffer, header: BatchHeader, verified: Verification | None) -> Append:
        """Have a batch wait until it can be appended, behind those that do. Raises if it cannot for a while."""
        if self.state is PartitionPhase.GONE:
            raise NotLeaderOrFollowerError(f"{self} is gone")
        if self.state is PartitionPhase.LEAVING:
            raise self.gone()
        if self.state is PartitionPhase.STALLED:
            self.log.refuse(header, self._around.clock.wall_ms())
            raise KafkaStorageError(self._refusal[1])
        append = Append()
        if verified is not None:
            verified.waiting += 1  # whoever has asked for it gives it back meanwhile
        self._queue.append(_Queued(batch, header, append, verified))
        self.open_soon()
        return append

    async def open(self) -> None:
        """Open the partition, or open it anew, when its turn has come."""
        opened = self._opened
        if self.state not in _BEING_OPENED or opened is None:  # it has gone meanwhile
            return
        over = self._opening = anyio.Event()
        try:
            if await self._try_to_open():
                self._move(PartitionEvent.READ)
                await self._take_queued()
            elif self.state is not PartitionPhase.GONE:
                self._move(PartitionEvent.FAILED)
                if self.state is PartitionPhase.STALLED:
                    self._try_again_later()
        except BaseException:  # cancelled
            if self.state in _BEING_OPENED:
                self._move(PartitionEvent.FAILED)
            raise
        finally:
            opened.set()
            over.set()
            if self._opening is over:
                self._opening = None
        if self.state in (PartitionPhase.CLOSED, PartitionPhase.STALLED):
            self._refuse_queued()
        self.wake()

    async def _try_to_open(self) -> bool:
        anew = self.state is PartitionPhase.REOPENING
        until, told = self._refusal
        if not anew and self._around.clock.now() < until:  # clients ask ten times a second: one try a second will do
            return False
        try:
            if anew:
                await self._find_out()
            else:
                self.log = await self._recover()
        except (KafkaError, ValueError, OSError) as failure:
            reason = f"{self} cannot be opened{' anew' if anew else ''}: {failure}"
            if self.state is not PartitionPhase.GONE and not (anew and reason == told):  # it is tried every second
                logger.error("%s", reason, exc_info=not isinstance(failure, HtpError))
            self._refusal = self._around.clock.now() + _REFUSAL_S, reason
            return False
        return True

    async def _take_queued(self) -> None:
        """Append what has come before the partition was open; what comes meanwhile follows it."""
        opened = self._opened
        until = time.perf_counter() + _TURN_S
        # what is appended may end this opening
        while (going_on := self.state is PartitionPhase.RESUMING and self._opened is opened) and self._queue:
            batch, header, append, verified = self._queue.popleft()
            try:
                self._append(batch, header, append, verified)
            except KafkaError as error:
                append.fail(error)
                append.tell()
            if verified is not None:
                self.log.transactions.verified(verified)
            if time.perf_counter() >= until:
                await anyio.lowlevel.checkpoint()
                until = time.perf_counter() + _TURN_S
        if going_on:
            self._move(PartitionEvent.CAUGHT_UP)

    def _refuse_queued(self) -> None:
        """It could not be opened."""
        now_ms = self._around.clock.wall_ms()
        for each in self._queue:
            self.log.refuse(each.header, now_ms)
        self._fail_queued(KafkaStorageError(self._refusal[1]))

    def _fail_queued(self, error: KafkaError) -> None:
        queued, self._queue = self._queue, deque()
        for _, _, append, verified in queued:
            if verified is not None:
                self.log.transactions.verified(verified)
            append.fail(error)
            append.tell()

    # An outcome that is not known

    def _stall(self, reason: str) -> None:
        """Append nothing before it was opened anew: at once, unless that was done just now."""
        until, _ = self._refusal
        self._refusal = until, reason
        soon = self.state is PartitionPhase.OPEN and self._around.clock.now() >= until
        self._move(PartitionEvent.OUTCOME_UNKNOWN)
        if soon:
            self._begin_anew()
        else:
            self._try_again_later()

    def _try_again_later(self) -> None:
        self._around.spawn(self._try_again, name=f"open {self} anew")

    async def _try_again(self) -> None:
        await anyio.sleep(max(self._refusal[0] - self._around.clock.now(), 0.0))
        if self.state is PartitionPhase.STALLED:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._refusal = self._around.clock.now() + _REFUSAL_S, self._refusal[1]
        self._begin(PartitionEvent.TRIED_AGAIN)

    def _end_life(self, error: KafkaError) -> None:
        """It is used no more: whoever waits for it is told."""
        self._move(PartitionEvent.ENDED)
        if self._opened is not None:
            self._opened.set()
        self._fail_queued(error)
