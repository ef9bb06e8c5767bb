"""The mapping `broker`: a Kafka topic is one HTP topic, and each broker that it is bound to is a partition of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kclient.errors import InvalidPartitionsError
from kclient.htp.brokers import FIRST_BROKER, MOST_BROKERS
from kclient.htp.errors import DomainExistsError, TopicExistsError, UnknownTopicError
from kclient.htp.port import Broker, Lease, Manager, Place, Topic

_SHARED_DOMAIN: Final = "kafka~broker"
"""Where the topics are: no Kafka topic can be called so, and hence no domain that is one."""


class PartitionPerBroker:
    """A Kafka topic is an HTP topic, partition number i lies at the broker that it was bound to as number i.

    Implements `kclient.gateway.mapping.Mapping`.

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
        """Each has its own broker."""
        return False

    def topic(self, topic: str, partition: int) -> Topic:
        """The HTP topic that holds a partition."""
        return Topic(_SHARED_DOMAIN, topic)

    def place(self, topic: str, partition: int, incarnation: int, broker: str | None = None) -> Place:
        """Where a partition lies."""
        return Place(self.topic(topic, partition), broker or FIRST_BROKER, incarnation)

    def unit(self, partition: int) -> int:
        """Each is one."""
        return partition

    async def check(self, manager: Manager, topic: str, partitions: int) -> None:
        """See to it that there is a broker for each partition."""
        brokers = await manager.brokers()
        if partitions > len(brokers):
            more = (
                f"start the gateway with --brokers {partitions}"
                if partitions <= MOST_BROKERS
                else "use another --mapping"
            )
            raise InvalidPartitionsError(
                f"Topic '{topic}' cannot have {partitions} partitions: by its mapping, {self._name!r}, each lies at an "
                f"HTP broker of its own, and of those there are {len(brokers)} ({_some(brokers)}). Ask for "
                f"{len(brokers)} at most, or {more}"
            )

    async def taken(self, manager: Manager, topic: str) -> str | None:
        """The HTP topic, if there is one of this name."""
        with suppress(UnknownTopicError):
            return f"a topic {(await manager.describe_topic(self.topic(topic, 0))).topic}"
        return None

    async def create(
        self, manager: Manager, broker: Broker, topic: str, partitions: range, *, lease: Lease
    ) -> list[Place]:
        """Bind the topic to more brokers. A binding that a growth which was cut off has left is used: it is empty."""
        found, brokers = self.topic(topic, 0), _in_turn(await manager.brokers(), topic)
        if partitions.start == 0:
            await self._begin(manager, broker, found, brokers[0], lease)
        places = list((await manager.describe_topic(found)).places)
        bound = {place.broker for place in places}
        free = (each for each in brokers if each not in bound)
        while len(places) < partitions.stop:
            another = next(free, None)
            if another is None:
                await self.check(manager, topic, partitions.stop)
                raise InvalidPartitionsError(f"{found} is bound to all brokers that there are")
            places.append(await manager.bind(found, another, lease=lease))
        return places[partitions.start : partitions.stop]

    async def _begin(self, manager: Manager, broker: Broker, topic: Topic, first: str, lease: Lease) -> None:
        with suppress(DomainExistsError):
            await manager.create_domain(topic.domain)
        try:
            await manager.create_topic(topic, broker=first)
        except TopicExistsError:
            await self._remove(manager, broker, topic, lease, lease.epoch)
            await manager.create_topic(topic, broker=first)

    async def find(self, manager: Manager, topic: str, partitions: int) -> list[Place]:
        """The places of a topic of which only the name is known."""
        info = await manager.describe_topic(self.topic(topic, 0))
        if len(info.places) < partitions:
            raise UnknownTopicError(f"{info.topic} is bound to {len(info.places)} brokers, not to {partitions}")
        return list(info.places[:partitions])

    async def delete(self, manager: Manager, broker: Broker, topic: str, *, lease: Lease, epoch: int) -> None:
        """Remove the topic and all messages in it, at every broker."""
        await self._remove(manager, broker, self.topic(topic, 0), lease, epoch)

    @staticmethod
    async def _remove(manager: Manager, broker: Broker, topic: Topic, lease: Lease, epoch: int) -> None:
        with suppress(UnknownTopicError):
            info = await manager.describe_topic(topic)
            await manager.commit({}, lease=lease)  # still held, so it is not a successor's
            await broker.delete(info.places, epoch=epoch)
            await manager.delete_topics([topic], lease=lease)


def _in_turn(brokers: Sequence[str], topic: str) -> list[str]:
    """All brokers, beginning with another one for each topic: small topics would all be at the first."""
    first = zlib.crc32(topic.encode()) % len(brokers)
    return [*brokers[first:], *brokers[:first]]


def _some(brokers: Sequence[str]) -> str:
    return ", ".join(brokers) if len(brokers) <= 4 else f"{brokers[0]} to {brokers[-1]}"
