"""The backend `memory:NAME`: everything in memory, shared by all in the process that use the name.

What was stored under a name lives until the process ends or `reset` is called, no matter how often it is opened
and closed in between. Event loops in different threads may use one name at the same time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kclient.arguments import shown
from kclient.concurrency import LoopHandle
from kclient.errors import ConfigError, IllegalStateError
from kclient.htp.brokers import brokers_asked_for
from kclient.htp.errors import StorageError, StoreClosedError
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.state import MemoryState
from kclient.htp.port import DURABILITY_SYNCED, DURABILITY_WRITTEN, TopicSettings

if TYPE_CHECKING:
    from kclient.htp.memory.faults import MemoryFaults

__all__ = ["MemoryStore", "open_memory", "reset"]

_states: dict[str, MemoryState] = {}
_open: weakref.WeakSet[MemoryStore] = weakref.WeakSet()
_states_lock = threading.Lock()
"""Guards both."""
_foreign: set[str] = set()
"""Names that belong to the process that this one was forked from: what is here of them is a useless copy."""


def open_memory(
    name: str,
    *,
    durability: str = DURABILITY_SYNCED,
    settings: TopicSettings | None = None,
    faults: bool = False,
    brokers: int | None = None,
) -> MemoryStore:
    """The store of a name; made when it is entered for the first time.

    Args:
        name: Any text, also the empty one; it may end in `?brokers=N`.
        durability: Makes no difference in memory; checked all the same.
        settings: Layout of topics that are opened without settings of their own.
        faults: Whether what is opened here can be made to fail, for tests: `MemoryStore.faults`.
        brokers: How many there are, 1 to 256. If None, as many as there have been, at first one.

    Raises:
        ConfigError: If an option has no such value.
    """
    name, brokers = brokers_asked_for(name, brokers)
    if durability not in (DURABILITY_SYNCED, DURABILITY_WRITTEN):
        raise ConfigError(f"durability is {DURABILITY_SYNCED!r} or {DURABILITY_WRITTEN!r}, not {shown(durability)}")
    if not faults:
        return MemoryStore(name, settings or TopicSettings(), brokers)
    from kclient.htp.memory.faults import MemoryFaults

    return MemoryStore(name, settings or TopicSettings(), brokers, MemoryFaults())


def reset(name: str | None = None) -> None:
    """Forget what is stored under a name, or under all names; stores that are open fail.

    In a forked child, a name of its parent is the child's own from then on.
    """
    with _states_lock:
        names = list(_states) if name is None else [name]
        gone = [_states.pop(each) for each in names if each in _states]
        failing = [store for store in _open if store.state in gone]
        _foreign.difference_update(list(_foreign) if name is None else [name])
    for state in gone:
        state.discard()
    for store in failing:
        store.lose()


def check_own(name: str) -> None:
    """Refuse a name that belongs to the process that this one was forked from.

    Raises:
        IllegalStateError: It does.
    """
    if name in _foreign:
        raise IllegalStateError(_left_behind(name))


def disown(names: Iterable[str]) -> None:
    """In a forked child: these names are the parent's."""
    _foreign.update(names)


def _left_behind(name: str) -> str:
    return (
        f"memory:{name} lives in the process that this one was forked from; use embedded:DIRECTORY to share a "
        "store between processes"
    )


def _after_fork() -> None:
    global _states_lock
    _states_lock = threading.Lock()
    disown(_states)
    for name, state in _states.items():
        state.leave_behind(_left_behind(name))
    _states.clear()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class MemoryStore:
    """One opening of a named store."""

    def __init__(
        self, name: str, settings: TopicSettings, brokers: int | None, faults: MemoryFaults | None = None
    ) -> None:
        self.name = name
        self._settings = settings
        self._brokers = brokers
        self._faults = faults
        self._manager: MemoryManager | None = None
        self._broker: MemoryBroker | None = None
        self._loop: LoopHandle | None = None
        self._failure: StorageError | None = None
        self._when_failed: dict[object, Callable[[StorageError], object]] = {}
        self.state: MemoryState | None = None
        """What is stored, while it is open."""

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

    @property
    def faults(self) -> MemoryFaults:
        """Has the store fail, for tests. Raises `AttributeError` unless it was made with `faults=True`."""
        if self._faults is None:
            raise AttributeError("only a store made with faults=True can be made to fail")
        return self._faults

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            IllegalStateError: In a forked child, for a name that its parent used.
            TooFewBrokersError: If more brokers hold topics than it is to have.
        """
        check_own(self.name)
        self._loop = LoopHandle()
        self._failure = None
        with _states_lock:
            state = _states.setdefault(self.name, MemoryState(self.name))
            if self._brokers is not None:
                state.set_brokers(self._brokers)
            self.state = state
            _open.add(self)
        self._manager = MemoryManager(state)
        self._broker = MemoryBroker(state, self._settings, self._faults)
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
        """Have `callback(error)` called, once, if the name is reset while this is open."""
        key = object()
        self._when_failed[key] = callback
        if self._failure is not None:
            callback(self._failure)
        return lambda: self._when_failed.pop(key, None) and None

    def lose(self) -> None:
        """The name was reset: fail, at once where that was done in this one's event loop; from any thread."""
        if self._loop is not None and self._loop.is_current:
            self._fail()
        elif self._loop is not None:
            self._loop.post(self._fail)

    def _fail(self) -> None:
        if self.state is None or self._failure is not None or not self.state.discarded:
            return
        error = self._failure = StorageError(f"memory:{self.name} was reset")
        for callback in list(self._when_failed.values()):
            callback(error)

    async def aclose(self) -> None:
        """Close this opening; what is stored stays."""
        with _states_lock:
            _open.discard(self)
        self.state = None
        if self._broker is not None:
            self._broker.shut()
        if self._manager is not None:
            self._manager.shut()
        self._broker = self._manager = None
