"""Settings of single groups (KIP-848): set, told, kept, followed by other gateways, and obeyed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from kclient.htp.memory import reset
from kclient.protocol import messages as m
from kclient.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from tests.gateway_wire import Wire, connect
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio

GROUP, SET, DELETE = 32, 0, 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
def store() -> AsyncIterator[str]:
    name = f"configs-{uuid.uuid4()}"
    yield f"memory:{name}"
    reset(name)


async def alter(wire: Wire, group: str, name: str, value: str | None, *, dry: bool = False) -> tuple[int, str | None]:
    operation = DELETE if value is None else SET
    config = IncrementalAlterConfigsRequestConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequestResource(resource_type=GROUP, resource_name=group, configs=[config])
    answer = await wire(IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry), 1)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def told(wire: Wire, group: str) -> dict[str, tuple[str, int, list[str]]]:
    resource = DescribeConfigsResource(resource_type=GROUP, resource_name=group, configuration_keys=None)
    answer = await wire(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4)
    assert answer.results[0].error_code == 0
    return {
        each.name: (each.value, each.config_source, [synonym.name for synonym in each.synonyms])
        for each in answer.results[0].configs
    }


async def interval(wire: Wire, member: str) -> int:
    answer = await wire(
        m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        1,
    )
    assert answer.error_code == 0
    return int(answer.heartbeat_interval_ms)


@asynccontextmanager
async def serving(store: str, **config: Any) -> AsyncIterator[Wire]:
    async with Gateway(store, listen=None, config=config) as gateway:
        wire = connect(gateway)
        try:
            yield wire
        finally:
            await wire.aclose()


async def test_they_are_told_kept_and_obeyed(store: str) -> None:
    async with serving(store) as wire:
        await wire.create("t")
        assert await interval(wire, "m") == 5000
        before = await told(wire, "g")
        assert before[SESSION] == ("45000", 5, ["group.consumer.session.timeout.ms"])
        assert set(before) == {SESSION, HEARTBEAT, "consumer.assignment.interval.ms"}
        assert await alter(wire, "g", HEARTBEAT, "6000", dry=True) == (0, None)
        assert await interval(wire, "m") == 5000
        assert await alter(wire, "g", HEARTBEAT, "6000") == (0, None)
        assert await interval(wire, "m") == 6000
        assert (await told(wire, "h"))[HEARTBEAT][0] == "5000"
    async with serving(store) as wire:
        assert await interval(wire, "m") == 6000
        assert (await told(wire, "g"))[HEARTBEAT] == ("6000", 8, [HEARTBEAT, "group.consumer.heartbeat.interval.ms"])
        assert await alter(wire, "g", HEARTBEAT, None) == (0, None)
        assert await interval(wire, "m") == 5000
        assert (await told(wire, "g"))[HEARTBEAT][:2] == ("5000", 5)


@pytest.mark.parametrize(
    ("group", "name", "value", "error", "why"),
    [
        ("g", SESSION, "44999", ErrorCode.INVALID_CONFIG, "group.consumer.min.session.timeout.ms"),
        ("g", SESSION, "60001", ErrorCode.INVALID_CONFIG, "group.consumer.max.session.timeout.ms"),
        ("g", SESSION, "soon", ErrorCode.INVALID_CONFIG, "whole number"),
        ("g", "consumer.none", "1", ErrorCode.INVALID_CONFIG, "Unknown config name"),
        ("", SESSION, "50000", ErrorCode.INVALID_REQUEST, "Default group resources"),
    ],
)
async def test_what_is_refused(store: str, group: str, name: str, value: str, error: int, why: str) -> None:
    async with serving(store) as wire:
        code, message = await alter(wire, group, name, value)
        assert code == error
        assert why in (message or "")
        assert (await told(wire, "g"))[SESSION][:2] == ("45000", 5)


async def test_settings_that_do_not_go_together(store: str) -> None:
    settings = {"group.consumer.min.session.timeout.ms": 6000, "group.consumer.session.timeout.ms": 9000}
    async with serving(store, **settings) as wire:
        code, message = await alter(wire, "g", HEARTBEAT, "9000")
        assert (code, "has to be more than" in (message or "")) == (ErrorCode.INVALID_CONFIG, True)


async def test_settings_of_the_broker_lie_in_its_bounds(store: str) -> None:
    with pytest.raises(ConfigError, match=r"group\.consumer\.min\.session\.timeout\.ms=45000"):
        Gateway(store, listen=None, config={"group.consumer.session.timeout.ms": 6000})
    low = {"group.consumer.min.session.timeout.ms": 1000, "group.consumer.session.timeout.ms": 5000}
    with pytest.raises(ConfigError, match="members would be removed"):
        Gateway(store, listen=None, config=low)


async def test_other_gateways_follow(store: str) -> None:
    async with joined(store, 1) as (_, one), joined(store, 2) as (_, two):
        assert await alter(one, "g", HEARTBEAT, "7000") == (0, None)

        await until(lambda: told(two, "g"), lambda found: found[HEARTBEAT][0] == "7000")
        assert await alter(two, "g", HEARTBEAT, "8000") == (0, None)
        assert await alter(one, "g", SESSION, "50000") == (0, None)  # over what the other has just made
        assert (await told(one, "g"))[HEARTBEAT][0] == "8000"
