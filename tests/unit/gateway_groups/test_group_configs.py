"""Settings of single groups (KIP-848): set, told, kept, followed by other gateways, and obeyed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.shares.settings import DeliverySettings
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
        consumers = {name for name in before if name.startswith("consumer.")}
        assert consumers == {SESSION, HEARTBEAT, "consumer.assignment.interval.ms"}
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


async def test_those_of_share_groups(store: str) -> None:
    """As Kafka 4.3.1 tells them, with its defaults."""
    async with serving(store) as wire:
        before = await told(wire, "g")
        assert {name: row for name, row in before.items() if name.startswith("share.")} == {
            "share.assignment.interval.ms": ("1000", 5, ["group.share.assignment.interval.ms"]),
            "share.auto.offset.reset": ("latest", 5, ["share.auto.offset.reset"]),
            "share.delivery.count.limit": ("5", 5, ["group.share.delivery.count.limit"]),
            "share.heartbeat.interval.ms": ("5000", 5, ["group.share.heartbeat.interval.ms"]),
            "share.isolation.level": ("read_uncommitted", 5, ["share.isolation.level"]),
            "share.partition.max.record.locks": ("2000", 5, ["group.share.partition.max.record.locks"]),
            "share.record.lock.duration.ms": ("30000", 5, ["group.share.record.lock.duration.ms"]),
            "share.renew.acknowledge.enable": ("true", 5, ["share.renew.acknowledge.enable"]),
            "share.session.timeout.ms": ("45000", 5, ["group.share.session.timeout.ms"]),
        }
    wanted = {
        "share.auto.offset.reset": "by_duration:PT1H",
        "share.delivery.count.limit": "7",
        "share.isolation.level": "read_committed",
        "share.partition.max.record.locks": "300",
        "share.record.lock.duration.ms": "15000",
    }
    async with Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        configs = gateway.parts.group_configs
        assert configs.delivery("g") == DeliverySettings()
        for name, value in wanted.items():
            assert await alter(wire, "g", name, value) == (0, None)
        assert configs.delivery("g") == DeliverySettings(15_000, 7, 300, "by_duration:PT1H", 3_600_000, True)
        assert configs.delivery("h") == DeliverySettings()
        assert await alter(wire, "g", "share.auto.offset.reset", "earliest") == (0, None)
        assert (configs.delivery("g").reset, configs.delivery("g").reset_ms) == ("earliest", None)
        assert await alter(wire, "g", "share.session.timeout.ms", "60000") == (0, None)
        settings = gateway.parts.groups.table.settings_of("g")
        assert settings.group_share_session_timeout_ms == 60_000
        await wire.aclose()


@pytest.mark.parametrize(
    ("group", "name", "value", "error", "why"),
    [
        ("g", "share.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG, "group.share.min.session.timeout.ms"),
        ("g", "share.heartbeat.interval.ms", "15001", ErrorCode.INVALID_CONFIG, "group.share.max.heartbeat.interval"),
        ("g", "share.record.lock.duration.ms", "60001", ErrorCode.INVALID_CONFIG, "group.share.max.record.lock"),
        ("g", "share.delivery.count.limit", "11", ErrorCode.INVALID_CONFIG, "group.share.max.delivery.count.limit"),
        ("g", "share.delivery.count.limit", "1", ErrorCode.INVALID_CONFIG, "2 or more"),
        ("g", "share.partition.max.record.locks", "4001", ErrorCode.INVALID_CONFIG, "group.share.max.partition.max"),
        ("g", "share.auto.offset.reset", "Earliest", ErrorCode.INVALID_CONFIG, "by_duration"),
        ("g", "share.auto.offset.reset", "by_duration:-PT1H", ErrorCode.INVALID_CONFIG, "by_duration"),
        ("g", "share.isolation.level", "READ_COMMITTED", ErrorCode.INVALID_CONFIG, "read_committed"),
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
