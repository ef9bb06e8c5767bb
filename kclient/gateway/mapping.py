"""How Kafka topics and partitions lie in HTP: the mapping strategies.

`domain` (the default): a Kafka topic is an HTP domain, a partition is a topic in it, named by its number.
`multilevel`: all are in one domain, and a partition is a topic of two levels, `NAME/PARTITION`.
`virtual`: all are in one domain, a Kafka topic is a topic, and its partitions share that.
`broker`: a Kafka topic is a topic, and each broker that it is bound to is a partition (`mapping_by_broker.py`).
The strategy is chosen per gateway and recorded per topic, so that a topic stays readable when the default changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from kclient.arguments import shown
from kclient.concurrency import side_by_side
from kclient.errors import ConfigError
from kclient.gateway.mapping_by_broker import PartitionPerBroker
from kclient.gateway.unit import ONE_UNIT
from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.errors import DomainExistsError, TopicExistsError, UnknownDomainError, UnknownTopicError
from kclient.htp.port import Broker, Lease, Manager, Place, Topic

DEFAULT_MAPPING: Final = "domain"
_MULTILEVEL: Final = "multilevel"
_BROKER: Final = "broker"
_SHARED_DOMAIN: Final = "kafka~multilevel"
"""Where the topics of two levels are: no Kafka topic can be called so, and hence no domain that is one."""
_VIRTUAL: Final = "virtual"
_VIRTUAL_DOMAIN: Final = "kafka~virtual"
"""Where the topics are that partitions share."""
_AT_ONCE: Final = 64
"""Creations in flight at a time: enough for the manager to merge them into few commits."""


class Mapping(Protocol):
    """A strategy: where a partition lies, and how its place is made and removed."""

    @property
    def name(self) -> str:
        """The strategy's name, as it is recorded with a topic."""
        ...

    @property
    def shared(self) -> bool:
        """Whether all partitions of a topic lie in one HTP topic, which has an index then."""
        ...

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        ...

    def place(self, topic: str, partition: int, incarnation: int, broker: str | None = None) -> Place:
        """Where a partition lies whose HTP topic has this incarnation, at this broker; None: at `brk-0`."""
        ...

    async def check(self, manager: Manager, topic: str, partitions: int) -> None:
        """See to it, before anything is made, that a topic can have so many partitions.

        Raises:
            InvalidPartitionsError: If it cannot.
        """
        ...

    def unit(self, partition: int) -> int:
        """The number of the unit of its topic that a partition is led as; those of one place are one."""
        ...

    async def taken(self, manager: Manager, topic: str) -> str | None:
        """What lies in HTP where a topic of this name would, as a complaint names it; None if there is nothing."""
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


class _TopicPerPartition(ABC):
    """What strategies have in common by which a partition is an HTP topic of its own.

    Args:
        name: The strategy's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The strategy's name, as it is recorded with a topic."""
        return self._name

    @property
    def shared(self) -> bool:
        """Each has its own."""
        return False

    @abstractmethod
    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""

    @abstractmethod
    async def taken(self, manager: Manager, topic: str) -> str | None:
        """What lies in HTP where a topic of this name would, as a complaint names it; None if there is nothing."""

    @abstractmethod
    async def _existing(self, manager: Manager, topic: str) -> list[Place]:
        """The places of a topic's partitions. Raises `UnknownDomainError` if there is no domain for them."""

    def place(self, topic: str, partition: int, incarnation: int, broker: str | None = None) -> Place:
        """Where a partition lies whose HTP topic has this incarnation."""
        return Place(self.topic(topic, partition), broker or FIRST_BROKER, incarnation)

    async def check(self, manager: Manager, topic: str, partitions: int) -> None:
        """There may be as many HTP topics as Kafka allows partitions."""
        return

    def unit(self, partition: int) -> int:
        """Each is one."""
        return partition

    async def create(
        self, manager: Manager, broker: Broker, topic: str, partitions: range, *, lease: Lease
    ) -> list[Place]:
        """Make the places of these partitions; what lay there before is removed."""
        with suppress(DomainExistsError):
            await manager.create_domain(self.topic(topic, 0).domain)
        places: dict[int, Place] = {}

        async def create(number: int) -> None:
            places[number] = await _create(manager, broker, self.topic(topic, number), lease)

        async with side_by_side(_AT_ONCE) as begin:
            for number in partitions:
                await begin(create, number)
        return [places[number] for number in partitions]

    async def find(self, manager: Manager, topic: str, partitions: int) -> list[Place]:
        """The places of a topic of which only the name is known."""
        found = {place.topic: place for place in await self._existing(manager, topic)}
        topics = [self.topic(topic, number) for number in range(partitions)]
        missing = [name for name in topics if name not in found]
        if missing:
            raise UnknownTopicError(f"There is no topic {missing[0]}")
        return [found[name] for name in topics]

    async def delete(self, manager: Manager, broker: Broker, topic: str, *, lease: Lease, epoch: int) -> None:
        """Remove a topic's places and all messages in them; what is not there any more is no error."""
        places: list[Place] = []
        with suppress(UnknownDomainError):
            places = await self._existing(manager, topic)
        await manager.commit({}, lease=lease)  # still held, so none of these places is a successor's
        await broker.delete(places, epoch=epoch)
        with suppress(UnknownDomainError):
            await self._forget(manager, topic, places, lease)  # also where a store tells of it too late

    @abstractmethod
    async def _forget(self, manager: Manager, topic: str, places: Sequence[Place], lease: Lease) -> None:
        """The manager's part of a deletion."""


class _DomainPerTopic(_TopicPerPartition):
    """A Kafka topic is an HTP domain, a partition is a topic in it."""

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        return Topic(topic, str(partition))

    async def taken(self, manager: Manager, topic: str) -> str | None:
        """The domain, if there is one of this name."""
        try:
            await self._existing(manager, topic)
        except UnknownDomainError:
            return None
        return f"a domain {topic!r}"

    async def _existing(self, manager: Manager, topic: str) -> list[Place]:
        return [info.place for info in await manager.list_topics(topic)]

    async def _forget(self, manager: Manager, topic: str, places: Sequence[Place], lease: Lease) -> None:
        await manager.delete_domain(topic, lease=lease)


class _TwoLevels(_TopicPerPartition):
    """A partition is an HTP topic of two levels, in a domain that all Kafka topics share."""

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        return Topic(_SHARED_DOMAIN, f"{topic}/{partition}")

    async def taken(self, manager: Manager, topic: str) -> str | None:
        """One of the topics below this name, if there are any."""
        with suppress(UnknownDomainError):
            for place in await self._existing(manager, topic):
                return f"a topic {place.topic}"
        return None

    async def _existing(self, manager: Manager, topic: str) -> list[Place]:
        return [info.place for info in await manager.list_topics(_SHARED_DOMAIN, f"{topic}/")]

    async def _forget(self, manager: Manager, topic: str, places: Sequence[Place], lease: Lease) -> None:
        await manager.delete_topics([place.topic for place in places], lease=lease)


class _Shared:
    """A Kafka topic is an HTP topic, in a domain that all share; so is each of its partitions.

    Args:
        name: The strategy's name.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.shared: bool = True

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds them all."""
        return Topic(_VIRTUAL_DOMAIN, topic)

    def place(self, topic: str, partition: int, incarnation: int, broker: str | None = None) -> Place:
        """Where they all lie."""
        return Place(self.topic(topic, partition), broker or FIRST_BROKER, incarnation)

    async def check(self, manager: Manager, topic: str, partitions: int) -> None:
        """It can have any number."""

    def unit(self, partition: int) -> int:
        """They are one."""
        return ONE_UNIT

    async def taken(self, manager: Manager, topic: str) -> str | None:
        """The topic of this name, if there is one."""
        try:
            return f"a topic {(await manager.describe_topic(self.topic(topic, 0))).topic}"
        except (UnknownTopicError, UnknownDomainError):
            return None

    async def create(
        self, manager: Manager, broker: Broker, topic: str, partitions: range, *, lease: Lease
    ) -> list[Place]:
        """Make the topic with the first partition; the others lie there, too."""
        name = self.topic(topic, 0)
        if partitions.start:
            place = (await manager.describe_topic(name)).place
        else:
            with suppress(DomainExistsError):
                await manager.create_domain(_VIRTUAL_DOMAIN)
            place = await _create(manager, broker, name, lease)
        return [place] * len(partitions)

    async def find(self, manager: Manager, topic: str, partitions: int) -> list[Place]:
        """The place of a topic of which only the name is known, as often as it has partitions."""
        return [(await manager.describe_topic(self.topic(topic, 0))).place] * partitions

    async def delete(self, manager: Manager, broker: Broker, topic: str, *, lease: Lease, epoch: int) -> None:
        """Remove the topic and all messages in it; if it is not there any more, that is no error."""
        name = self.topic(topic, 0)
        with suppress(UnknownTopicError, UnknownDomainError):
            place = (await manager.describe_topic(name)).place
            await manager.commit({}, lease=lease)  # still held, so it is not a successor's
            await broker.delete([place], epoch=epoch)
            await manager.delete_topics([name], lease=lease)


def is_shared(place: Place) -> bool:
    """Whether all partitions of a topic lie in a place."""
    return place.topic.domain == _VIRTUAL_DOMAIN


async def _create(manager: Manager, broker: Broker, topic: Topic, lease: Lease) -> Place:
    first, *_ = await manager.brokers()
    try:
        return (await manager.create_topic(topic, broker=first)).place
    except TopicExistsError:
        # Left by a growth that was cut off before it was recorded: nobody has read or written it.
        with suppress(UnknownTopicError):
            place = (await manager.describe_topic(topic)).place
            await manager.commit({}, lease=lease)  # still held, so it is not a successor's
            await broker.delete([place], epoch=lease.epoch)
            await manager.delete_topics([topic], lease=lease)
        return (await manager.create_topic(topic, broker=first)).place


_THERE: Final[dict[str, Callable[[str], Mapping]]] = {
    DEFAULT_MAPPING: _DomainPerTopic,
    _MULTILEVEL: _TwoLevels,
    _VIRTUAL: _Shared,
    _BROKER: PartitionPerBroker,
}
_CHOICE: Final = "use one of " + ", ".join(f"mapping={name!r}" for name in _THERE)


def mapping_for(name: str) -> Mapping:
    """The strategy of that name.

    Raises:
        ConfigError: There is no such strategy.
    """
    given: object = name
    if not isinstance(given, str):
        raise ConfigError(f"expected the name of a mapping strategy, got {shown(name)}; {_CHOICE}")
    if name in _THERE:
        return _THERE[name](name)
    raise ConfigError(f"unknown mapping strategy {shown(name)}; {_CHOICE}")


async def mapping_of_what_lies(manager: Manager, topic: str, otherwise: Mapping) -> Mapping:
    """The strategy by which something lies in HTP under a topic's name, where no row tells it any more.

    Args:
        manager: Knows the places.
        topic: Its name.
        otherwise: The strategy if there is nothing.
    """
    # a domain may be somebody else's, so it comes last
    for name in reversed(_THERE):
        mapping = mapping_for(name)
        if await mapping.taken(manager, topic) is not None:
            return mapping
    return otherwise
