"""Gateways over a store that neither fences nor tells what becomes of what is sent: see `vendor_world`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from kclient.errors import KafkaError
from kclient.gateway import ownership
from kclient.gateway.extents import Enveloped, ExtentTopic
from kclient.gateway.extents.fencing import LeaseGuard
from kclient.gateway.ownership import HeldLease
from kclient.gateway.server import RequestServer
from tests.simulation.promises import Violated
from tests.simulation.seeds import blocks
from tests.simulation.vendor_world import live

MAPPINGS = ("domain", "multilevel", "broker")


ALL_OF_IT = {"closed", "killed", "cut off", "stopped", "clock", "failed", "LOST", "UNANSWERED", "LATE"}
"""What four seeds have happen, or a few more."""


@pytest.mark.slow
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_stores_that_are_taken_over(mapping: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(16):
        counts += live(seed, mapping).counts
        if seed >= 3 and counts.keys() >= ALL_OF_IT:
            break
    assert ALL_OF_IT - counts.keys() == set(), counts
    assert counts["committed"] > 50, counts
    assert counts["joined the group"] > counts["left the group"] > 0, counts
    assert counts["acknowledged"] > 300, counts


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", blocks(5), ids=str)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_hundreds_of_stores(mapping: str, seeds: range) -> None:
    for seed in seeds:
        live(seed, mapping)


def test_a_seed_gives_the_same_world() -> None:
    first, second = (live(3, "domain", takeovers=2) for _ in range(2))
    assert first.acked == second.acked
    assert first.counts == second.counts


def all_count() -> AbstractContextManager[Any]:
    """What an older epoch has left is read like anything else."""
    batches = Enveloped.batches

    def every(self: Enveloped, messages: Any, epoch: int = 0) -> Iterator[Any]:
        for begin, found in self._envelopes(messages):
            one = memoryview(messages)[begin - 28 : begin + found.length]
            yield from batches(self, one)

    return mock.patch.object(Enveloped, "batches", every)


def no_start() -> AbstractContextManager[Any]:
    """No epoch is started: what is not found when it is looked for counts when it comes."""

    async def nothing(self: ExtentTopic) -> None:
        return

    return mock.patch.object(ExtentTopic, "_start_epoch", nothing)


def no_waiting() -> AbstractContextManager[Any]:
    """A gateway of the same number takes the store over at once."""
    take = ownership.take_store

    async def at_once(*arguments: Any, fenced: bool) -> Any:
        return await take(*arguments)

    return mock.patch.object(ownership, "take_store", at_once)


def _lasting(init: Any) -> Any:
    def made(self: RequestServer, table: Any, lease: Any, *others: Any) -> None:
        init(self, table, HeldLease(replace(lease.current, expires=math.inf)), *others)

    return made


def no_lease() -> AbstractContextManager[Any]:
    """Who leads no longer says that something is stored."""
    parts = ExitStack()
    parts.enter_context(mock.patch.object(LeaseGuard, "holds", True))
    parts.enter_context(mock.patch.object(RequestServer, "__init__", _lasting(RequestServer.__init__)))
    return parts


def _answers_for_ever(check: str) -> AbstractContextManager[Any]:
    """Requests are answered whatever has become of the lease, and one of the looks at it is left out."""
    parts = ExitStack()
    parts.enter_context(mock.patch.object(LeaseGuard, check, return_value=None))
    parts.enter_context(mock.patch.object(RequestServer, "__init__", _lasting(RequestServer.__init__)))
    return parts


def stale_reads() -> AbstractContextManager[Any]:
    """What was read is told after the lease's end."""
    return _answers_for_ever("check_read")


def acknowledged_late() -> AbstractContextManager[Any]:
    """What was stored is acknowledged after the lease's end."""
    return _answers_for_ever("check_stored")


LATE = [(stale_reads, 2), (acknowledged_late, 0)]
"""Each with the first seed that finds it."""


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "first"), LATE)
def test_whoever_speaks_after_the_end_of_its_lease_is_found(
    broken: Callable[[], AbstractContextManager[Any]], first: int
) -> None:
    with broken(), pytest.raises(Violated):
        for seed in range(first, first + 10):
            live(seed, "domain")


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "first"), [(all_count, 0), (no_start, 9), (no_waiting, 0), (no_lease, 0)])
def test_what_is_broken_on_purpose_is_found(broken: Callable[[], AbstractContextManager[Any]], first: int) -> None:
    with broken():
        for seed in range(first, first + 20):
            try:
                live(seed, "domain")
            except (Violated, KafkaError):
                return
    pytest.fail("nothing was found")
