"""Following a cluster until somebody stops it: the mirror, and now and then what groups have committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from kclient.config import ConfigInput
from kclient.errors import KafkaError
from kclient.gateway import Gateway
from kclient.gateway.local import local_address
from kclient.migration.mirror import Mirror
from kclient.migration.offsets import Moved, OffsetsMoved, move_offsets
from kclient.migration.source import SourceCluster
from kclient.migration.target import Target
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")

_OFFSETS_EVERY_S: Final = 60.0
"""Seconds between two looks at what groups have committed."""
_LOOK_S: Final = 0.1


@dataclass(slots=True)
class Sides:
    """Both sides of a migration, opened."""

    source: SourceCluster
    target: Target
    clients: SourceCluster
    """Reads the store as clients do."""
    gateway: Gateway
    """Serves the store: in this process, and nobody else may meanwhile."""


@asynccontextmanager
async def both_sides(
    source: ConfigInput,
    store: str,
    *,
    listen: str | None = None,
    advertise: str | None = None,
    durability: str = "synced",
    mapping: str = "domain",
    brokers: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> AsyncIterator[Sides]:
    """Open a cluster and a store.

    Args:
        source: The settings of a client of the cluster.
        store: `embedded:DIR`, which is made if it is not there, or `memory:NAME`; options of the store may follow.
        listen: Where clients may read what was moved already, `host:port`; None for nowhere.
        advertise: The address that these are told, if it is another.
        durability: As of a `Gateway`.
        mapping: As of a `Gateway`.
        brokers: As of a `Gateway`.
        config: The gateway's broker settings.

    Raises:
        LockedError: A gateway uses the store.
        ConfigError: A setting is wrong.
    """
    named = str(local_address(store) or store)  # clients name it without its options
    gateway = Gateway(
        store,
        listen,
        advertise,
        durability=durability,
        mapping=mapping,
        brokers=brokers,
        alone=store.startswith("embedded:"),
        config=config,
    )
    async with (
        gateway,
        SourceCluster(source) as there,
        SourceCluster(bootstrap_servers=named, client_id="kclient-migrate") as clients,
    ):
        yield Sides(there, Target(gateway), clients, gateway)


async def beside(mirror: Mirror, work: Callable[[], Awaitable[T]]) -> T:
    """Do something while a mirror runs, and stop that afterwards; returns what came of it.

    Raises:
        KafkaError: The work has failed, or the mirror, which ends the work.
    """
    outcome: list[T] = []
    failure: list[Exception] = []

    async def guarded(task: Callable[[], Awaitable[object]], tasks: TaskGroup) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001  (raised below, outside of the group, which would wrap it)
            failure.append(error)
            tasks.cancel_scope.cancel()

    async def to_its_end() -> None:
        outcome.append(await work())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guarded, mirror.run, tasks)
        await guarded(to_its_end, tasks)
        tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]
    return outcome[0]


class Following:
    """Runs a mirror, and moves committed offsets beside it.

    Args:
        sides: Both sides.
        mirror: It was prepared.
        note: Is told in a sentence what people should know.
        offsets_every: Seconds between two looks at what groups have committed.
    """

    def __init__(
        self,
        sides: Sides,
        mirror: Mirror,
        *,
        note: Callable[[str], object] = lambda _: None,
        offsets_every: float = _OFFSETS_EVERY_S,
    ) -> None:
        self._sides = sides
        self._mirror = mirror
        self._note = note
        self._every = offsets_every
        self._failure: Exception | None = None
        self._told = ""
        self._moved: Moved = {}
        self.offsets: int = 0
        """Committed offsets that were moved."""
        self.done: bool = False
        """Whether everything was moved that it was to end at."""

    async def run(self, *besides: Callable[[], Awaitable[object]], until_caught_up: bool = False) -> None:
        """Follow the source until the mirror is stopped.

        Args:
            besides: What is done meanwhile; when it ends, that is no matter, and if it fails, so does this.
            until_caught_up: Stop as soon as everything is in the store that the source has.

        Raises:
            KafkaError: It cannot go on.
        """
        async with anyio.create_task_group() as tasks:
            for work in besides:
                tasks.start_soon(self._guarded, work)
            tasks.start_soon(self._guarded, self._end_when_caught_up if until_caught_up else self._move_offsets)
            await self._guarded(self._mirror.run)
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  (raised by `run`, outside of the group, which would wrap it)
            self._failure = self._failure or error
            self._mirror.stop()

    async def _end_when_caught_up(self) -> None:
        await self._caught_up()
        await self._move()
        self.done = True
        self._mirror.stop()

    async def _caught_up(self) -> None:
        while True:
            await anyio.sleep(_LOOK_S)
            if self._mirror.lag == 0:
                return

    async def _move_offsets(self) -> None:
        with anyio.move_on_after(self._every):  # most of them are of records that are not there before
            await self._caught_up()
        while True:
            try:
                await self._move()
            except KafkaError as error:
                if not error.retriable:
                    raise
                if str(error) != self._told:
                    self._told = str(error)
                    self._note(f"committed offsets cannot be moved at the moment, it is tried again: {error}")
            await anyio.sleep(self._every)

    async def _move(self) -> OffsetsMoved:
        topics = {name: topic.source.partitions for name, topic in self._mirror.topics.items()}
        moved = await move_offsets(self._sides.source, self._sides.clients, topics, self._end, self._moved)
        self.offsets += moved.moved
        for group in moved.active:
            self._note(f"group {group} has members in the store: its committed offsets are left as they are there")
        return moved

    def _end(self, tp: TopicPartition) -> int | None:
        topic = self._mirror.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return None
        return topic.partitions[tp.partition].partition.log.high_watermark
