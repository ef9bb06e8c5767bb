"""The arithmetic of quotas beside Kafka's own: how long who has used so much at such times is throttled."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.gateway.quotas.rates import LONGEST_MS, RateWindow, TokenBucket, WindowedRate

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "QuotasOracle.java"
GAPS = (0, 1, 7, 90, 400, 999, 1000, 1001, 2500, 9_999, 10_000, 11_000, 11_001, 40_000)
"""Milliseconds between two records."""


def histories() -> Iterator[list[str]]:
    """What is measured, as the oracle reads it."""
    chances = random.Random(4)
    for number in range(400):
        kind = ("rate", "tokens")[number % 2]
        samples, seconds = chances.choice([(11, 1), (11, 1), (2, 1), (3, 5), (40, 1)])
        quota = chances.choice([1.0, 2.5, 100.0, 10_000.0, 1e6])
        history = [f"N {kind} {samples} {seconds} {quota}"]
        time = 1_000_000 + chances.randrange(5_000)
        for _ in range(60):
            time += chances.choice(GAPS[: chances.randrange(3, len(GAPS) + 1)])
            value = quota * chances.choice([0.0, 0.01, 0.5, 1.0, 3.0, 20.0])
            history.append(f"R {time} {value}")
            if value and kind == "rate" and chances.random() < 0.2:
                history.append(f"R {time} {-value}")  # as of a fetch that is answered with nothing
            if chances.random() < 0.05:
                quota *= chances.choice([0.5, 2.0])
                history.append(f"B {quota}")
        yield history


def measured(history: list[str]) -> Iterator[int]:
    """The same, measured here."""
    _, kind, samples, seconds, quota = history[0].split()
    window, limit = RateWindow(int(samples), int(seconds) * 1000), float(quota)
    rate, bucket = WindowedRate(window), TokenBucket(window)
    for line in history[1:]:
        fields = line.split()
        if fields[0] == "B":
            limit = float(fields[1])
            continue
        time, value = int(fields[1]), float(fields[2])
        if kind == "rate":
            rate.record(value, time)
            yield rate.throttle_ms(limit, time)
        else:
            bucket.take(value, limit, time)
            yield bucket.throttle_ms(limit, time)


def test_throttle_times_are_kafkas(kafka_jars_4: Path) -> None:
    all_histories = list(histories())
    given = "\n".join(line for history in all_histories for line in history)
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
    told = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    found = [number for history in all_histories for number in measured(history)]
    assert len(told) == len(found)
    wrong = [
        (number, mine, theirs)
        for number, (mine, theirs) in enumerate(zip(found, map(int, told), strict=True))
        if abs(mine - min(theirs, LONGEST_MS)) > 1  # sums of fractions may be rounded otherwise
    ]
    assert not wrong[:10]
    assert sum(number > 0 for number in found) > 1000
