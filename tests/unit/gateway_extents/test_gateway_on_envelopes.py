"""The gateway's own tests, over messages that name their partitions, on a store whose positions are no offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import kclient.gateway.assembly
from kclient.gateway.extents import Enveloped, ExtentStore
from tests.gateway_wire import batch_of, running
from tests.unit.gateway.test_gateway_fetch_sessions import *  # noqa: F403
from tests.unit.gateway.test_gateway_leadership import *  # noqa: F403

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Broker, Manager

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _enveloped(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(manager: Manager, broker: Broker, lease: HeldLease, wall_ms: Callable[[], int], _: object) -> ExtentStore:
        return ExtentStore(manager, broker, lease, wall_ms, Enveloped)

    monkeypatch.setattr(kclient.gateway.assembly, "partition_store", store)


async def test_they_run_over_envelopes() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 2)
        await wire.produce("t", batch_of(b"x"), 1)
        topics = gateway._store.broker.opened.values()  # type: ignore[union-attr]
        stored = [bytes((await topic.pull(0)).data) for topic in topics]
        assert [message[:4] for message in stored if message] == [b"KE\x03\x00"]
        assert len((await wire.fetch("t", 0, partition=1)).records or b"") == len(batch_of(b"x"))
