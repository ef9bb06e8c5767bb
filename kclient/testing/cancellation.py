"""Cancels a call at its first checkpoint, its second, and so on, on asyncio and trio alike.

What survives that keeps its promises under cancellation:

```python
async def scenario(cancelled: Cancelled) -> None:       # runs anew for every checkpoint
    async with make_producer() as producer:
        outcome = await cancelled(producer.send("orders", b"1"))
        assert appended(producer) in ((0, 1) if outcome is Outcome.CANCELLED else (1,))

await at_every_checkpoint(scenario)
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, Generic, TypeVar, cast

import anyio

from kclient.arguments import shown, whole_number

__all__ = ["Cancelled", "Outcome", "at_every_checkpoint"]

T = TypeVar("T")


class Outcome(Enum):
    """How a call that was to be cancelled ended."""

    CANCELLED = "cancelled"
    """The cancellation came through."""
    FINISHED = "finished"
    """It returned: it had fewer checkpoints, or was past the point of no return."""


class Cancelled:
    """Cancels the calls it is given at one checkpoint, counted over all of them; see `at_every_checkpoint`."""

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint: int = whole_number(checkpoint, "the checkpoint at which to cancel")
        """The checkpoint at which to cancel, beginning with 1."""
        self.passed = 0
        """Checkpoints that were reached so far."""
        self.result: Any = None
        """What the last call returned."""

    @property
    def reached(self) -> bool:
        """Whether the checkpoint was reached."""
        return self.passed >= self.checkpoint

    async def __call__(self, call: Awaitable[Any]) -> Outcome:
        """Await `call` and cancel it when it reaches the checkpoint; its own exceptions are raised."""
        self.result = None
        with anyio.CancelScope() as scope:
            self.result = await _Counted(call, self, scope)
            return Outcome.FINISHED
        return Outcome.CANCELLED


async def at_every_checkpoint(scenario: Callable[[Cancelled], Awaitable[object]], *, limit: int = 500) -> int:
    """Run a scenario again and again, each time with the cancellation one checkpoint later, until it is not reached.

    Args:
        scenario: Sets up, awaits `cancelled(call)` for the call under test, and checks what is left behind.
        limit: Runs after which it is given up: the scenario never ends.

    Returns:
        The number of checkpoints at which the call was cancelled.
    """
    limit = whole_number(limit, "the limit of runs")
    if not callable(scenario):
        raise TypeError(f"a scenario is an async function, not {shown(scenario)}")
    for checkpoint in range(1, limit + 1):
        cancelled = Cancelled(checkpoint)
        await scenario(cancelled)
        if not cancelled.reached:
            return checkpoint - 1
    raise AssertionError(f"the scenario still had a checkpoint more after {limit} runs")


class _Counted(Generic[T]):
    """Awaits something and counts how often it is about to be suspended."""

    def __init__(self, call: Awaitable[T], cancelled: Cancelled, scope: anyio.CancelScope) -> None:
        self._call = call
        self._cancelled = cancelled
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._call.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            try:
                trap = step(value)
            except StopIteration as stop:
                return cast("T", stop.value)
            self._cancelled.passed += 1
            if self._cancelled.passed == self._cancelled.checkpoint:
                # the task is not suspended yet: both backends deliver it as soon as it is
                self._scope.cancel()
            try:
                value = yield trap
                step = steps.send
            except BaseException as error:  # noqa: BLE001  (it is thrown into the call)
                value, step = error, steps.throw
