"""The owner of background tasks, and the tasks' handles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
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
        if self._scope is not None:
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
        self._on_failure = on_failure
        self._handles: set[TaskHandle] = set()
        self._host: _Host | None = None
        self._loop: LoopHandle | None = None
        self._last_task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether tasks can be spawned."""
        return self.state is SupervisorState.RUNNING and self.failure is None

    async def start(self) -> None:
        """Become able to run tasks.

        On trio this opens a nursery in the calling task: `aclose` has to be called by the same task, after
        everything opened since has been closed. Do not call it inside a timeout that ends earlier.

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
        except BaseException:
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
            raise self.failure

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
        for handle in list(self._handles):
            handle.cancel()
        if self._on_failure is not None:
            self._on_failure(self.failure)

    def check_not_own_task(self) -> None:
        """Raise `IllegalStateError` if one of its own tasks calls, which may not wait for the others' end."""
        if self._host is not None and self.state is not SupervisorState.CLOSED:
            self._host.check_not_own_task(self._handles)

    def check_may_close(self) -> None:
        """Raise what `aclose` would raise here, before anything has been done.

        Raises:
            IllegalStateError: One of its own tasks calls, or on trio closing does not follow nesting.
        """
        if self._host is not None and self.state is not SupervisorState.CLOSED:
            self._host.check_may_close(self._handles)

    async def aclose(self) -> None:
        """Cancel all tasks and wait until they have ended. Raises none of their exceptions: see `failure`.

        May be called again, and on asyncio by any task except the supervised ones.

        Raises:
            IllegalStateError: On trio, if closing does not follow nesting.
        """
        host = self._host
        if host is None or self.state is SupervisorState.CLOSED:
            self.state = SupervisorState.CLOSED
            return
        self.check_may_close()
        self.state = SupervisorState.CLOSING
        for handle in list(self._handles):
            handle.cancel()
        try:
            await host.close()
        finally:
            self.state = SupervisorState.CLOSED

    def retire(self, finish: Callable[[], Awaitable[object]]) -> None:
        """Close although nobody waits for it, because the object that owns this was dropped; from any thread.

        On asyncio a task of its own awaits `finish()` first, and what that raises is lost. On trio it does nothing:
        there the owner's block closes.
        """
        if self._loop is not None and isinstance(self._host, _AsyncioHost):
            self._loop.post(partial(self._begin_retirement, finish))

    def _begin_retirement(self, finish: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            with contextlib.suppress(Exception):
                await finish()
            await self.aclose()

        if self.state is SupervisorState.RUNNING:
            with named_backend():
                self._last_task = asyncio.get_running_loop().create_task(run(), name=f"{self.name}: retires")

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
            # A trio nursery is inside the scopes around its owner. When one of those is cancelled, the owner closes in
            # good order first, and needs its tasks for that; so only the owner ends them.
            with anyio.CancelScope(shield=isinstance(self._host, _TrioHost)) as handle._scope:
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
        """A loop that shuts down, or on trio a cancelled scope around the owner, ends the tasks under its feet."""
        if self.state is SupervisorState.RUNNING:
            self.fail(ClosedError(f"{self.name}: the task {handle.name} was cancelled from outside"))

    def _host_ended(self, host: _Host) -> None:
        if host is self._host and self.state is SupervisorState.RUNNING:
            self.fail(ClosedError(f"{self.name}: the event loop ended its tasks"))
            self.state = SupervisorState.CLOSED

    def __repr__(self) -> str:
        return f"<Supervisor {self.name} {self.state.value}, {len(self._handles)} tasks, failure={self.failure!r}>"


class _Host:
    """Where the tasks of a supervisor live: the face of the two hosts below."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def open(self, ended: Callable[[], None]) -> None:
        raise NotImplementedError

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, handle: TaskHandle) -> None:
        raise NotImplementedError

    def current_task(self) -> object:
        raise NotImplementedError

    def check_not_own_task(self, handles: set[TaskHandle]) -> None:
        current = self.current_task()
        for handle in handles:
            if handle._task is current:
                raise IllegalStateError(
                    f"{self.name} cannot be closed by its own task {handle.name}: it would wait for itself"
                )

    def check_may_close(self, handles: set[TaskHandle]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class _AsyncioHost(_Host):
    """Tasks of the loop, and one more that notices when the loop ends; anyone may close it.

    They are no anyio task group's: that starts a coroutine inside of another one, and where a loop ends before its
    first step, Python complains of a coroutine that was never awaited.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._ready = anyio.Event()
        self._stop = anyio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def open(self, ended: Callable[[], None]) -> None:
        # asyncio keeps only weak references to tasks
        self._task = asyncio.get_running_loop().create_task(self._watch(ended), name=f"{self.name}: supervisor")
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

    def current_task(self) -> object:
        return asyncio.current_task()

    def check_may_close(self, handles: set[TaskHandle]) -> None:
        self.check_not_own_task(handles)

    async def close(self) -> None:
        self._stop.set()
        # the tasks have been cancelled: what is left is their clean-up, and leaving it behind helps nobody
        await to_the_end(asyncio.wait, [self._task, *self._tasks])
        if self._error is not None:
            raise first_leaf(self._error)


class _TrioHost(_Host):
    """A nursery held open by the task that started the supervisor."""

    async def open(self, ended: Callable[[], None]) -> None:
        import trio

        self.group = anyio.create_task_group()
        await self.group.__aenter__()
        self._owner = trio.lowlevel.current_task()
        self._nursery = self._owner.child_nurseries[-1]
        self._closed = False

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str, handle: TaskHandle) -> None:
        self.group.start_soon(run, name=name)

    def current_task(self) -> object:
        import trio

        return trio.lowlevel.current_task()

    def check_may_close(self, handles: set[TaskHandle]) -> None:
        import trio

        if self._closed:
            return
        if trio.lowlevel.current_task() is not self._owner:
            raise IllegalStateError(
                f"on trio {self.name} has to be closed by the task that started it ({self._owner.name}): "
                "use `async with`"
            )
        nurseries = self._owner.child_nurseries
        if not nurseries or nurseries[-1] is not self._nursery:
            raise IllegalStateError(
                f"on trio {self.name} has to be closed before what was opened earlier and after what was opened "
                "later: use nested `async with` blocks"
            )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.group.cancel_scope.cancel()
        try:
            await self.group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise first_leaf(group) from None
