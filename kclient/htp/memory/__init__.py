"""The backend `memory:NAME`: everything in memory, shared by all in the process that use the name.

What was stored under a name lives until the process ends or `reset` is called, no matter how often it is opened
and closed in between. Event loops in different threads may use one name at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.htp.errors import StorageError, StoreClosedError
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.state import MemoryState
from kclient.htp.port import DURABILITY_SYNCED, DURABILITY_WRITTEN, TopicSettings

__all__ = ["MemoryStore", "open_memory", "reset"]

_states: dict[str, MemoryState] = {}
_states_lock = threading.Lock()


def open_memory(
    name: str, *, durability: str = DURABILITY_SYNCED, settings: TopicSettings | None = None
) -> MemoryStore:
    """The store of a name; made when it is entered for the first time.

    Args:
        name: Any text, also the empty one.
        durability: Makes no difference in memory; checked all the same.
        settings: Layout of topics that are opened without settings of their own.
    """
    if durability not in (DURABILITY_SYNCED, DURABILITY_WRITTEN):
        raise ConfigError(f"durability is {DURABILITY_SYNCED!r} or {DURABILITY_WRITTEN!r}, not {shown(durability)}")
    return MemoryStore(name, durability, settings or TopicSettings())


def reset(name: str | None = None) -> None:
    """Forget what is stored under a name, or under all names; stores that are open raise `StoreClosedError`."""
    with _states_lock:
        names = list(_states) if name is None else [name]
        gone = [_states.pop(each) for each in names if each in _states]
    for state in gone:
        state.discard()


class MemoryStore:
    """One opening of a named store."""

    def __init__(self, name: str, durability: str, settings: TopicSettings) -> None:
        self.name = name
        self._durability = durability
        self._settings = settings
        self._manager: MemoryManager | None = None
        self._broker: MemoryBroker | None = None

    @property
    def manager(self) -> MemoryManager:
        """The management part."""
        if self._manager is None:
            raise StoreClosedError(f"memory:{self.name} is not open")
        return self._manager

    @property
    def broker(self) -> MemoryBroker:
        """The messages."""
        if self._broker is None:
            raise StoreClosedError(f"memory:{self.name} is not open")
        return self._broker

    async def __aenter__(self) -> Self:
        with _states_lock:
            state = _states.setdefault(self.name, MemoryState(self.name))
        self._manager = MemoryManager(state)
        self._broker = MemoryBroker(state, self._durability, self._settings)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.aclose()

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """Nothing here can die by itself: the callback is never called."""
        return lambda: None

    async def aclose(self) -> None:
        """Close this opening; what is stored stays."""
        if self._broker is not None:
            self._broker.shut()
        self._broker = self._manager = None
