"""The store: a manager and a broker on one database."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from htp_sqlite.broker import SqliteBroker
from htp_sqlite.database import Database
from htp_sqlite.manager import SqliteManager
from kclient.htp import errors


class SqliteStore:
    """Implements `kclient.htp.port.Store`."""

    def __init__(self, path: str, durability: str) -> None:
        self.path = path
        self._synchronous = "FULL" if durability == "synced" else "OFF"
        self._database: Database | None = None

    async def __aenter__(self) -> Self:
        self._database = Database(self.path, self._synchronous)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def on_failure(self, callback: Callable[[errors.StorageError], object]) -> Callable[[], None]:
        return lambda: None  # there is nothing in it that could die by itself

    @property
    def manager(self) -> SqliteManager:
        return SqliteManager(self._open)

    @property
    def broker(self) -> SqliteBroker:
        return SqliteBroker(self._open)

    @property
    def _open(self) -> Database:
        if self._database is None:
            raise errors.StoreClosedError(f"{self.path} is not open")
        return self._database
