"""How fast bytes may be moved: decided without a clock."""

from __future__ import annotations

import pytest

from kclient.migration import Throttle


def test_without_a_limit_nobody_waits() -> None:
    throttle = Throttle(None, 0.0)
    throttle.moved(1 << 40, 0.0)
    assert (throttle.delay(0.0), throttle.most(7)) == (0.0, 7)


def test_the_average_is_kept() -> None:
    throttle, now, moved = Throttle(1000, 0.0), 0.0, 0
    while now < 60:
        now += throttle.delay(now)
        throttle.moved(700, now)
        moved += 700
    assert moved <= 1000 * (now + 1) + 700


def test_what_was_not_used_is_kept_for_a_second() -> None:
    throttle = Throttle(1000, 0.0)
    throttle.moved(1000, 100.0)
    assert throttle.delay(100.0) == 0.0
    throttle.moved(500, 100.0)
    assert throttle.delay(100.0) == pytest.approx(0.5)
    assert throttle.delay(100.5) == 0.0


def test_no_more_than_a_second_is_asked_for_at_once() -> None:
    assert Throttle(1000, 0.0).most(1 << 20) == 1000
    assert Throttle(0.5, 0.0).most(1 << 20) == 1


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan")])
def test_a_limit_is_a_positive_number(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive number"):
        Throttle(wrong, 0.0)
