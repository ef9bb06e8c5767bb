"""Whatever the brokers and the budget are like: every partition that can be read moves, and the memory is bounded."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import blocks
from tests.simulation.simulated_fetches import World

SECONDS = 40.0


def live(seed: int) -> World:
    world = World(seed)
    for _ in range(round(SECONDS)):
        world.run(1.0)
        starving = world.starving()
        assert not starving, [(log.tp, log.seen, log.end, world.subscriptions.state(log.tp)) for log in starving]
    return world


@pytest.mark.parametrize("block", range(6))
def test_every_partition_moves_within_the_bound_of_memory(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        assert live(seed).rounds > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", blocks(4), ids=str)
def test_every_partition_moves_in_hundreds_of_clusters(seeds: range) -> None:
    for seed in seeds:
        live(seed)
