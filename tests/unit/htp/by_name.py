"""A store whose broker is called by topic name, for tests that know each topic by its name alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast

from kclient.htp import (
    DirectTopic,
    Framing,
    Manager,
    OpenTopic,
    Store,
    Topic,
    TopicStatus,
    UnknownTopicError,
    open_store,
)
from kclient.types import Buffer

EPOCH = 1


class NamedBroker:
    """Opens the present incarnation of a name, and remembers what `open` gave."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.opened: dict[Topic, OpenTopic] = {}

    async def open(self, topic: Topic, framing: Framing, *, epoch: int = EPOCH, **options: Any) -> TopicStatus:
        place = (await self.store.manager.describe_topic(topic)).place
        opened = self.opened[topic] = await self.store.broker.open(place, framing, epoch=epoch, **options)
        return await opened.status()

    async def delete(self, topic: Topic, *, epoch: int = EPOCH) -> None:
        opened = self.opened.get(topic)
        place = opened.place if opened is not None else (await self.store.manager.describe_topic(topic)).place
        await self.store.broker.delete([place], epoch=epoch)

    def topic(self, topic: Topic) -> OpenTopic:
        found = self.opened.get(topic)
        if found is None:
            raise UnknownTopicError(f"{topic} is not open")
        return found

    def direct(self, topic: Topic) -> DirectTopic:
        found = self.topic(topic)
        assert isinstance(found, DirectTopic)
        return found

    async def close(self, topic: Topic) -> None:
        if topic in self.opened:
            await self.opened[topic].close()

    async def send(self, topic: Topic, messages: Sequence[Buffer]) -> Any:
        return await self.topic(topic).send(messages)

    async def pull(self, topic: Topic, position: int, **options: Any) -> Any:
        return await self.topic(topic).pull(position, **options)

    async def start(self, topic: Topic) -> int:
        return (await self.status(topic)).start

    async def end(self, topic: Topic) -> int:
        return (await self.status(topic)).end

    async def status(self, topic: Topic) -> TopicStatus:
        return await self.topic(topic).status()

    async def trim(self, topic: Topic, before: int) -> int:
        return await self.topic(topic).trim(before)

    async def find_by_timestamp(self, topic: Topic, timestamp: int, **options: Any) -> Any:
        return await self.topic(topic).find_by_timestamp(timestamp, **options)

    async def segments(self, topic: Topic) -> Any:
        return await self.topic(topic).segments()

    async def roll(self, topic: Topic) -> None:
        await self.topic(topic).roll()

    def send_nowait(self, topic: Topic, messages: Sequence[Buffer]) -> Any:
        return self.direct(topic).send_nowait(messages)

    def pull_nowait(self, topic: Topic, position: int, **options: Any) -> Any:
        return self.direct(topic).pull_nowait(position, **options)

    def status_nowait(self, topic: Topic) -> TopicStatus:
        return self.direct(topic).status_nowait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store.broker, name)


class NamedStore:
    """A store with such a broker; everything else is the store's own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._broker = NamedBroker(store)

    @property
    def manager(self) -> Manager:
        return self.store.manager

    @property
    def broker(self) -> NamedBroker:
        _ = self.store.broker  # raises while the store is not open
        return self._broker

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.store.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        await self.store.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(cast("Any", self.store), name)


def named_store(url: str, **options: Any) -> NamedStore:
    """As `kclient.htp.open_store`."""
    return NamedStore(open_store(url, **options))
