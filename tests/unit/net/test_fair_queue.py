"""Turns on a loop, with a clock that is told what everything takes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import anyio
import pytest

from kclient.concurrency import loop_soon
from kclient.net.fair_queue import SLICE, FairQueue, Flow, Job, Pace

STEP = 0.0001


class Loop:
    """A loop whose time passes only by work."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = FairQueue(self._soon, lambda: self.now)
        self.waiting: list[Callable[[], object]] = []
        self.turns = 0

    def _soon(self, function: Callable[[], object]) -> None:
        self.waiting.append(function)

    def turn(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.turns += 1
        for function in waiting:
            function()

    def run(self) -> None:
        while self.waiting:
            self.turn()

    def work(self, seconds: float, done: Callable[[], object] = lambda: None) -> Job:
        """A job that takes so long, in small steps."""
        left = seconds

        def job(until: float) -> bool:
            nonlocal left
            while left > 1e-9:
                self.now += STEP
                left -= STEP
                if self.now >= until:
                    break
            if left > 1e-9:
                return True
            done()
            return False

        return job


def test_a_long_job_is_cut_into_slices() -> None:
    loop = Loop()
    loop.queue.flow().add(loop.work(0.1))
    longest = 0.0
    while loop.waiting:
        before = loop.now
        loop.turn()
        longest = max(longest, loop.now - before)
    assert loop.now == pytest.approx(0.1)
    assert longest <= 1.5 * SLICE + 2 * STEP


def test_a_quiet_flow_comes_before_a_hundred_busy_ones() -> None:
    loop = Loop()
    for number in range(100):
        loop.queue.flow(f"host {number}").add(loop.work(0.5))
    for _ in range(200):
        loop.turn()
    quiet, done = loop.queue.flow("quiet"), []
    before = loop.now
    quiet.add(loop.work(STEP, lambda: done.append(loop.now)))
    while not done:
        loop.turn()
    assert done[0] - before < 0.004


def test_a_crowd_of_one_host_does_not_hold_up_another_host() -> None:
    """Three hundred connections that each ask for little, all the time."""
    loop = Loop()
    crowd = [loop.queue.flow("crowd") for _ in range(300)]

    def again(flow: Flow) -> None:
        flow.add(loop.work(5 * STEP, lambda: again(flow)))

    for flow in crowd:
        again(flow)
    for _ in range(200):
        loop.turn()
    waited: list[float] = []
    for _ in range(20):
        before, count = loop.now, len(waited)
        loop.queue.flow("other").add(loop.work(STEP, lambda: waited.append(loop.now)))
        while len(waited) == count:
            loop.turn()
        waited[-1] -= before
    assert max(waited) < 0.01, "and not 0.15 s, the time that all of the crowd takes"


def test_busy_flows_share_evenly() -> None:
    loop = Loop()
    ends: dict[int, float] = {}
    for number in range(4):
        end = partial(lambda number: ends.update({number: loop.now}), number)
        loop.queue.flow(f"host {number}").add(loop.work(0.1, end))
    loop.run()
    assert min(ends.values()) > 0.38, "none is done long before the others"


def test_a_busy_flow_moves_on_beside_endless_quiet_ones() -> None:
    loop = Loop()
    done: list[float] = []
    loop.queue.flow("busy").add(loop.work(0.05, lambda: done.append(loop.now)))

    def quiet() -> None:
        if not done:
            loop.queue.flow(f"{loop.turns}").add(loop.work(STEP, quiet))

    for _ in range(50):
        quiet()
    while not done:
        loop.turn()
    assert done[0] < 1.0


def test_in_a_callback_one_works_at_once_unless_others_wait() -> None:
    loop = Loop()
    busy, other = loop.queue.flow("a"), loop.queue.flow("b")
    assert busy.enter()
    loop.now += 1.0
    busy.leave()
    assert loop.queue.spent == pytest.approx(1.0)
    assert not other.enter(), "this turn's time is over"
    other.add(loop.work(STEP))
    loop.run()
    assert other.enter()
    other.leave()


def test_a_job_that_fails_is_told_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    done: list[bool] = []
    flow = loop.queue.flow()

    def broken(_: float) -> bool:
        raise RuntimeError("a mistake")

    flow.add(broken)
    flow.add(loop.work(STEP, lambda: done.append(True)))
    loop.run()
    assert done
    assert "a job failed" in caplog.text


@pytest.fixture
def usual() -> float:
    """The process's own switch interval: queues that other tests left busy have gone."""
    gc.collect()
    interval = sys.getswitchinterval()
    assert interval > 0.001
    return interval


def test_threads_change_places_more_often_only_while_the_loop_is_busy(usual: float) -> None:
    loop = Loop()
    loop.queue.flow().add(loop.work(0.1))
    loop.turn()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    loop.run()
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.slow
def test_a_loop_that_ends_while_it_is_busy_leaves_the_process_as_it_was(usual: float) -> None:
    loop = Loop()
    loop.queue.flow().add(loop.work(0.1))
    loop.turn()
    del loop
    gc.collect()
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.anyio
async def test_threads_change_places_more_often_while_a_coroutine_works_in_slices(usual: float) -> None:
    """Its turns are granted and over at once, what it does with them is done in between."""
    pace = Pace(FairQueue(loop_soon()).flow())
    for _ in range(5):
        while not pace.over:
            pass
        await pace.pause()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert sys.getswitchinterval() == pytest.approx(usual)
