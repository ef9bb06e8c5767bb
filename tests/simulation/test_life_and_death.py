"""Topics that are made, deleted and made again while everything else goes on, and producers that do not hear what
becomes of what they send: see `lives`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
import trio

from kclient.concurrency import first_leaf
from kclient.errors import KafkaError
from kclient.gateway import log as log_module
from kclient.gateway.append import Append, AppendEvent
from kclient.gateway.compaction.partition import Cleaned, PartitionCleaning
from kclient.gateway.leadership import AssignedLeadership
from kclient.gateway.log import Checkpoint, PartitionLog
from kclient.gateway.partition import Partition
from kclient.gateway.undecided import Undecided
from kclient.gateway.virtual.topic import SharedTopic
from kclient.htp.embedded.files import SyncPoint
from tests.simulation import lives_breakages as taken_out
from tests.simulation.lives import live
from tests.simulation.lives_coverage import counted
from tests.simulation.lives_model import Violated
from tests.simulation.seeds import blocks
from tests.sweeps import long
from tests.unit.htp.disks import PowerCutFiles

BLOCKS = {"memory": 10, "embedded": 7}
"""How many lives are tried in one go: those on disks take three times as long."""


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *long(1, 2)])
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_lives(backend: str, block: int) -> None:
    count = BLOCKS[backend]
    with counted() as seen:
        for seed in range(block * count, (block + 1) * count):
            live(seed, backend)
    assert seen["idempotent"] > 300, seen
    assert seen["duplicates"] > 100, seen
    assert seen["queued"] > 10, seen
    assert seen["on their way"] > 10, seen
    assert seen["unknown"] > 10, seen
    assert 0 < seen["found"] < seen["unknown"], seen


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", blocks(5), ids=str)
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_hundreds_of_lives(backend: str, seeds: range) -> None:
    with counted() as seen:
        for seed in seeds:
            live(seed, backend)
    assert seen["duplicates"] > 10 * len(seeds), seen
    assert seen["on their way"] > len(seeds), seen
    assert seen["queued twice"] > len(seeds) / 5, seen
    assert seen["left behind"], seen
    assert seen["opened anew"] > len(seeds), seen
    assert seen["unknown"] > 2 * len(seeds), seen
    assert len(seeds) / 2 < seen["found"] < seen["unknown"], seen
    assert seen["tried again"], seen


@contextmanager
def _replaced() -> Iterator[list[int]]:
    """How many segments each compaction replaces."""
    clean = PartitionCleaning.run
    found: list[int] = []

    async def counting(cleaning: PartitionCleaning) -> Cleaned:
        done = await clean(cleaning)
        found.append(done.segments)
        return done

    with mock.patch.object(PartitionCleaning, "run", counting):
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "seeds"), [("memory", range(3, 7)), ("embedded", range(3, 5))])
def test_lives_of_compacted_topics(backend: str, seeds: range) -> None:
    with _replaced() as segments:
        for seed in seeds:
            live(seed, backend, compacting=True)
    assert sum(segments) > 5 * len(seeds), segments


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", blocks(5), ids=str)
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_hundreds_of_lives_of_compacted_topics(backend: str, seeds: range) -> None:
    for seed in seeds:
        live(seed, backend, compacting=True)


@pytest.mark.slow
def test_a_rewritten_segment_that_is_not_synced_is_found() -> None:
    """It takes the old one's place, and then the power is cut."""
    with _segments_are_put_in_place_unsynced(), pytest.raises(ExceptionGroup) as found:
        for seed in range(64, 104):
            live(seed, "embedded", compacting=True)
    assert isinstance(first_leaf(found.value), Violated)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "compacting"), [("embedded", False), ("memory", True)])
def test_a_seed_gives_the_same_life(backend: str, compacting: bool) -> None:
    lives = [live(8, backend, compacting=compacting) for _ in range(2)]
    first, second = (
        [(each.serial, each.stamp_ms, each.offset) for each in world.model.sent.values()] for world in lives
    )
    assert first == second
    assert first


# --- what is broken on purpose is found ---


def _nothing_is_a_duplicate() -> AbstractContextManager[Any]:
    check = PartitionLog._check

    def forgetful(log: PartitionLog, *args: Any) -> None:
        check(log, *args)

    return mock.patch.object(PartitionLog, "_check", forgetful)


def _fewer_are_remembered() -> AbstractContextManager[Any]:
    return mock.patch.object(log_module, "WINDOW", 4)


def _queued_appends_are_reversed() -> AbstractContextManager[Any]:
    take = Partition._take_queued

    async def reversed_first(partition: Partition) -> None:
        partition._queue.reverse()
        await take(partition)

    return mock.patch.object(Partition, "_take_queued", reversed_first)


def _repeats_are_answered_at_once() -> AbstractContextManager[Any]:
    return mock.patch.object(PartitionLog, "_pending_at", return_value=None)


def _queued_repeats_are_answered_at_once() -> AbstractContextManager[Any]:
    def follow(append: Append, first: Append) -> None:
        append.base_offset, append.timestamp, append.error = first.base_offset, first.timestamp, first.error
        append.move(AppendEvent.FAILED if first.error else AppendEvent.SYNCED)
        append.tell()

    return mock.patch.object(Append, "follow", follow)


def _checkpoints_forget_producers() -> AbstractContextManager[Any]:
    checkpoint = PartitionLog.checkpoint

    def without(log: PartitionLog, **options: Any) -> Checkpoint:
        full = checkpoint(log, **options)
        return Checkpoint(full.next_offset, full.start_offset, {}, full.epochs)

    return mock.patch.object(PartitionLog, "checkpoint", without)


def _recovery_forgets_producers() -> AbstractContextManager[Any]:
    recovered = PartitionLog.recovered

    def without(log: PartitionLog, *args: Any) -> None:
        before = log._windows.copy()
        recovered(log, *args)
        log._windows.clear()
        for producer_id, window in before.items():
            log._windows.put(producer_id, window)

    return mock.patch.object(PartitionLog, "recovered", without)


def _appends_of_what_has_gone_are_waited_for() -> AbstractContextManager[Any]:
    end = Partition._end

    def untold(partition: Partition, error: KafkaError) -> None:
        pending, partition.log.pending = partition.log.pending, deque()
        end(partition, error)
        partition.log.pending = pending

    return mock.patch.object(Partition, "_end", untold)


def _what_is_not_known_counts_as_lost() -> AbstractContextManager[Any]:
    return mock.patch.object(Partition, "_stop", Partition._fail)


def _what_is_not_known_counts_as_stored() -> AbstractContextManager[Any]:
    decide = Undecided.decide

    def trusting(undecided: Undecided, log: PartitionLog, error: Any) -> list[Append]:
        undecided._stored = set(undecided._by_offset)
        return decide(undecided, log, error)

    return mock.patch.object(Undecided, "decide", trusting)


def _the_old_epoch_is_not_sealed() -> AbstractContextManager[Any]:
    async def the_same(_: AssignedLeadership, __: object, above: int, *, since: int) -> int:
        await trio.lowlevel.checkpoint()
        return above

    return mock.patch.object(AssignedLeadership, "raise_epoch", the_same)


def _index_entries_before_their_messages() -> AbstractContextManager[Any]:
    save = SharedTopic.save

    async def early(topic: SharedTopic, commit: Any = None) -> None:
        end = topic.end
        topic.end, topic._moved = topic.next, True
        try:
            await save(topic, commit)
        finally:
            topic.end = end

    return mock.patch.object(SharedTopic, "save", early)


def _segments_are_put_in_place_unsynced() -> AbstractContextManager[Any]:
    sync = PowerCutFiles.sync

    def forgetful(files: PowerCutFiles, fd: int, point: SyncPoint) -> None:
        if point is not SyncPoint.REWRITTEN:
            sync(files, fd, point)

    return mock.patch.object(PowerCutFiles, "sync", forgetful)


SOON = [
    _nothing_is_a_duplicate,
    _fewer_are_remembered,
    _queued_appends_are_reversed,
    _repeats_are_answered_at_once,
    _recovery_forgets_producers,
    _what_is_not_known_counts_as_lost,
    _what_is_not_known_counts_as_stored,
]
LATER = {
    _queued_repeats_are_answered_at_once: "embedded",
    _checkpoints_forget_producers: "memory",
    _appends_of_what_has_gone_are_waited_for: "embedded",
    _the_old_epoch_is_not_sealed: "memory",
}
"""Which take a hundred lives and more, by the store where they are found soonest."""


@pytest.mark.parametrize(
    ("breakage", "backend"),
    [(breakage, "memory") for breakage in SOON]
    + [pytest.param(breakage, backend, marks=pytest.mark.long) for breakage, backend in LATER.items()],
)
@pytest.mark.timeout(3600)
def test_what_is_broken_on_purpose_is_found(breakage: Callable[[], AbstractContextManager[Any]], backend: str) -> None:
    with breakage(), pytest.raises(ExceptionGroup) as found:
        for seed in range(300):
            live(seed, backend)
    assert isinstance(first_leaf(found.value), Violated)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "backend", "first"),
    [
        (taken_out.retention_opens_what_has_gone, "memory", 1),
        (taken_out.retention_opens_what_has_gone, "embedded", 8),
        (taken_out.the_start_opens_what_has_gone, "memory", 8),
        (taken_out.the_start_opens_what_has_gone, "embedded", 9),
        (taken_out.retention_trims_by_name, "memory", 9),
        (taken_out.retention_goes_by_old_settings, "memory", 24),
        (taken_out.deletions_stumble_over_new_partitions, "memory", 3),
        (taken_out.offsets_stay, "memory", 2),
        (taken_out.topics_are_altered_as_they_were, "memory", 1),
        (taken_out.the_broker_is_altered_as_it_was, "memory", 0),
    ],
)
def test_taken_out_mends_are_found(
    breakage: Callable[[], AbstractContextManager[Any]], backend: str, first: int
) -> None:
    with breakage(), pytest.raises(ExceptionGroup) as found:
        for seed in range(first, first + 20):
            live(seed, backend)
    assert isinstance(first_leaf(found.value), AssertionError)  # `Violated`, or the gateway has closed a connection


@pytest.mark.slow
def test_an_index_entry_before_its_message_is_found() -> None:
    """Of a topic that partitions share: the power is cut before the message is synced."""
    live(15, "embedded", "virtual")
    with _index_entries_before_their_messages(), pytest.raises(ExceptionGroup) as found:
        for seed in range(15, 55):
            live(seed, "embedded", "virtual")
    assert isinstance(first_leaf(found.value), Violated)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_hundreds_of_lives_with_shared_topics(backend: str) -> None:
    for seed in range(2000, 2100):
        live(seed, backend, "virtual")
