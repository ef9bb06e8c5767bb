"""A manager and a broker that belong together."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from kclient.htp.errors import StorageError
from kclient.htp.port.broker import Broker
from kclient.htp.port.manager import Manager

__all__ = ["Store"]


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
