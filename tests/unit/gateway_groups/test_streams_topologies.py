"""What follows from topologies of absurd sizes and shapes is found out quickly, and is what Kafka finds."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from kclient.errors import StreamsInvalidTopologyError
from kclient.gateway.groups.streaming.configuring import configure
from kclient.gateway.groups.streaming.member import NOTHING_HELD, HeldTasks, StreamsMember
from kclient.gateway.groups.streaming.roster import StreamsRoster
from kclient.gateway.rows.streams_topology import Copartition, StreamsTopic, Subtopology, Topology
from kclient.protocol import messages as m
from kclient.protocol.messages.streams import CopartitionGroup
from tests.unit.gateway_groups.harness import coordinator, fresh_name, reset
from tests.unit.gateway_groups.test_streams_members import internal, joining, part


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def chain(length: int) -> Topology:
    """Each subtopology reads what the next one in its list writes: the last of them alone reads a source."""
    parts = [Subtopology("0", ("a",), ("r1",), (), (), ())]
    parts += [
        Subtopology(str(number), (), (f"r{number + 1}",), (StreamsTopic(f"r{number}", 0, 0),), (), ())
        for number in range(1, length)
    ]
    parts.append(Subtopology(str(length), (), (), (StreamsTopic(f"r{length}", 0, 0),), (), ()))
    return Topology(0, tuple(reversed(parts)))


def circle_of_many_names() -> Topology:
    reads = (StreamsTopic("r", 0, 0),) * 5_000
    return Topology(0, (Subtopology("0", (), ("r",) * 20_000, reads, (), ()),))


def many_copartition_groups() -> Topology:
    topics = tuple(StreamsTopic(f"r{number}", 1, 0) for number in range(1_500))
    groups = (Copartition((), (0,)),) * 20_000
    return Topology(0, (Subtopology("0", ("a",), (), topics, (), groups),))


@pytest.mark.parametrize("topology", [chain(1_800), circle_of_many_names(), many_copartition_groups()])
def test_what_follows_is_found_out_in_one_pass(topology: Topology) -> None:
    began = time.perf_counter()
    with suppress(StreamsInvalidTopologyError):
        configure(topology, {"a": 3}.get)
    assert time.perf_counter() - began < 2


def by_rounds(topology: Topology, sources: dict[str, int]) -> dict[str, int] | None:
    """What Kafka decides by going through all subtopologies until nothing is left; None for a circle."""
    parts = topology.subtopologies.values()
    found = {topic.name: topic.partitions for each in parts for topic in each.repartitions if topic.partitions}
    while left := [(each, name) for each in parts for name in each.sinks if name not in found]:
        before = len(found)
        for each, name in left:
            counts = [found[topic.name] for topic in each.repartitions if topic.name in found]
            counts += [sources[source] for source in each.sources]
            if counts and name not in found:
                found[name] = max(counts)
        if len(found) == before:
            return None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_subtopologies_decides_as_in_kafka(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        names = [f"r{number}" for number in range(dice.randint(1, 6))]
        given = {name: dice.choice([0, 0, 0, 5]) for name in names}
        sources = {"a": 2, "b": 7}
        parts = []
        writes: dict[int, list[str]] = {}
        count = dice.randint(1, 6)
        for name in names:
            writes.setdefault(dice.randrange(count), []).append(name)
        for number in range(count):
            reads = [StreamsTopic(name, given[name], 0) for name in names if dice.random() < 0.4]
            own = tuple(name for name in sources if dice.random() < 0.3)
            if not reads and not own:
                own = ("a",)
            sinks = tuple(writes.get(number, ()))
            parts.append(Subtopology(str(number), own, sinks, tuple(reads), (), ()))
        topology = Topology(0, tuple(parts))
        wanted = by_rounds(topology, sources)
        try:
            configured = configure(topology, sources.get)
        except StreamsInvalidTopologyError:
            assert wanted is None
            continue
        assert wanted is not None
        for each in configured.subtopologies.values():
            for topic in each.repartitions:
                assert topic.partitions == wanted[topic.name]


def test_the_order_in_which_a_member_tells_its_subtopologies_does_not_matter() -> None:
    parts = [Subtopology(str(number), (f"t{number}",), (), (), (), ()) for number in range(12)]
    told = Topology(3, tuple(parts))
    assert Topology(3, tuple(reversed(parts))) == told
    assert Topology(4, tuple(parts)) != told
    assert Topology(3, tuple(parts[1:])) != told


def test_a_group_has_no_more_tasks_than_there_is_memory_for() -> None:
    parts = tuple(Subtopology(str(number), ("a",), (), (), (), ()) for number in range(201))
    with pytest.raises(StreamsInvalidTopologyError, match="tasks"):
        configure(Topology(0, parts), {"a": 100}.get)
    assert sum(configure(Topology(0, parts[:200]), {"a": 100}.get).tasks.values()) == 20_000


LARGE = [
    [part(*["a"] * 10_000)],
    [part("a", subtopology_id=str(number)) for number in range(1_001)],
    [part(copartition_groups=[CopartitionGroup(source_topics=[0] * 10_000)])],
    [part(copartition_groups=[CopartitionGroup()] * 10_000)],
    [part(state_changelog_topics=[internal("c", **{f"k{number}": "" for number in range(10_000)})])],
    [part(*(f"{number}-{'x' * 30_000}" for number in range(30)))],
    [part(subtopology_id="0" * 250)],
]


@pytest.mark.anyio
@pytest.mark.parametrize("parts", LARGE, ids=range(len(LARGE)))
async def test_topologies_that_are_too_large_are_refused(store: str, parts: list[Any]) -> None:
    async with coordinator(store) as box:
        with pytest.raises(StreamsInvalidTopologyError):
            await box.ask(joining("m1", *parts))
        assert not list((await box.ask(m.ListGroupsRequest())).groups)


def test_all_tasks_of_a_group_come_to_one_member_in_a_moment() -> None:
    """Measured as memory, which does not depend on what else runs: of the indexes, beside that of the tasks."""
    member = StreamsMember("m")
    member.process_id = "p"
    tasks = {str(name): dict.fromkeys(range(1_000), 2) for name in range(20)}
    roster = StreamsRoster()
    roster.add(member)
    member.assigned = HeldTasks(tasks)
    tracemalloc.start()
    try:
        roster.hold(member, "p", NOTHING_HELD, NOTHING_HELD)
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()
    some = frozenset({998, 999, 1_000})
    assert roster.inactive("19", some) == {1_000}
    assert roster.not_at("p", "0", some) == {1_000}
    assert roster.not_at("q", "0", some) == some
    roster.remove(member)
    assert roster.inactive("19", some) == some
    assert roster.not_at("p", "0", some) == some
