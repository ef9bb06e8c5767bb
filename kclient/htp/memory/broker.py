"""The messages of the memory backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio.lowlevel

from kclient.htp.errors import StoreClosedError
from kclient.htp.memory.topic import MemoryTopic
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_REWRITE,
    CAP_SEGMENTS,
    CAP_SHARED,
    Framing,
    Place,
    TopicSettings,
)
from kclient.htp.rows import check_opening

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.htp.memory.faults import MemoryFaults
    from kclient.htp.memory.state import MemoryLog, MemoryState


class MemoryBroker:
    """Implements `kclient.htp.port.Broker`."""

    capabilities: frozenset[str] = frozenset(
        {
            CAP_POSITIONS,
            CAP_ORDINAL_POSITIONS,
            CAP_NOWAIT,
            CAP_FIND_BY_TIMESTAMP,
            CAP_SEGMENTS,
            CAP_REWRITE,
            CAP_FENCED_SENDS,
            CAP_SHARED,
        }
    )

    def __init__(self, state: MemoryState, settings: TopicSettings, faults: MemoryFaults | None = None) -> None:
        self._state = state
        self._settings = settings
        self._topic: Callable[[MemoryState, MemoryLog, int], MemoryTopic] = faults.topic if faults else MemoryTopic
        self._held: dict[int, MemoryTopic] = {}
        """What was opened here last of each incarnation."""
        self._shut = False

    def shut(self) -> None:
        """Refuse every further call, and wake who waits."""
        self._shut = True
        for topic in self._held.values():
            topic.give_up(shut=True)
        self._held.clear()

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> MemoryTopic:
        """Take a topic over under an epoch."""
        check_opening(epoch, next_position)
        await anyio.lowlevel.checkpoint()
        self._check()
        with self._state.lock:
            self._state.check()
            log = self._state.open_log(place, epoch, framing, settings or self._settings)
            if settings is not None:
                log.settings = settings
            log.raise_next(next_position)
        held = self._held.get(place.incarnation)
        if held is None or not held.alive:
            held = self._held[place.incarnation] = self._topic(self._state, log, epoch)
        return held

    def _check(self) -> None:
        if self._shut:
            raise StoreClosedError(f"memory:{self._state.name} was closed")

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics."""
        await anyio.lowlevel.checkpoint()
        self._check()
        with self._state.lock:
            self._state.check()
            found = ((place, self._state.logs.get(place.incarnation)) for place in places)
            logs = [log for place, log in found if log is not None and log.place == place]
            for log in logs:
                log.check(epoch)
            for log in logs:
                self._state.drop_log(log.place.incarnation)
        for log in logs:
            self._held.pop(log.place.incarnation, None)
