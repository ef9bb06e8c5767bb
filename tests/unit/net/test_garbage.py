"""Full garbage collections are held off while large requests are in work, and the process gets its threshold back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kclient.net import garbage
from kclient.net.discarding import emptied, in_slices
from kclient.net.fair_queue import FairQueue
from kclient.net.garbage import HoldOff


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    """The thresholds before; a full collection ends what other tests may have left behind."""
    gc.collect()
    before = gc.get_threshold()
    yield before
    gc.collect()
    gc.set_threshold(*before)


@pytest.mark.slow
def test_full_collections_alone_are_held_off(usual: tuple[int, int, int]) -> None:
    with HoldOff():
        young, middle, old = gc.get_threshold()
        assert (young, middle) == usual[:2]
        assert old > 1000 * usual[2]


@pytest.mark.slow
def test_collecting_by_hand_gives_the_threshold_back_once_no_large_request_is_left(
    usual: tuple[int, int, int],
) -> None:
    with HoldOff():
        gc.collect()
        assert gc.get_threshold() != usual, "the request is still in work"
    gc.collect()
    assert gc.get_threshold() == usual


@pytest.mark.slow
def test_full_collections_are_allowed_again_when_requests_have_been_in_work_for_minutes(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_PATIENCE", 0.0)
    with HoldOff():
        gc.collect(1)
        assert gc.get_threshold() == usual, "though the request is still in work"
        gc.collect()
        assert gc.get_threshold() != usual, "until there was one"


@pytest.mark.slow
def test_full_collections_are_allowed_again_some_seconds_after_the_last_request(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HoldOff():
        pass
    gc.collect(1)
    assert gc.get_threshold() != usual, "what the request left behind makes the interpreter want one"
    monkeypatch.setattr(garbage._collector, "_apart", 0.0)
    gc.collect(1)
    assert gc.get_threshold() == usual


@pytest.mark.slow
def test_the_next_request_holds_them_off_again_though_there_was_none_yet(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HoldOff():
        monkeypatch.setattr(garbage._collector, "_apart", 0.0)
    gc.collect(1)
    assert gc.get_threshold() == usual
    with HoldOff():
        assert gc.get_threshold() != usual


@pytest.mark.slow
def test_one_that_is_due_comes_when_no_request_is_in_work(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = HoldOff(), HoldOff()
    first.begin()
    second.begin()
    monkeypatch.setattr(garbage._collector, "_apart", 0.0)
    for _ in range(usual[2] + 1):
        gc.collect(1)
    first.end()
    assert gc.get_threshold() != usual, "there is another one"
    assert gc.get_count()[2] > usual[2]
    second.end()
    assert gc.get_count()[2] == 0
    assert gc.get_threshold() == usual


@pytest.mark.slow
def test_the_longer_one_takes_the_rarer_they_are(usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter((0.0, 3600.0))
    with HoldOff():
        monkeypatch.setattr(garbage, "time", SimpleNamespace(monotonic=lambda: next(hours)))
        gc.collect()
        monkeypatch.undo()
        assert garbage._collector._apart == 3600.0 / garbage._SHARE


@pytest.mark.slow
def test_work_that_is_dropped_with_its_loop_does_not_hold_them_off_for_ever(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FairQueue(lambda _: None)  # of a loop that was closed: there is no next turn
    flow = queue.flow()
    flow.add(in_slices(emptied([None] * 10_000), flow.clock))
    assert gc.get_threshold() != usual
    del queue, flow
    gc.collect()
    monkeypatch.setattr(garbage._collector, "_apart", 0.0)
    gc.collect(1)
    assert gc.get_threshold() == usual
