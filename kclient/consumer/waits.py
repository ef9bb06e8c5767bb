"""The calls that wait for background tasks, and what ends them: progress, time, `wakeup`, the failure of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio

from kclient.concurrency import Completion
from kclient.errors import WakeupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.concurrency import LoopHandle
    from kclient.errors import KafkaTimeoutError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Waits:
    """The waiting calls of one consumer. All but `wakeup` and `take_wakeup` belong to the event loop.

    Args:
        check: Raises the stored failure of a background task, or that the consumer was closed.
        late: Makes the error of a wait that took too long, of what was waited for and the seconds.
        check_loop: Raises in another event loop than the consumer's.
    """

    def __init__(
        self,
        check: Callable[[], None],
        late: Callable[[str, float], KafkaTimeoutError],
        check_loop: Callable[[], None],
    ) -> None:
        self.woken: bool = False
        """Whether `wakeup` was called and no call has raised it yet."""
        self._check = check
        self._late = late
        self._check_loop = check_loop
        self._loop: LoopHandle | None = None
        self._scopes: set[anyio.CancelScope] = set()
        """Around the calls that can be ended."""
        self._progress: Completion[None] = Completion()

    def belong_to(self, loop: LoopHandle) -> None:
        """The calls are made in this loop."""
        self._loop = loop

    # ------------------------------------------------------------------ wakeup

    def wakeup(self) -> None:
        """End the calls that wait with `WakeupError`, or the next one; from any thread."""
        self.woken = True
        if self._loop is not None:
            self._loop.post(lambda: self.interrupt() if self.woken else None)

    def take_wakeup(self) -> None:
        """Raise `WakeupError` if `wakeup` was called."""
        if self.woken:
            self.woken = False
            raise WakeupError("wakeup() was called")

    def interrupt(self) -> None:
        """End the calls that wait: by a wakeup, or because a background task failed."""
        for scope in self._scopes:
            scope.cancel()
        self.signal_progress()

    async def interruptible(self, function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Await a call that `wakeup` may end, or the failure of a background task.

        Raises:
            WakeupError: `wakeup` was called.
            KafkaError: What the call raised, or the stored failure.
            IllegalStateError: This is another event loop than the consumer's.
        """
        self._check_loop()
        self.take_wakeup()
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await function(*arguments)
            finally:
                self._scopes.discard(scope)
        self._check()
        self.woken = False
        raise WakeupError("wakeup() was called")

    # ------------------------------------------------------------------ progress

    def signal_progress(self) -> None:
        """Something has changed that calls may wait for: they evaluate their conditions again."""
        made, self._progress = self._progress, Completion()
        made.set_result(None)

    async def progress(self) -> None:
        """Wait until something has changed."""
        await self._progress.wait()

    async def until(
        self,
        met: Callable[[], bool],
        timeout: float,
        what: str,
        late: Callable[[str, float], KafkaTimeoutError] | None = None,
    ) -> None:
        """Wait until a condition holds that background tasks bring about.

        Args:
            met: The condition.
            timeout: Seconds to wait at most.
            what: What is waited for, as the start of the error's sentence.
            late: Makes the error, if it knows more than the one for all waits.

        Raises:
            KafkaTimeoutError: It did not within `timeout` seconds.
            KafkaError: What the condition raised, or the stored failure.
        """
        with anyio.move_on_after(max(timeout, 0)):
            while not met():
                self._check()
                await self._progress.wait()
        if not met():
            raise (late or self._late)(what, timeout)
