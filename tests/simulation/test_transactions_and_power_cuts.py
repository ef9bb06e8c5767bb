"""Transactions on gateways whose power is cut at each step: see `power_world`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

from kclient.htp.embedded.files import SyncPoint
from tests.simulation.broken_transactions import (
    check_found,
    markers_are_sent_before_prepare,
    markers_count_before_they_are_synced,
    offsets_are_committed_behind_complete,
)
from tests.simulation.power_world import POWER_SEAMS, cut_power
from tests.simulation.seeds import blocks
from tests.simulation.transaction_seams import Seam

pytestmark = pytest.mark.filterwarnings("ignore")

SEEDS = len(POWER_SEAMS)
"""So many seeds begin with each seam."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_power_is_cut_at_every_step() -> None:
    """What is rare, one seed in six or so, may come later: which seed has it is another one in each process."""
    rare = ("cut amid a start", "zombie", "aborted", "offsets seen", "KafkaTimeoutError")
    counts: Counter[str] = Counter()
    for seed in range(4 * SEEDS):
        counts += cut_power(seed).counts
        if seed >= SEEDS - 1 and all(counts[what] for what in rare):
            break
    for seam in POWER_SEAMS:
        assert counts[str(seam)], (str(seam), counts)
    for what in rare:
        assert counts[what], (what, counts)
    assert counts["committed"] > 3 * SEEDS, counts
    assert counts["read"] > 5 * SEEDS, counts


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", blocks(10), ids=str)
def test_hundreds_of_machines(seeds: range) -> None:
    for seed in seeds:
        cut_power(seed)


# Rules that are broken on purpose


def nothing_is_broken() -> AbstractContextManager[Any]:
    """What is wrong is the disk."""
    return nullcontext()


_BEFORE_PREPARE = partial(cut_power, seams=[Seam("prepare", made=False)])
_BEHIND_COMPLETE = partial(cut_power, seams=[Seam("complete", made=True)])
_WITHOUT_SYNCS = partial(cut_power, skip={SyncPoint.MESSAGES, SyncPoint.EVERYTHING})

BROKEN: dict[Callable[[], AbstractContextManager[Any]], tuple[Callable[[int], object], int]] = {
    markers_are_sent_before_prepare: (_BEFORE_PREPARE, 0),
    markers_count_before_they_are_synced: (_BEHIND_COMPLETE, 0),
    offsets_are_committed_behind_complete: (_BEHIND_COMPLETE, 70),
    nothing_is_broken: (_WITHOUT_SYNCS, 0),
}
"""Each with what finds it, and a seed from which on that does soon: the offsets' one in thirty."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(each, marks=pytest.mark.long if each is offsets_are_committed_behind_complete else ())
        for each in BROKEN
    ],
    ids=lambda broken: str(broken.__name__),
)
def test_what_is_broken_on_purpose_is_found(broken: Callable[[], AbstractContextManager[Any]]) -> None:
    lives, first = BROKEN[broken]
    check_found(broken, lives, range(first, first + 150))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: str(broken.__name__))
def test_it_is_found_within_two_hundred(broken: Callable[[], AbstractContextManager[Any]]) -> None:
    lives, _ = BROKEN[broken]
    check_found(broken, lives, range(2000, 2200))
