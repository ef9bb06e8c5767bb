"""The background tasks of one consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.concurrency import Supervisor, TaskHandle


class BackgroundTasks:
    """What runs until the consumer is shut; belongs to the event loop.

    Args:
        supervisor: Runs them; their failure is the consumer's.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._tasks: set[TaskHandle] = set()
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether they may go on and start others."""
        return not self._ended and self._supervisor.running

    def spawn(self, function: Callable[..., Awaitable[None]], *arguments: Any, name: str) -> None:
        """Run a background task until the consumer is shut."""
        self._tasks.add(self._supervisor.spawn(function, *arguments, name=name))
        self._tasks = {task for task in self._tasks if not task.done}

    def fail(self, error: BaseException) -> None:
        """A callback of theirs failed: as if a task had."""
        self._supervisor.fail(error)

    def end(self) -> None:
        """Tell them to end."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
