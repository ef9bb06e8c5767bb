"""Background tasks: owners, failures, closing from anywhere."""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from functools import partial
from types import ModuleType

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from kclient.concurrency import Supervisor, SupervisorState, Timer, current_backend, first_leaf
from kclient.errors import ClosedError, IllegalStateError
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint

pytestmark = pytest.mark.anyio


class Boom(Exception):
    pass


async def boom(after: anyio.Event | None = None) -> None:
    if after is not None:
        await after.wait()
    raise Boom("no")


async def test_backend_is_recognised(anyio_backend: str) -> None:
    assert current_backend() == anyio_backend


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_backend_is_recognised_while_trio_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may do that for the first time."""
    for half in (None, ModuleType("trio.lowlevel")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "trio", ModuleType("trio"))
            patch.setitem(sys.modules, "trio.lowlevel", half)
            loop = asyncio.new_event_loop()
            found = await anyio.to_thread.run_sync(loop.run_until_complete, _backend())
            loop.close()
        assert found == "asyncio"


async def _backend() -> str:
    return current_backend()


def test_no_backend_outside_of_loops() -> None:
    with pytest.raises(RuntimeError):
        current_backend()


async def test_a_failure_that_is_raised_again_and_again_does_not_grow() -> None:
    async with Supervisor("mine") as supervisor:
        await supervisor.spawn(boom).wait()
        depths = set[int]()
        for _ in range(3):
            with pytest.raises(Boom) as raised:
                supervisor.check()
            depths.add(len(raised.traceback))
            assert "boom" in {entry.name for entry in raised.traceback}, "where it failed is still told"
        assert len(depths) == 1


async def test_failure_is_stored_and_raised_by_the_next_call() -> None:
    failures: list[BaseException] = []
    async with Supervisor("mine", on_failure=failures.append) as supervisor:
        handle = supervisor.spawn(boom)
        await handle.wait()
        assert isinstance(supervisor.failure, Boom)
        assert failures == [supervisor.failure]
        assert not supervisor.running
        with pytest.raises(Boom):
            supervisor.check()
        with pytest.raises(Boom):
            supervisor.spawn(boom)
        await anyio.lowlevel.checkpoint()  # the user's code is not cancelled
    assert supervisor.state is SupervisorState.CLOSED


async def test_failure_ends_the_other_tasks() -> None:
    ended = anyio.Event()

    async def other() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with Supervisor() as supervisor:
        supervisor.spawn(other)
        await anyio.wait_all_tasks_blocked()
        supervisor.spawn(boom)
        with anyio.fail_after(5):
            await ended.wait()


async def test_first_failure_counts() -> None:
    async with Supervisor() as supervisor:
        supervisor.fail(Boom("first"))
        supervisor.fail(ValueError("second"))
        with pytest.raises(Boom, match="first"):
            supervisor.check()


async def test_exception_groups_are_opened() -> None:
    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(boom)

    async with Supervisor() as supervisor:
        await supervisor.spawn(group).wait()
        assert isinstance(supervisor.failure, Boom)


def test_first_leaf() -> None:
    inner = ExceptionGroup("b", [Boom("x"), ValueError("y")])
    assert isinstance(first_leaf(ExceptionGroup("a", [inner])), Boom)


async def test_on_error_takes_the_exception_of_one_task() -> None:
    errors: list[Exception] = []
    async with Supervisor() as supervisor:
        await supervisor.spawn(boom, on_error=errors.append).wait()
        assert [type(error) for error in errors] == [Boom]
        supervisor.check()

        def bad(error: Exception) -> None:
            raise ValueError("from the handler") from error

        await supervisor.spawn(boom, on_error=bad).wait()
        with pytest.raises(ValueError, match="from the handler"):
            supervisor.check()


async def test_cancelling_one_task_is_no_failure() -> None:
    async with Supervisor() as supervisor:
        handle = supervisor.spawn(anyio.sleep_forever, name="sleeper")
        assert "sleeper running" in repr(handle)
        await anyio.wait_all_tasks_blocked()
        handle.cancel()
        await handle.wait()
        assert handle.done
        supervisor.check()


async def test_task_cancelled_before_it_runs_still_cleans_up() -> None:
    log = []

    async def task() -> None:
        log.append("began")
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            log.append("ended")

    async with Supervisor() as supervisor:
        handle = supervisor.spawn(task)
        handle.cancel()
        await handle.wait()
    assert log == ["began", "ended"]


async def test_closing_waits_for_clean_up() -> None:
    log = []

    async def task() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            log.append("cleaned")

    async with Supervisor() as supervisor:
        supervisor.spawn(task)
        await anyio.wait_all_tasks_blocked()
    assert log == ["cleaned"]


async def test_who_wants_to_start_a_task_while_the_owner_closes_has_ended() -> None:
    failures: list[BaseException] = []
    supervisor = Supervisor("test", on_failure=failures.append)
    await supervisor.start()

    async def starter() -> None:
        with anyio.CancelScope(shield=True):
            while supervisor.state is not SupervisorState.CLOSING:
                await anyio.lowlevel.checkpoint()
        supervisor.spawn(anyio.sleep, 0)

    task = supervisor.spawn(starter)
    await anyio.lowlevel.checkpoint()
    await supervisor.aclose()
    assert task.done
    assert supervisor.failure is None
    assert not failures


async def test_life_cycle() -> None:
    supervisor = Supervisor("life")
    with pytest.raises(ClosedError, match="life is new"):
        supervisor.spawn(boom)
    await supervisor.start()
    with pytest.raises(IllegalStateError):
        await supervisor.start()
    await supervisor.aclose()
    await supervisor.aclose()
    with pytest.raises(ClosedError, match="life is closed"):
        supervisor.spawn(boom)
    never = Supervisor()
    await never.aclose()
    assert never.state is SupervisorState.CLOSED


async def test_body_exception_passes_as_it_is() -> None:
    with pytest.raises(Boom):
        async with Supervisor() as supervisor:
            supervisor.spawn(anyio.sleep_forever)
            raise Boom


async def test_cancelled_body_ends_the_tasks() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with Supervisor() as supervisor:
            supervisor.spawn(anyio.sleep_forever)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert supervisor.state is SupervisorState.CLOSED


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_closes_from_any_task_in_any_order() -> None:
    first, second = Supervisor("first"), Supervisor("second")
    await first.start()
    await second.start()
    first.spawn(anyio.sleep_forever)
    second.spawn(anyio.sleep_forever)
    await asyncio.create_task(first.aclose())
    await second.aclose()
    assert {first.state, second.state} == {SupervisorState.CLOSED}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_task_cannot_close_its_own_supervisor() -> None:
    async with Supervisor("own") as supervisor:
        await supervisor.spawn(supervisor.aclose, name="suicide").wait()
        with pytest.raises(IllegalStateError, match="suicide"):
            supervisor.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_closed_by_two_tasks_at_once() -> None:
    supervisor = Supervisor()
    await supervisor.start()
    supervisor.spawn(anyio.sleep_forever)
    with anyio.fail_after(5):
        await asyncio.gather(supervisor.aclose(), supervisor.aclose())


def test_asyncio_loop_that_ends_is_a_failure() -> None:
    supervisor = Supervisor("left open")

    async def main() -> None:
        await supervisor.start()
        supervisor.spawn(anyio.sleep_forever)
        await anyio.sleep(0)

    asyncio.run(main())
    with pytest.raises(ClosedError, match="left open"):
        supervisor.check()


async def test_any_task_may_start_and_close_in_any_order_and_any_scope() -> None:
    outer, inner = Supervisor("outer"), Supervisor("inner")
    with anyio.fail_after(10):
        await outer.start()
    with anyio.move_on_after(10):
        await inner.start()
    tasks = [outer.spawn(anyio.sleep_forever), inner.spawn(anyio.sleep_forever)]
    with anyio.fail_after(10):
        await outer.aclose()
        async with anyio.create_task_group() as group:
            group.start_soon(inner.aclose)
    assert all(task.done for task in tasks)


async def test_tasks_run_in_the_context_of_who_spawns_them() -> None:
    spawner: ContextVar[str] = ContextVar("spawner")
    seen: list[str] = []

    async def look() -> None:
        seen.append(spawner.get())

    async with Supervisor() as supervisor:
        spawner.set("me")
        await supervisor.spawn(look).wait()
    assert seen == ["me"]


async def test_a_cancelled_scope_around_the_owner_leaves_the_tasks_to_it() -> None:
    seen: list[str] = []

    async def work(wanted: anyio.Event) -> None:
        await wanted.wait()
        seen.append("worked")

    with anyio.CancelScope() as scope:
        async with Supervisor() as supervisor:
            wanted = anyio.Event()
            task = supervisor.spawn(work, wanted)
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                wanted.set()
                with anyio.CancelScope(shield=True):
                    await task.wait()
                seen.append("closed")
    assert seen == ["worked", "closed"]
    assert supervisor.failure is None


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_exit_in_a_task_on_trio_comes_bare() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with Supervisor() as supervisor:
            await supervisor.spawn(leave).wait()
            with pytest.raises(SystemExit):
                supervisor.check()


async def test_closing_survives_cancellation_anywhere() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        supervisor = Supervisor()
        await supervisor.start()
        supervisor.spawn(anyio.sleep_forever)
        await cancelled(supervisor.aclose())
        assert supervisor.state is SupervisorState.CLOSED

    assert await at_every_checkpoint(scenario) > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_starting_survives_cancellation_anywhere() -> None:
    before = len(asyncio.all_tasks())

    async def scenario(cancelled: Cancelled) -> None:
        supervisor = Supervisor()
        outcome = await cancelled(supervisor.start())
        assert supervisor.running == (outcome is Outcome.FINISHED)
        await supervisor.aclose()
        assert len(asyncio.all_tasks()) == before

    assert await at_every_checkpoint(scenario) > 0


async def test_a_life_survives_cancellation_anywhere() -> None:
    async def life(supervisor: Supervisor) -> None:
        async with supervisor:
            handle = supervisor.spawn(anyio.sleep_forever)
            await anyio.lowlevel.checkpoint()
            handle.cancel()
            await handle.wait()

    async def scenario(cancelled: Cancelled) -> None:
        supervisor = Supervisor()
        await cancelled(life(supervisor))
        assert not supervisor.running
        assert not supervisor._handles

    assert await at_every_checkpoint(scenario) > 2


async def test_timer_fires_once_at_its_time() -> None:
    fired: list[float] = []
    done = anyio.Event()

    def fire() -> None:
        fired.append(anyio.current_time())
        done.set()

    async with Supervisor() as supervisor:
        timer = Timer(supervisor, fire)
        start = anyio.current_time()
        timer.set(start + 30)
        await anyio.wait_all_tasks_blocked()
        timer.set(start + 0.02)  # earlier
        with anyio.fail_after(5):
            await done.wait()
        assert fired[0] >= start + 0.02
        assert timer.when is None
        done = anyio.Event()
        timer.set(anyio.current_time() + 0.01)
        await anyio.wait_all_tasks_blocked()
        timer.set(anyio.current_time() + 0.03)  # later
        with anyio.fail_after(5):
            await done.wait()
        assert len(fired) == 2
        timer.set(anyio.current_time() + 0.01)
        timer.cancel()
        await anyio.sleep(0.03)
        assert len(fired) == 2


async def test_timer_that_was_cancelled_and_set_again_can_be_moved() -> None:
    """Whichever of its tasks trio lets go on first: the one that was cancelled, begun or not, or the next one."""
    fired: list[int] = []
    done = anyio.Event()

    def fire(number: int) -> None:
        fired.append(number)
        if len(fired) == 40:
            done.set()

    async with Supervisor() as supervisor:
        timers = [Timer(supervisor, partial(fire, number)) for number in range(40)]
        later = anyio.current_time() + 1000
        for number, timer in enumerate(timers):
            timer.set(later)
            if number % 2:
                await anyio.wait_all_tasks_blocked()
            timer.cancel()
            timer.set(later)
        await anyio.wait_all_tasks_blocked()
        for timer in timers:
            timer.set(anyio.current_time())
        with anyio.fail_after(5):
            await done.wait()
        assert sorted(fired) == list(range(40))


async def test_timer_may_set_itself_again() -> None:
    fired = []
    done = anyio.Event()

    async with Supervisor() as supervisor:

        def fire() -> None:
            fired.append(1)
            if len(fired) < 3:
                timer.set(anyio.current_time())
            else:
                done.set()

        timer = Timer(supervisor, fire)
        timer.set(anyio.current_time())
        with anyio.fail_after(5):
            await done.wait()


async def test_exception_of_a_timer_is_a_failure() -> None:
    failed = anyio.Event()
    async with Supervisor(on_failure=lambda _: failed.set()) as supervisor:

        def fire() -> None:
            raise Boom

        Timer(supervisor, fire).set(anyio.current_time())
        with anyio.fail_after(5):
            await failed.wait()
        with pytest.raises(Boom):
            supervisor.check()
