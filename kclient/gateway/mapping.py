"""How Kafka topics and partitions lie in HTP: the mapping strategies.

`domain` (the default): a Kafka topic is an HTP domain, a partition is a topic in it, named by its number. The
strategy is chosen per gateway and recorded per topic, so that a topic stays readable when the default changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

import anyio

from kclient.arguments import shown
from kclient.errors import ConfigError, NotYetSupportedError
from kclient.htp.errors import DomainExistsError, TopicExistsError, UnknownDomainError, UnknownTopicError
from kclient.htp.port import Broker, Lease, Manager, Place, Topic

BROKER: Final = "brk-0"
"""The HTP broker that topics are bound to; several come with several shards."""
_DOMAIN: Final = "domain"
_AT_ONCE: Final = 64
"""Creations in flight at a time: enough for the manager to merge them into few commits."""


class Mapping(Protocol):
    """A strategy: where a partition lies, and how its place is made and removed."""

    @property
    def name(self) -> str:
        """The strategy's name, as it is recorded with a topic."""
        ...

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        ...

    def place(self, topic: str, partition: int, incarnation: int) -> Place:
        """Where a partition lies whose HTP topic has this incarnation."""
        ...

    async def taken(self, manager: Manager, topic: str) -> bool:
        """Whether there is something in HTP where a topic of this name would lie."""
        ...

    async def create(
        self, manager: Manager, broker: Broker, topic: str, partitions: range, *, lease: Lease
    ) -> list[Place]:
        """Make the places of these partitions; what lay there before is removed."""
        ...

    async def find(self, manager: Manager, topic: str, partitions: int) -> list[Place]:
        """The places of a topic of which only the name is known. Raises `UnknownTopicError` if one is missing."""
        ...

    async def delete(self, manager: Manager, broker: Broker, topic: str, *, lease: Lease, epoch: int) -> None:
        """Remove a topic's places and all messages in them; what is not there any more is no error.

        Args:
            manager: Knows the places.
            broker: Keeps the messages.
            topic: Its name.
            lease: Must still be held.
            epoch: The greatest under which one of them was opened.

        Raises:
            FencedError: If somebody else has taken the lease, whose topic of this name is left alone.
        """


class DomainMapping:
    """A Kafka topic is an HTP domain, a partition is a topic in it."""

    @property
    def name(self) -> str:
        """`domain`."""
        return _DOMAIN

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        return Topic(topic, str(partition))

    def place(self, topic: str, partition: int, incarnation: int) -> Place:
        """Where a partition lies whose HTP topic has this incarnation."""
        return Place(self.topic(topic, partition), BROKER, incarnation)

    async def taken(self, manager: Manager, topic: str) -> bool:
        """Whether there is something in HTP where a topic of this name would lie."""
        try:
            await manager.list_topics(topic)
        except UnknownDomainError:
            return False
        return True

    async def create(
        self, manager: Manager, broker: Broker, topic: str, partitions: range, *, lease: Lease
    ) -> list[Place]:
        """Make the places of these partitions; what lay there before is removed."""
        with suppress(DomainExistsError):
            await manager.create_domain(topic)
        places: dict[int, Place] = {}

        async def create(number: int) -> None:
            places[number] = await _create(manager, broker, self.topic(topic, number), lease)

        await _each(partitions, create)
        return [places[number] for number in partitions]

    async def find(self, manager: Manager, topic: str, partitions: int) -> list[Place]:
        """The places of a topic of which only the name is known."""
        found = {info.topic: info.place for info in await manager.list_topics(topic)}
        topics = [self.topic(topic, number) for number in range(partitions)]
        missing = [name for name in topics if name not in found]
        if missing:
            raise UnknownTopicError(f"There is no topic {missing[0]}")
        return [found[name] for name in topics]

    async def delete(self, manager: Manager, broker: Broker, topic: str, *, lease: Lease, epoch: int) -> None:
        """Remove a topic's places and all messages in them; what is not there any more is no error."""
        with suppress(UnknownDomainError):
            places = [info.place for info in await manager.list_topics(topic)]
            await manager.commit({}, lease=lease)  # still held, so none of these places is a successor's
            await broker.delete(places, epoch=epoch)
            await manager.delete_domain(topic, lease=lease)


async def _create(manager: Manager, broker: Broker, topic: Topic, lease: Lease) -> Place:
    try:
        return (await manager.create_topic(topic, broker=BROKER)).place
    except TopicExistsError:
        # Left by a growth that was cut off before it was recorded: nobody has read or written it.
        with suppress(UnknownTopicError):
            place = (await manager.describe_topic(topic)).place
            await manager.commit({}, lease=lease)  # still held, so it is not a successor's
            await broker.delete([place], epoch=lease.epoch)
            await manager.delete_topic(topic, lease=lease)
        return (await manager.create_topic(topic, broker=BROKER)).place


async def _each(numbers: Iterable[int], action: Callable[[int], Awaitable[None]]) -> None:
    slots = anyio.CapacityLimiter(_AT_ONCE)
    failures: list[Exception] = []

    async def one(number: int) -> None:
        try:
            await action(number)
        except Exception as error:  # noqa: BLE001  (raised below, without a group around it)
            failures.append(error)
        finally:
            slots.release_on_behalf_of(number)

    async with anyio.create_task_group() as tasks:
        for number in numbers:
            await slots.acquire_on_behalf_of(number)
            tasks.start_soon(one, number)
    if failures:
        raise failures[0]


_LATER: Final = {
    "multilevel": "topics with two levels in one domain",
    "virtual": "all partitions of a topic in one HTP topic",
    "broker": "one partition per HTP broker",
}


def mapping_for(name: str) -> Mapping:
    """The strategy of that name.

    Raises:
        NotYetSupportedError: The strategy is planned and not there yet.
        ConfigError: There is no such strategy.
    """
    given: object = name
    if not isinstance(given, str):
        raise ConfigError(f"expected the name of a mapping strategy, got {shown(name)}; use mapping='domain'")
    if name == _DOMAIN:
        return DomainMapping()
    if name in _LATER:
        raise NotYetSupportedError(
            f"the mapping strategy {name!r} ({_LATER[name]}) is not supported yet; use mapping='domain'"
        )
    raise ConfigError(f"unknown mapping strategy {shown(name)}; use mapping='domain'")
