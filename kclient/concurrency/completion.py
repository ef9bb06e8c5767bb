"""Results that arrive later, and waking a task from any thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, Self, TypeVar, cast

from kclient.concurrency.backend import LoopHandle
from kclient.concurrency.gate import Gate
from kclient.errors import IllegalStateError

__all__ = ["Completion", "Wakeup"]

T = TypeVar("T")


class Completion(Generic[T]):
    """A result that arrives once; any number of tasks of one loop may wait for it.

    Cancelling a waiter cancels the wait only.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_gates", "_value")

    def __init__(self) -> None:
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._gates: list[Gate] | None = None
        self._callbacks: list[Callable[[Completion[T]], object]] | None = None

    @property
    def done(self) -> bool:
        """Whether the result or an error is there."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """The error, if it ended with one."""
        return self._error

    def set_result(self, value: T) -> bool:
        """Complete with a result; False if it was complete already."""
        if self._done:
            return False
        self._value = value
        self._finish()
        return True

    def set_error(self, error: BaseException) -> bool:
        """Complete with an error; False if it was complete already."""
        if self._done:
            return False
        self._error = error
        self._finish()
        return True

    def on_done(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(self)` when complete, at once if it is; the callback must not raise."""
        if self._done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [cast("Callable[[Completion[T]], object]", callback)]
        else:
            self._callbacks.append(cast("Callable[[Completion[T]], object]", callback))

    def result(self) -> T:
        """The result, or its error raised.

        Raises:
            IllegalStateError: If it is not complete yet.
        """
        if self._error is not None:
            raise self._error
        if not self._done:
            raise IllegalStateError("the result is not there yet")
        return cast("T", self._value)

    async def wait(self) -> T:
        """Wait for the result."""
        if not self._done:
            gate = Gate()
            if self._gates is None:
                self._gates = [gate]
            else:
                self._gates.append(gate)
            try:
                await gate.wait()
            finally:
                if self._gates is not None:
                    self._gates.remove(gate)
        return self.result()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()

    def _finish(self) -> None:
        self._done = True
        if self._gates is not None:
            gates, self._gates = self._gates, None
            for gate in gates:
                gate.open()
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback(self)


class Wakeup:
    """Wakes one waiting task, from any thread; sets that come before the wake count as one.

    It belongs to the event loop that waits on it first. A set after that loop has gone does nothing.
    """

    __slots__ = ("_flag", "_gate", "_loop")

    def __init__(self) -> None:
        self._flag = False
        self._gate: Gate | None = None
        self._loop: LoopHandle | None = None

    def __bool__(self) -> bool:
        """Whether it is set and nobody has taken notice yet."""
        return self._flag

    def set(self) -> None:
        """Wake the waiter, or let its next `wait` return at once."""
        if self._flag:
            return
        try:
            self._flag = True
            if self._loop is None:
                return
            if self._loop.is_current:
                self._notify()
            else:
                self._loop.post(self._notify)
        except BaseException:  # a signal handler's: nobody may have been told, and the next set tells
            self._flag = False
            raise

    def clear(self) -> None:
        """Forget a set that nobody has taken notice of."""
        self._flag = False

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set, and clear it.

        Args:
            timeout: At most this many seconds.

        Returns:
            True if it was set, False if the time was over first.
        """
        if self._loop is None:
            self._loop = LoopHandle()
        if not self._flag:
            gate = self._gate = Gate()
            try:
                if self:  # set while the gate was made, as by a finalizer in this thread
                    gate.open()
                await gate.wait(timeout)
            finally:
                self._gate = None
        flag, self._flag = self._flag, False
        return flag

    def _notify(self) -> None:
        if self._flag and self._gate is not None:
            self._gate.open()
