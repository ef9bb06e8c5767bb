"""The gateway's own tests with `mapping="broker"`, and what only that has: there are only so many brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kclient
from kclient.admin import NewTopic
from kclient.errors import ErrorCode, InvalidPartitionsError
from kclient.gateway.rows.topics import TopicRow
from kclient.htp import BindingError, Place, TooFewBrokersError, Topic, open_store
from kclient.htp.port import Manager
from kclient.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from tests.all_rows import scan_all
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import Wire, batch_of, running
from tests.mappings import EMBEDDED_BROKERS
from tests.unit.gateway.conftest import url as url
from tests.unit.gateway.test_gateway_produce_fetch import *  # noqa: F403
from tests.unit.gateway.test_gateway_restart import store as store
from tests.unit.gateway.test_gateway_restart import test_everything_is_there_again as test_everything_is_there_again
from tests.unit.gateway.test_gateway_retention import *  # noqa: F403

pytestmark = pytest.mark.anyio

MAPPING = "broker"
SHARED = "kafka~broker"
THREE: dict[str, Any] = {"mapping": "broker", "brokers": 3}


async def places_of(manager: Manager, topic: str) -> list[Place]:
    return list((await manager.describe_topic(Topic(SHARED, topic))).places)


async def fill(wire: Wire, topic: str, partitions: range) -> None:
    """A record in each partition, which names it."""
    for number in partitions:
        assert (await wire.produce(topic, batch_of(b"%s-%d" % (topic.encode(), number)), number)).base_offset == 0


async def check(wire: Wire, topic: str, partitions: int) -> None:
    for number in range(partitions):
        assert await wire.values(topic, partition=number) == [b"%s-%d" % (topic.encode(), number)]


@pytest.mark.slow
async def test_they_run_on_brokers(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t", 3)
        await fill(wire, "t", range(3))
        manager = gateway.parts.manager
        assert len(await manager.brokers()) >= EMBEDDED_BROKERS
        places = await places_of(manager, "t")
        assert len({place.broker for place in places}) == 3
        row = TopicRow.decode((await manager.get(["kafka/topic/t"]))["kafka/topic/t"].value)
        assert list(row.brokers) == [place.broker for place in places]
        assert list(row.incarnations) == [place.incarnation for place in places]
    async with running(url) as (_, wire):
        await check(wire, "t", 3)


async def test_topics_begin_at_different_brokers(url: str) -> None:
    async with running(url, **THREE) as (gateway, wire):
        for number in range(20):
            await wire.create(f"t{number}")
        first = {(await places_of(gateway.parts.manager, f"t{number}"))[0].broker for number in range(20)}
        assert first == {"brk-0", "brk-1", "brk-2"}


# --- as many partitions as brokers ---


async def test_no_more_partitions_than_brokers(url: str) -> None:
    async with running(url, **THREE, config={"num.partitions": 4}) as (gateway, wire):
        wanted = [
            CreatableTopic(name=f"t{count}", num_partitions=count, replication_factor=1) for count in (4, 300, -1)
        ]
        for validate_only in (True, False):
            answer = await wire(CreateTopicsRequest(topics=wanted, validate_only=validate_only), 7)
            assert {row.error_code for row in answer.topics} == {ErrorCode.INVALID_PARTITIONS}
            texts = [str(row.error_message) for row in answer.topics]
            assert "there are 3 (brk-0, brk-1, brk-2)" in texts[0]
            assert "start the gateway with --brokers 4" in texts[0]
            assert "use another --mapping" in texts[1]
        auto = await wire.metadata("auto", create=True)
        assert auto.topics[0].error_code == ErrorCode.INVALID_PARTITIONS
        manager = gateway.parts.manager
        assert await scan_all(manager, "kafka/topic/") == await scan_all(manager, "kafka/intent/") == {}
        fitting = CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=3, replication_factor=1)], validate_only=True
        )
        assert (await wire(fitting, 7)).topics[0].error_code == 0
        assert (await wire.create("t", 3)).error_code == 0


async def test_no_growth_beyond_the_brokers(url: str) -> None:
    async with running(url, **THREE) as (gateway, wire):
        await wire.create("t", 2)
        await fill(wire, "t", range(2))
        for validate_only in (True, False):
            grown = CreatePartitionsTopic(name="t", count=4, assignments=None)
            answer = await wire(CreatePartitionsRequest(topics=[grown], validate_only=validate_only), 3)
            assert answer.results[0].error_code == ErrorCode.INVALID_PARTITIONS
            assert "--brokers 4" in str(answer.results[0].error_message)
            assert len(await places_of(gateway.parts.manager, "t")) == 2, "nothing was begun"
        assert await wire.grow("t", 3, validate_only=True) == 0
        assert len(await places_of(gateway.parts.manager, "t")) == 2
        assert await wire.grow("t", 3) == 0
        await fill(wire, "t", range(2, 3))
        before = await places_of(gateway.parts.manager, "t")
    async with running(url, mapping="broker", brokers=5) as (gateway, wire):
        assert await wire.grow("t", 5) == 0
        await fill(wire, "t", range(3, 5))
        places = await places_of(gateway.parts.manager, "t")
        assert places[:3] == before
        assert len({place.broker for place in places}) == 5
    async with running(f"{url}?brokers=5") as (_, wire):  # another mapping is the usual one now, or none is said
        await check(wire, "t", 5)
    with pytest.raises(TooFewBrokersError, match="brokers=5"):
        async with running(url, **THREE):
            pass


async def test_topics_are_created_by_themselves(url: str) -> None:
    async with running(url, **THREE, config={"num.partitions": 3}) as (gateway, wire):
        assert (await wire.metadata("auto", create=True)).topics[0].error_code in (0, ErrorCode.LEADER_NOT_AVAILABLE)
        await fill(wire, "auto", range(3))
        assert len(await places_of(gateway.parts.manager, "auto")) == 3


# --- life and death ---


@pytest.mark.slow
async def test_a_topic_deleted_and_made_anew_shares_nothing(url: str) -> None:
    async with running(url, **THREE) as (gateway, wire):
        for _ in range(3):
            assert (await wire.create("t", 3)).error_code == 0
            await fill(wire, "t", range(3))
            await wire.commit("g", "t", 1, 2)
            assert await wire.delete("t") == 0
            assert await gateway.parts.manager.list_topics(SHARED) == []
            assert not await scan_all(gateway.parts.manager, "brk/")
        await wire.create("t", 1)
        assert await wire.values("t") == []
        assert await wire.committed("g", "t") == -1


@pytest.mark.slow
async def test_a_growth_that_was_cut_off_is_begun_again(url: str) -> None:
    """Bindings without a row are not partitions, and become some."""
    async with running(url, **THREE) as (gateway, wire):
        await wire.create("t", 1)
        await fill(wire, "t", range(1))
        manager = gateway.parts.manager
        (first,) = await places_of(manager, "t")
        other = next(name for name in await manager.brokers() if name != first.broker)
        left = await manager.bind(first.topic, other)
    async with running(url, **THREE) as (gateway, wire):
        assert len((await wire.metadata("t")).topics[0].partitions) == 1
        assert await wire.grow("t", 3) == 0
        assert (await places_of(gateway.parts.manager, "t"))[:2] == [first, left]
        await fill(wire, "t", range(1, 3))
    async with running(url, **THREE) as (gateway, wire):
        await check(wire, "t", 3)
        assert await wire.delete("t") == 0
        assert await gateway.parts.manager.list_topics(SHARED) == []


async def test_a_growth_that_the_store_refuses_leaves_the_topic_as_it_was(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(url, **THREE) as (gateway, wire):
        await wire.create("t", 1)
        await fill(wire, "t", range(1))
        bind, calls = gateway.parts.manager.bind, 0

        async def failing(*args: Any, **options: Any) -> Place:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise BindingError("it went away")
            return await bind(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(gateway.parts.manager, "bind", failing)
            assert await wire.grow("t", 3) != 0
        assert len((await wire.metadata("t")).topics[0].partitions) == 1
        assert await wire.grow("t", 3) == 0
        await fill(wire, "t", range(1, 3))


async def test_a_creation_that_was_cut_off_leaves_nothing(url: str) -> None:
    async with running(url, **THREE) as (gateway, _):
        manager = gateway.parts.manager
        await manager.create_domain(SHARED)
        await manager.create_topic(Topic(SHARED, "half"), broker="brk-1")
        await manager.bind(Topic(SHARED, "half"), "brk-2")
        await manager.commit({"kafka/intent/half": b"broker"})
    async with running(url, **THREE) as (gateway, wire):
        assert await gateway.parts.manager.list_topics(SHARED) == []
        assert (await wire.create("half", 3)).error_code == 0


async def test_a_topic_whose_row_is_damaged_goes_with_what_it_left(url: str) -> None:
    async with running(url, **THREE) as (_, wire):
        await wire.create("t", 3)
        await wire.create("u")
        await fill(wire, "t", range(3))
    async with open_store(url) as store:
        await store.manager.create_domain("t")  # somebody else's
        row = (await store.manager.get(["kafka/topic/t"]))["kafka/topic/t"].value
        await store.manager.commit({"kafka/topic/t": row.replace(b"brk-1", b"brk-9")})
    async with running(url) as (gateway, wire):
        assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await wire.delete("t") == 0
        manager = gateway.parts.manager
        assert [info.topic.name for info in await manager.list_topics(SHARED)] == ["u"]
        assert await scan_all(manager, "kafka/intent/") == {}
        assert (await wire.create("t", 2)).error_code == 0


async def test_a_topic_of_others_is_left_alone(url: str) -> None:
    async with running(url, **THREE) as (gateway, wire):
        await wire.create("t")
        manager = gateway.parts.manager
        theirs = (await manager.create_topic(Topic(SHARED, "theirs"), broker="brk-0")).place
        row = await wire.create("theirs", 2)
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert f"{SHARED}:theirs" in str(row.error_message)
        assert await places_of(manager, "theirs") == [theirs]


# --- with clients, and kill -9 ---


@pytest.mark.slow
def test_a_gateway_that_is_killed(tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path / "data", options=["--mapping", "broker", "--brokers", "3"])
    process.start()
    try:
        with kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 3)])
        with kclient.sync.Producer(bootstrap_servers=process.bootstrap) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number, partition=number % 3)
        assert read(process.bootstrap, 150, joins=True) == 150
        process.stop(kill=True)
        process.start()
        assert read(process.bootstrap, 150) == 150
        with (
            kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin,
            pytest.raises(InvalidPartitionsError, match="--brokers 5"),
        ):
            admin.create_partitions({"t": 5})
        process.stop(kill=True)
        process.options = ["--brokers", "5"]
        process.start()
        with kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin:
            admin.create_partitions({"t": 5})
        with kclient.sync.Producer(bootstrap_servers=process.bootstrap) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, partition=number % 5)
        assert read(process.bootstrap, 160, partitions=5) == 160
    finally:
        process.stop()
    assert process.stderr == []


def read(bootstrap: str, number: int, *, joins: bool = False, partitions: int = 3) -> int:
    """Read so many records from what a group has committed on; who joins it commits. How many came."""
    found = 0
    with kclient.sync.Consumer(
        bootstrap_servers=bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=10,
    ) as consumer:
        if joins:
            consumer.subscribe(["t"])
        else:
            consumer.assign([("t", each) for each in range(partitions)])
        while found < number:
            records = consumer.poll(20.0)
            assert records, f"only {found} records came"
            found += len(list(records))
        if joins:
            consumer.commit()
    return found
