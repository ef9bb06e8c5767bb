"""The store of one test: opened by its URL, with a domain and names that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from kclient.htp.contract.messages import FRAMING, message, payloads
from kclient.htp.port import (
    CAP_ORDINAL_POSITIONS,
    Broker,
    Faults,
    Lease,
    Manager,
    OpenTopic,
    Place,
    Sent,
    Store,
    Topic,
    Versioned,
    faults_of,
)
from kclient.htp.rows import GREATEST_EPOCH, scan_pages
from kclient.htp.store import open_store

__all__ = ["EPOCH", "ROWS", "Sandbox"]

EPOCH: Final = 1
"""Under which topics are opened where a test says nothing else."""
ROWS: Final = "contract/"
"""Of the rows and leases of all tests."""


class Sandbox:
    """A store under test.

    Args:
        url: Of the store.
        options: It is opened with, each time.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url: str = url
        self._options = dict(options)
        name = uuid.uuid4().hex[:16]
        self.domain: str = f"contract-{name}"
        """A domain that is there, and empty."""
        self.rows: str = f"{ROWS}{name}/"
        """What this test's rows and leases begin with."""
        self._domains = [self.domain]
        self._places: list[Place] = []
        self._number = 0
        self._closed = False
        self.capabilities: frozenset[str] = frozenset()
        """Of the backend."""
        self.store: Store = open_store(url, **self._options)
        """Open; another one after `reopen`."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, **options: Any) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of a block; what it has put into the store is deleted afterwards."""
        sandbox = cls(url, options)
        await sandbox.store.__aenter__()
        try:
            sandbox.capabilities = frozenset(sandbox.broker.capabilities)
            await sandbox.manager.create_domain(sandbox.domain)
            yield sandbox
            await sandbox._clean_up()
        finally:
            await sandbox.store.aclose()

    # --- the store ---

    @property
    def manager(self) -> Manager:
        """The store's manager."""
        return self.store.manager

    @property
    def broker(self) -> Broker:
        """The store's broker."""
        return self.store.broker

    @property
    def faults(self) -> Faults:
        """What has the store fail; it was opened with `faults=True`."""
        faults = faults_of(self.store)
        assert faults is not None
        return faults

    def claims(self, capability: str) -> bool:
        """Whether the backend has a capability."""
        return capability in self.capabilities

    @property
    def ordinal(self) -> bool:
        """Whether positions are the messages' ordinals."""
        return CAP_ORDINAL_POSITIONS in self.capabilities

    async def reopen(self, **options: Any) -> None:
        """Close the store and open it again, with other options from now on if there are any."""
        await self.close()
        self._options |= options
        self.store = open_store(self.url, **self._options)
        await self.store.__aenter__()
        self._closed = False

    async def close(self) -> None:
        """Close the store; closing it twice is no error."""
        self._closed = True
        await self.store.aclose()

    # --- names ---

    def key(self, name: str = "") -> str:
        """A row, or lease, of this test."""
        return self.rows + name

    async def new_domain(self) -> str:
        """Another domain of this test's own."""
        name = f"{self.domain}-{len(self._domains)}"
        await self.manager.create_domain(name)
        self._domains.append(name)
        return name

    def name(self, name: str = "some/topic") -> Topic:
        """The address of a topic in this test's domain."""
        return Topic(self.domain, name)

    # --- topics ---

    async def create(self, name: str = "some/topic", *, domain: str | None = None, broker: str | None = None) -> Place:
        """Create a topic, which nobody has opened yet."""
        info = await self.manager.create_topic(Topic(domain or self.domain, name), broker=broker)
        self._places.append(info.place)
        return info.place

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        """Bind a topic to one more broker."""
        place = await self.manager.bind(topic, broker, lease=lease)
        self._places.append(place)
        return place

    async def remake(self, place: Place) -> Place:
        """Delete a topic in the manager alone, and create another one of its name."""
        await self.manager.delete_topics([place.topic])
        return await self.create(place.topic.name, domain=place.topic.domain)

    async def open(self, place: Place, *, epoch: int = EPOCH, **options: Any) -> OpenTopic:
        """Open a topic that is there."""
        return await self.broker.open(place, FRAMING, epoch=epoch, **options)

    async def topic(self, name: str = "some/topic", *, epoch: int = EPOCH, **options: Any) -> OpenTopic:
        """Create a topic and open it."""
        return await self.open(await self.create(name), epoch=epoch, **options)

    # --- messages ---

    async def messages(self, topic: OpenTopic, *contents: bytes, timestamp: int = -1) -> list[bytes]:
        """Messages of one ordinal each that may be sent next."""
        first = (await topic.status()).next if self.ordinal else self._number
        self._number += len(contents)
        return [message(first + number, each, timestamp=timestamp) for number, each in enumerate(contents)]

    async def write(self, topic: OpenTopic, *contents: bytes, timestamp: int = -1) -> Sent:
        """Send messages together; they are written, and perhaps not synced."""
        return await topic.send(await self.messages(topic, *contents, timestamp=timestamp))

    async def send(self, topic: OpenTopic, *contents: bytes, timestamp: int = -1) -> Sent:
        """Send messages together, and wait for the sync."""
        sent = await self.write(topic, *contents, timestamp=timestamp)
        await sent.synced()
        return sent

    async def content(self, topic: OpenTopic, position: int | None = None, **limits: int) -> list[bytes]:
        """The payloads of all visible messages of a topic, or of those from a position on."""
        if position is None:
            position = (await topic.status()).start
        found: list[bytes] = []
        while len((pulled := await topic.pull(position, **limits)).data):
            assert pulled.last >= position, "reading goes on"
            found += payloads(pulled.data)
            position = pulled.last + 1
        return found

    async def positions(self, topic: OpenTopic) -> list[tuple[int, int, bytes]]:
        """First and last position and payload of each visible message of a topic, read one by one."""
        found: list[tuple[int, int, bytes]] = []
        position = (await topic.status()).start
        while len((pulled := await topic.pull(position, max_messages=1)).data):
            [payload] = payloads(pulled.data)
            found.append((pulled.first, pulled.last, payload))
            position = pulled.last + 1
        return found

    async def all_rows(self, prefix: str = "") -> dict[str, Versioned]:
        """All rows of this test whose keys go on with a prefix, by what follows on the test's own."""
        pages = scan_pages(self.manager, self.key(prefix))
        return {key.removeprefix(self.rows): found async for page in pages for key, found in page.items()}

    # --- afterwards ---

    async def _clean_up(self) -> None:
        """Delete what this test has left in the store, which may be closed."""
        if self._closed:
            await self.reopen()
        await self.broker.delete(dict.fromkeys(self._places), epoch=GREATEST_EPOCH)
        for domain in self._domains:
            await self.manager.delete_domain(domain)
        keys = [key async for page in scan_pages(self.manager, self.rows) for key in page]
        if keys:
            await self.manager.commit(dict.fromkeys(keys))
        for lease in await self.manager.leases(self.rows):
            if lease.held:
                await self.manager.release(await self.manager.acquire(lease.name, lease.holder, 0))
