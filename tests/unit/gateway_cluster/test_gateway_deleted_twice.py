"""A topic that is deleted at two gateways at once: one of them has deleted it, and nothing of it is left."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway.rows.keys import INTENTS, OFFSETS, topic_key
from kclient.htp import open_store
from tests.all_rows import scan_all
from tests.gateway_wire import Wire
from tests.slow_store import Gates
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

GROUPS = [f"group-{number}" for number in range(8)]


async def commit_everywhere(wires: list[Wire], topic: str) -> None:
    """An offset of each group, at the gateway that coordinates it; both have some."""
    for group in GROUPS:
        with anyio.fail_after(20):
            while ErrorCode.NONE not in [await wire.commit(group, topic, 1) for wire in wires]:
                await anyio.sleep(0.01)


async def nothing_left(manager: Any) -> None:
    with anyio.fail_after(20):
        while await scan_all(manager, OFFSETS) or await scan_all(manager, INTENTS):
            await anyio.sleep(0.01)


@pytest.mark.parametrize("again", [False, True])
async def test_one_has_deleted_it(url: str, again: bool) -> None:
    """The other one is told that there is none, or deletes what was made since; offsets of its groups go, too."""
    async with open_store(url) as store:
        gates = Gates(store)
        async with joined(store, 1) as (first, one), joined(gates.store, 2) as (second, other):
            await one.create("flights")
            await until(lambda: "flights" in second.parts.topics)
            await commit_everywhere([one, other], "flights")
            assert len(await scan_all(store.manager, OFFSETS)) == len(GROUPS)
            gate = gates.hold("commit")
            codes: list[int] = []

            async def delete() -> None:
                codes.append(await other.delete("flights"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(delete)
                await gate.reached.wait()
                assert not await one.delete("flights")
                if again:
                    assert not (await one.create("flights")).error_code
                gates.open()
            assert codes == [ErrorCode.NONE if again else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            await nothing_left(store.manager)
            await until(lambda: "flights" not in first.parts.topics)


async def test_one_does_not_know_what_became_of_its_own(url: str) -> None:
    """Its commit was not made, which it is not told; the topic has gone, and the other one still removes its places."""
    async with open_store(url) as store:
        slow, gates = Gates(store), Gates(store)
        async with joined(slow.store, 1) as (_, one), joined(gates.store, 2) as (second, other):
            await one.create("flights")
            await until(lambda: "flights" in second.parts.topics)
            await commit_everywhere([one, other], "flights")
            gates.failing = "commit"
            commit, removal = gates.hold("commit"), slow.hold("delete")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.delete, "flights")
                await commit.reached.wait()
                tasks.start_soon(one.delete, "flights")
                await removal.reached.wait()
                commit.open()
                await until(lambda: not second.parts.topics.left and "flights" not in second.parts.topics)
                removal.open()
            await nothing_left(store.manager)


async def test_one_whose_row_is_damaged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gateway still removes by its name, no other one removes: it might be a namesake's by then."""
    monkeypatch.setattr("kclient.gateway.topics.catalogue._PATIENCE_S", 0.1)
    async with open_store(url) as store:
        slow = Gates(store)
        async with joined(slow.store, 1) as (first, one), joined(store, 2) as (second, other):
            await store.manager.commit({topic_key("flights"): b"damaged"})
            await until(lambda: "flights" in first.parts.topics.damaged and "flights" in second.parts.topics.damaged)
            removal, codes = slow.hold("delete"), []

            async def delete() -> None:
                codes.append(await one.delete("flights"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(delete)
                await removal.reached.wait()
                assert await other.delete("flights") == ErrorCode.REASSIGNMENT_IN_PROGRESS
                assert (await other.create("flights")).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                removal.open()
            assert codes == [ErrorCode.NONE]
            await nothing_left(store.manager)
            assert await other.delete("flights") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert not (await other.create("flights")).error_code
