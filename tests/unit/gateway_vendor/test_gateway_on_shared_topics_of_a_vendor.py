"""The gateway's own tests with `mapping="virtual"`, over a store that neither fences nor tells positions."""

from __future__ import annotations

import pytest

from kclient.htp.testing import SimulatedStore
from tests.gateway_wire import batch_of, running
from tests.unit.gateway.test_gateway_produce_fetch import *  # noqa: F403

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("_shared")]


async def test_they_run_over_a_vendors_store() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 2)
        await wire.produce("t", batch_of(b"x"), 1)
        assert isinstance(gateway._store, SimulatedStore)
        (place,) = gateway._store.broker._held
        assert str(place.topic) == "kafka~virtual:t"
