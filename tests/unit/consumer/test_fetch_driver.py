"""The loop that fetches: what falls due while it is busy is not slept over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kclient.consumer.fetch.driver import FetchDriver

pytestmark = pytest.mark.anyio


class Asleep(Exception):
    """The loop went to sleep, for so many seconds."""


async def test_a_retry_that_falls_due_while_the_loop_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    time = 100.0
    retry_at = 100.5

    def busy(*_: Any) -> None:
        nonlocal time
        time = 101.0  # the machine stalls: by now the retry is due, and nobody has looked at it

    async def wait(timeout: float | None) -> None:
        raise Asleep(timeout)

    nothing: Any = SimpleNamespace()
    driver = FetchDriver(
        clock=lambda: time,
        lock=threading.RLock(),
        subscriptions=cast("Any", SimpleNamespace(next_retry=lambda now: retry_at if retry_at > now else None)),
        fetcher=cast("Any", SimpleNamespace(next_retry=lambda now: None)),
        positions=cast("Any", SimpleNamespace(start=busy)),
        errors=nothing,
        cluster=nothing,
        tasks=nothing,
        wakeup=cast("Any", SimpleNamespace(wait=wait)),
        topics_of_interest=set,
        update_readiness=busy,
        request_timeout=30,
    )
    for method in ("_track", "send_fetches", "end_sessions"):
        monkeypatch.setattr(driver, method, busy)
    with pytest.raises(Asleep) as slept:
        await driver.run()
    assert slept.value.args == (0,)
