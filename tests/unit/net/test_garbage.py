"""Full garbage collections are held off while large requests are in work, and the process gets its threshold back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kclient.net import garbage
from kclient.net.garbage import HoldOff


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    """The thresholds before; a full collection ends what other tests may have left behind."""
    gc.collect()
    before = gc.get_threshold()
    yield before
    gc.collect()
    gc.set_threshold(*before)


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
def test_full_collections_are_allowed_again_after_some_seconds(
    usual: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_APART", 0.0)
    with HoldOff():
        gc.collect(1)
        assert gc.get_threshold() == usual, "though the request is still in work"
        gc.collect()
        assert gc.get_threshold() != usual, "until there was one"
    gc.collect(1)
    assert gc.get_threshold() == usual
