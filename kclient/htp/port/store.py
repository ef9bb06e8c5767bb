"""A manager and a broker that belong together."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

from kclient.htp.errors import StorageError
from kclient.htp.port.broker import Broker
from kclient.htp.port.manager import Manager

__all__ = ["DiskSpace", "LentStore", "Store", "StoreOnDisk"]


class Store(Protocol):
    """A manager and a broker that belong together: `async with open_store(url) as store: ...`."""

    @property
    def manager(self) -> Manager:
        """The management part."""
        ...

    @property
    def broker(self) -> Broker:
        """The messages."""
        ...

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            LockedError: If another process owns it.
            FormatVersionError: If it was written by a newer version.
        """
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the store."""
        ...

    async def aclose(self) -> None:
        """Sync everything and close the store; closing it twice is no error."""
        ...

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """Have `callback(error)` called in the event loop, once, if an open store fails for good.

        That is when something in the store itself has died, or it was taken away, as a store in memory that is reset.
        What waits then fails with that error, and so does every later call, except closing. A disk that is full or
        fails to write for a while is no such failure.
        Returns a function that ends it.
        """
        ...


class DiskSpace(NamedTuple):
    """What is left on the disk of a store."""

    free: int | None
    """Bytes that may still be written; None if the file system does not tell."""
    least: int
    """Bytes below which messages are refused; 0 for never."""
    refused: bool
    """Whether messages are refused at present, because there is less."""


@runtime_checkable
class LentStore(Protocol):
    """A store that several processes have open, and that lends each what it opens; it need not."""

    async def lend(self) -> None:
        """Give up what other processes open under newer epochs: for ever, or until the store is closed.

        Has to run as long as the store is open; more than once does no harm.

        Raises:
            StorageError: The store has failed.
        """
        ...


@runtime_checkable
class StoreOnDisk(Protocol):
    """A store that can tell about its disk; it need not."""

    def space(self) -> DiskSpace:
        """What is left, as of some seconds ago at the most; does not wait.

        Raises:
            StoreClosedError: It is not open.
        """
        ...
