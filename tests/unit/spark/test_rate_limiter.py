"""The pace of a replay: never more than the rate, made up for by a second at most."""

from __future__ import annotations

import pytest

from kclient.spark.pipelines.rate_limiter import Rate, RateLimiter


def test_no_limit() -> None:
    assert Rate().rows_at_once(1000, 1 << 20) == 1000
    assert RateLimiter(Rate(), 0).wait(0, 1_000_000, 1 << 30) == 0


def test_records_of_a_second() -> None:
    pace, now, sent = RateLimiter(Rate(records=100), 50.0), 50.0, 0
    while sent < 1000:
        now += pace.wait(now, 25, 10**9)
        sent += 25
    assert now == pytest.approx(50 + (1000 - 25) / 100)


def test_bytes_count_where_they_are_slower() -> None:
    pace = RateLimiter(Rate(records=100, bytes=1000), 0)
    assert pace.wait(0, 10, 5000) == 0
    assert pace.wait(0, 10, 10) == 5
    assert pace.wait(5, 10, 10) == pytest.approx(0.1)


def test_a_pause_is_made_up_for_by_a_second_only() -> None:
    pace = RateLimiter(Rate(records=10), 0)
    assert [pace.wait(100, 10, 0) for _ in range(3)] == [0, 0, 1]


def test_pieces_are_small_enough_for_an_even_flow() -> None:
    assert Rate(records=1000).rows_at_once(16_384, 1 << 20) == 250
    assert Rate(bytes=4000).rows_at_once(1000, 100_000) == 10
    assert Rate(records=0.5).rows_at_once(1000, 1) == 1
    assert Rate(records=10, bytes=100).share(0.5) == Rate(5, 50)
