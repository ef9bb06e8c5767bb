"""Makes the internal topics that applications of Kafka Streams need, beside the heartbeats that ask for them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from kclient.errors import KafkaError, TopicExistsError

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.rows.streams_topology import StreamsTopic

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_AT_ONCE: Final = 32
"""So many topics are made at a time: none waits long because another one does."""
_MOST_FAILURES: Final = 4_000
"""So many topics that could not be made are remembered."""
_AGAIN_S: Final = 1.0
"""Seconds until what could not be made is tried again, however many members ask for it."""
_LONGEST: Final = 300
"""Characters of a reason that are told."""


class TopicMaker(Protocol):
    """Makes topics."""

    async def create(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        overrides: Mapping[str, str | None] | None = None,
    ) -> object:
        """Make one. Raises `KafkaError` if that cannot be."""
        ...


class StreamsTopics:
    """Makes the internal topics of applications, each once at a time, and remembers for a while which it could not.

    Args:
        maker: Makes topics.
        spawn: Starts a task of the gateway.
        clock: What time it is.
    """

    def __init__(self, maker: TopicMaker, spawn: Callable[..., object], clock: Clock) -> None:
        self._maker = maker
        self._spawn = spawn
        self._clock = clock
        self._wanted: OrderedDict[str, dict[str, tuple[StreamsTopic, float]]] = OrderedDict()
        """By group and name, those whose turn has not come. The group that comes first has the next turn."""
        self._making: set[str] = set()
        self._failed: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Why they could not be made, and until when that is told."""
        self._tried: dict[str, float] = {}
        """When those may be tried again."""

    def make(self, group_id: str, topics: Iterable[StreamsTopic], remember_s: float) -> None:
        """Have topics made; returns at once. Groups take turns: who wants many keeps nobody waiting.

        Args:
            group_id: The group that needs them; it wants those no more that it asked for before and that are not made.
            topics: All of its topics that are missing.
            remember_s: How long it is told if one cannot be made, in seconds.
        """
        now = self._clock.now()
        wanted = {
            topic.name: (topic, remember_s) for topic in topics
            if topic.name not in self._making and self._tried.get(topic.name, now) <= now
        }  # fmt: skip
        if wanted:
            waiting = self._wanted.get(group_id, {})  # they keep their order
            self._wanted[group_id] = {**{name: wanted[name] for name in waiting if name in wanted}, **wanted}
        else:
            self._wanted.pop(group_id, None)
        self._begin()

    def _begin(self) -> None:
        while self._wanted and len(self._making) < _AT_ONCE:
            group_id, wanted = self._wanted.popitem(last=False)
            name = next(iter(wanted))
            topic, remember_s = wanted.pop(name)
            if wanted:
                self._wanted[group_id] = wanted
            if name not in self._making:
                self._spawn(self._make, topic, remember_s, name="internal topic of streams")
                self._making.add(name)

    def failures(self, names: Collection[str]) -> dict[str, str]:
        """Why those of some topics were not made that could not be."""
        now = self._clock.now()
        while self._failed and next(iter(self._failed.values()))[1] <= now:
            self._forget_first()
        return {name: self._failed[name][0] for name in names if name in self._failed and self._failed[name][1] > now}

    def _forget_first(self) -> None:
        name, _ = self._failed.popitem(last=False)
        self._tried.pop(name, None)

    async def _make(self, topic: StreamsTopic, remember_s: float) -> None:
        try:
            await self._make_one(topic, remember_s)
        finally:
            self._making.discard(topic.name)
        self._begin()

    async def _make_one(self, topic: StreamsTopic, remember_s: float) -> None:
        try:
            await self._maker.create(topic.name, topic.partitions, topic.replication_factor or -1, dict(topic.configs))
        except TopicExistsError:
            pass  # somebody else was faster
        except (KafkaError, OSError) as error:
            logger.warning("the internal topic %s cannot be made: %s", topic.name, error)
            self._failed.pop(topic.name, None)
            now = self._clock.now()
            self._failed[topic.name] = str(error)[:_LONGEST], now + remember_s
            self._tried[topic.name] = now + _AGAIN_S
            while len(self._failed) > _MOST_FAILURES:
                self._forget_first()
        else:
            self._failed.pop(topic.name, None)
            self._tried.pop(topic.name, None)
