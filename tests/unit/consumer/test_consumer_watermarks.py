"""`current_lag` and `watermarks`: what the last fetch has told, without a request."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from kclient import sync
from kclient.consumer import Consumer, PartitionWatermarks
from kclient.errors import ClosedError, IllegalStateError
from kclient.producer import Producer
from kclient.testing import memory_broker
from kclient.types import TopicPartition

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t")
        with sync.Producer(bootstrap_servers=found) as producer:
            producer.send_batch("t", [b"%d" % number for number in range(10)]).result()
        yield found


def reading(address: str, **settings: object) -> Consumer:
    return Consumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False, **settings)


async def test_lag_falls_as_records_are_handed_out(address: str) -> None:
    async with reading(address, max_poll_records=4) as consumer:
        consumer.assign([T0])
        assert consumer.current_lag(T0) is None, "nobody has told"
        assert consumer.watermarks(T0) == PartitionWatermarks(None, None, None, None)
        lags = []
        while sum(lags) < 8:  # 6 + 2 + 0
            if await consumer.poll(1.0):
                lag = consumer.current_lag(("t", 0))
                assert lag is not None
                lags.append(lag)
        await consumer.poll(1.0)
        assert lags == [6, 2]
        assert consumer.current_lag(T0) == 0
        start, stable, high, age = consumer.watermarks(T0)
        assert (start, stable, high) == (0, 10, 10)
        assert age is not None
        assert 0 <= age < 30
        consumer.seek(T0, 3)
        assert consumer.current_lag(T0) == 7
        consumer.seek(T0, 30)
        assert consumer.current_lag(T0) == 0
        consumer.seek_to_end([T0])
        assert consumer.current_lag(T0) is None, "where the end is will be told"


async def test_iterating_settles_it(address: str) -> None:
    async with reading(address) as consumer:
        consumer.assign([T0])
        found = 0
        async for _ in consumer:
            found += 1
            if found == 4:
                break
        assert consumer.current_lag(T0) == 6


async def test_only_what_is_committed_counts_where_only_that_is_read(address: str) -> None:
    async with Producer(bootstrap_servers=address, transactional_id="x") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send("t", b"open"))
        for isolation, lag in (("read_committed", 0), ("read_uncommitted", 1)):
            async with reading(address, isolation_level=isolation) as consumer:
                consumer.assign([T0])
                consumer.seek(T0, 9)
                while (await consumer.position(T0)) < 10:
                    await consumer.poll(0.1)
                if isolation == "read_uncommitted":
                    consumer.seek(T0, 10)
                while consumer.current_lag(T0) != lag:
                    await consumer.poll(0.05)
                assert consumer.watermarks(T0)[1:3] == (10, 11)
                assert consumer.metrics().value("records-lag-max") == lag
        await producer.abort_transaction()


async def test_an_end_that_does_not_move_stays_young(address: str) -> None:
    """A fetch session leaves out what has not changed."""
    async with reading(address, fetch_max_wait_ms=20) as consumer:
        consumer.assign([T0])
        while consumer.current_lag(T0) != 0:
            await consumer.poll(0.1)
        with anyio.fail_after(20):
            younger = False
            last = consumer.watermarks(T0).age
            while not younger:
                await consumer.poll(0.01)
                age = consumer.watermarks(T0).age
                assert age is not None
                assert last is not None
                younger, last = age < last, age


async def test_it_is_of_what_is_assigned(address: str) -> None:
    consumer = reading(address)
    async with consumer:
        for call in (consumer.current_lag, consumer.watermarks):
            with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
                call(T0)
            with pytest.raises(TypeError):
                call("t")  # type: ignore[arg-type]
    for call in (consumer.current_lag, consumer.watermarks):
        with pytest.raises(ClosedError):
            call(T0)


def test_of_the_blocking_consumer_too(address: str) -> None:
    with sync.Consumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        while consumer.current_lag(T0) != 0:
            consumer.poll(0.1)
        assert consumer.watermarks(T0)[:3] == (0, 10, 10)
