"""How the answers of requests that have begun get into their places: at once, later, by a task, or in steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from kclient.concurrency import Completion, Supervisor, TaskHandle
from kclient.net.answers import Answer, Later, Reply, Steps
from kclient.net.reply_order import ReplyOrder, ReplySlot
from kclient.net.request_steps import RequestSteps

__all__ = ["Answering"]

_PER_TASK: Final = 4096
"""About how many bytes of memory a task takes."""
PER_WAITING: Final = 3000
"""And a request that waits without one, beside its frame."""


class Answering:
    """The answers that one connection waits for.

    Args:
        order: The places of its requests.
        steps: What it works out in steps.
        supervisor: Runs the tasks.
        peer: The client's address, for the names of tasks.
        placed: Called with the place of a request when its reply has got there.
        room: Called when a task has ended, and as many were at work as may be.
        failed: Called with the place of a request that has no answer, and why.
    """

    __slots__ = ("_failed", "_order", "_peer", "_placed", "_room", "_steps", "_supervisor", "_tasks")

    def __init__(
        self,
        order: ReplyOrder,
        steps: RequestSteps,
        supervisor: Supervisor,
        peer: str,
        *,
        placed: Callable[[ReplySlot], object],
        room: Callable[[], object],
        failed: Callable[[ReplySlot, BaseException], object],
    ) -> None:
        self._order = order
        self._steps = steps
        self._supervisor = supervisor
        self._peer = peer
        self._placed = placed
        self._room = room
        self._failed = failed
        self._tasks: set[TaskHandle] = set()

    def follow(self, slot: ReplySlot, answer: Answer) -> None:
        """See to it that the answer of a request that has begun gets into its place."""
        if isinstance(answer, Later):
            self._wait_for(slot, answer.completion, answer.reply)
        elif isinstance(answer, Completion):
            self._wait_for(slot, answer, Completion.result)
        elif answer is None or isinstance(answer, Sequence):
            self._order.place(slot, answer)
        elif isinstance(answer, Steps):
            self._steps.add(slot, answer, self._answered, self._failed)
        else:
            self._start_task(slot, answer)

    def cancel(self) -> None:
        """Cancel the tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Wait until the tasks have ended."""
        for task in list(self._tasks):
            await task.wait()

    def close(self) -> None:
        """The connection has ended: nobody waits for the answers, and tasks that go on must not keep it."""
        self._placed = self._room = self._failed = _nothing

    def _wait_for(
        self,
        slot: ReplySlot,
        completion: Completion[Any],
        reply: Callable[[Completion[Any]], Reply | Steps | None],
    ) -> None:
        self._order.waiting += 1
        slot.held += PER_WAITING
        self._order.share.add(PER_WAITING)
        completion.on_done(partial(self._completed, slot, reply))

    def _start_task(self, slot: ReplySlot, answer: Awaitable[Reply | Steps | None]) -> None:
        try:
            task = self._supervisor.spawn(
                self._finish, slot, answer, name=f"answer {self._peer}", on_error=partial(self._task_failed, slot)
            )
        except Exception as error:  # noqa: BLE001  (the server's owner has failed or closed; it is logged)
            if isinstance(answer, Coroutine):
                answer.close()
            self._failed(slot, error)
            return
        self._order.working += 1
        slot.held += _PER_TASK
        self._order.share.add(_PER_TASK)
        self._tasks.add(task)
        task.on_done(self._tasks.discard)

    def _task_failed(self, slot: ReplySlot, error: BaseException) -> None:
        self._failed(slot, error)

    async def _finish(self, slot: ReplySlot, answer: Awaitable[Reply | Steps | None]) -> None:
        try:
            reply = await answer
        finally:
            full = self._order.busy
            self._order.working -= 1
        self._answered(slot, reply)
        if full:
            self._room()

    def _completed(
        self, slot: ReplySlot, reply: Callable[[Completion[Any]], Reply | Steps | None], completion: Completion[Any]
    ) -> None:
        self._order.waiting -= 1
        if self._order.closed:
            return
        try:
            made = reply(completion)
        except Exception as error:  # noqa: BLE001  (it is logged)
            self._failed(slot, error)
        else:
            self._answered(slot, made)

    def _answered(self, slot: ReplySlot, reply: Reply | Steps | None) -> None:
        if self._order.closed:
            return
        if isinstance(reply, Steps):
            self._steps.add(slot, reply, self._answered, self._failed)
            return
        self._order.place(slot, reply)
        self._placed(slot)


def _nothing(*_: object) -> None:
    """What an answer of a connection that has ended is to do."""
