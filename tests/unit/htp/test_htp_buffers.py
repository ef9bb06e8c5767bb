"""Buffers of large reads are used again once nobody holds them, and never before."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from kclient.large_buffers import LARGEST, SMALLEST, LargeBuffers


def address(buffer: bytearray | memoryview) -> int:
    return id(buffer.obj if isinstance(buffer, memoryview) else buffer)


def test_a_buffer_is_used_again_when_it_was_let_go() -> None:
    pool = LargeBuffers()
    first = pool.take(SMALLEST + 5)
    assert len(first) == SMALLEST + 5
    where = address(first)
    del first
    assert address(pool.take(2 * SMALLEST)) == where


def test_a_buffer_that_is_held_is_left_alone() -> None:
    pool = LargeBuffers()
    first = pool.take(SMALLEST)
    part = memoryview(first)[10:20]
    part[:] = b"0123456789"
    del first
    others = [pool.take(SMALLEST) for _ in range(5)]
    for other in others:
        other[:] = bytes(len(other))
    assert bytes(part) == b"0123456789"


def test_small_and_huge_reads_are_not_kept() -> None:
    pool = LargeBuffers()
    assert isinstance(pool.take(SMALLEST - 1), bytearray)
    assert isinstance(pool.take(LARGEST + 1), bytearray)


def test_buffers_of_several_sizes_are_kept_side_by_side() -> None:
    pool = LargeBuffers()
    where = {size: address(pool.take(size)) for size in (SMALLEST, 2 * SMALLEST, 4 * SMALLEST)}
    for size, kept in [*where.items(), *where.items()]:
        assert address(pool.take(size)) == kept


def test_one_that_is_free_is_found_among_very_many_that_are_read() -> None:
    """Few are looked at each time, others the next time."""
    pool = LargeBuffers()
    held = [pool.take(SMALLEST) for _ in range(300)]
    places = {address(each) for each in held}
    del held[150]
    assert any(address(pool.take(SMALLEST)) in places for _ in range(60))
    assert len({address(each) for each in held}) == 299


@pytest.mark.slow
def test_the_pool_is_bounded_and_makes_room() -> None:
    pool = LargeBuffers()
    held = [pool.take(LARGEST) for _ in range(10)]
    assert pool.size == 4 * LARGEST
    beyond = pool.take(SMALLEST + 5)
    assert isinstance(beyond, bytearray), "not the next power of two: readers count what they asked for"
    assert len(beyond) == SMALLEST + 5
    held.clear()
    small = pool.take(SMALLEST)
    where = address(small)
    del small
    assert address(pool.take(SMALLEST)) == where
    assert pool.size <= 4 * LARGEST


@pytest.mark.parametrize("uncounted", range(4))
def test_whatever_the_interpreter_counts(monkeypatch: pytest.MonkeyPatch, uncounted: int) -> None:
    """Newer ones do not count what a call is passed: one reader more must not look like none."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda thing: count(thing) - uncounted)
    spec = importlib.util.find_spec(LargeBuffers.__module__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pool = module.LargeBuffers()
    held = pool.take(SMALLEST)
    other = None
    for _ in range(200):
        other = pool.take(SMALLEST)
        assert address(other) != address(held)
    assert pool.size == 3 * SMALLEST, "of the others one is read, and one is free"
    del other
    large = [pool.take(LARGEST) for _ in range(4)]
    assert pool.size == SMALLEST + 3 * LARGEST, "those that are free have made room"
    assert len({address(each) for each in [held, *large]}) == 5
