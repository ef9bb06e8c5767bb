"""The face of a consumer of either kind in blocking code: its life, and the calls that wait inside `poll`."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kclient.arguments import check_choice
from kclient.cluster import leaves_in_order
from kclient.concurrency import ThreadSignal, drive, stands_in
from kclient.consumer.actions import Action, Await, Call, Wait
from kclient.consumer.face_base import CLOSE_TIMEOUT, LONG, FaceBase, close_timeout, deadline_of
from kclient.errors import IllegalStateError
from kclient.sync.beginning import Beginning, StartedByWith, orphaned

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType
    from uuid import UUID

    from kclient.consumer.actions import Script
    from kclient.records import ConsumerRecord
    from kclient.sync.portal import Portal

T = TypeVar("T")

_SLICE = 1.0
"""Seconds after which a wait looks whether the loop's thread is still alive."""


class SyncFace(StartedByWith, FaceBase):
    """What a consumer does in blocking code, whatever group it is a member of."""

    def _claim_polls(self) -> None:
        """Have one thread poll at a time, and wait for records in that thread."""
        self._claims: dict[str, _Claim] = {}
        """That of the poll which is under way, if there is one."""
        self._stealing = threading.RLock()
        """Held for moments, while a claim is taken away that an interrupt has left behind."""
        self._broken_off = False
        """Whether a poll raised something, and it is not yet seen to what that leaves."""
        self._ready = ThreadSignal()

    def _wait_here(self) -> None:
        """Wait for records, and for what else there is to do, in the thread that polls."""
        self._readiness.signal = self._ready.set
        self._beginning = Beginning("consumer", self._core.start)

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the background tasks; `with` and the first call do it. It does not wait for a broker."""
        self._running()

    def _running(self) -> Portal:
        """The portal; starts the consumer if it was not started."""
        if self._beginning.portal is None:
            _open_consumers.add(self)
        return self._beginning.running()

    def _check(self) -> None:
        self._running()
        super()._check()

    def _check_here(self) -> None:
        if not self._core.life.is_ours:
            raise orphaned("consumer")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(CLOSE_TIMEOUT if leaves_in_order(error) else 0)

    def _end(self, timeout: float | None, leave_group: bool | None = None) -> None:
        """Close within a time, or give up if another call does so; see `close`."""
        core = self._core
        if self._beginning.elsewhere:
            return  # the parent's consumer goes on there
        seconds = close_timeout(timeout)
        check_choice(leave_group, "leave_group")
        me = threading.get_ident()
        if core.life.closure.is_by(me) and self._amid_close():
            return  # what a call of this calls
        portal = self._beginning.end()  # first of all: where it refuses, a later call closes
        _open_consumers.discard(self)
        deadline = core.clock() + seconds
        try:
            try:
                if core.closing(me):
                    poll = self._claims.get(_POLL)
                    if seconds and poll is not None and poll.thread != me and self._is_live(poll):
                        self._wait_out(poll, deadline)  # its rebalance goes on no more then
                    self._collector.settle()
                    core.look_again()
                    drive(self._departure(max(deadline - core.clock(), 0), leave_group), self._carry_out)
                    return
            finally:
                if core.life.closure.is_by(me):
                    self._beginning.begun().call(self._shut, max(deadline - core.clock(), 0.0))
        except BaseException:
            if portal is not None and core.life.closure.is_by(me):  # interrupted at last: it ends without this call
                portal.spawn(self._shut)
                core.life.closure.leave()
            raise
        if portal is not None:
            portal.call(self._closed_by_another, seconds)
        # what is left of them if the other call was interrupted
        drive(core.notices.run_callbacks(), self._carry_out)

    def _amid_close(self) -> bool:
        """Whether `close` is called by what it calls; else one that was interrupted repeatedly has left it undone."""
        return stands_in(sys._getframe(2), _CLOSE_CODE, "self", self)

    async def _shut(self, left: float = 0.0) -> None:
        try:
            await self._core.shut(left)
        finally:
            try:
                await self._core.supervisor.aclose()
            finally:
                self._core.life.closure.end()

    async def _closed_by_another(self, timeout: float) -> None:
        try:
            await self._core.closed_by_another(timeout)
        finally:
            await self._core.supervisor.aclose()

    def _carry_out(self, action: Action) -> Any:
        match action:
            case Wait(until):
                return self._wait(until)
            case Call(function, arguments):
                return _call(function, arguments)
            case Await(function, arguments):
                return self._beginning.begun().call(function, *arguments)

    def _wait(self, until: float) -> None:
        """Wait until the loop's thread has something, or the time has come."""
        portal = self._beginning.begun()
        while (left := until - self._core.clock()) > 0:
            if self._ready.wait(min(left, _SLICE)):
                break
            portal.check()
        self._ready.clear()

    def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by, to find its metrics there (KIP-714); the same for its life.

        Args:
            timeout: Seconds to wait for it; the default is `default.api.timeout.ms`.

        Raises:
            IllegalStateError: `enable.metrics.push` is false.
            UnsupportedVersionError: The broker takes no metrics of clients, as a gateway that serves none.
            KafkaTimeoutError: The cluster has not told it in time.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        return self._wait_for(self._core.reporting.client_instance_id, timeout)

    def _wait_for(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Have the loop's thread do what `wakeup` may end."""
        found: T = self._running().call(self._core.waits.interruptible, function, *arguments)
        return found

    # ------------------------------------------------------------------ records

    def _poll(self, timeout: float, take: Any, script: Callable[..., Script] | None = None) -> Any:
        """Carry out a poll, or another script that takes a deadline and `take`."""
        claim = _Claim()
        claims = self._claims
        poll = self._poll_script if script is None else script
        try:
            self._begin_poll(claim)
            self._running()
            self._core.life.check_polling()
            if self._broken_off:
                self._recover()
            self._collector.settle()
            found = drive(poll(deadline_of(self._core, timeout), take), self._carry_out)
            claim.over.set()
        except BaseException:
            try:
                if self._claims.get(_POLL) is claim:
                    self._broken_off = True
                    self._recover()
            finally:
                self._end_poll(claim)
            raise
        # No signal and no other thread comes between from here on, as nothing is called. The records are the user's
        # before the claim is gone: whoever polls or closes next puts back what a poll has left.
        self._buffer.taken = None
        if _POLL in claims and claims[_POLL] is claim:
            del claims[_POLL]
        return found

    def _recover(self) -> None:
        """A poll raised something, which may have been a signal handler's."""
        self._collector.put_back()
        self._core.look_again()
        self._broken_off = False

    def _end_poll(self, claim: _Claim) -> None:
        if self._claims.get(_POLL) is claim:
            del self._claims[_POLL]
        claim.over.set()

    def _wait_out(self, claim: _Claim, deadline: float) -> None:
        """Wait until the poll of another thread has returned, or has raised and put back what nobody got."""
        clock = self._core.clock
        claim.over.wait(deadline - clock())
        while self._claims.get(_POLL) is claim and clock() < deadline and self._is_live(claim):
            time.sleep(0.001)

    def _begin_poll(self, claim: _Claim) -> None:
        """One thread polls at a time. A claim whose poll is gone was left behind by an interrupt amid `_end_poll`."""
        while (other := self._claims.setdefault(_POLL, claim)) is not claim:
            self._core.life.check_polling()
            if self._is_live(other):
                raise IllegalStateError("Another thread is polling this consumer: one thread polls at a time")
            with self._stealing:
                if self._claims.get(_POLL) is other:
                    del self._claims[_POLL]

    def _is_live(self, claim: _Claim) -> bool:
        """Whether a poll is still under way: each has a claim of its own, and its frame goes with it."""
        for _ in range(_LOOKS):
            if self._claims.get(_POLL) is not claim or any(
                stands_in(frame, _POLL_CODE, "claim", claim) for frame in sys._current_frames().values()
            ):
                return True
            time.sleep(0.001)
        return False

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for it. A record counts as processed when the next one is asked for."""
        readiness = self._readiness
        if not readiness.poll_needed and readiness.clock() < readiness.poll_due:
            record = self._collector.next_record()
            if record is not None:
                return record
        while True:
            self._poll(LONG, self._collector.refill)
            record = self._collector.next_record()
            if record is not None:
                return record


class _Claim:
    """That one thread, and no other, polls a consumer now: one for each poll."""

    __slots__ = ("over", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = ThreadSignal()
        """Set when the poll is over, or about to return."""


_POLL: Final = "poll"
_LOOKS: Final = 20
_POLL_CODE: Final = SyncFace._poll.__code__
_CLOSE_CODE: Final = SyncFace._end.__code__


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    result = function(*arguments)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{function!r} is a coroutine function; kclient.sync needs a plain one")
    return result


_open_consumers: weakref.WeakSet[SyncFace] = weakref.WeakSet()


def _after_fork() -> None:
    for consumer in list(_open_consumers):
        consumer._core.life.fail(orphaned("consumer"))
        consumer._readiness.poll_needed = True  # also where records are at hand: they are the parent's
    _open_consumers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
