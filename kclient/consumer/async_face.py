"""The face of a consumer of either kind in asyncio and trio code: its life, and the calls that wait inside `poll`."""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from kclient.cluster import leaves_in_order
from kclient.concurrency import Wakeup, drive_async
from kclient.consumer.actions import Action, Await, Call, Wait
from kclient.consumer.face_base import CLOSE_TIMEOUT, LONG, FaceBase, deadline_of
from kclient.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType
    from uuid import UUID

    from kclient.consumer.actions import Script
    from kclient.records import ConsumerRecord


class AsyncFace(FaceBase):
    """What a consumer does in asyncio and trio code, whatever group it is a member of."""

    def _wait_here(self) -> None:
        """Wait for records, and for what else there is to do, in the event loop."""
        self._ready = Wakeup()
        self._readiness.signal = self._ready.set
        self._poller: int | None = None
        """The task that polls."""
        self._poll_ended: anyio.Event | None = None
        """Set when it does no more, for who waits for that."""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the background tasks, once; `async with` does it. It does not wait for a broker."""
        await self._core.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(CLOSE_TIMEOUT if leaves_in_order(error) else 0)

    async def close(self, timeout: float | None = None) -> None:
        """Close it."""
        raise NotImplementedError

    async def client_instance_id(self, timeout: float | None = None) -> UUID:
        """The id that the cluster knows this client by, to find its metrics there (KIP-714); the same for its life.

        Args:
            timeout: Seconds to wait for it; the default is `default.api.timeout.ms`.

        Raises:
            IllegalStateError: `enable.metrics.push` is false.
            UnsupportedVersionError: The broker takes no metrics of clients, as a gateway that serves none.
            KafkaTimeoutError: The cluster has not told it in time.
            TypeError, ValueError: The timeout is not a number of seconds.
        """
        self._core.life.check()
        return await self._core.waits.interruptible(self._core.reporting.client_instance_id, timeout)

    async def _end(self, seconds: float, leave_group: bool | None = None) -> None:
        """Close within a time, or give up if another call does so; see `close`."""
        core = self._core
        core.supervisor.check_loop()
        me = anyio.get_current_task().id
        deadline = core.clock() + seconds
        if core.closing(me):
            try:
                await self._close(deadline if seconds else None, me, leave_group)
            finally:
                try:
                    await core.shut(max(deadline - core.clock(), 0.0))
                finally:
                    try:
                        await core.supervisor.aclose()
                    finally:
                        core.life.closure.end()  # whatever happened: others may wait for it
        elif not core.life.closure.is_by(me):
            try:
                await core.closed_by_another(seconds)
            finally:
                await core.supervisor.aclose()
            # what is left of them if the other call was interrupted
            await drive_async(core.notices.run_callbacks(), self._carry_out)

    async def _close(self, deadline: float | None, me: int, leave_group: bool | None) -> None:
        """Close in good order until a time, or at once for None."""
        core = self._core
        with anyio.CancelScope(shield=deadline is None):
            if deadline is not None and self._poller not in {None, me}:
                with anyio.move_on_after(deadline - core.clock()):
                    await self._poll_over()
            self._collector.settle()
            left = 0 if deadline is None else max(deadline - core.clock(), 0)
            await drive_async(self._departure(left, leave_group), self._carry_out)

    async def _poll_over(self) -> None:
        """Wait until the task that polls has noticed that the consumer closes: its rebalance goes on no more then."""
        ended = self._poll_ended = anyio.Event()
        await ended.wait()

    async def _carry_out(self, action: Action) -> Any:
        core = self._core
        match action:
            case Wait(until):
                return await self._ready.wait(max(until - core.clock(), 0))
            case Call(function, arguments):
                result = function(*arguments)
                return await result if inspect.isawaitable(result) else result
            case Await(function, arguments):
                return await function(*arguments)

    # ------------------------------------------------------------------ records

    async def _poll(self, timeout: float, take: Any, script: Callable[..., Script] | None = None) -> Any:
        """Carry out a poll, or another script that takes a deadline and `take`."""
        if self._poller is not None:
            self._core.life.check_polling()
            raise IllegalStateError("Another task is polling this consumer: one task polls at a time")
        self._poller = anyio.get_current_task().id
        poll = self._poll_script if script is None else script
        try:
            self._core.life.check_polling()
            self._core.supervisor.check_loop()
            self._collector.settle()
            await anyio.lowlevel.checkpoint()  # a loop that only polls must not starve the background tasks
            found = await drive_async(poll(deadline_of(self._core, timeout), take), self._carry_out)
        except BaseException:  # on trio, Ctrl-C may come anywhere: what was taken and not returned comes again
            self._collector.put_back()
            raise
        finally:
            self._poller = None
            if self._poll_ended is not None:
                self._poll_ended.set()
        self._buffer.taken = None
        return found

    async def _import_pyarrow(self) -> None:
        """Have pyarrow there before columns are made: the first import takes a third of a second at best, seconds from
        a cold disk, and the loop would stand still. That it is missing is told where it is needed."""
        if "pyarrow" not in sys.modules:
            with suppress(ModuleNotFoundError):
                await anyio.to_thread.run_sync(importlib.import_module, "pyarrow", abandon_on_cancel=True)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits for it. A record counts as processed when the next one is asked for."""
        readiness = self._readiness
        if not readiness.poll_needed and readiness.clock() < readiness.poll_due:
            record = self._collector.next_record()
            if record is not None:
                return record
        while True:
            await self._poll(LONG, self._collector.refill)
            record = self._collector.next_record()
            if record is not None:
                return record
