"""Topics that are made, deleted and made again while everything else goes on: see `lives`."""

from __future__ import annotations

import pytest

from tests.simulation.lives import live

BLOCK = 10
LONG = 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 3 * BLOCK, BLOCK))
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_lives(backend: str, first: int) -> None:
    for seed in range(first, first + BLOCK):
        live(seed, backend)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 5000, LONG))
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_thousands_of_lives(backend: str, first: int) -> None:
    for seed in range(first, first + LONG):
        live(seed, backend)


def test_a_seed_gives_the_same_life() -> None:
    lives = [live(7, "embedded") for _ in range(2)]
    first, second = (
        [(each.serial, each.stamp_ms, each.offset) for each in world.model.sent.values()] for world in lives
    )
    assert first == second
    assert first
