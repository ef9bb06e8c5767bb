"""Looks at the leases of gateways: what one has read serves others for a while, and never says less than they know."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.gateway.membership import LeaseLooks
from kclient.htp import StorageError

pytestmark = pytest.mark.anyio


class Counting:
    """A manager whose leases are numbered by the readings."""

    def __init__(self) -> None:
        self.read = 0
        self.failing = False

    async def leases(self, _prefix: str) -> list[int]:
        self.read += 1
        if self.failing:
            raise StorageError("nobody answers")
        return [self.read]


async def test_of_two_who_follow_them_one_reads() -> None:
    for behind in (0.001, 0.1, 0.5, 0.9, 0.999):
        now, manager = 100.0, Counting()
        looks: Any = LeaseLooks(manager, lambda: now)  # type: ignore[arg-type]  # noqa: B023
        for second in range(20):
            now = 100.0 + second
            assert (await looks.look()) == ([second + 1], now), "who evicts others sees them as they are"
            now += behind
            assert (await looks.recent(0)) == ([second + 1], 100.0 + second)
        now += 2
        assert (await looks.recent(0)) == ([21], now), "nobody else reads any more"


async def test_what_was_read_before_something_became_known_is_read_again() -> None:
    now, manager = 100.0, Counting()
    looks: Any = LeaseLooks(manager, lambda: now)  # type: ignore[arg-type]
    first = await looks.recent(0)
    now += 0.1
    known = looks.now()
    assert await looks.recent(99.0) is first
    now += 0.1
    second = await looks.recent(known)
    assert second.at == now
    assert second is not first
    assert await looks.recent(known) is second


async def test_a_look_that_fails_serves_nobody() -> None:
    manager = Counting()
    looks = LeaseLooks(manager)  # type: ignore[arg-type]
    manager.failing = True
    for _ in range(2):
        with pytest.raises(StorageError):
            await looks.recent(0)
    manager.failing = False
    assert (await looks.recent(0)).leases == [3]
