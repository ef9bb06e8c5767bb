"""The threads' switch interval is short while anybody wants it so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kclient.gateway.workers import Workers
from kclient.net.thread_switches import SwitchInterval, call_giving_way, switch_interval


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_the_last_who_wants_it_short_restores_it(usual: float) -> None:
    interval = SwitchInterval()
    interval.shorten()
    interval.shorten()
    assert sys.getswitchinterval() < usual / 5
    interval.restore()
    assert sys.getswitchinterval() < usual / 5
    interval.restore()
    assert sys.getswitchinterval() == usual


def test_a_shorter_one_stays(usual: float) -> None:
    sys.setswitchinterval(1e-5)
    assert call_giving_way(sys.getswitchinterval) == pytest.approx(1e-5)
    assert sys.getswitchinterval() == pytest.approx(1e-5)


def test_what_others_set_meanwhile_stays() -> None:
    call_giving_way(lambda: sys.setswitchinterval(0.02))
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_what_is_raised_restores_it(usual: float) -> None:
    with pytest.raises(ZeroDivisionError):
        call_giving_way(lambda: 1 / 0)
    assert sys.getswitchinterval() == usual


def test_many_threads_may_want_it(usual: float) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(2000):
            threads.submit(call_giving_way, int)
    assert switch_interval._wanted == 0
    assert sys.getswitchinterval() == usual


@pytest.mark.anyio
async def test_it_is_short_while_a_worker_works(usual: float) -> None:
    workers = Workers()
    assert await workers.run(sys.getswitchinterval).wait() < usual / 5
    workers.close()
    assert sys.getswitchinterval() == usual
