"""Admin clients through the trouble that clusters make, in virtual time.

Each call ends by its timeout, none dies of anything but the time, and what it says is true.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio
import pytest

from kclient.admin import OffsetSpec
from kclient.errors import (
    InvalidPartitionsError,
    KafkaTimeoutError,
    ThrottlingQuotaExceededError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.types import TopicPartition
from tests.simulation.seeds import blocks
from tests.simulation.trouble import (
    BROKERS,
    PARTITIONS,
    REQUEST_TIMEOUT,
    SEEDS,
    TimedAdmin,
    Trouble,
    sweep,
)
from tests.simulation.troubled_controller import Controller
from tests.simulation.troubled_kafka import TroubledKafka
from tests.simulation.virtual_time import BACKENDS, run_virtually

TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
LATE = 0.5
"""Seconds by which a call may outlast its timeout."""
CALLERS = 4
DOUBT = "An earlier attempt that got no answer may have done it"

T = TypeVar("T")


class Administrator:
    """Does one thing after the other; the topics that it makes have names of its own."""

    def __init__(self, number: int, admin: TimedAdmin, trouble: Trouble, controller: Controller) -> None:
        self.number = number
        self.admin = admin
        self.trouble = trouble
        self.controller = controller
        self.kafka = trouble.kafka
        self.dice = trouble.random
        self.topics: dict[str, int] = {}
        """The topics that are there, with the partitions that they are known to have."""
        self.made = 0

    @property
    def timeout(self) -> float:
        return self.dice.choice([0.5, 5.0, 30.0, 90.0])

    async def run(self) -> None:
        calls = [self.create, self.grow, self.delete, self.describe, self.look, self.offsets, self.trim]
        while not self.trouble.over:
            await self.dice.choice(calls)(self.timeout)
            await anyio.sleep(3 * self.dice.random())

    async def within(self, timeout: float, call: Awaitable[T]) -> T | None:
        """What a call gives; None where its time was over first."""
        begun = anyio.current_time()
        try:
            return await call
        except KafkaTimeoutError:
            assert anyio.current_time() - begun >= timeout - 0.001
            return None
        finally:
            assert anyio.current_time() - begun <= timeout + LATE

    async def change(self, timeout: float, call: Awaitable[None]) -> bool:
        """Whether it was done; False where nobody knows."""

        async def done() -> bool:
            await call
            return True

        try:
            return bool(await self.within(timeout, done()))
        except ThrottlingQuotaExceededError:  # until its time was over
            return False

    async def create(self, timeout: float) -> None:
        self.made += 1
        name, partitions = f"a{self.number}-{self.made}", self.dice.randint(1, 4)
        try:
            done = await self.change(timeout, self.admin.create_topic(name, partitions, timeout=timeout))
        except TopicExistsError as error:
            assert DOUBT in str(error)  # noqa: PT017
            done = True
        if done:
            assert self.controller.created[name] == 1
            self.topics[name] = partitions

    async def grow(self, timeout: float) -> None:
        if not self.topics:
            return
        name = self.dice.choice(list(self.topics))
        total = self.topics.pop(name) + 1
        try:
            done = await self.change(timeout, self.admin.create_partitions({name: total}, timeout=timeout))
        except InvalidPartitionsError as error:
            assert DOUBT in str(error)  # noqa: PT017
            done = True
        if done:
            assert self.controller.partitions(name) == total
            self.topics[name] = total

    async def delete(self, timeout: float) -> None:
        if not self.topics:
            return
        name = self.dice.choice(list(self.topics))
        del self.topics[name]  # whatever becomes of it, nothing is known of it any more
        try:
            done = await self.change(timeout, self.admin.delete_topic(name, timeout=timeout))
        except UnknownTopicOrPartitionError as error:
            assert DOUBT in str(error)  # noqa: PT017
            done = True
        assert not done or self.controller.deleted[name]

    async def describe(self, timeout: float) -> None:
        some = self.dice.sample(list(self.topics), min(len(self.topics), 3))
        found = await self.within(timeout, self.admin.describe_topics(["t", *some], timeout=timeout))
        if found is not None:
            assert {name: len(topic.partitions) for name, topic in found.items()} == {
                "t": PARTITIONS,
                **{name: self.topics[name] for name in some},
            }

    async def look(self, timeout: float) -> None:
        listed = await self.within(timeout, self.admin.list_topics(timeout=timeout))
        assert listed is None or {"t", *self.topics} <= {topic.name for topic in listed}
        cluster = await self.within(timeout, self.admin.describe_cluster(timeout=timeout))
        assert cluster is None or {node.id for node in cluster.nodes} <= self.kafka.brokers.keys()
        groups = await self.within(timeout, self.admin.list_groups(timeout=timeout))
        assert groups is None or {group.group_id for group in groups} <= {"g"}

    async def offsets(self, timeout: float) -> None:
        some = self.dice.sample(TPS, self.dice.randint(1, PARTITIONS))
        before = self.ends()
        places = dict.fromkeys(some, OffsetSpec.LATEST)
        found = await self.within(timeout, self.admin.list_offsets(places, timeout=timeout))
        if found is not None:
            assert found.keys() == set(some)
            assert all(place and before[tp] <= place.offset <= self.ends()[tp] for tp, place in found.items())

    async def trim(self, timeout: float) -> None:
        some = self.dice.sample(TPS, self.dice.randint(1, PARTITIONS))
        ends = {tp: self.dice.randint(0, self.ends()[tp]) for tp in some}
        found = await self.within(timeout, self.admin.delete_records(ends, timeout=timeout))
        if found is not None:
            assert found.keys() == set(some)
            assert all(ends[tp] <= low <= self.kafka.starts[tp] for tp, low in found.items())

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: self.kafka.partitions[tp].end for tp in TPS}

    async def finish(self) -> None:
        """The trouble is over: everything works, within one request's time."""
        timeout = REQUEST_TIMEOUT + 2
        made, known = self.made, len(self.topics)
        await self.create(timeout)
        assert self.topics.keys() >= {f"a{self.number}-{made + 1}"}
        for call in (self.grow, self.delete):
            await call(timeout)
        assert len(self.topics) == known
        for looked in (self.describe, self.look, self.offsets, self.trim):
            begun = anyio.current_time()
            await looked(timeout)
            assert anyio.current_time() - begun < timeout


async def administer(seed: int) -> None:
    """Many callers of one admin client."""
    random.seed(seed)
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        trouble = Trouble(kafka, seed)
        controller = Controller(kafka, trouble.random)
        settings: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap,
            "request_timeout_ms": int(REQUEST_TIMEOUT * 1000),
        }
        async with TimedAdmin(**settings) as admin:
            callers = [Administrator(number, admin, trouble, controller) for number in range(CALLERS)]

            async def feed() -> None:
                while not trouble.over:
                    kafka.feed(trouble.random.choice(TPS), 3)
                    await anyio.sleep(trouble.random.random())

            async with anyio.create_task_group() as group:
                group.start_soon(trouble.run)
                group.start_soon(feed)
                for caller in callers:
                    group.start_soon(caller.run)
            controller.calm = True
            async with anyio.create_task_group() as group:
                for caller in callers:
                    group.start_soon(caller.finish)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_trouble(seed: int, backend: str) -> None:
    run_virtually(backend, administer, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seeds", blocks(4), ids=str)
def test_much_trouble(seeds: range, backend: str) -> None:
    sweep(backend, administer, seeds)
