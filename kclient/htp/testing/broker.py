"""The brokers of a simulated installation, as one of its clients sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import anyio
import anyio.lowlevel

from kclient.errors import NotYetSupportedError
from kclient.htp.errors import StoreClosedError, UnknownTopicError
from kclient.htp.port import Found, Framing, Place, Pulled, SegmentInfo, SyncedCallback, TopicSettings, TopicStatus
from kclient.htp.rows import check_opening

if TYPE_CHECKING:
    from kclient.htp.testing.installation import Installation
    from kclient.htp.testing.logs import SimulatedLog
    from kclient.types import Buffer


class SimulatedSent:
    """What a broker has answered is stored for good; where, it does not say."""

    __slots__ = ()
    first = last = -1
    done = True

    async def synced(self) -> None:
        """Return at once."""
        await anyio.lowlevel.checkpoint()

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Call back at once."""
        callback(None)


class SimulatedTopic:
    """Implements `kclient.htp.port.OpenTopic`; no epoch keeps anybody from using it.

    Args:
        place: The topic, at its broker.
        framing: How long its messages are.
        epoch: That it was opened under.
        installation: Whose broker it is.
        slots: Of the client, one for each send that is on its way.
    """

    def __init__(
        self, place: Place, framing: Framing, epoch: int, installation: Installation, slots: anyio.Semaphore
    ) -> None:
        self.place: Place = place
        self.epoch: int = epoch
        self._framing = framing
        self._installation = installation
        self._slots = slots
        self._order = anyio.Lock()
        """One send is on its way at a time: those of one topic may overtake each other."""
        self._ended: type[StoreClosedError | UnknownTopicError] | None = None

    @property
    def alive(self) -> bool:
        """Whether it may still be used."""
        return self._ended is None

    def give_up(self, *, shut: bool = False) -> None:
        """Refuse every further call; `shut` if the store is closed."""
        self._ended = StoreClosedError if shut else self._ended or UnknownTopicError

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended(f"{self.place} was closed or deleted")

    def _log(self) -> SimulatedLog:
        self._check()
        found = self._installation.log(self.place.broker, self.place.topic)
        if found is None:
            raise UnknownTopicError(f"{self.place.broker} has no topic {self.place.topic}")
        return found

    async def close(self) -> None:
        """Use it no more."""
        await anyio.lowlevel.checkpoint()
        self.give_up()

    async def configure(self, settings: TopicSettings) -> None:
        """There is no layout to change."""
        await anyio.lowlevel.checkpoint()
        self._check()

    async def send(self, messages: Sequence[Buffer]) -> SimulatedSent:
        """Append whole messages, all or none; stored when this returns."""
        self._check()
        if not messages:
            raise ValueError("no message to send")
        for message in messages:
            if self._framing.measure(message) != len(message):
                raise ValueError(f"a buffer of {len(message)} bytes is not one message")
        copied = [bytes(message) for message in messages]
        async with self._order, self._slots:
            self._check()
            await self._installation.send(self.place.broker, self.place.topic, copied)
        return SimulatedSent()

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The messages from a position on, few at a time."""
        most = self._installation.options.pull_messages
        await self._installation.ask(self.place)
        found = self._log().pull(position, max_bytes, most if max_messages is None else max(1, min(max_messages, most)))
        await self._installation.travel()
        self._check()
        return found

    async def status(self) -> TopicStatus:
        """Start, end and size."""
        await self._installation.ask(self.place)
        found = self._log().status()
        await self._installation.travel()
        return found

    async def trim(self, before: int) -> int:
        """Drop the messages before a position."""
        await self._installation.ask(self.place)
        return self._log().trim(before)

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """Not there: capability `find_by_timestamp` is missing."""
        self._refuse("find_by_timestamp")

    async def segments(self) -> list[SegmentInfo]:
        """Not there: capability `segments` is missing."""
        self._refuse("segments")

    async def roll(self) -> None:
        """Not there: capability `segments` is missing."""
        self._refuse("segments")

    def _refuse(self, capability: str) -> NoReturn:
        raise NotYetSupportedError(f"{self.place}: this store does not have the capability {capability!r}")


class SimulatedBroker:
    """Implements `kclient.htp.port.Broker` with none of its capabilities.

    Args:
        installation: Whose brokers they are.
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._slots = anyio.Semaphore(installation.options.in_flight)
        self._held: dict[Place, SimulatedTopic] = {}
        """What was opened here last."""
        self._shut = False

    def shut(self) -> None:
        """Refuse every further call."""
        self._shut = True
        for topic in self._held.values():
            topic.give_up(shut=True)
        self._held.clear()

    def _check(self) -> None:
        if self._shut:
            raise StoreClosedError(f"simulated:{self._installation.name} was closed")

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> SimulatedTopic:
        """Make a topic ready for use; whoever has it open goes on using it."""
        check_opening(epoch, next_position)
        self._check()
        await self._installation.ask(place)
        self._check()
        if place.incarnation or self._installation.log(place.broker, place.topic) is None:
            raise UnknownTopicError(f"There is no topic {place}")
        held = self._held.get(place)
        if held is None or not held.alive or held.epoch != epoch:
            held = self._held[place] = SimulatedTopic(place, framing, epoch, self._installation, self._slots)
        return held

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Have all messages of some topics dropped, which their brokers do as soon as they hear of it."""
        self._check()
        gone = [place for place in places if not place.incarnation]
        await self._installation.ask(", ".join(map(str, gone)))
        self._check()
        for place in gone:
            self._installation.drop_later(place.broker, place.topic)
            held = self._held.pop(place, None)
            if held is not None:
                held.give_up()
