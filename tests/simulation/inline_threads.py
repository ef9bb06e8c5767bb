"""A gateway and its store in one thread and in simulated time: the same seed gives the same life.

`run(main, seed)` runs on trio with a clock that jumps when nobody has anything to do. What the gateway and HTP take for
the time is that clock; what they do in threads is done in the event loop, a little later; which task of several has its
turn first is decided by the seed.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any, TypeVar
from unittest import mock

import anyio.to_thread
import trio
from trio.testing import MockClock

import kclient.gateway
import kclient.htp
from kclient.concurrency import Completion
from kclient.errors import ClosedError
from kclient.gateway.workers import Workers
from kclient.htp.embedded import group_commit as group_commit_module
from kclient.htp.embedded import manager as manager_module
from kclient.htp.embedded.bell import Bell
from kclient.htp.embedded.ends import EndsSocket
from kclient.htp.embedded.syncer import Syncer
from kclient.htp.embedded.writer import DatabaseWriter, Job
from tests.simulation.machines import current, machines

T = TypeVar("T")

START_S = 1_800_000_000.0
"""The wall clock when the simulation begins."""


class SimulatedTime:
    """Stands in for the module `time` where the gateway and HTP look at it."""

    @staticmethod
    def monotonic() -> float:
        machine = current()
        return trio.current_time() - (0.0 if machine is None else machine.behind_s)

    @staticmethod
    def perf_counter() -> float:
        return trio.current_time()

    @staticmethod
    def time() -> float:
        machine = current()
        return START_S + trio.current_time() + (0.0 if machine is None else machine.wall_s)

    def time_ns(self) -> int:
        return int(self.time() * 1_000_000) * 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Loop:
    """The one event loop: runs functions a little later."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.sync_s = 0.05
        """Within so many seconds what was written is synced."""
        self.writers: list[Any] = []
        """Of databases, which look for what others have changed."""
        self.nursery: trio.Nursery

    def later(self, function: Callable[[], object], most: float) -> None:
        """Run a function after at most so many seconds."""
        delay = self.dice.choice([0.0, 0.0, self.dice.random() * most])

        async def run() -> None:
            await trio.sleep(delay)
            function()

        self.nursery.start_soon(run)

    async def pause(self) -> None:
        """Let others have their turn, as a thread would."""
        with trio.CancelScope(shield=True):
            for _ in range(self.dice.randrange(3)):
                await trio.lowlevel.checkpoint()


class _NoThread:
    """A thread that never runs."""

    name = "inline"

    def start(self) -> None:
        return

    def is_alive(self) -> bool:
        return False


def _inline_writer(loop: Loop) -> type[DatabaseWriter]:
    class InlineWriter(DatabaseWriter):
        """Its transactions are made in the event loop; what is submitted meanwhile shares the next one."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._thread: Any = _NoThread()
            self._scheduled = False
            self._connection: Any = None
            self.looking = False

        def start(self) -> None:
            super().start()
            assert self._engine is not None
            self._connection = self._engine.connect()
            if self._changed is not None:
                loop.writers.append(self)

        def submit(self, job: Job) -> None:
            super().submit(job)
            if not self._scheduled:
                self._scheduled = True
                loop.later(self._drain, 0.01)

        def _drain(self) -> None:
            self._scheduled = False
            while self._jobs and self._connection is not None:
                jobs = [self._jobs.popleft() for _ in range(min(256, len(self._jobs)))]
                self._tell(self._transact(self._connection, jobs))
            for other in loop.writers:
                if other is not self and other._path == self._path and not other.looking:
                    other.looking = True
                    loop.later(other.look, 0.03)

        def look(self) -> None:
            """See what others have changed, as one that has heard the bell."""
            self.looking = False
            if self._connection is not None:
                self._look(self._connection)

        def stop(self) -> None:
            if self in loop.writers:
                loop.writers.remove(self)
            if self._connection is not None:
                self._drain()
                self._connection.close()
                self._connection = None
            super().stop()

    return InlineWriter


def _inline_syncer(loop: Loop) -> type[Syncer]:
    class InlineSyncer(Syncer):
        """Its rounds are made in the event loop, some time after they were asked for."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._thread: Any = _NoThread()
            self._waiting: list[Callable[[], object]] = []
            self._scheduled = False

        def request(self, plans: Any) -> None:
            super().request(plans)
            if not self._scheduled:
                self._scheduled = True
                loop.later(self._sync_all, loop.sync_s)

        def _sync_all(self) -> None:
            self._scheduled = False
            while self._plans:
                plans = [plan for plan in self._plans.values() if plan.owner not in self._failed]
                self._plans = {}
                if plans:
                    self._finish(self._round(plans))

        def chore(self, function: Callable[[], object]) -> None:
            self._waiting.append(function)
            loop.later(self._clean, 5.0)

        def _clean(self) -> None:
            while self._waiting:
                self._do(self._waiting.pop(0))

        def stop(self) -> None:
            self._sync_all()
            self._clean()
            super().stop()

    return InlineSyncer


def _inline_work(loop: Loop) -> Callable[[Workers, Callable[[], T]], Completion[T]]:
    def run(workers: Workers, function: Callable[[], T]) -> Completion[T]:
        if workers._closed:
            raise ClosedError("the gateway is closing")
        answer: Completion[T] = Completion()

        def work() -> None:
            if workers._closed:
                answer.set_error(ClosedError("the gateway is closing"))
                return
            try:
                result = function()
            except Exception as error:
                answer.set_error(error)
            else:
                answer.set_result(result)

        loop.later(work, 0.001)
        return answer

    return run


@contextmanager
def _in_place(loop: Loop) -> Iterator[None]:
    async def run_sync(function: Callable[..., T], *args: Any, **_: Any) -> T:
        await loop.pause()
        result = function(*args)
        await loop.pause()
        return result

    with (
        mock.patch.multiple(anyio.to_thread, run_sync=run_sync),
        mock.patch.object(Workers, "run", _inline_work(loop)),
        mock.patch.object(manager_module, "DatabaseWriter", _inline_writer(loop)),
        mock.patch.object(group_commit_module, "Syncer", _inline_syncer(loop)),
        mock.patch.object(Bell, "start", return_value=False),
        mock.patch.object(EndsSocket, "start"),
        machines(),
        _simulated_time(),
    ):
        yield


@contextmanager
def _simulated_time() -> Iterator[None]:
    simulated = SimulatedTime()
    for package in (kclient.gateway, kclient.htp):  # also what is imported once it is needed: each life is the same
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith("kclient.htp.contract."):  # tests, of which pytest has to know
                importlib.import_module(found.name)
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(("kclient.gateway", "kclient.htp", "kclient.net.fair_queue"))
        and getattr(module, "time", None) is time
    ]
    for module in modules:
        module.time = simulated  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.time = time  # type: ignore[attr-defined]


def _jumping_clock() -> AbstractContextManager[Any]:
    """A clock stands still while somebody has something to do, and does not look at the real one for that."""
    kind: Any = MockClock
    jump = kind.jump

    def now(clock: Any) -> float:
        return float(clock._virtual_base)

    def past(clock: Any, seconds: float) -> None:
        """Who sleeps until something is due by sums of their own is woken a rounding error early, again and again."""
        jump(clock, seconds + 1e-9)

    return mock.patch.multiple(kind, current_time=now, jump=past)


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Worlds make many objects that are gone soon: looking for cycles among them takes a fifth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def run(main: Callable[[Loop], Awaitable[T]], seed: int) -> T:
    """Run `main(loop)` in simulated time; whatever is decided by chance is decided by the seed."""
    loop = Loop(Random(seed))

    async def whole() -> T:
        async with trio.open_nursery() as loop.nursery:
            result = await main(loop)
            loop.nursery.cancel_scope.cancel()
        return result

    scheduler: Any = trio._core._run
    with (
        mock.patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        _jumping_clock(),
        _fewer_collections(),
        _in_place(loop),
    ):
        scheduler._r.seed(seed)
        return trio.run(whole, clock=MockClock(autojump_threshold=0))
