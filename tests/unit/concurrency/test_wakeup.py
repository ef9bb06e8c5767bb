"""Results that arrive later, and waking a task from other threads."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from kclient.concurrency import Completion, Gate, Wakeup, completion
from kclient.errors import IllegalStateError

pytestmark = pytest.mark.anyio


async def test_completion_for_several_waiters() -> None:
    completion: Completion[int] = Completion()
    results = []

    async def waiter() -> None:
        results.append(await completion)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(IllegalStateError):
            completion.result()
        assert completion.set_result(7)
    assert results == [7, 7]
    assert completion.done
    assert not completion.set_result(8)
    assert not completion.set_error(ValueError())
    assert await completion == 7


async def test_completion_with_an_error() -> None:
    completion: Completion[int] = Completion()
    assert completion.set_error(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await completion
    assert isinstance(completion.error, ValueError)


async def test_cancelled_waiter_leaves_the_completion_alone() -> None:
    completion: Completion[int] = Completion()
    with anyio.move_on_after(0):
        await completion
    assert not completion.done
    completion.set_result(1)
    assert await completion == 1


async def test_completion_calls_back() -> None:
    completion: Completion[int] = Completion()
    seen: list[int] = []
    completion.on_done(lambda done: seen.append(done.result()))
    completion.on_done(lambda done: seen.append(done.result() + 1))
    assert seen == []
    completion.set_result(1)
    assert seen == [1, 2]
    completion.on_done(lambda done: seen.append(done.result() + 2))
    assert seen == [1, 2, 3]


async def test_wakeup_set_before_the_wait() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert wakeup
    assert await wakeup.wait(timeout=0)
    assert not wakeup
    assert not await wakeup.wait(timeout=0)


async def test_wakeup_in_the_same_thread() -> None:
    wakeup = Wakeup()
    woken = []

    async def waiter() -> None:
        woken.append(await wakeup.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        wakeup.set()
    assert woken == [True]
    wakeup.set()
    wakeup.clear()
    assert not await wakeup.wait(timeout=0)


async def test_wakeup_from_many_threads_loses_nothing() -> None:
    """A counter raised by threads before each set: the waiter sees every value in the end."""
    wakeup = Wakeup()
    counts = [0] * 4
    rounds = 200

    def work(index: int) -> None:
        for _ in range(rounds):
            counts[index] += 1
            wakeup.set()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    wakes = 0
    await wakeup.wait(timeout=0)  # binds it to this loop
    for thread in threads:
        thread.start()
    with anyio.fail_after(20):
        while sum(counts) < 4 * rounds:
            await wakeup.wait()
            wakes += 1
    await anyio.to_thread.run_sync(lambda: [thread.join() for thread in threads])
    assert wakes <= 4 * rounds


def test_wakeup_after_the_loop_has_gone(anyio_backend: str) -> None:
    wakeup = Wakeup()

    async def main() -> None:
        await wakeup.wait(timeout=0)

    anyio.run(main, backend=anyio_backend)
    thread = threading.Thread(target=wakeup.set)
    thread.start()
    thread.join()
    assert wakeup


@pytest.mark.anyio
async def test_a_set_while_the_gate_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a finalizer, where the garbage collector runs in that moment."""
    wakeup = Wakeup()
    await wakeup.wait(0)

    def made() -> Gate:
        wakeup.set()
        return Gate()

    monkeypatch.setattr(completion, "Gate", made)
    with anyio.fail_after(5):
        assert await wakeup.wait()
        assert await wakeup.wait(1)


async def test_a_gate_opens_once_and_lets_go_on_in_time() -> None:
    gate = Gate()
    with anyio.fail_after(5):
        await gate.wait(0)
        gate = Gate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.wait)
            await anyio.wait_all_tasks_blocked()
            gate.open()
            gate.open()
        opened = Gate()
        opened.open()
        await opened.wait()
        await Gate().wait(0.001)


async def test_a_task_that_waits_at_a_gate_can_be_cancelled() -> None:
    gate = Gate()
    with anyio.move_on_after(0.001) as scope:
        await gate.wait(60)
    assert scope.cancelled_caught
    gate.open()


async def test_a_waiter_of_a_completion_that_is_cancelled_leaves_the_others() -> None:
    completion: Completion[int] = Completion()
    results = []

    async def waiter() -> None:
        results.append(await completion)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        with anyio.move_on_after(0.001):
            await completion
        completion.set_result(7)
    assert results == [7]
