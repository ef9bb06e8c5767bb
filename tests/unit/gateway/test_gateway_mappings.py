"""Topics that lie in HTP in different ways, side by side in one gateway."""

from __future__ import annotations

import pytest

from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.rows.topics import TopicRow
from kclient.htp import Topic, open_store
from kclient.htp.memory import manager as memory_manager
from tests.all_rows import scan_all
from tests.domains import domains_among
from tests.gateway_wire import Wire, batch_of, connect, names, running
from tests.unit.gateway.test_gateway_admin import describe

pytestmark = [pytest.mark.anyio, pytest.mark.domains]

SHARED = "kafka~multilevel"
VIRTUAL = "kafka~virtual"


async def mapping_of(wire: Wire, topic: str) -> str | None:
    (row,) = (await describe(wire, 2, topic, ["htp.mapping"])).configs
    assert (row.read_only, bool(row.documentation)) == (True, True)
    assert row.config_source == (5 if row.value == "domain" else 4), "what nobody chose is no override"
    return row.value


@pytest.mark.slow
@pytest.mark.parametrize("present", ["domain", "multilevel", "virtual", "broker"])
async def test_topics_stay_as_they_were_created(url: str, present: str) -> None:
    names = ["domain", "multilevel", "virtual", "broker"]
    for mapping in names:
        async with running(url, mapping=mapping, brokers=3) as (_, wire):
            await wire.create(mapping, 2)
            await wire.produce(mapping, batch_of(b"a", b"b"), 1)
    async with running(url, mapping=present) as (gateway, wire):
        assert [await mapping_of(wire, name) for name in names] == names
        for name in names:
            assert await wire.values(name, partition=1) == [b"a", b"b"]
            assert await wire.grow(name, 3) == 0
            assert (await wire.produce(name, batch_of(b"c"), 2)).base_offset == 0
        manager = gateway.parts.manager
        assert [info.topic.name for info in await manager.list_topics("domain")] == ["0", "1", "2"]
        assert [info.topic.name for info in await manager.list_topics(SHARED)] == [
            f"multilevel/{number}" for number in range(3)
        ]
        (info,) = await manager.list_topics("kafka~broker")
        assert (info.topic.name, len(info.places)) == ("broker", 3)
        assert [info.topic.name for info in await manager.list_topics(VIRTUAL)] == ["virtual"]
    async with running(url, mapping=present) as (gateway, wire):
        for name in names:
            assert await wire.values(name, partition=2) == [b"c"]
            assert await wire.delete(name) == 0
        manager = gateway.parts.manager
        for domain in (SHARED, VIRTUAL, "kafka~broker"):
            assert await manager.list_topics(domain) == []
        assert await domains_among(manager, ["domain"]) == []
        for name in names:  # each may come again in the other way
            assert (await wire.create(name)).error_code == 0
            assert await mapping_of(wire, name) == present
            assert (await wire.produce(name, batch_of(b"new"))).base_offset == 0


async def test_names_that_look_alike_are_different_topics(url: str) -> None:
    alike = ["t", "t-0", "t.0", "t_0", "T", "0", "t" * 249]
    async with running(url, mapping="multilevel") as (_, wire):
        for name in alike:
            assert (await wire.create(name, 11)).error_code == 0
            assert (await wire.produce(name, batch_of(name.encode()), 10)).base_offset == 0
    async with running(url, mapping="multilevel") as (_, wire):
        assert await wire.delete("t") == 0
        for name in alike[1:]:
            assert await wire.values(name, partition=10) == [name.encode()]


async def test_topics_of_others_are_left_alone(url: str) -> None:
    async with running(url, mapping="multilevel") as (gateway, wire):
        await wire.create("t")
        theirs = (await gateway.parts.manager.create_topic(Topic(SHARED, "theirs/0"))).topic
        row = await wire.create("theirs")
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert f"{SHARED}:theirs/0" in str(row.error_message)
        assert (await gateway.parts.manager.describe_topic(theirs)).topic == theirs


async def test_a_creation_that_was_cut_off_leaves_nothing(url: str) -> None:
    async with running(url, mapping="multilevel") as (gateway, wire):
        await wire.create("whole")
        manager = gateway.parts.manager
        await manager.commit({"kafka/intent/half": b"multilevel"})
        await manager.create_topic(Topic(SHARED, "half/0"), broker="brk-0")
    async with running(url) as (gateway, wire):
        assert [info.topic.name for info in await gateway.parts.manager.list_topics(SHARED)] == ["whole/0"]
        assert (await wire.create("half")).error_code == 0


async def test_a_topic_whose_row_is_damaged_goes_with_what_it_left(url: str) -> None:
    async with running(url, mapping="multilevel") as (_, wire):
        await wire.create("t", 3)
        await wire.create("u")
        await wire.produce("t", batch_of(b"a"), 2)
    async with open_store(url) as store:
        await store.manager.create_domain("t")  # somebody else's
        await store.manager.commit({"kafka/topic/t": b"garbage"})
    async with running(url) as (gateway, wire):
        assert await wire.delete("t") == 0
        manager = gateway.parts.manager
        assert [info.topic.name for info in await manager.list_topics(SHARED)] == ["u/0"]
        assert await domains_among(manager, ["t"]) == ["t"]
        assert await scan_all(manager, "kafka/intent/") == {}


async def test_a_mapping_cannot_be_set() -> None:
    async with running() as (_, wire):
        row = await wire.create("t", htp_mapping="multilevel")
        assert row.error_code == ErrorCode.INVALID_CONFIG
        assert "--mapping" in str(row.error_message)
        await wire.create("t")
        assert await wire.alter(2, "t", ("htp.mapping", 0, "multilevel")) == ErrorCode.INVALID_CONFIG
        assert await mapping_of(wire, "t") == "domain"


async def test_how_many_brokers_a_store_has_is_told_once() -> None:
    async with open_store(f"memory:{next(names)}", brokers=2) as store:
        with pytest.raises(ConfigError, match="brokers belongs to the store"):
            Gateway(store, listen=None, brokers=3)
        async with Gateway(store, listen=None, mapping="broker") as gateway:
            wire = connect(gateway)
            assert (await wire.create("t", 2)).error_code == 0
            assert (await wire.create("u", 3)).error_code == ErrorCode.INVALID_PARTITIONS
            await wire.aclose()
    with pytest.raises(ConfigError, match="brokers=2, and brokers=3"):
        Gateway("memory:mine?brokers=2", listen=None, brokers=3)


@pytest.mark.parametrize("mapping", ["domain", "multilevel", "broker"])
async def test_brokers_may_be_called_otherwise(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of other backends are."""
    monkeypatch.setattr(memory_manager, "broker_names", lambda _number: ["east", "west"])
    store = f"memory:{next(names)}"
    async with running(store, mapping=mapping) as (_, wire):
        await wire.create("t", 1)
        assert await wire.grow("t", 2) == 0
        for number in range(2):
            await wire.produce("t", batch_of(b"%d" % number), number)
    async with running(store) as (gateway, wire):
        for number in range(2):
            assert await wire.values("t", partition=number) == [b"%d" % number]
        record = gateway.parts.topics.get("t")
        assert record is not None
        brokers = {place.broker for place in record.places}
        assert brokers == ({"east", "west"} if mapping == "broker" else {"east"})
        assert await wire.delete("t") == 0


def test_rows_tell_brokers_where_there_are_several() -> None:
    row = TopicRow(b"1" * 16, 2, 1, "broker", [4, 7], {"retention.ms": "1"})
    assert TopicRow.decode(row.encode()) == row._replace(brokers=[])
    assert b'"format": 2' in row.encode() or b'"format":2' in row.encode(), "what knows no brokers reads it"
    several = row._replace(brokers=["brk-1", "brk-0"])
    assert TopicRow.decode(several.encode()) == several
    for wrong in (["brk-1"], ["brk-1", ""], ["brk-1", "brk-0", "brk-2"]):
        with pytest.raises(ValueError, match="brokers"):
            TopicRow.decode(row._replace(brokers=wrong).encode())
