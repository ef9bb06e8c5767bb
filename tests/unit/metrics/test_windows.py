"""Rates, averages, extremes and percentiles over windows of time."""

from __future__ import annotations

import gc
import sys
import threading
from math import isnan

import pytest

from kclient.metrics.traffic import Traffic
from kclient.metrics.windows import MetricTally, MetricWindows, Percentiles, highest_of, mean_of, percentile_of, rate_of
from kclient.producer.metrics import ProducerMetrics


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def windows(samples: int = 2) -> tuple[Clock, MetricWindows]:
    clock = Clock()
    return clock, MetricWindows(clock, samples=samples, seconds=30.0)


def add(made: MetricWindows, tally: MetricTally, *values: float) -> None:
    made.look()
    for value in values:
        tally.add(value)


def test_nothing_has_no_average() -> None:
    _, made = windows()
    tally, latency = made.tally(), made.percentiles()
    assert isnan(mean_of(tally))
    assert isnan(mean_of())
    assert isnan(highest_of(tally))
    assert isnan(percentile_of(0.5, latency))
    assert rate_of(made, tally) == 0


def test_what_has_just_begun_has_no_enormous_rate() -> None:
    """As in the Java client, the windows that have not passed yet count as passed, but for the present one."""
    clock, made = windows()
    tally = made.tally()
    clock.now += 1
    add(made, tally, 62)
    assert rate_of(made, tally) == pytest.approx(62 / 31)
    assert rate_of(made, tally, by_count=True) == pytest.approx(1 / 31)
    assert rate_of(made, tally, seconds=3600) == pytest.approx(62 / 31 * 3600)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_a_steady_flow_has_its_rate(samples: int) -> None:
    clock, made = windows(samples)
    tally = made.tally()
    for _ in range(1000):
        clock.now += 1
        add(made, tally, 7)
    assert rate_of(made, tally) == pytest.approx(7, rel=0.2)
    assert tally.count == 1000
    assert tally.total == 7000
    assert mean_of(tally) == 7


def test_old_windows_do_not_count() -> None:
    clock, made = windows()
    tally = made.spread()
    add(made, tally, 100, 1)
    clock.now += 30
    add(made, tally, 3, 5)
    assert highest_of(tally) == 100
    assert tally.lowest == 1
    assert mean_of(tally) == pytest.approx(109 / 4)
    clock.now += 30
    made.look()
    assert highest_of(tally) == 5
    assert tally.lowest == 3
    assert mean_of(tally) == 4
    clock.now += 300  # nobody looked meanwhile
    made.look()
    assert isnan(highest_of(tally))
    assert rate_of(made, tally) == 0
    assert (tally.count, tally.total) == (4, 109)


def test_a_window_alone_forgets_at_its_end() -> None:
    clock, made = windows(samples=1)
    tally = made.tally()
    add(made, tally, 9)
    clock.now += 31
    made.look()
    assert isnan(highest_of(tally))


def test_percentiles_are_right_to_a_bucket() -> None:
    clock, made = windows()
    low, high = made.percentiles(), made.percentiles()
    for value in range(1, 501):
        low.add(value)
        high.add(value + 500)
    for share in (0.5, 0.95, 0.99):
        assert percentile_of(share, low, high) == pytest.approx(share * 1000, rel=0.045)
    assert percentile_of(1, low, high) == 1000
    clock.now += 30
    made.look()
    low.add(0.0)
    assert percentile_of(0.5, low) == pytest.approx(250, rel=0.05)
    clock.now += 30
    made.look()
    assert percentile_of(0.5, low) == 0


def test_windows_of_no_length_are_very_short() -> None:
    clock = Clock()
    made = MetricWindows(clock, seconds=0)
    tally = made.tally()
    add(made, tally, 5)
    clock.now += 1
    made.look()
    assert isnan(highest_of(tally))


def test_a_number_that_nobody_has_is_forgotten() -> None:
    clock, made = windows()
    kept = made.tally()
    for _ in range(100):
        Percentiles.add(made.percentiles(), 1.0)
    gc.collect()
    clock.now += 30
    made.look()
    assert list(made._tallies) == [kept]


def test_what_is_answered_after_its_window_counts_in_the_next() -> None:
    """A response that took longer than all windows is not forgotten by the time that somebody looks."""
    clock, made = windows()
    traffic = Traffic(made).broker("a")
    counted = ProducerMetrics(made)
    counted.request([], clock.now)
    traffic.sent(10)
    clock.now += 100
    traffic.received(20, 100.0)
    counted.throttled(3.0)
    made.look()
    assert highest_of(traffic.latency) == 100_000
    assert rate_of(made, traffic.responses) > 0
    assert highest_of(counted.throttle_time) == 3000


def test_numbers_are_made_in_one_thread_while_windows_begin_in_another() -> None:
    clock, made = windows()
    kept = [made.tally() for _ in range(3000)]
    over = threading.Event()

    def make() -> None:
        while not over.is_set():
            kept.append(made.tally())
            del kept[3000:]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(30):
            clock.now += 30
            made.look()
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
