"""The plan: what would be moved, and what stands in the way; nothing is changed by it."""

from __future__ import annotations

import json

import pytest

import kclient
from kclient.migration.planning import Plan, make_plan
from kclient.migration.target import refused_settings
from tests.gateway_wire import batch_of, names, running
from tests.unit.migration.conftest import Pair, caught_up, clients, pair

pytestmark = pytest.mark.anyio


async def planned(source: Pair, htp: str | None = None, *, only: str | None = None) -> Plan:
    def selects(name: str) -> bool:
        return only in (None, name)

    async with source.source() as theirs:
        if htp is None:
            return await make_plan(theirs, None, selects)
        async with clients(htp) as ours:
            return await make_plan(theirs, ours, selects)


async def test_topics_are_told_with_their_settings() -> None:
    async with pair(**{"log.retention.ms": 5000, "log.segment.bytes": 1 << 30}) as source:
        await source.wire.create("flights", 2, max_message_bytes="1000")
        await source.wire.create("trains")
        for _ in range(3):
            await source.wire.produce("flights", batch_of(b"a", b"b"))
        await source.wire.delete_records("flights", 2)
        plan = await planned(source)
        assert [(each.name, each.partitions, each.offsets, each.there) for each in plan.topics] == [
            ("flights", 2, 4, "nothing"),
            ("trains", 1, 0, "nothing"),
        ]
        # what the brokers give all topics is needed too, unless everybody gives it
        assert plan.topics[0].settings == {"max.message.bytes": "1000", "retention.ms": "5000"}
        assert [each.name for each in (await planned(source, only="trains")).topics] == ["trains"]
        assert json.loads(json.dumps(plan.as_json()))["cluster_id"] == plan.cluster_id


def test_settings_that_a_gateway_does_not_take_are_told() -> None:
    refused = refused_settings({"retention.ms": "5", "retention.bytes": "x", "confluent.tier.enable": "true"})
    assert sorted(refused) == ["confluent.tier.enable", "retention.bytes"]
    assert "Unknown topic config name" in refused["confluent.tier.enable"]


async def test_groups_are_told() -> None:
    async with pair() as source:
        await source.wire.create("flights")
        await source.wire.create("trains")
        await source.wire.produce("flights", batch_of(b"a"))
        await source.wire.commit("idle", "flights", 1)
        await source.wire.commit("elsewhere", "trains", 0)
        consumer = kclient.Consumer(
            "flights", group_id="busy", bootstrap_servers=source.address, auto_offset_reset="earliest"
        )
        async with consumer:
            while not await consumer.poll(1.0):
                pass
            await consumer.commit()
            plan = await planned(source, only="flights")
        assert [(each.group_id, each.state, each.offsets) for each in plan.groups] == [
            ("busy", "Stable", 1),
            ("idle", "Empty", 1),
        ]


@pytest.mark.slow
async def test_what_the_store_has_is_told() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, pair() as other, running(htp) as (target, wire):
        for name in ("mirrored", "taken", "foreign", "own", "new"):
            await source.wire.create(name)
        await other.wire.create("foreign")
        await wire.create("own")
        async with source.mirroring(target, selects=lambda name: name in ("mirrored", "taken")) as mirror:
            await caught_up(mirror)
        await target.parts.catalogue.take_over("taken")
        async with other.mirroring(target) as mirror:
            await caught_up(mirror)
        plan = await planned(source, htp)
        assert {each.name: each.there for each in plan.topics} == {
            "mirrored": "mirror",
            "taken": "taken over",
            "foreign": "mirror",
            "own": "another topic",
            "new": "nothing",
        }
        stands_in_the_way = {each.name: each.problem for each in plan.topics if each.problem is not None}
        assert sorted(stands_in_the_way) == ["foreign", "own"]
        assert "mirrors the cluster" in str(stands_in_the_way["foreign"])
        assert len(plan.problems) == 2
