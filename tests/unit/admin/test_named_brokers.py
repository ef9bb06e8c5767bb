"""Calls that name a broker: one that the cluster does not have is told of after one look, and not waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import ConfigResource, ConfigResourceType
from kclient.errors import BrokerIdNotRegisteredError
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

OTHERS = {
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
}


def resource(node_id: int) -> ConfigResource:
    return ConfigResource(ConfigResourceType.BROKER, str(node_id))


CALLS: dict[str, Callable[[kclient.Admin, int], Awaitable[Any]]] = {
    "describe_features": lambda admin, node_id: admin.describe_features(broker_id=node_id),
    "describe_producers": lambda admin, node_id: admin.describe_producers([("t", 0)], broker_id=node_id),
    "describe_configs": lambda admin, node_id: admin.describe_configs([resource(node_id)]),
    "alter_configs": lambda admin, node_id: admin.alter_configs({resource(node_id): {"num.io.threads": "2"}}),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_broker_that_is_not_there(call: str) -> None:
    async with FakeKafka(brokers=3, versions={**VERSIONS, **KRAFT, **OTHERS}) as kafka, administering(kafka) as admin:
        with anyio.fail_after(10), pytest.raises(BrokerIdNotRegisteredError) as caught:
            await CALLS[call](admin, 99)
        assert "the id 99 now; it has: 1, 2, 3" in str(caught.value)


async def test_a_broker_that_has_just_come() -> None:
    """What was known before does not tell: it is asked for again."""
    async with FakeKafka(brokers=3, versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        kafka.brokers[3].listed = False
        await admin.describe_features(broker_id=1)
        with pytest.raises(BrokerIdNotRegisteredError, match=r"it has: 1, 2 \["):
            await admin.describe_features(broker_id=3)
        kafka.brokers[3].listed = True
        with anyio.fail_after(10):
            await admin.describe_features(broker_id=3)
