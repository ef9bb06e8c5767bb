"""Several gateways on one store, which come, go, crash and are cut off: see `cluster_world`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import trio

from kclient.gateway.assignment import Assigned, Generations
from kclient.gateway.groups.moving import CoordinatorClaims, GroupMoves
from kclient.gateway.handing_over import HandOver
from kclient.gateway.log import PartitionLog
from kclient.htp.memory.state import MemoryLog
from kclient.htp.memory.topic import MemoryTopic
from tests.simulation import cluster_nodes
from tests.simulation.cluster_world import EVENTS, live
from tests.simulation.promises import Violated
from tests.simulation.seeds import blocks

pytestmark = pytest.mark.filterwarnings("ignore")


ALL_OF_IT = {
    *EVENTS, "joined", "told to move", "groups drained", "committed", "joined the group", "left the group",
    "made", "grown", "deleted", "used", "error 6",
}  # fmt: skip
"""What a dozen seeds have happen, or two."""


@pytest.mark.slow
def test_gateways_come_and_go() -> None:
    counts: Counter[str] = Counter()
    for seed in range(10, 40):
        counts += live(seed).counts
        if seed >= 20 and counts.keys() >= ALL_OF_IT:
            break
    assert ALL_OF_IT - counts.keys() == set(), counts
    assert counts["acknowledged"] > 500, counts
    assert counts["read"] > 1000, counts


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


def an_epoch_is_not_checked() -> AbstractContextManager[Any]:
    """The store takes what a leader sends that was followed by another one."""

    def use(topic: MemoryTopic) -> MemoryLog:
        log = topic._log
        if topic._closed or log.gone:
            topic._refuse()
        return log

    return mock.patch.object(MemoryTopic, "_use", use)


def handed_over_before_the_sync() -> AbstractContextManager[Any]:
    """Who is to hand over says that it has, and goes on with what is on its way."""
    hand_over = HandOver._hand_over

    async def early(hand: HandOver, number: int) -> None:
        told, version = await hand._releases.own()
        if told < number:
            await hand._releases.release(number, version, {})
        await trio.sleep(1)
        await hand_over(hand, number)

    return mock.patch.object(HandOver, "_hand_over", early)


PLANNED = ("moved", "drained", "closed")
"""What happens where nothing goes wrong: each leader hands over what another one is to lead."""

BROKEN: dict[Callable[[], AbstractContextManager[Any]], int] = {
    epochs_stay: 0,
    groups_are_answered_at_once: 0,
    groups_are_written_whoever_coordinates_them: 54,
    producers_are_forgotten: 0,
}
"""Each with a seed from which on it is found soon."""


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: str(broken.__name__))
def test_what_is_broken_on_purpose_is_found(broken: Callable[[], AbstractContextManager[Any]]) -> None:
    first = BROKEN[broken]
    with broken(), pytest.raises(Violated):
        for seed in range(first, first + 40):
            live(seed, backend="memory")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: str(broken.__name__))
def test_it_is_found_within_two_hundred(broken: Callable[[], AbstractContextManager[Any]]) -> None:
    with broken(), pytest.raises(Violated):
        for seed in range(2000, 2200):
            live(seed, backend="memory")


def zombies(seed: int) -> None:
    live(seed, times=6, backend="memory", events=("cut off", "cut off", "moved", "drained"))


@pytest.mark.slow
def test_an_epoch_that_is_not_checked_is_found() -> None:
    """Whoever does not hear that others lead goes on sending."""
    with an_epoch_is_not_checked(), pytest.raises(Violated):
        for seed in range(15, 115):
            zombies(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_it_is_found_among_zombies_within_two_hundred() -> None:
    with an_epoch_is_not_checked(), pytest.raises(Violated):
        for seed in range(2000, 2200):
            zombies(seed)


def planned(seed: int) -> None:
    with mock.patch.object(cluster_nodes, "DELAY_S", 0.3):
        live(seed, times=5, backend="memory", events=PLANNED)


@pytest.mark.slow
def test_a_hand_over_before_the_sync_is_found() -> None:
    """A store that checks epochs makes good for it. One that does not is safe by the order of a hand-over alone."""
    with an_epoch_is_not_checked():
        planned(5)
        with handed_over_before_the_sync(), pytest.raises(Violated):
            for seed in range(5, 45):
                planned(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_hand_overs_need_no_epochs() -> None:
    with an_epoch_is_not_checked():
        for seed in range(2000, 2200):
            planned(seed)
