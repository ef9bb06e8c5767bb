"""The thread that runs the event loop for blocking code.

One portal thread serves every blocking client of the process. It starts with the first of them and runs asyncio
(uvloop where it is installed). It is a daemon, because a client that was never closed must not keep the interpreter
from exiting; at exit it is stopped in order.

- `call` runs a coroutine in the loop and waits for it. Ctrl-C cancels the coroutine and raises at once.
- After a fork the child has no such thread: objects made before raise a clear error, new ones start a new thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from kclient.concurrency import ThreadSignal, check_none_held
from kclient.errors import ClosedError, IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_WAITING_TO_LOG: Final = frozenset({logging.Handler.acquire.__code__, logging.Handler.handle.__code__})
"""Where a thread stands, innermost, that waits for the lock of a handler."""


class Portal:
    """An event loop in a thread of its own; `get_portal` gives the one that all share."""

    def __init__(self, name: str = "kclient-portal") -> None:
        self.name = name
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = ThreadSignal()
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        # not `Thread.is_alive`: interrupted, it takes a running thread for dead from then on (CPython's bpo-45274)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        while not self._started.wait(1.0):
            pass
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._loop = _new_loop()
        except BaseException as error:  # noqa: BLE001  (raised by the constructor)
            self._error = error
            self._ended = True
            self._started.set()
            return
        asyncio.set_event_loop(self._loop)
        _name_backend()
        self._loop.call_soon(self._started.set)
        try:
            self._loop.run_forever()
        finally:
            try:
                self._wind_up(self._loop)
            finally:
                self._ended = True

    @staticmethod
    def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is left, as `asyncio.run` does."""
        try:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    # ------------------------------------------------------------------ state

    @property
    def usable(self) -> bool:
        """Whether the thread runs, in this process."""
        return self._pid == os.getpid() and not self._ended

    def check(self) -> None:
        """Raise if nothing would ever be run.

        Raises:
            IllegalStateError: This is a forked child.
            ClosedError: The thread has ended.
        """
        if self._pid != os.getpid():
            raise IllegalStateError(
                "This client was made before the process forked, and its thread stayed in the parent: "
                "make a new client in the child"
            )
        if self._ended:
            raise ClosedError("The thread that serves blocking clients has ended")

    def check_waiting(self) -> None:
        """`check`, to be called before waiting for what happens in the loop.

        Raises:
            IllegalStateError: Also in the portal's own thread, and in a signal handler that came amid a call that the
                loop may wait for.
        """
        self.check()
        self.check_outside()
        check_none_held()

    def check_outside(self) -> None:
        """Raise if this is the portal's own thread, which would wait for itself.

        Raises:
            IllegalStateError: It is.
        """
        if self.inside:
            raise IllegalStateError(
                "A blocking call in the thread that serves it would wait for ever: "
                "callbacks that run in the event loop must not use kclient.sync"
            )

    @property
    def inside(self) -> bool:
        """Whether the caller is the portal's thread."""
        return threading.current_thread() is self._thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        assert self._loop is not None
        return self._loop

    # ------------------------------------------------------------------ calls

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Run `await function(*args, **kwargs)` in the loop and return what it returns.

        An exception in this thread while it waits, such as KeyboardInterrupt, cancels the coroutine and is raised
        without waiting for it.

        Raises:
            IllegalStateError: It would never run (after a fork), or this is the portal's own thread.
            BaseException: What the coroutine raised.
        """
        self.check_waiting()
        outcome: _CallOutcome[T] = _CallOutcome()
        handle = _PortalCall(self._tasks, outcome, function, args, kwargs)
        self.loop.call_soon_threadsafe(handle.start)
        try:
            return self._wait(outcome)
        except BaseException:
            if not outcome.there.is_set:
                self.call_soon(handle.cancel)
            raise

    def _wait(self, outcome: _CallOutcome[T]) -> T:
        while not outcome.there.wait(1.0):  # in slices, because a thread that died completes nothing
            if not outcome.there.is_set:
                self.check()
                self.check_logging()
        return outcome.get()

    def check_logging(self) -> None:
        """Raise if the loop stands still until this thread lets go a handler of `logging`.

        Raises:
            IllegalStateError: This is inside the handler's `emit`, and the loop has something to log with it.
        """
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None or frame.f_code not in _WAITING_TO_LOG:
            return
        handler = frame.f_locals.get("self")
        is_owned = getattr(getattr(handler, "lock", None), "_is_owned", None)  # of an RLock
        if is_owned is not None and is_owned():
            name = type(handler).__name__
            raise IllegalStateError(
                f"{name} waits for a client that waits for {name}, because it has something to log itself: have a "
                "logging.handlers.QueueListener call the handler in a thread of its own"
            )

    def spawn(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a coroutine in the loop without waiting for it; what it raises is lost."""
        self.check()
        self.loop.call_soon_threadsafe(_PortalCall(self._tasks, _CallOutcome(), function, args, {}).start)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function in the loop, soon; ignored if the loop has ended."""
        if self.usable:
            try:
                self.loop.call_soon_threadsafe(function, *args)
            except RuntimeError:
                return  # closed in this moment

    def stop(self) -> None:
        """End the loop and its thread; what still runs is cancelled."""
        if self.usable and not self.inside:
            self.call_soon(self.loop.stop)
            self._thread.join(timeout=5.0)


class _CallOutcome(Generic[T]):
    """What a coroutine in the loop returned or raised, for the thread that waits for it."""

    __slots__ = ("_error", "_result", "there")

    def __init__(self) -> None:
        self.there = ThreadSignal()
        self._error: BaseException | None = None
        self._result: T | None = None

    def set_result(self, result: T) -> None:
        """It returned this."""
        self._result = result
        self.there.set()

    def set_error(self, error: BaseException) -> None:
        """It raised this."""
        self._error = error
        self.there.set()

    def get(self) -> T:
        """Return or raise it, once it is there."""
        error, self._error = self._error, None  # so that no cycle keeps the traceback
        if error is None:
            return cast("T", self._result)
        try:
            raise error
        finally:
            del error


class _PortalCall:
    """One coroutine on its way through the loop."""

    def __init__(
        self,
        tasks: set[asyncio.Task[Any]],
        outcome: _CallOutcome[Any],
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._tasks = tasks
        self._outcome = outcome
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def start(self) -> None:
        if self._cancelled:
            return
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._tasks.add(self._task)  # the loop keeps only weak references
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            result = await self._function(*self._args, **self._kwargs)
        except asyncio.CancelledError:
            self._outcome.set_error(ClosedError("The call was cancelled: the event loop is ending"))
            raise
        except BaseException as error:  # noqa: BLE001  (raised in the caller's thread)
            self._outcome.set_error(error)
        else:
            self._outcome.set_result(result)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


_shared: Portal | None = None
_lock = threading.RLock()  # a signal handler may come amid the start


def get_portal() -> Portal:
    """The portal of this process, started if it does not run."""
    global _shared
    portal = _shared
    if portal is not None and portal.usable:
        return portal
    with _lock:
        if _shared is None or not _shared.usable:
            _shared = Portal()
        return _shared


_before_stop: list[Callable[[], object]] = []


def before_stop(function: Callable[[], object]) -> None:
    """Have a function called at exit, while the portal still runs; after the exit functions of its clients."""
    _before_stop.append(function)


def _forget() -> None:
    """In a forked child: the thread stayed behind, and the lock may be held by nobody."""
    global _shared, _lock
    _shared = None
    _lock = threading.RLock()


def _stop() -> None:
    if _shared is not None:
        for function in reversed(_before_stop):
            function()
        _shared.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)


def _name_backend() -> None:
    """Tell anyio that this thread runs asyncio, whatever the context says that came along with a call.

    Contexts are copied from the calling thread, which may run trio.
    """
    with contextlib.suppress(ModuleNotFoundError):
        from sniffio import thread_local

        thread_local.name = "asyncio"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
