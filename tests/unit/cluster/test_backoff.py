"""Back-off is exponential with jitter, between its bounds."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.cluster import Backoff


def test_grows_and_stops_growing() -> None:
    backoff = Backoff(100, 1000, jitter=0.0)
    assert [backoff.seconds(n) for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_nothing_to_wait_before_the_first_failure() -> None:
    assert Backoff(100, 1000).seconds(0) == 0.0
    assert Backoff(0, 0).seconds(5) == 0.0


def test_equal_bounds_ask_for_a_constant_delay() -> None:
    assert {Backoff(50, 50).seconds(n) for n in range(1, 10)} == {0.05}


@given(attempts=st.integers(1, 10_000), seed=st.integers())
def test_jitter_stays_within_a_fifth(attempts: int, seed: int) -> None:
    exact = Backoff(100, 1000, jitter=0.0).seconds(attempts)
    drawn = Backoff(100, 1000, random=Random(seed)).seconds(attempts)
    assert exact * 0.8 <= drawn <= exact * 1.2
