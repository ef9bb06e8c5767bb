"""What one gateway changes is in force at the others, soon, and is what it is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from statistics import median
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor, loop_soon
from kclient.errors import (
    ErrorCode,
    InvalidPartitionsError,
    ReassignmentInProgressError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.change_feed import ChangeFeed
from kclient.gateway.config import BrokerConfig, TopicConfig
from kclient.gateway.mapping import mapping_for
from kclient.gateway.ownership import HeldLease
from kclient.gateway.rows.keys import INTENTS, SETTINGS, TOPICS, intent_key, topic_key
from kclient.gateway.rows.topics import IntentRow
from kclient.gateway.shields import Shields
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.gateway.topics.followed import FollowedTopics
from kclient.gateway.topics.record import TopicRecord
from kclient.gateway.topics.table import TopicTable
from kclient.htp import StorageError, open_store
from kclient.htp.port import ChangePage
from kclient.memory_ledger import MemoryLedger
from kclient.net.fair_queue import FairQueue
from kclient.records import decode_records
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of, connect, fetch_request
from tests.sweeps import slow
from tests.unit.gateway_cluster.two_gateways import several, until

pytestmark = pytest.mark.anyio

SET = 0
TOPIC, BROKER = 2, 4


class NoOffsets:
    """Nothing is committed; counts what is asked."""

    def __init__(self) -> None:
        self.deleted: Counter[str] = Counter()
        self.failing = 0

    async def topic_deleted(self, topic: str) -> None:
        self.deleted[topic] += 1

    async def forget_topic(self, topic: str) -> None:
        await anyio.lowlevel.checkpoint()
        if self.failing:
            self.failing -= 1
            raise StorageError("the offsets stay")


class SameEpoch:
    """All is led under one epoch."""

    def __init__(self) -> None:
        self.forgotten: set[bytes] = set()

    def greatest_epoch(self, topic_id: bytes) -> int:
        return 1

    def forget(self, topic_id: bytes) -> None:
        self.forgotten.add(topic_id)


class Party:
    """What a gateway knows of topics, without the rest of it."""

    def __init__(self, store: Any, lease: HeldLease, number: int, spawn: Any, manager: Any = None) -> None:
        manager = manager or store.manager
        self.config = BrokerConfig({})
        self.offsets = NoOffsets()
        self.epochs = SameEpoch()
        self.table = TopicTable(MemoryLedger().part(1 << 30).limited("topics", 1))
        self.catalogue = TopicCatalogue(
            self.table, self.offsets, self.epochs, mapping_for("domain"),
            manager=manager, broker=store.broker, lease=lease, run=f"run {number}", shields=Shields(), spawn=spawn,
            flow=FairQueue(loop_soon()).flow(), resolve=partial(TopicConfig.resolve, self.config),
            num_partitions=lambda: 1, replication_factor=lambda: 1,
        )  # fmt: skip
        self.follower = FollowedTopics(self.table, self.catalogue, manager)
        self.feed = ChangeFeed(manager, [self.follower])
        self.seen: dict[bytes, TopicRecord] = {}

    async def begin(self) -> None:
        await self.feed.begin()
        await self.catalogue.load()

    def facts(self) -> dict[str, tuple[Any, ...]]:
        """What it knows."""
        for record in self.table:
            assert self.seen.setdefault(record.topic_id, record) is record, "one record for a topic, as long as it is"
            assert self.table.by_id(record.topic_id) is record
            assert not record.gone
        return {
            record.name: (
                record.topic_id, record.partitions, dict(record.overrides), list(record.places), record.version,
                record.config,
            )
            for record in self.table
        }  # fmt: skip


@asynccontextmanager
async def parties(url: str, count: int = 2) -> AsyncIterator[tuple[Any, list[Party]]]:
    async with open_store(url) as store:
        supervisor = Supervisor("test")
        await supervisor.start()
        try:
            found = []
            for number in range(count):
                lease = await store.manager.acquire(f"party {number}", str(number), 60.0)
                found.append(Party(store, HeldLease(lease), number, supervisor.spawn))
                await found[-1].begin()
            for each in found:
                supervisor.spawn(each.feed.run)
            yield store, found
            supervisor.check()
        finally:
            await supervisor.aclose()


def settings(**values: str) -> Callable[[Any], dict[str, str]]:
    return lambda before: {**before, **{name.replace("_", "."): value for name, value in values.items()}}


async def written(store: Any) -> dict[str, int]:
    return {key.removeprefix(TOPICS): row.version for key, row in (await scan_all(store.manager, TOPICS)).items()}


async def agree(store: Any, found: Sequence[Party]) -> dict[str, tuple[Any, ...]]:
    """Wait until all know the same, which is what the store says."""
    rows = await written(store)
    for each in found:
        await until(lambda each=each: {name: facts[4] for name, facts in each.facts().items()} == rows)
    facts = [each.facts() for each in found]
    assert all(each == facts[0] for each in facts)
    return facts[0]


async def test_the_life_of_a_topic(url: str) -> None:
    async with parties(url) as (store, (one, two)):
        await one.catalogue.create("t", 2)
        await agree(store, (one, two))
        record = two.table.get("t")
        assert record is not None
        await two.catalogue.alter("t", settings(retention_ms="17"))
        facts = await agree(store, (one, two))
        assert facts["t"][5].retention_ms == 17
        await one.catalogue.grow("t", 5)
        assert (await agree(store, (one, two)))["t"][1] == 5
        assert two.table.get("t") is record
        assert record.partitions == len(record.places) == 5
        await one.catalogue.delete("t")
        await until(lambda: "t" not in two.table)
        assert record.gone
        assert (two.offsets.deleted["t"], two.epochs.forgotten) == (1, {record.topic_id})
        await two.catalogue.create("t", 1)
        await agree(store, (one, two))
        assert two.table.get("t") is not record
        assert record.topic_id not in {each.topic_id for each in one.table}
        assert not await scan_all(store.manager, INTENTS)


async def test_whoever_changes_a_topic_has_read_it_before(url: str) -> None:
    """Nobody is refused because of an old picture: here the others are told nothing by themselves."""
    async with open_store(url) as store:
        supervisor = Supervisor("test")
        await supervisor.start()
        found = []
        for number in range(3):
            lease = await store.manager.acquire(f"party {number}", str(number), 60.0)
            found.append(Party(store, HeldLease(lease), number, supervisor.spawn))
        one, two, three = found
        await one.catalogue.create("t", 2)
        with pytest.raises(TopicExistsError):
            await two.catalogue.create("t")
        await two.catalogue.grow("t", 3)
        await one.catalogue.alter("t", settings(retention_ms="1"))
        await three.catalogue.alter("t", settings(retention_bytes="2"))
        with pytest.raises(InvalidPartitionsError):
            await one.catalogue.grow("t", 3)
        assert one.facts() == three.facts()
        assert one.facts()["t"][2] == {"retention.ms": "1", "retention.bytes": "2"}
        topic_id = one.facts()["t"][0]
        await three.catalogue.delete("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            await two.catalogue.alter("t", settings())
        await two.catalogue.create("t", 1)
        with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
            await one.catalogue.delete("t", topic_id)
        for each in found:
            await each.follower.read_all()
        assert one.facts() == two.facts() == three.facts()
        await supervisor.aclose()


OPERATIONS = ["create", "create", "create", "delete", "alter", "alter", "grow"]
REFUSED = (TopicExistsError, UnknownTopicOrPartitionError, InvalidPartitionsError, ReassignmentInProgressError)


async def operate(party: Party, dice: Random) -> None:
    name, kind = dice.choice("abc"), dice.choice(OPERATIONS)
    work: Callable[[], Awaitable[object]]
    if kind == "create":
        work = partial(party.catalogue.create, name, dice.randrange(1, 4))
    elif kind == "delete":
        work = partial(party.catalogue.delete, name)
    elif kind == "alter":
        work = partial(party.catalogue.alter, name, settings(retention_ms=str(dice.randrange(1, 1000))))
    else:
        work = partial(party.catalogue.grow, name, dice.randrange(2, 8))
    with suppress(REFUSED):
        await work()
    for _ in range(dice.randrange(4)):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 12))])
async def test_many_changes_at_the_same_time(url: str, seed: int) -> None:
    """Whatever three gateways do at once, all end with the same picture, and every place that it names is there."""
    dice = Random(seed)
    async with parties(url, 3) as (store, found):

        async def busy(party: Party, seed: int) -> None:
            own = Random(seed)
            for _ in range(12):
                await operate(party, own)
                party.facts()

        async with anyio.create_task_group() as group:
            for party in found:
                group.start_soon(busy, party, dice.randrange(1 << 30))
        for party in found:
            await party.catalogue.sweep()
        facts = await agree(store, found)
        assert not await scan_all(store.manager, INTENTS)
        for topic_id, partitions, _, places, _, _ in facts.values():
            assert len(places) == partitions
            there = await store.manager.list_topics(places[0].topic.domain)
            assert {each.place for each in there} >= set(places), topic_id.hex()
        known = {record.topic_id for record in found[0].table}
        for party in found:
            for topic_id, record in party.seen.items():
                assert record.gone == (topic_id not in known)


async def test_an_intent_of_another_gateway_is_left_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.gateway.topics.catalogue._PATIENCE_S", 0.05)
    async with parties(url) as (store, (one, two)):
        await one.catalogue.create("t", 2)
        await agree(store, (one, two))
        rows = {intent_key(name): IntentRow("domain", bytes(16), "run of a third").encode() for name in ("t", "new")}
        await store.manager.commit(rows)
        with pytest.raises(TopicExistsError, match="another gateway"):
            await one.catalogue.create("new")
        with pytest.raises(ReassignmentInProgressError, match="another gateway"):
            await two.catalogue.grow("t", 3)
        with pytest.raises(ReassignmentInProgressError, match="another gateway"):
            await two.catalogue.delete("t")
        assert {key: row.value for key, row in (await scan_all(store.manager, INTENTS)).items()} == rows
        await store.manager.commit(dict.fromkeys(rows))
        await one.catalogue.create("new")
        await two.catalogue.grow("t", 3)
        await agree(store, (one, two))


async def test_a_row_that_is_damaged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with parties(url) as (store, (one, two)):
        await one.catalogue.create("t", 2)
        facts = await agree(store, (one, two))
        there = (await store.manager.get([topic_key("t")]))[topic_key("t")].value
        await store.manager.commit({topic_key("t"): b"damaged", topic_key("u"): b"damaged"})
        await until(lambda: "u" in one.table.damaged and "u" in two.table.damaged)
        assert one.facts() == two.facts()
        assert one.facts()["t"][:4] == facts["t"][:4]
        assert "topic t is served as it was known" in caplog.text
        await store.manager.commit({topic_key("t"): there, topic_key("u"): None})
        await until(lambda: not one.table.damaged and not two.table.damaged)
        await one.catalogue.create("u")
        await agree(store, (one, two))


async def test_offsets_that_cannot_be_forgotten_hold_their_topics_namesake_up(url: str) -> None:
    async with parties(url) as (store, (one, two)):
        await one.catalogue.create("t")
        await agree(store, (one, two))
        two.offsets.failing = 1
        await one.catalogue.delete("t")
        await one.catalogue.create("t")
        await one.catalogue.create("other")
        await agree(store, (one, two))
        assert not two.offsets.failing


class ShortLog:
    """A manager whose log of changes is forgotten now and then."""

    def __init__(self, manager: Any, dice: Random) -> None:
        self._manager = manager
        self._dice = dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def changes(self, prefixes: Any, since: str | None = None, **options: Any) -> ChangePage:
        if since is not None:
            await anyio.lowlevel.checkpoint()
            if self._dice.random() < 0.5:
                since = "1.0"  # another store's
        page: ChangePage = await self._manager.changes(prefixes, since, **options)
        return page


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *slow(1, 2, 3)])
async def test_changes_that_are_forgotten(url: str, seed: int) -> None:
    async with open_store(url) as store:
        supervisor = Supervisor("test")
        await supervisor.start()
        leases = [HeldLease(await store.manager.acquire(f"party {each}", str(each), 60.0)) for each in range(2)]
        one = Party(store, leases[0], 0, supervisor.spawn)
        two = Party(store, leases[1], 1, supervisor.spawn, ShortLog(store.manager, Random(seed)))
        for each in (one, two):
            await each.begin()
            supervisor.spawn(each.feed.run)
        dice = Random(seed)
        for _ in range(30):
            await operate(one, dice)
        await one.catalogue.sweep()
        await agree(store, (one, two))
        supervisor.check()
        await supervisor.aclose()


# Whole gateways


async def test_within_a_tenth_of_a_second(url: str) -> None:
    async with several(url) as ((first, one), (second, _)):
        took = []
        for number in range(20):
            name = f"t{number}"
            await one.create(name)
            begun = time.perf_counter()
            await until(lambda name=name: name in second.parts.topics)
            took.append(time.perf_counter() - begun)
            assert second.parts.topics.get(name).topic_id == first.parts.topics.get(name).topic_id  # type: ignore[union-attr]
        assert median(took) < 0.1, took


async def test_readers_and_writers_are_told(url: str) -> None:
    """The second one has the greater epoch, so that the store lets it remove what the first has written."""
    async with several(url) as ((first, one), (_, two)):
        await one.create("t", 2)
        assert (await one.produce("t", batch_of(b"a"))).base_offset == 0
        record = first.parts.topics.get("t")
        assert record is not None
        assert await one.commit("g", "t", 1) == 0
        await until(lambda: "t" in first.parts.topics)
        assert await two.alter(TOPIC, "t", ("max.message.bytes", SET, "100")) == 0
        await until(lambda: record.config.max_message_bytes == 100)
        assert (await one.produce("t", batch_of(bytes(1000)))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await two.grow("t", 3) == 0
        await until(lambda: record.partitions == 3)
        assert (await one.produce("t", batch_of(b"b"), 2)).base_offset == 0
        parked = connect(first)
        request = fetch_request("t", 1, max_wait_ms=30_000)
        await parked.send(request, 11)
        await until(lambda: record.logs)
        assert await two.delete("t") == 0
        await until(lambda: record.gone)
        answer = (await parked.read(request, 11)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await one.produce("t", batch_of(b"c"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await two.create("t")).error_code == 0
        await until(lambda: "t" in first.parts.topics)
        assert (await two.produce("t", batch_of(b"d"))).base_offset == 0
        answer = await two.fetch("t", 0)
        assert [each.value for each in decode_records(answer.records or b"", "t", 0)] == [b"d"]
        assert await one.committed("g", "t") == -1
        await parked.aclose()


async def test_broker_settings(url: str) -> None:
    async with several(url, 3) as gateways:
        wires = [wire for _, wire in gateways]
        await wires[0].create("t")
        for gateway, _ in gateways:
            await until(lambda topics=gateway.parts.topics: "t" in topics)
        assert await wires[1].alter(BROKER, "2", ("log.retention.ms", SET, "1717")) == 0
        for gateway, wire in gateways:
            record = gateway.parts.topics.get("t")
            assert record is not None
            await until(lambda record=record: record.config.retention_ms == 1717)
            node_id = gateway.parts.identity.node_id
            assert (await wire.configs(BROKER, str(node_id)))["log.retention.ms"][0] == "1717"

        async def alter(number: int, name: str) -> None:
            assert await wires[number].alter(BROKER, str(number + 1), (name, SET, str(100_000 + number))) == 0

        changed = ["fetch.max.bytes", "message.max.bytes", "log.retention.bytes"]
        async with anyio.create_task_group() as group:
            for number, name in enumerate(changed):
                group.start_soon(alter, number, name)
        expected = {"log.retention.ms": "1717", **{name: str(100_000 + each) for each, name in enumerate(changed)}}
        for gateway, _ in gateways:
            await until(lambda config=gateway.parts.config: dict(config.dynamic) == expected)


async def test_broker_settings_that_one_gateway_cannot_have(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What does not go together with what it was given is left out, as at a start, and kept."""
    async with several(url) as ((first, one), (second, _)):
        row = b'{"format":1,"settings":{"num.partitions":"7","no.such.setting":"1"}}'
        await first.parts.manager.commit({SETTINGS: row})
        for gateway in (first, second):
            await until(lambda config=gateway.parts.config: dict(config.dynamic) == {"num.partitions": "7"})
        assert "no.such.setting=1 that was made earlier is ignored" in caplog.text
        assert await one.alter(BROKER, "1", ("fetch.max.bytes", SET, "5000")) == 0
        await until(lambda: "fetch.max.bytes" in second.parts.config.dynamic)
        found = (await first.parts.manager.get([SETTINGS]))[SETTINGS].value
        assert b'"no.such.setting":"1"' in found
