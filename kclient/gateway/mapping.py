"""How Kafka topics and partitions lie in HTP: the mapping strategies.

`domain` (the default): a Kafka topic is an HTP domain, a partition is a topic in it, named by its number. The
strategy is chosen per gateway and recorded per topic, so that a topic stays readable when the default changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import anyio

from kclient.errors import ConfigError, NotYetSupportedError
from kclient.htp.errors import DomainExistsError, TopicExistsError, UnknownDomainError, UnknownTopicError
from kclient.htp.port import Broker, Manager, Topic

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

    def place(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        ...

    async def create(self, manager: Manager, broker: Broker, topic: str, partitions: range) -> None:
        """Make the places of these partitions; what lay there before is removed."""

    async def delete(self, manager: Manager, broker: Broker, topic: str) -> None:
        """Remove a topic's places and all messages in them."""


class DomainMapping:
    """A Kafka topic is an HTP domain, a partition is a topic in it."""

    @property
    def name(self) -> str:
        """`domain`."""
        return _DOMAIN

    def place(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        return Topic(topic, str(partition))

    async def create(self, manager: Manager, broker: Broker, topic: str, partitions: range) -> None:
        """Make the places of these partitions; what lay there before is removed."""
        with suppress(DomainExistsError):
            await manager.create_domain(topic)
        await _each((self.place(topic, number) for number in partitions), partial(_create, manager, broker))

    async def delete(self, manager: Manager, broker: Broker, topic: str) -> None:
        """Remove a topic's places and all messages in them."""
        with suppress(UnknownDomainError):
            places = [info.topic for info in await manager.list_topics(topic)]
            await _each(places, broker.delete)
            await manager.delete_domain(topic)


async def _create(manager: Manager, broker: Broker, place: Topic) -> None:
    try:
        await manager.create_topic(place, broker=BROKER)
    except TopicExistsError:
        # Left by a creation that was cut off before it was recorded: nobody has read or written it.
        await broker.delete(place)
        with suppress(UnknownTopicError):
            await manager.delete_topic(place)
        await manager.create_topic(place, broker=BROKER)


async def _each(places: Iterable[Topic], action: Callable[[Topic], Awaitable[None]]) -> None:
    slots = anyio.CapacityLimiter(_AT_ONCE)
    failures: list[Exception] = []

    async def one(place: Topic) -> None:
        try:
            await action(place)
        except Exception as error:  # noqa: BLE001  (raised below, without a group around it)
            failures.append(error)
        finally:
            slots.release_on_behalf_of(place)

    async with anyio.create_task_group() as tasks:
        for place in places:
            await slots.acquire_on_behalf_of(place)
            tasks.start_soon(one, place)
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
    if name == _DOMAIN:
        return DomainMapping()
    if name in _LATER:
        raise NotYetSupportedError(
            f"the mapping strategy {name!r} ({_LATER[name]}) is not there yet; use mapping='domain'"
        )
    raise ConfigError(f"there is no mapping strategy {name!r}; use mapping='domain'")
