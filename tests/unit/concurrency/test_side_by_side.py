"""Calls made side by side: so many at once, each to its end, and the first failure as it is."""

from __future__ import annotations

import anyio
import pytest

from kclient.concurrency import side_by_side

pytestmark = pytest.mark.anyio


async def test_so_many_are_under_way_at_once() -> None:
    running = most = over = 0

    async def call(number: int) -> None:
        nonlocal running, most, over
        running += 1
        most = max(most, running)
        for _ in range(5 + number % 3):
            await anyio.lowlevel.checkpoint()
        running -= 1
        over += 1

    async with side_by_side(3) as begin:
        for number in range(20):
            await begin(call, number)
    assert (most, running, over) == (3, 0, 20)


async def test_all_are_under_way_without_a_bound() -> None:
    arrived, all_there = 0, anyio.Event()

    async def call() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 100:
            all_there.set()
        await all_there.wait()

    with anyio.fail_after(10):
        async with side_by_side() as begin:
            for _ in range(100):
                await begin(call)
    assert arrived == 100


async def test_one_that_fails_keeps_none_from_its_end() -> None:
    over: list[int] = []

    async def call(number: int) -> None:
        if number % 2:
            raise ValueError(number)
        await anyio.lowlevel.checkpoint()
        over.append(number)

    with pytest.raises(ValueError, match=r"^1$"):
        async with side_by_side(2) as begin:
            for number in range(5):
                await begin(call, number)
    assert over == [0, 2, 4]


async def test_a_block_that_fails_ends_them() -> None:
    async with anyio.create_task_group() as tasks:
        with pytest.raises(KeyError, match="why"):
            async with side_by_side() as begin:
                await begin(anyio.sleep_forever)
                raise KeyError("why")
        assert not tasks.cancel_scope.cancel_called


async def test_cancelling() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with side_by_side(1) as begin:
            await begin(anyio.sleep_forever)
            await begin(anyio.sleep_forever)
    assert scope.cancelled_caught
