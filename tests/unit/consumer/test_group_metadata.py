"""Who a consumer says it is to a producer's transactions: a zombie says who it was, so that its offsets are refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import kclient
from kclient.errors import CommitFailedError
from kclient.testing import memory_broker
from kclient.types import TopicPartition

pytestmark = pytest.mark.anyio

T = TopicPartition("t", 0)


def reading(address: str, **settings: Any) -> kclient.Consumer:
    defaults = {"group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 50}
    return kclient.Consumer("t", bootstrap_servers=address, enable_auto_commit=False, **{**defaults, **settings})


async def test_a_member_that_was_lost_is_fenced() -> None:
    """It left by itself, because it took too long, and another one has its partition; it has not polled since."""
    with memory_broker() as address:
        async with (
            kclient.Producer(bootstrap_servers=address, transactional_id="x") as producer,
            reading(address, max_poll_interval_ms=300) as zombie,
            reading(address) as successor,
        ):
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
            with anyio.fail_after(30):
                while not await zombie.poll(0.5):
                    pass
                before = zombie.group_metadata()
                while not await successor.poll(0.5):
                    pass
            assert zombie.group_metadata() == before
            await producer.begin_transaction()
            with pytest.raises(CommitFailedError):
                await producer.send_offsets_to_transaction({T: 1}, zombie.group_metadata())
            await producer.abort_transaction()
            assert await successor.committed([T]) == {T: None}


async def test_one_that_has_left_is_none_any_more() -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address) as producer:
            await producer.send("t", b"1")
        async with reading(address) as consumer:
            with anyio.fail_after(30):
                while not await consumer.poll(0.5):
                    pass
            assert consumer.group_metadata().generation_id > 0
            await consumer.unsubscribe()
            assert consumer.group_metadata().generation_id == -1
            assert consumer.group_metadata().member_id == ""
