"""The owner of background tasks, and the tasks' handles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVarTuple, cast

import anyio

from kclient.concurrency.backend import LoopHandle, current_backend, named_backend
from kclient.concurrency.cleanup import to_the_end
from kclient.concurrency.completion import Completion
from kclient.errors import ClosedError, IllegalStateError

__all__ = ["Supervisor", "SupervisorState", "TaskHandle", "first_leaf"]

Ts = TypeVarTuple("Ts")


def first_leaf(error: BaseException) -> BaseException:
    """The first plain exception inside (nested) exception groups; any other exception as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


class SupervisorState(Enum):
    """The life of a `Supervisor`."""

    NEW = "new"
    """Not started; `spawn` raises."""
    RUNNING = "running"
    """Tasks may be spawned."""
    CLOSING = "closing"
    """`aclose` was called: tasks are being cancelled."""
    CLOSED = "closed"
    """All tasks have ended."""


class TaskHandle:
    """A background task of a `Supervisor`."""

    __slots__ = ("_cancelled", "_done", "_scope", "_task", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self._task: object | None = None
        # Made by the task itself: tasks are spawned in callbacks of the loop too, where anyio knows no backend.
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._done: Completion[None] = Completion()

    @property
    def done(self) -> bool:
        """Whether the task has ended, however."""
        return self._done.done

    def cancel(self) -> None:
        """Ask the task to end at its next checkpoint; its ending this way is no failure."""
        self._cancelled = True
        if self._scope is not None and not self.done:  # where it is, its loop may be gone, and another runs
            self._scope.cancel()

    async def wait(self) -> None:
        """Wait until the task has ended, however."""
        await self._done.wait()

    def on_done(self, callback: Callable[[TaskHandle], object]) -> None:
        """Call `callback(handle)` when the task has ended, at once if it has; it must not raise."""
        self._done.on_done(lambda _: callback(self))

    def __repr__(self) -> str:
        return f"<TaskHandle {self.name} {'done' if self.done else 'running'}>"


class Supervisor:
    """The owner of background tasks.

    Args:
        name: Shown in task names and error messages.
        on_failure: Called once, with the first exception that a task let escape; by then the other tasks have been
            told to end. Owners fail their waiters here.
    """

    def __init__(self, name: str = "kclient", *, on_failure: Callable[[BaseException], object] | None = None) -> None:
        self.name = name
        self.state: SupervisorState = SupervisorState.NEW
        self.failure: BaseException | None = None
        """The first exception that a task let escape."""
        self._trace: TracebackType | None = None
        self._on_failure = on_failure
        self._handles: set[TaskHandle] = set()
        self._host: _TaskHost | None = None
        self._loop: LoopHandle | None = None

    @property
    def running(self) -> bool:
        """Whether tasks can be spawned."""
        return self.state is SupervisorState.RUNNING and self.failure is None

    async def start(self) -> None:
        """Become able to run tasks.

        A start that was cancelled may be tried again.

        Raises:
            IllegalStateError: If it was started before.
            ClosedError: If it was closed meanwhile.
        """
        if self.state is not SupervisorState.NEW or self._host is not None:
            raise IllegalStateError(f"{self.name} was started before")
        host = self._host = _TrioHost(self.name) if current_backend() == "trio" else _AsyncioHost(self.name)
        try:
            await host.open(partial(self._host_ended, host))
        except BaseException:  # cancelled too: it may be started again
            self._host = None
            raise
        if self.state is not SupervisorState.NEW:
            raise ClosedError(f"The {self.name} was closed while it was started; make a new one")
        self._loop = LoopHandle()
        self.state = SupervisorState.RUNNING

    def spawn(
        self,
        function: Callable[[*Ts], Awaitable[Any]],
        *args: *Ts,
        name: str | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> TaskHandle:
        """Run `function(*args)` as a background task.

        Args:
            function: An async function.
            args: Its arguments.
            name: Of the task, for debuggers and error messages.
            on_error: Called with the exception of this task, which then is no failure of the owner.

        Raises:
            ClosedError: If the supervisor was closed, or not started.
            BaseException: The stored failure.
        """
        self.check()
        if self.state is not SupervisorState.RUNNING or self._host is None:
            raise ClosedError(f"{self.name} is {self.state.value}: no task can be started")
        handle = TaskHandle(name or str(getattr(function, "__qualname__", "task")))
        self._handles.add(handle)
        try:
            self._host.spawn(
                partial(self._run, handle, function, args, on_error), f"{self.name}: {handle.name}", handle
            )
        except BaseException:  # the task will never run, and so never take its handle back
            self._handles.discard(handle)
            raise
        handle.on_done(self._handles.discard)
        return handle

    def check(self) -> None:
        """Raise the stored failure, if there is one; public calls begin with this."""
        if self.failure is not None:
            raise self.failure.with_traceback(self._trace)  # without the frames of earlier calls

    def check_loop(self) -> None:
        """Raise where the tasks run in another event loop: who waits for them here may wait for ever.

        Raises:
            IllegalStateError: The caller is in another loop (or in none), and the tasks have not ended.
        """
        if self.state is SupervisorState.RUNNING and self._loop is not None and not self._loop.is_current:
            raise IllegalStateError(
                f"This {self.name} belongs to another event loop, the one that it was started in: "
                "use and close it there, make one for this loop, or use kclient.sync, which any thread can share"
            )

    def fail(self, error: BaseException) -> None:
        """Store a failure as if a task had raised it: the other tasks end, the owner is told. Later ones are lost."""
        if self.failure is not None or self.state is SupervisorState.CLOSED:
            return
        self.failure = first_leaf(error)
        self._trace = self.failure.__traceback__
        for handle in list(self._handles):
            handle.cancel()
        if self._on_failure is not None:
            self._on_failure(self.failure)

    def check_not_own_task(self) -> None:
        """Raise `IllegalStateError` if one of its own tasks calls, which may not wait for the others' end."""
        if self._host is not None and self.state is not SupervisorState.CLOSED:
            self._host.check_not_own_task(self._handles)

    async def aclose(self) -> None:
        """Cancel all tasks and wait until they have ended. Raises none of their exceptions: see `failure`.

        May be called again, by any task except the supervised ones.

        Raises:
            IllegalStateError: One of its own tasks calls.
            BaseException: What came out of a task and is not an `Exception`, such as SystemExit.
        """
        host = self._host
        if host is None or self.state is SupervisorState.CLOSED:
            self.state = SupervisorState.CLOSED
            return
        self.check_not_own_task()
        self.state = SupervisorState.CLOSING
        for handle in list(self._handles):
            handle.cancel()
        try:
            await host.close()
        finally:
            self.state = SupervisorState.CLOSED

    def retire(self, finish: Callable[[], Awaitable[object]]) -> None:
        """Close although nobody waits for it, because the object that owns this was dropped; from any thread.

        A task of its own awaits `finish()` first, and what that raises is lost.
        """
        if self._loop is not None:
            self._loop.post(partial(self._begin_retirement, finish))

    def _begin_retirement(self, finish: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            with contextlib.suppress(Exception):
                await finish()
            await self.aclose()

        if self.state is SupervisorState.RUNNING and self._host is not None:
            self._host.spawn_alone(run, f"{self.name}: retires")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(
        self,
        handle: TaskHandle,
        function: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        try:
            handle._task = None if self._host is None else self._host.current_task()
            with anyio.CancelScope() as handle._scope:
                if handle._cancelled:
                    handle._scope.cancel()
                await function(*args)
        except Exception as error:  # noqa: BLE001  (it is stored, see `fail`)
            self._handle_error(error, on_error)
        except anyio.get_cancelled_exc_class():
            self._cancelled_from_outside(handle)
            raise
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            handle._done.set_result(None)

    def _handle_error(self, error: Exception, on_error: Callable[[Exception], object] | None) -> None:
        if on_error is None:
            # A task that was about to start another one, or to use something else of the owner's, when that began to
            # close: it has been told to end, and has ended.
            if not (self.state is SupervisorState.CLOSING and isinstance(error, ClosedError)):
                self.fail(error)
            return
        try:
            on_error(error)
        except Exception as second:  # noqa: BLE001  (stored as well)
            self.fail(second)

    def _cancelled_from_outside(self, handle: TaskHandle) -> None:
        """A loop that shuts down ends the tasks under the owner's feet."""
        if self.state is SupervisorState.RUNNING:
            self.fail(ClosedError(f"{self.name}: the task {handle.name} was cancelled from outside"))

    def _host_ended(self, host: _TaskHost) -> None:
        if host is self._host and self.state is SupervisorState.RUNNING:
            self.fail(ClosedError(f"{self.name}: the event loop ended its tasks"))
            self.state = SupervisorState.CLOSED

    def __repr__(self) -> str:
        return f"<Supervisor {self.name} {self.state.value}, {len(self._handles)} tasks, failure={self.failure!r}>"


class _TaskHost:
    """Where the tasks of a supervisor live, with one more that notices when the loop ends; anyone may close it.

    What the two kinds below do each in its own way has no body here.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._ready = anyio.Event()
        self._stop = anyio.Event()
        self._error: BaseException | None = None
        """The first exception that is none to be stored, such as SystemExit."""

    async def open(self, ended: Callable[[], None]) -> None:
        self._watch_with(partial(self._watch, ended))
        try:
            await self._ready.wait()
        except BaseException:  # cancelled while it starts: the task that watches must not stay behind
            self._stop.set()
            raise

    async def _watch(self, ended: Callable[[], None]) -> None:
        try:
            self._ready.set()
            await self._stop.wait()
        finally:
            ended()

    def check_not_own_task(self, handles: set[TaskHandle]) -> None:
        current = self.current_task()
        for handle in handles:
            if handle._task is current:
                raise IllegalStateError(
                    f"{self.name} cannot be closed by its own task {handle.name}: it would wait for itself"
                )

    async def close(self) -> None:
        self._stop.set()
        # the tasks have been cancelled: what is left is their clean-up, and leaving it behind helps nobody
        await to_the_end(self._all_ended)
        if self._error is not None:
            raise first_leaf(self._error)

    def _watch_with(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        raise NotImplementedError

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, handle: TaskHandle) -> None:
        raise NotImplementedError

    def spawn_alone(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run what closes this."""
        raise NotImplementedError

    def current_task(self) -> object:
        raise NotImplementedError

    async def _all_ended(self) -> None:
        raise NotImplementedError


class _AsyncioHost(_TaskHost):
    """Tasks of the loop.

    They are no anyio task group's: that starts a coroutine inside of another one, and where a loop ends before its
    first step, Python complains of a coroutine that was never awaited.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to tasks

    def _watch_with(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._watcher = asyncio.get_running_loop().create_task(watch(), name=f"{self.name}: supervisor")

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, handle: TaskHandle) -> None:
        loop = asyncio.get_running_loop()
        with named_backend():
            task = loop.create_task(run(), name=name)
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            handle._done.set_result(None)  # also where the loop ended it before its first step
            if not task.cancelled() and task.exception() is not None:
                self._error = self._error or task.exception()

        task.add_done_callback(over)

    def spawn_alone(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        with named_backend():
            self._last_task = asyncio.get_running_loop().create_task(run(), name=name)

    def current_task(self) -> object:
        return asyncio.current_task()

    async def _all_ended(self) -> None:
        await asyncio.wait([self._watcher, *self._tasks])


class _TrioHost(_TaskHost):
    """System tasks: the run's own, as those of asyncio are the loop's.

    A nursery in the task that starts the owner would have to be closed by that task and outside of every scope that was
    opened since, which nobody can check; trio breaks where it is not. Nor would its tasks be any more structured: they
    must not be cancelled with the scopes around the owner, who needs them to close in good order.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: set[object] = set()
        self._none_left: anyio.Event | None = None

    def _watch_with(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._spawn(watch, f"{self.name}: supervisor")

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, handle: TaskHandle) -> None:
        self._spawn(run, name)

    def spawn_alone(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        import trio

        trio.lowlevel.spawn_system_task(self._guarded, run, name=name, context=copy_context())

    def _spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        import trio

        me = object()

        async def counted() -> None:
            try:
                await self._guarded(run)
            finally:
                self._tasks.discard(me)
                if self._none_left is not None and not self._tasks:
                    self._none_left.set()

        trio.lowlevel.spawn_system_task(counted, name=name, context=copy_context())
        self._tasks.add(me)

    async def _guarded(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import trio

        try:
            await run()
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001  (out of a system task it would break trio; `close` raises it)
            self._error = self._error or error

    def current_task(self) -> object:
        import trio

        return trio.lowlevel.current_task()

    async def _all_ended(self) -> None:
        if self._tasks:
            self._none_left = self._none_left or anyio.Event()
            await self._none_left.wait()
