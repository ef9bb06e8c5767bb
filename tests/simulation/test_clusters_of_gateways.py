"""Several gateways on one store, which come, go, crash and are cut off: see `cluster_world`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from kclient.gateway.assignment import Assigned, Generations
from kclient.gateway.groups.moving import CoordinatorClaims, GroupMoves
from kclient.gateway.log import PartitionLog
from tests.simulation.cluster_world import live
from tests.simulation.promises import Violated
from tests.simulation.seeds import blocks

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_gateways_come_and_go() -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        counts += live(seed).counts
    for what in ("joined", "closed", "killed", "cut off", "committed", "administered", "moved", "read", "error 6"):
        assert counts[what], counts
    assert counts["acknowledged"] > 500, counts


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", blocks(5), ids=str)
def test_hundreds_of_clusters(seeds: range) -> None:
    for seed in seeds:
        live(seed)


def test_a_seed_gives_the_same_world() -> None:
    first, second = (live(3, times=3) for _ in range(2))
    assert first.acked == second.acked
    assert first.counts == second.counts


def epochs_stay() -> AbstractContextManager[Any]:
    """A new leader has the epoch of the old one, so that the store seals nothing."""

    def leader(self: Generations, unit: int) -> Assigned:
        return Assigned(self.owner(unit), self.kept[0].number)

    return mock.patch.object(Generations, "leader", leader)


def groups_are_answered_at_once() -> AbstractContextManager[Any]:
    """Before they are read."""
    return mock.patch.object(GroupMoves, "ready", return_value=True)


def groups_are_written_whoever_coordinates_them() -> AbstractContextManager[Any]:
    """On the lease alone."""

    def of(self: CoordinatorClaims, group_id: str) -> Mapping[str, int]:
        return {}

    return mock.patch.object(CoordinatorClaims, "of", of)


def producers_are_forgotten() -> AbstractContextManager[Any]:
    """Who takes a partition over does not look whose batches are in it."""
    recovered = PartitionLog.recovered

    def without(log: PartitionLog, *arguments: Any) -> None:
        before = log._windows.copy()
        recovered(log, *arguments)
        log._windows.clear()
        for producer_id, window in before.items():
            log._windows.put(producer_id, window)

    return mock.patch.object(PartitionLog, "recovered", without)


BROKEN: list[Callable[[], AbstractContextManager[Any]]] = [
    epochs_stay,
    groups_are_answered_at_once,
    groups_are_written_whoever_coordinates_them,
    producers_are_forgotten,
]


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: str(broken.__name__))
def test_what_is_broken_on_purpose_is_found(broken: Callable[[], AbstractContextManager[Any]]) -> None:
    with broken(), pytest.raises(Violated):
        for seed in range(20):
            live(seed)
