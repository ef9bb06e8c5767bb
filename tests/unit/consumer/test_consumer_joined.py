"""`joined` waits for the membership, and takes no records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest

from kclient import sync
from kclient.consumer import Consumer, RebalanceListener
from kclient.errors import ClosedError, IllegalStateError, KafkaTimeoutError, WakeupError
from kclient.testing import memory_broker
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.types import TopicPartition

pytestmark = pytest.mark.anyio

ALL = {TopicPartition("t", number) for number in range(4)}


def fill(address: str) -> None:
    with sync.Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t", partitions=4)
    with sync.Producer(bootstrap_servers=address) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(8)], partition=1).result()


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        fill(found)
        yield found


def member(address: str, **settings: Any) -> Consumer:
    return Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", **settings)


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned += partitions


async def test_it_returns_what_is_assigned_and_takes_no_record(address: str) -> None:
    listener = Listener()
    async with member(address) as consumer:
        consumer.rebalance_listener = listener
        assert consumer.assignment() == set()
        assert await consumer.joined(20) == ALL == set(listener.assigned) == consumer.assignment()
        assert await consumer.joined(0) == ALL, "it is one"
        assert {await consumer.position(tp) for tp in ALL} == {0}
        found: list[bytes | None] = []
        while len(found) < 8:
            found += [record.value for record in await consumer.poll(1)]
        assert sorted(value for value in found if value) == [b"%d" % number for number in range(8)]


@pytest.mark.slow
async def test_members_share(address: str) -> None:
    async with member(address) as first, member(address) as second:
        assert await first.joined() == ALL

        async def goes_on() -> None:
            while len(first.assignment()) != 2:
                await first.poll(0.05)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(goes_on)
            mine = await second.joined()
        assert len(mine) == 2
        assert mine | first.assignment() == ALL


async def test_what_was_polled_before_counts_as_processed(address: str) -> None:
    async with member(address, auto_commit_interval_ms=0) as consumer:
        await consumer.joined()
        while not await consumer.poll(1):
            pass
        with anyio.fail_after(20):
            while (await consumer.committed([("t", 1)]))[TopicPartition("t", 1)] is None:
                await consumer.joined()


async def test_there_is_no_group(address: str) -> None:
    async with Consumer(bootstrap_servers=address) as consumer:
        with pytest.raises(IllegalStateError, match="subscribe first"):
            await consumer.joined()
        consumer.assign([("t", 0)])
        with pytest.raises(IllegalStateError, match="subscribe first"):
            await consumer.joined()
    with pytest.raises(ClosedError):
        await consumer.joined()


async def test_it_ends_in_time_and_by_wakeup(address: str) -> None:
    async with member("localhost:1") as consumer:
        with anyio.fail_after(10), pytest.raises(KafkaTimeoutError, match=r"within 0\.2 s"):
            await consumer.joined(0.2)
        consumer.wakeup()
        with anyio.fail_after(10), pytest.raises(WakeupError):
            await consumer.joined()


@pytest.mark.slow
async def test_a_cancelled_call_may_be_made_again() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as found:
            fill(found)
            async with member(found) as consumer:
                await cancelled(consumer.joined())
                with anyio.fail_after(20):
                    assert await consumer.joined() == ALL

    assert await at_every_checkpoint(scenario) >= 1


def test_of_the_blocking_consumer_too(address: str) -> None:
    with sync.Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
        assert consumer.joined() == ALL
        found: list[Any] = []
        while len(found) < 8:
            found += consumer.poll(1)


async def test_the_error_says_what_it_waits_for(address: str) -> None:
    async with Consumer("t", bootstrap_servers="127.0.0.1:1", group_id="g") as alone:
        with pytest.raises(KafkaTimeoutError, match=r"within 0\.3 s: .*127\.0\.0\.1:1"):
            await alone.joined(0.3)
        await alone.close(0)
    async with member(address) as first, member(address) as second:
        await first.joined()
        with pytest.raises(KafkaTimeoutError, match=r"coordinator, node 1, waits for the group's other members"):
            await second.joined(0.3)
        await second.close(0)
