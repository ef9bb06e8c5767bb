"""The gateway's own tests with `mapping="multilevel"`."""

from __future__ import annotations

import pytest

from tests.gateway_wire import batch_of, running
from tests.unit.gateway.conftest import url as url
from tests.unit.gateway.test_gateway_admin import *  # noqa: F403
from tests.unit.gateway.test_gateway_produce_fetch import *  # noqa: F403
from tests.unit.gateway.test_gateway_retention import *  # noqa: F403

pytestmark = pytest.mark.anyio

MAPPING = "multilevel"


async def test_they_run_on_two_levels(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t", 3)
        await wire.produce("t", batch_of(b"x"), 1)
        topics = await gateway.parts.manager.list_topics("kafka~multilevel")
        assert [str(info.topic) for info in topics] == [f"kafka~multilevel:t/{number}" for number in range(3)]
