"""Clean-up that no cancellation breaks off."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from kclient.concurrency import thread_to_the_end, to_the_end

pytestmark = pytest.mark.anyio


class Work:
    """Three steps."""

    def __init__(self, error: Exception | None = None) -> None:
        self.steps = 0
        self.error = error

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await anyio.sleep(0.001)
            self.steps += 1
        if self.error is not None:
            raise self.error


async def test_it_is_done_and_its_error_raised() -> None:
    work = Work()
    await to_the_end(work.run, 3)
    assert work.steps == 3
    with pytest.raises(ZeroDivisionError):
        await to_the_end(Work(ZeroDivisionError()).run, 1)


async def test_it_returns_what_the_function_does() -> None:
    async def double(number: int) -> int:
        return number * 2

    assert await to_the_end(double, 3) == 6
    assert await thread_to_the_end(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await thread_to_the_end(divmod, 7, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thread_is_waited_for_however_often_asyncio_cancels() -> None:
    begun, go_on, steps = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go_on.wait(30)
        steps.append("done")

    task = asyncio.get_running_loop().create_task(thread_to_the_end(work))
    assert await anyio.to_thread.run_sync(begun.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["done"]


async def test_a_cancelled_scope_is_raised_after_it() -> None:
    work = Work()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await to_the_end(work.run, 3)
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert work.steps == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_so_is_a_task_that_asyncio_cancels_again_and_again(error: Exception | None) -> None:
    work = Work(error)
    task = asyncio.get_running_loop().create_task(to_the_end(work.run, 3))
    await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert work.steps == 3
    assert task.cancelled()
