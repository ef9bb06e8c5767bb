"""Each public call cancelled at its first checkpoint, its second, and so on: no record is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import kclient
from kclient.consumer import RebalanceListener
from kclient.testing import memory_broker
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio

COUNT = 12
T0 = TopicPartition("t", 0)


class Gathering(RebalanceListener):
    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await anyio.lowlevel.checkpoint()
        self.assigned += partitions
        await anyio.lowlevel.checkpoint()


async def fill(address: str) -> None:
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await producer.send_batch("t", [b"%d" % number for number in range(COUNT)])
        await producer.flush()


def settings(address: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": address, "group_id": "g", "auto_offset_reset": "earliest", **more}


async def rest(consumer: kclient.Consumer, values: list[int]) -> list[int]:
    with anyio.fail_after(20):
        while len(values) < COUNT:
            values = values + [int(record.value) for record in await consumer.poll(1.0)]
    return values


@pytest.mark.slow
async def test_poll() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address, max_poll_records=5)) as consumer:
                listener = Gathering()
                consumer.subscribe(["t"], listener)
                values: list[int] = []
                while len(values) < COUNT:
                    if await cancelled(consumer.poll(10.0)) is Outcome.CANCELLED:
                        break
                    values += [int(record.value) for record in cancelled.result]
                assert await rest(consumer, values) == list(range(COUNT))
                assert set(listener.assigned) == {T0}

    assert await at_every_checkpoint(scenario) > 5


async def test_poll_arrow_and_iteration() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address)) as consumer:
                consumer.assign([T0])
                values: list[int] = []
                for _ in range(4):
                    if await cancelled(anext(consumer)) is Outcome.FINISHED:
                        values.append(int(cancelled.result.value))
                if await cancelled(consumer.poll_arrow(10.0)) is Outcome.FINISHED:
                    values += map(int, cancelled.result.column("value").to_pylist())
                assert await rest(consumer, values) == list(range(COUNT))

    assert await at_every_checkpoint(scenario) >= 3


@pytest.mark.slow
async def test_commit() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address, enable_auto_commit=False)) as consumer:
                consumer.assign([T0])
                outcome = await cancelled(consumer.commit({T0: 3}))
                if outcome is Outcome.CANCELLED:
                    # committed or not; in any case not after what is committed now
                    await consumer.commit({T0: 4})
                    assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(4)}
                await cancelled(consumer.committed([T0]))
                await cancelled(consumer.position(T0))
                await cancelled(consumer.end_offsets([T0]))
                await cancelled(consumer.list_topics())
                consumer.seek_to_beginning()
                assert await rest(consumer, []) == list(range(COUNT))

    assert await at_every_checkpoint(scenario) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("auto", [True, False], ids=["auto commit", "commit"])
async def test_the_life_of_a_member_and_what_the_next_one_gets(auto: bool) -> None:
    """All that was not returned, and nothing that a commit which succeeded says was."""

    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            values: list[int] = []
            least = 0
            more = {"max_poll_records": 5, "enable_auto_commit": auto, "auto_commit_interval_ms": 1}
            consumer = kclient.Consumer("t", **settings(address, **more))
            await consumer.start()
            while len(values) < 10:
                if await cancelled(consumer.poll(10.0)) is Outcome.FINISHED:
                    values += [int(record.value) for record in cancelled.result]
                if consumer.assignment() and await cancelled(consumer.commit()) is Outcome.FINISHED:
                    least = len(values)
            closed = await cancelled(consumer.close())
            await consumer.close()
            if auto and closed is Outcome.FINISHED:
                least = len(values)
            assert values == list(range(10))
            async with kclient.Consumer(**settings(address)) as other:
                other.assign([T0])
                begin = await other.position(T0)
                assert least <= begin <= len(values)
                assert await rest(other, list(range(begin))) == list(range(COUNT))

    assert await at_every_checkpoint(scenario) > 5


@pytest.mark.slow
async def test_unsubscribe_and_close() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer("t", **settings(address)) as consumer:
                await rest(consumer, [])
                await cancelled(consumer.unsubscribe())
                if cancelled.reached:
                    await consumer.unsubscribe()
                assert consumer.assignment() == set()
                consumer.subscribe(["t"])
                await cancelled(consumer.close())
                await consumer.close()
                with pytest.raises(kclient.errors.ClosedError):
                    await consumer.poll()

    assert await at_every_checkpoint(scenario) >= 3


async def test_leaving_by_cancellation_is_quick_and_clean(anyio_backend: str) -> None:
    with memory_broker() as address:
        await fill(address)
        started = anyio.current_time()
        with anyio.move_on_after(0.3):
            async with kclient.Consumer("t", **settings(address)) as consumer:
                async for _ in consumer:
                    pass
        assert anyio.current_time() - started < 5
        if anyio_backend == "trio":
            return  # there the cancellation reaches the background tasks too, and nothing can be sent any more
        async with kclient.Consumer("t", **settings(address)) as consumer:  # the group does not wait for the first
            with anyio.fail_after(10):
                while not consumer.assignment():
                    await consumer.poll(0.1)


LOOKUPS: dict[str, Any] = {
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0]),
    "committed": lambda consumer: consumer.committed([T0]),
    "end_offsets": lambda consumer: consumer.end_offsets([T0]),
    "list_topics": lambda consumer: consumer.list_topics(),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}),
    "partitions_for": lambda consumer: consumer.partitions_for("t"),
    "position": lambda consumer: consumer.position(T0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LOOKUPS))
async def test_lookups(name: str) -> None:
    """As the first call, which has to connect and to find the leader or the coordinator."""

    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address)) as consumer:
                consumer.assign([T0])
                if await cancelled(LOOKUPS[name](consumer)) is Outcome.FINISHED:
                    assert cancelled.result == await LOOKUPS[name](consumer)
                first = (await consumer.offsets_for_times({T0: 0}))[T0]
                assert first is not None
                assert first.offset == 0
                assert [each.partition for each in await consumer.partitions_for("t")] == [0]
                assert await consumer.beginning_offsets([T0]) == {T0: 0}
                assert await rest(consumer, []) == list(range(COUNT))

    assert await at_every_checkpoint(scenario) >= 1


@pytest.mark.slow
async def test_start_in_a_group() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            values: list[int] = []

            async def use() -> None:
                async with kclient.Consumer("t", **settings(address, enable_auto_commit=False)) as consumer:
                    while len(values) < COUNT:
                        values.extend(int(record.value) for record in await consumer.poll(5.0))

            if await cancelled(use()) is Outcome.FINISHED:
                assert values == list(range(COUNT))
            # in another group: this one waits for a member that could not say that it leaves until its session ends
            async with kclient.Consumer("t", **settings(address, group_id="after")) as consumer:
                assert await rest(consumer, []) == list(range(COUNT))

    assert await at_every_checkpoint(scenario) >= 5


async def test_a_cancelled_scope_around_the_consumer_leaves_the_group() -> None:
    with memory_broker() as address:
        await fill(address)
        with anyio.CancelScope() as scope:
            async with kclient.Consumer("t", **settings(address)) as consumer:
                assert await rest(consumer, []) == list(range(COUNT))
                scope.cancel()
                await consumer.poll(30.0)
        assert scope.cancelled_caught
        async with kclient.Admin(bootstrap_servers=address) as admin:
            with anyio.fail_after(5):  # the session timeout is 45 s
                while (await admin.describe_groups(["g"]))["g"].members:
                    await anyio.sleep(0.01)


@pytest.mark.slow
async def test_the_poll_after_enforce_rebalance() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address, max_poll_records=5)) as consumer:
                listener = Gathering()
                consumer.subscribe(["t"], listener)
                values = [int(record.value) for record in await consumer.poll(10.0)]
                generation = consumer.group_metadata().generation_id
                consumer.enforce_rebalance()
                with anyio.fail_after(20):
                    while consumer.group_metadata().generation_id == generation or not consumer.assignment():
                        if await cancelled(consumer.poll(0.05)) is Outcome.FINISHED:
                            values += [int(record.value) for record in cancelled.result]
                assert await rest(consumer, values) == list(range(COUNT))

    assert await at_every_checkpoint(scenario, limit=100) >= 3


async def test_the_poll_after_commit_async() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        with memory_broker() as address:
            await fill(address)
            async with kclient.Consumer(**settings(address, enable_auto_commit=False)) as consumer:
                consumer.assign([T0])
                consumer.seek_to_beginning()  # or it might begin at what is committed here
                outcomes: list[Exception | None] = []
                consumer.commit_async({T0: 3}, lambda offsets, error: outcomes.append(error))
                values: list[int] = []
                with anyio.fail_after(20):
                    while not outcomes:
                        if await cancelled(consumer.poll(0.05)) is Outcome.FINISHED:
                            values += [int(record.value) for record in cancelled.result]
                assert outcomes == [None]
                assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(3)}
                assert await rest(consumer, values) == list(range(COUNT))

    assert await at_every_checkpoint(scenario, limit=100) >= 1
