"""`close(leave_group=...)`: who leaves the group at once, and who is waited for (KIP-1092)."""

from __future__ import annotations

from typing import Any

import pytest

from kclient import sync
from kclient.admin import Admin
from kclient.consumer import Consumer
from kclient.testing import memory_broker

pytestmark = pytest.mark.anyio

CASES = [(None, None, 0), (None, True, 0), (None, False, 1), ("me", None, 1), ("me", True, 0), ("me", False, 1)]
"""`group.instance.id`, what `close` is told, and how many members the group has afterwards."""


async def members(address: str) -> int:
    async with Admin(bootstrap_servers=address) as admin:
        return len((await admin.describe_groups(["g"]))["g"].members)


def create(address: str) -> None:
    with sync.Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t")


@pytest.mark.parametrize(("instance", "leave_group", "left"), CASES)
async def test_who_leaves(instance: str | None, leave_group: bool | None, left: int) -> None:
    with memory_broker() as address:
        create(address)
        consumer = Consumer("t", bootstrap_servers=address, group_id="g", group_instance_id=instance)
        async with consumer:
            await consumer.joined()
            assert await members(address) == 1
            await consumer.close(leave_group=leave_group)
        assert await members(address) == left


@pytest.mark.parametrize(("instance", "leave_group", "left"), CASES)
async def test_of_the_blocking_consumer_too(instance: str | None, leave_group: bool | None, left: int) -> None:
    with memory_broker() as address:
        create(address)
        with sync.Consumer("t", bootstrap_servers=address, group_id="g", group_instance_id=instance) as consumer:
            consumer.joined()
            consumer.close(leave_group=leave_group)
        assert await members(address) == left


@pytest.mark.parametrize("given", ["yes", 1, 0])
async def test_what_is_no_answer_is_refused_and_nothing_is_closed(given: Any) -> None:
    with memory_broker() as address:
        create(address)
        async with Consumer("t", bootstrap_servers=address, group_id="g") as consumer:
            with pytest.raises(TypeError, match="leave_group is True, False or None"):
                await consumer.close(leave_group=given)
            assert await consumer.joined()
