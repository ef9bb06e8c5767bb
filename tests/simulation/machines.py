"""Machines in one event loop: each has clocks of its own, and can be stopped, with all that runs on it.

What a task starts runs where the task does. What is on a machine that is stopped (SIGSTOP, a virtual machine that is
moved, a laptop that sleeps) has no turn until it goes on; what became due meanwhile is due then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final
from unittest import mock

import trio

from kclient.net.streams import MemoryStream

_HERE: Final[ContextVar[Machine | None]] = ContextVar("machine", default=None)


class FarEnd:
    """The end of a connection that has accepted it: what comes is dealt with by tasks of its own machine.

    A `MemoryStream` tells its channel at once, in the task that sends.
    """

    def __init__(self, stream: MemoryStream) -> None:
        self.peer = stream.peer
        self.receive = stream.receive
        self.send = stream.send
        self.aclose = stream.aclose


class Machine:
    """One machine, which runs."""

    def __init__(self) -> None:
        self.stopped = False
        self.wall_s = 0.0
        """By so many seconds its wall clock is ahead."""
        self.behind_s = 0.0
        """By so many seconds its monotonic clock is behind: it has stood still."""
        self._waiting: list[trio.lowlevel.Task] = []
        """Whose turn it is as soon as it goes on."""

    @contextmanager
    def here(self) -> Iterator[None]:
        """What is done and started in the block runs on it."""
        token = _HERE.set(self)
        try:
            yield
        finally:
            _HERE.reset(token)

    def stop(self) -> None:
        """Stop it; whoever has the turn in this moment goes on until he waits."""
        self.stopped = True
        queue = _runner().runq
        for task in list(queue):
            if task.context.get(_HERE) is self:
                queue.remove(task)
                self._waiting.append(task)

    def go_on(self) -> None:
        """Have it go on, if it was stopped."""
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        _runner().runq.extend(waiting)

    def keep(self, task: trio.lowlevel.Task) -> None:
        """A task of it would have its turn, and it is stopped."""
        self._waiting.append(task)


def current() -> Machine | None:
    """Where this code runs; None if that is none of them."""
    return _HERE.get()


def machines() -> AbstractContextManager[Any]:
    """Machines can be stopped in this block."""
    kind: Any = trio._core._run.Runner
    reschedule = kind.reschedule

    def rescheduled(runner: Any, task: trio.lowlevel.Task, *arguments: Any) -> None:
        reschedule(runner, task, *arguments)
        machine = task.context.get(_HERE)
        if machine is not None and machine.stopped:
            assert runner.runq.pop() is task
            machine.keep(task)

    return mock.patch.object(kind, "reschedule", rescheduled)


def _runner() -> Any:
    return trio._core._run.GLOBAL_RUN_CONTEXT.runner
