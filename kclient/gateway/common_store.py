"""A store that is open once for all gateways of an event loop that name it: the last one closes it.

Those of other loops, and of other processes, open it for themselves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio

from kclient.concurrency import LoopHandle, to_the_end
from kclient.errors import ConfigError
from kclient.htp.errors import StorageError, StoreClosedError
from kclient.htp.port import StoreOnDisk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kclient.htp.port import Broker, DiskSpace, LentStore, Manager, Store


class _Opened:
    """One opening."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.options = dict(options)
        self.loop = LoopHandle()
        self.users = 0
        """Who has it open, or is about to."""
        self.changing = anyio.Lock()
        """Held while it is opened or closed."""
        self.store: Store | None = None
        """While it is open."""


_opened: dict[str, list[_Opened]] = {}
"""By address; of one address, one for each event loop."""
_lock = threading.Lock()


class CommonStore:
    """A store as one of its gateways has it.

    Args:
        address: Of the store, the same for every spelling.
        make: Makes the store, to be opened here.
        options: With which it is made. Who opens it later has to give the same.
    """

    def __init__(self, address: str, make: Callable[[], Store], options: Mapping[str, object]) -> None:
        self._address = address
        self._make = make
        self._options = options
        self._entry: _Opened | None = None

    def __repr__(self) -> str:
        return self._address

    def _store(self) -> Store:
        if self._entry is None or self._entry.store is None:
            raise StoreClosedError(f"{self._address} is not open")
        return self._entry.store

    @property
    def manager(self) -> Manager:
        """The management part."""
        return self._store().manager

    @property
    def broker(self) -> Broker:
        """The messages."""
        return self._store().broker

    def space(self) -> DiskSpace:
        """What is left on its disk, as `StoreOnDisk.space`."""
        return cast("StoreOnDisk", self._store()).space()

    async def lend(self) -> None:
        """Give up what other processes open, as `LentStore.lend`."""
        await cast("LentStore", self._store()).lend()

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """Have `callback(error)` called, once, if the store fails."""
        return self._store().on_failure(callback)

    async def __aenter__(self) -> Self:
        """Open it, or have it with those who have.

        Raises:
            ConfigError: It is open with other options.
            LockedError: It is open in a process that has it alone.
            KafkaError: It cannot be opened.
        """
        entry = self._find()
        try:
            async with entry.changing:
                if entry.store is None:
                    store = self._make()
                    await store.__aenter__()
                    entry.store = store
        except BaseException:
            # cancelled while it waited, it may be the last one that would have had it
            await to_the_end(self._close, entry)
            raise
        self._entry = entry
        return self

    def _find(self) -> _Opened:
        with _lock:
            entries = _opened.setdefault(self._address, [])
            for entry in list(entries):
                if not entry.loop.is_current:
                    if entry.loop.ended:  # and closed nothing
                        entries.remove(entry)
                    continue
                for name, value in self._options.items():
                    if entry.options[name] != value:
                        raise ConfigError(
                            f"{self._address} is open in this process with {name}={entry.options[name]!r}: another "
                            f"gateway on it has to be given the same, not {value!r}"
                        )
                break
            else:
                entry = _Opened(self._options)
                entries.append(entry)
            entry.users += 1
            return entry

    def _left(self, entry: _Opened) -> None:
        with _lock:
            entry.users -= 1
            if entry.users:
                return
            entries = _opened.get(self._address, [])
            if entry in entries:
                entries.remove(entry)
            if not entries:
                _opened.pop(self._address, None)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close it if nobody else has it open; closing it twice is no error."""
        entry, self._entry = self._entry, None
        if entry is not None:
            await to_the_end(self._close, entry)

    async def _close(self, entry: _Opened) -> None:
        try:
            async with entry.changing:  # who comes meanwhile waits, and opens it anew
                if entry.users == 1 and entry.store is not None:
                    store, entry.store = entry.store, None
                    await store.aclose()
        finally:
            self._left(entry)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
