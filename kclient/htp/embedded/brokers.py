"""The brokers of an embedded store that has several: every call goes to the one that a place names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio.lowlevel

from kclient.concurrency import side_by_side
from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.broker import EmbeddedBroker
from kclient.htp.errors import UnknownTopicError

if TYPE_CHECKING:
    from kclient.htp.embedded.log import TopicLog
    from kclient.htp.embedded.topic import EmbeddedTopic
    from kclient.htp.port import Framing, Place, TopicSettings


class EmbeddedBrokers:
    """Implements `kclient.htp.port.Broker`.

    Args:
        brokers: Each by its name; topics that are bound to none are at the first.
    """

    capabilities: frozenset[str] = EmbeddedBroker.capabilities

    def __init__(self, brokers: Mapping[str, EmbeddedBroker]) -> None:
        self._brokers = dict(brokers)
        self.capabilities = next(iter(self._brokers.values())).capabilities

    @property
    def sync_rounds(self) -> int:
        """How many rounds of group commit were made, by all of them."""
        return sum(broker.sync_rounds for broker in self._brokers.values())

    def log_of(self, place: Place) -> TopicLog:
        """The log of a topic that is open. Raises `UnknownTopicError` for another one."""
        return self._of(place).log_of(place)

    def _of(self, place: Place) -> EmbeddedBroker:
        broker = self._brokers.get(place.broker or FIRST_BROKER)
        if broker is None:
            raise UnknownTopicError(f"There is no topic {place}: there is {', '.join(self._brokers)}")
        return broker

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> EmbeddedTopic:
        """Take a topic over under an epoch; recovers it if need be."""
        broker = self._of(place)
        return await broker.open(place, framing, epoch=epoch, settings=settings, next_position=next_position)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics: none, where one of them has a newer epoch at any broker."""
        await anyio.lowlevel.checkpoint()
        wanted = list(places)
        async with AsyncExitStack() as stack:
            deletions = []
            for name, broker in self._brokers.items():
                here = [place for place in wanted if (place.broker or FIRST_BROKER) == name]
                if here:
                    deletions.append(await stack.enter_async_context(broker.deletion(here, epoch=epoch)))
            async with side_by_side() as begin:  # so that none waits for another's disk
                for deletion in deletions:
                    await begin(deletion)
